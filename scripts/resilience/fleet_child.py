"""`roomscribe`, whose model takes at least so long for a window: $ROOMSCRIBE_TORTURE_LEAST_MS.

It waits rather than computes, so that several workers share one machine's cores fairly.
"""

from __future__ import annotations

import functools
import os
import sys
import time

from appliance.cli import run
from appliance.cli.main import main
from appliance.config import Settings
from appliance.daemon.assembly import Factories, build
from appliance.daemon.pipeline import Pipeline
from appliance.infer.opening import open_transcriber
from appliance.infer.transcriber import Encoded, Transcriber
from appliance.records import Window

LEAST_MS = float(os.environ.get("ROOMSCRIBE_TORTURE_LEAST_MS") or 0)


class SlowTranscriber(Transcriber):
    """The model, whose encoder takes at least so long."""

    def __init__(self, plain: Transcriber) -> None:
        vars(self).update(vars(plain))

    def encode(self, window: Window) -> Encoded:
        """As the transcriber does."""
        encoded = super().encode(window)
        time.sleep(max(0.0, LEAST_MS - encoded.encode_ms) / 1000)
        return encoded


def open_slow(settings: Settings) -> SlowTranscriber:
    """The bundle of the settings. Raises as `open_transcriber` does."""
    return SlowTranscriber(open_transcriber(settings))


def open_pipeline(settings: Settings) -> Pipeline:
    """A pipeline with that transcriber."""
    return Pipeline(build(settings, Factories(transcriber=open_slow)))


if __name__ == "__main__":
    sys.exit(main(command=functools.partial(run.run, pipeline=open_pipeline)))
