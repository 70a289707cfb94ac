"""How loud sound, its speech and its noise are."""

import numpy as np
import pytest

from appliance.capture.loudness import is_clipped, measure_loudness, measure_speech, quantile
from appliance.records import SAMPLE_RATE


def test_loudness_is_in_decibels_of_full_scale() -> None:
    sine = np.sin(2 * np.pi * 300 * np.arange(SAMPLE_RATE) / SAMPLE_RATE) * 16384
    assert measure_loudness(sine.astype(np.int16)) == (-9.0, -6.0, 0.0)
    assert measure_loudness(np.zeros(480, np.int16)) == (None, None, 0.0)
    assert measure_loudness(np.full(4, -32768, np.int16)) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize(("full", "clipped"), [(0, False), (1, False), (2, True), (480, True)])
def test_sound_is_clipped_above_one_sample_in_1000_at_full_scale(full: int, clipped: bool) -> None:
    samples = np.zeros(1000, np.int16)
    samples[:full] = 32767
    assert is_clipped(samples) is clipped


def test_level_of_speech_is_that_of_its_loud_part_noise_that_of_silence() -> None:
    generator = np.random.default_rng(1)
    noise = generator.normal(0, 32768 * 10 ** (-60 / 20), SAMPLE_RATE * 2)
    tone = np.sin(2 * np.pi * 300 * np.arange(SAMPLE_RATE) / SAMPLE_RATE) * 32768 * 10 ** (-27 / 20)
    sound = noise.copy()
    sound[SAMPLE_RATE // 2 : SAMPLE_RATE * 3 // 2] += tone
    level, snr = measure_speech(sound.astype(np.int16))
    assert level == pytest.approx(-30.0, abs=0.2)
    assert snr == pytest.approx(30.0, abs=1.0)
    comes_and_goes = np.repeat([0, 1500] * 10, SAMPLE_RATE // 10)
    assert measure_speech((sound + comes_and_goes).astype(np.int16))[1] == pytest.approx(
        snr, abs=0.3
    )
    assert measure_speech((sound / 4).astype(np.int16))[0] == pytest.approx(-42.0, abs=0.2)


def test_silence_and_a_click_have_no_level() -> None:
    assert measure_speech(np.zeros(SAMPLE_RATE, np.int16)) == (None, None)
    assert measure_speech(np.ones(100, np.int16)) == (None, None)


def test_a_quantile_is_numpys() -> None:
    values = np.random.default_rng(1).normal(size=33)
    for share in (0.0, 0.1, 0.95, 1.0):
        assert quantile(values, share) == pytest.approx(np.quantile(values, share), rel=1e-12)
