"""A stream of samples -> frames of 30 ms, dated."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from appliance.records import SAMPLE_RATE, Frame, Samples

FRAME_MS = 30
"""webrtcvad takes 10, 20 or 30 ms and nothing else; the longest costs least."""
FRAME_SAMPLES = SAMPLE_RATE * FRAME_MS // 1000


class Framer:
    """Cuts a stream of samples into frames of FRAME_SAMPLES. One thread."""

    def __init__(self) -> None:
        self._pending: Samples = np.empty(0, np.int16)
        self._after_gap = False

    def push(self, samples: Samples, start_s: float) -> Iterator[Frame]:
        """The frames completed by `samples` (n,) int16, the first one recorded at `start_s`."""
        first_s = start_s - len(self._pending) / SAMPLE_RATE
        waiting = np.concatenate((self._pending, samples))
        whole = len(waiting) - len(waiting) % FRAME_SAMPLES
        self._pending = waiting[whole:]
        for at in range(0, whole, FRAME_SAMPLES):
            frame = waiting[at : at + FRAME_SAMPLES]
            yield Frame(frame, first_s + at / SAMPLE_RATE, self._after_gap)
            self._after_gap = False

    def gap(self) -> None:
        """Says that samples were lost here: the begun frame is dropped, the next one flagged."""
        self._pending = np.empty(0, np.int16)
        self._after_gap = True

    def rest(self, start_s: float) -> Iterator[Frame]:
        """The begun frame, if there is one, filled up with silence; `start_s` is the end of it."""
        if missing := -len(self._pending) % FRAME_SAMPLES:
            yield from self.push(np.zeros(missing, np.int16), start_s)
