"""Frames to utterances to windows of at most the model's length.

Speech that is longer than a window is cut at the quietest point near the window's end. The next
window repeats a little of it, unless the cut is in a pause.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from appliance.capture.endpoint import SMOOTHED, Endpoint, NoiseFloor, loudest
from appliance.capture.frames import FRAME_SAMPLES, is_clipped, power_of, quantile, ratio_of
from appliance.capture.voice import ASLEEP, NOISE_SCORE, Detector, Judgement
from appliance.config import SegmenterSettings
from appliance.records import SAMPLE_RATE, Discarded, Frame, Samples, Window, new_id

Powers = NDArray[np.float64]
"""(n,) float64, the power of each frame."""

PRE_ROLL_MS = 600
"""Sound that is kept from before speech was detected."""
TAIL_MS = 150
"""Silence that stays at the end of an utterance, and after which its text is computed: 5 frames.
With 7, tiny.en makes as many errors in 119 recordings."""
RESUMED_WITHIN_S = 0.8
"""Speech that starts within this after an utterance that was closed early continues it."""
CUT_WITHIN_S = 3.0
"""The end of a window in which a cut may be; at most half of the window."""
GAP_ENDS_S = 0.5
"""A longer gap in the sound ends the utterance; a shorter one is flagged."""
CUT_FRAMES = 2
"""Frames on either side of a cut whose mean level counts: 120 ms, longer than a stop consonant."""
LOUD_SHARE = 0.9
"""The level of speech is the power that this share of its frames does not reach."""
PAUSE_OVER_FLOOR_DB, PAUSE_UNDER_SPEECH_DB = 6.0, 10.0
"""A pause is within the first of the noise floor, and at least the second below speech ..."""
BELOW_FLOOR_DB = 3.0
"""A level further below the floor shows that the floor is too high: nobody has paused lately."""
SURELY_UNDER_SPEECH_DB = 25.0
"""... or this far below speech, whatever the floor: for 120 ms, that is between two words."""
EXPLAINED = ratio_of(9.0)
"""An utterance that cancellation makes softer by this is what the loudspeakers play. In trials,
sentences of people beside a television of the same loudness lost at most 6 dB, its own at least 12.
"""


@dataclass(frozen=True, slots=True)
class Cut:
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
    """True if nobody speaks around a frame, by its level."""
    level, speech = _around(powers, index), quantile(powers, LOUD_SHARE)
    if level * ratio_of(SURELY_UNDER_SPEECH_DB) <= speech:
        return True
    near = ratio_of(-BELOW_FLOOR_DB) <= level / floor <= ratio_of(PAUSE_OVER_FLOOR_DB)
    return near and level * ratio_of(PAUSE_UNDER_SPEECH_DB) <= speech


def _around(powers: Powers, index: int) -> float:
    return float(powers[max(0, index - CUT_FRAMES) : index + CUT_FRAMES].mean())


@dataclass(frozen=True, slots=True, eq=False)
class JudgedFrame:
    """A frame, the decision whether it is speech, and its power."""

    frame: Frame
    judgement: Judgement
    power: float


class Segmenter:
    """Cuts speech out of silence. One thread; a returned window is final.

    While idle it keeps the newest PRE_ROLL_MS. From the frame that opens an utterance it keeps
    everything until `hang_over_ms` without speech (see also `Endpoint`), or until speech is longer
    than `window_s`: then it cuts at the quietest point, and the utterance continues in the next
    window.
    """

    def __init__(self, voice: Detector, settings: SegmenterSettings, window_s: float) -> None:
        self._voice = voice
        self._pre_roll = _samples(PRE_ROLL_MS)
        self._hang_over = _samples(settings.hang_over_ms)
        self._wait = self._hang_over
        """Samples of silence that end the open utterance; see `expect`."""
        self._overlap = _samples(settings.overlap_ms)
        self._longest = int(window_s * SAMPLE_RATE)
        self._frames: list[JudgedFrame] = []
        self._length = 0
        """Samples in `_frames`."""
        self._speech_until = 0
        """Samples in `_frames` up to the end of the last speech."""
        self._utterance_id = ""
        self._windows = 0
        """Windows of the open utterance so far."""
        self._repeated = 0
        """Frames in `_frames` that are also in the window before."""
        self._speculative: Window | None = None
        self._speculated = False
        """True when it was decided in this silence whether there is a speculative window."""
        self._early: tuple[str, float] | None = None
        """Id and end of speech of the last utterance, if it was closed early and no speech came
        since."""
        self._continues = ""
        """Id of the utterance that the open one continues."""
        self._explained_s = self._explained_ago_s = 0.0
        """Speech of the loudspeakers since the last silence, and the time since its end."""
        self._floor = NoiseFloor()
        self._endpoint = Endpoint(settings, self._floor)

    @property
    def speaking(self) -> bool:
        """True while an utterance is open."""
        return bool(self._utterance_id)

    @property
    def alert(self) -> bool:
        """True while an utterance is open, or may be opened by what has been heard."""
        last = self._frames[-1].judgement if self._frames else ASLEEP
        return self.speaking or last.score >= NOISE_SCORE

    @property
    def utterance_id(self) -> str:
        """Id of the open utterance; empty while nobody speaks."""
        return self._utterance_id

    @property
    def closed_early(self) -> bool:
        """True if the last utterance was closed before the hang-over and no other was opened
        since."""
        return self._early is not None

    @property
    def speculative_window(self) -> Window | None:
        """The window that ends the utterance if nobody says more; there from TAIL_MS of silence
        until speech resumes or the utterance ends. A final window with the same samples has its
        id."""
        return self._speculative

    def expect(self, window_id: str, silence_ms: float) -> None:
        """End the utterance after `silence_ms` in place of `hang_over_ms`, if the speculative
        window has this id. This holds until speech resumes.

        An utterance that was closed early stays closed: what would have kept it open opens the next
        one, which `continues` it. Where somebody talks without end (a television), nothing ends
        early.
        """
        if self._speculative and self._speculative.id == window_id:
            least = _samples(TAIL_MS) if self._endpoint.stands_out() else self._hang_over
            self._wait = max(_samples(silence_ms), least)

    def close_if_due(self) -> list[Window | Discarded]:
        """Close the utterance if the silence that `expect` asked for is over, without waiting for
        the next frame."""
        return [self._close_after_silence()] if self.speaking and self._is_due() else []

    def _is_due(self) -> bool:
        return self._length - self._speech_until >= self._wait

    def _close_after_silence(self) -> Window | Discarded:
        return self._close(early=self._length - self._speech_until < self._hang_over)

    def push(self, frame: Frame) -> list[Window | Discarded]:
        """Take in the next frame; return what it completes: a window, a discarded utterance, or
        nothing."""
        found: list[Window | Discarded] = []
        # a long gap ends the utterance before this frame
        if self._frames and abs(frame.start_s - self._frames[-1].frame.end_s) >= GAP_ENDS_S:
            found += self.flush(interrupted=True)
        detected, power = self._voice.push(frame), power_of(frame.samples)
        length_s = len(frame.samples) / SAMPLE_RATE
        detected = self._leave_out_reference(frame, detected, length_s, found)
        self._floor.push(power, len(frame.samples))
        # the level may overrule the detector, but only once somebody has spoken
        judgement = detected
        if self.speaking or self.closed_early:
            judgement = self._endpoint.refine(detected, power, length_s)
        judged = JudgedFrame(frame, judgement, power)
        if not self.speaking:
            self._keep_newest(self._pre_roll)
        self._append(judged)
        self._endpoint.learn(detected, length_s)
        if not self.speaking:
            if judged.judgement.opens or self._continues_last(judged):
                self._open()
            elif detected.missed_s and not self.closed_early:
                # too unlike speech to open an utterance, and too like it to leave no trace
                found.append(Discarded("no_speech", new_id(), detected.missed_s))
            return found
        # an utterance is open: it is cut, closed, or may soon be closed
        self._endpoint.follow(judged.judgement, length_s)
        if self._speech_until > self._longest:
            found.append(self._cut())
        elif self._is_due():
            found.append(self._close_after_silence())
        elif self._endpoint.sunk():
            self._speech_until = max(0, self._length - self._hang_over)
            found.append(self._close())
        elif self._endpoint.steady():
            found.append(self._close())
        elif not self._speculated and self._length - self._speech_until >= _samples(TAIL_MS):
            self._speculated = True
            ending = self._ending()
            window = self._window(ending, self._windows + 1, last=True)
            # of later windows there is no verdict: the utterance is known to be speech
            if window.index > 1 or not self._verdict(window, ending):
                self._speculative = window
        return found

    def _leave_out_reference(
        self, frame: Frame, detected: Judgement, length_s: float, found: list[Window | Discarded]
    ) -> Judgement:
        """Return the judgement, as no speech for a frame that the reference explains. Once such
        speech is over and opened no utterance, it is `discarded`."""
        if not (frame.explained or self._explained_s):
            return detected
        if frame.explained:
            if detected.opens or detected.speech:
                self._explained_s += length_s
                self._explained_ago_s = 0.0
            detected = replace(detected, opens=False, speech=False, voiced_s=0.0, missed_s=0.0)
        self._explained_ago_s += length_s
        if self.speaking:
            self._explained_s = 0.0
        elif self._explained_s and self._explained_ago_s >= self._hang_over / SAMPLE_RATE:
            found.append(Discarded("reference", new_id(), self._explained_s))
            self._explained_s = 0.0
        return detected

    def so_far(self) -> Window | None:
        """Return the window that a cut now would give, with an id of its own; None while nobody
        speaks, and while it is too short to be speech."""
        if not self.speaking or self._speech_until < self._length:
            return None
        frames = self._frames[: self._whole_frames(self._longest)]
        if len(frames) <= self._repeated:
            return None
        window = self._window(frames, self._windows + 1, last=False)
        return None if window.index == 1 and self._verdict(window, frames) else window

    def flush(self, *, interrupted: bool = False) -> list[Window | Discarded]:
        """Close the open utterance, if any: the source ended or (`interrupted`) was lost."""
        found = [self._close("interrupted" if interrupted else "")] if self.speaking else []
        self._keep_newest(0)
        self._voice.reset()
        self._floor.reset()
        self._endpoint.reset()
        self._early = None
        return found

    def _open(self) -> None:
        self._utterance_id = new_id()
        self._speech_until = self._speech_until or self._length
        if self._early:
            utterance_id, end_s = self._early
            spoken = [judged.frame.start_s for judged in self._frames if judged.judgement.speech]
            soon = min(spoken, default=self._frames[-1].frame.start_s) - end_s <= RESUMED_WITHIN_S
            self._continues, self._early = utterance_id if soon else "", None
        frames = SMOOTHED // len(self._frames[0].frame.samples)
        self._endpoint.open(loudest([judged.power for judged in self._frames], frames))

    def _continues_last(self, judged: JudgedFrame) -> bool:
        """True for a frame that would have kept the last utterance open if it had not been closed
        early: speech within the hang-over."""
        if self._early is None or not judged.judgement.speech:
            return False
        return judged.frame.start_s - self._early[1] < self._hang_over / SAMPLE_RATE

    def _append(self, judged: JudgedFrame) -> None:
        self._frames.append(judged)
        self._length += len(judged.frame.samples)
        if judged.judgement.speech:
            self._speech_until = self._length
            self._speculative, self._speculated, self._wait = None, False, self._hang_over

    def _keep_newest(self, samples: int) -> None:
        """Drop the oldest frames beyond this many samples."""
        surplus = 0
        left = self._length
        while left > samples:
            left -= len(self._frames[surplus].frame.samples)
            surplus += 1
        self._take(surplus)

    def _take(self, frames: int) -> list[JudgedFrame]:
        """Remove and return the oldest frames."""
        taken, self._frames = self._frames[:frames], self._frames[frames:]
        length = sum(len(judged.frame.samples) for judged in taken)
        self._length -= length
        self._speech_until = max(0, self._speech_until - length)
        return taken

    def _whole_frames(self, samples: int) -> int:
        """Count the oldest frames that fit into this many samples."""
        lengths = np.cumsum([len(judged.frame.samples) for judged in self._frames])
        return int(np.searchsorted(lengths, samples, side="right"))

    def _cut(self) -> Window:
        """Cut at the quietest point near the window's end; the utterance continues."""
        last = self._whole_frames(self._longest)
        search_s = min(CUT_WITHIN_S, self._longest / SAMPLE_RATE / 2)
        first = self._whole_frames(self._longest - int(search_s * SAMPLE_RATE))
        first = max(first, self._repeated + 1)  # at least one new frame
        most = self._overlap // len(self._frames[0].frame.samples)
        powers = np.array([judged.power for judged in self._frames])
        cut = choose_cut(powers, self._floor.power, first, last, (most // 2, most))
        self._windows += 1
        frames = self._frames[: cut.end]
        window = self._window(frames, self._windows, last=False, flags=("cut_at_window",))
        self._take(cut.begin)
        self._repeated = cut.end - cut.begin
        return window

    def _close(self, flag: str = "", *, early: bool = False) -> Window | Discarded:
        """Close the utterance, with a short tail; the silence after it is the next pre-roll.

        `early`: before the end of the hang-over.
        """
        frames = self._take(len(self._ending()))
        flags = (flag,) if flag else ()
        window = self._window(frames, self._windows + 1, last=True, flags=flags)
        if self._speculative and np.array_equal(self._speculative.samples, window.samples):
            window = replace(window, id=self._speculative.id)
        self._speculative, self._speculated, self._wait = None, False, self._hang_over
        reason = self._verdict(window, frames) if window.index == 1 else ""
        self._utterance_id, self._windows, self._speech_until, self._repeated = "", 0, 0, 0
        self._continues = ""
        if reason:
            return Discarded(reason, window.utterance_id, window.duration_s)
        if early:
            self._early = window.utterance_id, window.speech_end_s
        return window

    def _verdict(self, window: Window, frames: list[JudgedFrame]) -> str:
        """Return why an utterance of this one window is no speech of a person; "" if it is."""
        recorded = left = 0.0
        for judged in frames:
            before = judged.frame.recorded_power
            recorded += judged.power if before is None else before
            left += judged.power
        if recorded >= left * EXPLAINED:
            return "reference"
        return self._endpoint.verdict(window)

    def _ending(self) -> list[JudgedFrame]:
        """The frames of the last window, if the utterance ends now."""
        end = min(self._speech_until + _samples(TAIL_MS), self._longest, self._length)
        return self._frames[: max(self._whole_frames(end), self._repeated + 1)]

    def _window(
        self, frames: list[JudgedFrame], index: int, *, last: bool, flags: tuple[str, ...] = ()
    ) -> Window:
        """The frames as a window; speech in repeated frames counts for the window before."""
        samples = np.concatenate([judged.frame.samples for judged in frames])
        new = frames[self._repeated :]
        speech = [judged.frame.end_s for judged in new if judged.judgement.speech]
        if any(judged.frame.after_gap for judged in frames[1:]):
            flags += ("gap",)
        if is_clipped(samples):
            flags += ("clipped",)
        repeated = sum(len(judged.frame.samples) for judged in frames[: self._repeated])
        return Window(
            utterance_id=self._utterance_id,
            index=index,
            last=last,
            samples=samples,
            start_s=frames[0].frame.start_s,
            speech_end_s=speech[-1] if speech else frames[-1].frame.end_s,
            voiced_s=sum(judged.judgement.voiced_s for judged in new),
            flags=flags,
            overlap_s=repeated / SAMPLE_RATE,
            continues=self._continues,
        )


def _samples(milliseconds: float) -> int:
    return int(milliseconds * SAMPLE_RATE / 1000)
