"""A hum is removed, channels become one. Rates are tested with recordings and microphones."""

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from rigs.recordings import sentences
from rigs.sounds import read

from appliance.capture.filters import Resampler
from appliance.capture.hum import HumFilter, _Filter
from appliance.records import SAMPLE_RATE


def sine(frequency_hz: float, seconds: int = 2) -> NDArray[np.float32]:
    """A tone of amplitude 0.2."""
    times_s = np.arange(seconds * SAMPLE_RATE) / SAMPLE_RATE
    return (0.2 * np.sin(2 * np.pi * frequency_hz * times_s)).astype(np.float32)


@pytest.mark.parametrize(
    ("frequency_hz", "gain_db"), [(50, -20.5), (60, -14.3), (90, -3.0), (200, 0.0), (3000, 0.0)]
)
def test_what_lies_below_speech_is_removed_and_speech_is_not(
    frequency_hz: float, gain_db: float
) -> None:
    """By the formula of a Butterworth filter of the fourth order: -10 log10(1 + (90 / f) ** 8)."""
    passed = _Filter(rumbles=True).push(sine(frequency_hz))[SAMPLE_RATE:]
    assert 20 * np.log10(passed.std() / (0.2 / 2**0.5)) == pytest.approx(gain_db, abs=0.1)


def test_rumble_and_an_offset_are_removed_while_they_are_there() -> None:
    voice = sine(330)
    voice[:SAMPLE_RATE] = 0.0
    for low in (sine(35), np.full(2 * SAMPLE_RATE, 0.2, np.float32)):
        hum = HumFilter()
        heard = [
            hum.push(block)
            for sound in (voice, low, low, low + voice, voice, voice)
            for block in np.split(sound, 50)
        ]
        before, _, removed, both, _, after = np.split(np.concatenate(heard), 6)
        np.testing.assert_array_equal(before, voice)
        assert np.abs(removed).max() < 0.01, "found within 2 s"
        np.testing.assert_allclose(both[:SAMPLE_RATE], 0.0, atol=0.01)
        np.testing.assert_array_equal(after, voice)


def test_sound_is_filtered_the_same_in_whatever_pieces_it_comes() -> None:
    times = np.arange(4 * SAMPLE_RATE) / SAMPLE_RATE
    sound = (0.2 * np.sin(2 * np.pi * 100 * times) + 0.1).astype(np.float32)
    whole, filtered = HumFilter().push(sound), HumFilter()
    cuts = (0, 100, 101, 101, 3000, 25_000, len(sound))
    pieces = [filtered.push(sound[start:end]) for start, end in pairwise(cuts)]
    np.testing.assert_allclose(np.concatenate(pieces), whole, atol=1e-6)
    assert np.abs(whole[3 * SAMPLE_RATE :]).max() < 0.01


@pytest.mark.parametrize("base_hz", [49.98, 60.03])
def test_the_lines_of_a_hum_are_removed_while_it_is_there_and_speech_is_not(base_hz: float) -> None:
    rng, lines = np.random.default_rng(0), HumFilter()
    noise = rng.normal(0, 1e-3, 8 * SAMPLE_RATE).astype(np.float32)
    hum = np.sum([sine(base_hz * number, 8) / number for number in (1, 2, 3, 5)], axis=0)
    hum[:SAMPLE_RATE] = hum[5 * SAMPLE_RATE :] = 0.0
    voice = np.concatenate([np.zeros(4 * SAMPLE_RATE, np.float32), sine(275, 4)])
    voice[int(4.5 * SAMPLE_RATE) : 6 * SAMPLE_RATE] = 0.0
    heard = noise + hum + voice
    left = np.concatenate([lines.push(block) for block in np.split(heard, 500)]) - noise - voice
    seconds = left.reshape(-1, SAMPLE_RATE // 2).std(axis=1)
    assert (seconds[2:4] > 0.1).all(), "not yet found"
    assert (seconds[6:8] < 1e-3).all()
    assert (seconds[8:10] < 0.15 * voice[4 * SAMPLE_RATE :][:8000].std()).all(), "while one speaks"
    np.testing.assert_allclose(left[6 * SAMPLE_RATE :], 0.0, atol=1e-6, err_msg="over")


def test_speech_passes_unchanged_where_there_is_no_hum() -> None:
    lines = HumFilter()
    for sentence in sentences()[::4]:
        sound = read(sentence.file)
        np.testing.assert_array_equal(lines.push(sound), sound)


def test_a_hum_is_removed_from_a_files_first_sample_on() -> None:
    times = np.arange(4 * SAMPLE_RATE) / SAMPLE_RATE
    hum = (0.2 * np.sin(2 * np.pi * 100.1 * times)).astype(np.float32).reshape(-1, 1)
    resampler = Resampler(SAMPLE_RATE, (1.0,))
    heard = resampler.push(hum[:25_600], ahead=True)
    assert np.abs(heard / 32768).max() < 0.04
    assert np.abs(resampler.push(hum[25_600:]) / 32768).max() < 0.01


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
    tone = sine(330)
    resampler = Resampler(SAMPLE_RATE, weights)
    sound = np.outer(tone, np.array(factors, np.float32))
    heard = np.concatenate([resampler.push(block) for block in np.split(sound, 100)])
    assert heard.std() / (tone.std() * 32767) == pytest.approx(level, abs=0.01)


def test_of_channels_in_opposite_phase_the_louder_one_is_heard(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tone = np.concatenate([np.zeros(SAMPLE_RATE, np.float32), sine(330)])
    noises = np.random.default_rng(0).normal(0, 1e-3, (2, len(tone)))
    for weights in (None, (0.5, 0.5)):
        sound = (np.stack([0.95 * tone, -tone]) + noises).T.astype(np.float32)
        resampler = Resampler(SAMPLE_RATE, weights)
        heard = np.concatenate([resampler.push(block) for block in np.split(sound, 100)])
        assert heard[SAMPLE_RATE:].std() / (tone[SAMPLE_RATE:].std() * 32767) > 0.95
    assert len(caplog.records) == 2 and "opposite phase" in caplog.text
