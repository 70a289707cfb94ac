"""What somebody wants transcribed, and what may change while it is: for all packages above."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from appliance.records import Transcription, Window
from appliance.system import call_in

if TYPE_CHECKING:
    import asyncio

    from appliance.infer.phrases import Phrases


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A window to transcribe, and what is wanted of its text."""

    window: Window
    names: tuple[str, ...] = ()
    """Words that are likely in it, in addition to the vocabulary."""
    phrases: Phrases | None = None
    """Sentences to expect: they fill `Transcription.candidates` in place of the usual ones."""
    completeness: bool = False
    """Whether the result must tell if the text is a whole sentence. `Pending.on_text` gets it
    early, because it decides when the utterance ends."""
    search: bool = False
    """Whether a better text than a doubtful one may take more time."""
    words: bool = False
    """Whether the times of the words are wanted."""
    language: str = ""
    """The language that is spoken in it; "" if nobody says so."""
    partial: bool = False
    """True for a window that somebody is still speaking: all other requests go first."""
    room: str | None = ""
    """The room it comes from ("" for this machine's): a room is likely to keep the language that it
    spoke last. None: unknown."""

    @property
    def is_whole(self) -> bool:
        """True for an utterance of one window: only there are expected sentences searched for."""
        return self.window.index == 1 and self.window.last


@dataclass(slots=True, eq=False)
class Pending:
    """What may change while a request is transcribed. Any thread may call any method."""

    wanted: bool = field(default=True, kw_only=True)
    """False: the work on it ends soon, and its result is discarded."""

    def cancel(self) -> None:
        """Give the request up: its result is not delivered."""
        self.wanted = False

    def has_time(self) -> bool:
        """Return True while a search for a better text may go on."""
        return True

    def on_text(self, result: Transcription) -> None:
        """Take in the first text, before any other work, and each later one that differs."""


Deliver = Callable[[Request, Transcription | Exception], object]
"""Called once with a request's result, or with why there is none, unless it was cancelled. Any
thread may call it, so it must be quick."""
Submit = Callable[[Request, Deliver], Pending | None]
"""Queues a request; returns None if too many wait."""


def future_result() -> tuple[asyncio.Future[Transcription | Exception], Deliver]:
    """Return a future of the running loop, and what sets it to a request's result.

    The two have no reference to the request, whose `Pending` may hold the function.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    made: asyncio.Future[Transcription | Exception] = loop.create_future()

    def settle(result: Transcription | Exception) -> None:
        if not made.done():
            made.set_result(result)

    return made, lambda _, result: call_in(loop, settle, result)
