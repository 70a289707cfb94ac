"""One thread of the pipeline, and how it waits for its queue."""

from __future__ import annotations

import contextlib
import enum
import logging
import threading
import time
from collections.abc import Callable, Iterable
from queue import Empty, Full, Queue
from typing import TypeVar

from appliance.errors import DeviceError

log = logging.getLogger("roomscribe")

IDLE_S = 1.0

Item = TypeVar("Item")


class Mark(enum.Enum):
    """What a queue carries besides sound."""

    LOST = "the source was lost in mid-stream"
    END = "nothing follows"


class Stage(threading.Thread):
    """A named thread that shows that it moves and keeps its error for the main thread."""

    def __init__(self, name: str, work: Callable[[Stage], bool], on_error: Callable[[], None]):
        """`work` is true when it was asked to end, or has nothing left to do."""
        super().__init__(name=name, daemon=True)
        self.error: Exception | None = None
        self._moved_s = time.monotonic()
        self._work, self._on_error = work, on_error

    def run(self) -> None:
        """Thread's body. An end that nobody asked for is an error, too."""
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

    def leave(self, within_s: float) -> None:
        """Waits for its end, and goes on without it when it takes longer."""
        self.join(within_s)
        if self.is_alive():
            log.error("the %s is still busy and is left behind", self.name)

    def moved(self) -> None:
        """Says that the stage made progress; the watchdog is fed by it."""
        self._moved_s = time.monotonic()

    def still_s(self) -> float:
        """Seconds since the stage last moved; 0 when it has ended."""
        return time.monotonic() - self._moved_s if self.is_alive() else 0.0


def slowest(stages: Iterable[Stage]) -> tuple[float, str]:
    """Seconds since the one that moved longest ago did, and its name."""
    return max(((stage.still_s(), stage.name) for stage in stages), default=(0.0, ""))


def next_item(queue: Queue[Item]) -> Item | None:
    """The queue's next item; None when nothing came for a while."""
    try:
        return queue.get(timeout=IDLE_S)
    except Empty:
        return None


def hand_on(queue: Queue[Item], item: Item, stage: Stage) -> None:
    """Waits for room and queues the item. The next stage is watched by itself: waiting for it is
    no standing still.
    """
    while True:
        try:
            queue.put(item, timeout=IDLE_S)
            break
        except Full:
            stage.moved()
    stage.moved()


def end(followers: Queue[Item | Mark]) -> None:
    """Tells the next stage that nothing follows; for a stage that could not say so itself."""
    with contextlib.suppress(Full):
        followers.put_nowait(Mark.END)
