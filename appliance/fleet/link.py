"""One connection to the fleet's server: a thread with a loop of its own, which connects for ever.

Nothing of another thread waits on it beyond its deadline: looking up a name may hang, a server may
accept and say nothing, a cable may be pulled. Each connection is a fresh client, and handlers run
only while one stands; whatever was under way is the caller's to begin again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import ssl
import stat
import threading
import time
import tomllib
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from appliance.config import FleetSettings, fleet_server, is_loopback
from appliance.errors import ConfigError, ServerError
from appliance.fleet.messages import NAME, Subjects, token
from appliance.system import BackgroundTask, find_credential, one_line, shorten

if TYPE_CHECKING:
    from nats.aio.client import Client

log = logging.getLogger("roomscribe.fleet")

CREDENTIAL = "roomscribe.fleet"
"""Name, among systemd's credentials, of user and password."""
MOST_BYTES = 4096
"""A longer file is not one that holds a password."""
CONNECT_S = 5.0
"""For all of a connection: name, TCP, TLS, greeting."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0
"""Between two attempts to connect."""
STEADY_S = 2.0
"""A connection that lasted longer was a good one; after others it is waited longer each time."""
PING_S, PINGS = 20, 2
"""A connection is dead when so many pings in a row were not answered."""
CLOSE_S = 1.0
"""For taking leave of a server."""
RENEW_RIGHTS = (
    "if an older version set the server up, run `sudo roomscribe fleet join --serve` on its machine"
)
COMING = "no server: the connection to the fleet's server is being made"
LOOKED_UP = "its name is still being looked up; write its address in numbers into fleet.server"

Found = TypeVar("Found")
LookUp = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Credential:
    """User and password of a node at the server."""

    user: str
    password: str


def credential(settings: FleetSettings) -> Credential | None:
    """User and password of fleet.credential, else of systemd's credential, else None.

    Raises ConfigError; no message shows the password.
    """
    if settings.credential:
        return _read(Path(settings.credential), "fleet.credential", own=True)
    given = find_credential(CREDENTIAL)
    return _read(given, "systemd credential", own=False) if given else None


def options(settings: FleetSettings, node: str) -> dict[str, Any]:
    """What nats.connect() is told of us, but for the servers: user, password, tls, inbox_prefix,
    name. Raises ConfigError for a credential or an authority that cannot be used, and without a
    credential beyond this machine.
    """
    who = credential(settings)
    beyond = [one for one in settings.server if not is_loopback(fleet_server(one)[1])]
    if beyond and not who:
        raise ConfigError(
            f"fleet.credential: expected a file with user and password for {beyond[0]}, found "
            "none; `roomscribe fleet join CODE` writes one"
        )
    chosen: dict[str, Any] = {
        "inbox_prefix": Subjects(own_node(who, node)).inbox,
        "name": own_node(who, node),
    }
    if who:
        chosen |= {"user": who.user, "password": who.password}
    if any(one.startswith("tls:") for one in settings.server):
        chosen["tls"] = _context(settings)
    return chosen


def own_node(who: Credential | None, node: str) -> str:
    """Return the node's name in subjects: its user, since rights are given to that."""
    return who.user if who else token(node)


class Link:
    """The connection, by a thread of its own from `start` to `close`.

    `add` before `start`; any thread may call the others.
    """

    def __init__(
        self,
        settings: FleetSettings,
        node: str,
        *,
        look_up: LookUp = socket.getaddrinfo,
        connect_s: float = CONNECT_S,
    ) -> None:
        """Reads credential and authority; raises ConfigError. Does not connect. `look_up` finds
        the addresses of a name."""
        self._connect_s = connect_s
        self._options = options(settings, node)
        self.node: str = self._options["name"]
        self.trouble: str | None = COMING
        """Why there is no connection, with the fix; None while there is one."""
        self.server = ""
        """The one that is connected to; empty while none is."""
        self.refused: Callable[[str], None] = lambda _: None
        """Called, in the link's thread, with what the server says we have no right to."""
        self.changed: Callable[[str | None], object] = lambda _: None
        """Called, in the link's thread, with a new `trouble`."""
        self._servers = random.sample(settings.server, len(settings.server))
        """In random order, so that not all nodes connect to the first one."""
        self._handlers: list[Callable[[Client], Coroutine[Any, Any, None]]] = []
        self._loop = _Loop(look_up)
        self._closing = asyncio.Event()
        self._tried = threading.Event()
        self._client: Client | None = None
        self._since_s = 0.0
        self._errand: BackgroundTask | None = None
        self._ended: asyncio.Event | None = None
        self._unwell = False
        """True when it was a handler that ended the connection before."""
        self._running: asyncio.Task[None] | None = None

    @property
    def client(self) -> Client | None:
        """The client of the connection that stands; for coroutines of the link's loop."""
        return self._client

    @property
    def age_s(self) -> float:
        """Seconds since the connection stands."""
        return time.monotonic() - self._since_s

    def add(self, handler: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
        """`handler` is run on each connection, until that is lost; ending is its own affair, an
        error ends the connection."""
        self._handlers.append(handler)

    def well(self) -> None:
        """A handler that failed says that it works; the loop's thread."""
        self._unwell = False
        self._note(None)

    def start(self) -> None:
        """Begins to connect. Does not wait."""
        # it warns of each connection with TLS: "returning true from eof_received() has no effect"
        logging.getLogger("asyncio").setLevel(logging.ERROR)
        self._errand = BackgroundTask(self._run, "fleet")

    def settle(self, within_s: float) -> None:
        """Waits until the first attempts to connect have come to something."""
        self._tried.wait(within_s)

    def call(self, ask: Callable[[], Awaitable[Found]], within_s: float) -> Found:
        """What a coroutine function finds in the link's loop.

        Raises what it raises, and ServerError when it takes longer.
        """

        async def bounded() -> Found:
            async with asyncio.timeout(within_s):
                return await ask()

        if not self._errand or not self._errand.is_alive() or self._closing.is_set():
            raise ServerError("the connection to the fleet is closed")
        future = asyncio.run_coroutine_threadsafe(bounded(), self._loop)
        try:
            return future.result(within_s + 1.0)
        except TimeoutError:
            if not self._loop.is_closed():
                future.cancel()
            raise ServerError(f"expected an answer within {within_s:g} s, found none") from None

    def soon(self, work: Callable[[], object]) -> None:
        """Has `work` done in the link's loop. Does not wait."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(work)

    def reset(self) -> None:
        """Gives a connection up that seems dead; the loop's thread."""
        if self._ended:
            self._ended.set()

    def close(self) -> None:
        """Takes leave of the server, in CLOSE_S at most."""
        errand = self._errand
        if errand is None:
            self._loop.close()
            return
        self.soon(self._end)
        errand.join(CLOSE_S + 0.5)

    def _end(self) -> None:
        """Has the loop end; a connection is taken leave of, one that is being made is not."""
        self._closing.set()
        if self._client is None and self._running:
            self._running.cancel()

    def _run(self) -> None:
        """Thread's body."""
        asyncio.set_event_loop(self._loop)
        self._running = self._loop.create_task(self._stay_connected())
        try:
            with suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._running)
        finally:
            self._loop.close()

    async def _stay_connected(self) -> None:
        """Connects to one server after the other until `close`."""
        pause_s, turn, failed = FIRST_PAUSE_S, 0, 0
        refusal = ""  # of this round: it says more than that another server does not answer
        while not self._closing.is_set():
            server = self._servers[turn % len(self._servers)]
            turn += 1
            before_s = self._since_s
            try:
                await self._be_connected(server)
            except Exception as error:
                if self._since_s != before_s and self.age_s > STEADY_S:
                    pause_s, failed = FIRST_PAUSE_S, 0
                failed += 1
                self._unwell = isinstance(error, ServerError)
                why = _explain(server, error)
                refusal = why if why.startswith("refused") else refusal
                if failed >= len(self._servers):  # of a cluster another one may be there
                    self._note(refusal or why)
            if failed % len(self._servers) == 0:
                self._tried.set()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), pause_s)
                pause_s, refusal = min(2 * pause_s, LONGEST_PAUSE_S), ""

    async def _be_connected(self, server: str) -> None:
        """Connects, and works until the connection ends. Raises whatever ended it."""
        ended = asyncio.Event()
        client, errors = await self._connect(server, ended)
        self._ended = ended
        self._client, self._since_s, self.server = client, time.monotonic(), server
        if not self._unwell:
            self._note(None)
        self._tried.set()
        handlers = [asyncio.ensure_future(work(client)) for work in self._handlers]
        waits = [asyncio.ensure_future(one.wait()) for one in (ended, self._closing)]
        watched: set[asyncio.Future[Any]] = {*handlers, *waits}
        try:
            while watched:
                done, watched = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
                if any(one in waits for one in done):
                    break
                for one in done:
                    one.result()
        finally:
            self._client, self.server = None, ""
            for task in (*handlers, *waits):
                task.cancel()
            await asyncio.gather(*handlers, *waits, return_exceptions=True)
            await _leave(client)
        if not self._closing.is_set():
            raise errors[-1] if errors else ConnectionResetError("the connection was closed")

    async def _connect(self, server: str, ended: asyncio.Event) -> tuple[Client, list[Exception]]:
        """A client that is connected, and the list that its errors come into. Raises whatever
        prevents it."""
        from nats.aio.client import Client

        client, errors = Client(), list[Exception]()
        scheme = fleet_server(server)[0]

        async def on_error(error: Exception) -> None:
            if "permissions violation" in str(error).lower():
                self.refused(one_line(error))
                return
            errors.append(error)

        async def on_end() -> None:
            ended.set()

        chosen = dict(self._options)
        password = chosen.get("password")
        if scheme == "tls" and password is not None:
            # asked for when the greeting has come: one who pretends to be the server and offers no
            # TLS is not told
            chosen["password"] = lambda: _only_over_tls(client, password)
        try:
            async with asyncio.timeout(self._connect_s):
                await client.connect(
                    server,
                    error_cb=on_error,
                    disconnected_cb=on_end,
                    closed_cb=on_end,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=int(CONNECT_S),
                    ping_interval=PING_S,
                    max_outstanding_pings=PINGS,
                    **chosen,
                )
        except BaseException as error:
            why = errors[-1] if errors else None  # leaving may fail, too, and says less
            await _leave(client)
            if why and isinstance(error, Exception):
                raise why from error
            raise
        return client, errors

    def _note(self, trouble: str | None) -> None:
        """Tells what is news."""
        if trouble != self.trouble:
            self.trouble = trouble
            self.changed(trouble)
            if not trouble:
                log.info("connected to the fleet's server %s", self.server)


class _Loop(asyncio.SelectorEventLoop):
    """A loop in which looking up a name may hang: a thread does it that nothing waits for."""

    def __init__(self, look_up: LookUp) -> None:
        super().__init__()
        self._look_up = look_up
        self._looking: dict[object, BackgroundTask] = {}

    async def getaddrinfo(self, host: Any, port: Any, **more: Any) -> Any:
        """As socket.getaddrinfo. Raises OSError, at once while an earlier question hangs."""
        if (before := self._looking.get(host)) and before.is_alive():
            raise OSError(LOOKED_UP)
        asked = self._looking[host] = BackgroundTask(
            lambda: self._look_up(host, port, **more), "fleet name"
        )
        while asked.is_alive():
            await asyncio.sleep(0.01)
        if asked.error:
            raise asked.error
        return asked.outcome


def _only_over_tls(client: Any, password: str) -> str:
    """The password, once the connection is encrypted. Raises ConnectionError."""
    if not (client._server_info or {}).get("tls_required"):
        raise ConnectionError("expected TLS, found a server that offers none")
    return password


async def _leave(client: Client) -> None:
    """Closes a client, whatever state it is in."""
    with suppress(Exception):
        async with asyncio.timeout(CLOSE_S):
            await client.close()


_WRONG_TIME = {9: "its certificate is not valid yet", 10: "its certificate has expired"}
"""OpenSSL's numbers of verification errors that a wrong clock causes, too."""


def _explain(server: str, error: Exception) -> str:
    """Why there is no connection, in plain words, with the fix."""
    where, said = f"the fleet's server {server}", one_line(error)
    low = said.lower()
    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in _WRONG_TIME:
        return (
            f"refused: {where}: {_WRONG_TIME[error.verify_code]} by this machine's clock "
            f"({datetime.now().astimezone():%Y-%m-%d %H:%M %Z}). If that is wrong, set the clock "
            "(`timedatectl`); if it is right, run `sudo roomscribe fleet join --serve` on the "
            "server's machine"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"refused: {where}: expected a certificate of an authority that we know, found: "
            f"{shorten(error.verify_message or said, 120)}; see fleet.ca, or `roomscribe fleet "
            "join` again"
        )
    if "authorization violation" in low or "authentication" in low:
        return (
            f"refused: {where} does not know this user or password; see fleet.credential, or "
            "`roomscribe fleet join` again"
        )
    if isinstance(error, ServerError):
        return said
    if isinstance(error, TimeoutError):
        said = "no answer in time"
    elif isinstance(error, ConnectionRefusedError):
        said = "nothing listens there"
    elif isinstance(error, ConnectionResetError) or "eof" in low or "stale connection" in low:
        said = "the connection was lost"
    elif isinstance(error, ssl.SSLError):
        said = f"no TLS: {shorten(error.reason or said, 80)}"
    elif isinstance(error, OSError) and error.strerror:
        said = error.strerror
    return (
        f"no server: {where}: {shorten(said, 160)}; see that it runs (`systemctl status "
        "nats-server` there) and that fleet.server is right"
    )


def _context(settings: FleetSettings) -> ssl.SSLContext:
    """What the server's certificate is checked with. Raises ConfigError."""
    try:
        return ssl.create_default_context(cafile=settings.ca or None)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        found = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"fleet.ca: expected a certificate authority (PEM), found {settings.ca}: "
            f"{shorten(found, 120)}; `roomscribe fleet join CODE` writes it"
        ) from error


def _read(path: Path, name: str, *, own: bool) -> Credential:
    """User and password in a file; `own`: nobody else may be able to read it. Raises
    ConfigError."""
    fix = "`roomscribe fleet join CODE` writes it"
    expected = f"{name}: expected a file with user and password"
    try:
        with path.expanduser().open("rb") as opened:
            mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
            text = opened.read(MOST_BYTES + 1).decode()
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        no_text = isinstance(error, UnicodeDecodeError)
        found = "no UTF-8 text" if no_text else getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{expected}, found {path}: {found}; {fix}") from (
            None if no_text else error
        )
    if own and mode & 0o077:
        raise ConfigError(
            f"{name}: expected a file that its owner alone may read (0600), found {path} with "
            f"{mode:04o}; chmod 600 {path}"
        )
    try:
        told = tomllib.loads(text)
    except (ValueError, RecursionError):
        told = {}
    user, password = told.get("user"), told.get("password")
    if not isinstance(user, str) or not isinstance(password, str) or not password:
        raise ConfigError(
            f'{expected} (user = "..." and password = "..."), found {path} without; {fix}'
        )
    if not NAME.fullmatch(user):
        raise ConfigError(
            f"{name}: expected a user of a-z, A-Z, 0-9, _ and -, found {shorten(user)} in {path}"
        )
    return Credential(user, password)
