"""Whether what a microphone gives can be speech at all: digital silence, distortion."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LOUD_SHARE = 0.001
"""As the segmenter has it: more samples than this at full scale are heard as distortion."""
LOUD_AFTER_S, LOUD_AT_MOST_S = 5.0, 10.0
"""So much more distorted than clear sound is told; it is taken back when the balance is even."""


class Levels:
    """Follows the sound of one microphone. One thread pushes, any thread looks."""

    def __init__(self, silence_s: float) -> None:
        """`silence_s`: so long only zeros mean that nothing is heard; 0: never."""
        self._silence_s = silence_s
        self._loud_s = 0.0
        self.silent_s = 0.0
        """For so long nothing but zeros has come: muted, or not plugged in."""
        self.distorted = False
        """For seconds a good part of the sound has been at full scale."""

    @property
    def silent(self) -> bool:
        """True while nothing but zeros has come for long; false again with the first sample."""
        return 0 < self._silence_s <= self.silent_s

    def push(self, sound: NDArray[np.int16], duration_s: float) -> None:
        """Takes note of the next samples as the device gave them, an array of any shape."""
        self.silent_s = 0.0 if sound.any() else self.silent_s + duration_s
        full = np.count_nonzero((sound == 32767) | (sound == -32768))
        balance_s = duration_s if full > LOUD_SHARE * sound.size else -duration_s
        self._loud_s = min(max(self._loud_s + balance_s, 0.0), LOUD_AT_MOST_S)
        if not 0.0 < self._loud_s < LOUD_AFTER_S:
            self.distorted = self._loud_s > 0.0
