"""Client of the daemon's control socket for an event loop (docs/control.md).

`control.ControlClient` is the blocking one, for commands.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Any

LINE_BYTES = 1 << 20
"""Longest answer."""
CONNECT_S = 2.0
RETRY_S = 0.2
ALIVE_S = 15.0
"""Longest time without a message on a stream: proxies keep it open, and its end is noticed."""
ANSWER_S = 20.0
"""Longest wait for an answer, beside the length of a microphone test. Listing microphones takes
15 s if the sound server hangs."""


class OfflineError(Exception):
    """The daemon does not answer; the message says what to do."""


class CommandRefusedError(Exception):
    """The daemon refuses a command; the message is its own."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code
        """bad_request, too_many, unavailable or refused."""


class DaemonClient:
    """Client of the first control socket of `paths` that exists; a connection for each call."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths

    async def call(self, command: str, /, **arguments: Any) -> Any:
        """Return the command's result. Raises OfflineError, CommandRefusedError."""
        within_s = ANSWER_S
        if isinstance(arguments.get("seconds"), int | float):
            within_s += min(10.0, arguments["seconds"])
        async with self.connected() as (reader, writer):
            try:
                async with asyncio.timeout(within_s):
                    return await _call(reader, writer, command, arguments)
            except (OSError, ValueError, EOFError, TimeoutError) as error:
                raise OfflineError("Roomscribe does not answer. It may be restarting.") from error

    async def events(
        self, wanted: list[str], after: int | None
    ) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        """Yield each event's name and data, and transcripts with a number above `after`.

        Yield ("", {}) once subscribed, and after each ALIVE_S without an event. Raises OfflineError
        if the daemon stops, CommandRefusedError.
        """
        async with self.connected() as (reader, writer):
            try:
                subscription = {"events": wanted, "after": after}
                async with asyncio.timeout(ANSWER_S):
                    await _call(reader, writer, "subscribe", subscription)
                yield "", {}
                while True:
                    try:
                        async with asyncio.timeout(ALIVE_S):
                            message = await _line(reader)
                    except TimeoutError:
                        message = {"event": "", "data": {}}
                    if "event" in message:
                        yield message["event"], message["data"]
            except (OSError, ValueError, EOFError, TimeoutError) as error:
                raise OfflineError("Roomscribe has stopped. It may be restarting.") from error

    @contextlib.asynccontextmanager
    async def connected(
        self, name: str = "", within_s: float = 0.0
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Connect to the control socket, or to the socket of that name beside it, as soon as it
        accepts a connection. Raises OfflineError after `within_s`."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + within_s
        while True:
            try:
                reader, writer = await self._connect(name)
                break
            except OfflineError:
                if loop.time() >= deadline_s:
                    raise
                await asyncio.sleep(RETRY_S)
        try:
            yield reader, writer
        finally:
            writer.close()

    async def _connect(self, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection. Raises OfflineError."""
        cause: Exception | None = None
        for control in self._paths:
            path = control.with_name(name or control.name)
            try:
                async with asyncio.timeout(CONNECT_S):
                    return await asyncio.open_unix_connection(path, limit=LINE_BYTES)
            except PermissionError as error:
                raise OfflineError(
                    f"This page may not open {path}. Its user must be in the group roomscribe."
                ) from error
            except (OSError, TimeoutError) as error:
                cause = error
        raise OfflineError(
            "Roomscribe is not running. `sudo systemctl status roomscribe` shows why."
        ) from cause


async def _call(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    command: str,
    arguments: dict[str, Any],
) -> Any:
    """Send one command and return its result. Raises CommandRefusedError, OSError, EOFError."""
    request = {**arguments, "id": 1, "command": command}
    writer.write(json.dumps(request).encode() + b"\n")
    await writer.drain()
    while True:
        answer = await _line(reader)
        if "ok" not in answer:
            continue
        if not answer["ok"]:
            raise CommandRefusedError(str(answer.get("error", "")), str(answer.get("code", "")))
        return answer.get("result")


async def _line(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Return the next message. Raises OSError, EOFError at the end, ValueError if malformed."""
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError("expected a JSON object")
    return message
