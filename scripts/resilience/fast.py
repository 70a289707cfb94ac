"""Run `roomscribe` on standard input as fast as it can; scripts/measure torture uses it.

Everything is the product's but the pace of `--recording -`: at most AHEAD frames wait for the
segmenter, and no utterance is added to a queue of QUEUE. So whoever feeds the pipe
knows from what has been read of it what has been heard. Frames carry the time when they were
given.
"""

import functools
import sys
import time
from collections.abc import Iterator
from typing import Any

from appliance.capture.recording import Recording
from appliance.capture.segmenter import Segmenter
from appliance.cli import run
from appliance.cli.main import main
from appliance.config import Settings
from appliance.daemon.assembly import Factories, build
from appliance.daemon.pipeline import Pipeline
from appliance.records import SAMPLE_RATE, Discarded, Frame, Window

AHEAD = 4
"""Frames that may wait for the segmenter."""
QUEUE = 3
"""Utterances that may wait for the transcriber before the sound waits, too."""
LOOK_EVERY = 8
"""Frames between two looks at the queue."""
CATCH_UP_S = 0.4
"""After a wait the frames' clock follows by so much a frame: more would be a hole in the sound."""


class CountingSegmenter(Segmenter):
    """Counts what it was given."""

    taken = 0
    """Frames given so far; what came of all but the last one is queued, and in the spool."""

    def push(self, frame: Frame) -> list[Window | Discarded]:
        """As the segmenter does."""
        self.taken += 1
        return super().push(frame)


class FastPipeline(Pipeline):
    """The product's, whose source waits for its stages."""

    segmenter: CountingSegmenter

    def __init__(self, settings: Settings) -> None:
        factories = Factories(source=lambda *_: FastInput(self), segmenter=self._counting_segmenter)
        super().__init__(build(settings, factories))

    def has_room(self, given: int) -> bool:
        """The segmenter has nearly all that was given, and the transcriber is not far behind."""
        if self.segmenter.taken < given - AHEAD:
            return False
        return given % LOOK_EVERY != 0 or self.state().queue_depth <= QUEUE

    def _counting_segmenter(self, *arguments: Any) -> CountingSegmenter:
        self.segmenter = CountingSegmenter(*arguments)
        return self.segmenter


class FastInput(Recording):
    """Standard input, each frame when there is room for it."""

    def __init__(self, pipeline: FastPipeline) -> None:
        super().__init__("-", real_time=False)
        self._pipeline = pipeline

    def frames(self) -> Iterator[Frame]:
        """All frames, dated now; ends with the input or `stop`."""
        before_s = 0.0
        given = self._pipeline.segmenter.taken
        for frame in super().frames():
            while not self._stopped.is_set() and not self._pipeline.has_room(given):
                time.sleep(0.0005)
            now_s = time.monotonic() - len(frame.samples) / SAMPLE_RATE
            before_s = min(now_s, before_s + CATCH_UP_S) if before_s else now_s
            given += 1
            yield Frame(frame.samples, before_s, frame.after_gap)


if __name__ == "__main__":
    sys.exit(main(command=functools.partial(run.run, pipeline=FastPipeline)))
