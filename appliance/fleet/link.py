"""The connection to the fleet's server: a thread with its own loop, which always reconnects.

Each connection is a new client of nats-py, since that gives up reconnecting when the server refuses
its user. The handler runs only while a connection is up. Callers repeat what a lost connection
interrupted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import stat
import tomllib
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from appliance.config import FleetSettings, fleet_server, is_loopback
from appliance.errors import ConfigError, ServerError
from appliance.fleet.messages import INBOXES, NAME, token
from appliance.system import (
    BackgroundTask,
    call_in,
    explain_wrong_time,
    find_credential,
    first,
    one_line,
    shorten,
    tls_reason,
    trusted_context,
)

if TYPE_CHECKING:
    from nats.aio.client import Client

log = logging.getLogger("roomscribe.fleet")

CREDENTIAL = "roomscribe.fleet"
"""Name of the systemd credential with user and password."""
MOST_BYTES = 4096
"""Size limit of a credential file."""
CONNECT_S = 5.0
"""Limit for a whole connection: name lookup, TCP, TLS, greeting."""
PAUSE_S = 0.5
"""Pause between two attempts to connect."""
PING_S, PINGS = 20, 2
"""Seconds between pings, and unanswered pings in a row after which a connection is dead."""
CLOSE_S = 1.0
"""Limit for closing a connection."""
COMING = "no server: connecting to the fleet's server"
Result = TypeVar("Result")
Handler = Callable[["Client"], Coroutine[Any, Any, None]]


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
    scheme, host, _ = fleet_server(settings.server)
    if not is_loopback(host) and not login:
        raise ConfigError(
            f"fleet.credential: expected a file with user and password for {settings.server}, "
            "found none; `roomscribe fleet join CODE` writes one"
        )
    own = login.user if login else token(node)  # the rights belong to the user
    chosen: dict[str, Any] = {"inbox_prefix": INBOXES.format(own), "name": own}
    if login:
        chosen |= {"user": login.user, "password": login.password}
    if scheme == "tls":
        fix = "`roomscribe fleet join CODE` writes it"
        chosen["tls"] = trusted_context(settings.ca, "fleet.ca", fix)
    return chosen


class Link:
    """A connection that its own thread keeps up from `start` to `close`.

    Any thread may call the methods, if they do not say otherwise.
    """

    def __init__(self, settings: FleetSettings, node: str) -> None:
        """Read credential and authority, without connecting. Raises ConfigError."""
        self._settings = settings
        self.node: str = connect_options(settings, node)["name"]
        self.address = settings.server
        self.trouble: str | None = COMING
        """Why there is no connection, with the fix; None while there is one."""
        self.refusal = ""
        """Why the server does not let us do what our role does, with the fix; "" if it does."""
        self.client: Client | None = None
        """The connected client, for coroutines of the link's loop."""
        self._loop = asyncio.new_event_loop()
        self._thread: BackgroundTask | None = None
        self._ended: asyncio.Event | None = None
        self._running: asyncio.Task[None] | None = None

    @property
    def server(self) -> str:
        """Address of the connected server; empty while there is none."""
        return self.address if self.client else ""

    def start(self, handler: Handler, changed: Callable[[str | None], object]) -> None:
        """Begin to connect, without waiting. The link's thread runs `handler` on each connection
        until that is lost; its error ends the connection. It calls `changed` with a new `trouble`
        or `refusal`."""
        self._handler, self._changed = handler, changed
        # it warns about each TLS connection: "returning true from eof_received() has no effect"
        logging.getLogger("asyncio").setLevel(logging.ERROR)
        self._thread = BackgroundTask(self._run, "fleet")

    def submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Return the future of a coroutine that runs in the link's loop; it may never come if the
        link is closed. Raises ServerError if it is closed already."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise ServerError("the connection to the fleet is closed") from None

    def reset(self) -> None:
        """Drop a connection that seems dead. The loop's thread."""
        if self._ended:
            self._ended.set()

    def close(self) -> None:
        """Close the connection, in about CLOSE_S at most."""
        if self._thread is None:
            self._loop.close()
            return
        call_in(self._loop, lambda: self._running and self._running.cancel())
        self._thread.join(CLOSE_S + 0.5)

    def _run(self) -> None:
        """Run the loop until `close`. The thread's body."""
        with (
            suppress(asyncio.CancelledError),
            asyncio.Runner(loop_factory=lambda: self._loop) as runner,
        ):
            runner.run(self._stay_connected())

    async def _stay_connected(self) -> None:
        """Connect again and again until the task is cancelled."""
        self._running = asyncio.current_task()
        while True:
            try:
                await self._serve_connection()
            except Exception as error:
                self._report(explain_failure(self.address, error))
            await asyncio.sleep(PAUSE_S)

    async def _serve_connection(self) -> None:
        """Connect, and run the handler until the connection ends. Raises what ended it."""
        ended = self._ended = asyncio.Event()
        self.refusal = ""
        # files may have been renewed
        client, errors = await connect(self._settings, self.node, ended, self._refuse)
        self.client = client
        self._report(None)
        try:
            await first(ended.wait(), self._handler(client))
        finally:
            self.client = None
            await disconnect(client)
        raise errors[-1] if errors else ConnectionResetError("the connection was closed")

    def _refuse(self, message: str) -> None:
        """Keep the server's message that we lack a permission."""
        role = self._settings.role
        self.refusal = (
            f"refused: the fleet's server does not let {self.node} do what a {role} does "
            f"({shorten(message, 160)}); join again with a code for a {role}"
        )
        self._changed(self.refusal)

    def _report(self, failure: ServerError | None) -> None:
        """Keep why there is no connection, and call `changed` if that is new."""
        trouble = str(failure) if failure else None
        if trouble != self.trouble:
            self.trouble = trouble
            self._changed(trouble)
            if not trouble:
                log.info("connected to the fleet's server %s", self.address)


async def connect(
    settings: FleetSettings,
    node: str,
    ended: asyncio.Event,
    refused: Callable[[str], object] = lambda _: None,
) -> tuple[Client, list[Exception]]:
    """Return a connected client and the list of its errors. Raises what prevents it.

    `ended` is set at its end. `refused` is called with the server's message if we lack a
    permission.
    """
    from nats.aio.client import Client

    client, errors = Client(), list[Exception]()

    async def on_error(error: Exception) -> None:
        if "permissions violation" in str(error).lower():
            refused(one_line(error))
            return
        errors.append(error)

    async def on_end() -> None:
        ended.set()

    chosen = connect_options(settings, node)
    password = chosen.get("password")
    if "tls" in chosen and password is not None:
        # nats-py calls it after the greeting: an impostor without TLS does not get the password
        chosen["password"] = lambda: _only_over_tls(client, password)
    try:
        async with asyncio.timeout(CONNECT_S):
            await client.connect(
                settings.server,
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
        await disconnect(client)
        if why and isinstance(error, Exception):
            raise why from error
        raise
    return client, errors


def _only_over_tls(client: Any, password: str) -> str:
    """Return the password if the connection is encrypted. Raises ConnectionError if not."""
    if not (client._server_info or {}).get("tls_required"):
        raise ConnectionError("the server offers no TLS")
    return password


async def disconnect(client: Client) -> None:
    """Close a client in any state."""
    with suppress(Exception):
        async with asyncio.timeout(CLOSE_S):
            await client.close()


def explain_failure(server: str, error: Exception) -> ServerError:
    """Return why there is no connection, with the fix."""
    where, reason = f"the fleet's server {server}", one_line(error)
    low = reason.lower()
    if isinstance(error, ConfigError):
        return _refusal(reason)
    if wrong_time := explain_wrong_time(error):
        return _refusal(f"{where}: {wrong_time}")
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
        reason = f"no TLS: {shorten(tls_reason(error), 80)}"
    elif isinstance(error, OSError) and error.strerror:
        reason = error.strerror
    return ServerError(
        f"no server: {where}: {shorten(reason, 160)}; check that it runs (`systemctl status "
        "nats-server` there) and that fleet.server is right"
    )


def _refusal(text: str) -> ServerError:
    return ServerError(f"refused: {text}")


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
        fix = "run this with sudo" if isinstance(error, PermissionError) else fix
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
