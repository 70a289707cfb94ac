from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from evening_run.programme import LEVELS, SHORT, Block, Item, Step, recorded, spoken
from evening_run.schedule import BACK_S, lay_out, plan

RATE = 16_000
LEVEL = replace(SHORT, gap_s=(2.0, 5.0), reloads=3, block_s=40.0)


def sentence(seconds: float = 2.0) -> Item:
    sound = np.full(int((seconds + 1.8) * RATE), 100, np.int16)
    return Item(
        "one", "speech", "speech", "sentence", "one", sound, 8000, 8000 + int(seconds * RATE)
    )


def speech(block: Block) -> list[tuple[float, float]]:
    """Begin and end of what is said, s."""
    return [
        ((at + item.begin) / RATE, (at + item.end) / RATE)
        for item, at in zip(block.items, block.places, strict=True)
    ]


def test_between_two_sentences_lies_the_pause_that_was_drawn_or_what_is_done() -> None:
    blocks = lay_out([sentence() for _ in range(30)], LEVEL, 1, sentence())
    for block in blocks:
        busy = [step.at / RATE for step in block.steps if step.what in ("reload", "broker", "kill")]
        spans = speech(block)
        for (_, end_s), (begin_s, _) in pairwise(spans):
            done = [one for one in busy if end_s < one < begin_s]
            assert begin_s - end_s >= 2.0 - 0.001
            assert begin_s - end_s <= 5.001 or done or any(end_s > one for one in busy)
            assert all(begin_s - one >= BACK_S and one - end_s >= 2.0 for one in done)


def test_everything_is_done_once_and_the_kill_falls_into_its_own_sentence_alone() -> None:
    blocks = lay_out([sentence() for _ in range(30)], LEVEL, 1, sentence())
    done = [step.what for block in blocks for step in block.steps if step.what != "wyoming"]
    wanted = ["start", "kill", *3 * ["reload"], "after reloads", "broker", "end"]
    assert sorted(done) == sorted(wanted)
    (block,) = [one for one in blocks if any(step.what == "kill" for step in one.steps)]
    (kill,) = [step for step in block.steps if step.what == "kill"]
    assert block.items[kill.item].kind == "killed"
    begin_s, end_s = speech(block)[kill.item]
    assert begin_s < kill.at / RATE < end_s


def test_the_stream_stops_behind_what_is_done_and_nowhere_in_a_sound() -> None:
    for block in lay_out([sentence() for _ in range(30)], LEVEL, 1, sentence()):
        segments = block.segments()
        assert segments[0][0] == 0
        assert segments[-1][1] == block.length == len(block.render())
        for cut in block.cuts:
            for item, at in zip(block.items, block.places, strict=True):
                assert not at < cut < at + len(item.sound)


@pytest.mark.parametrize("count", [1, 5, 200])
@pytest.mark.parametrize("reloads", [0, 20])
def test_every_doing_has_its_place_however_few_sounds_there_are(count: int, reloads: int) -> None:
    doings = [one for each in plan(count, reloads).values() for one in each]
    assert doings.count("reload") == reloads
    assert sorted(set(doings) - {"reload"}) == ["broker", "kill", "start"]
    assert max(plan(count, reloads)) < count


def test_the_same_seed_lays_out_the_same_evening() -> None:
    items = [sentence() for _ in range(12)]
    first, same, other = (lay_out(items, LEVEL, seed, sentence()) for seed in (1, 1, 2))
    assert [one.places for one in first] == [one.places for one in same]
    assert [one.places for one in first] != [one.places for one in other]


def test_the_end_of_a_recorded_sentence_is_that_of_its_speech() -> None:
    one = spoken()[0]
    loud = np.flatnonzero(np.abs(one.sound) > 300)
    assert one.begin <= loud[0] and loud[-1] <= one.end <= loud[-1] + RATE // 4


def test_a_persons_recording_is_heard_between_its_own_quiet_and_dated_where_it_ends_quietly() -> (
    None
):
    rng = np.random.default_rng(2)
    tone = 4000 * np.sin(2 * np.pi * 300 * np.arange(RATE) / RATE)
    quiet = rng.normal(0, 10, RATE // 2)
    sound = np.concatenate((quiet, tone + rng.normal(0, 10, RATE), quiet)).astype(np.int16)
    one = recorded("x", sound, "commands", "x")
    assert one.dated
    assert one.end == pytest.approx(2 * RATE, abs=800)
    assert one.begin == pytest.approx(RATE, abs=800)
    cut = recorded("x", sound[: -RATE // 2], "commands", "x")
    assert not cut.dated
    assert len(cut.sound) > len(sound)


def test_short_level_has_every_family_that_may_be_chosen() -> None:
    assert LEVELS["usual"].most.keys() == SHORT.most.keys()
    assert Step(1, "reload").item == -1
