"""The soak's picture: memory, descriptors, threads and the database over the hours of sound."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any


def draw(lines: list[dict[str, Any]], file: Path) -> None:
    """Writes a PNG; without matplotlib there is none, with a line that says so."""
    try:
        import matplotlib as mpl
    except ImportError:
        print("soak: no picture: matplotlib is not installed")
        return
    mpl.use("Agg")
    from matplotlib import pyplot

    hours = [line["hours"] for line in lines]
    panels = {
        "RSS, MiB": [line["rss_kib"] / 1024 for line in lines],
        "file descriptors": [line["fds"] for line in lines],
        "threads": [line["threads"] for line in lines],
        "database, MiB": [line["db_kib"] / 1024 for line in lines],
    }
    figure, axes = pyplot.subplots(len(panels), 1, sharex=True, figsize=(8, 9))
    for axis, (name, values) in zip(axes, panels.items(), strict=True):
        axis.plot(hours, values)
        axis.set_ylabel(name)
        axis.set_ylim(0, max(values) * 1.2 or 1)
        axis.grid(alpha=0.3)
        for before, line in itertools.pairwise(lines):
            if line["process"] != before["process"]:
                axis.axvline(before["hours"], linestyle=":", color="grey")
    axes[-1].set_xlabel("hours of sound")
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
