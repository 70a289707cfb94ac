"""Finds the end of speech by level, where the voice detector is late, and rejects what is no
speech.

The detector's score falls slowly: it finds the end 100 to 250 ms after the last word, and later if
reverberation, a breath or a click follows. `Endpoint.refine` overrules it: sound at the level of
the noise, or far softer than the voice while the score falls, is no speech; nor is sound at the
level that was usual before somebody spoke up, such as a television.

If the detector still finds speech without end, an utterance is closed if little of the last seconds
was voiced. One of one window that was no louder than the noise, or hardly voiced, is discarded.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from appliance.capture.frames import FRAME_MS
from appliance.capture.loudness import LAST_BIT, NO_SOUND, decibels
from appliance.capture.voice import Judgement
from appliance.config import SegmenterSettings
from appliance.records import SAMPLE_RATE, Window

NOISE_DB = 3.0
"""Noise varies by this: sound within it of the noise floor, or of the usual level, is no voice."""
FAINT_DB = 2.0
"""Sound that was never this far above the noise is only noise: a voice at 0 dB adds 3 dB."""
NEAR_DB = 6.0
"""Reverberation and the pauses between words are within this of the noise floor. A voice that
stands out is further above it: sentences of tests/speech with 1 s between them do so in 70 %, and
voices in 54 recordings beside a television 121 times."""
VOICE_DB = 8.0
"""A voice is at least this far above what is behind it; if less, its end is the detector's."""
LOUD_DB = 10.0
"""A voice that speaks up is this far above the usual level, and above the pauses in it."""
SOFT_DB = 12.0
"""Sound this far below the voice while the score falls is its end."""
CLEAR_DB = VOICE_DB + NEAR_DB
"""The end of a voice this far above the noise is found by level alone; from VOICE_DB on, the score
must fade, too, because words sink into the noise."""

LOUDER_DB, SOFTER_S, RISE_S = 10.0, 0.8, 0.6
"""A voice this far above all speech of the utterance up to RISE_S ago, if there was so much, is
another one: somebody speaks in front of a television."""
ONSET_S = 0.15
"""A word begins so long before it is louder than what is behind it."""

FADING, SURE, UNSURE = 0.9, 0.99, 0.5
"""Scores below which a voice may have ended; below which reverberation is none; below which speech
has ended even if the score rises."""
RISING = 0.05
"""A score that rises by more a frame is a voice's that begins again."""
UNSURE_S = 0.5
"""Time with a fading score after which a soft voice is left to the detector: it is unsure of it all
along."""

SMOOTHED_S = 0.3
"""The level is the mean over this: longer than a stop consonant or the dip of a syllable."""
KEPT_S, PART_S = 12.0, 0.5
"""The floor is the lowest level of this time, in parts (minimum statistics, Martin 2001). Speech
without a breath for longer looks like noise by level, but never ends by level alone. The floor is
known after a quarter of it, longer than any word."""
QUIET_SHARE = 0.2
"""The quiet of the last KEPT_S is the level that this share of its parts does not reach: people
pause between sentences, a television does not."""
STEADY_S = 5.0
"""Sound of this length ends an utterance if ..."""
MIN_VOICED_SHARE = 0.2
"""... less than this share of it is voice. One window with a quarter of that is no speech."""


def loudest(powers: Sequence[float], frame_samples: int) -> float:
    """Return the greatest level in frames of so many samples: their mean power over SMOOTHED_S, or
    over all if there are fewer."""
    run = min(int(SMOOTHED_S * SAMPLE_RATE) // frame_samples, len(powers))
    return max(0.0, float(np.convolve(powers, np.ones(run) / run, "valid").max()))


def is_same_voice(level_db: float | None, other_db: float | None) -> bool:
    """False if the levels of two utterances are those of two voices, one far softer."""
    return level_db is None or other_db is None or abs(level_db - other_db) < LOUDER_DB


class NoiseFloor:
    """Running level and noise floor of the sound. One thread."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything: a gap follows."""
        self.level = 0.0
        """Mean power of the last SMOOTHED_S."""
        self._newest: deque[tuple[float, int]] = deque()
        """Energy and samples of the frames in `level`."""
        self._energy, self._samples = 0.0, 0
        self._lowest: deque[float] = deque(maxlen=int(KEPT_S / PART_S))
        self._highest: deque[float] = deque(maxlen=int(KEPT_S / PART_S))
        self._part_left = 0
        self.power = LAST_BIT
        """The noise floor, at least LAST_BIT squared, which is 1."""
        self.usual = 0.0
        """The usual loudness here: median of the highest levels of the parts of KEPT_S; 0 while
        unknown."""

    @property
    def known(self) -> bool:
        """True once there was enough sound to tell noise from speech in it."""
        return len(self._lowest) * PART_S >= KEPT_S / 4

    def push(self, power: float, samples: int) -> None:
        """Take in a frame of so many samples."""
        self._newest.append((power * samples, samples))
        self._energy += power * samples
        self._samples += samples
        smoothed = int(SMOOTHED_S * SAMPLE_RATE)
        whole = self._samples >= smoothed
        while self._samples > smoothed:
            gone = self._newest.popleft()
            self._energy -= gone[0]
            self._samples -= gone[1]
        self.level = max(0.0, self._energy / self._samples)
        if not whole:
            return
        if self._part_left <= 0:
            self._part_left = int(PART_S * SAMPLE_RATE)
            self.usual = median(self._highest) if self.known else 0.0
            self._highest.append(self.level)
            self._lowest.append(self.level)
            self.power = max(LAST_BIT, min(self._lowest))
        elif self.level < self._lowest[-1]:
            self._lowest[-1] = self.level
            self.power = max(LAST_BIT, min(self.power, self.level))
        self._highest[-1] = max(self._highest[-1], self.level)
        self._part_left -= samples

    def quiet(self) -> float:
        """Return the quantile QUIET_SHARE of the highest levels of the parts of KEPT_S; 0 while
        unknown."""
        return sorted(self._highest)[int(QUIET_SHARE * len(self._highest))] if self.known else 0.0


class Endpoint:
    """Follows the level and the voice of an open utterance. One thread."""

    def __init__(self, settings: SegmenterSettings, floor: NoiseFloor) -> None:
        self._settings, self._floor = settings, floor
        self._power = self._score = 0.0
        """Of the last frame."""
        self._fading_s = 0.0
        """How long the score has been below FADING."""
        self.open(0.0)

    def open(self, loudest: float) -> None:
        """Begin an utterance; `loudest` is the greatest level in its pre-roll."""
        self._loudest_db, self._behind_db = decibels(loudest), NO_SOUND
        """The voice's level in the open utterance; the usual one before it spoke up, if it did."""
        self._softer_db, self._softer_s = NO_SOUND, 0.0
        """Greatest level of the open utterance up to RISE_S ago, and the speech in it."""
        self._rise: deque[tuple[float, float, float]] = deque()
        """Power, level in dB and seconds of speech of each frame since then."""
        self._recent: deque[tuple[float, float]] = deque()
        """Length and voiced time, s, of each frame of the last STEADY_S."""
        self._recent_s = self._voiced_s = 0.0

    def refine(self, judgement: Judgement, power: float, length_s: float) -> Judgement:
        """Return the detector's judgement of a frame, as no speech if the level says that speech is
        over.

        Call it once for each frame, after `open`. Three rules, each sufficient: the sound is far
        softer than the voice while the score falls; it is at the noise floor, or reverberation just
        above it; it is back at what was usual before a louder voice spoke up.
        """
        recent_db = decibels((self._power + power) / 2)  # two frames: clicks do not count
        rises = judgement.score > self._score + RISING
        self._power, self._score = power, judgement.score
        fades = judgement.score < FADING
        self._fading_s = self._fading_s + length_s if fades else 0.0
        if not judgement.speech:
            return judgement
        below_db = self._loudest_db - recent_db
        losing = fades and (not rises or judgement.score < UNSURE)
        over = losing and self._fading_s <= UNSURE_S and below_db >= SOFT_DB
        if not over and self._floor.known:
            over = self._is_noise(recent_db, judgement.score)
        if not over and self._behind_db > NO_SOUND:  # a television goes on behind the voice
            level_db = decibels(self._floor.level)
            over = level_db <= min(self._behind_db + NOISE_DB, self._loudest_db - VOICE_DB)
        return replace(judgement, speech=False) if over else judgement

    def _is_noise(self, recent_db: float, score: float) -> bool:
        """True at the noise floor, or in reverberation just above it, if a voice stood out from
        that."""
        voice_db = self._loudest_db - decibels(self._floor.power)
        above_db = recent_db - decibels(self._floor.power)
        if voice_db < VOICE_DB:
            return False
        if above_db <= NOISE_DB and (score < FADING or voice_db >= CLEAR_DB):
            return True
        return above_db <= NEAR_DB and self._loudest_db - recent_db >= CLEAR_DB and score < SURE

    def follow(self, judgement: Judgement, length_s: float) -> None:
        """Take in a frame, of so many seconds, of an open utterance."""
        level_db, usual_db = decibels(self._floor.level), decibels(self._floor.usual)
        self._loudest_db = max(self._loudest_db, level_db)
        if self._behind_db == NO_SOUND and level_db >= usual_db + LOUD_DB:
            self._behind_db = usual_db
        self._rise.append((self._power, level_db, length_s * judgement.speech))
        if len(self._rise) * length_s > RISE_S:
            _, softer_db, softer_s = self._rise.popleft()
            self._softer_db = max(self._softer_db, softer_db)
            self._softer_s += softer_s
        if self._is_louder() and self._softer_db < decibels(self._floor.power) + NEAR_DB:
            self._softer_s = -math.inf  # it was no speech
        self._recent.append((length_s, judgement.voiced_s))
        self._recent_s += length_s
        self._voiced_s += judgement.voiced_s
        while self._recent_s > STEADY_S:
            gone_s, voiced_s = self._recent.popleft()
            self._recent_s -= gone_s
            self._voiced_s -= voiced_s

    def _is_louder(self) -> bool:
        enough = self._softer_s >= SOFTER_S
        return enough and decibels(self._floor.level) >= self._softer_db + LOUDER_DB

    def frames_since_louder(self) -> int:
        """Return for how many frames a voice has been far louder than all speech of the utterance
        before it; 0 if none is."""
        if not self._is_louder():
            return 0
        loud = [decibels(power) >= self._softer_db + NOISE_DB for power, _, _ in self._rise]
        return len(loud) - loud.index(True) if any(loud) else 0

    def stands_out(self) -> bool:
        """True unless it has been as loud as this voice all the time: then something talks without
        end, and its pauses end nothing early."""
        return self._loudest_db >= decibels(self._floor.quiet()) + NEAR_DB

    def steady(self) -> bool:
        """True if the utterance is kept open by sound with little voice in it."""
        full = self._recent_s >= STEADY_S - FRAME_MS / 1000
        return full and self._voiced_s < MIN_VOICED_SHARE * self._recent_s

    def rejection(self, window: Window) -> str:
        """Return why an utterance of this one window is no speech (too_short, no_speech); "" if it
        is."""
        if window.voiced_s < self._settings.min_speech_ms / 1000:
            return "too_short"
        noise_db = decibels(self._floor.power) if self._floor.known else NO_SOUND
        faint = self._loudest_db <= noise_db + FAINT_DB
        unvoiced = window.voiced_s < MIN_VOICED_SHARE / 4 * window.duration_s
        return "no_speech" if faint or unvoiced else ""
