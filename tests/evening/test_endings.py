from __future__ import annotations

import numpy as np
import pytest
from evening_run.endings import speech_ends, word_ends


def test_a_persons_last_word_is_found_before_noise_and_a_click() -> None:
    rng = np.random.default_rng(1)
    time_s = np.arange(16_000) / 16_000
    voice = 6000 * np.sin(2 * np.pi * 300 * time_s) * np.sin(2 * np.pi * 4 * time_s) ** 2
    hiss = rng.normal(0, 1500, 2400)
    hiss -= np.convolve(hiss, np.ones(4) / 4, "same")
    sound = rng.normal(0, 20, 48_000)
    sound[8000:24_000] += voice
    assert word_ends(sound.astype(np.int16)) == pytest.approx(24_000, abs=800)
    sound[36_000:36_300] += rng.normal(0, 8000, 300)  # the click of a mouse
    assert word_ends(sound.astype(np.int16)) == pytest.approx(24_000, abs=800)
    sound[24_000:26_400] += hiss  # the s of "lights"
    assert word_ends(sound.astype(np.int16)) == pytest.approx(26_400, abs=480)


def test_speech_ends_with_its_last_loud_sample() -> None:
    speech = np.full(16_000, 5000, np.int16)
    sound = np.concatenate((np.zeros(7680, np.int16), speech, np.zeros(24_000, np.int16)))
    assert speech_ends(sound) == pytest.approx(7680 + 16_000, abs=160)
