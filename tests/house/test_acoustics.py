"""What a window sounds like: its sketch tells sentences apart, its decay tells rooms apart."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rigs.publishing import transcript
from rigs.recordings import sentences

from appliance.capture.recording import Recording
from appliance.house.acoustics import measure_window
from appliance.house.score import score
from appliance.house.sketch import LONGEST_STEPS, STEP_S, correlation, is_same_sound
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


def test_a_sketch_is_alike_in_another_room_and_not_for_another_sentence() -> None:
    sounds = [read(number) for number in range(6)]
    near = [measure_window(window(one)).sketch for one in sounds]
    there = [measure_window(window(far(one))).sketch for one in sounds]
    assert {len(one) for one in near} <= set(range(8, LONGEST_STEPS + 1))
    assert all(is_same_sound(*pair, 0.0) for pair in zip(near, there, strict=True))
    apart = [
        is_same_sound(near[one], there[other], (one - other) * 0.1)
        for one in range(6)
        for other in range(6)
        if one != other
    ]
    assert sum(apart) <= 3, "two sentences whose ends are 0.1 to 0.5 s apart"


def test_steps_are_compared_by_their_time() -> None:
    sound = read(0)
    whole = measure_window(window(sound)).sketch
    later = 4 * STEP_S
    cut = measure_window(window(sound[: -round(later * SAMPLE_RATE)])).sketch
    right, wrong = correlation(cut, whole, later), correlation(cut, whole, -later)
    assert right is not None and wrong is not None
    assert right > 0.9 > wrong


def test_short_sketches_are_not_compared() -> None:
    assert correlation(b"\x01" * 7, b"\x02" * 30, 0.0) is None
    assert is_same_sound(b"", bytes(range(15)), 0.0)
    assert measure_window(Window("", 1, True, np.zeros(100, np.int16), 0.0, 0.0, 0.0)).sketch == b""


def test_reverberation_makes_the_level_fall_more_slowly() -> None:
    for number in range(3):
        near, there = read(number), far(read(number))
        dry, wet = measure_window(window(near)).decay_db, measure_window(window(there)).decay_db
        assert dry is not None and wet is not None and dry > wet


@pytest.mark.parametrize(
    "better",
    [
        {"confidence": 0.9},
        {"level_dbfs": -25.0},
        {"snr_db": 30.0},
    ],
    ids=str,
)
def test_each_property_counts(better: dict[str, Any]) -> None:
    plain: dict[str, Any] = {"confidence": 0.5, "level_dbfs": -35.0, "snr_db": 15.0}
    assert score(transcript(**plain | better), 10.0) > score(transcript(**plain), 10.0)
    assert score(transcript(**plain), 20.0) > score(transcript(**plain), 10.0)


def test_what_is_unknown_counts_as_poorly_heard() -> None:
    unknown = transcript(confidence=math.nan)
    assert math.isfinite(score(unknown, None))
    assert score(transcript(confidence=0.9, level_dbfs=-25.0), 20.0) > score(unknown, None)
