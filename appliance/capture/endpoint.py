"""Finds the end of speech by level, where the voice detector is late, and rejects what is no
speech.

The detector's score falls slowly: it finds the end 100 to 250 ms after the last word, and later if
reverberation, a breath or a click follows. `Endpoint.refine` overrules it: sound at the level of
the noise, or far softer than the voice while the score falls, is no speech; nor is sound at the
level that was usual before somebody spoke up, such as a television.

If the detector still finds speech without end, two things close an utterance: its level has sunk to
that of the noise (a running estimate), and the detector is known to take this noise for speech; or
little of the last seconds was voiced. An utterance of one window that was no louder than the noise,
or hardly voiced, is discarded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from appliance.capture.loudness import ratio_of
from appliance.capture.voice import Judgement
from appliance.config import SegmenterSettings
from appliance.records import SAMPLE_RATE, Window

SMOOTHED_S = 0.3
"""The level is the mean over this: longer than a stop consonant or the dip of a syllable."""
KEPT_S, PARTS = 12.0, 24
"""The floor is the lowest level of this time, in parts (minimum statistics, Martin 2001). Speech
without a breath for longer looks like noise by level, but never ends by level alone."""
KNOWN_PARTS = 6
"""Parts after which the floor is known: 3 s, longer than any word."""
SMOOTHED, PART = int(SMOOTHED_S * SAMPLE_RATE), int(KEPT_S / PARTS * SAMPLE_RATE)
"""In samples."""
QUIETEST = 1.0
"""Lowest noise floor, as power (mean square of int16): -90 dBFS."""


def loudest(powers: Sequence[float], frames: int) -> float:
    """Return the greatest mean power of so many frames in a row, or of all if there are fewer."""
    run = min(frames, len(powers))
    return max(0.0, float(np.convolve(powers, np.ones(run) / run, "valid").max()))


class NoiseFloor:
    """Running level and noise floor of the sound. One thread."""

    def __init__(self) -> None:
        self.level = 0.0
        """Mean power of the last SMOOTHED_S."""
        self._newest: deque[tuple[float, int]] = deque()
        """Energy and samples of the frames in `level`."""
        self._energy, self._samples = 0.0, 0
        self._lowest: deque[float] = deque(maxlen=PARTS)
        self._highest: deque[float] = deque(maxlen=PARTS)
        self._part_left = 0
        self.power = QUIETEST
        """The noise floor, at least QUIETEST."""
        self.usual = 0.0
        """The usual loudness here: median of the highest levels of the parts of KEPT_S; 0 while
        unknown."""

    @property
    def known(self) -> bool:
        """True once there was enough sound to tell noise from speech in it."""
        return len(self._lowest) >= KNOWN_PARTS

    def push(self, power: float, samples: int) -> None:
        """Take in a frame of so many samples."""
        self._newest.append((power * samples, samples))
        self._energy += power * samples
        self._samples += samples
        whole = self._samples >= SMOOTHED
        while self._samples > SMOOTHED:
            gone = self._newest.popleft()
            self._energy -= gone[0]
            self._samples -= gone[1]
        self.level = max(0.0, self._energy / self._samples)
        if not whole:
            return
        if self._part_left <= 0:
            self._part_left = PART
            self.usual = median(self._highest) if self.known else 0.0
            self._highest.append(self.level)
            self._lowest.append(self.level)
            self.power = max(QUIETEST, min(self._lowest))
        elif self.level < self._lowest[-1]:
            self._lowest[-1] = self.level
            self.power = max(QUIETEST, min(self.power, self.level))
        self._highest[-1] = max(self._highest[-1], self.level)
        self._part_left -= samples

    def quiet(self) -> float:
        """Return the quantile QUIET_SHARE of the highest levels of the parts of KEPT_S; 0 while
        unknown."""
        return sorted(self._highest)[int(QUIET_SHARE * len(self._highest))] if self.known else 0.0

    def reset(self) -> None:
        """Forget everything: a gap follows."""
        self._newest.clear()
        self._energy, self._samples = 0.0, 0
        self._lowest.clear()
        self._highest.clear()
        self._part_left, self.power, self.usual = 0, QUIETEST, 0.0


SUNK = ratio_of(8.0)
"""A level has sunk if it is this far below the utterance's loudest; a voice that was never this
much louder than the noise is left to the detector."""
NOTHING = ratio_of(2.0)
"""Sound that was never this much above the noise is only noise: a voice at 0 dB adds 3 dB."""
SURELY_NOISE = ratio_of(3.0)
"""Sound less than this above the floor is only noise, or nearly."""
FOOLED_S, FOOLED_SHARE = 1.0, 0.6
"""The detector is fooled by the noise here if it took that share of about this much of it for
speech. In hiss, which does not fool it, a weak word must not end an utterance."""
ABOVE_USUAL, AT_USUAL, BELOW_VOICE = ratio_of(10.0), ratio_of(3.0), ratio_of(8.0)
"""A voice that is the first above the usual loudness (a television, for example) has ended when the
level is within the second of that and the third below the voice, whatever the score."""
STANDS_OUT, QUIET_SHARE = ratio_of(6.0), 0.2
"""A voice stands out if it is this much louder than the quietest share of the last KEPT_S: people
pause between sentences, a television does not. With shares of 0.25 and 0.2, sentences of
tests/speech with 1 s between them stand out in 28 % and 70 %. In 54 recordings beside a television
voices do so 119 and 121 times."""
FLOOR_MARGIN = ratio_of(10.0)
"""An utterance in noise that the detector takes for speech ends when its level is within this of
the noise floor."""
STEADY_S, STEADY_SLACK_S = 5.0, 0.05
"""A stretch of this length, less the slack (longer than any frame), ends an utterance if ..."""
MIN_VOICED_SHARE = 0.2
"""... less than this share of it is voice. One window with less than a quarter of that is no
speech."""
HEARD, CLEAR = ratio_of(8.0), ratio_of(14.0)
"""The end of a voice that is CLEAR above the noise is found by level alone; from HEARD on, the
score must fade, too, because words sink into the noise."""
AT_NOISE = ratio_of(3.0)
"""Two frames within this of the floor are only noise, which varies this much ..."""
NEAR_NOISE, FALLEN, SURE = ratio_of(6.0), ratio_of(14.0), 0.99
"""... or reverberation: within the first of the floor, the second below the voice, and a score
below the third."""
FADING, UNSURE, RISING = 0.9, 0.5, 0.05
"""Whatever the floor, speech has ended if its score is below FADING and does not rise by more than
RISING per frame, or is below UNSURE; and if ..."""
SOFT, SURE_WITHIN_S = ratio_of(12.0), 0.5
"""... the sound is the first below the voice, and the score has been below FADING for at most the
second: a voice that the detector is unsure of all along is left to it."""


class Endpoint:
    """Follows the level and the voice of an open utterance. One thread."""

    def __init__(self, settings: SegmenterSettings, floor: NoiseFloor) -> None:
        self._settings, self._floor = settings, floor
        self._power = self._score = 0.0
        """Of the last frame."""
        self._unsure_s = 0.0
        """How long the score has been below FADING."""
        self._low_enough_s = settings.hang_over_ms / 1000 - SMOOTHED_S
        self._loudest = 0.0
        self._behind = 0.0
        """The usual loudness before a louder voice spoke up in the open utterance; 0: none did."""
        self._low_s = 0.0
        """How long the level has been at the floor."""
        self._recent: deque[tuple[float, float]] = deque()
        """Length and voiced time, s, of each frame of the last STEADY_S."""
        self._recent_s = self._voiced_s = 0.0
        self._fooled = 0.0
        """Share of the noise that the detector takes for speech."""

    def open(self, loudest: float) -> None:
        """Begin an utterance; `loudest` is the greatest level in its pre-roll."""
        self._loudest, self._low_s, self._behind = loudest, 0.0, 0.0
        self._recent.clear()
        self._recent_s = self._voiced_s = 0.0

    def refine(self, judgement: Judgement, power: float, length_s: float) -> Judgement:
        """Return the detector's judgement of a frame, as no speech if the level says that speech is
        over.

        Call it once for each frame, after `open`. Three rules, each sufficient: the sound is far
        softer than the voice while the score falls; it is at the noise floor, or reverberation just
        above it; it is back at what was usual before a louder voice spoke up.
        """
        recent, score = (self._power + power) / 2, self._score  # two frames: clicks do not count
        self._power, self._score = power, judgement.score
        fading = judgement.score < FADING
        self._unsure_s = self._unsure_s + length_s if fading else 0.0
        if not judgement.speech:
            return judgement
        # 1: the detector is losing the voice, and the sound is far below it
        over = judgement.score <= score + RISING or judgement.score < UNSURE
        over = over and fading and self._unsure_s <= SURE_WITHIN_S
        over = over and recent * SOFT <= self._loudest
        # 2: the sound is at the noise floor, which a louder voice stood out from
        noise = self._floor.power
        if not over and self._floor.known and self._loudest >= noise * HEARD:
            over = recent <= noise * AT_NOISE and (fading or self._loudest >= noise * CLEAR)
            tail = recent <= noise * NEAR_NOISE and recent * FALLEN <= self._loudest
            over = over or (tail and judgement.score < SURE)
        # 3: a television goes on behind a voice that has ended
        if not over and self._behind:
            level = self._floor.level
            over = level <= self._behind * AT_USUAL and level * BELOW_VOICE <= self._loudest
        return replace(judgement, speech=False) if over else judgement

    def follow(self, judgement: Judgement, length_s: float) -> None:
        """Take in a frame, of so many seconds, of an open utterance."""
        level, usual = self._floor.level, self._floor.usual
        self._loudest = max(self._loudest, level)
        if usual and not self._behind and level >= usual * ABOVE_USUAL:
            self._behind = usual
        near = level <= self._floor.power * FLOOR_MARGIN
        low = near and level * SUNK <= self._loudest
        self._low_s = self._low_s + length_s if low else 0.0
        self._recent.append((length_s, judgement.voiced_s))
        self._recent_s += length_s
        self._voiced_s += judgement.voiced_s
        while self._recent_s > STEADY_S:
            gone_s, voiced_s = self._recent.popleft()
            self._recent_s -= gone_s
            self._voiced_s -= voiced_s

    def learn(self, judgement: Judgement, length_s: float) -> None:
        """Learn from a frame that surely is noise whether the detector takes it for speech."""
        if self._floor.level <= self._floor.power * SURELY_NOISE:
            self._fooled += length_s / FOOLED_S * (judgement.speech - self._fooled)

    def stands_out(self) -> bool:
        """True unless it has been as loud as this voice all the time: then something talks without
        end, and its pauses end nothing early."""
        return self._loudest >= self._floor.quiet() * STANDS_OUT

    def sunk(self) -> bool:
        """True if the level has been at the noise for the hang-over, and the detector is fooled by
        this noise. The next frame may open an utterance at once: better a television's voice than a
        lost sentence."""
        return self._fooled >= FOOLED_SHARE and self._low_s > self._low_enough_s

    def steady(self) -> bool:
        """True if the utterance is kept open by sound with little voice in it."""
        full = self._recent_s >= STEADY_S - STEADY_SLACK_S
        return full and self._voiced_s < MIN_VOICED_SHARE * self._recent_s

    def verdict(self, window: Window) -> str:
        """Return why an utterance of this one window is no speech (too_short, no_speech); "" if it
        is."""
        if window.voiced_s < self._settings.min_speech_ms / 1000:
            return "too_short"
        noise = self._floor.power * NOTHING if self._floor.known else 0.0
        if self._loudest <= noise:
            return "no_speech"
        if window.voiced_s < MIN_VOICED_SHARE / 4 * window.duration_s:
            return "no_speech"
        return ""

    def reset(self) -> None:
        """Forget everything: a gap follows."""
        self._fooled = 0.0
