"""Synthetic sounds that are not speech, and synthetic rooms and microphones.

Everything is computed from a seed; nothing is recorded. Sounds are (n,) float32 at 16 kHz.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import signal

Sound = NDArray[np.float32]
Generator = np.random.Generator
SAMPLE_RATE = 16_000
RT60_S, DISTANCES_M = (0.2, 0.9), (0.5, 6.0)
"""Reverberation times of the rooms, and from where in them people speak: all are equally likely."""
VOLUMES_M3 = (25.0, 150.0)
DIRECTED_DB = (0.0, 4.0)
"""By how much a mouth is louder towards the microphone than in the mean of all directions."""
RATIOS_DB = (-15.0, 14.0)
"""Ratios of direct to reverberant sound that are drawn."""
TAIL_S = 0.75
"""Longest response; what follows in the longest reverberation is 50 dB softer."""
SPEED_M_S = 343.0
SCALES = ((0, 2, 4, 5, 7, 9, 11), (0, 2, 3, 5, 7, 8, 10), (0, 2, 4, 7, 9))


def _times(n: int) -> NDArray[np.float64]:
    return np.arange(n) / SAMPLE_RATE


def coloured(rng: Generator, n: int, slope: float | None = None) -> Sound:
    """Noise whose power falls with frequency to the power `slope` (0 white, 1 pink, 2 brown)."""
    slope = rng.uniform(0.0, 2.2) if slope is None else slope
    spectrum = rng.standard_normal(n // 2 + 1) + 1j * rng.standard_normal(n // 2 + 1)
    hz = np.maximum(np.fft.rfftfreq(n, 1 / SAMPLE_RATE), 20.0)
    return np.fft.irfft(spectrum * hz ** (-slope / 2), n).astype(np.float32)


def band(rng: Generator, n: int) -> Sound:
    """Noise within a random band of 0.3 to 4 octaves."""
    low = np.exp(rng.uniform(np.log(60), np.log(4000)))
    high = min(low * 2 ** rng.uniform(0.3, 4.0), 7900.0)
    sos = signal.butter(2, [low, high], "bandpass", fs=SAMPLE_RATE, output="sos")
    sound: Sound = signal.sosfilt(sos, coloured(rng, n)).astype(np.float32)
    return sound


def swelling(rng: Generator, n: int) -> Sound:
    """Noise whose loudness wanders, as wind, traffic or a tap."""
    knots = rng.uniform(-1.5, 1.5, max(4, int(n / SAMPLE_RATE * rng.uniform(0.5, 6))))
    envelope = np.interp(np.linspace(0, len(knots) - 1, n), np.arange(len(knots)), knots)
    source = band(rng, n) if rng.random() < 0.5 else coloured(rng, n)
    sound: Sound = (source * np.exp(envelope)).astype(np.float32)
    return sound


def hum(rng: Generator, n: int) -> Sound:
    """Mains or motor hum with harmonics, over a little hiss."""
    base = rng.choice([50.0, 60.0, 100.0, 120.0, rng.uniform(70, 400)])
    t = _times(n) * (1 + 0.002 * rng.standard_normal())
    total = np.zeros(n)
    for k in range(1, int(rng.integers(3, 20))):
        phase = rng.uniform(0, 6.28)
        total += (
            rng.uniform(0, 1) / k ** rng.uniform(0.3, 1.5) * np.sin(6.2832 * base * k * t + phase)
        )
    hiss = coloured(rng, n)
    both = total / total.std() + rng.uniform(0.05, 1.0) * hiss / hiss.std()
    sound: Sound = both.astype(np.float32)
    return sound


def events(rng: Generator, n: int) -> Sound:
    """Clicks, taps, knocks, drops, clatter and breaths over faint noise."""
    total = 0.01 * coloured(rng, n)
    total /= total.std() / 0.01
    rate = np.exp(rng.uniform(np.log(0.5), np.log(40)))
    for at in rng.integers(0, n, max(1, int(rate * n / SAMPLE_RATE))):
        length = int(SAMPLE_RATE * np.exp(rng.uniform(np.log(0.004), np.log(0.5))))
        length = min(length, n - int(at))
        if length < 16:
            continue
        t = np.arange(length) / length
        if rng.random() < 0.5:
            tone = np.sin(6.2832 * np.exp(rng.uniform(np.log(80), np.log(6000))) * _times(length))
        else:
            tone = band(rng, max(length, 512))[:length].astype(np.float64)
            tone /= np.abs(tone).max() + 1e-9
        shape = np.exp(-t * rng.uniform(3, 12)) if rng.random() < 0.8 else np.sin(np.pi * t)
        total[at : at + length] += (rng.uniform(0.05, 1.0) * tone * shape).astype(np.float32)
    return total


def rain(rng: Generator, n: int) -> Sound:
    """Dense short drops: rain, frying, rustling."""
    impulses = (rng.random(n) < rng.uniform(0.001, 0.05)) * rng.standard_normal(n)
    low = rng.uniform(300, 2500)
    high = min(low * rng.uniform(1.5, 5), 7900.0)
    sos = signal.butter(1, [low, high], "bandpass", fs=SAMPLE_RATE, output="sos")
    sound: Sound = signal.sosfilt(sos, impulses).astype(np.float32)
    return sound


def music(rng: Generator, n: int) -> Sound:
    """Melodies, chords, arpeggios, bells and chimes: decaying harmonics on a scale."""
    scale = SCALES[int(rng.integers(len(SCALES)))]
    root = rng.uniform(60, 500)
    bell = rng.random() < 0.3
    harmonics = rng.uniform(1.0, 3.5, 4).cumsum() if bell else np.arange(1, rng.integers(3, 12))
    fall = rng.uniform(0.4, 2.0)
    beat = rng.uniform(0.1, 0.9)
    total = np.zeros(n)
    at = rng.uniform(0, 0.5) * SAMPLE_RATE
    while at < n - 400:
        length = min(int(SAMPLE_RATE * beat * rng.uniform(0.8, 4.0)), n - int(at))
        t = _times(length)
        shape = np.minimum(t / rng.uniform(0.002, 0.08), 1) * np.exp(-t * rng.uniform(0.3, 8))
        for _ in range(int(rng.choice([1, 1, 2, 3, 4]))):
            note = root * 2 ** ((int(rng.choice(scale)) + 12 * int(rng.integers(0, 3))) / 12)
            vibrato = rng.uniform(0, 0.004) * np.sin(6.2832 * rng.uniform(3, 7) * t)
            for k in harmonics:
                if note * k < 7600:
                    wave = np.sin(6.2832 * note * k * t + 6.2832 * vibrato * note * k / 5)
                    total[int(at) : int(at) + length] += shape * wave / k**fall
        at += SAMPLE_RATE * beat * float(rng.choice([0.5, 1, 1, 2]))
    if rng.random() < 0.4:
        drums = events(rng, n)
        total += drums / drums.std() * total.std() * rng.uniform(0.1, 0.8)
    return total.astype(np.float32)


def beeps(rng: Generator, n: int) -> Sound:
    """Tones, sweeps, sirens and rings switched on and off."""
    t = _times(n)
    f = np.exp(rng.uniform(np.log(200), np.log(4000)))
    swing = rng.uniform(0, 0.5) * np.sin(6.2832 * rng.uniform(0.2, 12) * t)
    phase = np.cumsum(6.2832 * f * (1 + swing)) / SAMPLE_RATE
    on = (np.sin(6.2832 * rng.uniform(0.3, 12) * t) > rng.uniform(-0.9, 0.7)).astype(np.float64)
    gate = np.convolve(on, np.ones(160) / 160, "same")
    wave = np.sin(phase) + rng.uniform(0, 0.5) * np.sin(2 * phase)
    return (wave * gate + 0.003 * rng.standard_normal(n)).astype(np.float32)


KINDS: tuple[tuple[str, float, Callable[[Generator, int], Sound]], ...] = (
    ("coloured", 0.16, coloured),
    ("band", 0.10, band),
    ("swelling", 0.16, swelling),
    ("hum", 0.12, hum),
    ("events", 0.14, events),
    ("rain", 0.08, rain),
    ("music", 0.18, music),
    ("beeps", 0.06, beeps),
)


def make_sounds(seed: int, count: int, seconds: float) -> NDArray[np.int16]:
    """`count` sounds of all kinds, (count, seconds * 16000) int16 at 3000 RMS unless peaky."""
    rng = np.random.default_rng(seed)
    n = int(seconds * SAMPLE_RATE)
    weights = np.array([weight for _, weight, _ in KINDS])
    bank = np.zeros((count, n), np.int16)
    for i in range(count):
        make = KINDS[int(rng.choice(len(KINDS), p=weights / weights.sum()))][2]
        sound = make(rng, n)
        if rng.random() < 0.25:
            sound = (
                sound / (sound.std() + 1e-9) + rng.uniform(0.05, 0.5) * coloured(rng, n, 1.0) * 3
            )
        scale = min(3000 / (sound.std() + 1e-9), 30_000 / (np.abs(sound).max() + 1e-9))
        bank[i] = np.round(sound * scale).astype(np.int16)
    return bank


def equaliser(rng: Generator, taps: int = 255) -> Sound:
    """A microphone's or loudspeaker's response as an FIR: tilt, bumps and band limits."""
    hz = np.linspace(0, SAMPLE_RATE / 2, 65)
    octaves = np.log2(np.maximum(hz, 60) / 1000)
    gain_db = rng.normal(0, 2.0) * octaves
    for _ in range(int(rng.integers(0, 5))):
        centre, width = rng.uniform(-3.5, 3), rng.uniform(0.2, 1.2)
        gain_db += rng.normal(0, 5) * np.exp(-(((octaves - centre) / width) ** 2))
    if rng.random() < 0.5:
        gain_db -= np.maximum(0, np.log2(rng.uniform(100, 350) / np.maximum(hz, 30))) * 12
    if rng.random() < 0.35:
        gain_db -= np.maximum(0, np.log2(np.maximum(hz, 30) / rng.uniform(3200, 7500))) * 40
    gain = 10 ** (np.clip(gain_db, -50, 20) / 20)
    kernel = signal.firwin2(taps, hz, gain, fs=SAMPLE_RATE)
    power = np.sqrt(np.mean(gain[4:33] ** 2))
    response: Sound = (kernel / power).astype(np.float32)
    return response


def direct_to_reverberant_db(rt60_s: float, distance_m: float, volume_m3: float) -> float:
    """How much louder the direct sound is than its reverberation, for a source that sounds alike in
    all directions: 0 at the critical distance (Kuttruff, Room Acoustics, 5.39)."""
    critical_m = 0.057 * np.sqrt(volume_m3 / rt60_s)
    return float(20 * np.log10(critical_m / distance_m))


def room(rng: Generator, taps: int = 255, distances_m: tuple[float, float] = DISTANCES_M) -> Sound:
    """A room's impulse response through an equaliser: direct sound, echoes, decaying tail.

    Reverberation time, distance and volume are drawn; the ratio of direct to reverberant sound
    follows from them.
    """
    rt60_s = rng.uniform(*RT60_S)
    distance_m = rng.uniform(*distances_m)
    volume_m3 = np.exp(rng.uniform(*np.log(VOLUMES_M3)))
    n = int(SAMPLE_RATE * min(rt60_s, TAIL_S))
    t = _times(n)
    tail = rng.standard_normal(n) * np.exp(-6.9 * t / rt60_s)
    longer_m = rng.uniform(0.5, 3.0) / np.sqrt(1 + distance_m)  # of the first echo
    tail[: int(longer_m / SPEED_M_S * SAMPLE_RATE)] = 0
    low_pass = signal.butter(1, rng.uniform(2000, 7000), fs=SAMPLE_RATE, output="sos")
    tail = signal.sosfilt(low_pass, tail)
    for _ in range(int(rng.integers(2, 8))):
        at = int(rng.uniform(0.001, 0.03) * SAMPLE_RATE)
        tail[at] += rng.normal(0, 0.5) * tail.std() * 20
    ratio_db = direct_to_reverberant_db(rt60_s, distance_m, volume_m3) + rng.uniform(*DIRECTED_DB)
    tail *= 10 ** (-np.clip(ratio_db, *RATIOS_DB) / 20) / np.sqrt(np.sum(tail**2) + 1e-12)
    tail[0] += 1.0
    response: Sound = signal.fftconvolve(tail, equaliser(rng, taps)).astype(np.float32)
    return response


def make_channels(
    seed: int, count: int, distances_m: tuple[float, float] = DISTANCES_M
) -> list[Sound]:
    """`count` impulse responses: even numbers equalisers alone, odd numbers rooms."""
    rng = np.random.default_rng(seed)
    return [room(rng, distances_m=distances_m) if i % 2 else equaliser(rng) for i in range(count)]
