"""A connection to Home Assistant's websocket: open, authenticate, send commands.

For one asyncio task. The protocol: developers.home-assistant.io/docs/api/websocket (auth_required,
auth, auth_ok or auth_invalid; then numbered commands, whose results and events carry the number).
The form of everything received is checked.
"""

import asyncio
import json
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from appliance.config import url_host
from appliance.errors import DeviceError
from appliance.system import first, json_object, one_line, shorten

LARGEST = 8 << 20
"""Longest message in bytes. The list of exposed entities takes 6 MB for 100,000 entities; a longer
message would need hundreds of megabytes once it is parsed."""
OPEN_WITHIN_S = 10.0
ANSWER_WITHIN_S = 20.0
CLOSE_WITHIN_S = 1.0

quiet = logging.getLogger("roomscribe.homeassistant.websocket")
quiet.setLevel(logging.WARNING)  # below that, the library logs what it sends, including the token

Event = Callable[[dict[str, Any]], object]
T = TypeVar("T")
Address = tuple[socket.AddressFamily, tuple[Any, ...]]


def as_table(value: object) -> dict[str, Any]:
    """Return a JSON value if it is a table, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[dict[str, Any]]:
    """Return the tables in a JSON value if that is a list, else none."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def as_text(value: object) -> str:
    """Return a JSON value if it is a text, else ""."""
    return value if isinstance(value, str) else ""


class HomeAssistantError(DeviceError):
    """Home Assistant cannot be reached or used; the text ends with what to do."""


class RefusedTokenError(HomeAssistantError):
    """Home Assistant refuses the token."""


class CommandError(Exception):
    """Home Assistant refuses a command."""

    def __init__(self, command: str, code: str, message: str) -> None:
        super().__init__(f"{command}: {message or code}")
        self.code = code
        """Home Assistant's: unauthorized, unknown_command, invalid_format, not_found ..."""


@dataclass(frozen=True, slots=True)
class HomeAssistantUrl:
    """Address of Home Assistant's websocket."""

    host: str
    port: int
    secure: bool
    path: str
    port_given: bool

    @classmethod
    def parse(cls, url: str) -> "HomeAssistantUrl":
        """Parse a valid http, https, ws or wss address; adds the websocket's path."""
        parts = urlsplit(url)
        secure = parts.scheme in ("https", "wss")
        path = parts.path.rstrip("/")
        if not path.endswith("/websocket"):
            path += "/api/websocket"
        port = parts.port or (443 if secure else 80)
        return cls(parts.hostname or "", port, secure, path, parts.port is not None)

    @property
    def uri(self) -> str:
        """The address as text."""
        scheme = "wss" if self.secure else "ws"
        return f"{scheme}://{url_host(self.host)}:{self.port}{self.path}"

    def __str__(self) -> str:
        return f"Home Assistant at {self.host}:{self.port}"

    def resolve(self) -> Sequence[Address]:
        """Return its IP addresses; may wait for the resolver. Raises HomeAssistantError."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or one_line(error)
            raise HomeAssistantError(
                f"{self}: no such host ({why}); check homeassistant.url"
            ) from error
        return [(family, address) for family, _, _, _, address in found]


class WebsocketLink:
    """An authenticated connection; send commands within `during`."""

    def __init__(self, websocket: Any, url: HomeAssistantUrl, version: str) -> None:
        self._websocket, self._url = websocket, url
        self.version = version
        """Home Assistant's version."""
        self._number = 0
        self._results: dict[int, tuple[str, asyncio.Future[Any]]] = {}
        self._events: dict[int, Event] = {}

    async def send_command(
        self, command: str, on_event: Event | None = None, **arguments: Any
    ) -> tuple[int, Any]:
        """Send a command; return its number and result. `on_event` gets its events from now on.

        Raises CommandError if it is refused, HomeAssistantError if the connection fails.
        """
        self._number += 1
        number = self._number
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._results[number] = command, answer
        if on_event:
            self._events[number] = on_event
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                await self._send({"id": number, "type": command, **arguments})
                return number, await answer
        except TimeoutError:
            self.forget(number)
            raise HomeAssistantError(
                f"{self._url} did not answer {command} within {ANSWER_WITHIN_S:.0f} s; see its log"
            ) from None
        except BaseException:
            self.forget(number)
            raise
        finally:
            self._results.pop(number, None)

    def forget(self, number: int) -> None:
        """Ignore further events of that command."""
        self._events.pop(number, None)

    async def during(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work`, which may send commands, and return its result. Raises what it raises, and
        HomeAssistantError if the connection ends first."""
        task = asyncio.ensure_future(work)
        await first(task, self._read())
        return task.result()

    async def _read(self) -> None:
        """Handle messages until the connection ends, which raises HomeAssistantError."""
        from websockets.exceptions import ConnectionClosed

        try:
            async for message in self._websocket:
                self._handle(message)
            why = "closed"
        except ConnectionClosed as error:
            why = one_line(error)
        raise HomeAssistantError(f"{self._url} has ended the connection: {shorten(why, 80)}")

    async def _send(self, message: dict[str, Any]) -> None:
        from websockets.exceptions import ConnectionClosed

        with suppress(ConnectionClosed):  # `_read` raises it
            await self._websocket.send(json.dumps(message))

    def _handle(self, message: str | bytes) -> None:
        """Pass a message to the command that waits for it; ignore any other one."""
        found = json_object(message) or {}
        number = found.get("id")
        if not isinstance(number, int):
            return
        if found.get("type") == "event" and number in self._events:
            event = found.get("event")
            if isinstance(event, dict):
                self._events[number](event)
        elif found.get("type") == "result" and number in self._results:
            command, answer = self._results[number]
            if answer.done():
                return
            if found.get("success") is True:
                answer.set_result(found.get("result"))
                return
            error = as_table(found.get("error"))
            code, text = (shorten(error.get(name) or "", 100) for name in ("code", "message"))
            answer.set_exception(CommandError(command, code, text))


@asynccontextmanager
async def connect(
    url: HomeAssistantUrl, addresses: Sequence[Address], token: str
) -> AsyncIterator[WebsocketLink]:
    """A link to Home Assistant, closed at the end. Raises HomeAssistantError."""
    from websockets.asyncio.client import connect as open_websocket
    from websockets.exceptions import InvalidStatus, InvalidURI, WebSocketException

    try:
        async with asyncio.timeout(OPEN_WITHIN_S):
            opened = await _open(addresses)
            websocket = await open_websocket(
                url.uri,
                sock=opened,
                max_size=LARGEST,
                max_queue=4,
                compression=None,
                open_timeout=None,
                close_timeout=CLOSE_WITHIN_S,
                logger=quiet,
            )
    except InvalidStatus as error:
        raise _no_websocket(url, error.response.status_code) from error
    except ssl.SSLCertVerificationError as error:
        raise HomeAssistantError(
            f"{url} shows a certificate that is not trusted ({error.verify_message}); use a "
            "name from the certificate in homeassistant.url, or http:// within your network"
        ) from error
    except (InvalidURI, ValueError) as error:  # a redirect, which this socket cannot follow
        raise HomeAssistantError(
            f"{url} redirects to another address; in homeassistant.url, try https:// instead of http://"
        ) from error
    except (OSError, TimeoutError, WebSocketException, EOFError) as error:
        raise _unreachable(url, error) from error
    try:
        yield WebsocketLink(websocket, url, await _authenticate(websocket, url, token))
    finally:
        await websocket.close()


async def _open(addresses: Sequence[Address]) -> socket.socket:
    """Return a socket connected to the first address that accepts it. Raises OSError."""
    failed: OSError = OSError("no address")
    for family, address in addresses:
        one = socket.socket(family, socket.SOCK_STREAM)
        one.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(one, address)
        except OSError as error:
            failed = error
            one.close()
        except BaseException:
            one.close()
            raise
        else:
            return one
    raise failed


async def _authenticate(websocket: Any, url: HomeAssistantUrl, token: str) -> str:
    """Log in and return Home Assistant's version. Raises HomeAssistantError."""
    from websockets.exceptions import ConnectionClosed

    async def receive() -> dict[str, Any]:
        return as_table(json.loads(await websocket.recv()))

    try:
        async with asyncio.timeout(OPEN_WITHIN_S):
            if (await receive()).get("type") != "auth_required":
                raise ValueError
            await websocket.send(json.dumps({"type": "auth", "access_token": token}))
            found = await receive()
    except (ConnectionClosed, TimeoutError, ValueError, RecursionError) as error:
        raise HomeAssistantError(
            f"{url}: expected Home Assistant's websocket, found something else; see "
            "homeassistant.url"
        ) from error
    if found.get("type") == "auth_invalid":
        raise RefusedTokenError(
            f"{url} refuses the token; create a long-lived access token in your profile "
            "there (Security), and save it in homeassistant.token_file"
        )
    if found.get("type") != "auth_ok":
        raise HomeAssistantError(
            f"{url}: expected auth_ok, found something else; see homeassistant.url"
        )
    return shorten(found.get("ha_version") or "of an unknown version", 40)


def _no_websocket(url: HomeAssistantUrl, status: int) -> HomeAssistantError:
    if status == 403:
        fix = "it bans addresses after wrong tokens; see ip_bans.yaml there"
    elif status >= 500:
        fix = "it may still be starting; else see its log"
    else:
        fix = "see homeassistant.url"
    return HomeAssistantError(f"{url}: expected its websocket, found status {status}; {fix}")


def _unreachable(url: HomeAssistantUrl, error: BaseException) -> HomeAssistantError:
    why = one_line(error)
    if isinstance(error, ssl.SSLError):
        why = "it does not use TLS: write http:// instead of https://"
    elif isinstance(error, OSError) and error.errno:
        why = os.strerror(error.errno)
    if isinstance(error, TimeoutError):
        why = f"no answer within {OPEN_WITHIN_S:.0f} s"
    hint = "" if url.port_given else f" (its usual port is 8123: http://{url.host}:8123)"
    return HomeAssistantError(
        f"{url} cannot be reached: {shorten(why, 100)}; see homeassistant.url{hint}"
    )
