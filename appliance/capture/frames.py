"""A stream of samples -> frames of 30 ms, dated; the sources that give them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np

from appliance.records import SAMPLE_RATE, EchoState, Frame, Samples
from appliance.system import Closing

FRAME_MS = 30
"""webrtcvad takes 10, 20 or 30 ms and nothing else; the longest costs least."""
FRAME_SAMPLES = SAMPLE_RATE * FRAME_MS // 1000


class Source(Closing, ABC):
    """Where sound comes from. One thread reads, any thread may call `stop` and look."""

    description = ""
    """For people: the device's or the file's name."""

    @property
    def silence(self) -> str:
        """Why there is no sound although samples come, with the fix; empty when all is well."""
        return ""

    @property
    def trouble(self) -> str:
        """What else is wrong with the sound, with the fix; empty when all is well."""
        return ""

    @property
    def echo(self) -> EchoState | None:
        """What the echo canceller does; None without a reference."""
        return None

    @abstractmethod
    def frames(self) -> Iterator[Frame]:
        """Yield frames of 30 ms until the source ends or `stop` is called. Raises DeviceError."""

    @abstractmethod
    def stop(self) -> None:
        """Make `frames` end soon."""

    @abstractmethod
    def close(self) -> None:
        """Close it, after the last frame."""


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
