"""A request's sound is heard as the microphone's is, in whatever form and in whatever pieces."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rigs.recordings import sentences
from rigs.transcriber import HEARD, FakeTranscriber
from rigs.windows import noise
from rigs.word_errors import same_words
from rigs.wyoming import Asked, Worker, sound_of

from appliance.capture.filters import Resampler
from appliance.capture.frames import Framer
from appliance.capture.hum import HumFilter
from appliance.capture.joined import JoiningSegmenter
from appliance.capture.voice import VoiceDetector
from appliance.config import Settings
from appliance.infer.transcriber import Transcriber
from appliance.records import FULL_SCALE, SAMPLE_RATE, Samples, Transcription, Window
from appliance.wyoming import request
from appliance.wyoming.request import (
    LONGEST_S,
    Hooks,
    RequestError,
    SoundFormat,
    TranscriptionRequest,
)

PLAIN = SoundFormat(SAMPLE_RATE, 2, 1)
MODEL: Any = SimpleNamespace(window_s=10.0)
LIGHT, OTHER = sentences()[0], sentences()[1]


@pytest.fixture
def spoken(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sound was recorded before."""
    monkeypatch.setattr(request, "RECORDED", np.inf)


def request_of(
    transcribe: Any,
    form: SoundFormat = PLAIN,
    keep: Callable[[Window, Transcription, float], None] | None = None,
    room_busy: Callable[[], bool] = lambda: False,
) -> TranscriptionRequest:
    settings = Settings()
    gates = replace(settings.gates, low_confidence=0.0)
    return TranscriptionRequest(
        form,
        VoiceDetector(settings.voice),
        Hooks(lambda: MODEL, gates, transcribe, keep=keep, is_room_busy=room_busy),
        settings.segmenter,
    )


def heard(
    transcriber: Transcriber | FakeTranscriber,
    sound: bytes,
    form: SoundFormat = PLAIN,
    chunk: int = 4000,
) -> tuple[str, list[Asked]]:
    """The text, and every window that was asked for, of a whole request."""
    worker = Worker(transcriber)

    async def run() -> str:
        one = request_of(worker.submit, form)
        for at in range(0, len(sound), chunk):
            await one.push(sound[at : at + chunk])
        await one.stop()
        await one.finish()
        return one.text

    try:
        return asyncio.run(run()), worker.asked
    finally:
        worker.close()


def windows_of(sound: Samples) -> list[Window]:
    """What a file's segmenter makes of it."""
    settings = Settings()
    segmenter = JoiningSegmenter(VoiceDetector(settings.voice), settings.segmenter, 10.0)
    framer, scaled = Framer(), sound.astype(np.float32).reshape(-1, 1) / np.float32(FULL_SCALE)
    passed = Resampler(SAMPLE_RATE).push(scaled, last=True)
    found = [one for frame in framer.push(passed, 0.0) for one in segmenter.push(frame)]
    for frame in framer.rest(0.0):
        found += segmenter.push(frame)
    return [one for one in (*found, *segmenter.flush()) if isinstance(one, Window)]


def in_form(sound: Samples, form: SoundFormat) -> bytes:
    """The same sound in another form: each sample so often as its rate is higher."""
    scaled = np.repeat(sound.astype(np.int64), form.rate // SAMPLE_RATE)
    scaled = np.repeat(scaled, form.channels)
    shifted = scaled << 8 * (form.width - 2) if form.width > 2 else scaled >> 8 * (2 - form.width)
    octets = shifted.astype("<i8").view(np.uint8).reshape(-1, 8)[:, : form.width]
    return octets.tobytes()


def test_the_windows_are_a_files_sample_for_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HumFilter, "push", lambda _, sound: sound)  # it is switched between pieces
    long = np.concatenate([sound_of(one.file, 0.2, 0.4) for one in sentences()[:12]])
    for sound in (sound_of(LIGHT.file), long):
        text, asked = heard(FakeTranscriber(), sound.tobytes(), chunk=321)
        wanted = windows_of(sound)
        said = [one.request.window for one in asked if one.wanted]
        for one, other in zip(said, wanted, strict=True):
            apart = one.samples.astype(np.int32) - other.samples
            assert np.abs(apart).max() == 0
        assert [(one.index, one.last) for one in said] == [(one.index, one.last) for one in wanted]
        assert text
    assert len(wanted) > 2


def test_a_sentence_is_understood_in_every_form(transcriber: Transcriber) -> None:
    sound = sound_of(LIGHT.file)
    for form in (
        PLAIN,
        SoundFormat(16_000, 3, 1),
        SoundFormat(16_000, 4, 2),
        SoundFormat(48_000, 2, 2),
        SoundFormat(32_000, 2, 5),
    ):
        text, _ = heard(transcriber, in_form(sound, form), form, chunk=9_999)
        assert same_words(text, LIGHT.text), form


@pytest.mark.parametrize(
    ("width", "octets", "value"),
    [
        (1, b"\x7f", 127 / 128),
        (1, b"\x80", -1.0),
        (2, b"\x00\x80", -1.0),
        (2, b"\x00\x40", 0.5),
        (3, b"\x00\x00\x40", 0.5),
        (3, b"\xff\xff\xff", -1 / 2**23),
        (4, b"\x00\x00\x00\xc0", -0.5),
    ],
)
def test_samples_are_signed_and_little_endian(width: int, octets: bytes, value: float) -> None:
    read = SoundFormat(16_000, width, 2).read(octets * 4)
    assert read.shape == (2, 2)
    assert np.allclose(read, value, atol=1e-7)


@pytest.mark.parametrize(
    "odd",
    [{}, {"rate": 0}, {"rate": "16000"}, {"rate": 16000.0}, {"rate": 10**9}, {"width": 5},
     {"width": True}, {"channels": 0}, {"channels": 9}, {"rate": None}],
)  # fmt: skip
def test_a_form_that_nobody_sends_is_bad_sound(odd: dict[str, object]) -> None:
    right = {"rate": 16000, "width": 2, "channels": 1} if odd else {}
    with pytest.raises(RequestError) as caught:
        SoundFormat.parse(right | odd)
    assert caught.value.code == "bad_sound"


def test_silence_and_noise_have_no_text_and_cost_no_window() -> None:
    for sound in (np.zeros(5 * SAMPLE_RATE, np.int16), noise(0.01, 5), np.zeros(0, np.int16)):
        text, asked = heard(FakeTranscriber(), sound.tobytes())
        assert (text, asked) == ("", [])


def test_what_the_gates_discard_is_no_text() -> None:
    silent = FakeTranscriber()
    silent.answer = replace(HEARD, no_speech_prob=0.99, avg_logprob=-2.0)
    text, asked = heard(silent, sound_of(LIGHT.file).tobytes())
    assert (text, len(asked)) == ("", 1)


@pytest.mark.usefixtures("spoken")
def test_the_last_window_is_transcribed_while_the_sender_waits() -> None:
    worker = Worker(FakeTranscriber())

    async def run() -> None:
        one = request_of(worker.submit)
        await one.push(sound_of(LIGHT.file).tobytes())
        ahead = len(worker.asked)
        await one.stop()
        await one.finish()
        assert (ahead, len(worker.asked)) == (1, 1)

    asyncio.run(run())
    worker.close()


@pytest.mark.usefixtures("spoken")
def test_speech_that_goes_on_discards_the_speculative_text() -> None:
    sound = np.concatenate((sound_of(LIGHT.file, 0.3, 0.25), sound_of(OTHER.file, 0.2, 0.7)))
    text, asked = heard(FakeTranscriber(), sound.tobytes(), chunk=960)
    assert [one.wanted for one in asked] == [False] * (len(asked) - 1) + [True]
    assert len(asked) >= 2
    assert text == HEARD.text


@pytest.mark.usefixtures("spoken")
def test_texts_of_windows_are_joined_as_their_script_has_it() -> None:
    sound = np.concatenate([sound_of(LIGHT.file, 0.3, 0.8) for _ in range(2)])
    text, _ = heard(FakeTranscriber(), sound.tobytes())
    assert text == f"{HEARD.text} {HEARD.text}"
    japanese = FakeTranscriber()
    japanese.answer = replace(HEARD, text="電気をつけて")
    text, _ = heard(japanese, sound.tobytes())
    assert text == "電気をつけて電気をつけて"


def test_sound_without_end_is_refused() -> None:
    with pytest.raises(RequestError) as caught:
        heard(FakeTranscriber(), bytes(int((LONGEST_S + 1) * 2 * SAMPLE_RATE)), chunk=60_000)
    assert caught.value.code == "bad_sound"


def test_an_error_of_the_model_is_reported_as_failed() -> None:
    broken = FakeTranscriber()
    broken.answer = RuntimeError("a graph")
    with pytest.raises(RequestError) as caught:
        heard(broken, sound_of(LIGHT.file).tobytes())
    assert caught.value.code == "failed"


def test_what_is_kept_has_ended_by_now_however_fast_it_was_sent() -> None:
    worker = Worker(FakeTranscriber())
    kept: list[tuple[Window, str, float]] = []

    def keep(window: Window, result: Transcription, queue_ms: float) -> None:
        assert queue_ms >= 0
        kept.append((window, result.text, time.monotonic()))

    async def run() -> float:
        one = request_of(worker.submit, keep=keep)
        begun_s = time.monotonic()
        await one.push(sound_of(LIGHT.file).tobytes())
        await one.stop()
        await one.finish()
        return begun_s

    begun_s = asyncio.run(run())
    worker.close()
    [(window, text, told_s)] = kept
    assert text == HEARD.text
    assert begun_s < window.speech_end_s <= told_s
    assert window.speech_end_s - window.start_s > 1


@pytest.mark.usefixtures("spoken")
def test_nobody_waits_for_the_windows_of_a_request_that_is_over() -> None:
    worker = Worker(FakeTranscriber())
    worker.working.clear()

    async def run() -> None:
        one = request_of(worker.submit)
        await one.push(sound_of(LIGHT.file).tobytes())
        one.close()

    asyncio.run(run())
    assert [one.wanted for one in worker.asked] == [False]
    worker.close()
