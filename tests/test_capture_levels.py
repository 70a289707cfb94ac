"""Digital silence and distortion, told and taken back."""

from __future__ import annotations

import numpy as np

from appliance.capture.microphone import Levels

ZEROS = np.zeros((480, 1), np.int16)
SOFT = np.full((480, 1), 1, np.int16)
LOUD = np.full((480, 1), 32767, np.int16)


def push(levels: Levels, sound: np.ndarray, seconds: float) -> None:
    for _ in range(round(seconds / 0.03)):
        levels.push(sound, 0.03)


def test_only_zeros_for_long_are_silence_until_the_first_sample_comes() -> None:
    levels = Levels(5.0)
    push(levels, ZEROS, 4.9)
    assert not levels.silent
    push(levels, ZEROS, 0.2)
    assert levels.silent
    push(levels, SOFT, 0.03)
    assert not levels.silent


def test_softest_noise_is_no_silence_and_zero_seconds_mean_never() -> None:
    levels = Levels(5.0)
    for _ in range(300):
        push(levels, ZEROS, 0.03)
        push(levels, SOFT, 0.03)
    assert not levels.silent
    never = Levels(0.0)
    push(never, ZEROS, 60)
    assert not never.silent


def test_seconds_at_full_scale_are_told_until_as_many_were_clear() -> None:
    levels = Levels(5.0)
    push(levels, LOUD, 4.8)
    assert not levels.distorted, "a door that bangs is no fault"
    push(levels, LOUD, 0.3)
    assert levels.distorted
    push(levels, SOFT, 4)
    assert levels.distorted, "it does not flicker"
    push(levels, SOFT, 2)
    assert not levels.distorted
