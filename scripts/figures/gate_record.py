"""The record of the quality gate: a model's values in its releases, their limits, the card's table.

quality.json beside the model card has `limits` (the largest value that passes, by the name of the
measure) and `releases`, the newest first: the values of each with the checksum of the model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from evening_run.publish import put

from appliance.system import write_whole

Record = dict[str, Any]

FILE, MANIFEST, CARD = "quality.json", "bundle.json", "MODEL_CARD.md"
MARKS = "<!-- gate: written by scripts/measure gate --write -->", "<!-- /gate -->"
RELEASES_SHOWN = 5
DESCRIPTIVE = {"name", "description", "source", "licence", "checkpoint_sha256"}
"""Keys of bundle.json that change no text and no probability."""
MEASURES = {
    "speech_word_errors": "words wrong, `tests/speech`, %",
    "noise_word_errors": "words wrong, `tests/speech` in pink noise at 15 and 5 dB, %",
    "confidence_error": "calibration error of `confidence`, `tests/speech`",
    "phrase_confidence_error": "calibration error of `phrase_confidence`, `tests/speech`",
    "wrong_actions": "wrong actions, `tests/speech`",
    "silence_texts": "texts of 140 s of synthetic silence and noise",
    "people_word_errors": "words wrong, home commands by people and an unknown synthesiser, %",
    "people_confidence_error": "calibration error of `confidence`, these and people who read",
    "people_wrong_actions": "wrong actions after these commands",
    "talk_phantoms": "phantom actions of people who read, talk and order coffee",
    "noise_texts": "texts of recorded noise, music and chimes at 3 gains",
    "memory_mb": "memory of a process that transcribes, MB",
    "time_ratio": "CPU time per sentence over the release before",
}
"""All measures, in the table's order. Smaller is better."""
TIMED = frozenset({"time_ratio"})


def model_checksum(manifest: Mapping[str, Any]) -> str:
    """Return what names the weights, calibration and sentences of a bundle.json: SHA-256 of all
    that may change a text or a probability, 16 digits."""
    values = {key: value for key, value in manifest.items() if key not in DESCRIPTIVE}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def bundle_checksum(folder: Path) -> str:
    """Return `model_checksum` of a bundle. Raises OSError."""
    return model_checksum(json.loads((folder / MANIFEST).read_text(encoding="utf-8")))


def read_record(folder: Path) -> Record:
    """Return the record beside a model card. Raises OSError."""
    record: Record = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return record


def faults(
    values: Mapping[str, float], limits: Mapping[str, float], ignored: Collection[str] = ()
) -> list[str]:
    """Return a line for each limit that is broken."""
    return [
        f"{title(name)}: {number(values[name])} is above the limit of {number(limits[name])}"
        for name in MEASURES
        if name in values and name not in ignored and not values[name] <= limits[name]
    ]


def unmeasured(values: Mapping[str, float], ignored: Collection[str] = ()) -> list[str]:
    """Return the measures that have no value."""
    return [title(name) for name in MEASURES if name not in values and name not in ignored]


def record_faults(record: Record, checksum: str) -> list[str]:
    """Return why a model with this checksum did not pass the gate; time is not looked at."""
    newest = record["releases"][0]
    if newest["checksum"] != checksum:
        return [f"{FILE} has the values of model {newest['checksum']}, and this is {checksum}"]
    values = newest["values"]
    lacking = [f"not measured: {name}" for name in unmeasured(values, TIMED)]
    return [*faults(values, record["limits"], TIMED), *lacking]


def with_release(record: Record, entry: Record) -> Record:
    """Return the record with a release in place of the one of that name, or before the others."""
    releases = list(record["releases"])
    names = [one["release"] for one in releases]
    if entry["release"] in names:
        releases[names.index(entry["release"])] = entry
    else:
        releases.insert(0, entry)
    return record | {"releases": releases}


def write_record(folder: Path, record: Record) -> None:
    """Write the record, and its table into the model card."""
    card = folder / CARD
    page = put(card.read_text(encoding="utf-8"), card_table(record), *MARKS)
    write_whole(folder / FILE, json.dumps(record, indent=1) + "\n", 0o644)
    write_whole(card, page, 0o644)


def card_table(record: Record) -> str:
    """Return the table of the last releases."""
    shown = record["releases"][:RELEASES_SHOWN]
    rows = [
        ["", "at most", *(one["release"] for one in shown)],
        ["---"] * (2 + len(shown)),
        ["model", "", *(one["checksum"] for one in shown)],
        ["commit, date", "", *(f"{one['commit']}, {one['date']}" for one in shown)],
        *(
            [text, number(record["limits"][name]), *(value(one, name) for one in shown)]
            for name, text in MEASURES.items()
        ),
    ]
    processors = "; ".join(dict.fromkeys(one["processor"] for one in shown))
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines, "", f"Measured on: {processors}."])


def value(entry: Record, name: str) -> str:
    """Return a release's value as the table has it."""
    found = entry["values"].get(name)
    return "-" if found is None else number(found)


def text_table(
    values: Mapping[str, float], limits: Mapping[str, float], before: Sequence[Record]
) -> str:
    """Return the table that the command prints: each measure, its limit, the release before."""
    lines = [f"{'':72} {'now':>8} {'at most':>8} {'before':>8}"]
    for name in MEASURES:
        now = number(values[name]) if name in values else "-"
        old = value(before[0], name) if before else "-"
        mark = "  BROKEN" if name in values and not values[name] <= limits[name] else ""
        lines.append(f"{title(name):72} {now:>8} {number(limits[name]):>8} {old:>8}{mark}")
    return "\n".join(lines)


def title(name: str) -> str:
    """Return a measure's title as a terminal shows it."""
    return MEASURES[name].replace("`", "")


def number(found: float) -> str:
    """Return a value with at most three digits behind the point."""
    return f"{found:.3f}".rstrip("0").rstrip(".")
