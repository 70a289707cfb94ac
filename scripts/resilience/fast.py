"""`roomscribe`, hearing standard input as fast as it digests it; scripts/torture runs it.

Everything is the product's but the pace of `--recording -`: at most AHEAD frames wait for the
segmenter, and no utterance is added to a queue of QUEUE. So whoever feeds the pipe
knows from what has been read of it what has been heard. Frames carry the time when they were
given. $ROOMSCRIBE_TORTURE_POSITIONS names a file for where in the sound each window came.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import appliance.daemon.listening
import appliance.daemon.pipeline
import appliance.daemon.service
from appliance.__main__ import main
from appliance.capture.recording import Recording
from appliance.capture.segmenter import Segmenter
from appliance.records import SAMPLE_RATE, Discarded, Frame, Window

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

AHEAD = 4
"""Frames that may wait for the segmenter."""
QUEUE = 3
"""Utterances that may wait for the transcriber before the sound waits, too."""
LOOK_EVERY = 8
"""Frames between two looks at the queue."""
CATCH_UP_S = 0.4
"""After a wait the frames' clock follows by so much a frame: more would be a hole in the sound."""


class Digested(Segmenter):
    """Counts what it was given, and writes down where windows came."""

    taken = 0
    """Frames given so far; what came of all but the last one is queued, and in the spool."""
    heard_s = 0.0

    def push(self, frame: Frame) -> list[Window | Discarded]:
        """As the segmenter does."""
        Digested.taken += 1
        Digested.heard_s += len(frame.samples) / SAMPLE_RATE
        found = super().push(frame)
        if POSITIONS and found:
            write_positions(found)
        return found


POSITIONS = os.environ.get("ROOMSCRIBE_TORTURE_POSITIONS", "")


def write_positions(found: list[Window | Discarded]) -> None:
    """One line for each window, whatever becomes of it."""
    with Path(POSITIONS).open("a", encoding="utf-8") as file:
        for one in found:
            if isinstance(one, Window):
                at = {"id": one.id, "until_s": Digested.heard_s, "duration_s": one.duration_s}
                file.write(json.dumps(at) + "\n")


class Running(appliance.daemon.pipeline.Pipeline):
    """Lets the sound see the queue."""

    newest: Running | None = None

    def start(self) -> None:
        """As the pipeline does."""
        Running.newest = self
        super().start()


class FastInput(Recording):
    """Standard input, each frame when there is room for it."""

    def __init__(self) -> None:
        super().__init__("-", real_time=False)

    def frames(self) -> Iterator[Frame]:
        """All frames, dated now; ends with the input or `stop`."""
        before_s = 0.0
        given = Digested.taken
        for frame in super().frames():
            while not self._stopped.is_set() and not self._room(given):
                time.sleep(0.0005)
            now_s = time.monotonic() - len(frame.samples) / SAMPLE_RATE
            before_s = min(now_s, before_s + CATCH_UP_S) if before_s else now_s
            given += 1
            yield Frame(frame.samples, before_s, frame.after_gap)

    def _room(self, given: int) -> bool:
        """The segmenter has all that was given, and the transcriber is not far behind."""
        if Digested.taken < given - AHEAD:
            return False
        running = Running.newest
        return given % LOOK_EVERY != 0 or running is None or running.state().queue_depth <= QUEUE


appliance.daemon.listening.open_source = lambda *_args, **_named: FastInput()  # type: ignore[attr-defined]
appliance.daemon.pipeline.Segmenter = Digested  # type: ignore[attr-defined]
appliance.daemon.service.Pipeline = Running  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.exit(main())
