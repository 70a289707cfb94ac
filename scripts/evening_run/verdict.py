"""Requirements that each evening must meet, on any machine, also a busy one."""

from collections.abc import Iterator, Sequence
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


Check = tuple[bool, str]
"""Whether something is wrong, and what."""


def faults(evening: dict[str, Any], rows: Sequence[Row], whole: Whole) -> list[str]:
    """Return what went wrong, one line each."""
    checks = (*of_hearing(evening, rows, whole), *of_memory(evening), *of_delivery(evening))
    return [line for is_wrong, line in checks if is_wrong]


def of_hearing(evening: dict[str, Any], rows: Sequence[Row], whole: Whole) -> Iterator[Check]:
    """Yield whether sentences are lost, wrong, in pieces or late, and acted on rightly."""
    items = [one for one in evening["items"] if one["kind"] == SENTENCE]
    for one in items:
        is_lost = one["intact"] and not one["heard"] and not one["discarded"]
        yield is_lost, f"no trace of {one['name']}"
    disturbed, count = sum(not one["intact"] for one in items), len(items)
    what = f"the rig stuttered in {disturbed} of {count} sentences: measure again"
    yield disturbed > DISTURBED_SHARE * count, what
    clean, everything = [row for row in rows if row.group in CLEAN], rows[-1]
    said, right = sum(row.verbatim for row in clean), sum(row.either for row in clean)
    split, latency_ms = sum(row.split for row in clean), everything.p50_ms or 0.0
    yield right < RIGHT_SHARE * said, f"only {right} of {said} clean sentences are right"
    is_split = split > max(AT_LEAST, SPLIT_SHARE * said)
    yield is_split, f"{split} of {said} clean sentences are in pieces"
    yield latency_ms > LATEST_MS, f"half of the answers come later than {latency_ms:.0f} ms"
    for found, most, of in (
        (everything.wrong, WRONG_SHARE * everything.said, "wrong actions after the sentences"),
        (whole.false_texts, FALSE_AN_HOUR * whole.noise_h, "texts where nobody spoke"),
        (whole.phantoms, PHANTOMS_AN_HOUR * whole.talk_h, "phantom actions of talk"),
    ):
        yield found > max(AT_LEAST, most), f"{found} {of}"


def of_memory(evening: dict[str, Any]) -> Iterator[Check]:
    """Yield whether it is too large, or grew over the reloads or until the end, in one process."""
    places = [one for one in evening["memory"] if one["label"] != "start"]
    if not places:
        return
    most_mb = places[-1]["uss_mb"]
    yield most_mb > MOST_MB, f"the daemon has {most_mb:.0f} MB, more than {MOST_MB:.0f}"
    for behind in (one for one in places[1:] if one["label"] in MEMORY_MB):
        limits = {"uss_mb": MEMORY_MB[behind["label"]]}
        for key, most in (limits | {"threads": THREADS, "descriptors": DESCRIPTORS}).items():
            before, after = places[0][key], behind[key]
            what = f"{key} grew from {before} to {after} from the first reload to: "
            yield after - before > most, what + behind["label"]


def of_delivery(evening: dict[str, Any]) -> Iterator[Check]:
    """Yield whether something is wrong with the events, the page and the other ways out."""
    for what, count in {
        "transcripts came twice": len(evening["repeated"]),
        "transcripts came out of order": evening["disorder"],
        "transcripts have another text than their eager partial one": evening["broken_partials"],
        "transcripts are in the log and did not come": len(evening["unsent"]),
        "transcripts came and are not in the log": len(evening["unlogged"]),
        "sentences were handed to Assist without a reply, or twice": evening["assist_astray"],
    }.items():
        yield bool(count), f"{count} {what}"
    yield evening["page_behind"], "the page does not show the newest transcript"
    for line in (*evening["page_errors"], *evening["trouble"], *evening["log_errors"]):
        yield True, line
