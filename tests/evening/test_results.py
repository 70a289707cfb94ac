from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from evening_run.publish import BEGIN, END, put, write
from evening_run.results import Checkpoint, merged, scored, weights_checksum
from evening_run.stand import with_keys
from evening_run.verdict import faults
from rigs.checkout import ROOT

HEADER = {"level": "short", "seed": 1}


def block(**more: Any) -> dict[str, Any]:
    return {"items": [], "stray": [], "memory": [], "quiet": {"seconds": 1.0, "cpu_s": 0.1,
            "between_s": 2.0}, "repeated": [], "disorder": 0, **more}  # fmt: skip


def look(label: str, uss_mb: float, *, pid: int = 1, threads: int = 16) -> dict[str, Any]:
    return {"label": label, "pid": pid, "uss_mb": uss_mb, "threads": threads, "descriptors": 40}


def found(*blocks: dict[str, Any]) -> list[str]:
    evening = merged(HEADER, blocks)
    return faults(evening, *scored(evening))


def test_an_evening_goes_on_behind_the_last_block_that_is_done(tmp_path: Path) -> None:
    file = tmp_path / "evening.jsonl"
    Checkpoint(file, HEADER, resume=False).add(0, block(disorder=1))
    again = Checkpoint(file, HEADER, resume=True)
    assert list(again.done) == [0]
    again.add(1, block(disorder=2))
    both = Checkpoint(file, HEADER, resume=True).done
    assert merged(HEADER, list(both.values()))["disorder"] == 3
    with pytest.raises(ValueError, match="another seed; run without --resume"):
        Checkpoint(file, HEADER | {"seed": 2}, resume=True)
    assert Checkpoint(file, HEADER, resume=False).done == {}


def test_nothing_is_wrong_with_an_evening_in_which_all_is_well() -> None:
    memory = [look("start", 90), look("reload", 80), look("after reloads", 85), look("end", 84)]
    assert found(block(memory=memory)) == []


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        (
            {"memory": [look("reload", 80), look("after reloads", 100)]},
            "uss_mb grew from 80 to 100",
        ),
        (
            {"memory": [look("reload", 80), look("end", 80, threads=18)]},
            "threads grew from 16 to 18",
        ),
        ({"repeated": ["x"]}, "1 transcripts came twice"),
        ({"disorder": 1}, "out of order"),
        ({"unsent": ["x"]}, "are in the log and did not come"),
        ({"unlogged": ["x"]}, "are not in the log"),
        ({"assist_astray": 1}, "handed to Assist without a reply"),
        ({"broken_partials": 1}, "another text than their eager partial"),
        ({"page_behind": 1}, "does not show the newest"),
        ({"trouble": ["a Wyoming request failed"]}, "a Wyoming request failed"),
    ],
)
def test_what_is_wrong_is_told(more: dict[str, Any], fault: str) -> None:
    (told,) = found(block(**more))
    assert fault in told


def sentence(text: str, heard: list[str], *, after_s: float = 0.5) -> dict[str, Any]:
    events = [
        {"text": one, "utterance_id": str(number), "arrival_s": 2.0 + after_s, "late": False,
         "phrase": "", "phrase_confidence": 0.0, "confidence": 0.9, "flags": [], "assist": ""}
        for number, one in enumerate(heard)
    ]  # fmt: skip
    return {
        "name": text, "group": "speech", "family": "speech", "kind": "sentence", "text": text,
        "unrelated": False, "begin_s": 1.0, "end_s": 2.0, "seconds": 1.0, "cpu_s": 0.0,
        "dated": True, "intact": True, "heard": events, "beside": [], "discarded": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"items": [sentence("lights on", ["lights off"])] * 4}, "only 0 of 4 clean"),
        ({"items": [sentence("lights on", ["lights", "on"])] * 4}, "4 of 4 clean sentences are in"),
        ({"items": [sentence("lights on", ["lights on"], after_s=2.0)] * 4}, "later than 2000 ms"),
        ({"stray": ["you"] * 3}, "3 texts in 0 min where nobody spoke"),
        ({"memory": [look("reload", 230), look("end", 240)]}, "has 240 MB, more than 210"),
    ],
)
def test_an_evening_with_a_bad_ear_or_too_much_memory_is_a_fault(
    more: dict[str, Any], fault: str
) -> None:
    (told,) = found(block(**more))
    assert fault in told


def test_what_a_whisper_does_is_no_fault() -> None:
    right, wrong = (sentence("lights on", [text]) for text in ("Lights on.", "Light song."))
    assert found(block(items=[right, right, wrong])) == []


def test_a_process_that_was_killed_is_not_compared_with_the_next_one() -> None:
    memory = [look("reload", 80), look("after reloads", 200, pid=2)]
    assert found(block(memory=memory)) == []


def test_a_sentence_without_a_trace_is_a_fault_and_one_that_was_discarded_is_none() -> None:
    said = sentence("one", [])
    assert "no trace of one" in found(block(items=[said]))
    discarded = block(items=[said | {"discarded": ["no_speech"]}])
    assert not any("no trace" in one for one in found(discarded))
    stuttered = found(block(items=[said | {"intact": False}]))
    assert stuttered == ["the rig stuttered in 1 of 1 sentences: measure again"]


def test_keys_are_set_in_the_shipped_configuration_and_unknown_ones_refused() -> None:
    shipped = (ROOT / "config" / "roomscribe.toml").read_text(encoding="utf-8")
    written = with_keys(shipped, {"mqtt": {"port": 1234, "partials": True}, "web": {"port": 99}})
    changed = [
        (before, behind)
        for before, behind in zip(shipped.splitlines(), written.splitlines(), strict=True)
        if before != behind
    ]
    assert changed == [
        ("#port = 1883", "port = 1234"),
        ("#partials = false", "partials = true"),
        ("#port = 8099", "port = 99"),
    ]
    with pytest.raises(KeyError, match=r"mqtt\.colour"):
        with_keys(shipped, {"mqtt": {"colour": 1}})


def test_a_model_is_named_by_the_weights_that_it_was_made_of(tmp_path: Path) -> None:
    manifest = {"checkpoint_sha256": "0123456789abcdef" * 4, "files": {}}
    (tmp_path / "bundle.json").write_text(json.dumps(manifest), encoding="utf-8")
    assert weights_checksum(tmp_path) == "0123456789abcdef"


def test_pages_get_the_figures_and_name_the_model_once(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    pages = [tmp_path / "README.md", tmp_path / "docs" / "figures.md"]
    for page in pages:
        page.write_text(f"before\n{BEGIN}\nold\n{END}\nbehind\n", encoding="utf-8")
    memory = [{**look("end", 84), "pss_mb": 90.0, "page_uss_mb": None}]
    header = {**HEADER, "commit": "abc", "model": "0123456789abcdef", "processor": "x", "date": "y"}
    said = sentence("one", []) | {"group": "commands"}
    write(tmp_path, merged(header, [block(memory=memory, items=[said])]))
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert text.startswith("before\n") and text.endswith("\nbehind\n") and "old" not in text
        assert text.count("model 0123456789abcdef") == 1
    assert "84 MB" in pages[0].read_text(encoding="utf-8")
    assert "| commands | 1 | - | - | 1 | 0 |" in pages[1].read_text(encoding="utf-8")


def test_text_is_put_between_the_markers_of_a_page() -> None:
    assert put(f"a\n{BEGIN}\nold\n{END}\nb", r"new \1") == f"a\n{BEGIN}\nnew \\1\n{END}\nb"
    for page in ("", f"{BEGIN}{END}{BEGIN}{END}"):
        with pytest.raises(ValueError, match="expected one"):
            put(page, "x")
