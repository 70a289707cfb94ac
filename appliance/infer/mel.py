"""Log-mel spectrogram of a window, exactly as in Whisper's training.

Constants are OpenAI Whisper's (whisper/audio.py): 16 kHz, STFT of 400 samples, hop 160.
"""

from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from appliance.errors import ModelError
from appliance.records import FULL_SCALE, HOP, SAMPLE_RATE, Mel, Samples

N_FFT = 400
BLOCK = 32
"""Frames transformed at a time. Their arrays stay below the 128 kB from which malloc maps memory
anew for each array (sessions.MALLOPT): doing so takes four times as long as the arithmetic."""
FLOOR = 1e-10
DYNAMIC_RANGE = 8.0


def window_mel(samples: Samples, n_mels: int, frames: int) -> Mel:
    """Return `log_mel` of samples (n,) int16, cut or zero-padded to a model's window."""
    sound = samples.astype(np.float32)
    sound /= np.float32(FULL_SCALE)
    return log_mel(sound, n_mels, frames)


def log_mel(samples: NDArray[np.float32], n_mels: int = 80, frames: int | None = None) -> Mel:
    """Return the log-mel spectrogram of `samples`, (n,) float32 in -1..1, as (frames, n_mels)
    float32, C-contiguous.

    `frames` first cuts or zero-pads the samples to frames * 160; default n // 160. Values are
    scaled as (log10(power) + 4) / 4 and lie within 2 of the window's maximum.
    """
    if frames is None:
        frames = len(samples) // HOP
    if frames < 2:
        raise ModelError(f"a window needs at least 2 mel frames (320 samples), found {frames}")
    half = N_FFT // 2
    padded = np.zeros(frames * HOP + N_FFT, np.float32)
    audio = padded[half:-half]
    audio[: len(samples)] = samples[: len(audio)]
    padded[:half], padded[-half:] = audio[half:0:-1], audio[-2 : -half - 2 : -1]  # reflected
    used = min(frames, (len(samples) + half) // HOP + 1)  # the others are zero throughout
    windows = sliding_window_view(padded, N_FFT)[::HOP][:used]
    power = np.empty((half + 1, used), np.float32)
    for start in range(0, used, BLOCK):
        spectrum = np.fft.rfft(windows[start : start + BLOCK] * _hann(), axis=1)
        power[:, start : start + BLOCK] = (spectrum.real**2 + spectrum.imag**2).T
    mel = _filter(power, n_mels)
    np.log10(np.maximum(mel, FLOOR, out=mel), out=mel)
    lowest = max(np.log10(np.float32(FLOOR)), mel.max() - np.float32(DYNAMIC_RANGE))
    np.maximum(mel, lowest, out=mel)
    mel += 4.0
    mel /= 4.0
    scaled = np.full((frames, n_mels), (lowest + 4.0) / 4.0, np.float32)
    scaled[:used] = mel.T
    return scaled


def _filter(power: NDArray[np.float32], n_mels: int) -> NDArray[np.float32]:
    """Energies (n_mels, frames) of power spectra (201, frames).

    Band by band, because a filter is zero almost everywhere, and without BLAS: on two busy cores
    its threads wait up to 20 ms for each other in a product that takes 0.2.
    """
    energies = np.empty((n_mels, power.shape[1]), np.float32)
    for energy, (band, weights) in zip(energies, _bands(n_mels), strict=True):
        np.einsum("bf,b->f", power[band], weights, out=energy)
    return energies


@lru_cache(maxsize=4)
def _bands(n_mels: int) -> tuple[tuple[slice, NDArray[np.float32]], ...]:
    """For each filter, the bins where it is not zero, and its weights there."""
    found = []
    for weights in mel_filters(n_mels).T:
        inside = np.flatnonzero(weights)
        band = slice(inside[0], inside[-1] + 1) if len(inside) else slice(0, 0)
        found.append((band, weights[band].copy()))
    return tuple(found)


@lru_cache(maxsize=1)
def _hann() -> NDArray[np.float32]:
    """Periodic Hann taper, (400,) float32."""
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(N_FFT) / N_FFT)).astype(np.float32)


@lru_cache(maxsize=4)
def mel_filters(n_mels: int) -> NDArray[np.float32]:
    """Slaney-normalised triangular filters, (201, n_mels) float32; librosa.filters.mel's formula.

    The Slaney scale is linear (66.67 Hz a step) below 1 kHz and logarithmic above.
    """
    bins = np.linspace(0, SAMPLE_RATE / 2, N_FFT // 2 + 1)
    highest = _LOG_START_MEL + np.log(SAMPLE_RATE / 2 / _LOG_START_HZ) / _LOG_STEP
    edges = _mel_to_hz(np.linspace(0.0, float(highest), n_mels + 2, dtype=np.float64))
    widths = np.diff(edges)
    slopes = edges[:, None] - bins[None, :]
    rising = -slopes[:-2] / widths[:-1, None]
    falling = slopes[2:] / widths[1:, None]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    area = 2.0 / (edges[2:] - edges[:-2])
    return np.ascontiguousarray((triangles * area[:, None]).T, dtype=np.float32)


_LINEAR_HZ = 200.0 / 3
_LOG_START_HZ = 1000.0
_LOG_START_MEL = _LOG_START_HZ / _LINEAR_HZ
_LOG_STEP = np.log(6.4) / 27.0


def _mel_to_hz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    """Frequencies, in Hz, of mels on Slaney's scale."""
    above = _LOG_START_HZ * np.exp(_LOG_STEP * (mel - _LOG_START_MEL))
    return np.where(mel < _LOG_START_MEL, mel * _LINEAR_HZ, above)
