"""The page's web server: a few files, a stream of events, and commands, most of them the daemon's.

It keeps no text: each command goes to the daemon over its control socket, and a stream is a
subscription there. So a fault of this process loses no sentence, and it may end when it is idle.

Every request must name a host of this machine (DNS rebinding) and, except for the files, needs a
login. A command must be a POST of JSON from the page's own origin with the session's token.
"""

import asyncio
import contextlib
import gzip
import hmac
import json
import logging
import math
import re
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tornado.iostream import StreamClosedError
from tornado.web import Application, HTTPError, RequestHandler, stream_request_body

from appliance.config import Settings
from appliance.errors import ConfigError, StoreError
from appliance.system import json_object
from appliance.web.access import SESSION_S, is_local, password_missing
from appliance.web.connections import BoundedServer, Handler, Page, address_of, open_sockets
from appliance.web.daemon import CommandRefusedError, OfflineError
from appliance.web.labels import fields
from appliance.web.transcriptions import DISCARDED_BYTES, Api, Models, Transcriptions

log = logging.getLogger("roomscribe.web")

IDLE_S = 600.0
"""The process ends after this time without a request; systemd starts it again for the next one."""
STREAMS = 20
"""Most streams at once. The control socket takes 32 connections, commands of the shell included."""
BODY_BYTES = 16_384
SLOW_S = 10.0
"""A client that takes nothing for this long is disconnected."""
ATTEMPTS = 8
"""Most passwords that wait to be checked, one at a time: each takes 16 MB and 0.3 s on a Pi."""
IDLE_CONNECTION_S = 60.0
"""A connection without a request is closed after this time."""
RETRY_S = 0.5
"""Seconds between two attempts to reach a daemon that is offline."""
EVENTS = (
    "transcript", "discarded", "state", "stats", "speech", "partial", "level", "correction",
    "heard_in",
)  # fmt: skip
COMMANDS = (
    "state", "stats", "history", "count", "mute", "delete", "correct", "learn", "phrases",
    "phrases_save", "playback", "devices",
    "microphone_test", "speaker_test", "settings", "configure", "broker", "models", "model_add",
    "model_cancel",
)  # fmt: skip
"""The daemon's commands that the page may use."""
STATUSES = {"bad_request": 400, "refused": 403, "too_many": 429}
"""HTTP status for a code of the control socket; 503 for others."""
FOLDER = Path(__file__).with_name("page")
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
    ".png": "image/png",
}
SERVED = {
    "" if name == "index.html" else name: (name, TYPES[Path(name).suffix])
    for name in sorted(str(file.relative_to(FOLDER)) for file in FOLDER.rglob("*.*"))
    if Path(name).suffix in TYPES
}
"""Name and type of each file of the page, by its path. Those in `app` are read when it is installed
as an app."""
COOKIE = "roomscribe"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; manifest-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors {}"
)


def application(page: Page) -> Application:
    """Return the web application, with the page's files."""
    files = {name: (FOLDER / file).read_bytes() for name, (file, _) in SERVED.items()}
    return Application(
        [
            (f"/({'|'.join(map(re.escape, SERVED))})", _PageFile),
            (r"/api/session", _Session),
            (r"/api/login", _Login),
            (r"/api/events", _Events),
            (r"/api/keys", _Keys),
            (r"/api/command", _Command),
            (r"/v1/audio/transcriptions", Transcriptions),
            (r"/v1/models", Models),
            (r"/v1/models/(.+)", Models),
            (r"/v1/.*", Api),
        ],
        default_handler_class=_NotFound,
        page=page,
        files=files,
        packed={name: gzip.compress(data, mtime=0) for name, data in files.items()},
        log_function=_log,
    )


class _PageError(HTTPError):
    """A refused request; `retry_s`: when it may work."""

    def __init__(self, status: int, message: str, retry_s: int = 0) -> None:
        super().__init__(status)
        self.message, self.retry_s = message, retry_s

    def __str__(self) -> str:
        return self.message


class _Guarded(Handler):
    """A request to a host of this machine. Errors are one line of JSON."""

    def set_default_headers(self) -> None:
        """Set the headers of every answer, errors included."""
        super().set_default_headers()
        framed = "'self'" if self.is_ingress() else "'none'"
        self.set_header("Content-Security-Policy", POLICY.format(framed))
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cross-Origin-Opener-Policy", "same-origin")
        self.set_header("Cross-Origin-Resource-Policy", "same-origin")

    def prepare(self) -> None:
        """Refuse a foreign host before anything else."""
        self.note_request(logged_in=bool(self.current_user))
        host = self.request.headers.get("Host", "")
        if not self.is_ingress() and not self.page.access.is_own_host(host):
            raise _PageError(
                421,
                "This page does not accept this host name. Add it to `hosts` in the section "
                "`[web]` of roomscribe.toml.",
            )

    def is_ingress(self) -> bool:
        """Return True for a request that Home Assistant's supervisor forwards for its user."""
        headers, trusted = self.request.headers, self.page.settings.ingress
        return bool(
            trusted
            and self.request.remote_ip == trusted
            and headers.get("X-Ingress-Path")
            and headers.get("X-Remote-User-Id")
        )

    def get_current_user(self) -> str | None:
        """Return the session: a cookie, or Home Assistant's user. None without a login."""
        if self.is_ingress():
            return f"ingress {self.request.headers['X-Remote-User-Id']}"
        cookie = self.get_cookie(COOKIE, "") or ""
        return cookie if self.page.access.is_session(cookie) else None

    def session(self) -> str:
        """Return the session. Raises _PageError without a login, or for another website."""
        if not self.current_user:
            raise _PageError(401, "Log in first. `sudo roomscribe web open` prints a link.")
        if self.request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            raise _PageError(403, "Only the page itself may request this.")
        return str(self.current_user)

    def body(self) -> dict[str, Any]:
        """Return the JSON object that the page has sent. Raises _PageError for another website."""
        headers = self.request.headers
        origin = headers.get("Origin", f"://{self.request.host}")
        if headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
            raise _PageError(403, "Another site may not do this.")
        if not self.is_ingress() and origin.partition("://")[2] != self.request.host:
            raise _PageError(403, "Another origin may not do this.")
        if headers.get("Content-Type", "").partition(";")[0].strip() != "application/json":
            raise _PageError(415, "Expected application/json.")
        found = json_object(self.request.body)
        if found is None:
            raise _PageError(400, "Expected a JSON object.")
        return found

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer with the error as JSON, one line for people."""
        error = kwargs.get("exc_info", (None, None))[1]
        if isinstance(error, StoreError):
            self.set_status(503)
        if isinstance(error, _PageError) and error.retry_s:
            self.set_header("Retry-After", str(error.retry_s))
        expected = isinstance(error, StoreError | _PageError)
        self.finish({"error": str(error) if expected else self._reason})

    def log_exception(self, *details: Any) -> None:
        """Log unexpected errors only."""
        if not isinstance(details[1], HTTPError | StreamClosedError):
            log.error("a request of the page failed", exc_info=details)


@stream_request_body
class _NotFound(_Guarded):
    """Every other path. The answer follows the body, which programs that miss /v1 send."""

    def prepare(self) -> None:
        """Let the body be as long as it is."""
        super().prepare()
        connection: Any = self.request.connection
        connection.set_max_body_size(DISCARDED_BYTES)

    def data_received(self, chunk: bytes) -> None:
        """Discard a part of the body."""

    def _refuse(self, *_path: str) -> None:
        raise _PageError(404, "Not found. OpenAI's interface is under /v1, the page under /.")

    get = head = post = put = patch = delete = options = _refuse


class _PageFile(_NotFound):
    """The page's files. They are the same for everyone, so they need no login."""

    def get(self, *path: str) -> None:
        """Send one of SERVED."""
        (name,) = path
        self.set_header("Content-Type", SERVED[name][1])
        self.set_header("Cache-Control", "no-cache")
        self.set_header("Vary", "Accept-Encoding")
        if "gzip" in self.request.headers.get("Accept-Encoding", ""):
            self.set_header("Content-Encoding", "gzip")
            self.finish(self.settings["packed"][name])
        else:
            self.finish(self.settings["files"][name])

    head = get


class _Session(_Guarded):
    """The present session."""

    def get(self) -> None:
        """Send the session's token; without a login, whether there is a password."""
        if not self.current_user:
            self.set_status(401)
            self.finish({"error": "Not logged in.", "password": self.page.access.has_password})
            return
        session = self.session()
        self.finish({
            "token": self.page.access.token(session),
            "node": self.page.node,
            "leaves": not self.is_ingress(),
            "playback": self.page.settings.playback,
            "first_steps": self.page.access.wants_first_steps,
        })  # fmt: skip


class _Login(_Guarded):
    """A new session, for a password or a one-time link."""

    async def post(self) -> None:
        """Set the cookie."""
        body, headers, access = self.body(), self.request.headers, self.page.access
        link, password = body.get("link"), body.get("password")
        if isinstance(link, str):
            if not access.use_link(link):
                raise _PageError(
                    403,
                    "This link was already used, or has expired. `sudo roomscribe web open` prints "
                    "a new one.",
                )
        elif not isinstance(password, str) or not await self._is_password(password):
            raise _PageError(403, "Wrong password.")
        self.set_cookie(
            COOKIE, access.new_session(), max_age=SESSION_S, path="/", httponly=True,
            samesite="Strict", secure=headers.get("X-Forwarded-Proto") == "https",
        )  # fmt: skip
        self.finish({})

    async def _is_password(self, password: str) -> bool:
        """Return True for the right password. Raises _PageError after too many wrong ones."""
        page, address = self.page, str(self.request.remote_ip)
        if wait_s := page.access.begin_attempt(address):
            raise _PageError(
                429,
                f"Too many attempts. Wait {math.ceil(wait_s)} s, or use a link from `sudo "
                "roomscribe web open`.",
                math.ceil(wait_s),
            )
        if page.attempts >= ATTEMPTS:
            raise _PageError(429, "Too many logins at once. Try again in a few seconds.", 5)
        page.attempts += 1
        try:
            async with page.hashing:
                right = await asyncio.to_thread(page.access.is_password, password)
        finally:
            page.attempts -= 1
        if right:
            page.access.clear_attempts(address)
        return right


class _Keys(_Guarded):
    """Descriptions of the settings."""

    def get(self) -> None:
        """Send texts, kind, unit and limits of each setting by key."""
        self.session()
        self.finish(fields())


class _Command(_Guarded):
    """The daemon's commands, `logout` and `end_first_steps`."""

    async def post(self) -> None:
        """Send the result of {"command": ..., arguments}."""
        session, arguments = self.session(), self.body()
        token = self.request.headers.get("X-Roomscribe-Token", "")
        if not hmac.compare_digest(token.encode(), self.page.access.token(session).encode()):
            raise _PageError(403, "This page is out of date. Reload it.")
        command, result = arguments.pop("command", None), None
        try:
            if command == "logout":
                self._log_out()
            elif command == "end_first_steps":
                self.page.access.end_first_steps()
            elif command in COMMANDS:
                result = await self.page.daemon.call(command, **arguments)
            else:
                raise _PageError(400, f"Expected one of the commands {', '.join(COMMANDS)}.")
        except OfflineError as error:
            raise _PageError(503, str(error)) from None
        except CommandRefusedError as error:
            raise _PageError(STATUSES.get(error.code, 503), str(error)) from None
        self.finish({"result": result})  # as JSON: a sentence is never markup

    def _log_out(self) -> None:
        """End the sessions of every browser, and delete the cookie."""
        if not self.is_ingress():
            self.page.access.end_sessions()
        self.clear_cookie(COOKIE, path="/", httponly=True, samesite="Strict")


class _Events(_Guarded):
    """Server-sent events from the daemon."""

    _stream: asyncio.Task[None] | None = None

    async def get(self) -> None:
        """Stream ?events=transcript,state after ?after=NUMBER, or Last-Event-ID if it is sent."""
        self.session()
        names = str(self.get_query_argument("events", "")).split(",")
        wanted = [name for name in names if name in EVENTS]
        if not wanted:
            raise _PageError(400, f"Expected some of the events {', '.join(EVENTS)}.")
        last = self.request.headers.get("Last-Event-ID") or self.get_query_argument("after", "")
        if self.page.streams >= STREAMS:
            raise _PageError(503, f"{STREAMS} pages are open already. Close one of them.", 30)
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("X-Accel-Buffering", "no")
        after = int(str(last)) if re.fullmatch(r"[0-9]{1,15}", str(last)) else None
        self.page.streams += 1
        self._stream = asyncio.create_task(self._forward(wanted, after))
        try:
            await self._stream
        except asyncio.CancelledError:
            if not self._stream.cancelled():
                raise
        except (StreamClosedError, TimeoutError):
            # the client does not read: drop what its connection still holds
            self.detach().close()
        finally:
            self.page.streams -= 1
            self.page.last_request_s = asyncio.get_running_loop().time()

    def on_connection_close(self) -> None:
        """Stop the stream."""
        if self._stream:
            self._stream.cancel()

    async def _forward(self, wanted: list[str], after: int | None) -> None:
        """Send events while the session lasts, across restarts of the daemon.

        Raises StreamClosedError, TimeoutError.
        """
        status = ""
        while True:
            try:
                # closed at once, so that a client that has gone frees its place at the daemon
                async with contextlib.aclosing(self.page.daemon.events(wanted, after)) as events:
                    async for name, data in events:
                        if name != "level" and not self.get_current_user():
                            return  # a new password has ended the session
                        if status != "up":
                            status = "up"
                            await self._send("daemon", {"up": True})
                        if name == "transcript":
                            after = data["seq"]
                        await self._send(name, data, after if name == "transcript" else None)
            except (OfflineError, CommandRefusedError) as error:
                if status != str(error):
                    status = str(error)
                    await self._send("daemon", {"up": False, "why": status})
                await self._send("", {})
                await asyncio.sleep(RETRY_S)

    async def _send(self, name: str, data: dict[str, Any], number: int | None = None) -> None:
        """Send one event; without a name a comment. Raises StreamClosedError, TimeoutError."""
        head = f"event: {name}\n" + ("" if number is None else f"id: {number}\n")
        self.write(f"{head}data: {json.dumps(data)}\n\n" if name else ": alive\n\n")
        async with asyncio.timeout(SLOW_S):
            await self.flush()


def serve(settings: Settings, paths: Sequence[Path], idle_s: float = IDLE_S) -> None:
    """Serve the page until `idle_s` pass without a request, or a signal.

    It listens on the sockets that systemd passes, else on web.listen. `paths` are where the
    daemon's control socket may be. Raises ConfigError if the page is off, or other machines could
    reach it without a password; DeviceError if it cannot listen.
    """
    if not settings.web.enabled:
        raise ConfigError("the page is off: run `sudo roomscribe web enable`")
    sockets = open_sockets(settings.web)
    try:
        page = Page(settings, paths)
        public = [address for address in map(address_of, sockets) if not is_local(address)]
        if public and not page.access.has_password and not settings.web.ingress:
            raise ConfigError(password_missing(public[0]))
        asyncio.run(_run(page, sockets, idle_s))
    finally:
        for listener in sockets:
            listener.close()


async def _run(page: Page, sockets: list[socket.socket], idle_s: float) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    server = BoundedServer(
        application(page),
        page,
        max_body_size=BODY_BYTES,
        max_header_size=BODY_BYTES,
        max_buffer_size=8 * BODY_BYTES,
        idle_connection_timeout=IDLE_CONNECTION_S,
        body_timeout=SLOW_S,
    )
    server.add_sockets(sockets)
    page.last_request_s = loop.time()
    log.info("the page is at %s", ", ".join(map(address_of, sockets)))
    while not stopped.is_set():
        left_s = page.last_request_s + idle_s - loop.time()
        if page.streams or page.uploads:
            left_s = idle_s
        elif left_s <= 0:
            log.info("no request for %.0f s: ending", idle_s)
            break
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await stopped.wait()
    server.stop()
    await server.close_all_connections()


def _log(handler: RequestHandler) -> None:
    """Log a request, without its query, which may contain what was said."""
    log.debug("%d %s %s", handler.get_status(), handler.request.method, handler.request.path)
