"""Frames of speech: those kept while idle, and the open utterance with its windows."""

import enum
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from appliance.capture.cuts import choose_cut
from appliance.capture.endpoint import ONSET_S, Endpoint
from appliance.capture.loudness import is_clipped, ratio_of
from appliance.capture.voice import Judgement
from appliance.records import SAMPLE_RATE, Frame, Window, new_id

PRE_ROLL_MS = 600
"""Sound that is kept from before speech was detected."""
TAIL_MS = 150
"""Silence that stays at the end of an utterance, and after which its text is computed: 5 frames.
With 7, tiny.en makes as many errors in 119 recordings."""
CUT_WITHIN_S = 3.0
"""The end of a window in which a cut may be; at most half of the window."""
EXPLAINED_DB = 9.0
"""An utterance that cancellation makes softer by this is what the loudspeakers play. In trials,
sentences of people beside a television of the same loudness lost at most 6 dB, its own at least 12.
"""


@dataclass(frozen=True, slots=True, eq=False)
class JudgedFrame:
    """A frame, the decision whether it is speech, and its power."""

    frame: Frame
    judgement: Judgement
    power: float


class Lengths(NamedTuple):
    """Lengths in samples that settings and model give."""

    hang_over: int
    overlap: int
    longest: int
    """The model's window."""


def samples_of(milliseconds: float) -> int:
    """Return the samples of so many milliseconds."""
    return int(milliseconds * SAMPLE_RATE / 1000)


class FrameBuffer:
    """Frames one after the other. One thread."""

    def __init__(self, judged: list[JudgedFrame] | None = None) -> None:
        self.judged = judged or []
        self.length = sum(len(one.frame.samples) for one in self.judged)
        """In samples."""
        self.speech_until = 0
        """Samples up to the end of the last speech."""

    def append(self, judged: JudgedFrame) -> None:
        """Add the next frame."""
        self.judged.append(judged)
        self.length += len(judged.frame.samples)
        if judged.judgement.speech:
            self.speech_until = self.length

    def keep_newest(self, samples: int) -> None:
        """Drop the oldest frames beyond this many samples."""
        while self.length > samples:
            self.drop(1)

    def drop(self, frames: int) -> None:
        """Remove the oldest frames."""
        length = sum(len(one.frame.samples) for one in self.judged[:frames])
        self.judged = self.judged[frames:]
        self.length -= length
        self.speech_until = max(0, self.speech_until - length)

    def first(self, samples: int) -> list[JudgedFrame]:
        """Return the oldest frames, as many as fit into this many samples."""
        lengths = np.cumsum([len(one.frame.samples) for one in self.judged])
        return self.judged[: int(np.searchsorted(lengths, samples, side="right"))]


class Due(enum.Enum):
    """What is due in an open utterance."""

    CUT = "it is longer than a window"
    CLOSE = "its silence is over"
    LOUDER = "a louder voice has begun"
    STEADY = "sound with little voice keeps it open"
    SPECULATE = "it may end here"


class Utterance:
    """An open utterance: the frames of its current window, with the pre-roll before them. One
    thread.

    `continues`: id of the utterance that it continues; "" if it continues none.
    """

    def __init__(self, buffer: FrameBuffer, lengths: Lengths, continues: str) -> None:
        self.id = new_id()
        self.ending_silence = lengths.hang_over
        """Samples of silence that end the utterance: the hang-over, or what was decided since the
        last speech."""
        self.speculative: Window | None = None
        """The window that ends the utterance if nobody says more."""
        self.buffer = buffer
        buffer.speech_until = buffer.speech_until or buffer.length
        self._lengths, self._continues = lengths, continues
        self._windows = 0
        """Windows so far."""
        self._repeated = 0
        """Frames that are also in the window before."""
        self._speculated = False
        """True when it was decided in this silence whether there is a speculative window."""

    @property
    def silence(self) -> int:
        """Samples since the last speech."""
        return self.buffer.length - self.buffer.speech_until

    @property
    def is_over(self) -> bool:
        """True if the silence that ends it is over."""
        return self.silence >= self.ending_silence

    def append(self, judged: JudgedFrame) -> None:
        """Add the next frame. Speech makes void what was decided in the silence before it."""
        self.buffer.append(judged)
        if judged.judgement.speech:
            self.speculative, self._speculated = None, False
            self.ending_silence = self._lengths.hang_over

    def due(self, endpoint: Endpoint) -> Due | None:
        """Return what is due after the newest frame, which `endpoint` has followed."""
        if endpoint.frames_since_louder():
            return Due.LOUDER
        if self.buffer.speech_until > self._lengths.longest:
            return Due.CUT
        if self.is_over:
            return Due.CLOSE
        if endpoint.steady():
            return Due.STEADY
        may_end = not self._speculated and self.silence >= samples_of(TAIL_MS)
        return Due.SPECULATE if may_end else None

    def speculate(self, endpoint: Endpoint) -> None:
        """Make the speculative window, unless it would be discarded."""
        self._speculated = True
        window = self._window(self._ending(), last=True)
        if not self.rejection(window, endpoint):
            self.speculative = window

    def so_far(self, endpoint: Endpoint) -> Window | None:
        """Return the window that a cut now would give, with an id of its own; None in silence, and
        while it is too short to be speech."""
        frames = self.buffer.first(self._lengths.longest)
        if self.silence or len(frames) <= self._repeated:
            return None
        window = self._window(frames, last=False)
        return None if self.rejection(window, endpoint) else window

    def cut(self, noise: float) -> Window:
        """Return the frames up to the quietest point near the window's end, and go on with the
        others. `noise` is its power."""
        longest, frames = self._lengths.longest, self.buffer.judged
        search_s = min(CUT_WITHIN_S, longest / SAMPLE_RATE / 2)
        first = len(self.buffer.first(longest - int(search_s * SAMPLE_RATE)))
        first = max(first, self._repeated + 1)  # at least one new frame
        most = self._lengths.overlap // len(frames[0].frame.samples)
        powers = np.array([judged.power for judged in frames])
        last = len(self.buffer.first(longest))
        cut = choose_cut(powers, noise, first, last, (most // 2, most))
        window = self._window(frames[: cut.end], last=False, flags=("cut_at_window",))
        self._windows += 1
        self.buffer.drop(cut.begin)
        self._repeated = cut.end - cut.begin
        return window

    def end_before_voice(self, frames: int) -> None:
        """Take the newest frames, and what may be the begin of their first word, for another
        utterance."""
        length_s = len(self.buffer.judged[-1].frame.samples) / SAMPLE_RATE
        left = len(self.buffer.judged) - frames - round(ONSET_S / length_s)
        length = sum(len(judged.frame.samples) for judged in self.buffer.judged[: max(0, left)])
        self.buffer.speech_until = max(0, length - samples_of(TAIL_MS))

    def close(self, *flags: str) -> tuple[Window, FrameBuffer]:
        """Return the last window, with a short tail, and the frames after it."""
        frames = self._ending()
        window = self._window(frames, last=True, flags=flags)
        if self.speculative and np.array_equal(self.speculative.samples, window.samples):
            window = replace(window, id=self.speculative.id)
        return window, FrameBuffer(self.buffer.judged[len(frames) :])

    def rejection(self, window: Window, endpoint: Endpoint) -> str:
        """Return why an utterance that has only this window is no speech of a person; "" if it is,
        or has others."""
        if window.index > 1:
            return ""
        recorded = left = 0.0
        for judged in self.buffer.first(len(window.samples)):
            before = judged.frame.recorded_power
            recorded += judged.power if before is None else before
            left += judged.power
        is_reference = recorded >= left * ratio_of(EXPLAINED_DB)
        return "reference" if is_reference else endpoint.rejection(window)

    def _ending(self) -> list[JudgedFrame]:
        """The frames of the last window, if the utterance ends now."""
        buffer = self.buffer
        end = min(buffer.speech_until + samples_of(TAIL_MS), self._lengths.longest, buffer.length)
        return buffer.judged[: max(len(buffer.first(end)), self._repeated + 1)]

    def _window(
        self, frames: list[JudgedFrame], *, last: bool, flags: tuple[str, ...] = ()
    ) -> Window:
        """The frames as the next window; speech in repeated frames counts for the one before."""
        samples = np.concatenate([judged.frame.samples for judged in frames])
        new = frames[self._repeated :]
        speech = [judged.frame.end_s for judged in new if judged.judgement.speech]
        if any(judged.frame.after_gap for judged in frames[1:]):
            flags += ("gap",)
        if is_clipped(samples):
            flags += ("clipped",)
        repeated = sum(len(judged.frame.samples) for judged in frames[: self._repeated])
        return Window(
            utterance_id=self.id,
            index=self._windows + 1,
            last=last,
            samples=samples,
            start_s=frames[0].frame.start_s,
            speech_end_s=speech[-1] if speech else frames[-1].frame.end_s,
            voiced_s=sum(judged.judgement.voiced_s for judged in new),
            flags=flags,
            overlap_s=repeated / SAMPLE_RATE,
            continues=self._continues,
        )
