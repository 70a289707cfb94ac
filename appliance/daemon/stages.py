"""Stages and the queues between them: a stage is a named thread whose progress is watched."""

import enum
import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, Queue
from typing import Generic, TypeVar

from appliance.errors import DeviceError

log = logging.getLogger("roomscribe.daemon")

Item = TypeVar("Item")


class Sentinel(enum.Enum):
    """A mark in a queue, between the items before it and those after it."""

    LOST = "the source was lost in mid-stream"
    KEPT = "a transcript for others waits to be stored"
    DECIDED = "the silence that ends the utterance is known"
    END = "nothing follows"


class StageQueue(Queue[Item | Sentinel], Generic[Item]):
    """What waits between two stages: at most `maxsize` items, and the marks among them.

    A full queue takes no item (`put_nowait` raises Full). It always takes a mark, without waiting:
    a mark that follows its like says nothing new and is left out, so that at most one of each kind
    stands behind the last item.
    """

    def mark(self, mark: Sentinel) -> None:
        """Put a mark, even if the queue is full. Any thread."""
        with self.mutex:
            if not self.queue or self.queue[-1] is not mark:
                self._put(mark)
                self.not_empty.notify()

    def next(self, idle_s: float) -> Item | Sentinel | None:
        """Return the oldest item or mark; None if none came in time."""
        try:
            return self.get(timeout=idle_s)
        except Empty:
            return None


class Stage(threading.Thread):
    """A named thread that shows its progress and keeps its error for the main thread."""

    def __init__(
        self,
        name: str,
        work: Callable[["Stage"], bool],
        on_error: Callable[[], None],
        *,
        stop: Callable[[float], object] = lambda _: None,
        timeout_s: float = 10.0,
    ) -> None:
        """`work` returns True if it was told to end, or has nothing left to do. `stop` tells it to
        end, within so many seconds. A stop waits for it for `timeout_s` at most."""
        super().__init__(name=name, daemon=True)
        self.error: Exception | None = None
        self.tell_to_stop, self.timeout_s = stop, timeout_s
        self._beat_s = time.monotonic()
        self._work, self._on_error = work, on_error

    def run(self) -> None:
        """Do the work. An end that nobody asked for is an error, too."""
        try:
            if not self._work(self):
                self.error = DeviceError(f"the {self.name} ended by itself; restarting")
        except Exception as error:
            self.error = error
        except BaseException as error:
            kind = type(error).__name__
            self.error = DeviceError(f"the {self.name} was ended by {kind}: {error}; restarting")
        if self.error:
            self._on_error()

    def leave(self, timeout_s: float) -> None:
        """Wait for its end, and go on without it if it takes longer."""
        self.join(timeout_s)
        if self.is_alive():
            log.error("the %s is still busy and is left behind", self.name)

    def heartbeat(self) -> None:
        """Report progress, which feeds the watchdog."""
        self._beat_s = time.monotonic()

    def idle_s(self) -> float:
        """Return the seconds since the last heartbeat; 0 after its end."""
        return time.monotonic() - self._beat_s if self.is_alive() else 0.0
