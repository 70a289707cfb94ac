"""Requirements that each evening must meet, on any machine, also a busy one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evening_run.programme import SENTENCE
from evening_run.score import Row, Whole

RELOADED, END = "after reloads", "end"
MEMORY_MB = {RELOADED: 8.0, END: 20.0}
"""What the daemon may grow by at most, by the place of the second look. Each reload starts with
empty caches, which the sentences between the last one and the end fill again."""
THREADS, DESCRIPTORS = 1, 2
"""What reloads may add at most."""
PHANTOMS_AN_HOUR = 2.0
WRONG_SHARE = 0.1
"""Sentences after which something else is done than was said."""
AT_LEAST = 2
"""So few are no share of anything."""
DISTURBED_SHARE = 0.2
CLEAN = ("speech", "commands")
"""Groups without noise and rooms."""
RIGHT_SHARE, SPLIT_SHARE = 0.5, 0.2
"""At least and at most, of the sentences of CLEAN. A Whisper gets eight in ten right."""
LATEST_MS = 1500.0
"""Median of all sentences, on a machine that does much else, too; alone it is half of that."""
FALSE_AN_HOUR = 12.0
MOST_MB = 210.0
"""The daemon's own memory (USS) at the end."""


def faults(evening: dict[str, Any], rows: Sequence[Row], whole: Whole) -> list[str]:
    """Return what went wrong, one line each."""
    return [
        *of_sentences(evening),
        *of_hearing(rows, whole),
        *of_actions(rows, whole),
        *of_memory(evening),
        *of_delivery(evening),
    ]


def of_hearing(rows: Sequence[Row], whole: Whole) -> list[str]:
    """Return where texts are wrong, in pieces, late, or of sounds that are no speech."""
    clean = [row for row in rows if row.group in CLEAN]
    said, right = sum(row.verbatim for row in clean), sum(row.either for row in clean)
    split = sum(row.split for row in clean)
    found = []
    if right < RIGHT_SHARE * said:
        found.append(f"only {right} of {said} clean sentences are right")
    if split > max(AT_LEAST, SPLIT_SHARE * said):
        found.append(f"{split} of {said} clean sentences are in pieces")
    latency_ms = rows[-1].p50_ms
    if latency_ms is not None and latency_ms > LATEST_MS:
        found.append(f"half of the answers come later than {latency_ms:.0f} ms")
    if whole.false_texts > max(AT_LEAST, FALSE_AN_HOUR * whole.noise_h):
        minutes = 60 * whole.noise_h
        found.append(f"{whole.false_texts} texts in {minutes:.0f} min where nobody spoke")
    return found


def of_sentences(evening: dict[str, Any]) -> list[str]:
    """Return the sentences of which nothing came, and those that could not be measured."""
    said = [one for one in evening["items"] if one["kind"] == SENTENCE]
    found = [
        f"no trace of {one['name']}"
        for one in said
        if one["intact"] and not one["heard"] and not one["discarded"]
    ]
    disturbed = sum(not one["intact"] for one in said)
    if disturbed > DISTURBED_SHARE * len(said):
        found.append(f"the rig stuttered in {disturbed} of {len(said)} sentences: measure again")
    return found


def of_actions(rows: Sequence[Row], whole: Whole) -> list[str]:
    """Return where Home Assistant would do too much that nobody said."""
    found = []
    everything = rows[-1]
    if everything.wrong > max(AT_LEAST, WRONG_SHARE * everything.said):
        found.append(f"{everything.wrong} wrong actions after {everything.said} sentences")
    if whole.phantoms > max(AT_LEAST, PHANTOMS_AN_HOUR * whole.talk_h):
        found.append(f"{whole.phantoms} phantom actions in {60 * whole.talk_h:.0f} min of talk")
    return found


def of_memory(evening: dict[str, Any]) -> list[str]:
    """Return what is too large, or grew over the reloads or until the end, in one process."""
    found = []
    places = [one for one in evening["memory"] if one["label"] != "start"]
    if places and places[-1]["uss_mb"] > MOST_MB:
        found.append(f"the daemon has {places[-1]['uss_mb']:.0f} MB, more than {MOST_MB:.0f}")
    for behind in places[1:]:
        if behind["label"] not in MEMORY_MB:
            continue
        for key, most in (
            ("uss_mb", MEMORY_MB[behind["label"]]),
            ("threads", THREADS),
            ("descriptors", DESCRIPTORS),
        ):
            grown = behind[key] - places[0][key]
            if grown > most:
                found.append(
                    f"{key} grew from {places[0][key]} to {behind[key]} from the first reload to: "
                    f"{behind['label']}"
                )
    return found


def of_delivery(evening: dict[str, Any]) -> list[str]:
    """Return what is wrong with the events, the page and the other ways out."""
    counts = {
        "transcripts came twice": len(evening["repeated"]),
        "transcripts came out of order": evening["disorder"],
        "transcripts have another text than their eager partial one": evening["broken_partials"],
        "transcripts are in the log and did not come": len(evening["unsent"]),
        "transcripts came and are not in the log": len(evening["unlogged"]),
        "sentences were handed to Assist without a reply, or twice": evening["assist_astray"],
    }
    found = [f"{count} {what}" for what, count in counts.items() if count]
    if evening["page_behind"]:
        found.append("the page does not show the newest transcript")
    return [*found, *evening["page_errors"], *evening["trouble"], *evening["log_errors"]]
