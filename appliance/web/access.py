"""Who may see the page: host names, the password, one-time links, sessions, login attempts.

The page's process ends after ten idle minutes, so it keeps files in a folder of its user's:
`password` (a hash), `secret` (signs sessions), `link-*` (links), `first-steps` (exists once the
first steps were finished or skipped).
"""

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
"""The folder, if the package is installed."""
USER = "roomscribe-web"
PASSWORD_FILE, SECRET_FILE, API_FILE = "password", "secret", "api-token"
FIRST_STEPS_FILE = "first-steps"
SIGNED = re.compile(r"\d{1,12}\.[0-9a-f]{32}")
"""The part of a session that is signed: when it expires, and 128 random bits."""
LINK_S = 600.0
"""Seconds that a one-time link is valid."""
SESSION_S = 30 * 86400
PASSWORD_LETTERS = 8
COST = {"n": 1 << 14, "r": 8, "p": 5}
"""Of scrypt: 16 MB and about 0.3 s on a Pi (from OWASP's password storage cheat sheet)."""
TRIES, WAIT_S, LONGEST_WAIT_S = 5, 60.0, 300.0
"""An address waits after this many wrong passwords, twice as long after each further one."""
ADDRESSES = 1000
"""Most addresses whose wrong passwords are counted; the oldest are forgotten."""


class Access:
    """Logins and sessions of the page."""

    def __init__(self, settings: WebSettings) -> None:
        self._settings = settings
        self.folder = _folder(settings)
        self._tries: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Wrong passwords, and the time of the next permitted attempt, by address."""
        self._hosts = _host_names(settings)

    def is_own_host(self, host: str) -> bool:
        """Return True for a Host header with an address, or with a name of this machine.

        Another website can make its own name point here (DNS rebinding), but its visitors'
        browsers still send that name.
        """
        name = re.sub(r":\d+$", "", host).strip("[]").rstrip(".").lower()
        with suppress(ValueError):
            ipaddress.ip_address(name.partition("%")[0])
            return True
        return name in self._hosts

    def prepare(self) -> None:
        """Make the folder; as root, for the page's user. Raises StoreError."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._hand_over(self.folder)
            next(self.folder.iterdir(), None)
            if not os.access(self.folder, os.W_OK):
                raise PermissionError("not writable")
        except OSError as error:
            found = error.strerror or str(error)
            raise StoreError(
                f"cannot use the page's folder {self.folder}: {found}; run this with sudo, or set "
                "web.path to a folder of yours"
            ) from error

    @property
    def has_password(self) -> bool:
        """True if a password is set."""
        return self._file(PASSWORD_FILE).exists()

    def set_password(self, password: str) -> None:
        """Save the hash of a password, and end all sessions; "" removes the password.

        Raises ConfigError if it is too short, StoreError.
        """
        if password and len(password) < PASSWORD_LETTERS:
            raise ConfigError(
                f"the password is too short: use at least {PASSWORD_LETTERS} characters"
            )
        self.prepare()
        salt = secrets.token_bytes(16)
        line = f"scrypt {salt.hex()} {_hash(password, salt).hex()}\n"
        if password:
            self._write(PASSWORD_FILE, line)
        else:
            self._file(PASSWORD_FILE).unlink(missing_ok=True)
        self.end_sessions()

    def is_password(self, password: str) -> bool:
        """Return True for the right password. A wrong one takes as long."""
        try:
            _, salt, saved = self._file(PASSWORD_FILE).read_text(encoding="ascii").split()
            return hmac.compare_digest(_hash(password, bytes.fromhex(salt)), bytes.fromhex(saved))
        except (OSError, ValueError):
            return False

    def new_api_token(self) -> str:
        """Return a new token for programs, in place of the one before. Raises StoreError."""
        self.prepare()
        token = f"rs-{secrets.token_urlsafe(32)}"
        self._write(API_FILE, hashlib.sha256(token.encode()).hexdigest())
        return token

    def is_api_token(self, token: str) -> bool:
        """Return True for the token of programs."""
        try:
            saved = self._file(API_FILE).read_text(encoding="ascii")
        except OSError:
            return False
        given = hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
        return hmac.compare_digest(given, saved.strip())

    def new_link(self) -> str:
        """Return a token that logs in once, within ten minutes. Raises StoreError."""
        self.prepare()
        token = secrets.token_urlsafe(24)
        self._write(self._link_file(token).name, "")
        return token

    def use_link(self, token: str) -> bool:
        """Return True for a valid token of a link, and make it invalid."""
        oldest_s = time.time() - LINK_S
        for file in self.folder.glob("link-*"):
            with suppress(OSError):
                if file.stat().st_mtime < oldest_s:
                    file.unlink()
        try:
            self._link_file(token).unlink()
        except OSError:
            return False
        return True

    def begin_attempt(self, address: str) -> float:
        """Count an attempt with a password; return the seconds to wait first, 0 if it may be made.

        It counts as wrong until `clear_attempts`. Each address has its own count, so that nobody
        can lock others out.
        """
        key, now_s = _network(address), time.monotonic()
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

    def clear_attempts(self, address: str) -> None:
        """Forget the attempts of an address, because its password was right."""
        self._tries.pop(_network(address), None)

    @property
    def wants_first_steps(self) -> bool:
        """True until somebody has finished or skipped the page's first steps."""
        return not self._file(FIRST_STEPS_FILE).exists()

    def end_first_steps(self) -> None:
        """Save that the first steps were finished or skipped. Raises StoreError."""
        self._write(FIRST_STEPS_FILE, "")

    def new_session(self) -> str:
        """Return a new session, for a cookie. Raises StoreError."""
        signed = f"{round(time.time()) + SESSION_S}.{secrets.token_hex(16)}"
        return f"{signed}.{self._sign(signed)}"

    def is_session(self, cookie: str) -> bool:
        """Return True for a session that is valid: signed here, and not expired."""
        signed, _, signature = cookie.rpartition(".")
        if not SIGNED.fullmatch(signed):
            return False
        signature = signature.encode("ascii", "replace").decode()
        if not hmac.compare_digest(self._sign(signed), signature):
            return False
        return int(signed.partition(".")[0]) > time.time()

    def end_sessions(self) -> None:
        """Log all sessions out for good: what signed them is replaced. Raises StoreError."""
        self._write(SECRET_FILE, secrets.token_hex(32))

    def token(self, session: str) -> str:
        """Return what the page sends with each command; another website cannot know it."""
        return self._sign(f"token {session}")

    def _sign(self, text: str) -> str:
        """Return a signature. Raises StoreError if the secret can be neither read nor written."""
        try:
            secret = self._file(SECRET_FILE).read_text(encoding="ascii")
        except OSError:
            self.prepare()
            secret = secrets.token_hex(32)
            self._write(SECRET_FILE, secret)
        return hmac.new(secret.encode(), text.encode(errors="replace"), "sha256").hexdigest()

    def _link_file(self, token: str) -> Path:
        digest = hashlib.sha256(token.encode(errors="replace")).hexdigest()
        return self._file(f"link-{digest[:32]}")

    def _file(self, name: str) -> Path:
        return self.folder / name

    def _write(self, name: str, text: str) -> None:
        try:
            write_whole(self._file(name), text, 0o600)
            self._hand_over(self._file(name))
        except OSError as error:
            raise StoreError(
                f"cannot write {self._file(name)}: {error.strerror}; run this with sudo, or free "
                "some space"
            ) from error

    def _hand_over(self, path: Path) -> None:
        """As root, give a file of the installed folder to the page's user."""
        if os.geteuid() == 0 and self.folder == INSTALLED:
            with suppress(KeyError):
                user = pwd.getpwnam(USER)
                # not through a symbolic link that this user may have put there
                os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)


def _network(address: str) -> str:
    """Return an IPv4 address, or the /64 of an IPv6 one, in which a machine can pick any."""
    with suppress(ValueError):
        parsed = ipaddress.ip_address(address.partition("%")[0])
        if parsed.version == 6:
            return str(ipaddress.ip_network((parsed, 64), strict=False))
    return address


def is_local(address: str) -> bool:
    """Return True for an address that only this machine reaches, and for a socket's path."""
    return address.startswith("/") or ipaddress.ip_address(address.partition("%")[0]).is_loopback


def password_missing(address: str) -> str:
    """Return why the page may not listen on an address that other machines reach."""
    return (
        f"the page needs a password to listen on {address}, which other machines can reach: set "
        "one with `sudo roomscribe web password`"
    )


def _folder(settings: WebSettings) -> Path:
    if settings.path:
        return Path(settings.path).expanduser()
    try:
        pwd.getpwnam(USER)
    except KeyError:  # the package is not installed
        return Path("~/.local/state/roomscribe-web").expanduser()
    return INSTALLED


def _host_names(settings: WebSettings) -> frozenset[str]:
    host = socket.gethostname().lower()
    bare = host.partition(".")[0]
    more = re.split(r"[\s,]+", settings.hosts.lower())
    return frozenset({"localhost", host, bare, f"{bare}.local", *more} - {""})


def _hash(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(errors="replace"), salt=salt, **COST)
