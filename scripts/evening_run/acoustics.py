"""Simulated rooms and kitchen noise.

A room is a box; its impulse response comes from the image-source method (Allen and Berkley 1979),
with the same absorption on all walls, chosen so that the response has the wanted reverberation
time. Everything is computed from a seed. Sounds are (n,) float64 at 16 kHz, int16's scale.
"""

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from appliance.records import SAMPLE_RATE

Sound = NDArray[np.float64]

SPEED_M_S = 343.0
ROOM_M = (7.0, 5.0, 2.7)
MICROPHONE_M = (0.9, 2.1, 1.1)
SOURCE_M = (0.0, 0.35, 0.4)
"""Where the speaker is beside and above the microphone; the rest of the distance is along x."""
JITTER_M = 0.04
"""Images are moved by so much at random: in an exact box they line up and sound like a sweep."""
HIGH_PASS_HZ = 80.0
CORRECTIONS = 4
STEP = SAMPLE_RATE // 100
"""10 ms."""


class Paths(NamedTuple):
    """All paths of the sound from the speaker to the microphone, in the room's order."""

    lengths_m: Sound
    """(n,)"""
    reflections: Sound
    """(n,): how often each is reflected."""


@functools.cache
def room(reverberation_s: float, distance_m: float, seed: int = 1) -> Sound:
    """Return the impulse response of a living room, (n,): 1 is the direct sound at 1 m.

    The direct sound is at sample 0, so that speech ends where it did before.
    """
    return _fit(_paths(distance_m, reverberation_s * SPEED_M_S, seed), reverberation_s)


def _fit(paths: Paths, reverberation_s: float) -> Sound:
    """Return the response with the wanted reverberation time."""
    width, depth, height = ROOM_M
    volume = width * depth * height
    surface = 2 * (width * depth + width * height + depth * height)
    log_reflected = -0.161 * volume / (surface * reverberation_s)  # Eyring's ln(1 - absorption)
    response: Sound = np.zeros(0)
    for _ in range(CORRECTIONS):
        reflected = float(np.exp(log_reflected / 2))
        response = _respond(paths.lengths_m, paths.reflections, reflected)
        log_reflected *= reverberation_time_s(response) / reverberation_s
    return response


def _paths(distance_m: float, farthest_m: float, seed: int) -> Paths:
    """Return all paths up to the farthest, in metres."""
    source = np.array(MICROPHONE_M) + SOURCE_M
    source[0] += np.sqrt(distance_m**2 - np.square(SOURCE_M).sum())
    axes, counts = [], []
    for length, at, ear in zip(ROOM_M, source, MICROPHONE_M, strict=True):
        most = int(np.ceil(farthest_m / (2 * length))) + 1
        number = np.arange(-most, most + 1)
        axes.append(np.concatenate([2 * number * length + sign * at - ear for sign in (1, -1)]))
        counts.append(np.concatenate((2 * np.abs(number), np.abs(number) + np.abs(number - 1))))
    x, y, z = np.meshgrid(*axes, indexing="ij", sparse=True)
    lengths = np.sqrt(x**2 + y**2 + z**2)
    near = lengths <= farthest_m
    reflections = functools.reduce(np.add.outer, counts)[near].astype(float)
    paths = lengths[near]
    moved = np.random.default_rng(seed).uniform(-JITTER_M, JITTER_M, len(paths))
    return Paths(np.where(reflections > 0, paths + moved, paths), reflections)


def _respond(paths_m: Sound, reflections: Sound, reflected: float) -> Sound:
    """Return the response of such paths, of whose pressure a wall gives back so much."""
    delays = (paths_m - paths_m.min()) / SPEED_M_S * SAMPLE_RATE
    strengths = reflected**reflections / paths_m
    first = delays.astype(np.int64)
    share = delays - first
    size = int(first.max()) + 2
    response = np.bincount(first, strengths * (1 - share), size)
    response += np.bincount(first + 1, strengths * share, size)
    direct = response[0]
    spectrum = np.fft.rfft(response, 2 * size)
    hz = np.fft.rfftfreq(2 * size, 1 / SAMPLE_RATE)
    spectrum *= hz**2 / (hz**2 + HIGH_PASS_HZ**2)
    filtered: Sound = np.fft.irfft(spectrum)[:size]
    filtered[0] = direct
    return filtered


def reverberation_time_s(response: Sound) -> float:
    """Return the seconds in which the energy falls by 60 dB: twice those from -5 to -35 dB of its
    backward integral (Schroeder; ISO 3382's T30)."""
    left = np.cumsum((response**2)[::-1])[::-1]
    level = 10 * np.log10(left / left[0] + 1e-12)
    at = np.flatnonzero((level <= -5) & (level >= -35))
    slope = np.polyfit(at / SAMPLE_RATE, level[at], 1)[0]
    return float(-60 / slope)


def in_room(sound: Sound, response: Sound) -> Sound:
    """Return the sound as the room gives it, of the same length."""
    size = 1 << (len(sound) + len(response)).bit_length()
    heard = np.fft.irfft(np.fft.rfft(sound, size) * np.fft.rfft(response, size), size)
    return np.asarray(heard[: len(sound)])


def kitchen(rng: np.random.Generator, size: int) -> Sound:
    """Return the noise of a kitchen, RMS 1: an extractor, a refrigerator's hum, dishes."""
    times = np.arange(size) / SAMPLE_RATE
    sound = pink(rng, size)
    for number in range(1, 6):
        sound += 0.5 / number * np.sin(2 * np.pi * (100 * number * times + rng.random()))
    length = SAMPLE_RATE // 5
    for at in rng.integers(0, size, max(1, int(size / SAMPLE_RATE * 0.8))):
        clink = np.zeros(length)
        for hz in rng.uniform(1200, 5200, 4):
            fading = np.exp(-np.arange(length) / SAMPLE_RATE / rng.uniform(0.01, 0.04))
            clink += fading * np.sin(2 * np.pi * hz * np.arange(length) / SAMPLE_RATE)
        part = clink[: size - at] * rng.uniform(0.5, 2.0)
        sound[at : at + length] += part
    return np.asarray(sound / np.sqrt(np.mean(sound**2)))


def beside(sound: Sound, other: Sound, ratio_db: float) -> Sound:
    """Return the sound with `other` (at least as long), whose mean power is `ratio_db` below that
    of the sound's loud parts."""
    added = other[: len(sound)]
    power = speech_power(sound) / 10 ** (ratio_db / 10)
    return np.asarray(sound + added * np.sqrt(power / np.mean(added**2)))


def softened(sound: Sound, fade_s: float) -> Sound:
    """Return the sound faded in and out, so that it neither begins nor ends with a click."""
    size = min(len(sound) // 2, int(fade_s * SAMPLE_RATE))
    ramp = np.linspace(0, 1, size)
    return np.concatenate((sound[:size] * ramp, sound[size:-size], sound[-size:] * ramp[::-1]))


def in_turn(sounds: list[Sound], pause_s: float = 0.3) -> Sound:
    """Return the sounds one after the other, as loud as each other."""
    pause = np.zeros(int(pause_s * SAMPLE_RATE))
    parts = [np.concatenate((one / np.sqrt(speech_power(one)), pause)) for one in sounds]
    return np.concatenate(parts)


def pink(rng: np.random.Generator, size: int) -> Sound:
    """Return pink noise, RMS 1."""
    spectrum = np.fft.rfft(rng.normal(size=size))
    spectrum[1:] /= np.sqrt(np.arange(1, len(spectrum)))
    spectrum[0] = 0
    sound: Sound = np.fft.irfft(spectrum, size)
    return np.asarray(sound / sound.std())


def speech_power(sound: Sound) -> float:
    """Return the mean square of the 10 ms within 25 dB of the loudest."""
    steps = sound[: len(sound) // STEP * STEP].reshape(-1, STEP)
    power = (steps**2).mean(axis=1)
    return float(power[power > power.max() / 10**2.5].mean())
