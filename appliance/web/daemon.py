"""The daemon as the page sees it: questions and events over the control socket.

The event loop's side of docs/control.md; `control.Client` is the one of commands, which may wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Any

LINE_BYTES = 1 << 20
"""No answer is longer."""
CONNECT_S = 2.0
ALIVE_S = 15.0
"""A stream without an event says so as often: proxies keep it open, and its end is noticed."""
ANSWER_S = 20.0
"""The slowest command lists microphones beside a sound server that hangs, or waits for the words
of a test; the test's own seconds are added."""


class AwayError(Exception):
    """The daemon does not answer; the text says what to do."""


class RefusedError(Exception):
    """The daemon refuses; the text is its own line."""

    def __init__(self, line: str, code: str) -> None:
        super().__init__(line)
        self.code = code
        """bad_request, too_many, unavailable or refused."""


class Daemon:
    """The daemon behind the first of `places` that is there; a connection for each question."""

    def __init__(self, places: Sequence[Path]) -> None:
        """Connects to nothing yet."""
        self._places = places

    async def ask(self, command: str, /, **arguments: Any) -> Any:
        """The command's result. Raises AwayError, RefusedError."""
        within_s = ANSWER_S
        if isinstance(arguments.get("seconds"), int | float):
            within_s += min(10.0, arguments["seconds"])
        async with self._connected() as (reader, writer):
            try:
                async with asyncio.timeout(within_s):
                    return await _ask(reader, writer, command, arguments)
            except (OSError, ValueError, EOFError, TimeoutError) as error:
                raise AwayError("Roomscribe does not answer. It may be restarting.") from error

    async def events(
        self, wanted: list[str], after: int | None
    ) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        """Each event's name and data; transcripts from after the number `after` on.

        ("", {}) once the daemon listens, and after each ALIVE_S without an event. Raises AwayError
        when the daemon goes, RefusedError.
        """
        async with self._connected() as (reader, writer):
            try:
                asked = {"events": wanted, "after": after}
                async with asyncio.timeout(ANSWER_S):
                    await _ask(reader, writer, "subscribe", asked)
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
                raise AwayError("Roomscribe has stopped. It may be restarting.") from error

    @contextlib.asynccontextmanager
    async def _connected(
        self,
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await self._connect()
        try:
            yield reader, writer
        finally:
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises AwayError."""
        cause: Exception | None = None
        for place in self._places:
            try:
                async with asyncio.timeout(CONNECT_S):
                    return await asyncio.open_unix_connection(place, limit=LINE_BYTES)
            except PermissionError as error:
                raise AwayError(
                    f"This page may not open {place}. Its user must be in the group roomscribe."
                ) from error
            except (OSError, TimeoutError) as error:
                cause = error
        raise AwayError(
            "Roomscribe is not running. `sudo systemctl status roomscribe` shows why."
        ) from cause


async def _ask(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    command: str,
    arguments: dict[str, Any],
) -> Any:
    """Sends one question and waits for its answer. Raises RefusedError, OSError, EOFError."""
    question = {**arguments, "id": 1, "command": command}
    writer.write(json.dumps(question).encode() + b"\n")
    await writer.drain()
    while True:
        answer = await _line(reader)
        if "ok" not in answer:
            continue
        if not answer["ok"]:
            raise RefusedError(str(answer.get("error", "")), str(answer.get("code", "")))
        return answer.get("result")


async def _line(reader: asyncio.StreamReader) -> dict[str, Any]:
    """The next message. Raises OSError, EOFError at the end, ValueError for what is none."""
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError("expected a JSON object")
    return message
