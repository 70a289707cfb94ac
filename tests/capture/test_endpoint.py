"""The end of speech is found in noise, and what only seems to be speech is no utterance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from appliance.capture.endpoint import NoiseFloor, power_of
from appliance.capture.frames import FRAME_SAMPLES, Framer
from appliance.capture.segmenter import Segmenter
from appliance.capture.voice import Judgement
from appliance.config import SegmenterSettings
from appliance.records import SAMPLE_RATE, Discarded, Frame, Samples, Window

FRAME_S = 0.03


class DeafVoice:
    """Takes everything for speech, with a share of voice, from a given moment on."""

    def __init__(self, from_s: float, share: float = 1.0, until_s: float = 1e9) -> None:
        self.from_s, self.share, self.until_s = from_s, share, until_s

    def push(self, frame: Frame) -> Judgement:
        speech = self.from_s <= frame.start_s < self.until_s
        return Judgement(speech, speech, FRAME_S * self.share if speech else 0.0)

    def reset(self) -> None:
        self.from_s = 1e9


def noise(seconds: float, rms: float, seed: int = 0) -> Samples:
    size = int(seconds * SAMPLE_RATE)
    return np.rint(np.random.default_rng(seed).normal(size=size) * rms).astype(np.int16)


def room(
    voice: DeafVoice, *sounds: Samples, settings: SegmenterSettings | None = None
) -> list[tuple[float, Window | Discarded]]:
    """What the segmenter gives, and when."""
    segmenter = Segmenter(voice, settings or SegmenterSettings(), 10.0)
    found = []
    for frame in Framer().push(np.concatenate(sounds), 0.0):
        found += [(frame.end_s, one) for one in segmenter.push(frame)]
    return found


def test_the_end_is_found_when_the_level_sinks_to_a_noise_that_the_detector_takes_for_speech() -> (
    None
):
    found = room(DeafVoice(1.0), noise(4, 200), noise(2, 2000), noise(3, 200))
    ((when_s, window),) = found
    assert isinstance(window, Window)
    assert 6.5 < when_s < 6.8
    assert window.start_s + window.duration_s == pytest.approx(6.3, abs=0.15)


def test_a_detector_that_knows_the_noise_is_believed_about_soft_speech() -> None:
    sound = noise(4, 200), noise(2, 2000), noise(3, 300), noise(1, 200)
    ((_, window),) = room(DeafVoice(4.0, until_s=9.0), *sound)
    assert isinstance(window, Window)
    assert window.speech_end_s == pytest.approx(9.0, abs=0.05)


def test_switched_off_the_end_is_left_to_the_detector() -> None:
    off = replace(SegmenterSettings(), floor_margin_db=0.0)
    assert room(DeafVoice(1.0), noise(4, 200), noise(2, 2000), noise(3, 200), settings=off) == []


def test_speech_no_louder_than_twice_the_noise_is_left_to_the_detector() -> None:
    assert room(DeafVoice(1.0), noise(4, 200), noise(2, 380), noise(3, 200)) == []


def test_no_word_is_lost_where_one_utterance_after_the_other_sinks_into_the_noise() -> None:
    found = room(DeafVoice(1.0), noise(4, 200), *[noise(1, 2000), noise(2, 200)] * 3)
    windows = [one for _, one in found if isinstance(one, Window)]
    assert len({one.utterance_id for one in windows}) == 3
    for loud_s, window in zip((4, 7, 10), windows, strict=True):
        assert window.start_s < loud_s and window.start_s + window.duration_s > loud_s + 1


def test_the_loudness_of_a_word_in_the_pre_roll_counts() -> None:
    word = noise(4, 200), noise(0.3, 2000), noise(2, 200)
    ((_, window),) = room(DeafVoice(4.75, until_s=4.9), *word)
    assert isinstance(window, Window)


def test_a_quiet_talker_is_not_cut_by_pauses_shorter_than_the_hang_over() -> None:
    talk = [noise(0.8, 600), noise(0.4, 200)] * 5
    ((when_s, window),) = room(DeafVoice(1.0), noise(4, 200), *talk, noise(1, 200))
    assert when_s > 4 + 5 * 1.2
    assert isinstance(window, Window) and window.duration_s > 6


def test_an_utterance_kept_open_by_sound_with_hardly_a_voice_in_it_ends() -> None:
    hum = [noise(0.5, 3000), noise(0.5, 1000)] * 8
    ((when_s, window),) = room(DeafVoice(1.0, share=0.15), noise(1, 200), *hum)[:1]
    assert when_s == pytest.approx(6.0, abs=0.1)
    assert isinstance(window, Window)
    assert room(DeafVoice(1.0, share=0.25), noise(1, 200), *hum) == []


def test_steady_sound_that_was_taken_for_speech_is_discarded() -> None:
    ((_, discarded),) = room(DeafVoice(5.0, until_s=5.5), noise(9, 500))
    assert isinstance(discarded, Discarded) and discarded.reason == "no_speech"


def test_a_word_on_a_recording_without_any_silence_is_kept() -> None:
    segmenter = Segmenter(DeafVoice(0.0), SegmenterSettings(), 10.0)
    for frame in Framer().push(noise(0.5, 2000), 0.0):
        segmenter.push(frame)
    (window,) = segmenter.flush()
    assert isinstance(window, Window)


def test_hardly_voiced_sound_is_discarded() -> None:
    sound = noise(1, 200), noise(3, 2000), noise(1, 200)
    ((_, discarded),) = room(DeafVoice(1.0, share=0.04, until_s=4.0), *sound)
    assert isinstance(discarded, Discarded) and discarded.reason == "no_speech"
    ((_, window),) = room(DeafVoice(1.0, share=0.2, until_s=4.0), *sound)
    assert isinstance(window, Window)


def test_the_floor_is_the_lowest_level_of_the_last_seconds() -> None:
    floor = NoiseFloor()
    for sound in (noise(3, 100), noise(5, 3000)):
        for frame in Framer().push(sound, 0.0):
            floor.push(power_of(frame.samples), len(frame.samples))
    assert floor.known
    assert 10 * np.log10(floor.power) == pytest.approx(40, abs=1.5)
    assert 10 * np.log10(floor.level) == pytest.approx(69.5, abs=1.5)
    for frame in Framer().push(noise(14, 1000), 0.0):
        floor.push(power_of(frame.samples), len(frame.samples))
    assert 10 * np.log10(floor.power) == pytest.approx(60, abs=1.5), "noise that has come to stay"
    floor.reset()
    assert not floor.known


def test_a_constant_offset_is_no_power() -> None:
    assert power_of(np.full(FRAME_SAMPLES, 12_000, np.int16)) == 0.0


def test_an_utterance_that_sinks_just_after_a_cut_has_a_last_window_with_something_new() -> None:
    settings = replace(SegmenterSettings(), hang_over_ms=2000, overlap_ms=2000)
    segmenter = Segmenter(DeafVoice(1.0), settings, 5.0)
    found = []
    sound = np.concatenate([noise(2.6, 200), noise(1.9, 4000), noise(4, 500)])
    for frame in Framer().push(sound, 0.0):
        found += segmenter.push(frame)
    first, second = (one for one in found if isinstance(one, Window))
    assert (first.last, second.last) == (False, True)
    assert 0 < second.overlap_s < second.duration_s
