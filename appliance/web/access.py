"""Who may see the page: host names, the password, one-time links, sessions, attempts to log in.

The page's folder, for its user alone, holds what outlives a process that ends after ten idle
minutes: `password` (a hash), `secret` (signs the sessions) and `link-*` (one-time links).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import pwd
import re
import secrets
import socket
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from appliance.config import WebSettings
from appliance.errors import ConfigError, StoreError
from appliance.system import write_whole

INSTALLED = Path("/var/lib/roomscribe-web")
"""The page's folder where the package is installed."""
USER = "roomscribe-web"
LINK_S = 600.0
"""A one-time link is good for so long."""
SESSION_S = 30 * 86400
PASSWORD_LETTERS = 8
COST = {"n": 1 << 14, "r": 8, "p": 5}
"""scrypt's: 16 MB and about 0.3 s on a Pi (OWASP's password storage cheat sheet names it)."""
TRIES, TRIES_S = 5, 60.0
"""So many attempts to log in within so long, from one address; four times as many from all."""


class Access:
    """What is known of one page's guests. `folder` is for the page's user alone."""

    def __init__(self, settings: WebSettings) -> None:
        """Reads and writes nothing yet."""
        self._settings = settings
        self.folder = _folder(settings)
        self._tries: deque[tuple[float, str]] = deque(maxlen=4 * TRIES)
        self._names = _names(settings)

    def knows(self, host: str) -> bool:
        """True for a Host header that leads here: an address, or a name that is ours.

        A page elsewhere can have its own name point to this address (DNS rebinding); it cannot
        have a browser send another name than its own.
        """
        name = re.sub(r":\d+$", "", host).strip("[]").rstrip(".").lower()
        with suppress(ValueError):
            ipaddress.ip_address(name.partition("%")[0])
            return True
        return name in self._names

    def prepare(self) -> None:
        """Makes the folder, for the page's user where this is root. Raises StoreError."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._give(self.folder)
            next(self.folder.iterdir(), None)
            if not os.access(self.folder, os.W_OK):
                raise PermissionError("expected a folder that this user may write")
        except OSError as error:
            found = error.strerror or str(error)
            raise StoreError(
                f"{self.folder}: expected the page's folder, found: {found}; run this with sudo, "
                "or set web.path to a folder of this user"
            ) from error

    @property
    def has_password(self) -> bool:
        """True when a password is set."""
        return self._file("password").exists()

    def set_password(self, password: str) -> None:
        """Keeps its hash, and ends all sessions; "" takes the password away.

        Raises ConfigError for one that is too short, StoreError.
        """
        if password and len(password) < PASSWORD_LETTERS:
            raise ConfigError(
                f"the page's password: expected at least {PASSWORD_LETTERS} letters, found "
                f"{len(password)}"
            )
        self.prepare()
        salt = secrets.token_bytes(16)
        kept = f"scrypt {salt.hex()} {_hash(password, salt).hex()}\n"
        if password:
            self._write("password", kept)
        else:
            self._file("password").unlink(missing_ok=True)
        self._write("secret", secrets.token_hex(32))

    def is_password(self, password: str) -> bool:
        """True for the right one; takes as long for a wrong one."""
        try:
            _, salt, kept = self._file("password").read_text(encoding="ascii").split()
            return hmac.compare_digest(_hash(password, bytes.fromhex(salt)), bytes.fromhex(kept))
        except (OSError, ValueError):
            return False

    def new_link(self) -> str:
        """A word that logs in once, within ten minutes. Raises StoreError."""
        self.prepare()
        word = secrets.token_urlsafe(24)
        self._write(self._link(word).name, "")
        return word

    def take_link(self, word: str) -> bool:
        """True for a word that is good, which it is then no more."""
        oldest_s = time.time() - LINK_S
        for file in self.folder.glob("link-*"):
            with suppress(OSError):
                if file.stat().st_mtime < oldest_s:
                    file.unlink()
        try:
            self._link(word).unlink()
        except OSError:
            return False
        return True

    def may_try(self, address: str) -> bool:
        """Notes an attempt to log in; False when there were too many."""
        oldest_s = time.monotonic() - TRIES_S
        while self._tries and self._tries[0][0] < oldest_s:
            self._tries.popleft()
        if len(self._tries) == self._tries.maxlen:
            return False
        if sum(other == address for _, other in self._tries) >= TRIES:
            return False
        self._tries.append((time.monotonic(), address))
        return True

    def new_session(self) -> str:
        """What a browser shows from now on. Raises StoreError."""
        begin = f"{round(time.time()) + SESSION_S}.{secrets.token_hex(16)}"
        return f"{begin}.{self._sign(begin)}"

    def is_session(self, cookie: str) -> bool:
        """True for a session of ours that is not over."""
        begin, _, signature = cookie.rpartition(".")
        if not re.fullmatch(r"\d{1,12}\.[0-9a-f]{32}", begin):
            return False
        good = hmac.compare_digest(self._sign(begin), signature.encode("ascii", "replace").decode())
        return good and int(begin.partition(".")[0]) > time.time()

    def token(self, session: str) -> str:
        """What a session's page has to show for each change: another page cannot know it."""
        return self._sign(f"token {session}")

    def _sign(self, text: str) -> str:
        """A signature; raises StoreError where the secret can be neither read nor written."""
        try:
            secret = self._file("secret").read_text(encoding="ascii")
        except OSError:
            self.prepare()
            secret = secrets.token_hex(32)
            self._write("secret", secret)
        return hmac.new(secret.encode(), text.encode(errors="replace"), "sha256").hexdigest()

    def _link(self, word: str) -> Path:
        digest = hashlib.sha256(word.encode(errors="replace")).hexdigest()
        return self._file(f"link-{digest[:32]}")

    def _file(self, name: str) -> Path:
        return self.folder / name

    def _write(self, name: str, text: str) -> None:
        try:
            write_whole(self._file(name), text, 0o600)
            self._give(self._file(name))
        except OSError as error:
            raise StoreError(
                f"{self._file(name)}: cannot be written: {error.strerror}; run this with sudo, or "
                "free some space"
            ) from error

    def _give(self, path: Path) -> None:
        """Makes what root has made in the installed folder the page's user's."""
        if os.geteuid() == 0 and self.folder == INSTALLED:
            with suppress(KeyError):
                user = pwd.getpwnam(USER)
                # not where a link leads that its user may have put there
                os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)


def is_local(address: str) -> bool:
    """True for an address of this machine alone, and for a socket's path."""
    return address.startswith("/") or ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _folder(settings: WebSettings) -> Path:
    if settings.path:
        return Path(settings.path).expanduser()
    try:
        pwd.getpwnam(USER)
    except KeyError:  # the package is not installed
        return Path("~/.local/state/roomscribe-web").expanduser()
    return INSTALLED


def _names(settings: WebSettings) -> frozenset[str]:
    host = socket.gethostname().lower()
    bare = host.partition(".")[0]
    more = re.split(r"[\s,]+", settings.hosts.lower())
    return frozenset({"localhost", host, bare, f"{bare}.local", *more} - {""})


def _hash(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(errors="replace"), salt=salt, **COST)
