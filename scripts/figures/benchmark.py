"""Run `roomscribe benchmark` with every row: those on a Hailo run on the tests' simulated one.

    scripts/measure benchmark [OPTION OF roomscribe benchmark ...]

The model in use is made of the weights (--checkpoint; default: tiny.en, as scripts/setup.sh got it)
and of HEFs that the simulated chip computes on this processor: its texts are right, its times are
not a Hailo's. Its decoder has the length of the one that Hailo publishes for whisper-tiny.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from rigs.hailo_simulator.control import Simulator, with_decoder, with_hef
from rigs.recordings import SHARED_AUDIO
from rigs.weights import find_weights

from appliance.config import Settings
from appliance.convert.build import Recipe, build_bundle
from appliance.lab import add_benchmark_arguments, run_benchmark
from appliance.model import load_bundle

LENGTH = 32
"""Tokens that a decoder's HEF writes, prompt included."""


def main() -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser("scripts/measure benchmark", description=__doc__)
    add_benchmark_arguments(parser)
    parser.set_defaults(checkpoint=find_weights(), recordings=SHARED_AUDIO)
    options = parser.parse_args()
    if options.checkpoint is None:
        parser.error("no weights of tiny.en: run scripts/setup.sh, or give --checkpoint FOLDER")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        plain, folder = Path(scratch) / "plain", Path(scratch) / "hailo"
        build_bundle(options.checkpoint, plain, Recipe("simulated", 10.0, quantize="int8"))
        with_decoder(with_hef(load_bundle(plain), folder), options.checkpoint, LENGTH)
        simulator = Simulator(Path(scratch) / "machine")
        simulator.enter()
        simulator.plug(latency_ms=0.0, patience=100, remember=False)
        paths = (simulator.environment["PYTHONPATH"], os.environ.get("PYTHONPATH", ""))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        settings = Settings()
        return run_benchmark(
            options, replace(settings, model=replace(settings.model, bundle=str(folder)))
        )


if __name__ == "__main__":
    sys.exit(main())
