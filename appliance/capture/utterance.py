"""Frames of speech: those kept while idle, and the open utterance with its windows and their cuts.

Speech that is longer than a window is cut at the quietest point near the window's end. The next
window repeats a little of it, unless the cut is in a pause.
"""

import enum
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from appliance.capture.endpoint import LOUD_DB, NEAR_DB, NOISE_DB, ONSET_S, Endpoint
from appliance.capture.frames import FRAME_SAMPLES
from appliance.capture.loudness import decibels, is_clipped, power_of, quantile, ratio_of
from appliance.capture.voice import Judgement
from appliance.records import SAMPLE_RATE, Frame, Samples, Window, new_id

Powers = NDArray[np.float64]
"""(n,) float64, the power of each frame."""

PRE_ROLL_MS = 600
"""Sound that is kept from before speech was detected."""
TAIL_MS = 150
"""Silence that stays at the end of an utterance, and after which its text is computed: 5 frames.
With 7, tiny.en makes as many errors in 119 recordings."""
CUT_WITHIN_S = 3.0
"""The end of a window in which a cut may be; at most half of the window."""
CUT_FRAMES = 2
"""Frames on either side of a cut whose mean level counts: 120 ms, longer than a stop consonant."""
LOUD_SHARE = 0.9
"""The level of speech is the power that this share of its frames does not reach."""
SURELY_BELOW_DB = 25.0
"""Sound this far below speech is a pause, whatever the floor: for 120 ms, that is between words."""
EXPLAINED_DB = 9.0
"""An utterance that cancellation makes softer by this is what the loudspeakers play. In trials,
sentences of people beside a television of the same loudness lost at most 6 dB, its own at least 12.
"""


class Cut(NamedTuple):
    """Indices of frames: the window has those before `end`, the next one those from `begin` on."""

    end: int
    begin: int


def choose_cut(
    powers: Powers, floor: float, first: int, last: int, overlap: tuple[int, int]
) -> Cut:
    """Return the quietest cut that leaves `first` to `last` frames.

    In a pause, nothing is repeated. Otherwise the next window begins at the quietest point that is
    `overlap` (least, most) frames earlier, but not in the first half of this window.
    """
    end = quietest(powers, first, last)
    least, most = overlap
    if not most or is_pause(powers, end, floor):
        return Cut(end, end)
    earliest = max(end - most, end // 2)
    return Cut(end, quietest(powers, earliest, max(earliest, end - least)))


def quietest(powers: Powers, first: int, last: int) -> int:
    """Return the index from `first` to `last` around which the sound is softest, the latest of
    equal ones."""
    levels = [_around(powers, index) for index in range(first, last + 1)]
    return last - int(np.argmin(levels[::-1]))


def split_sound(samples: Samples, longest: int) -> list[Samples]:
    """Return (n,) int16 in parts of at most `longest` samples, cut where their second half is
    softest."""
    parts = []
    while len(samples) > longest:
        frames = samples[: longest // FRAME_SAMPLES * FRAME_SAMPLES].reshape(-1, FRAME_SAMPLES)
        powers = np.array([power_of(frame) for frame in frames])
        cut = quietest(powers, len(powers) // 2, len(powers) - 1) * FRAME_SAMPLES
        parts.append(samples[:cut])
        samples = samples[cut:]
    return [*parts, samples]


def is_pause(powers: Powers, index: int, floor: float) -> bool:
    """True if nobody speaks around a frame, by its level.

    A level that is further below the floor than noise varies shows that the floor is too high:
    nobody has paused lately.
    """
    level_db = decibels(_around(powers, index))
    speech_db = decibels(quantile(powers, LOUD_SHARE))
    is_at_floor = -NOISE_DB <= level_db - decibels(floor) <= NEAR_DB
    return level_db <= speech_db - (LOUD_DB if is_at_floor else SURELY_BELOW_DB)


def _around(powers: Powers, index: int) -> float:
    return float(powers[max(0, index - CUT_FRAMES) : index + CUT_FRAMES].mean())


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

    def __init__(self, frames: list[JudgedFrame] | None = None) -> None:
        self.frames = frames or []
        self.length = sum(len(judged.frame.samples) for judged in self.frames)
        """In samples."""
        self.speech_until = 0
        """Samples up to the end of the last speech."""

    def append(self, judged: JudgedFrame) -> None:
        """Add the next frame."""
        self.frames.append(judged)
        self.length += len(judged.frame.samples)
        if judged.judgement.speech:
            self.speech_until = self.length

    def keep_newest(self, samples: int) -> None:
        """Drop the oldest frames beyond this many samples."""
        while self.length > samples:
            self.drop(1)

    def drop(self, frames: int) -> None:
        """Remove the oldest frames."""
        length = sum(len(judged.frame.samples) for judged in self.frames[:frames])
        self.frames = self.frames[frames:]
        self.length -= length
        self.speech_until = max(0, self.speech_until - length)

    def first(self, samples: int) -> list[JudgedFrame]:
        """Return the oldest frames, as many as fit into this many samples."""
        lengths = np.cumsum([len(judged.frame.samples) for judged in self.frames])
        return self.frames[: int(np.searchsorted(lengths, samples, side="right"))]


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

    def __init__(self, frames: FrameBuffer, lengths: Lengths, continues: str) -> None:
        self.id = new_id()
        self.wait = lengths.hang_over
        """Samples of silence that end the utterance: the hang-over, or what was decided since the
        last speech."""
        self.speculative: Window | None = None
        """The window that ends the utterance if nobody says more."""
        self.frames = frames
        frames.speech_until = frames.speech_until or frames.length
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
        return self.frames.length - self.frames.speech_until

    @property
    def is_over(self) -> bool:
        """True if the silence that ends it is over."""
        return self.silence >= self.wait

    def append(self, judged: JudgedFrame) -> None:
        """Add the next frame. Speech makes void what was decided in the silence before it."""
        self.frames.append(judged)
        if judged.judgement.speech:
            self.speculative, self._speculated, self.wait = None, False, self._lengths.hang_over

    def due(self, endpoint: Endpoint) -> Due | None:
        """Return what is due after the newest frame, which `endpoint` has followed."""
        if endpoint.louder_for():
            return Due.LOUDER
        if self.frames.speech_until > self._lengths.longest:
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
        if not self.verdict(window, endpoint):
            self.speculative = window

    def so_far(self, endpoint: Endpoint) -> Window | None:
        """Return the window that a cut now would give, with an id of its own; None in silence, and
        while it is too short to be speech."""
        frames = self.frames.first(self._lengths.longest)
        if self.silence or len(frames) <= self._repeated:
            return None
        window = self._window(frames, last=False)
        return None if self.verdict(window, endpoint) else window

    def cut(self, noise: float) -> Window:
        """Return the frames up to the quietest point near the window's end, and go on with the
        others. `noise` is its power."""
        longest, frames = self._lengths.longest, self.frames.frames
        search_s = min(CUT_WITHIN_S, longest / SAMPLE_RATE / 2)
        first = len(self.frames.first(longest - int(search_s * SAMPLE_RATE)))
        first = max(first, self._repeated + 1)  # at least one new frame
        most = self._lengths.overlap // len(frames[0].frame.samples)
        powers = np.array([judged.power for judged in frames])
        last = len(self.frames.first(longest))
        cut = choose_cut(powers, noise, first, last, (most // 2, most))
        window = self._window(frames[: cut.end], last=False, flags=("cut_at_window",))
        self._windows += 1
        self.frames.drop(cut.begin)
        self._repeated = cut.end - cut.begin
        return window

    def end_before_voice(self, frames: int) -> None:
        """Take the newest frames, and what may be the begin of their first word, for another
        utterance."""
        length_s = len(self.frames.frames[-1].frame.samples) / SAMPLE_RATE
        left = len(self.frames.frames) - frames - round(ONSET_S / length_s)
        length = sum(len(judged.frame.samples) for judged in self.frames.frames[: max(0, left)])
        self.frames.speech_until = max(0, length - samples_of(TAIL_MS))

    def close(self, *flags: str) -> tuple[Window, FrameBuffer]:
        """Return the last window, with a short tail, and the frames after it."""
        frames = self._ending()
        window = self._window(frames, last=True, flags=flags)
        if self.speculative and np.array_equal(self.speculative.samples, window.samples):
            window = replace(window, id=self.speculative.id)
        return window, FrameBuffer(self.frames.frames[len(frames) :])

    def verdict(self, window: Window, endpoint: Endpoint) -> str:
        """Return why an utterance that has only this window is no speech of a person; "" if it is,
        or has others."""
        if window.index > 1:
            return ""
        recorded = left = 0.0
        for judged in self.frames.first(len(window.samples)):
            before = judged.frame.recorded_power
            recorded += judged.power if before is None else before
            left += judged.power
        is_reference = recorded >= left * ratio_of(EXPLAINED_DB)
        return "reference" if is_reference else endpoint.verdict(window)

    def _ending(self) -> list[JudgedFrame]:
        """The frames of the last window, if the utterance ends now."""
        frames = self.frames
        end = min(frames.speech_until + samples_of(TAIL_MS), self._lengths.longest, frames.length)
        return frames.frames[: max(len(frames.first(end)), self._repeated + 1)]

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
