"""How loud it is, and how loud it is when nobody speaks: a running estimate of the noise floor."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from appliance.records import SAMPLE_RATE, Samples

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


def power_of(samples: Samples) -> float:
    """Mean square of samples (n,) int16, a constant offset (DC) left out; 2 us for 480 of them."""
    wide = samples.astype(np.float64)
    mean = float(wide.sum()) / len(wide)
    return max(0.0, float(wide @ wide) / len(wide) - mean * mean)


def loudest(powers: Sequence[float], frames: int) -> float:
    """The greatest mean power of so many frames in a row, or of all where there are fewer."""
    run = min(frames, len(powers))
    return max(0.0, float(np.convolve(powers, np.ones(run) / run, "valid").max()))


def ratio_of(difference_db: float) -> float:
    """The ratio of powers that is so many dB."""
    return float(10 ** (difference_db / 10))


class NoiseFloor:
    """The power of the newest sound and the lowest one of the last KEPT_S. One thread."""

    def __init__(self) -> None:
        self.level = 0.0
        """Mean power of the last SMOOTHED_S."""
        self._newest: deque[tuple[float, int]] = deque()
        """Energy and samples of the frames that `level` is made of."""
        self._energy, self._samples = 0.0, 0
        self._lowest: deque[float] = deque(maxlen=PARTS)
        self._part_left = 0
        self.power = QUIETEST
        """The noise floor, at least QUIETEST."""

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
            self._lowest.append(self.level)
            self.power = max(QUIETEST, min(self._lowest))
        elif self.level < self._lowest[-1]:
            self._lowest[-1] = self.level
            self.power = max(QUIETEST, min(self.power, self.level))
        self._part_left -= samples

    def reset(self) -> None:
        """Forgets what was heard: what comes next follows a gap."""
        self._newest.clear()
        self._energy, self._samples = 0.0, 0
        self._lowest.clear()
        self._part_left, self.power = 0, QUIETEST
