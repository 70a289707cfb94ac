"""A sound source without a device."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from appliance.capture.frames import Source
from appliance.records import Frame


def silence(pause_s: float = 0.0) -> Iterator[Frame]:
    """Frames of 30 ms for ever, one every `pause_s`."""
    while True:
        time.sleep(pause_s)
        yield Frame(np.zeros(480, np.int16), time.monotonic())


class FakeSource(Source):
    """A microphone that gives the frames of a script."""

    description = "a fake microphone"

    def __init__(
        self, script: Iterable[Frame], before_each: Callable[[], object] = lambda: None
    ) -> None:
        """`before_each` is called before each frame, and may wait."""
        self._script, self._before_each = script, before_each
        self._stopped = threading.Event()
        self.closed = False

    def frames(self) -> Iterator[Frame]:
        for frame in self._script:
            self._before_each()
            if self._stopped.is_set():
                return
            yield frame

    def stop(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        self.closed = True
