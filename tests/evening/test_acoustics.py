from __future__ import annotations

import numpy as np
import pytest
from evening_run.acoustics import (
    Sound,
    beside,
    direct_to_reverberant_db,
    in_room,
    kitchen,
    reverberation_time_s,
    room,
    softened,
    speech_power,
)

RATE = 16_000


def decaying(reverberation_s: float) -> Sound:
    """Noise that falls by 60 dB in so long."""
    size = int(1.5 * reverberation_s * RATE)
    noise = np.random.default_rng(3).normal(size=size)
    return np.asarray(noise * 10 ** (-3 * np.arange(size) / (reverberation_s * RATE)))


@pytest.mark.parametrize("reverberation_s", [0.2, 0.5, 1.0])
def test_the_reverberation_time_of_a_known_decay_is_found(reverberation_s: float) -> None:
    found = reverberation_time_s(decaying(reverberation_s))
    assert found == pytest.approx(reverberation_s, rel=0.05)


def test_direct_sound_and_rest_of_the_same_energy_are_0_db_apart() -> None:
    response = np.zeros(RATE)
    response[0] = response[1000] = 1.0
    assert direct_to_reverberant_db(response) == pytest.approx(0)
    response[0] = 10.0
    assert direct_to_reverberant_db(response) == pytest.approx(20)


@pytest.mark.parametrize("reverberation_s", [0.3, 0.6])
@pytest.mark.parametrize("metres", [1.0, 3.0, 5.0])
def test_a_room_has_its_reverberation_time_and_direct_sound_by_distance(
    reverberation_s: float, metres: float
) -> None:
    response = room(reverberation_s, metres)
    assert reverberation_time_s(response) == pytest.approx(reverberation_s, rel=0.05)
    assert response[0] == pytest.approx(1 / metres)


def test_direct_sound_sinks_below_the_reverberation_with_distance_and_with_a_longer_decay() -> None:
    near, middle, far = (direct_to_reverberant_db(room(0.6, metres)) for metres in (1.0, 3.0, 5.0))
    assert near > 0 > middle > far
    assert direct_to_reverberant_db(room(0.3, 3.0)) > middle


def test_a_room_neither_moves_nor_lengthens_a_sound() -> None:
    click = np.zeros(RATE)
    click[4000] = 1.0
    heard = in_room(click, room(0.3, 3.0))
    assert len(heard) == len(click)
    assert not heard[:4000].round(9).any()
    assert heard[4000] == pytest.approx(1 / 3)


@pytest.mark.parametrize("ratio_db", [20.0, 10.0, 5.0])
def test_noise_lies_below_the_loud_parts_of_speech_by_the_ratio(ratio_db: float) -> None:
    rng = np.random.default_rng(1)
    speech = np.zeros(2 * RATE)
    speech[RATE // 2 : RATE] = 3000 * rng.normal(size=RATE // 2)
    added = beside(speech, kitchen(rng, len(speech)), ratio_db) - speech
    ratio = 10 * np.log10(speech_power(speech) / np.mean(added**2))
    assert ratio == pytest.approx(ratio_db, abs=0.01)


def test_the_same_seed_makes_the_same_kitchen() -> None:
    first, second = (kitchen(np.random.default_rng(5), RATE) for _ in range(2))
    assert (first == second).all()
    assert np.sqrt(np.mean(first**2)) == pytest.approx(1)


def test_a_softened_sound_begins_and_ends_at_nothing_and_keeps_its_middle() -> None:
    sound = softened(np.ones(RATE), 0.1)
    assert len(sound) == RATE
    assert sound[0] == sound[-1] == 0
    assert (sound[1600:-1600] == 1).all()
