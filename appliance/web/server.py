"""The page's web server: a few files, one stream of events, one door for commands.

Nothing of what was said is kept here: each question goes to the daemon over its control socket,
and a reader's stream is a subscription there. So a fault of this process costs no sentence, and it
may end whenever nobody looks.

Guards of every request: a Host that is ours (DNS rebinding), a login for all but the files, and for
a change POST, JSON, the page's own origin and the session's token.
"""

from __future__ import annotations

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

from tornado.iostream import IOStream, StreamClosedError
from tornado.web import Application, HTTPError, RequestHandler

from appliance.config import Settings, node_name
from appliance.errors import ConfigError, StoreError
from appliance.web.access import SESSION_S, Access, is_local
from appliance.web.connections import BoundedServer, Guests, name_of, sockets_of
from appliance.web.daemon import AwayError, Daemon, RefusedError
from appliance.web.labels import fields

log = logging.getLogger("roomscribe.web")

IDLE_S = 600.0
"""Nobody looks for so long: the process ends, and systemd starts it for the next one who does."""
STREAMS = 20
"""Readers of events at once; the control socket has 32 places, for the command line, too."""
BODY_BYTES = 16_384
SLOW_S = 10.0
"""A reader whose connection takes nothing for so long is let go."""
ATTEMPTS = 8
"""Passwords that wait to be checked, one at a time: each takes 16 MB and 0.3 s on a Pi."""
IDLE_CONNECTION_S = 60.0
"""A connection on which nothing is asked for so long is closed."""
AGAIN_S = 0.5
"""Between two looks for a daemon that is away."""
EVENTS = ("transcript", "discarded", "state", "stats", "speech", "partial", "level")
COMMANDS = (
    "state", "stats", "history", "mute", "delete", "devices", "microphone_test", "settings",
    "configure", "broker", "models", "model_add", "model_cancel", "day",
)  # fmt: skip
"""What the page may ask of the daemon."""
STATUSES = {"bad_request": 400, "refused": 403, "too_many": 429}
"""HTTP's for the control socket's codes; 503 for others."""
FOLDER = Path(__file__).with_name("page")
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
FILES = {
    "" if file.name == "index.html" else file.name: (file.name, TYPES[file.suffix])
    for file in sorted(FOLDER.iterdir())
    if file.suffix in TYPES
}
"""Name and type of each file of the page, by its path."""
COOKIE = "roomscribe"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors {}"
)


class Page:
    """What all requests share."""

    def __init__(self, settings: Settings, places: Sequence[Path]) -> None:
        """Reads the page's files; opens nothing."""
        self.settings = settings.web
        self.node = node_name(settings)
        self.access = Access(settings.web)
        self.daemon = Daemon(places)
        self.files = {name: (FOLDER / file).read_bytes() for name, (file, _) in FILES.items()}
        self.packed = {name: gzip.compress(data, mtime=0) for name, data in self.files.items()}
        self.streams = 0
        self.attempts = 0
        """Passwords that are being checked, or wait for it."""
        self.hashing = asyncio.Lock()
        self.guests = Guests()
        self.touched_s = 0.0
        """When somebody last asked for something, on the event loop's clock."""

    def application(self) -> Application:
        """The web application."""
        return Application(
            [
                (f"/({'|'.join(map(re.escape, FILES))})", _File),
                (r"/api/session", _Session),
                (r"/api/login", _Login),
                (r"/api/logout", _Logout),
                (r"/api/events", _Events),
                (r"/api/keys", _Keys),
                (r"/api/command", _Command),
            ],
            default_handler_class=_Nothing,
            page=self,
            log_function=_log,
        )


class _RefusalError(HTTPError):
    """What the page says no to; `line` says why, `again_s` when to ask again."""

    def __init__(self, status: int, line: str, again_s: int = 0) -> None:
        super().__init__(status)
        self.line, self.again_s = line, again_s

    def __str__(self) -> str:
        return self.line


class _Guarded(RequestHandler):
    """A request to a host that is ours; answers are never kept, and errors are one line."""

    @property
    def page(self) -> Page:
        """What all requests share."""
        found: Page = self.application.settings["page"]
        return found

    def set_default_headers(self) -> None:
        """For errors, too."""
        framed = "'self'" if self.is_ingress() else "'none'"
        self.set_header("Server", "roomscribe")
        self.set_header("Content-Security-Policy", POLICY.format(framed))
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cross-Origin-Opener-Policy", "same-origin")
        self.set_header("Cross-Origin-Resource-Policy", "same-origin")
        self.set_header("Cache-Control", "no-store")

    def prepare(self) -> None:
        """Refuses a host that is not ours, before anything is looked at."""
        self.page.touched_s = asyncio.get_running_loop().time()
        stream = getattr(self.request.connection, "stream", None)
        if isinstance(stream, IOStream):
            self.page.guests.heard.add(stream)
            if self.current_user:
                self.page.guests.known.add(stream)
        host = self.request.headers.get("Host", "")
        if not self.is_ingress() and not self.page.access.knows(host):
            raise _RefusalError(
                421,
                "This page does not answer to that name. Add it to web.hosts in roomscribe.toml.",
            )

    def is_ingress(self) -> bool:
        """True for what Home Assistant's supervisor hands on for a user that it knows."""
        headers, trusted = self.request.headers, self.page.settings.ingress
        return bool(
            trusted
            and self.request.remote_ip == trusted
            and headers.get("X-Ingress-Path")
            and headers.get("X-Remote-User-Id")
        )

    def get_current_user(self) -> str | None:
        """The session, which is the cookie or Home Assistant's user; None for a stranger."""
        if self.is_ingress():
            return f"ingress {self.request.headers['X-Remote-User-Id']}"
        cookie = self.get_cookie(COOKIE, "") or ""
        return cookie if self.page.access.is_session(cookie) else None

    def session(self) -> str:
        """The session of somebody who is logged in, for a page of our own. Raises _RefusalError."""
        if not self.current_user:
            raise _RefusalError(401, "Log in first. `sudo roomscribe web open` prints a link.")
        if self.request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            raise _RefusalError(403, "Only the page itself may request this.")
        return str(self.current_user)

    def body(self) -> dict[str, Any]:
        """The JSON object that the page itself has sent. Raises _RefusalError."""
        headers = self.request.headers
        origin = headers.get("Origin", f"://{self.request.host}")
        if headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
            raise _RefusalError(403, "Another site may not do this.")
        if not self.is_ingress() and origin.partition("://")[2] != self.request.host:
            raise _RefusalError(403, "Another origin may not do this.")
        if headers.get("Content-Type", "").partition(";")[0].strip() != "application/json":
            raise _RefusalError(415, "expected application/json")
        try:
            found = json.loads(self.request.body)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise _RefusalError(400, "expected a JSON object")
        return found

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """The error as JSON: one line for people."""
        error = kwargs.get("exc_info", (None, None))[1]
        if isinstance(error, StoreError):
            self.set_status(503)
        if isinstance(error, _RefusalError) and error.again_s:
            self.set_header("Retry-After", str(error.again_s))
        said = isinstance(error, StoreError | _RefusalError)
        self.finish({"error": str(error) if said else self._reason})

    def log_exception(self, *details: Any) -> None:
        """Refusals are no faults of ours."""
        if not isinstance(details[1], HTTPError | StreamClosedError):
            log.error("a fault of the page", exc_info=details)


class _Nothing(_Guarded):
    """Every other path."""

    def prepare(self) -> None:
        """Nothing is there."""
        super().prepare()
        raise _RefusalError(404, "Not found.")


class _File(_Guarded):
    """The page's own files, the same for everybody; they hold nothing of what was said."""

    def get(self, name: str) -> None:
        """One of FILES."""
        self.set_header("Content-Type", FILES[name][1])
        self.set_header("Cache-Control", "no-cache")
        self.set_header("Vary", "Accept-Encoding")
        if "gzip" in self.request.headers.get("Accept-Encoding", ""):
            self.set_header("Content-Encoding", "gzip")
            self.finish(self.page.packed[name])
        else:
            self.finish(self.page.files[name])

    head = get


class _Session(_Guarded):
    """Who is logged in."""

    def get(self) -> None:
        """The session's token, and what the login offers to who has none."""
        if not self.current_user:
            self.set_status(401)
            self.finish({"error": "Not logged in.", "password": self.page.access.has_password})
            return
        session = self.session()
        self.finish({
            "token": self.page.access.token(session),
            "node": self.page.node,
            "leaves": not self.is_ingress(),
        })  # fmt: skip


class _Login(_Guarded):
    """A password or a one-time link for a session."""

    async def post(self) -> None:
        """Sets the cookie."""
        asked, headers, access = self.body(), self.request.headers, self.page.access
        link, password = asked.get("link"), asked.get("password")
        if isinstance(link, str):
            if not access.take_link(link):
                raise _RefusalError(
                    403,
                    "This link was already used, or has expired. `sudo roomscribe web open` prints "
                    "a new one.",
                )
        elif not isinstance(password, str) or not await self._is_password(password):
            raise _RefusalError(403, "Wrong password.")
        self.set_cookie(
            COOKIE, access.new_session(), max_age=SESSION_S, path="/", httponly=True,
            samesite="Strict", secure=headers.get("X-Forwarded-Proto") == "https",
        )  # fmt: skip
        self.finish({})

    async def _is_password(self, password: str) -> bool:
        """True for the right one. Raises _RefusalError after too many wrong ones."""
        page, address = self.page, str(self.request.remote_ip)
        if wait_s := page.access.begin_attempt(address):
            raise _RefusalError(
                429,
                f"Too many attempts. Wait {math.ceil(wait_s)} s, or use a link from `sudo "
                "roomscribe web open`.",
                math.ceil(wait_s),
            )
        if page.attempts >= ATTEMPTS:
            raise _RefusalError(429, "Too many logins at once. Try again in a few seconds.", 5)
        page.attempts += 1
        try:
            async with page.hashing:
                good = await asyncio.to_thread(page.access.is_password, password)
        finally:
            page.attempts -= 1
        if good:
            page.access.succeeded(address)
        return good


class _Logout(_Guarded):
    """The end of a session, in every browser that has its cookie."""

    def post(self) -> None:
        """Ends the session and takes the cookie away."""
        self.body()
        session = self.session()
        if not self.is_ingress():
            self.page.access.end_session(session)
        self.clear_cookie(COOKIE, path="/", httponly=True, samesite="Strict")
        self.finish({})


class _Keys(_Guarded):
    """What the page says about each setting."""

    def get(self) -> None:
        """Texts, kind, unit and limits of each setting, by section.key."""
        self.session()
        self.finish(fields())


class _Command(_Guarded):
    """The daemon's commands."""

    async def post(self) -> None:
        """The daemon's result for {"command": ..., arguments}."""
        session, asked = self.session(), self.body()
        token = self.request.headers.get("X-Roomscribe-Token", "")
        if not hmac.compare_digest(token.encode(), self.page.access.token(session).encode()):
            raise _RefusalError(403, "This page is out of date. Reload it.")
        command = asked.pop("command", None)
        if command not in COMMANDS:
            raise _RefusalError(400, f"expected a command of {', '.join(COMMANDS)}")
        try:
            result = await self.page.daemon.ask(command, **asked)
        except AwayError as error:
            raise _RefusalError(503, str(error)) from None
        except RefusedError as error:
            raise _RefusalError(STATUSES.get(error.code, 503), str(error)) from None
        self.finish({"result": result})  # as JSON: what was said is never a page


class _Events(_Guarded):
    """Server-sent events: what happens in the appliance, as it happens."""

    _reader: asyncio.Task[None] | None = None

    async def get(self) -> None:
        """?events=transcript,state and ?after=NUMBER, or Last-Event-ID, which goes first."""
        self.session()
        wanted = [
            one for one in str(self.get_query_argument("events", "")).split(",") if one in EVENTS
        ]
        if not wanted:
            raise _RefusalError(400, f"events: expected some of {', '.join(EVENTS)}")
        last = self.request.headers.get("Last-Event-ID") or self.get_query_argument("after", "")
        if self.page.streams >= STREAMS:
            raise _RefusalError(503, f"{STREAMS} pages are open already. Close one of them.", 30)
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("X-Accel-Buffering", "no")
        after = int(str(last)) if re.fullmatch(r"[0-9]{1,15}", str(last)) else None
        self.page.streams += 1
        self._reader = asyncio.create_task(self._tell(wanted, after))
        try:
            await self._reader
        except asyncio.CancelledError:
            if not self._reader.cancelled():
                raise
        except (StreamClosedError, TimeoutError):
            # a reader that does not read: its connection holds what it will never get
            self.detach().close()
        finally:
            self.page.streams -= 1
            self.page.touched_s = asyncio.get_running_loop().time()

    def on_connection_close(self) -> None:
        """Nobody reads any more."""
        if self._reader:
            self._reader.cancel()

    async def _tell(self, wanted: list[str], after: int | None) -> None:
        """Writes events while the session lasts, through the daemon's restarts.

        Raises StreamClosedError, TimeoutError.
        """
        told = ""
        while True:
            try:
                # closed at once: a reader that has gone leaves its place at the daemon
                async with contextlib.aclosing(self.page.daemon.events(wanted, after)) as events:
                    async for name, data in events:
                        if name != "level" and not self.get_current_user():
                            return  # a new password has ended the session
                        if told != "up":
                            told = "up"
                            await self._say("daemon", {"up": True})
                        if name == "transcript":
                            after = data["seq"]
                        await self._say(name, data, after if name == "transcript" else None)
            except (AwayError, RefusedError) as error:
                if told != str(error):
                    told = str(error)
                    await self._say("daemon", {"up": False, "why": told})
                await self._say("", {})
                await asyncio.sleep(AGAIN_S)

    async def _say(self, name: str, data: dict[str, Any], number: int | None = None) -> None:
        """One event; without a name a comment. Raises StreamClosedError, TimeoutError."""
        head = f"event: {name}\n" + ("" if number is None else f"id: {number}\n")
        self.write(f"{head}data: {json.dumps(data)}\n\n" if name else ": alive\n\n")
        async with asyncio.timeout(SLOW_S):
            await self.flush()


def serve(settings: Settings, places: Sequence[Path], idle_s: float = IDLE_S) -> None:
    """Serves the page until nobody looked for `idle_s`, or a signal.

    `places` are where the daemon's control socket may be.
    On the sockets that systemd hands over, else on web.listen. Raises ConfigError where the page is
    off, or strangers could reach it; DeviceError where it cannot listen.
    """
    if not settings.web.enabled:
        raise ConfigError("web.enabled: expected true to serve the page, found false")
    sockets = sockets_of(settings.web)
    try:
        page = Page(settings, places)
        open_to = [one for one in map(name_of, sockets) if not is_local(one)]
        if open_to and not page.access.has_password and not settings.web.ingress:
            raise ConfigError(
                f"web.listen: expected a password for a page that others reach, found none for "
                f"{open_to[0]}; set one with `sudo roomscribe web password`"
            )
        asyncio.run(_run(page, sockets, idle_s))
    finally:
        for one in sockets:
            one.close()


async def _run(page: Page, sockets: list[socket.socket], idle_s: float) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    server = BoundedServer(
        page.application(),
        page.guests,
        max_body_size=BODY_BYTES,
        max_header_size=BODY_BYTES,
        max_buffer_size=8 * BODY_BYTES,
        idle_connection_timeout=IDLE_CONNECTION_S,
        body_timeout=SLOW_S,
    )
    server.add_sockets(sockets)
    page.touched_s = loop.time()
    log.info("the page is at %s", ", ".join(map(name_of, sockets)))
    while not stopped.is_set():
        left_s = page.touched_s + idle_s - loop.time()
        if page.streams:
            left_s = idle_s
        elif left_s <= 0:
            log.info("nobody has looked for %.0f s: ending", idle_s)
            break
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await stopped.wait()
    server.stop()
    await server.close_all_connections()


def _log(handler: RequestHandler) -> None:
    """A line for developers; without a query, which may be what was said."""
    log.debug("%d %s %s", handler.get_status(), handler.request.method, handler.request.path)
