"""Who may see the page: host names, the password, one-time links, sessions, attempts to log in.

The page's folder, for its user alone, holds what outlives a process that ends after ten idle
minutes: `password` (a hash), `secret` (signs the sessions), `ended` (sessions that were logged out)
and `link-*` (one-time links).
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
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

from appliance.config import WebSettings
from appliance.errors import ConfigError, StoreError
from appliance.system import write_whole

INSTALLED = Path("/var/lib/roomscribe-web")
"""The page's folder where the package is installed."""
USER = "roomscribe-web"
ENDED = "ended"
"""A file with the sessions that were logged out before they expire, one a line."""
BEGIN = re.compile(r"\d{1,12}\.[0-9a-f]{32}")
"""What a session is signed over: when it expires, and 128 random bits."""
LINK_S = 600.0
"""A one-time link is good for so long."""
SESSION_S = 30 * 86400
PASSWORD_LETTERS = 8
COST = {"n": 1 << 14, "r": 8, "p": 5}
"""scrypt's: 16 MB and about 0.3 s on a Pi (OWASP's password storage cheat sheet names it)."""
TRIES, WAIT_S, LONGEST_WAIT_S = 5, 60.0, 300.0
"""An address waits after this many wrong passwords, and twice as long after each further one."""
ADDRESSES = 1000
"""Addresses whose wrong passwords are counted; beyond it the oldest are forgotten."""


class Access:
    """What is known of one page's guests. `folder` is for the page's user alone."""

    def __init__(self, settings: WebSettings) -> None:
        """Reads and writes nothing yet."""
        self._settings = settings
        self.folder = _folder(settings)
        self._tries: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """By address: wrong passwords, and when the next attempt is allowed."""
        self._ended: dict[str, int] | None = None
        """Sessions that were logged out, and the Unix time when they expire; None: not read."""
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
        self._file(ENDED).unlink(missing_ok=True)

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

    def begin_attempt(self, address: str) -> float:
        """Count an attempt with a password; return the seconds to wait first, 0 if it may be made.

        It counts as wrong until `succeeded`. Each address has its own count, so that nobody can
        lock others out.
        """
        key, now_s = _neighbourhood(address), time.monotonic()
        count, next_s = self._tries.pop(key, (0, 0.0))
        if now_s > next_s + LONGEST_WAIT_S:
            count = 0
        if now_s >= next_s:
            count += 1
            wait_s = WAIT_S * 2 ** max(0, min(count - TRIES, 10)) if count >= TRIES else 0.0
            next_s, left_s = now_s + min(wait_s, LONGEST_WAIT_S), 0.0
        else:
            left_s = next_s - now_s
        self._tries[key] = (count, next_s)
        while len(self._tries) > ADDRESSES:
            self._tries.popitem(last=False)
        return left_s

    def succeeded(self, address: str) -> None:
        """The password was right: the address starts anew."""
        self._tries.pop(_neighbourhood(address), None)

    def new_session(self) -> str:
        """What a browser shows from now on. Raises StoreError."""
        begin = f"{round(time.time()) + SESSION_S}.{secrets.token_hex(16)}"
        return f"{begin}.{self._sign(begin)}"

    def is_session(self, cookie: str) -> bool:
        """True for a session of ours that is not over."""
        begin, _, signature = cookie.rpartition(".")
        if not BEGIN.fullmatch(begin):
            return False
        good = hmac.compare_digest(self._sign(begin), signature.encode("ascii", "replace").decode())
        return (
            good and int(begin.partition(".")[0]) > time.time() and begin not in self._logged_out()
        )

    def end_session(self, cookie: str) -> None:
        """Log a session out for good, also over a restart. Raises StoreError."""
        begin, ended = cookie.rpartition(".")[0], self._logged_out()
        ended[begin] = int(begin.partition(".")[0])
        self._ended = {one: until_s for one, until_s in ended.items() if until_s > time.time()}
        self._write(ENDED, "".join(f"{one}\n" for one in self._ended))

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

    def _logged_out(self) -> dict[str, int]:
        """Sessions that were ended and would not have expired yet."""
        if self._ended is None:
            try:
                lines = self._file(ENDED).read_text(encoding="ascii").split()
            except (OSError, UnicodeDecodeError):
                lines = []
            self._ended = {one: int(one.partition(".")[0]) for one in lines if BEGIN.fullmatch(one)}
        return self._ended

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


def _neighbourhood(address: str) -> str:
    """The address, of IPv6 its /64: a machine has as many of those as it likes."""
    with suppress(ValueError):
        found = ipaddress.ip_address(address.partition("%")[0])
        if found.version == 6:
            return str(ipaddress.ip_network((found, 64), strict=False))
    return address


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
