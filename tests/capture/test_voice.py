"""The voice detector on synthetic sound, and on real recordings where there are some."""

import itertools
import resource
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray
from rigs.checkout import SPEECH, shared

from appliance.capture.frames import Framer
from appliance.capture.recorder import QUIET_S
from appliance.capture.recording import Recording
from appliance.capture.segmenter import Segmenter
from appliance.capture.voice import SILERO_SAMPLES, VoiceDetector
from appliance.config import SegmenterSettings, VoiceSettings
from appliance.records import SAMPLE_RATE, Frame, Samples, Window

STEP = SAMPLE_RATE // 100
TASKS = Path("/proc/self/task")
"""A folder for each thread of this process."""


def noise(seconds: float, rms: float) -> Samples:
    shape = int(seconds * 16000)
    return np.rint(np.random.default_rng(0).normal(size=shape) * rms).astype(np.int16)


def loud_steps(samples: Samples) -> NDArray[np.bool_]:
    """Which 10 ms steps of a recording are speech, by their level alone."""
    power = samples.astype(np.float64) ** 2
    steps = power[: len(power) // STEP * STEP].reshape(-1, STEP).mean(axis=1)
    level = 10 * np.log10((steps[:-1] + steps[1:]) / 2 + 1e-2)
    loud = (level > np.percentile(level, 5) + 12) & (level > np.percentile(level, 95) - 35)
    three = loud[:-2] & loud[1:-1] & loud[2:]
    spoken: NDArray[np.bool_] = np.concatenate((three, [False, False]))
    spoken |= np.concatenate(([False], three, [False]))
    return spoken


def room_noise(samples: Samples, seconds: float, seed: int = 0) -> Samples:
    """(n,) int16 of a recording's pauses: pieces of 0.2 s of what is not speech, in random order,
    faded into each other."""
    whole = samples[: len(samples) // STEP * STEP].reshape(-1, STEP)
    loud = np.append(loud_steps(samples), [False, False])[: len(whole)]
    near = np.convolve(loud, np.ones(11), "same") > 0
    quiet = whole[~near].reshape(-1).astype(np.float64)
    half = min(len(quiet), SAMPLE_RATE // 5) // 2
    length, generator = int(seconds * SAMPLE_RATE), np.random.default_rng(seed)
    fade = np.sin(np.pi * (np.arange(2 * half) + 0.5) / (2 * half))
    mixed = np.zeros(length + 2 * half)
    for at in range(0, length, half):
        begin = generator.integers(0, len(quiet) - 2 * half + 1)
        mixed[at : at + 2 * half] += quiet[begin : begin + 2 * half] * fade
    return np.clip(np.rint(mixed[:length]), -32768, 32767).astype(np.int16)


def heard(samples: Samples) -> list[Window]:
    segmenter = Segmenter(VoiceDetector(VoiceSettings()), SegmenterSettings(), 10.0)
    found = [one for frame in Framer().push(samples, 0.0) for one in segmenter.push(frame)]
    return [one for one in (*found, *segmenter.flush()) if isinstance(one, Window)]


def recorded(name: str) -> Samples:
    with Recording(str(shared("data/audio", name)), real_time=False) as recording:
        sound = np.concatenate([frame.samples for frame in recording.frames()])
    return np.concatenate((noise(2, 3), sound, noise(2, 3)))


def test_silence_keeps_silero_asleep_and_costs_next_to_nothing() -> None:
    detector = VoiceDetector(VoiceSettings())
    frames = list(Framer().push(noise(31, 3), 0.0))
    begun_s = time.process_time()
    for frame in frames:
        judgement = detector.push(frame)
        asleep = frame.start_s < 1 or not detector.awake  # the first sound wakes it
        assert asleep and not (judgement.opens or judgement.speech)
    assert time.process_time() - begun_s < 0.3, "10 ms of CPU per second of silence"


@pytest.mark.parametrize("rms", [0, 3, 100, 1000, 8000])
def test_steady_noise_opens_nothing(rms: float) -> None:
    assert heard(noise(8, rms)) == []


def test_a_quiet_microphone_is_heard_as_well() -> None:
    with Recording(str(SPEECH / "00.flac"), real_time=False) as recording:
        sound = np.concatenate([frame.samples for frame in recording.frames()])
    soft = np.rint(np.concatenate((noise(2, 300), sound, noise(2, 300))) / 300).astype(np.int16)
    assert heard(soft), f"{20 * np.log10(soft.std() / 32768):.0f} dBFS"


def test_a_tone_opens_nothing() -> None:
    times = np.arange(16000 * 3)
    assert heard((np.sin(times * 2 * np.pi * 1000 / 16000) * 8000).astype(np.int16)) == []


@pytest.mark.parametrize("length", [160, 320])
def test_frames_of_10_and_20_ms_are_judged_as_well(length: int) -> None:
    with Recording(str(SPEECH / "00.flac"), real_time=False) as recording:
        speech = np.concatenate([frame.samples for frame in recording.frames()])
    for sound, opens in ((noise(1, 2000), False), (speech, True)):
        detector = VoiceDetector(VoiceSettings())
        parts = [sound[at : at + length] for at in range(0, len(sound) - length + 1, length)]
        judged = [detector.push(Frame(part, 0.0)) for part in parts]
        assert any(one.opens for one in judged) == opens
        assert (sum(one.voiced_s for one in judged) > 1.0) == opens


@pytest.mark.parametrize(
    "name",
    [
        "ha_commands_ohf/next.wav",
        "ha_commands_ohf/resume.wav",
        "ha_commands_ohf/what_s_the_weather.wav",
        "ha_commands_ohf_tts/set_lights_to_red.wav",
        "ha_commands_rhasspy/rhasspy3__set_timer.wav",
        "fsdd_digits/4_theo_11.wav",
        "librispeech_test_other/2414-128291-0009.flac",
    ],
)
def test_a_recorded_sentence_is_one_utterance(name: str) -> None:
    (window,) = heard(recorded(name))
    assert window.last
    assert window.start_s < 3.0


@pytest.mark.parametrize(
    "name", ["activate_Mood_Lighting", "resume", "what_s_the_weather", "set_a_timer_for_5_minutes"]
)
def test_a_command_is_heard_after_long_noise_of_its_room(name: str) -> None:
    """Such noise filled Silero's memory: it gave these commands scores of 0 to 0.3."""
    file = shared("data/audio", f"ha_commands_ohf/{name}.wav")
    with Recording(str(file), real_time=False) as recording:
        sound = np.concatenate([frame.samples for frame in recording.frames()])
    for seed in range(3):
        room = room_noise(sound, 15.0, seed)
        spoken_s = 15.0 + len(sound) / 16000 / 2
        windows = heard(np.concatenate((room, sound, noise(1, 3))))
        assert any(one.start_s < spoken_s < one.start_s + one.duration_s for one in windows)


@pytest.mark.parametrize("number", range(0, 40, 4))
def test_blocks_come_one_by_one_before_anything_is_decided(number: int) -> None:
    segmenter = Segmenter(VoiceDetector(VoiceSettings()), SegmenterSettings(), 10.0)
    alert_s = 0.0
    with Recording(str(SPEECH / f"{number:02}.flac"), real_time=False) as recording:
        for frame in recording.frames():
            decided = segmenter.push(frame) or segmenter.speculative_window
            if decided:
                assert alert_s > QUIET_S, "the blocks before may come that much later"
            alert_s = alert_s + 0.03 if segmenter.alert else 0.0


def test_a_sound_like_speech_that_never_opened_is_reported_once_it_is_over() -> None:
    """Two such sounds, one that opens, and one more, in noise that keeps the detector awake."""
    scores = [0.0] * 9
    for sound in ([0.2, 0.1, 0.2], [0.2], [0.9] * 3, [0.9, 0.9]):
        scores += [*sound, *[0.0] * 40]
    detector, given = VoiceDetector(VoiceSettings()), iter(scores)
    detector._score = lambda samples: [next(given, 0.0)]  # type: ignore[method-assign]
    detector._waker = SimpleNamespace(is_speech=lambda *_: True)
    judged = [detector.push(frame) for frame in Framer().push(noise(6, 3), 0.0)]
    missed = {n: round(one.missed_s, 6) for n, one in enumerate(judged) if one.missed_s}
    assert missed == {12 + 33: 0.09, 53 + 33: 0.03, 138 + 33: 0.06}


def test_a_detector_that_was_reset_judges_as_a_new_one_does() -> None:
    with Recording(str(SPEECH / "00.flac"), real_time=False) as recording:
        frames = list(recording.frames())
    detector = VoiceDetector(VoiceSettings())
    for frame in Framer().push(noise(3, 3000), 0.0):
        detector.push(frame)
    detector.reset()
    fresh = VoiceDetector(VoiceSettings())
    assert [detector.push(one) for one in frames] == [fresh.push(one) for one in frames]


def test_speech_is_judged_without_threads_and_without_waiting_for_one() -> None:
    """Four OpenMP threads took ten times the CPU, and 165 context switches a window."""
    counted: dict[str, int] = {}

    def listen() -> None:
        others = len(list(TASKS.iterdir()))
        before = resource.getrusage(resource.RUSAGE_THREAD)
        assert heard(speech)
        after = resource.getrusage(resource.RUSAGE_THREAD)
        counted["threads"] = len(list(TASKS.iterdir())) - others
        counted["waited"] = after.ru_nvcsw - before.ru_nvcsw

    with Recording(str(SPEECH / "00.flac"), real_time=False) as recording:
        speech = np.concatenate([frame.samples for frame in recording.frames()])
    # OpenMP gives each thread that calls it helpers of its own, and keeps them while it lives
    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert counted["threads"] <= 0
    assert counted["waited"] < len(speech) / SILERO_SAMPLES


def test_a_single_short_word_is_heard_wherever_silero_s_windows_fall() -> None:
    sound = recorded("ha_commands_ohf/pause.wav")
    assert sum(bool(heard(sound[phase:])) for phase in range(0, 512, 64)) >= 6


@pytest.mark.parametrize(
    "name", ["noise_misc/noise.wav", "noise_speechbrain/noise2.wav", "esc50/1-100032-A-0.wav"]
)
def test_recorded_noise_opens_nothing(name: str) -> None:
    assert heard(recorded(name)) == []


def test_eleven_seconds_of_speech_lose_no_word_to_the_window() -> None:
    sound = recorded("jfk/jfk.wav")
    windows = heard(sound)
    assert windows[0].start_s < 2.4
    assert windows[-1].speech_end_s > 12.5
    for one, following in itertools.pairwise(windows):
        assert following.start_s >= one.start_s + one.duration_s - 1e-6
