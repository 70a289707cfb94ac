"""A stream of samples -> frames of 30 ms, dated; the sources that give them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np

from appliance.records import SAMPLE_RATE, EchoState, Frame, Samples
from appliance.system import Closing

FRAME_MS = 30
"""webrtcvad takes 10, 20 or 30 ms and nothing else; the longest costs least."""
FRAME_SAMPLES = SAMPLE_RATE * FRAME_MS // 1000
LOST_S = 0.2
"""When the clock is further ahead of the samples than this, samples were lost or are late."""
BURST_WITHIN_S = 0.5
"""Late samples come within this; what has not come by then is lost."""
DRIFT_SHARE = 0.01
"""Share of a difference from the clock that is made good per block: smooths jitter, follows the
sound card's own clock."""


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


class SampleClock:
    """Dates samples on time.monotonic()'s clock by counting them. One thread."""

    def __init__(self) -> None:
        self.began_s = 0.0
        """When the stream's first sample was recorded, as it looks from the newest one."""
        self._begun = False
        self._late_since_s = 0.0
        self._late_s: float | None = None
        """The least that samples have been behind the clock since they fell behind."""

    def follow(self, now_s: float, received_s: float, *, lost: bool = False) -> bool | None:
        """True when samples were lost; `received_s` of sound had come when it was `now_s`.

        None while it is not known: sound that is behind the clock may be lost, or only late, and
        then what is missing comes in one burst.
        """
        ahead_s = now_s - received_s - self.began_s
        if not self._begun:
            self._begun, self.began_s = True, now_s - received_s
            return False
        if lost:
            self._late_s = None
            self.began_s += max(ahead_s, 0.0)
            return True
        if ahead_s > LOST_S:
            return self._wait_and_see(now_s, ahead_s)
        self._late_s = None
        self.began_s += ahead_s if ahead_s < -LOST_S else DRIFT_SHARE * ahead_s
        return False

    def _wait_and_see(self, now_s: float, ahead_s: float) -> bool | None:
        if self._late_s is None:
            self._late_s, self._late_since_s = ahead_s, now_s
        self._late_s = min(self._late_s, ahead_s)
        if now_s < self._late_since_s + BURST_WITHIN_S:
            return None
        self.began_s += self._late_s
        self._late_s = None
        return True


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
