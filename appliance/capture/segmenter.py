"""Frames -> utterances -> windows of at most the model's length, cut at the quietest place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from appliance.capture.voice import Detector, Judgement
from appliance.records import SAMPLE_RATE, Discarded, Frame, Samples, Window, new_id
from appliance.settings import SegmenterSettings

TAIL_MS = 300
"""Of the silence that ended an utterance so much is left in it."""
CUT_WITHIN_S = 3.0
"""A cut is looked for in so much of the window's end, at most half of it."""
CUT_FRAMES = 2
"""Loudness at a cut is taken over so many frames on either side: 120 ms, a pause and no stop."""
GAP_ENDS_S = 0.5
"""A longer hole in the sound ends the utterance; a shorter one is flagged."""
CLIPPED_SHARE = 0.001
"""More samples than this at full scale are heard as distortion."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A frame and what it was taken for."""

    frame: Frame
    judgement: Judgement


class Segmenter:
    """Cuts speech out of silence. One thread; what it returns is decided and never taken back.

    While idle it keeps the newest `pre_roll_ms`. From the frame that opens an utterance on it
    keeps everything, until `hang_over_ms` without speech, or until speech reaches past `window_s`:
    then the quietest place is cut and the utterance goes on in the next window.
    """

    def __init__(self, voice: Detector, settings: SegmenterSettings, window_s: float) -> None:
        self._voice = voice
        self._pre_roll = _samples(settings.pre_roll_ms)
        self._hang_over = _samples(settings.hang_over_ms)
        self._min_speech_s = settings.min_speech_ms / 1000
        self._longest = int(window_s * SAMPLE_RATE)
        self._heard: list[Heard] = []
        self._length = 0
        """Samples in `_heard`."""
        self._speech_until = 0
        """Samples in `_heard` up to the end of the last speech."""
        self._utterance_id = ""
        self._windows = 0
        """How many the open utterance has given so far."""

    @property
    def speaking(self) -> bool:
        """True while an utterance is open."""
        return bool(self._utterance_id)

    def push(self, frame: Frame) -> list[Window | Discarded]:
        """What the next frame decides: mostly nothing, else a window or a discarded utterance."""
        found: list[Window | Discarded] = []
        if self._heard and abs(frame.start_s - self._heard[-1].frame.end_s) >= GAP_ENDS_S:
            found += self.flush(interrupted=True)
        heard = Heard(frame, self._voice.push(frame))
        if not self.speaking:
            self._keep_newest(self._pre_roll)
        self._append(heard)
        if not self.speaking:
            if heard.judgement.opens:
                self._utterance_id = new_id()
                self._speech_until = self._speech_until or self._length
        elif self._speech_until > self._longest:
            found.append(self._cut())
        elif self._length - self._speech_until >= self._hang_over:
            found.append(self._close())
        return found

    def flush(self, *, interrupted: bool = False) -> list[Window | Discarded]:
        """The open utterance, if any, as it is: the source ended or (`interrupted`) was lost."""
        found = [self._close("interrupted" if interrupted else "")] if self.speaking else []
        self._keep_newest(0)
        self._voice.reset()
        return found

    def _append(self, heard: Heard) -> None:
        self._heard.append(heard)
        self._length += len(heard.frame.samples)
        if heard.judgement.speech:
            self._speech_until = self._length

    def _keep_newest(self, samples: int) -> None:
        """Drops the oldest frames beyond so many samples."""
        surplus = 0
        left = self._length
        while left > samples:
            left -= len(self._heard[surplus].frame.samples)
            surplus += 1
        self._take(surplus)

    def _take(self, frames: int) -> list[Heard]:
        """Removes and returns the oldest frames."""
        taken, self._heard = self._heard[:frames], self._heard[frames:]
        length = sum(len(one.frame.samples) for one in taken)
        self._length -= length
        self._speech_until = max(0, self._speech_until - length)
        return taken

    def _whole_frames(self, samples: int) -> int:
        """How many of the oldest frames fit into so many samples."""
        lengths = np.cumsum([len(one.frame.samples) for one in self._heard])
        return int(np.searchsorted(lengths, samples, side="right"))

    def _cut(self) -> Window:
        """The utterance up to the quietest place near the window's end; it goes on after that."""
        last = self._whole_frames(self._longest)
        search_s = min(CUT_WITHIN_S, self._longest / SAMPLE_RATE / 2)
        first = self._whole_frames(self._longest - int(search_s * SAMPLE_RATE))
        at = quietest([one.frame.samples for one in self._heard], first, last)
        self._windows += 1
        return self._window(self._take(at), last=False, flags=("cut_at_window",))

    def _close(self, flag: str = "") -> Window | Discarded:
        """The rest of the utterance with a short tail; silence after it is the next pre-roll."""
        end = min(self._speech_until + _samples(TAIL_MS), self._longest, self._length)
        heard = self._take(self._whole_frames(end))
        self._windows += 1
        window = self._window(heard, last=True, flags=(flag,) if flag else ())
        self._utterance_id, self._windows, self._speech_until = "", 0, 0
        if window.index == 1 and window.voiced_s < self._min_speech_s:
            return Discarded("too_short", window.utterance_id, window.duration_s)
        return window

    def _window(self, heard: list[Heard], *, last: bool, flags: tuple[str, ...]) -> Window:
        samples = np.concatenate([one.frame.samples for one in heard])
        speech = [one.frame.end_s for one in heard if one.judgement.speech]
        if any(one.frame.after_gap for one in heard[1:]):
            flags += ("gap",)
        if is_clipped(samples):
            flags += ("clipped",)
        return Window(
            utterance_id=self._utterance_id,
            index=self._windows,
            last=last,
            samples=samples,
            start_s=heard[0].frame.start_s,
            speech_end_s=speech[-1] if speech else heard[-1].frame.end_s,
            voiced_s=sum(one.judgement.voiced_s for one in heard),
            flags=flags,
        )


def quietest(frames: list[Samples], first: int, last: int) -> int:
    """How many frames to leave before a cut: `first` to `last`, where the sound is softest there.

    Of equal places the latest. A constant offset (DC) counts as silence.
    """
    power = np.array([np.var(frame, dtype=np.float64) for frame in frames])
    around = [
        power[max(0, place - CUT_FRAMES) : place + CUT_FRAMES].mean()
        for place in range(first, last + 1)
    ]
    return last - int(np.argmin(around[::-1]))


def is_clipped(samples: Samples) -> bool:
    """True when more than CLIPPED_SHARE of the samples are at full scale."""
    full = np.count_nonzero((samples == 32767) | (samples == -32768))
    return bool(full > CLIPPED_SHARE * len(samples))


def _samples(milliseconds: float) -> int:
    return int(milliseconds * SAMPLE_RATE / 1000)
