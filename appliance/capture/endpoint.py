"""Where speech ends although the detector still finds some, and whether it was speech at all.

The detector's score falls slowly: it finds the end 100 to 250 ms after the last word, and later
still where a room's tail, a breath or a click follows. What is no louder than the noise, or far
softer than the voice was while the score sinks, is no speech any more, see `Endpoint.heard`. Nor is
what is no louder than what went on before somebody spoke up: a television's voice.

Where the detector finds speech without end all the same, two things end an utterance: its level has
sunk to that of the noise (a running estimate of how loud it is when nobody speaks), which the
detector is known to take for speech; or little of the last seconds was voiced.
An utterance of one window that was no louder than the noise, or hardly voiced, is no speech.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from appliance.capture.frames import ratio_of
from appliance.capture.voice import Judgement
from appliance.config import SegmenterSettings
from appliance.records import SAMPLE_RATE, Window

SMOOTHED_S = 0.3
"""The level is the mean over so much: longer than a stop or a syllable's dip."""
KEPT_S, PARTS = 12.0, 24
"""The floor is the lowest level of so long a time (minimum statistics, Martin 2001). Who speaks
without a breath for longer is taken for noise by level alone; nothing is closed for that alone."""
KNOWN_PARTS = 6
"""3 s: no word fills them."""
SMOOTHED, PART = int(SMOOTHED_S * SAMPLE_RATE), int(KEPT_S / PARTS * SAMPLE_RATE)
"""In samples."""
QUIETEST = 1.0
"""Power (mean square of int16) below which it makes no difference: -90 dBFS."""


def loudest(powers: Sequence[float], frames: int) -> float:
    """The greatest mean power of so many frames in a row, or of all where there are fewer."""
    run = min(frames, len(powers))
    return max(0.0, float(np.convolve(powers, np.ones(run) / run, "valid").max()))


class NoiseFloor:
    """The power of the newest sound and the lowest one of the last KEPT_S. One thread."""

    def __init__(self) -> None:
        self.level = 0.0
        """Mean power of the last SMOOTHED_S."""
        self._newest: deque[tuple[float, int]] = deque()
        """Energy and samples of the frames that `level` is made of."""
        self._energy, self._samples = 0.0, 0
        self._lowest: deque[float] = deque(maxlen=PARTS)
        self._highest: deque[float] = deque(maxlen=PARTS)
        self._part_left = 0
        self.power = QUIETEST
        """The noise floor, at least QUIETEST."""
        self.usual = 0.0
        """The median of the highest levels of the parts of KEPT_S: so loud is what goes on here; 0
        while it is not known."""

    @property
    def known(self) -> bool:
        """True once there was enough sound to tell the noise from what is said in it."""
        return len(self._lowest) >= KNOWN_PARTS

    def push(self, power: float, samples: int) -> None:
        """Takes in a frame of so many samples."""
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
        """The power that the highest level of QUIET_SHARE of the parts of KEPT_S did not exceed; 0
        while it is not known."""
        return sorted(self._highest)[int(QUIET_SHARE * len(self._highest))] if self.known else 0.0

    def reset(self) -> None:
        """Forgets all: what comes next follows a gap."""
        self._newest.clear()
        self._energy, self._samples = 0.0, 0
        self._lowest.clear()
        self._highest.clear()
        self._part_left, self.power, self.usual = 0, QUIETEST, 0.0


SUNK = ratio_of(8.0)
"""So far the level must have come down from the utterance's loudest to be called sunk: a voice that
never was so much louder than the noise is left to the detector."""
NOTHING = ratio_of(2.0)
"""What never was so much louder than the noise is nothing but noise: a voice at 0 dB adds 3 dB."""
SURELY_NOISE = ratio_of(3.0)
"""No louder than this above the floor is noise alone, or nearly."""
FOOLED_S, FOOLED_SHARE = 1.0, 0.6
"""The detector takes noise for speech when it did so in that share of about so long a time of
noise. In hiss, where it does not, a weak word must not end an utterance."""
ABOVE_USUAL, AT_USUAL, BELOW_VOICE = ratio_of(10.0), ratio_of(3.0), ratio_of(8.0)
"""Who speaks up so much louder than what went on before, such as a television, has ended where the
level is no louder than this above that, and so far below the voice, whatever the score."""
STANDS_OUT, QUIET_SHARE = ratio_of(6.0), 0.2
"""A voice stands out that is so much louder than the quietest share of the last KEPT_S: who says
one thing after the other has pauses, a television has none. With shares of 0.25 and 0.2 the
sentences of tests/speech, said with 1 s between them, stand out in 28 % and 70 %. In 54 recordings
beside a television (scripts/measure pause_set) voices do so 119 and 121 times."""
STEADY_SLACK_S = 0.05
"""More than any frame's length."""
HEARD, CLEAR = ratio_of(8.0), ratio_of(14.0)
"""A voice that was so much louder than the noise is known to have ended by level; in more noise the
score must fade, too: there words sink into it."""
AT_NOISE = ratio_of(3.0)
"""Two frames that are no louder than this above the floor are noise alone, which varies so..."""
NEAR_NOISE, FALLEN, SURE = ratio_of(6.0), ratio_of(14.0), 0.99
"""... or no louder than this, so far below the voice, and not surely speech: the room's tail."""
FADING, UNSURE, RISING = 0.9, 0.5, 0.05
"""Wherever the floor is, speech has ended whose score is under FADING and does not rise (by more
than RISING a frame), or is under UNSURE,"""
SOFT, SURE_WITHIN_S = ratio_of(12.0), 0.5
"""where the sound is so far below the voice, and the score was no lower than FADING so shortly
before: a voice that the detector is unsure of all along is left to it."""


class Endpoint:
    """Follows level and voice of an open utterance. One thread."""

    def __init__(self, settings: SegmenterSettings, floor: NoiseFloor) -> None:
        self._settings, self._floor = settings, floor
        self._margin = ratio_of(settings.floor_margin_db)
        self._power = self._score = 0.0
        """Of the frame before."""
        self._unsure_s = 0.0
        """For so long the score has been under FADING."""
        self._low_enough_s = settings.hang_over_ms / 1000 - SMOOTHED_S
        self._loudest = 0.0
        self._behind = 0.0
        """How loud it was before a louder voice spoke up in the open utterance; 0: none did."""
        self._low_s = 0.0
        """For so long the level has been at the floor."""
        self._recent: deque[tuple[float, float]] = deque()
        """Length and voiced time of each frame of the last `steady_s`, s."""
        self._recent_s = self._voiced_s = 0.0
        self._fooled = 0.0
        """Share of the noise that the detector takes for speech."""

    def open(self, loudest: float) -> None:
        """An utterance begins; `loudest` is the greatest level in its pre-roll."""
        self._loudest, self._low_s, self._behind = loudest, 0.0, 0.0
        self._recent.clear()
        self._recent_s = self._voiced_s = 0.0

    def heard(self, judgement: Judgement, power: float, length_s: float) -> Judgement:
        """The detector's word on a frame of such a power and length, without the speech that is
        none.

        `open` has told how loud the voice is; it is asked once for each frame.
        """
        recent, score = (self._power + power) / 2, self._score
        self._power, self._score = power, judgement.score
        fading = judgement.score < FADING
        self._unsure_s = self._unsure_s + length_s if fading else 0.0
        if not (judgement.speech and self._settings.end_by_sound):
            return judgement
        over = judgement.score <= score + RISING or judgement.score < UNSURE
        over = over and fading and self._unsure_s <= SURE_WITHIN_S
        over = over and recent * SOFT <= self._loudest
        noise = self._floor.power
        if not over and self._floor.known and self._loudest >= noise * HEARD:
            over = recent <= noise * AT_NOISE and (fading or self._loudest >= noise * CLEAR)
            tail = recent <= noise * NEAR_NOISE and recent * FALLEN <= self._loudest
            over = over or (tail and judgement.score < SURE)
        if not over and self._behind:
            level = self._floor.level
            over = level <= self._behind * AT_USUAL and level * BELOW_VOICE <= self._loudest
        return replace(judgement, speech=False) if over else judgement

    def follow(self, judgement: Judgement, length_s: float) -> None:
        """Takes in a frame, of so many seconds, of an open utterance."""
        level, usual = self._floor.level, self._floor.usual
        self._loudest = max(self._loudest, level)
        if usual and not self._behind and level >= usual * ABOVE_USUAL:
            self._behind = usual
        near = level <= self._floor.power * self._margin
        low = near and level * SUNK <= self._loudest
        self._low_s = self._low_s + length_s if low else 0.0
        self._recent.append((length_s, judgement.voiced_s))
        self._recent_s += length_s
        self._voiced_s += judgement.voiced_s
        while self._recent_s > self._settings.steady_s:
            gone_s, voiced_s = self._recent.popleft()
            self._recent_s -= gone_s
            self._voiced_s -= voiced_s

    def learn(self, judgement: Judgement, length_s: float) -> None:
        """Learns from a frame, if it surely is noise, what the detector takes noise for."""
        if self._floor.level <= self._floor.power * SURELY_NOISE:
            self._fooled += length_s / FOOLED_S * (judgement.speech - self._fooled)

    def stands_out(self) -> bool:
        """True unless it has been as loud as this voice all the time: then somebody or something
        talks on and on, and its pauses end nothing early."""
        return self._loudest >= self._floor.quiet() * STANDS_OUT

    def sunk(self) -> bool:
        """True when the level has been that of the noise for the hang-over, and the detector's word
        counts for nothing there. What comes next may open an utterance at once: better the voices
        of a television than a sentence lost among them."""
        fooled = bool(self._settings.floor_margin_db) and self._fooled >= FOOLED_SHARE
        return fooled and self._low_s > self._low_enough_s

    def steady(self) -> bool:
        """True when the utterance is kept open by sound with little voice in it."""
        full = self._recent_s >= self._settings.steady_s - STEADY_SLACK_S
        return full and self._voiced_s < self._settings.min_voiced_share * self._recent_s

    def verdict(self, window: Window) -> str:
        """Why an utterance of this one window is no speech (too_short, no_speech); empty: it is."""
        if window.voiced_s < self._settings.min_speech_ms / 1000:
            return "too_short"
        noise = self._floor.power * NOTHING if self._floor.known else 0.0
        if self._loudest <= noise:
            return "no_speech"
        if window.voiced_s < self._settings.min_voiced_share / 4 * window.duration_s:
            return "no_speech"
        return ""

    def reset(self) -> None:
        """Forgets all: what comes next follows a gap."""
        self._fooled = 0.0
