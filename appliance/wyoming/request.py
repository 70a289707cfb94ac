"""One transcription request: sound -> windows -> text, as with the microphone's own speech.

The sound is resampled to 16 kHz mono, cut into windows by a segmenter of its own, and transcribed
while more of it arrives. A window that is likely to be the last one (0.2 s of silence) is
transcribed speculatively, so that its text is ready when the sound ends. In sound that was recorded
before, utterances are joined instead (`JoiningSegmenter`). The same gates apply.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from appliance.capture import Framer, JoiningSegmenter, Resampler, VoiceDetector
from appliance.config import GateSettings, SegmenterSettings
from appliance.infer import (
    Gates,
    Model,
    Pending,
    Request,
    Submit,
    future_result,
    is_unspaced,
)
from appliance.records import SAMPLE_RATE, Discarded, Frame, Transcription, Window

LONGEST_S, LONGEST_FILE_S = 60.0, 3600.0
"""Longest sound of a request, and of one that the page sends."""
RECORDED = 2.0
"""Sound that arrives this many times as fast as it is spoken was recorded before: nobody waits for
a part of its text. A satellite's own beginning is soon behind."""
WAITING = 2
"""Windows of one request that wait at most; further sound waits in the network."""
FRAMES_AT_ONCE = 8
"""Frames between two turns of the other requests: 4 ms while somebody speaks."""
ROOM_CHECK_S = 0.05
"""Between two checks whether somebody still speaks in the room."""
RETRY_S = 0.05
"""Pause while too many windows of all requests wait."""
KNOWN_S, KNOWN_SHARE = 15.0, 0.5
"""For so long the satellite's sounds are known, and by so much of them."""
RATES, WIDTHS, CHANNELS = (4000, 192_000), {1: "i1", 2: "<i2", 3: "<i4", 4: "<i4"}, 8
"""Accepted sound: Hz, bytes per sample and how they are read, most channels."""


class RequestError(Exception):
    """Why a request gets no text: `code` for programs (busy, bad_sound, bad_language or failed),
    and a text."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Hints:
    """What a request says of its text."""

    names: tuple[str, ...] = ()
    """Words that are likely in it."""
    words: bool = False
    """Whether the times of its words are wanted."""
    language: str = ""
    """The language that is spoken in it; "" if the client does not say."""
    acts: bool = False
    """Whether something acts on the text: then a sure expected sentence stands in its place."""


NO_HINTS = Hints()


class KnownTexts:
    """Texts of the sounds that the satellite has sent to Home Assistant, which often hands them to
    this server: the same sound gets the same text at once. Any thread."""

    def __init__(self) -> None:
        self._known = deque[tuple[float, bytes, str]](maxlen=4)

    def add(self, sound: bytes, text: str) -> None:
        """Remember the text of a sound of 16 kHz, int16, mono."""
        self._known.append((time.monotonic() + KNOWN_S, sound, text))

    def find(self, sound: bytes, least_share: float = KNOWN_SHARE) -> str | None:
        """Return the text of a known sound that begins with `sound`, which is at least so much of
        it: Home Assistant may cut the end off. None without one."""
        for until_s, one, text in reversed((*self._known,)):
            fits = len(sound) >= least_share * len(one) and one.startswith(sound)
            if fits and time.monotonic() < until_s:
                return text
        return None


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the server uses of the appliance."""

    model: Callable[[], Model]
    """Returns the model in use, which may change."""
    gates: GateSettings
    submit: Submit
    keep: Callable[[Window, Transcription, float], None] | None = None
    """Stores a text, with the ms that its window waited; None to store nothing."""
    count: Callable[[str], None] = lambda _name: None
    """Increments a counter."""
    report: Callable[[str, str | None], object] = lambda _key, _trouble: None
    """Gets a port's setting and why nobody can connect, or None; returns True if it is new."""
    advertise: Callable[[str, int], Coroutine[None, None, None]] | None = None
    """Announces a port, and its setting, to the network until it is cancelled."""
    is_room_busy: Callable[[], bool] = lambda: False
    """Returns True while the appliance's own microphone has speech."""
    languages: Callable[[], Sequence[str]] = tuple
    """Returns the languages that a client may choose; none: those of the model."""
    text_to_act_on: Callable[[Window, Transcription], str] = lambda _, result: result.text
    """Returns what to act on in place of a text."""
    known: KnownTexts = field(default_factory=KnownTexts)
    """Texts of sounds that the satellite has sent."""


@dataclass(frozen=True, slots=True)
class SoundFormat:
    """Format of the samples: Hz, bytes per sample (signed, little-endian), interleaved channels."""

    rate: int
    width: int
    channels: int

    @classmethod
    def parse(cls, data: Mapping[str, object]) -> Self:
        """Return the format in an event's data. Raises RequestError."""
        values = [data.get(name) for name in ("rate", "width", "channels")]
        rate, width, channels = (value if type(value) is int else 0 for value in values)
        if not (RATES[0] <= rate <= RATES[1] and width in WIDTHS and 0 < channels <= CHANNELS):
            raise RequestError(
                "bad_sound",
                f"expected a rate of {RATES[0]} to {RATES[1]} Hz, a width of 1 to 4 bytes and 1 to "
                f"{CHANNELS} channels, found others",
            )
        return cls(rate, width, channels)

    def read(self, sound: bytes) -> NDArray[np.float32]:
        """Return whole samples as (n, channels) float32 in -1..1.

        One-byte samples are signed, too, as the protocol's library reads them (audioop).
        """
        raw = np.frombuffer(sound, np.uint8)
        if self.width == 3:
            wide = np.zeros((len(raw) // 3, 4), np.uint8)
            wide[:, 1:] = raw.reshape(-1, 3)
            raw = wide.reshape(-1)
        whole = raw.view(WIDTHS[self.width])
        scaled = whole.astype(np.float32) / np.float32(1 << 8 * whole.itemsize - 1)
        return scaled.reshape(-1, self.channels)


class _PendingText:
    """A window whose text is awaited."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.pending: Pending | None = None
        self.queued_s = time.monotonic()
        self.result, self.deliver = future_result()

    def cancel(self) -> None:
        """Cancel the transcription."""
        if self.pending:
            self.pending.cancel()


class TranscriptionRequest:
    """The sound of one request and its text. For one task."""

    def __init__(
        self,
        form: SoundFormat,
        detector: VoiceDetector,
        hooks: Hooks,
        segmenter: SegmenterSettings,
        *,
        hints: Hints = NO_HINTS,
        is_file: bool = False,
    ) -> None:
        """`is_file`: for sound that the page sends."""
        self.form = form
        self._hooks, self._gates = hooks, Gates(hooks.gates)
        self._hints, self._is_file = hints, is_file
        self._segmenter = JoiningSegmenter(detector, segmenter, hooks.model().window_s)
        self._speculate = segmenter.speculate
        self._resampler, self._framer = Resampler(form.rate), Framer()
        self._rest = b""
        """An incomplete sample."""
        self._began_s = time.monotonic()
        self._received = self._framed = 0
        """Samples received, and samples at 16 kHz that the framer got."""
        self._queue: deque[_PendingText] = deque()
        self._speculative: _PendingText | None = None
        self.text = self.language = ""
        self.new_texts: list[dict[str, Any]] = []
        """Parts of the text that were not fetched yet: `text`, joined as it is, and its figures."""
        self._first: tuple[dict[str, Any], str] | None = None
        """The first part, and what to act on in its place if no other part follows."""

    async def push(self, sound: bytes) -> None:
        """Add sound. Raises RequestError."""
        sound = self._rest + sound
        size = self.form.width * self.form.channels
        whole = len(sound) - len(sound) % size
        self._rest = sound[whole:]
        self._received += whole // size
        longest_s = LONGEST_FILE_S if self._is_file else LONGEST_S
        if self._received > longest_s * self.form.rate:
            raise RequestError(
                "bad_sound", f"expected at most {longest_s:g} s of sound, found more"
            )
        await self._resample(self.form.read(sound[:whole]))

    async def stop(self) -> None:
        """End the sound. Raises RequestError."""
        await self._resample(np.zeros((0, self.form.channels), np.float32), last=True)
        await self._segment(self._framer.rest(self._began_s + self._framed / SAMPLE_RATE))
        await self._transcribe(self._segmenter.flush())

    async def finish(self) -> None:
        """Wait until the text is complete. Raises RequestError."""
        while self._queue:
            await self._take_text()
        if self._first:
            part, self.text = self._first
            self.new_texts.append(part | {"text": self.text})
            self._first = None

    def close(self) -> None:
        """Cancel what is still under way."""
        for part in (*self._queue, *filter(None, [self._speculative])):
            part.cancel()
        self._queue.clear()
        self._speculative = None

    async def _resample(self, sound: NDArray[np.float32], *, last: bool = False) -> None:
        samples = self._resampler.push(sound, last=last)
        start_s = self._began_s + self._framed / SAMPLE_RATE
        self._framed += len(samples)
        await self._segment(self._framer.push(samples, start_s))
        while self._queue and self._queue[0].result.done():
            await self._take_text()

    async def _segment(self, frames: Iterator[Frame]) -> None:
        """Cut frames into windows and have them transcribed; let other requests take turns."""
        for number, frame in enumerate(frames, 1):
            ahead_s, passed_s = frame.end_s - self._began_s, time.monotonic() - self._began_s
            self._segmenter.joins = self._is_file or ahead_s > RECORDED * passed_s
            found = self._segmenter.push(frame)
            if found:
                await self._transcribe(found)
            elif self._speculate and not self._segmenter.joins:
                self._transcribe_ahead()
            if number % FRAMES_AT_ONCE == 0:
                await self._give_way(frame.end_s)

    async def _give_way(self, until_s: float) -> None:
        """Let other requests take their turn, and wait while somebody speaks in the room.

        `until_s` is when this sound would end if it had been spoken since the request began. So
        sound that arrives as it is spoken never waits here, and no request takes longer than its
        sound.
        """
        await asyncio.sleep(0)
        while until_s > time.monotonic() and self._hooks.is_room_busy():
            await asyncio.sleep(ROOM_CHECK_S)

    def _transcribe_ahead(self) -> None:
        """Transcribe the segmenter's likely next window, if there is one."""
        window = self._segmenter.speculative_window
        if self._speculative and self._speculative.window is not window:
            self._speculative.cancel()
            self._speculative = None
        if window and not self._speculative:
            self._speculative = part = _PendingText(window)
            part.pending = self._submit(part)

    def _submit(self, part: _PendingText) -> Pending | None:
        """Queue a window; return None if too many wait."""
        hints = self._hints
        request = Request(
            part.window, names=hints.names, words=hints.words, language=hints.language,
            search=True, room=None,
        )  # fmt: skip
        return self._hooks.submit(request, part.deliver)

    async def _transcribe(self, found: list[Window | Discarded]) -> None:
        """Have windows transcribed, in order; wait while too many of this request are queued."""
        for window in found:
            ahead, self._speculative = self._speculative, None
            if not isinstance(window, Window) or not ahead or ahead.window.id != window.id:
                if ahead:
                    ahead.cancel()
                ahead = None
            if not isinstance(window, Window):
                continue
            part = ahead or _PendingText(window)
            part.window = window
            while len(self._queue) >= WAITING:
                await self._take_text()
            while part.pending is None:
                part.pending = self._submit(part)
                if part.pending is None:
                    await asyncio.sleep(RETRY_S)
            self._queue.append(part)

    async def _take_text(self) -> None:
        """Wait for the oldest window's text and add it. Raises RequestError."""
        part = self._queue[0]
        result = await part.result
        self._queue.popleft()
        if isinstance(result, Exception):
            raise RequestError("failed", "the sound could not be transcribed; see the journal")
        result, reason = self._gates.apply(part.window, result)
        if reason:
            return
        self.language = result.language
        if self._hooks.keep:
            queue_ms = 1000 * (time.monotonic() - part.queued_s)
            self._hooks.keep(_date_back(part.window), result, queue_ms)
        unspaced = is_unspaced(self.text[-1:] + result.text[:1])
        piece = result.text if unspaced or not self.text else " " + result.text
        only = not self.text
        self.text += piece
        figures = ("language", "avg_logprob", "compression_ratio", "no_speech_prob")
        start_s = part.window.start_s - self._began_s
        words = [word.as_json(start_s) for word in result.words]
        end_s = min(part.window.speech_end_s - self._began_s, self._received / self.form.rate)
        found = {
            "text": piece,
            "start_s": round(start_s, 3),
            "end_s": round(end_s, 3),
            **{name: getattr(result, name) for name in figures},
            "words": words,
        }
        if self._first:
            self.new_texts.append(self._first[0])
            self._first = None
        acting = self._hooks.text_to_act_on(part.window, result) if self._hints.acts else piece
        if only and acting != piece:
            self._first = found, acting
        else:
            self.new_texts.append(found)


def _date_back(window: Window) -> Window:
    """Return the window dated by when its sound arrived: sound that arrives faster than it was
    spoken would end in the future."""
    ahead_s = max(0.0, window.speech_end_s - time.monotonic())
    return replace(
        window, start_s=window.start_s - ahead_s, speech_end_s=window.speech_end_s - ahead_s
    )
