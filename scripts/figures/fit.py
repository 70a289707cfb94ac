"""Measure what `roomscribe model fit` makes of models without a fit, on recordings new to it.

    scripts/measure fit [--only shipped|damaged|random] [--report FOLDER...] [--write] [--again]

Three models are fitted, each by one call of the command's own function:

- shipped: the bundle without its calibration, endings and second pass;
- damaged: the same with noise on the weights of the token embedding (--damage), a worse model;
- random: whisper-tiny's shape with random weights, which the command must refuse.

The first two are reported on the recordings of the folders (default: tests/speech and
$ROOMSCRIBE_SHARED/data/audio, if it is there), to which nothing is fitted. Beside the new
calibration stands the one that the bundle is shipped with, for the same texts. "Acting" counts the
texts from the confidence on that the fit found for acting, and those of at least 0.8.

What is done is kept in --folder (default: build/fit), so that an interrupted measurement continues;
--again starts from the beginning, --listen keeps the fits and listens to the recordings again.
--write puts the table into docs/figures.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from evening_run.publish import put
from evening_run.results import about, weights_checksum
from figures.confidence import Heard, listen, probability
from rigs.checkout import ROOT, SPEECH
from rigs.recordings import SHARED_AUDIO

from appliance.config import Settings
from appliance.errors import RoomscribeError
from appliance.infer.opening import open_transcriber
from appliance.lab.benchmark.subject import make_subject
from appliance.lab.fit.main import FitRequest, fit_model
from appliance.lab.fit.measurements import FILE as MEASUREMENTS
from appliance.lab.fit.statistics import calibration_error, ranking
from appliance.model.bundle import Calibration, enter_files, load_bundle, write_json

BEGIN, END = "<!-- fit: written by scripts/measure fit --write -->", "<!-- /fit -->"
ACTS = 0.8
"""Assist's confidence where a model states none."""
SEED = 9
CLOSE = 0.02
"""Calibration errors that differ by no more are as good as equal."""
FITTED = ("calibration", "endings", "phrase_calibration", "vtln")
Facts = dict[str, Any]
ONE_THREAD = replace(
    Settings(),
    encoder=replace(Settings().encoder, threads=1),
    decoder=replace(Settings().decoder, threads=1),
)


def main() -> int:
    """Print the tables; return 1 if an aim is missed."""
    options = arguments()
    bundle = load_bundle(options.bundle).folder
    results = Results(options.folder, identity(bundle, options), again=options.again)
    shipped = load_bundle(bundle).calibration
    only, report, every = options.only, options.report, options.every

    if options.listen:
        for name in results.found.keys() & {"as shipped", "shipped", "damaged"}:
            folder = bundle if name == "as shipped" else results.folder / name
            results.found[name] |= heard_by(folder, report, shipped)
        results.save()

    def fit(name: str, damage: float) -> None:
        folder = results.folder / name
        results.take(name, lambda: fitted(prepare(folder, bundle, damage), report, shipped, every))

    if only in (None, "shipped"):
        results.take("as shipped", lambda: heard_by(bundle, report, shipped))
        fit("shipped", 0.0)
    if only in (None, "damaged"):
        fit("damaged", options.damage)
    if only in (None, "random"):
        results.take("random", lambda: refused(results.folder / "random"))
    table = as_markdown(results.found, options, bundle)
    print(table)
    if options.write:
        page = ROOT / "docs/figures.md"
        page.write_text(put(page.read_text("utf-8"), table, BEGIN, END), "utf-8")
    return 0 if all(aims(results.found)) else 1


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("scripts/measure fit", description=__doc__)
    parser.add_argument("--bundle", default="tiny.en")
    parser.add_argument("--only", choices=("shipped", "damaged", "random"))
    parser.add_argument("--report", type=Path, nargs="+", default=[SPEECH, SHARED_AUDIO])
    parser.add_argument("--damage", type=float, default=0.25, metavar="SHARE")
    parser.add_argument("--every", type=int, default=1, help="fit to each so many-th sentence only")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/fit")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--listen", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    options.report = [folder for folder in options.report if folder.is_dir()]
    if options.write and (options.only or options.every > 1 or len(options.report) < 2):
        parser.error("--write needs all models, all sentences and both folders of recordings")
    return options


def identity(bundle: Path, options: argparse.Namespace) -> Facts:
    """What the results depend on."""
    code = hashlib.sha256()
    for file in sorted((ROOT / "appliance").rglob("*.py")):
        code.update(file.read_bytes())
    return {
        "code": code.hexdigest()[:16],
        "model": weights_checksum(bundle),
        "damage": options.damage,
        "every": options.every,
        "report": [name_of(folder) for folder in options.report],
    }


class Results:
    """What is measured so far, in a file."""

    def __init__(self, folder: Path, known: Facts, *, again: bool) -> None:
        self.folder, self._file = folder, folder / "results.json"
        before = json.loads(self._file.read_text()) if self._file.is_file() else {}
        if again or (before and before.get("identity") != known):
            print(f"{folder}: starting again", file=sys.stderr)
            shutil.rmtree(folder, ignore_errors=True)
            before = {}
        folder.mkdir(parents=True, exist_ok=True)
        self.found: Facts = before or {"identity": known}
        self.found["about"] = about(ROOT)  # the same code, whatever the commit
        self.save()

    def save(self) -> None:
        """Write the file."""
        write_json(self._file, self.found, indent=1)

    def take(self, name: str, measure: Callable[[], Facts]) -> None:
        """Measure it unless that is done."""
        if name not in self.found:
            print(f"{name} ...", file=sys.stderr, flush=True)
            begun_s = time.process_time()
            self.found[name] = measure()
            self.found[name]["cpu_s"] = round(time.process_time() - begun_s)
            self.save()


def prepare(folder: Path, bundle: Path, damage: float) -> Path:
    """Return a copy of a bundle without its fit, worse by `damage`; the one that is there if a fit
    is under way."""
    if not (folder / "bundle.json").is_file():
        draft = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(draft, ignore_errors=True)
        shutil.copytree(bundle, draft)
        if damage:
            add_noise(draft, damage)
        enter_files(draft, (), **dict.fromkeys(FITTED), short_windows=False)
        draft.rename(folder)
    return folder


def add_noise(folder: Path, share: float) -> None:
    """Add noise to the token embedding, of `share` of its standard deviation."""
    file = folder / "embedding.bin"
    kind = np.float32 if load_bundle(folder).quantize == "none" else np.float16
    weights = np.fromfile(file, kind).astype(np.float64)
    noise = np.random.default_rng(SEED).standard_normal(len(weights))
    (weights + share * weights.std() * noise).astype(kind).tofile(file)
    enter_files(folder, (file.name,))


def fitted(folder: Path, report: Sequence[Path], shipped: Calibration | None, every: int) -> Facts:
    """Fit a bundle, unless that is done, and return the fit with what it makes of recordings."""
    manifest = json.loads((folder / "bundle.json").read_text())
    begun = (folder / MEASUREMENTS).is_file()
    if not manifest.get("fitted"):
        manifest |= fit_model(FitRequest(folder, every=every), ONE_THREAD, follow)
    kept = (*FITTED, "short_windows", "fitted")
    facts = {name: manifest[name] for name in kept} | {"interrupted": begun}
    return facts | heard_by(folder, report, shipped)


def follow(step: str, done: int, total: int) -> None:
    """Print a line at each tenth."""
    if done * 10 // total != (done - 1) * 10 // total:
        print(f"  {step}: {done} of {total}", file=sys.stderr, flush=True)


def heard_by(folder: Path, report: Sequence[Path], shipped: Calibration | None) -> Facts:
    """Return a row for each folder of recordings, and one for all."""
    settings = replace(ONE_THREAD, model=replace(ONE_THREAD.model, bundle=f"{folder}/"))
    sets: dict[str, list[Heard]] = {}
    with open_transcriber(settings) as transcriber:
        act = transcriber.bundle.act_confidence
        for each in report:
            sets[name_of(each)] = list(listen(settings, transcriber, each))
    sets["all"] = [one for part in sets.values() for one in part]
    return {"sets": {name: row(part, act, shipped) for name, part in sets.items()}}


def name_of(recordings: Path) -> str:
    """Return the name of a folder of recordings in the table."""
    return f"{recordings.parent.name}/{recordings.name}"


def row(heard: Sequence[Heard], act: float, shipped: Calibration | None) -> Facts:
    """Return the figures of one set."""
    right = np.array([one.right for one in heard], bool)
    found = np.array([one.confidence for one in heard], float)
    before = np.array([probability(one, shipped) for one in heard], float)
    facts: Facts = {
        "texts": len(heard),
        "right": int(right.sum()),
        "error": round(calibration_error(found, right), 3),
        "error_shipped": round(calibration_error(before, right), 3),
        "area": round(ranking(found, right), 3) if 0 < right.sum() < len(right) else None,
    }
    for name, limit in (("acting", act), ("at_80", ACTS)):
        sure = found >= limit
        facts[name] = [int((sure & right).sum()), int((sure & ~right).sum())] if limit else None
    return facts


def refused(scratch: Path) -> Facts:
    """Return the error that a model with random weights ends with."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    folder = make_subject("tiny", None, 10.0, scratch).bundle.folder
    try:
        fit_model(FitRequest(folder), ONE_THREAD, follow)
    except RoomscribeError as error:
        return {"error": str(error), "status": error.exit_status}
    return {"error": "", "status": 0}


def aims(found: Facts) -> list[bool]:
    """Return whether each aim is met, of those that were measured."""
    met = []
    if {"as shipped", "shipped"} <= found.keys():
        met.append(is_close(found["shipped"], found["as shipped"]["sets"]["all"]["error"]))
    if "damaged" in found:
        met.append(is_close(found["damaged"], found["damaged"]["sets"]["all"]["error_shipped"]))
    if "random" in found:
        met.append("cannot be calibrated" in found["random"]["error"])
    return met


def is_close(fit: Facts, error: float) -> bool:
    """True if the fit is no worse than the shipped calibration by more than CLOSE."""
    return bool(fit["sets"]["all"]["error"] <= error + CLOSE)


def as_markdown(found: Facts, options: argparse.Namespace, bundle: Path) -> str:
    """Return the tables for docs/figures.md."""
    run = found["about"]
    lines = [
        f"`scripts/measure fit`: commit {run['commit']}, {bundle.name} "
        f"{found['identity']['model']}, {run['processor']}, {run['date']}, one thread.",
        "",
        "| model and recordings | texts, right | calibration error | with the shipped calibration "
        "| area under the ROC curve | acting: right, wrong | at 0.8: right, wrong |",
        "|---|---|---|---|---|---|---|",
    ]
    names = {
        "as shipped": "as shipped",
        "shipped": "fitted by the command",
        "damaged": f"damaged ({options.damage:g}), fitted by the command",
    }
    for key, name in names.items():
        for part, one in found.get(key, {"sets": {}})["sets"].items():
            lines.append(
                f"| {name}: {part} | {one['texts']}, {one['right']} | {one['error']:.3f} "
                f"| {one['error_shipped']:.3f} | {one['area'] or '-'} | {pair(one['acting'])} "
                f"| {pair(one['at_80'])} |"
            )
    lines += ["", "| the fit | shipped | damaged |", "|---|---|---|"]
    fits = [found.get(key) for key in ("shipped", "damaged")]
    for name, fact in FACTS.items():
        lines.append(f"| {name} | {' | '.join(fact(one) if one else '-' for one in fits)} |")
    if "random" in found:
        lines += ["", f'Random weights of tiny\'s shape: "{found["random"]["error"]}"']
    return "\n".join(lines)


def pair(counts: Sequence[float] | None) -> str:
    """Return two counts; a text that counts in parts makes them broken."""
    return f"{counts[0]:g}, {counts[1]:g}" if counts else "-"


def calibration_of(one: Facts) -> str:
    """Return a calibration's numbers."""
    return ", ".join(f"{key} {value:g}" for key, value in one["calibration"].items())


def short_windows_of(one: Facts) -> str:
    """Return the decision on short windows."""
    found, decision = one["fitted"]["short_windows"], "on" if one["short_windows"] else "off"
    return (
        f"{decision}: {found['same_text']} of {found['clips']} texts stay the same, "
        f"{found['changed_gates']} worse decisions"
    )


FACTS: dict[str, Callable[[Facts], str]] = {
    "calibration": calibration_of,
    "texts, wrong; error and area in a cross-validation": lambda one: (
        "{texts}, {wrong}; {calibration_error}, {area}".format_map(one["fitted"])
    ),
    "sentences from its confidence for acting on: right, wrong": lambda one: pair(
        one["fitted"]["acting"]
    ),
    "second pass": lambda one: json.dumps(one["vtln"]),
    "endings": lambda one: json.dumps(one["endings"]),
    "short windows": short_windows_of,
    "CPU time, with the report": lambda one: (
        f"{one['cpu_s']} s{' after an interruption' if one['interrupted'] else ''}"
    ),
}


if __name__ == "__main__":
    sys.exit(main())
