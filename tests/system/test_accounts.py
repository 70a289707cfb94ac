"""The ordeals' accounting: what was lost, doubled, swapped or made up does not slip by."""

from __future__ import annotations

import json
import random
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from resilience import latency, soak
from resilience.accounts import Hearing, Sentences, Waiting, compare, first_times, spooled, stored
from resilience.kill import Outcome
from resilience.rig import between_silences
from resilience.scenes import Item, Scene, Sounds, scene
from rigs.publishing import transcript

from appliance.config import StoreSettings
from appliance.store.store import Store

SAID = random.Random(7).choices(range(40), k=300)


def test_what_was_heard_as_it_was_said_has_no_faults() -> None:
    assert not compare(SAID, list(SAID)).broken
    assert not compare([], []).broken


@pytest.mark.parametrize("place", [0, 1, 150, 299])
def test_a_lost_sentence_is_noticed_wherever_it_was(place: int) -> None:
    verdict = compare(SAID, SAID[:place] + SAID[place + 1 :])
    assert (verdict.lost, verdict.doubled, verdict.out_of_order, verdict.wrong) == (1, 0, 0, 0)


@pytest.mark.parametrize("place", [0, 1, 150, 299])
def test_a_doubled_sentence_is_noticed_wherever_it_was(place: int) -> None:
    verdict = compare(SAID, SAID[: place + 1] + SAID[place:])
    assert (verdict.lost, verdict.doubled, verdict.out_of_order, verdict.wrong) == (0, 1, 0, 0)


def test_two_sentences_that_changed_places_are_out_of_order() -> None:
    heard = list(range(40))
    heard[20], heard[21] = heard[21], heard[20]
    verdict = compare(range(40), heard)
    assert (verdict.lost, verdict.doubled, verdict.out_of_order, verdict.wrong) == (0, 0, 1, 0)


def test_a_sentence_that_came_much_too_late_is_out_of_order() -> None:
    heard = [*range(3), *range(4, 40), 3]
    verdict = compare(range(40), heard)
    assert (verdict.lost, verdict.doubled, verdict.out_of_order, verdict.wrong) == (0, 0, 1, 0)


def test_a_text_that_no_sentence_has_is_wrong() -> None:
    known = Sentences({0: {"lights on"}, 1: {"lights off", "light off"}})
    heard = known.of(["lights on", "light off", "thank you for watching"])
    assert heard == [0, 1, -1]
    assert compare([0, 1, 0], heard).wrong == 1


def test_many_faults_together_are_all_counted() -> None:
    heard = list(SAID)
    for place in (250, 100, 30):
        del heard[place]
    heard.insert(60, -1)
    verdict = compare(SAID, heard)
    assert (verdict.lost, verdict.doubled) == (3, 1)


def test_sentences_that_read_alike_are_refused() -> None:
    with pytest.raises(ValueError, match="read the same"):
        Sentences({0: {"yes"}, 1: {"yes"}})


def test_a_message_that_came_again_counts_once_and_where_it_came_first() -> None:
    assert first_times(["a", "b", "a", "c", "b"]) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "fault",
    [
        {"lost_at_kills": 1},
        {"ids_equal": False},
        {"seq_rises": False},
        {"left_over": 1},
        {"status": 70},
        {"status": None},
        {"trouble": "it ended by itself"},
        {"store": compare([1], [])},
        {"subscriber": compare([1], [1, 1])},
    ],
)
def test_each_fault_of_a_killing_breaks_the_promise(fault: dict[str, object]) -> None:
    whole = {"spoken": [1], "ids_equal": True, "seq_rises": True, "status": 0}
    assert not Outcome(**whole).broken  # type: ignore[arg-type]
    assert Outcome(**whole | fault).broken  # type: ignore[arg-type]


def test_what_is_stored_is_read_without_touching_the_store(tmp_path: Path) -> None:
    assert stored(tmp_path) == []
    with Store.open(StoreSettings(path=str(tmp_path / "state"))) as store:
        ids = [store.append(transcript(text)).transcript.id for text in ("one", "two")]
        files = {path: path.read_bytes() for path in (tmp_path / "state").glob("roomscribe.db*")}
        assert stored(tmp_path / "state") == [(1, ids[0], "one"), (2, ids[1], "two")]
        assert files == {path: path.read_bytes() for path in files}


def test_a_torn_file_in_the_spool_is_no_window_and_an_unrenamed_whole_one_is(
    tmp_path: Path,
) -> None:
    def write(name: str, attempts: int, body: bytes, checksum: int) -> None:
        front = struct.pack("<6sBBII", b"rswind", 1, attempts, 2, checksum)
        (tmp_path / name).write_bytes(front + body)

    ids = [letter * 26 for letter in "ABC"]
    write(f"00000001-{ids[0]}.window", 1, b"{}sound", zlib.crc32(b"{}sound"))
    write(f"00000002-{ids[1]}.window", 0, b"{}sou", zlib.crc32(b"{}sound"))
    write(f"00000003-{ids[2]}.window.new", 0, b"{}sound", zlib.crc32(b"{}sound"))
    (tmp_path / f"00000004-{ids[2]}.window.new").write_bytes(b"rsw")
    assert spooled(tmp_path) == [Waiting(ids[0], 1), Waiting(ids[2], 0)]


def heard_of(
    tmp_path: Path, items: list[Item], kind: str, windows: list[float]
) -> dict[str, object]:
    """What a scene of 60 s is judged to be when windows of 2 s end at these seconds."""
    positions = tmp_path / "positions.jsonl"
    lines = [
        {"id": str(number), "until_s": end_s + 0.6, "duration_s": 2.0}
        for number, end_s in enumerate(windows)
    ]
    positions.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    hearing = Hearing(positions, {})
    hearing.plays(0.0, Scene(kind, np.zeros(60 * 16_000, np.int16), items))
    return hearing.judge({str(number): "lights on" for number in range(len(windows))}, 60.0)


def test_the_soak_tells_what_was_heard_from_what_was_missed_and_made_up(tmp_path: Path) -> None:
    items = [Item("known", 10, 12, "lights on", bed=False), Item("command", 30, 32, "", bed=True)]
    judged = heard_of(tmp_path, items, "talk", [12.2, 50.0])
    heard, missed = {"windows": 1, "heard": 1}, {"windows": 0, "heard": 0}
    assert judged["known"] == {"said": 1, "said_bed": 0, "heard_bed": 0, **heard}
    assert judged["command"] == {"said": 1, "said_bed": 1, "heard_bed": 0, **missed}
    assert (judged["false_elsewhere"], judged["false_noise"], judged["word_errors"]) == (1, 0, 0)


def test_the_soak_counts_transcripts_of_noise_by_the_hour(tmp_path: Path) -> None:
    judged = heard_of(tmp_path, [], "noise", [20.0, 40.0])
    assert (judged["false_noise"], judged["noise_h"]) == (2, pytest.approx(1 / 60))


def test_growth_is_measured_after_the_warm_up_in_the_longest_process() -> None:
    lines = [
        {"process": 1, "began_h": 0.0, "hours": hour, "rss_kib": 1000 * (1 + 0.1 * (hour < 1))}
        for hour in (0.2, 0.6, 1.2, 2.0, 3.0)
    ]
    assert soak.Soak(lines).growth() == pytest.approx((0, 1.8))
    for line in lines:
        line["rss_kib"] += 10 * line["hours"]
    assert soak.Soak(lines).growth()[0] == pytest.approx(1.8, abs=0.1)


def test_a_day_of_sound_is_the_same_every_time_and_knows_what_is_said_in_it() -> None:
    sounds = Sounds()
    for number in range(8):
        one, again = scene(sounds, 3, number), scene(sounds, 3, number)
        assert np.array_equal(one.sound, again.sound)
        assert one.items == again.items
        assert all(0 < item.begin_s < item.end_s < one.length_s for item in one.items)
        assert bool(one.items) == (one.kind == "talk")


def test_a_persons_last_word_is_found_before_noise_and_a_click() -> None:
    rng = np.random.default_rng(1)
    time_s = np.arange(16_000) / 16_000
    voice = 6000 * np.sin(2 * np.pi * 300 * time_s) * np.sin(2 * np.pi * 4 * time_s) ** 2
    hiss = rng.normal(0, 1500, 2400)
    hiss -= np.convolve(hiss, np.ones(4) / 4, "same")
    sound = rng.normal(0, 20, 48_000)
    sound[8000:24_000] += voice
    assert latency.word_ends(sound.astype(np.int16)) == pytest.approx(24_000, abs=800)
    sound[36_000:36_300] += rng.normal(0, 8000, 300)  # the click of a mouse
    assert latency.word_ends(sound.astype(np.int16)) == pytest.approx(24_000, abs=800)
    sound[24_000:26_400] += hiss  # the s of "lights"
    assert latency.word_ends(sound.astype(np.int16)) == pytest.approx(26_400, abs=480)


def test_what_was_done_ahead_takes_no_time() -> None:
    moments = {
        "taken": 9.0, "mel": 9.1, "encoded": 9.2, "decoding": 9.3, "decoded": 9.4, "window": 9.6,
        "storing": 9.7, "stored": 9.8,
    }  # fmt: skip
    parts = latency.split(moments, 9.0, 10.0)
    assert sum(parts.values()) == pytest.approx(1000)
    assert parts["hang-over"] == pytest.approx(600) and parts["queue"] == pytest.approx(100)
    assert parts["mel"] == parts["encoder"] == parts["decoder"] == 0


def test_the_parts_of_a_latency_add_up_to_the_whole() -> None:
    names = ("window", "taken", "mel", "encoded", "decoding", "decoded", "storing", "stored")
    moments = {name: 10.6 + 0.01 * step**2 for step, name in enumerate(names)}
    parts = latency.split(moments, 10.0, 11.3)
    assert sum(parts.values()) == pytest.approx(1300)
    assert min(parts.values()) > 0


def test_speech_ends_with_its_last_loud_sample() -> None:
    speech = np.full(16_000, 5000, np.int16)
    assert latency.speech_ends(between_silences(speech)) == pytest.approx(7680 + 16_000, abs=160)


def test_the_latency_is_told_of_those_ended_early_and_of_the_others_and_by_who_said_it() -> None:
    parts = dict.fromkeys(latency.PARTS, 50.0)
    measured = [
        latency.Measured("commands", "early", parts, 400.0),
        latency.Measured("commands", "plain", parts, 700.0),
        latency.Measured("readings", "ahead", parts, 650.0),
    ]
    outcome = latency.Outcome(measured, said=3, least=3, windows=3, encodes=5)
    lines = str(outcome).splitlines()
    assert not outcome.broken and "encodes: 5 for 3 windows" in lines[1]
    assert [line.split()[:1] for line in lines[3:]] == [["all"], ["commands"], ["readings"]]
    assert "1: 400/400/400" in lines[4] and "1: 700/700/700" in lines[4]
    assert "1: 650/650/650" in lines[5] and "1: 400/400/400" not in lines[5]
