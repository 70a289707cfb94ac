"""Requirements that each evening must meet, on any machine."""

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


def faults(evening: dict[str, Any], rows: Sequence[Row], whole: Whole) -> list[str]:
    """Return what went wrong, one line each; nothing in it depends on time."""
    return [
        *of_sentences(evening),
        *of_actions(rows, whole),
        *of_memory(evening),
        *of_mail(evening),
    ]


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
    for name, count in (("blueprint", whole.phantoms), ("Assist", whole.phantoms_assist)):
        if count > max(AT_LEAST, PHANTOMS_AN_HOUR * whole.talk_h):
            found.append(f"{name}: {count} phantom actions in {60 * whole.talk_h:.0f} min of talk")
    return found


def of_memory(evening: dict[str, Any]) -> list[str]:
    """Return what grew over the reloads, or between the reloads and the end, in one process."""
    found = []
    places = [one for one in evening["memory"] if one["label"] != "start"]
    for before, behind in growths(places):
        for key, most in (
            ("uss_mb", MEMORY_MB[behind["label"]]),
            ("threads", THREADS),
            ("descriptors", DESCRIPTORS),
        ):
            grown = behind[key] - before[key]
            if grown > most:
                found.append(
                    f"{key} grew from {before[key]} to {behind[key]} from the first reload to: "
                    f"{behind['label']}"
                )
    return found


def growths(places: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the pairs to compare: each process's first look with those after the reloads."""
    pairs = []
    for behind in places:
        first = next(one for one in places if one["pid"] == behind["pid"])
        if behind["label"] in MEMORY_MB and first is not behind:
            pairs.append((first, behind))
    return pairs


def of_mail(evening: dict[str, Any]) -> list[str]:
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
