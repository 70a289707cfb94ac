"""Sounds for tests and measurements: read from files, cut into windows, made of noise."""

from pathlib import Path

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from appliance.capture.frames import Framer
from appliance.capture.segmenter import Segmenter
from appliance.capture.voice import VoiceDetector
from appliance.config import Settings
from appliance.records import SAMPLE_RATE, Discarded, Samples, Window

Sound = NDArray[np.float32]

NOT_SPEECH = {"beep", "music", "noise", "silence"}
COMMANDS = {"speech-home-automation", "tts-home-automation"}
"""Categories in a MANIFEST.tsv."""


def read(path: Path) -> Sound:
    """A recording as (n,) float32 at 16 kHz mono."""
    sound, rate_hz = soundfile.read(path, dtype="float32", always_2d=True)
    mono = sound.mean(axis=1)
    if rate_hz != SAMPLE_RATE:
        mono = soxr.resample(mono, rate_hz, SAMPLE_RATE)
    return np.asarray(mono, np.float32)


def to_int16(sound: Sound) -> NDArray[np.int16]:
    """(n,) float32 in -1..1 as int16."""
    return np.clip(np.rint(sound * 32767), -32768, 32767).astype(np.int16)


def cut(samples: Samples, settings: Settings, window_s: float) -> list[Window | Discarded]:
    """What detector and segmenter make of a stream, (n,) int16 at 16 kHz."""
    segmenter = Segmenter(VoiceDetector(settings.voice), settings.segmenter, window_s)
    found = [one for frame in Framer().push(samples, 0.0) for one in segmenter.push(frame)]
    return [*found, *segmenter.flush()]


def quiet(rng: np.random.Generator, seconds: float) -> Sound:
    """Room tone: white noise at -66 dBFS."""
    return (rng.standard_normal(int(seconds * SAMPLE_RATE)) * 5e-4).astype(np.float32)


def with_noise(rng: np.random.Generator, sound: Sound, snr_db: float) -> Sound:
    """`sound` in pink noise; the ratio is that of the mean powers."""
    noise = coloured(rng, len(sound), 1.0)
    gain = np.sqrt(np.mean(sound**2) / np.mean(noise**2)) * 10 ** (-snr_db / 20)
    return np.asarray(sound + gain * noise, np.float32)


def coloured(rng: np.random.Generator, length: int, slope: float) -> Sound:
    """Noise (length,) whose power falls with frequency to the power of `slope`, RMS 1."""
    spectrum = np.fft.rfft(rng.standard_normal(length))
    spectrum[1:] /= np.arange(1, len(spectrum)) ** (slope / 2)
    spectrum[0] = 0
    noise = np.fft.irfft(spectrum, length)
    return np.asarray(noise / np.sqrt(np.mean(noise**2)), np.float32)
