"""A connection to Home Assistant's websocket: opened, let in, asked.

asyncio's, and in one task's hands. The protocol: developers.home-assistant.io/docs/api/websocket
(auth_required, auth, auth_ok or auth_invalid; then commands with a number each, which their results
and events carry). Nothing that comes is trusted to have its form.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from appliance.errors import DeviceError
from appliance.system import one_line, shorten

LARGEST = 8 << 20
"""Bytes of a message: the list of what is exposed among 100,000 entities has 6 MB. A longer one
would take hundreds of megabytes once it is read."""
OPEN_WITHIN_S = 10.0
ANSWER_WITHIN_S = 20.0
CLOSE_WITHIN_S = 1.0

quiet = logging.getLogger("roomscribe.homeassistant.websocket")
quiet.setLevel(logging.WARNING)  # below that the library writes down what it sends: the token, too

Event = Callable[[dict[str, Any]], object]
T = TypeVar("T")
Address = tuple[socket.AddressFamily, tuple[Any, ...]]


class HouseError(DeviceError):
    """Home Assistant is out of reach, or is none; the text has the fix behind its semicolon."""


class RefusedTokenError(HouseError):
    """It does not take the token."""


class CommandError(Exception):
    """It refuses a command."""

    def __init__(self, command: str, code: str, message: str) -> None:
        super().__init__(f"{command}: {message or code}")
        self.code = code
        """unauthorized, unknown_command, invalid_format, not_found... (its own words)"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where Home Assistant is."""

    host: str
    port: int
    secure: bool
    path: str
    port_given: bool

    @classmethod
    def of(cls, url: str) -> Place:
        """The place of a valid http, https, ws or wss address; the websocket's path is added."""
        parts = urlsplit(url)
        secure = parts.scheme in ("https", "wss")
        path = parts.path.rstrip("/")
        if not path.endswith("/websocket"):
            path += "/api/websocket"
        port = parts.port or (443 if secure else 80)
        return cls(parts.hostname or "", port, secure, path, parts.port is not None)

    @property
    def uri(self) -> str:
        """The websocket's address."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'wss' if self.secure else 'ws'}://{host}:{self.port}{self.path}"

    def __str__(self) -> str:
        return f"Home Assistant at {self.host}:{self.port}"

    def resolve(self) -> Sequence[Address]:
        """Its addresses; waits for the resolver, however long that takes. Raises HouseError."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or one_line(error)
            raise HouseError(f"{self}: no such host ({why}); see homeassistant.url") from error
        return [(family, address) for family, _, _, _, address in found]


class Link:
    """A connection that was let in; who asks does so in `during`."""

    def __init__(self, websocket: Any, place: Place, version: str) -> None:
        self._websocket, self._place = websocket, place
        self.barred = frozenset[str]()
        """Commands that are not asked: their answers are too long."""
        self.version = version
        """Home Assistant's."""
        self._number = 0
        self._results: dict[int, tuple[str, asyncio.Future[Any]]] = {}
        self._events: dict[int, Event] = {}

    async def ask(
        self, command: str, on_event: Event | None = None, **arguments: Any
    ) -> tuple[int, Any]:
        """The number and the result of a command; `on_event` is given its events from now on.

        Raises CommandError when it is refused, HouseError when the connection is of no use.
        """
        if command in self.barred:
            raise CommandError(command, "too_long", f"an answer of more than {LARGEST >> 20} MB")
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
            raise HouseError(
                f"{self._place} leaves {command} unanswered for {ANSWER_WITHIN_S:.0f} s; see its "
                "log"
            ) from None
        except BaseException:
            self.forget(number)
            raise
        finally:
            self._results.pop(number, None)

    def forget(self, number: int) -> None:
        """No more events of that command are wanted."""
        self._events.pop(number, None)

    async def during(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work`, which may ask; its result. Raises what it raises, and HouseError when the
        connection ends before it does."""
        task = asyncio.ensure_future(work)
        await first(task, self._read())
        return task.result()

    async def _read(self) -> None:
        """Takes messages until the connection ends, which is a HouseError."""
        from websockets.exceptions import ConnectionClosed

        try:
            async for message in self._websocket:
                self._take(message)
            why = "it leaves"
        except ConnectionClosed as error:
            why = one_line(error)
            if error.sent and error.sent.code == 1009:
                raise TooLongError(self._waiting(), self._place) from error
        raise HouseError(f"{self._place} has ended the connection: {shorten(why, 80)}")

    def _waiting(self) -> str:
        """The command that was asked longest ago."""
        return next((command for command, _ in self._results.values()), "")

    async def _send(self, message: dict[str, Any]) -> None:
        from websockets.exceptions import ConnectionClosed

        with suppress(ConnectionClosed):  # `_read` says so
            await self._websocket.send(json.dumps(message))

    def _take(self, message: str | bytes) -> None:
        """Gives a message to who waits for it; what nobody waits for, or is none, is left."""
        try:
            found = json.loads(message)
        except (ValueError, RecursionError):
            return
        number = found.get("id") if isinstance(found, dict) else None
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
            error = found.get("error")
            error = error if isinstance(error, dict) else {}
            code, said = (shorten(error.get(name) or "", 100) for name in ("code", "message"))
            answer.set_exception(CommandError(command, code, said))


async def first(*works: Awaitable[object]) -> None:
    """Runs works until one of them ends, and ends the others; raises what one has raised, the last
    of them first."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
    for one in reversed(found):
        if isinstance(one, Exception):
            raise one


class TooLongError(HouseError):
    """An answer was longer than LARGEST."""

    def __init__(self, command: str, place: Place) -> None:
        super().__init__(
            f"{place}: expected an answer to {command} of at most {LARGEST >> 20} MB, found a "
            "longer one; expose fewer entities, and make the token as an administrator"
        )
        self.command = command


@asynccontextmanager
async def connect(place: Place, addresses: Sequence[Address], token: str) -> AsyncIterator[Link]:
    """A link to Home Assistant, closed at the end. Raises HouseError."""
    from websockets.asyncio.client import connect as open_websocket
    from websockets.exceptions import InvalidStatus, InvalidURI, WebSocketException

    try:
        async with asyncio.timeout(OPEN_WITHIN_S):
            opened = await _open(addresses)
            websocket = await open_websocket(
                place.uri,
                sock=opened,
                max_size=LARGEST,
                max_queue=4,
                compression=None,
                open_timeout=None,
                close_timeout=CLOSE_WITHIN_S,
                logger=quiet,
            )
    except InvalidStatus as error:
        raise _no_websocket(place, error.response.status_code) from error
    except ssl.SSLCertVerificationError as error:
        raise HouseError(
            f"{place} shows a certificate that is not to be trusted ({error.verify_message}); let "
            "homeassistant.url have the name in it, or http:// within the house"
        ) from error
    except (InvalidURI, ValueError) as error:  # a redirect, which this socket cannot follow
        raise HouseError(
            f"{place} sends us elsewhere; homeassistant.url: https:// for http://, perhaps"
        ) from error
    except (OSError, TimeoutError, WebSocketException, EOFError) as error:
        raise _unreachable(place, error) from error
    try:
        yield Link(websocket, place, await _let_in(websocket, place, token))
    finally:
        await websocket.close()


async def _open(addresses: Sequence[Address]) -> socket.socket:
    """The first address that takes a connection. Raises OSError."""
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


async def _let_in(websocket: Any, place: Place, token: str) -> str:
    """Home Assistant's version. Raises HouseError, of which RefusedTokenError is one."""
    from websockets.exceptions import ConnectionClosed

    async def receive() -> dict[str, Any]:
        found = json.loads(await websocket.recv())
        return found if isinstance(found, dict) else {}

    try:
        async with asyncio.timeout(OPEN_WITHIN_S):
            if (await receive()).get("type") != "auth_required":
                raise ValueError
            await websocket.send(json.dumps({"type": "auth", "access_token": token}))
            found = await receive()
    except (ConnectionClosed, TimeoutError, ValueError, RecursionError) as error:
        raise HouseError(
            f"{place}: expected Home Assistant's websocket, found something else; see "
            "homeassistant.url"
        ) from error
    if found.get("type") == "auth_invalid":
        raise RefusedTokenError(
            f"{place} does not take the token; make a long-lived access token in your profile "
            "there, Security, and write it where homeassistant.token_file says"
        )
    if found.get("type") != "auth_ok":
        raise HouseError(f"{place}: expected auth_ok, found something else; see homeassistant.url")
    return shorten(found.get("ha_version") or "of an unknown version", 40)


def _no_websocket(place: Place, status: int) -> HouseError:
    if status == 403:
        fix = "it bans addresses after wrong tokens: see ip_bans.yaml there"
    elif status >= 500:
        fix = "it starts, perhaps, or see its log"
    else:
        fix = "see homeassistant.url"
    return HouseError(f"{place}: expected its websocket, found status {status}; {fix}")


def _unreachable(place: Place, error: BaseException) -> HouseError:
    why = one_line(error)
    if isinstance(error, ssl.SSLError):
        why = "no TLS is spoken there: write http:// for https://"
    elif isinstance(error, OSError) and error.errno:
        why = os.strerror(error.errno)
    if isinstance(error, TimeoutError):
        why = f"no answer within {OPEN_WITHIN_S:.0f} s"
    hint = "" if place.port_given else f" (its port is mostly 8123: http://{place.host}:8123)"
    return HouseError(
        f"{place} cannot be reached: {shorten(why, 100)}; see homeassistant.url{hint}"
    )
