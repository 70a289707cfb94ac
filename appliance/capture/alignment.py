"""Alignment of a reference with the microphone: finds the delay between the two, and follows it.

Both streams are counted in samples at 16 kHz of their own clock. The reference's position that
belongs to a sample of the microphone is `shift` samples further; it moves with `rate`, because two
sound cards never have the same clock (up to 100 ppm apart: 1.6 samples per second).

The delay is the peak of the cross-correlation with all frequencies weighted alike (GCC-PHAT, Knapp
and Carter 1976), which is sharp in a room with echo.
"""

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.records import SAMPLE_RATE

Sound = NDArray[np.float32]
"""(n,) float32 at 16 kHz, int16's scale."""

EARLY_S, LATE_S = 2.5, 0.08
"""The reference may be this far ahead of the sound in the room, or this far behind it."""
LEAD = 128
"""Samples of the echo canceller's filter before the direct sound (8 ms)."""
LOWEST_HZ, HIGHEST_HZ = 150.0, 7000.0
SEARCH_S = (1.0, 2.0, 4.0)
"""Sound that the searches for the delay compare, one after the other."""
SOFT_SHARE = 0.01
"""To `locate`, frequencies where the reference has less than this share of its mean power count
less: while a person speaks, too, it finds 178 of 180 delays (168 without), none wrong (2). A search
in sound without any echo would find one by chance."""
SEARCH_PEAK, LOCATE_PEAK, FOLLOW_PEAK = 9.0, 8.0, 6.0
"""A peak counts if it is so many times the root mean square of the other values: among the 40,000
values of a search chance reaches 5, among the 500 of `follow` 3; among the 12,800 of `locate`, with
a person's speech in the sound, 7."""
FOLLOW_LENGTH = SAMPLE_RATE
FOLLOW_RANGE = 256
"""Samples around the expected delay that `follow` looks at."""
LOCATED_S, LOCATE_RANGE = 0.45, 6400
"""Least sound by which a delay is corrected after a pause, and the samples around it that are
looked at: a sound server begins up to 0.4 s earlier or later."""
SAME_LAG = 4.0
"""Delays that differ by so few samples are the same."""
POINTS, FEWEST_POINTS = 40, 6
"""Delays, one per second, from which the rate is computed."""
FASTEST = 0.0005
"""Largest rate; crystals differ by at most 200 ppm."""
CORRECTED_PER_S = 0.2
"""Samples of a remaining difference that are corrected per second: the filter can follow."""
STRAYS = 3
"""Delays in a row that do not fit before the delay is searched again."""


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest value of a cross-correlation."""

    lag: float
    """Samples by which the second sound is ahead of the first."""
    height: float
    """Times the root mean square of all values."""


def correlate(sound: Sound, reference: Sound, first: int, count: int, soft: float = 0.0) -> Peak:
    """Return the peak of GCC-PHAT among the lags `first` to `first + count - 1`: `sound[n]` is
    compared with `reference[n + lag]`. The lags may lie anywhere within the reference. Frequencies
    where that has less than `soft` of its mean power count less."""
    size = 1 << (max(len(sound), len(reference)) + 1).bit_length()
    played = np.fft.rfft(reference, size)
    spectrum = played * np.conj(np.fft.rfft(sound, size))
    magnitude, power = np.abs(spectrum), np.abs(played) ** 2
    spectrum /= magnitude + np.float32(1e-3) * magnitude.mean() + np.float32(1e-9)
    spectrum *= power / (power + np.float32(soft) * power.mean() + np.float32(1e-9))
    hz_per_bin = SAMPLE_RATE / size
    spectrum[: int(LOWEST_HZ / hz_per_bin)] = 0
    spectrum[int(HIGHEST_HZ / hz_per_bin) :] = 0
    values = np.fft.irfft(spectrum, size)
    values = values[np.arange(first, first + count) % size]
    rms = float(np.sqrt(np.mean(values * values)))
    best = int(np.argmax(values))
    lag = float(first + best)
    if 0 < best < count - 1:
        before, at, after = (float(value) for value in values[best - 1 : best + 2])
        lag += (before - after) / 2 / (before - 2 * at + after)
    return Peak(lag, float(values[best]) / rms if rms else 0.0)


class Alignment:
    """Where the reference is, for each sample of the microphone. One thread."""

    def __init__(self) -> None:
        self.shift = 0.0
        """The reference's sample `n + shift` is played LEAD samples before it is recorded as the
        microphone's sample n."""
        self.rate = 0.0
        """Change of `shift` per sample of the microphone."""
        self.locked = False
        """True once the delay is known."""
        self._tries = 0
        self._strays = 0
        self._located = -math.inf
        self._points: deque[tuple[float, float]] = deque(maxlen=POINTS)

    def advance(self, samples: int) -> None:
        """Move on with the microphone by so many samples."""
        self.shift += self.rate * samples

    def reset(self) -> None:
        """Search again: one of the streams was interrupted. The rate stays."""
        self.locked = False
        self._tries = self._strays = 0
        self._points.clear()

    def move(self, shift: float) -> None:
        """The reference has begun again about there. The rate stays."""
        self.shift = shift
        self._strays = 0
        self._located = -math.inf
        self._points.clear()

    def locate(self, sound: Sound, reference: Sound, around: int) -> bool:
        """Correct the delay after `move` by the sound since; return True if it is known:
        two calls in a row found the same. `reference` begins `around` samples before the sound, as
        it is aligned, and ends as much later."""
        peak = correlate(sound, reference, 0, 2 * around, SOFT_SHARE)
        agrees = abs(peak.lag - self._located) <= SAME_LAG
        self._located = peak.lag
        if peak.height < LOCATE_PEAK or not agrees:
            return False
        self.shift += peak.lag - around + LEAD
        return True

    @property
    def search_length(self) -> int:
        """Samples that the next search needs."""
        return int(SEARCH_S[min(self._tries, len(SEARCH_S) - 1)] * SAMPLE_RATE)

    def search(self, sound: Sound, reference: Sound, expected: float) -> bool:
        """Find the delay; return True if it was found. `reference` begins EARLY_S earlier than the
        sound and ends LATE_S later, if `shift` is `expected`."""
        self._tries += 1
        early, late = int(EARLY_S * SAMPLE_RATE), int(LATE_S * SAMPLE_RATE)
        peak = correlate(sound, reference, 0, early + late)
        if peak.height < SEARCH_PEAK:
            return False
        self.shift = expected + peak.lag - early + LEAD
        self.locked, self._tries, self._strays = True, 0, 0
        self._points.clear()
        return True

    def follow(self, position: int, sound: Sound, aligned: Sound) -> bool:
        """Compare the newest second with the reference as it was aligned; `position` is the count
        of the microphone's samples. Return False if the reference is not there any more."""
        peak = correlate(sound, aligned, -LEAD - FOLLOW_RANGE, 2 * FOLLOW_RANGE)
        if peak.height < FOLLOW_PEAK:
            return False
        found = self.shift + peak.lag + LEAD
        expected = self.shift
        if self._points:
            expected = float(np.median([shift for _, shift in self._points][-5:]))
        if abs(found - expected) > 24:
            self._strays += 1
            if self._strays < STRAYS:
                return True
            self.reset()
            return False
        self._strays = 0
        self._points.append((float(position), found))
        self._steer(position)
        return True

    def _steer(self, position: int) -> None:
        """Set the rate from the delays found so far."""
        if len(self._points) < FEWEST_POINTS:
            return
        times, shifts = np.array(self._points).T
        times = times - position
        for _ in range(2):  # the second time without what does not fit
            slope, at_end = np.polyfit(times, shifts, 1)
            misfit = np.abs(shifts - slope * times - at_end)
            fits = misfit <= max(1.0, 2.5 * float(np.median(misfit)))
            times, shifts = times[fits], shifts[fits]
        remaining = np.clip(at_end - self.shift, -2.0, 2.0) / 2.0 * CORRECTED_PER_S / SAMPLE_RATE
        self.rate = float(np.clip(slope, -FASTEST, FASTEST) + remaining)
