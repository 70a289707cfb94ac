"""Speech longer than a window goes through whole: as sound, and as text."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from appliance.capture.frames import FRAME_SAMPLES, Framer
from appliance.capture.segmenter import Segmenter
from appliance.capture.voice import Judgement, VoiceDetector
from appliance.config import SegmenterSettings
from appliance.records import SAMPLE_RATE, Discarded, Frame, Samples, Window

FRAME_S = 0.03


class ToldVoice(VoiceDetector):
    """Takes every frame for what it is told; opens at the third of speech in a row."""

    def __init__(self, speech: list[bool]) -> None:
        self.told = iter(speech)
        self.in_a_row = 0

    def push(self, _frame: Frame) -> Judgement:
        speech = next(self.told)
        self.in_a_row = self.in_a_row + 1 if speech else 0
        return Judgement(self.in_a_row >= 3, speech, FRAME_S if speech else 0.0)

    def reset(self) -> None:
        self.in_a_row = 0


def numbered(frames: int, level: list[int]) -> Samples:
    """Sound in which every frame carries its number in its first sample."""
    signs = np.where(np.arange(FRAME_SAMPLES) % 2, -1, 1)
    sound: Samples = np.concatenate([signs * one for one in level]).astype(np.int16)
    sound[::FRAME_SAMPLES] = np.arange(frames)
    return sound


def numbers(window: Window) -> list[int]:
    return [int(one) for one in window.samples[::FRAME_SAMPLES]]


STRETCHES = st.lists(
    st.tuples(st.booleans(), st.integers(1, 250), st.sampled_from([3, 30, 300, 3000, 20000])),
    min_size=1,
    max_size=12,
)


@given(STRETCHES, st.sampled_from([2.0, 5.0, 10.0]), st.sampled_from([0, 400, 1000, 2000]))
@example([(False, 9, 3), (True, 54, 20000), (True, 36, 3000)], 2.0, 1000)
@settings(max_examples=150, deadline=None)
def test_every_sample_of_an_utterance_is_in_one_window_but_for_overlaps(
    stretches: list[tuple[bool, int, int]], window_s: float, overlap_ms: int
) -> None:
    speech = [voice for voice, frames, _ in stretches for _ in range(frames)]
    level = [loud for _, frames, loud in stretches for _ in range(frames)]
    chosen = replace(SegmenterSettings(), overlap_ms=overlap_ms)
    segmenter = Segmenter(ToldVoice(speech), chosen, window_s)
    found: list[Window | Discarded] = []
    for frame in Framer().push(numbered(len(level), level), 0.0):
        found += segmenter.push(frame)
    windows = [one for one in (*found, *segmenter.flush()) if isinstance(one, Window)]
    for window in windows:
        assert len(window.samples) <= window_s * SAMPLE_RATE
        heard = numbers(window)
        assert heard == list(range(heard[0], heard[-1] + 1))
        assert window.start_s == pytest.approx(heard[0] * FRAME_S)
        new = heard[round(window.overlap_s / FRAME_S) :]
        assert new, "an overlap alone is no window"
        assert window.voiced_s == pytest.approx(FRAME_S * sum(speech[one] for one in new))
        assert heard[0] * FRAME_S < window.speech_end_s <= (heard[-1] + 1.5) * FRAME_S
        assert window.overlap_s <= overlap_ms / 1000
    for one, other in pairwise(windows):
        first_new = numbers(other)[round(other.overlap_s / FRAME_S)]
        if one.utterance_id == other.utterance_id:
            assert (one.last, other.index) == (False, one.index + 1)
            assert first_new == numbers(one)[-1] + 1, "nothing between them, nothing twice"
        else:
            assert one.last and other.index == 1 and other.overlap_s == 0
            assert first_new > numbers(one)[-1]
    assert not windows or windows[-1].last
