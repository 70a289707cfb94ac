"""Samples become frames; their loudness. Resampling is tested with recordings and microphones."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.capture.frames import (
    HighPass,
    Resampler,
    is_clipped,
    measure_loudness,
    measure_speech,
    quantile,
)  # fmt: skip
from appliance.records import SAMPLE_RATE


def test_loudness_is_in_decibels_of_full_scale() -> None:
    sine = np.sin(2 * np.pi * 300 * np.arange(SAMPLE_RATE) / SAMPLE_RATE) * 16384
    assert measure_loudness(sine.astype(np.int16)) == (-9.0, -6.0, 0.0)
    assert measure_loudness(np.zeros(480, np.int16)) == (None, None, 0.0)
    assert measure_loudness(np.full(4, -32768, np.int16)) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize(("full", "clipped"), [(0, False), (1, False), (2, True), (480, True)])
def test_sound_is_clipped_if_more_than_one_sample_in_a_thousand_is_at_full_scale(
    full: int, clipped: bool
) -> None:
    samples = np.zeros(1000, np.int16)
    samples[:full] = 32767
    assert is_clipped(samples) is clipped


def test_level_of_speech_is_that_of_its_loud_part_and_noise_that_of_the_silence() -> None:
    generator = np.random.default_rng(1)
    noise = generator.normal(0, 32768 * 10 ** (-60 / 20), SAMPLE_RATE * 2)
    tone = np.sin(2 * np.pi * 300 * np.arange(SAMPLE_RATE) / SAMPLE_RATE) * 32768 * 10 ** (-27 / 20)
    sound = noise.copy()
    sound[SAMPLE_RATE // 2 : SAMPLE_RATE * 3 // 2] += tone
    level, snr = measure_speech(sound.astype(np.int16))
    assert level == pytest.approx(-30.0, abs=0.2)
    assert snr == pytest.approx(30.0, abs=1.0)
    assert measure_speech((sound / 4).astype(np.int16))[0] == pytest.approx(-42.0, abs=0.2)


def test_silence_and_a_click_have_no_level() -> None:
    assert measure_speech(np.zeros(SAMPLE_RATE, np.int16)) == (None, None)
    assert measure_speech(np.ones(100, np.int16)) == (None, None)


def sine(frequency_hz: float) -> NDArray[np.float32]:
    """Two seconds of a tone of amplitude 0.2."""
    times_s = np.arange(2 * SAMPLE_RATE) / SAMPLE_RATE
    return (0.2 * np.sin(2 * np.pi * frequency_hz * times_s)).astype(np.float32)


@pytest.mark.parametrize(
    ("frequency_hz", "gain_db"), [(50, -20.5), (60, -14.3), (90, -3.0), (200, 0.0), (3000, 0.0)]
)
def test_hum_of_the_mains_is_removed_and_speech_is_not(frequency_hz: float, gain_db: float) -> None:
    """By the formula of a Butterworth filter of the fourth order: -10 log10(1 + (90 / f) ** 8)."""
    passed = HighPass().filter(sine(frequency_hz))[SAMPLE_RATE:]
    assert 20 * np.log10(passed.std() / (0.2 / 2**0.5)) == pytest.approx(gain_db, abs=0.1)


def test_an_offset_is_removed_from_the_first_sample_on() -> None:
    assert np.abs(HighPass().filter(np.full(1000, 0.3, np.float32))).max() < 1e-6


def test_the_filter_is_on_while_there_is_a_hum_and_clean_sound_passes_bit_for_bit() -> None:
    def push(sound: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.concatenate([high_pass.push(block) for block in np.split(sound, 50)])

    high_pass, hum = HighPass(), sine(50)
    voice = sine(120)
    voice[:SAMPLE_RATE] = 0.0
    np.testing.assert_array_equal(push(voice), voice)
    push(hum)
    assert push(hum)[SAMPLE_RATE:].std() < 0.15 * hum.std(), "found within 3 s, and lasting one"
    push(voice)
    np.testing.assert_array_equal(push(voice), voice)


def test_sound_is_filtered_the_same_in_whatever_pieces_it_comes() -> None:
    sound = np.random.default_rng(0).normal(0, 0.1, 5000).astype(np.float32)
    filtered, whole = HighPass(), HighPass().filter(sound)
    cuts = (0, 100, 101, 101, 3000, 5000)
    pieces = [filtered.filter(sound[start:end]) for start, end in pairwise(cuts)]
    np.testing.assert_allclose(np.concatenate(pieces), whole, atol=1e-6)


def test_blocks_that_come_together_are_judged_like_single_ones() -> None:
    sound = np.concatenate([sine(120), sine(50) + sine(300) / 9, sine(50), sine(120)])
    joined, single = HighPass(480), HighPass(480)
    together = [joined.push(block) for block in np.split(sound[:127_200], 53)]
    apart = [single.push(block) for block in np.split(sound[:127_200], 265)]
    np.testing.assert_allclose(np.concatenate(together), np.concatenate(apart), atol=1e-6)


def test_a_quantile_is_numpys() -> None:
    values = np.random.default_rng(1).normal(size=33)
    for share in (0.0, 0.1, 0.95, 1.0):
        assert quantile(values, share) == pytest.approx(np.quantile(values, share), rel=1e-12)


@pytest.mark.parametrize(
    ("factors", "weights", "level"),
    [
        ((1.0, 1.0), None, 1.0),
        ((1.0, 0.0), None, 0.5),
        ((0.0, 0.0), None, 0.0),
        ((1.0, 0.5, 0.2), None, 1.0),
        ((1.0, 0.5, 0.2), (0.0, 0.0, 1.0), 0.2),
    ],
)
def test_channels_become_one(
    factors: tuple[float, ...], weights: tuple[float, ...] | None, level: float
) -> None:
    tone = sine(300)
    resampler = Resampler(SAMPLE_RATE, weights)
    sound = np.outer(tone, np.array(factors, np.float32))
    heard = np.concatenate([resampler.push(block) for block in np.split(sound, 100)])
    assert heard.std() / (tone.std() * 32767) == pytest.approx(level, abs=0.01)
