"""The speech that a model is fitted to: the package's, the user's, and what a room makes of it.

The package has sentences of synthetic voices (espeak-ng, flite, festival). They are heard as
they are, in noise and in simulated rooms, so that a model that knows them makes errors, too.
Sounds are (n,) float32 at 16 kHz.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance.capture import Framer, Recording, Segmenter, VoiceDetector
from appliance.config import SegmenterSettings, VoiceSettings
from appliance.errors import ConfigError
from appliance.infer import in_words
from appliance.lab.recordings import SHIPPED, listed_texts
from appliance.records import FULL_SCALE, SAMPLE_RATE, Frame, Samples, Window

Sound = NDArray[np.float32]

BEFORE_S, AFTER_S = 1.0, 2.0
"""Room tone around each sentence."""
TONE = 5e-4
"""Room tone's level: -66 dBFS."""
PEOPLE = 3.0
"""Weight of the user's own speech against the package's."""


@dataclass(frozen=True, slots=True)
class Clip:
    """A recorded sentence."""

    file: Path
    text: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Condition:
    """What is done to a sentence before the model hears it."""

    name: str
    noise_db: float | None = None
    """Level of the speech over pink noise."""
    direct_db: float | None = None
    """Level of the direct sound over the room's echoes."""
    decay_s: float = 0.5
    """The room's reverberation time."""


CONDITIONS = (
    Condition("plain"),
    Condition("noise 15 dB", 15.0),
    Condition("noise 5 dB", 5.0),
    Condition("room", 25.0, 2.0),
    Condition("far", 12.0, -6.0, 0.6),
)
PLAIN = CONDITIONS[0]
HARDER = (Condition("noise 0 dB", 0.0), Condition("far noise", 3.0, -10.0, 0.7))
"""For models that make few errors otherwise."""
_SHORT = (("what's", "what is"), ("it's", "it is"), ("i'm", "i am"), ("we're", "we are"))


def shipped_clips() -> list[Clip]:
    """Return the package's sentences. Raises ConfigError if they are not installed."""
    return recorded_clips(SHIPPED, 1.0)


def recorded_clips(folder: Path, weight: float = PEOPLE) -> list[Clip]:
    """Return the sentences of a folder with transcripts.tsv (columns file and text). Raises
    ConfigError, which names the file."""
    try:
        texts = listed_texts(folder)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{folder}: its list of recordings cannot be read: {error}. Write it as UTF-8."
        ) from error
    if texts is None:
        raise ConfigError(
            f"{folder}: expected a folder with transcripts.tsv, found none. Write one line per "
            "recording: its file, a tab, its text; the first line is: file, a tab, text."
        )
    clips = [Clip(folder / name, text, weight) for name, text in texts.items() if words(text)]
    if not clips:
        raise ConfigError(f"{folder}: transcripts.tsv lists no text. Add your recordings to it.")
    if lost := next((clip.file for clip in clips if not clip.file.is_file()), None):
        raise ConfigError(f"{lost}: transcripts.tsv lists it, and it does not exist. Correct it.")
    return clips


def words(text: str) -> list[str]:
    """Return the words of a text as they are compared: without case, marks and digits."""
    text = (
        text.lower().replace("\u2019", "'").replace("%", " percent ").replace("\u00b0", " degrees ")
    )
    for short, long in _SHORT:
        text = re.sub(rf"\b{short}\b", long, text)
    text = re.sub(r"\d{1,3}", lambda number: f" {in_words(int(number[0]))} ", text)
    return re.findall(r"[^\W_]+(?:'[^\W_]+)*", text)


def is_same(text: str, spoken: str) -> bool:
    """True if two texts have the same words, however they are separated."""
    return "".join(words(text)) == "".join(words(spoken))


def read_sound(file: Path) -> Sound:
    """Return a recording. Raises AudioError."""
    with Recording(str(file), real_time=False) as recording:
        blocks = [frame.samples for frame in recording.frames()]
    return np.concatenate([np.zeros(0, np.int16), *blocks]).astype(np.float32) / np.float32(
        FULL_SCALE
    )


def place_sound(sound: Sound, condition: Condition, name: str) -> Sound:
    """Return the sound under a condition, the same for the same `name`."""
    rng = np.random.default_rng(zlib.crc32(f"{name} {condition.name}".encode()))
    if condition.direct_db is not None:
        sound = in_room(rng, sound, condition.direct_db, condition.decay_s)
    before, after = (quiet(rng, seconds) for seconds in (BEFORE_S, AFTER_S))
    if condition.noise_db is not None:
        noise = pink(rng, len(sound))
        power = float(np.mean(sound**2)) or TONE**2
        sound = sound + noise * np.sqrt(power) * 10 ** (-condition.noise_db / 20)
    return np.concatenate((before, sound, after)).astype(np.float32)


def quiet(rng: np.random.Generator, seconds: float) -> Sound:
    """Return white noise as soft as a room at night."""
    return (rng.standard_normal(int(seconds * SAMPLE_RATE)) * TONE).astype(np.float32)


def pink(rng: np.random.Generator, length: int) -> Sound:
    """Return pink noise (length,), RMS 1."""
    spectrum = np.fft.rfft(rng.standard_normal(length))
    spectrum[1:] /= np.sqrt(np.arange(1, len(spectrum)))
    spectrum[:1] = 0
    noise = np.fft.irfft(spectrum, length)
    return np.asarray(noise / max(1e-9, float(np.sqrt(np.mean(noise**2)))), np.float32)


def noise_sound(number: int) -> Samples:
    """Return 5 s without speech: noise at a level that depends on the number."""
    rng = np.random.default_rng(number)
    level = 10 ** (-(20 + 5 * (number % 8)) / 20)
    return to_samples(pink(rng, 5 * SAMPLE_RATE) * np.float32(level))


def in_room(rng: np.random.Generator, sound: Sound, direct_db: float, decay_s: float) -> Sound:
    """Return the sound with a room's echoes: noise that falls by 60 dB in `decay_s`."""
    size = int(decay_s * SAMPLE_RATE)
    tail = rng.standard_normal(size) * 10 ** (-3 * np.arange(size) / size)
    tail[: SAMPLE_RATE // 200] = 0
    tail *= 10 ** (-direct_db / 20) / np.sqrt((tail**2).sum())
    tail[0] = 1.0
    length = len(sound) + size
    padded = 1 << length.bit_length()
    heard = np.fft.irfft(np.fft.rfft(sound, padded) * np.fft.rfft(tail, padded), padded)[:length]
    loudest = float(np.abs(heard).max()) or 1.0
    return np.asarray(heard * (float(np.abs(sound).max()) / loudest), np.float32)


def cut_windows(sound: Sound, window_s: float) -> list[Window]:
    """Return the windows that the microphone's path makes of a sound."""
    segmenter = Segmenter(VoiceDetector(VoiceSettings()), SegmenterSettings(), window_s)
    samples = to_samples(sound)
    found = [one for frame in frames_of(samples) for one in segmenter.push(frame)]
    return [one for one in (*found, *segmenter.flush()) if isinstance(one, Window)]


def only_window(sound: Sound, condition: Condition, name: str, window_s: float) -> Window | None:
    """Return the window that the microphone's path makes of a sound under a condition; None if it
    does not make exactly one. `name` as for `place_sound`."""
    windows = cut_windows(place_sound(sound, condition, name), window_s)
    return windows[0] if len(windows) == 1 else None


def frames_of(samples: Samples) -> Sequence[Frame]:
    """Return (n,) int16 as frames that begin at 0."""
    return list(Framer().push(samples, 0.0))


def to_samples(sound: Sound) -> Samples:
    """Return a sound as int16."""
    return np.clip(np.rint(sound * 32767), -32768, 32767).astype(np.int16)


def first_part(sound: Sound) -> Sound:
    """Return the sentence's beginning: up to the softest place between 40 and 75 % of it."""
    step = SAMPLE_RATE // 50
    powers = (sound[: len(sound) // step * step].reshape(-1, step) ** 2).mean(axis=1)
    smooth = np.convolve(powers, np.ones(3) / 3, "same")
    first, last = int(len(powers) * 0.4), max(int(len(powers) * 0.75), int(len(powers) * 0.4) + 1)
    cut = (first + int(np.argmin(smooth[first:last]))) * step
    return sound[:cut]
