"""The sound of one request -> windows -> texts: the microphone's own way, without the microphone.

What comes is made 16 kHz mono, cut into windows by a segmenter of its own, and transcribed while
more of it comes; a window that is likely to be the last one (300 ms of silence) is transcribed
ahead, so that its text is there when the sound ends. A request's texts pass the same gates.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from appliance.capture import Framer, Resampler, Segmenter, VoiceDetector
from appliance.config import GateSettings, SegmenterSettings
from appliance.infer import Gates, is_unspaced
from appliance.records import SAMPLE_RATE, Discarded, Frame, Transcription, Window

log = logging.getLogger("roomscribe.wyoming")

LONGEST_S = 60.0
"""A request holds at most so much sound."""
AHEAD = 2
"""So many windows of one request wait at most; its sound waits then, in the network."""
AT_ONCE = 8
"""Frames between two turns of the others: 4 ms where somebody speaks."""
ROOM_LOOK_S = 0.05
"""Between two looks whether somebody still speaks in the room."""
ASK_AGAIN_S = 0.05
"""While too many windows of others wait."""
NOBODY_S = 15.0
"""Who leaves the end to us and says nothing for so long gets an empty text."""
RATES, WIDTHS, CHANNELS = (4000, 192_000), {1: "i1", 2: "<i2", 3: "<i4", 4: "<i4"}, 8
"""Sound that is taken: Hz, bytes of a sample and how they are read, channels at most."""


class RequestError(Exception):
    """Why a request gets no text: `code` busy, bad_sound or failed, for programs; the text is for
    people."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Asked(Protocol):
    """A window that is to be transcribed."""

    wanted: bool
    """False: it is not wanted any more."""


Answer = Callable[[Transcription | Exception], None]
Ask = Callable[[Window, Answer, tuple[str, ...]], Asked | None]
"""Has a window transcribed and calls the answer, from any thread; None when too many wait."""
Keep = Callable[[Window, Transcription, float], None]
"""Has a text written down, with how long its window waited, in ms."""


@dataclass(frozen=True, slots=True)
class SoundFormat:
    """How samples come: Hz, bytes a sample (signed, little-endian), channels side by side."""

    rate: int
    width: int
    channels: int

    @classmethod
    def of(cls, data: Mapping[str, object]) -> SoundFormat:
        """The format in an event's data. Raises RequestError."""
        values = [data.get(name) for name in ("rate", "width", "channels")]
        rate, width, channels = (one if type(one) is int else 0 for one in values)
        if not (RATES[0] <= rate <= RATES[1] and width in WIDTHS and 0 < channels <= CHANNELS):
            raise RequestError(
                "bad_sound",
                f"expected a rate of {RATES[0]} to {RATES[1]} Hz, a width of 1 to 4 bytes and 1 to "
                f"{CHANNELS} channels, found others",
            )
        return cls(rate, width, channels)

    def read(self, sound: bytes) -> NDArray[np.float32]:
        """(n, channels) float32 in -1..1 of whole samples.

        Of one byte they are signed as well, as the protocol's library reads them (audioop).
        """
        raw = np.frombuffer(sound, np.uint8)
        if self.width == 3:
            wide = np.zeros((len(raw) // 3, 4), np.uint8)
            wide[:, 1:] = raw.reshape(-1, 3)
            raw = wide.reshape(-1)
        whole = raw.view(WIDTHS[self.width])
        scaled = whole.astype(np.float32) / np.float32(1 << 8 * whole.itemsize - 1)
        return scaled.reshape(-1, self.channels)


class _Part:
    """A window on its way to being text."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.asked: Asked | None = None
        self.asked_s = time.monotonic()
        self.result: asyncio.Future[Transcription | Exception] = (
            asyncio.get_running_loop().create_future()
        )

    def answer(self, result: Transcription | Exception) -> None:
        """Any thread."""
        loop = self.result.get_loop()
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._settle, result)

    def _settle(self, result: Transcription | Exception) -> None:
        if not self.result.done():
            self.result.set_result(result)

    def drop(self) -> None:
        """Nobody wants it any more."""
        if self.asked:
            self.asked.wanted = False
        self.forget()

    def forget(self) -> None:
        """It is over. What was asked for knows whom to answer: the two would keep each other, and
        the sound, in memory until the garbage collector looks for circles."""
        self.asked = None


class Hearing:
    """One request's sound and its texts. For one task."""

    def __init__(
        self,
        form: SoundFormat,
        detector: VoiceDetector,
        *,
        segmenter: SegmenterSettings,
        gates: GateSettings,
        window_s: float,
        ask: Ask,
        keep: Keep | None = None,
        names: tuple[str, ...] = (),
        confidence: float = -1.0,
        room_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """`names` are words that are likely to be said, `confidence` is WyomingSettings's.
        `room_busy` is true while the appliance's own microphone has speech."""
        self._room_busy = room_busy
        self.form = form
        self._ask, self._keep, self._gates = ask, keep, Gates(gates)
        self._names, self._least = names, confidence
        self._segmenter = Segmenter(detector, segmenter, window_s)
        self._speculate = segmenter.speculate
        self._resampler, self._framer = Resampler(form.rate), Framer()
        self._carry = b""
        """The begun sample."""
        self._began_s = time.monotonic()
        self._received = self._passed = 0
        """Samples that came, and those of them, at 16 kHz, that went on to the framer."""
        self._parts: deque[_Part] = deque()
        self._guess: _Part | None = None
        self._text = self.language = ""
        self._refused = False
        """True once a window's text had too little confidence."""
        self.texts: list[str] = []
        """What is known of the text and was not taken yet; the pieces append."""
        self.over = False
        """True once an utterance has ended, or it is plain that none comes."""

    @property
    def text(self) -> str:
        """All that is known of the text; empty if a window's text had too little confidence,
        because the rest of a command is another command."""
        return "" if self._refused else self._text

    async def push(self, sound: bytes) -> None:
        """Takes in more sound. Raises RequestError."""
        sound = self._carry + sound
        size = self.form.width * self.form.channels
        whole = len(sound) - len(sound) % size
        self._carry = sound[whole:]
        self._received += whole // size
        if self._received > LONGEST_S * self.form.rate:
            raise RequestError(
                "bad_sound", f"expected at most {LONGEST_S:g} s of sound, found more"
            )
        await self._take(self.form.read(sound[:whole]))

    async def stop(self) -> None:
        """The sound has ended. Raises RequestError."""
        await self._take(np.zeros((0, self.form.channels), np.float32), last=True)
        await self._hear(self._framer.rest(self._began_s + self._passed / SAMPLE_RATE))
        await self._ask_for(self._segmenter.flush())

    async def finish(self) -> None:
        """Waits until all of the text is known. Raises RequestError."""
        while self._parts:
            await self._next_text()

    def close(self) -> None:
        """Nobody wants the text any more, or it is there."""
        for part in (*self._parts, *filter(None, [self._guess])):
            part.drop()
        self._parts.clear()
        self._guess = None

    async def _take(self, sound: NDArray[np.float32], *, last: bool = False) -> None:
        samples = self._resampler.push(sound, last=last)
        start_s = self._began_s + self._passed / SAMPLE_RATE
        self._passed += len(samples)
        await self._hear(self._framer.push(samples, start_s))
        while self._parts and self._parts[0].result.done():
            await self._next_text()

    async def _hear(self, frames: Iterator[Frame]) -> None:
        """Frames -> windows; takes turns with the other requests."""
        for number, frame in enumerate(frames, 1):
            speaking = self._segmenter.speaking
            found = self._segmenter.push(frame)
            if found:
                await self._ask_for(found)
                ended = any(isinstance(one, Window) and one.last for one in found)
                self.over = self.over or ended
            elif self._speculate:
                self._think_ahead()
            nothing = not (speaking or self._parts or self._text)
            if nothing and frame.end_s - self._began_s > NOBODY_S:
                self.over = True
            if number % AT_ONCE == 0:
                await self._give_way(frame.end_s)

    async def _give_way(self, until_s: float) -> None:
        """Let the others take their turn; and the room first, while somebody speaks there.

        `until_s` is when the sound so far would have been spoken, had it been spoken from the
        request's beginning on. So sound that comes as it is spoken never waits here, and no
        request takes longer than its sound.
        """
        await asyncio.sleep(0)
        while until_s > time.monotonic() and self._room_busy():
            await asyncio.sleep(ROOM_LOOK_S)

    def _think_ahead(self) -> None:
        """Has the window transcribed that is likely to come, if there is one."""
        window = self._segmenter.speculative_window
        if self._guess and self._guess.window is not window:
            self._guess.drop()
            self._guess = None
        if window and not self._guess:
            self._guess = _Part(window)
            self._guess.asked = self._ask(window, self._guess.answer, self._names)

    async def _ask_for(self, found: list[Window | Discarded]) -> None:
        """Has windows transcribed, in order; those of this request that are too many wait."""
        for window in found:
            guess, self._guess = self._guess, None
            if not isinstance(window, Window) or not guess or guess.window.id != window.id:
                if guess:
                    guess.drop()
                guess = None
            if not isinstance(window, Window):
                continue
            part = guess or _Part(window)
            part.window = window
            while len(self._parts) >= AHEAD:
                await self._next_text()
            while part.asked is None:
                part.asked = self._ask(window, part.answer, self._names)
                if part.asked is None:
                    await asyncio.sleep(ASK_AGAIN_S)
            self._parts.append(part)

    async def _next_text(self) -> None:
        """Waits for the oldest window's text. Raises RequestError."""
        part = self._parts[0]
        result = await part.result
        self._parts.popleft()
        part.forget()
        if isinstance(result, Exception):
            raise RequestError("failed", "the sound could not be transcribed; see the journal")
        result, reason = self._gates.apply(part.window, result)
        if reason:
            return
        self.language = result.language
        if self._keep:
            self._keep(_in_the_past(part.window), result, 1000 * (time.monotonic() - part.asked_s))
        self._refused = self._refused or self._is_unsure(result)
        if self._refused:
            return
        unspaced = is_unspaced(self._text[-1:] + result.text[:1])
        piece = result.text if unspaced or not self._text else " " + result.text
        self._text += piece
        self.texts.append(piece)

    def _is_unsure(self, result: Transcription) -> bool:
        """Return True for a text below the least confidence, and log that. An unknown confidence
        (not a number) passes."""
        unsure = "low_confidence" in result.flags
        if self._least >= 0:
            unsure = result.confidence < self._least
        if unsure:
            confidence = 100 * result.confidence
            log.info("a request is answered as empty: confidence %.0f %% is too low", confidence)
        return unsure


def _in_the_past(window: Window) -> Window:
    """The window, dated by when its sound came: sound that comes faster than it was spoken would
    end in the future."""
    ahead_s = max(0.0, window.speech_end_s - time.monotonic())
    return replace(
        window, start_s=window.start_s - ahead_s, speech_end_s=window.speech_end_s - ahead_s
    )
