"""The tables of an evening, in Markdown."""

from collections.abc import Sequence
from typing import Any

from evening_run.score import Row, Whole, percentile
from rigs.word_errors import words

from appliance.lab.benchmark.table import as_markdown

HEADS = ("group", "said", "p50 ms", "p95 ms", "no trace", "text", "sentence", "either", "WER %",
         "split", "wrong")  # fmt: skip


def cells(row: Row) -> list[str]:
    """Return what stands in a group's line."""
    known = row.verbatim > 0
    return [
        row.group,
        str(row.said),
        number(row.p50_ms),
        number(row.p95_ms),
        str(row.no_trace),
        *(str(one) if known else "-" for one in (row.texts, row.sentences, row.either)),
        number(row.wer, 1),
        str(row.split),
        str(row.wrong),
    ]


def number(value: float | None, digits: int = 0) -> str:
    """Return a figure; - where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def per_hour(count: int, hours: float) -> str:
    """Return a count, and how many that is in an hour."""
    return f"{count} in {60 * hours:.1f} min" + (f" ({count / hours:.1f}/h)" if hours else "")


def of_groups(rows: Sequence[Row]) -> str:
    """Return the groups' table."""
    return as_markdown(HEADS, list(map(cells, rows)))


def more(whole: Whole, evening: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the figures of the whole evening, each with its name."""
    handed = f"{whole.handed_right}, {whole.handed_wrong}, {whole.handed_phantom}"
    reloads, wyoming = evening["reload_s"], evening["wyoming_ms"]
    took = [number(percentile(evening[key], 50)) for key in ("encode_ms", "decode_ms")]
    median_ms = number(percentile(wyoming, 50))
    right = sum(words(said) == words(text) for said, text in evening["wyoming_texts"])
    return [
        ("phantom actions of unrelated talk", per_hour(whole.phantoms, whole.talk_h)),
        ("handed to Assist: right, wrong, phantom", handed),
        ("false transcripts", per_hour(whole.false_texts, whole.noise_h)),
        ("CPU seconds a second of silence", number(whole.cpu_silence, 4)),
        ("... of speech", number(whole.cpu_speech, 3)),
        *((label, usage(one)) for label, one in looks(evening).items()),
        (f"reload, s (median of {len(reloads)})", number(percentile(reloads, 50), 2)),
        ("encoder, decoder: ms a window (medians)", ", ".join(took)),
        (f"Wyoming: audio-stop to text, ms (median of {len(wyoming)})", median_ms),
        ("... texts that are right; requests that failed", f"{right}; {len(evening['trouble'])}"),
        ("partial texts", str(evening["partials"])),
        ("sentences in which the rig stuttered, not counted", str(whole.disturbed)),
    ]


def looks(evening: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what the processes had: at the start, before and after the reloads, at the end."""
    memory = {one["label"]: one for one in evening["memory"]}
    reloads = [one for one in evening["memory"] if one["label"] == "reload"]
    if reloads:
        memory["before reloads"] = reloads[0]
    labels = ("start", "before reloads", "after reloads", "end")
    return {label: memory[label] for label in labels if label in memory}


def usage(one: dict[str, Any]) -> str:
    """Return what processes have, on one line."""
    page = one["page_uss_mb"]
    return (
        f"USS {one['uss_mb']:.0f} MB, PSS {one['pss_mb']:.0f} MB, {one['threads']} threads, "
        f"{one['descriptors']} descriptors" + (f"; page {page:.0f} MB" if page else "")
    )


def compared(names: Sequence[str], tables: Sequence[Sequence[Row]]) -> str:
    """Return two evenings' groups side by side."""
    second = {row.group: cells(row) for row in tables[1]}
    both = [(before, second[before[0]]) for before in map(cells, tables[0]) if before[0] in second]
    lines = [
        [name, *map(" -> ".join, zip(before, behind, strict=True))]
        for (name, *before), (_, *behind) in both
    ]
    return as_markdown([" -> ".join(names), *HEADS[1:]], lines)


def compared_wholes(
    names: Sequence[str], wholes: Sequence[Whole], evenings: Sequence[dict[str, Any]]
) -> str:
    """Return two whole evenings' figures side by side."""
    first, second = (dict(more(*each)) for each in zip(wholes, evenings, strict=True))
    return as_markdown(["", *names], [[one, first[one], second.get(one, "-")] for one in first])
