"""Run `roomscribe benchmark` with every row and table, also those on a Hailo: on a simulated one.

    scripts/measure benchmark [--base FOLDER] [--tables rows,cache,padding,guards]
        [--only tiny.en|base] [--write] [--chart FILE] [OPTION OF roomscribe benchmark ...]

The weights are tiny.en's, as scripts/setup.sh got them (or --checkpoint), and then those of --base.
The simulated chip computes the encoder in float32 on this processor and adds a real chip's noise
(15 dB), so its times are not measured. Its decoder has the length of the one that Hailo publishes.
--write puts the tables and the chart into docs/figures.md and docs/benchmark-*.svg. --chart draws
the words wrong of both models against their processor time.
"""

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from evening_run.charts import draw_words
from evening_run.publish import put
from evening_run.results import about
from figures.hailo import chip_bundle
from rigs.checkout import ROOT
from rigs.hailo_simulator.control import Simulator, with_decoder
from rigs.recordings import SHARED_AUDIO
from rigs.weights import find_weights

from appliance.config import Settings
from appliance.lab import add_benchmark_arguments
from appliance.lab.benchmark.main import OTHERS, UNMEASURED, as_page, benchmark_tables, draw_chart
from appliance.model import load_bundle
from appliance.system import write_whole

LENGTHS = {"tiny.en": 32, "base": 24}
"""Tokens that a decoder's HEF writes, prompt included."""
NOISE_DB = 15.0
FEWER, FEW = {"padding", "guards"}, 24
"""Tables of which each row is a run of its own take a part of the recordings."""
NAMES = {"rows": "the ways to run it", "cache": "the cache", "padding": "the padding",
         "guards": "guards"}  # fmt: skip


def main() -> int:
    """Print the tables; return the exit status."""
    parser = argparse.ArgumentParser("scripts/measure benchmark", description=__doc__)
    add_benchmark_arguments(parser)
    parser.add_argument("--base", type=Path, metavar="FOLDER", help="base's weights")
    parser.add_argument("--tables", default=",".join(("rows", *OTHERS)), metavar="A,B")
    parser.add_argument("--only", choices=LENGTHS, help="only this model")
    parser.add_argument("--write", action="store_true")
    parser.set_defaults(checkpoint=find_weights(), recordings=SHARED_AUDIO)
    options = parser.parse_args()
    if options.checkpoint is None:
        parser.error("no weights of tiny.en: run scripts/setup.sh, or give --checkpoint FOLDER")
    weights = {"tiny.en": options.checkpoint, "base": options.base}
    rows: dict[str, list[dict[str, Any]]] = {}
    seen = about(ROOT, load_bundle("tiny.en").folder)
    for model in [options.only] if options.only else weights:
        if weights[model] is None:
            print(f"no weights of {model}: its tables are left out", file=sys.stderr)
            continue
        options.checkpoint = weights[model]
        sections = [f"Commit {seen['commit']}, {seen['processor']}, {seen['date']}."]
        for name, found in measured(options, model):
            text = as_page(name, found)
            if name == "rows":
                rows[model] = found
            print(f"\n{text}\n", flush=True)
            count = f"{options.most or 'all'} recordings"
            sections.append(f"Whisper {model}: {NAMES[name]} ({count})\n\n{for_page(text)}")
        if options.write:
            put("\n\n".join(sections), f"benchmark {model}")
    if options.chart:
        chart = draw_words(rows, f"{seen['date']}, {seen['commit']}, {seen['processor']}")
        write_whole(options.chart, chart, 0o644)
    return 0


def for_page(text: str) -> str:
    """Return tables for the page: narrow, and without rows in which nothing is measured."""
    for long, short in (
        *((r" *\| *", "|"), (r"--+", "---"), (r"\|Roomscribe, ", "|"), (UNMEASURED, "-")),
        *((r"\(a simulated chip\)", "(simulated)"), (r"\n\|[^|\n]+(\|-)+\|(?=\n|$)", "")),
    ):
        text = re.sub(long, short, text)
    return re.sub(r"\n{3,}", "\n\n", text)


def measured(options: argparse.Namespace, model: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the tables of a model, by their names."""
    names, most = options.tables.split(","), options.most
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        folder = Path(scratch) / "hailo"
        bundle = chip_bundle(options.checkpoint, model, 10.0, "silence", folder)
        with_decoder(bundle, options.checkpoint, LENGTHS[model])
        simulator = Simulator(Path(scratch) / "machine")
        simulator.enter()
        simulator.plug(latency_ms=0.0, patience=100, remember=False, noise_db=NOISE_DB)
        paths = (simulator.environment["PYTHONPATH"], os.environ.get("PYTHONPATH", ""))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        settings = Settings()
        settings = replace(settings, model=replace(settings.model, bundle=str(folder)))
        for name in names:
            options.most = min(most or FEW, FEW) if name in FEWER else most
            for _, found in benchmark_tables(options, settings, [name], simulated=True):
                if name == "rows" and options.write:
                    chart = ROOT / "docs" / f"benchmark-{model}.svg"
                    write_whole(chart, draw_chart(found), 0o644)
                yield name, found
        options.most = most
        simulator.leave()


if __name__ == "__main__":
    sys.exit(main())
