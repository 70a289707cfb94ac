"""The connection to the fleet's server: a thread with its own loop, which always reconnects.

No other thread waits for it beyond a deadline: a name lookup may hang, a server may accept and not
answer, a cable may be pulled. Each connection is a new client, and handlers run only while it is
up. Callers repeat what a lost connection interrupted.
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
from enum import Enum
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
"""Name of the systemd credential with user and password."""
MOST_BYTES = 4096
"""Size limit of a credential file."""
CONNECT_S = 5.0
"""Limit for a whole connection: name lookup, TCP, TLS, greeting."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0
"""Pauses between two attempts to connect."""
STEADY_S = 2.0
"""A connection that lasted longer resets the pause; after a shorter one the pause doubles."""
PING_S, PINGS = 20, 2
"""Seconds between pings, and unanswered pings in a row after which a connection is dead."""
CLOSE_S = 1.0
"""Limit for closing a connection."""
COMING = "no server: connecting to the fleet's server"
LOOKED_UP = "its name is still being looked up; write its address in numbers into fleet.server"

Result = TypeVar("Result")
LookUp = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Credential:
    """User and password of a node."""

    user: str
    password: str


def read_credential(settings: FleetSettings) -> Credential | None:
    """Return user and password from fleet.credential or systemd's credential; None without.

    Raises ConfigError; no message shows the password.
    """
    if settings.credential:
        return _read(Path(settings.credential), "fleet.credential", own=True)
    credential_file = find_credential(CREDENTIAL)
    return _read(credential_file, "systemd credential", own=False) if credential_file else None


def connect_options(settings: FleetSettings, node: str) -> dict[str, Any]:
    """Return the arguments for nats.connect(): user, password, tls, inbox_prefix, name.

    Raises ConfigError for a credential or an authority that cannot be used, and if a server on
    another machine would be used without a credential.
    """
    login = read_credential(settings)
    beyond = [server for server in settings.server if not is_loopback(fleet_server(server)[1])]
    if beyond and not login:
        raise ConfigError(
            f"fleet.credential: expected a file with user and password for {beyond[0]}, found "
            "none; `roomscribe fleet join CODE` writes one"
        )
    chosen: dict[str, Any] = {
        "inbox_prefix": Subjects(own_node(login, node)).inbox,
        "name": own_node(login, node),
    }
    if login:
        chosen |= {"user": login.user, "password": login.password}
    if any(server.startswith("tls:") for server in settings.server):
        chosen["tls"] = _context(settings)
    return chosen


def own_node(login: Credential | None, node: str) -> str:
    """Return the node's name in subjects: its user, which the rights belong to."""
    return login.user if login else token(node)


class LinkState(Enum):
    """What holds of the link; only its own thread changes it after `start`."""

    CONNECTING = "not started, no server has accepted us yet, or the connection was lost"
    FAILED = "a handler ended the connection before: its reason stays until the handler works"
    CONNECTED = "connected, and no handler has failed"
    CLOSED = "closing or closed"


class Link:
    """A connection that its own thread keeps up from `start` to `close`.

    Call `add` before `start`. Any thread may call the others, if they do not say otherwise.
    """

    def __init__(
        self,
        settings: FleetSettings,
        node: str,
        *,
        look_up: LookUp = socket.getaddrinfo,
        connect_s: float = CONNECT_S,
    ) -> None:
        """Read credential and authority, without connecting. Raises ConfigError."""
        self._connect_s = connect_s
        self._options = connect_options(settings, node)
        self.node: str = self._options["name"]
        self.trouble: str | None = COMING
        """Why there is no connection, with the fix; None while there is one."""
        self.trouble_kind = ""
        """Its kind, as of a ServerError."""
        self.server = ""
        """Address of the connected server; empty while there is none."""
        self.refused: Callable[[str], None] = lambda _: None
        """Called in the link's thread with the server's message if we lack a permission."""
        self.changed: Callable[[str | None], object] = lambda _: None
        """Called in the link's thread with a new `trouble`."""
        self._servers = random.sample(settings.server, len(settings.server))
        """In random order, so that not all nodes connect to the first."""
        self._handlers: list[Callable[[Client], Coroutine[Any, Any, None]]] = []
        self._loop = _Loop(look_up)
        self._state = LinkState.CONNECTING
        self._closing = asyncio.Event()
        """Set with the state CLOSED, for coroutines that wait."""
        self._tried = threading.Event()
        self._client: Client | None = None
        self._since_s = 0.0
        self._thread: BackgroundTask | None = None
        self._ended: asyncio.Event | None = None
        self._running: asyncio.Task[None] | None = None

    @property
    def client(self) -> Client | None:
        """The connected client, for coroutines of the link's loop."""
        return self._client

    @property
    def age_s(self) -> float:
        """Seconds since the connection was made."""
        return time.monotonic() - self._since_s

    def add(self, handler: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
        """Run `handler` on each connection until that is lost. It may return; its error ends the
        connection."""
        self._handlers.append(handler)

    def confirm_service(self) -> None:
        """Report that the handler that failed before works again. The loop's thread."""
        self._state = LinkState.CONNECTED
        self._report(None)

    def start(self) -> None:
        """Begin to connect, without waiting."""
        # it warns about each TLS connection: "returning true from eof_received() has no effect"
        logging.getLogger("asyncio").setLevel(logging.ERROR)
        self._thread = BackgroundTask(self._run, "fleet")

    def settle(self, within_s: float) -> None:
        """Wait until the first attempt at each server has succeeded or failed."""
        self._tried.wait(within_s)

    def call(self, ask: Callable[[], Awaitable[Result]], within_s: float) -> Result:
        """Return the result of a coroutine function, run in the link's loop.

        Raises what it raises, and ServerError if it takes longer than `within_s`.
        """

        async def bounded() -> Result:
            async with asyncio.timeout(within_s):
                return await ask()

        if not self._thread or not self._thread.is_alive() or self._is_closed():
            raise ServerError("the connection to the fleet is closed")
        future = asyncio.run_coroutine_threadsafe(bounded(), self._loop)
        try:
            return future.result(within_s + 1.0)
        except TimeoutError:
            if not self._loop.is_closed():
                future.cancel()
            raise ServerError(f"the fleet's server did not answer within {within_s:g} s") from None

    def call_soon(self, work: Callable[[], object]) -> None:
        """Run `work` in the link's loop, without waiting."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(work)

    def reset(self) -> None:
        """Drop a connection that seems dead. The loop's thread."""
        if self._ended:
            self._ended.set()

    def close(self) -> None:
        """Close the connection, in CLOSE_S at most."""
        thread = self._thread
        if thread is None:
            self._loop.close()
            return
        self.call_soon(self._begin_close)
        thread.join(CLOSE_S + 0.5)

    def _is_closed(self) -> bool:
        return self._state is LinkState.CLOSED

    def _begin_close(self) -> None:
        """End the loop: it closes a connection, and cancels one that is being made."""
        self._state = LinkState.CLOSED
        self._closing.set()
        if self._client is None and self._running:
            self._running.cancel()

    def _run(self) -> None:
        """Run the loop until `close`. The thread's body."""
        asyncio.set_event_loop(self._loop)
        self._running = self._loop.create_task(self._stay_connected())
        try:
            with suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._running)
            # nats-py leaves tasks behind, which would be destroyed while they are pending
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left, timeout=CLOSE_S))
        finally:
            self._loop.close()

    async def _stay_connected(self) -> None:
        """Connect to one server after the other until `close`."""
        pause_s, turn, failed = FIRST_PAUSE_S, 0, 0
        # a refusal of this round: reported rather than that another server does not answer
        refusal: ServerError | None = None
        while not self._is_closed():
            server = self._servers[turn % len(self._servers)]
            turn += 1
            before_s = self._since_s
            try:
                await self._serve_connection(server)
            except Exception as error:
                if self._since_s != before_s and self.age_s > STEADY_S:
                    pause_s, failed = FIRST_PAUSE_S, 0
                failed += 1
                if not self._is_closed():
                    from_handler = isinstance(error, ServerError)
                    self._state = LinkState.FAILED if from_handler else LinkState.CONNECTING
                reason = explain_failure(server, error)
                if reason.kind == ServerError.REFUSED:
                    refusal = reason
                if failed >= len(self._servers):  # another server of a cluster may accept us
                    self._report(refusal or reason)
            if failed % len(self._servers) == 0:
                self._tried.set()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), pause_s)
                pause_s, refusal = min(2 * pause_s, LONGEST_PAUSE_S), None

    async def _serve_connection(self, server: str) -> None:
        """Connect, and run the handlers until the connection ends. Raises what ended it."""
        ended = asyncio.Event()
        client, errors = await self._connect(server, ended)
        self._ended = ended
        self._client, self._since_s, self.server = client, time.monotonic(), server
        if self._state is LinkState.CONNECTING:
            self._state = LinkState.CONNECTED
            self._report(None)
        self._tried.set()
        handlers = [asyncio.ensure_future(work(client)) for work in self._handlers]
        waits = [asyncio.ensure_future(event.wait()) for event in (ended, self._closing)]
        watched: set[asyncio.Future[Any]] = {*handlers, *waits}
        try:
            while watched:
                done, watched = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
                if any(task in waits for task in done):
                    break
                for task in done:
                    task.result()
        finally:
            self._client, self.server = None, ""
            for task in (*handlers, *waits):
                task.cancel()
            await asyncio.gather(*handlers, *waits, return_exceptions=True)
            await _disconnect(client)
        if not self._is_closed():
            raise errors[-1] if errors else ConnectionResetError("the connection was closed")

    async def _connect(self, server: str, ended: asyncio.Event) -> tuple[Client, list[Exception]]:
        """Return a connected client and the list of its errors. Raises what prevents it."""
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
            # nats-py calls it after the greeting: an impostor without TLS does not get the password
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
            why = errors[-1] if errors else None  # closing may fail, too, and explains less
            await _disconnect(client)
            if why and isinstance(error, Exception):
                raise why from error
            raise
        return client, errors

    def _report(self, failure: ServerError | None) -> None:
        """Keep why there is no connection, and call `changed` if that is new."""
        trouble = str(failure) if failure else None
        self.trouble_kind = failure.kind if failure else ""
        if trouble != self.trouble:
            self.trouble = trouble
            self.changed(trouble)
            if not trouble:
                log.info("connected to the fleet's server %s", self.server)


class _Loop(asyncio.SelectorEventLoop):
    """A loop that looks names up in a thread of their own, since that may hang."""

    def __init__(self, look_up: LookUp) -> None:
        super().__init__()
        self._look_up = look_up
        self._lookups: dict[object, BackgroundTask] = {}

    async def getaddrinfo(self, host: Any, port: Any, **more: Any) -> Any:
        """As socket.getaddrinfo. Raises OSError; at once while an earlier lookup hangs."""
        if (before := self._lookups.get(host)) and before.is_alive():
            raise OSError(LOOKED_UP)
        lookup = self._lookups[host] = BackgroundTask(
            lambda: self._look_up(host, port, **more), "fleet name"
        )
        while lookup.is_alive():
            await asyncio.sleep(0.01)
        if lookup.error:
            raise lookup.error
        return lookup.outcome


def _only_over_tls(client: Any, password: str) -> str:
    """Return the password if the connection is encrypted. Raises ConnectionError if not."""
    if not (client._server_info or {}).get("tls_required"):
        raise ConnectionError("the server offers no TLS")
    return password


async def _disconnect(client: Client) -> None:
    """Close a client in any state."""
    with suppress(Exception):
        async with asyncio.timeout(CLOSE_S):
            await client.close()


_WRONG_TIME = {9: "its certificate is not valid yet", 10: "its certificate has expired"}
"""OpenSSL's numbers of verification errors that a wrong clock can cause."""


def explain_failure(server: str, error: Exception) -> ServerError:
    """Return why there is no connection, with the fix; of kind REFUSED if the server answered."""
    if isinstance(error, ServerError):
        return error
    where, reason = f"the fleet's server {server}", one_line(error)
    low = reason.lower()
    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in _WRONG_TIME:
        return _refusal(
            f"{where}: {_WRONG_TIME[error.verify_code]} by this machine's clock "
            f"({datetime.now().astimezone():%Y-%m-%d %H:%M %Z}). If that is wrong, set the clock "
            "(`timedatectl`); if it is right, the server needs another certificate"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return _refusal(
            f"{where}: its certificate is not trusted: "
            f"{shorten(error.verify_message or reason, 120)}; check fleet.ca, or run `roomscribe "
            "fleet join` again"
        )
    if "authorization violation" in low or "authentication" in low:
        return _refusal(
            f"{where} does not know this user or password; check fleet.credential, or run "
            "`roomscribe fleet join` again"
        )
    if isinstance(error, TimeoutError):
        reason = "no answer in time"
    elif isinstance(error, ConnectionRefusedError):
        reason = "nothing listens there"
    elif isinstance(error, ConnectionResetError) or "eof" in low or "stale connection" in low:
        reason = "the connection was lost"
    elif isinstance(error, ssl.SSLError):
        reason = f"no TLS: {shorten(error.reason or reason, 80)}"
    elif isinstance(error, OSError) and error.strerror:
        reason = error.strerror
    return ServerError(
        f"no server: {where}: {shorten(reason, 160)}; check that it runs (`systemctl status "
        "nats-server` there) and that fleet.server is right"
    )


def _refusal(text: str) -> ServerError:
    return ServerError(f"refused: {text}", kind=ServerError.REFUSED)


def _context(settings: FleetSettings) -> ssl.SSLContext:
    """Return the context that checks the server's certificate. Raises ConfigError."""
    try:
        return ssl.create_default_context(cafile=settings.ca or None)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        found = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"fleet.ca: expected a certificate authority (PEM), found {settings.ca}: "
            f"{shorten(found, 120)}; `roomscribe fleet join CODE` writes it"
        ) from error


def _read(path: Path, name: str, *, own: bool) -> Credential:
    """Return user and password from a file; `own`: only its owner may read it. Raises
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
        fields = tomllib.loads(text)
    except (ValueError, RecursionError):
        fields = {}
    user, password = fields.get("user"), fields.get("password")
    if not isinstance(user, str) or not isinstance(password, str) or not password:
        raise ConfigError(
            f'{expected} (user = "..." and password = "..."), found {path} without; {fix}'
        )
    if not NAME.fullmatch(user):
        raise ConfigError(
            f"{name}: expected a user of a-z, A-Z, 0-9, _ and -, found {shorten(user)} in {path}"
        )
    return Credential(user, password)
