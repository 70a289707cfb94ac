"""What a window sounds like: its sketch tells sentences apart, its decay tells rooms apart."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rigs.publishing import transcript
from rigs.recordings import sentences

from appliance.capture.recording import Recording
from appliance.house.acoustics import measure_window, score
from appliance.house.claims import SAME, SOUND_S, SURELY_SAME, Claim, is_same_sentence
from appliance.house.sketch import LONGEST_STEPS, agreement
from appliance.records import SAMPLE_RATE, Window

Sound = NDArray[np.float64]
REVERBERATION = np.exp(-6.9 * np.arange(SAMPLE_RATE // 2) / SAMPLE_RATE / 0.5)


def read(number: int) -> Sound:
    """A recording with half a second of silence on each side."""
    file = sentences()[number].file
    with Recording(str(file), real_time=False) as recording:
        sound = np.concatenate([frame.samples for frame in recording.frames()])
    return np.pad(sound.astype(np.float64), SAMPLE_RATE // 2)


def window(sound: Sound) -> Window:
    """The sound as a window whose speech ends 0.5 s before its end."""
    generator = np.random.default_rng(1)
    samples = (sound + generator.normal(0, 20, len(sound))).astype(np.int16)
    end_s = len(sound) / SAMPLE_RATE - 0.5
    return Window("", 1, True, samples, 0.0, end_s, 1.0)


def far(sound: Sound) -> Sound:
    """The sound in another room: softer, muffled, with reverberation."""
    response = REVERBERATION * np.random.default_rng(2).normal(0, 0.02, len(REVERBERATION))
    response[0] = 0.5
    heard = np.convolve(sound, response)[: len(sound)]
    return np.asarray(np.convolve(heard, np.ones(8) / 8, "same") * 0.4)


def claim(sound: Sound, end_s: float, begin_s: float = 0.0) -> Claim:
    """A room hears the sound, which ends then; it misses what is before `begin_s`."""
    heard = window(sound[round(begin_s * SAMPLE_RATE) :])
    start_s = end_s - heard.speech_end_s
    return Claim("", "", "", start_s, end_s, 1, 0.0, measure_window(heard).sketch)


def moved(one: Claim, later_s: float) -> Claim:
    """The claim, had the room heard it later."""
    return replace(one, start_s=one.start_s + later_s, end_s=one.end_s + later_s)


def test_two_rooms_hear_one_sentence_and_two_people_say_two() -> None:
    sounds = [read(number) for number in range(6)]
    near = [claim(one, 9.0) for one in sounds]
    assert {len(one.sketch) for one in near} <= set(range(8, LONGEST_STEPS + 1))
    there = [claim(far(one), 9.05) for one in sounds]
    assert all(is_same_sentence(*pair) for pair in zip(near, there, strict=True))
    mixed = [
        is_same_sentence(near[one], moved(there[other], (one - other) * 0.3))
        for one in range(6)
        for other in range(6)
        if one != other
    ]
    assert sum(mixed) <= 1, "two sentences at once"


def test_a_room_may_miss_the_end_or_the_beginning() -> None:
    sound = read(0)
    whole, missing_s = claim(sound, 9.0), 0.8
    cut = claim(far(sound[: -round(missing_s * SAMPLE_RATE)]), 9.0 - missing_s)
    late = claim(far(sound), 9.0, missing_s)
    assert is_same_sentence(whole, cut) and is_same_sentence(cut, whole)
    assert is_same_sentence(whole, late) and is_same_sentence(late, whole)
    other = claim(far(read(3)[: -round(missing_s * SAMPLE_RATE)]), 9.0 - missing_s)
    assert not is_same_sentence(whole, other)


def test_steps_are_compared_by_their_time() -> None:
    here = claim(read(0), 9.0)
    at_once = agreement(here.sketch, here.sketch, 0.0, SOUND_S)
    apart = agreement(here.sketch, here.sketch, 0.4, SOUND_S)
    assert at_once is not None and apart is not None
    assert at_once > SURELY_SAME > SAME > apart
    assert is_same_sentence(here, claim(far(read(0)), 9.4)), "a camera whose sound comes later"


def test_short_sketches_are_not_compared() -> None:
    assert agreement(b"\x01" * 7, b"\x02" * 30, 0.0, 0.0) is None
    assert measure_window(Window("", 1, True, np.zeros(100, np.int16), 0.0, 0.0, 0.0)).sketch == b""
    word, sentence = claim(read(0)[: round(0.9 * SAMPLE_RATE)], 9.0), claim(read(0), 9.0)
    assert word.sketch == b"" and is_same_sentence(word, word)
    assert not is_same_sentence(word, sentence)


def test_reverberation_makes_the_level_fall_more_slowly() -> None:
    for number in range(3):
        near, there = read(number), far(read(number))
        dry, wet = measure_window(window(near)).decay_db, measure_window(window(there)).decay_db
        assert dry is not None and wet is not None and dry > wet


@pytest.mark.parametrize(
    "better", [{"confidence": 0.9}, {"level_dbfs": -25.0}, {"snr_db": 30.0}], ids=str
)
def test_each_property_counts(better: dict[str, Any]) -> None:
    plain: dict[str, Any] = {"confidence": 0.5, "level_dbfs": -35.0, "snr_db": 15.0}
    assert score(transcript(**plain | better), 10.0) > score(transcript(**plain), 10.0)
    assert score(transcript(**plain), 20.0) > score(transcript(**plain), 10.0)


def test_what_is_unknown_counts_as_poorly_heard() -> None:
    known = transcript(confidence=0.9, level_dbfs=-25.0, snr_db=20.0)
    assert score(known, 20.0) > score(transcript(confidence=0.9), None)
