from __future__ import annotations

from typing import Any

import pytest
from evening_run.score import action, answer_ms, doings, percentile, row, rows, whole
from evening_run.table import as_markdown, as_text, compared, compared_wholes


def heard(text: str, **more: Any) -> dict[str, Any]:
    return {
        "text": text, "utterance_id": "one", "begin_s": 10.0, "end_s": 12.0, "arrival_s": 12.4,
        "phrase": "", "phrase_confidence": 0.0, "confidence": 0.0, "flags": [], "late": False,
        "assist": "", **more,
    }  # fmt: skip


def said(text: str, *events: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "name": text, "family": "commands", "group": "commands", "kind": "sentence", "text": text,
        "unrelated": False, "begin_s": 10.0, "end_s": 12.0, "seconds": 4.0, "intact": True,
        "dated": True, "cpu_s": 0.5, "heard": list(events), "discarded": [], "beside": [], **more,
    }  # fmt: skip


LIGHT = "turn on the light"
LIKELY = {"phrase": LIGHT, "phrase_confidence": 0.9}


def test_percentiles_are_those_of_the_values() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0, 5.0], 50) == 3.0
    assert percentile([0.0, 100.0], 95) == pytest.approx(95)
    assert percentile([], 50) is None


def test_an_answer_is_the_last_transcript_after_the_true_end() -> None:
    assert answer_ms(said(LIGHT, heard(LIGHT))) == pytest.approx(400)
    pieces = heard("turn on", arrival_s=11.0), heard("the light", arrival_s=12.8)
    assert answer_ms(said(LIGHT, *pieces)) == pytest.approx(800)
    assert answer_ms(said(LIGHT, pieces[0])) is None
    assert answer_ms(said(LIGHT)) is None
    assert answer_ms(said(LIGHT, heard(LIGHT), dated=False)) is None
    assert answer_ms(said(LIGHT, heard(LIGHT, late=True))) is None


def test_a_sentence_in_two_utterances_is_split_and_its_joined_text_counts() -> None:
    both = said(LIGHT, heard("turn on"), heard("the light", utterance_id="two"))
    windows = said(LIGHT, heard("turn on"), heard("the lights"))
    found = row("commands", [both, windows])
    assert (found.split, found.texts, found.errors, found.words) == (1, 1, 1, 8)
    assert found.wer == pytest.approx(12.5)


def test_a_sentence_without_a_text_has_all_words_wrong_and_a_discarded_one_left_a_trace() -> None:
    found = row("commands", [said(LIGHT), said(LIGHT, discarded=["no_speech"])])
    assert (found.no_trace, found.wer, found.p50_ms) == (1, 100.0, None)


def test_text_and_expected_sentence_count_apart_and_together() -> None:
    phrase = {"phrase": LIGHT, "phrase_confidence": 0.7}
    found = row(
        "commands",
        [
            said(LIGHT, heard(LIGHT)),
            said(LIGHT, heard("torn on the light", **phrase)),
            said(LIGHT, heard("torn on", **phrase | {"phrase_confidence": 0.6})),
            said("", heard("what you like")),
        ],
    )
    assert (found.texts, found.sentences, found.either, found.verbatim) == (1, 1, 2, 3)


@pytest.mark.parametrize(
    ("event", "acts"),
    [
        ({"phrase": "stop", "phrase_confidence": 0.7}, True),
        ({"phrase": "stop", "phrase_confidence": 0.69}, False),
        ({"phrase": "stop", "phrase_confidence": 0.9, "flags": ["low_confidence"]}, True),
        ({"phrase": "stop", "phrase_confidence": 0.9, "flags": ["repetition"]}, False),
        ({"phrase": "stop", "phrase_confidence": 0.9, "late": True}, False),
        ({"phrase": LIGHT, "confidence": 0.8}, True),
        ({"phrase": LIGHT, "confidence": 0.8, "flags": ["low_confidence"]}, False),
        ({"phrase": "stop", "confidence": 0.8}, False),
        ({"confidence": 0.99}, False),
    ],
)
def test_home_assistant_acts_on_a_sure_sentence_alone(event: dict[str, Any], acts: bool) -> None:
    assert bool(action(heard(LIGHT, **event), 0.7)) == acts


def test_another_sentence_than_was_said_is_a_wrong_action() -> None:
    stop = heard(LIGHT, phrase="stop", phrase_confidence=0.75)
    found = row("commands", [said(LIGHT, stop), said("stop", stop), said("", stop)])
    assert (found.wrong, found.wrong_assist) == (2, 0)
    assert row("commands", [said("turn on a light", heard("x", **LIKELY))]).wrong == 0


def test_actions_that_nobody_asked_for_are_named() -> None:
    stop = heard("stop it", phrase="stop", phrase_confidence=0.75)
    records = [said(LIGHT, stop), said("stop", stop), said("long ago", stop, unrelated=True)]
    assert doings(records) == [
        f"WRONG: 'stop' (75%) for {LIGHT!r}, commands, heard as 'stop it'",
        "PHANTOM: 'stop' (75%) for 'long ago', commands, heard as 'stop it'",
    ]


def test_phantoms_and_false_texts_are_counted_over_their_own_hours() -> None:
    stop = heard("stop", phrase="stop", phrase_confidence=0.85)
    handed = heard(LIGHT, assist="on the light")
    records = [
        said("long ago", stop, unrelated=True, end_s=46.0),
        said("", stop, kind="talk", unrelated=True, family="talk", end_s=82.0),
        said("", stop, handed, kind="noise", unrelated=True, family="noise", seconds=30.0),
        said(LIGHT, handed, family="television", beside=[stop], seconds=74.0),
        said("stop", handed),
        said(LIGHT, heard("torn on the light", assist="on the light"), begin_s=12.0),
        said("stop", kind="killed"),
        said("stop", intact=False),
    ]
    quiet = [{"seconds": 10.0, "cpu_s": 0.1, "between_s": 30.0}]
    found = whole(records, [handed], quiet)
    assert (found.phantoms, found.phantoms_assist) == (3, 3)
    assert found.talk_h == pytest.approx((36 + 72 + 72) / 3600)
    assert (found.handed_right, found.handed_wrong, found.handed_phantom) == (2, 1, 1)
    assert (found.false_texts, found.disturbed) == (3, 1)
    assert found.noise_h == pytest.approx(60 / 3600)
    assert found.cpu_silence == pytest.approx(0.01)
    assert found.cpu_speech == pytest.approx(2.0 / 40)


def test_rows_are_in_order_and_leave_out_what_the_rig_disturbed() -> None:
    records = [
        said(LIGHT, group="television"),
        said(LIGHT, group="kitchen, 5 dB"),
        said(LIGHT, group="kitchen, 20 dB"),
        said(LIGHT, group="speech"),
        said(LIGHT, group="speech", intact=False),
    ]
    found = rows(records)
    names = ["speech", "kitchen, 5 dB", "kitchen, 20 dB", "television", "all"]
    assert [one.group for one in found] == names
    assert [one.said for one in found] == [1, 1, 1, 1, 4]


def test_tables_have_a_line_for_each_group_and_a_dash_where_nothing_was_measured() -> None:
    before = rows([said(LIGHT, heard(LIGHT, arrival_s=12.8))])
    behind = rows([said(LIGHT, heard(LIGHT))])
    assert "commands     1     800     800" in as_text(before)
    assert (
        as_markdown(rows([said("")])).splitlines()[2].startswith("| commands | 1 | - | - | 1 | -")
    )
    line = compared(["old", "new"], [before, behind]).splitlines()[1].split()
    assert line[:7] == ["commands", "1", "800", "400", "800", "400", "0.50"]


def test_two_whole_evenings_are_compared_by_their_ratios() -> None:
    evenings = [
        {
            "memory": [
                {"label": label, "pid": pid, "uss_mb": pid * mb, "threads": 16, "descriptors": 47}
                for label, pid in (("start", 9), ("reload", 9), ("reload", 1), ("reload", 1),
                                   ("after reloads", 1))
            ],
            "reload_s": [1.0, 2.0, 9.0], "restart_s": [], "wyoming_ms": [],
        }
        for mb in (100, 50)
    ]  # fmt: skip
    table = compared_wholes(["old", "new"], [whole([], [], [])] * 2, evenings)
    lines = [line.split() for line in table.splitlines()]
    assert lines[0] == ["old", "new", "ratio"]
    assert ["before", "reloads:", "USS,", "MB", "100.000", "50.000", "0.50"] in lines
    assert ["reload,", "s", "2.000", "2.000", "1.00"] in lines
    assert ["listening", "again", "after", "kill", "-9,", "s", "-", "-", "-"] in lines
