"""A hum is removed, channels become one. Rates are tested with recordings and microphones."""

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.capture.filters import HighPass, Resampler
from appliance.records import SAMPLE_RATE


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


def test_the_filter_is_on_during_a_hum_and_passes_clean_sound_unchanged() -> None:
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


def test_of_channels_in_opposite_phase_the_louder_one_is_heard(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tone = np.concatenate([np.zeros(SAMPLE_RATE, np.float32), sine(300)])
    noises = np.random.default_rng(0).normal(0, 1e-3, (2, len(tone)))
    for weights in (None, (0.5, 0.5)):
        sound = (np.stack([0.95 * tone, -tone]) + noises).T.astype(np.float32)
        resampler = Resampler(SAMPLE_RATE, weights)
        heard = np.concatenate([resampler.push(block) for block in np.split(sound, 100)])
        assert heard[SAMPLE_RATE:].std() / (tone[SAMPLE_RATE:].std() * 32767) > 0.95
    assert len(caplog.records) == 2 and "opposite phase" in caplog.text
