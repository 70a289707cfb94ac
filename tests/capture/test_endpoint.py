"""The end of speech is found in noise, and what only seems to be speech is no utterance."""

from unittest.mock import patch

import numpy as np
import pytest
from evening_run.endings import speech_ends
from evening_run.programme import of_people
from rigs.checkout import shared
from rigs.recordings import sentences
from rigs.sounds import read, to_int16

from appliance.capture.endpoint import Endpoint, NoiseFloor
from appliance.capture.frames import Framer
from appliance.capture.loudness import power_of
from appliance.capture.segmenter import Segmenter
from appliance.capture.voice import Judgement, VoiceDetector
from appliance.config import SegmenterSettings, VoiceSettings
from appliance.records import SAMPLE_RATE, Discarded, Frame, Samples, Window

FRAME_S = 0.03


class ByDetector(Endpoint):
    """Leaves the end to the detector."""

    def refine(self, judgement: Judgement, power: float, length_s: float) -> Judgement:
        return judgement


class SlowVoice(VoiceDetector):
    """Finds speech from the first score to the last, one for each frame from `from_s` on."""

    def __init__(self, from_s: float, scores: list[float]) -> None:
        self.from_s, self.scores = from_s, scores

    def push(self, frame: Frame) -> Judgement:
        at = round((frame.start_s - self.from_s) / FRAME_S)
        if not 0 <= at < len(self.scores):
            return Judgement(opens=False, speech=False, voiced_s=0.0, score=0.0)
        return Judgement(opens=True, speech=True, voiced_s=FRAME_S, score=self.scores[at])

    def reset(self) -> None:
        pass


class DeafVoice(VoiceDetector):
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
    voice: VoiceDetector,
    *sounds: Samples,
    settings: SegmenterSettings | None = None,
    endpoint: type[Endpoint] = Endpoint,
) -> list[tuple[float, Window | Discarded]]:
    """What the segmenter gives, and when."""
    with patch("appliance.capture.segmenter.Endpoint", endpoint):
        segmenter = Segmenter(voice, settings or SegmenterSettings(), 10.0)
    found = []
    for frame in Framer().push(np.concatenate(sounds), 0.0):
        found += [(frame.end_s, one) for one in segmenter.push(frame)]
    return found


def speech_end_s(
    scores: list[float], *sounds: Samples, endpoint: type[Endpoint] = Endpoint
) -> float:
    """Where speech ends that the detector finds for as many frames as there are scores from 4 s on,
    with noise before it and behind it."""
    sound = noise(4, 20), *sounds, noise(2, 20)
    ((_, window),) = room(SlowVoice(4.0, scores), *sound, endpoint=endpoint)
    assert isinstance(window, Window)
    return window.speech_end_s


WORD = [1.0] * 33
"""Scores of 0.99 s."""


def test_speech_ends_with_the_sound_and_not_when_the_score_has_fallen() -> None:
    scores, word = [*WORD, 1.0, 1.0, 0.9, 0.7, 0.5, 0.4, 0.4], noise(0.99, 3000)
    assert speech_end_s(scores, word) == pytest.approx(5.01, abs=0.04)
    assert speech_end_s(scores, word, endpoint=ByDetector) == pytest.approx(5.2, abs=0.02)


def test_a_far_louder_voice_begins_an_utterance_of_its_own() -> None:
    """A television that talks at a tenth of its level is one before it, and none of a pause."""
    for softer, count in ((300, 2), (1500, 1)):
        talk = noise(3, softer), noise(2, 3000), noise(2, 20)
        windows = [one for _, one in room(DeafVoice(1.0, until_s=6.0), noise(1, 20), *talk)]
        assert len(windows) == count, softer
        last = windows[-1]
        assert isinstance(last, Window) and last.speech_end_s == pytest.approx(6.0, abs=0.1)
        assert last.start_s == pytest.approx(3.85 if count == 2 else 0.4, abs=0.07)
    soft_word = noise(0.5, 300), noise(2, 3000), noise(2, 20)
    assert len(room(DeafVoice(1.0, until_s=3.5), noise(1, 20), *soft_word)) == 1


def test_the_tail_of_a_room_a_breath_and_a_click_are_no_speech() -> None:
    fading = [*WORD, 0.95, 0.85, 0.75, 0.65, 0.5, 0.4, 0.4]
    tail = [noise(FRAME_S, 3000 * 10 ** (-steps / 20)) for steps in range(10, 45, 5)]
    assert speech_end_s(fading, noise(0.99, 3000), *tail) == pytest.approx(5.04, abs=0.05)
    breath = [*WORD, 0.6, 0.3, 0.2, 0.2, 0.3, 0.4, 0.4, 0.3]
    sound = noise(0.99, 3000), noise(0.06, 20), noise(0.18, 150)
    assert speech_end_s(breath, *sound) == pytest.approx(5.02, abs=0.04)
    click = noise(0.99, 3000), noise(0.06, 20), noise(0.01, 1000), noise(0.17, 20)
    assert speech_end_s(breath, *click) == pytest.approx(5.02, abs=0.04)


def test_a_soft_last_word_is_speech_if_the_score_is_high_or_rises() -> None:
    sound = noise(0.99, 3000), noise(0.15, 20), noise(0.3, 400)
    sure = [*WORD, *[0.9] * 5, *[0.95] * 10]
    assert speech_end_s(sure, *sound) == pytest.approx(5.45, abs=0.04)
    rising = [*WORD, *[0.3] * 5, 0.55, 0.62, 0.69, 0.76, 0.83, 0.89, *[0.92] * 4]
    assert speech_end_s(rising, *sound) == pytest.approx(5.45, abs=0.04)


def test_a_soft_voice_with_low_scores_all_along_is_left_to_the_detector() -> None:
    unsure = [*WORD, *[0.8, 0.75, 0.72, 0.68, 0.66, 0.64] * 6]
    found = speech_end_s(unsure, noise(0.99, 3000), noise(1.08, 300))
    assert found == pytest.approx(6.06, abs=0.04)


def test_a_voice_beside_a_television_has_ended_when_only_that_is_left() -> None:
    talk = [noise(0.3, level, seed) for seed, level in enumerate([300, 150, 15, 250] * 10)]
    command = noise(1.5, 2500)
    found = room(DeafVoice(0.5), *talk[:20], command, *talk[20:])
    (_, before), (when_s, window) = found[:2]
    assert isinstance(before, Window) and isinstance(window, Window)
    assert before.start_s + before.duration_s <= window.start_s + 0.01
    assert 7.5 + 0.5 <= when_s < 7.5 + 0.95
    assert 5.7 < window.start_s <= 6.0 and window.start_s + window.duration_s > 7.5
    assert room(DeafVoice(0.5), *talk[:20], command, *talk[20:], endpoint=ByDetector)[0][0] > 9


def test_louder_and_softer_words_of_one_talker_are_one_utterance() -> None:
    loud, soft = noise(0.4, 1500), noise(0.4, 250)
    talk = [noise(0.4, 20), loud, soft, soft, loud, soft, soft]
    ((_, window),) = room(DeafVoice(4.4, until_s=9.6), noise(4, 20), *talk, *talk, noise(1, 20))
    assert isinstance(window, Window) and window.duration_s > 5


def test_a_soft_word_in_loud_noise_is_left_to_a_detector_that_is_sure() -> None:
    word, soft = noise(0.99, 900), noise(0.6, 320)
    lead, rest = noise(4, 300), noise(3, 300)
    ((_, window),) = room(SlowVoice(4.0, [1.0] * 53), lead, word, soft, rest)
    assert isinstance(window, Window)
    assert window.speech_end_s == pytest.approx(5.59, abs=0.04)


def last_covered_s(sound: Samples, endpoint: type[Endpoint] = Endpoint) -> float:
    """Where the last window ends, by the product's own detector."""
    voice = VoiceDetector(VoiceSettings())
    return max(
        (
            one.start_s + one.duration_s
            for _, one in room(voice, sound, endpoint=endpoint)
            if isinstance(one, Window)
        ),
        default=0.0,
    )


def test_no_end_of_a_word_is_cut_and_the_end_is_found_sooner() -> None:
    earlier_s = []
    around = noise(3.5, 3), noise(1.5, 3, seed=1)
    for one in sentences():
        plain = to_int16(read(one.file))
        sound = np.concatenate((around[0], plain, around[1]))
        end_s = 3.5 + speech_ends(plain) / SAMPLE_RATE
        covered_s = last_covered_s(sound)
        assert covered_s > end_s + 0.1, one.file
        earlier_s.append(last_covered_s(sound, ByDetector) - covered_s)
    assert np.median(earlier_s) > 0.03


def test_no_end_of_a_persons_word_is_cut() -> None:
    shared("data", "audio", "MANIFEST.tsv")
    labelled = 0
    for one in of_people():
        # else the label is of a noise that comes later
        end_s = one.end / SAMPLE_RATE
        if one.family != "reading" and last_covered_s(one.sound, ByDetector) > end_s + 0.1:
            labelled += 1
            assert last_covered_s(one.sound) > end_s - 0.1
    assert labelled > 20


def test_speech_ends_when_it_sinks_into_noise_that_seems_to_be_speech() -> None:
    found = room(DeafVoice(1.0), noise(4, 200), noise(2, 2000), noise(3, 200))
    ((when_s, window),) = found
    assert isinstance(window, Window)
    assert 6.5 < when_s < 6.8
    assert window.start_s + window.duration_s == pytest.approx(6.2, abs=0.15)


def test_a_detector_that_knows_the_noise_is_believed_about_soft_speech() -> None:
    sound = noise(4, 200), noise(2, 2000), noise(3, 300), noise(1, 200)
    ((_, window),) = room(DeafVoice(4.0, until_s=9.0), *sound)
    assert isinstance(window, Window)
    assert window.speech_end_s == pytest.approx(9.0, abs=0.05)


def test_no_word_is_lost_when_utterances_sink_into_the_noise() -> None:
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


def test_a_word_on_a_recording_without_any_silence_is_kept() -> None:
    segmenter = Segmenter(DeafVoice(0.0), SegmenterSettings(), 10.0)
    for frame in Framer().push(noise(0.5, 2000), 0.0):
        segmenter.push(frame)
    (window,) = segmenter.flush()
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
