"""Commands of the control socket that list microphones and test the one in use, or the
loudspeaker; the microphone's level."""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from appliance.capture import (
    CLIPPED_SHARE,
    QUIET_DBFS,
    Loudness,
    has_sound,
    list_microphones,
    measure_loudness,
    measure_speech,
    names_to_configure,
)
from appliance.control import ControlError
from appliance.daemon.command_group import (
    CommandGroup,
    answer_late,
    bad_request,
    unavailable,
)
from appliance.errors import DeviceError
from appliance.infer import AnyTranscriber, Gates, Pending, Phrases, Request, Submit
from appliance.mqtt import events
from appliance.records import (
    SAMPLE_RATE,
    ApplianceState,
    Frame,
    Samples,
    Transcription,
    Window,
    new_id,
)
from appliance.speaker import Ending, Kind, Loudspeaker, ring

LEVEL_S = 0.1
"""Seconds of sound in one `level` event."""
RING_HZ = 22_050
LONGEST_TEST_S = 10.0
LATE_S = 3.0
"""Seconds after which a test without enough sound fails, counted from its intended end."""
TEXT_WITHIN_S = 12.0
"""Seconds that a test waits for its text."""
TESTS_AT_ONCE = 4


@dataclass(slots=True, eq=False)
class _Test:
    """One running test."""

    samples_wanted: int
    until_s: float
    answer: Future[Mapping[str, Any]] = field(default_factory=Future)
    frames: list[Samples] = field(default_factory=list)
    sample_count: int = 0
    pending: Pending | None = None
    """Set once all sound is there and its text is requested."""
    result: dict[str, Any] = field(default_factory=dict)
    phrases: Phrases | None = None
    """Sentences to expect in place of the usual ones."""

    @property
    def is_recorded(self) -> bool:
        return self.sample_count >= self.samples_wanted


class LevelMeter:
    """Measures the microphone's level, LEVEL_S at a time. One thread."""

    def __init__(self) -> None:
        self._frames: list[Samples] = []
        self._sample_count = 0

    def push(self, frame: Frame) -> dict[str, Any] | None:
        """Take in a frame; return the next `level` event when it is complete."""
        self._frames.append(frame.samples)
        self._sample_count += len(frame.samples)
        if self._sample_count < LEVEL_S * SAMPLE_RATE:
            return None
        level = measure_loudness(np.concatenate(self._frames))
        self._frames, self._sample_count = [], 0
        return {
            "rms_db": level.rms_db,
            "peak_db": level.peak_db,
            "clipped": level.clipped_share > 0,
        }


class SpeakerCommands(CommandGroup):
    """`speaker_test`, which plays one ring."""

    def __init__(self, speaker: Loudspeaker | None) -> None:
        self._speaker = speaker

    def _answer_speaker_test(self) -> Future[Mapping[str, Any]]:
        if self._speaker is None:
            raise unavailable("the loudspeaker is off: switch it on and save first")
        answer = Future[Mapping[str, Any]]()

        def done(ending: Ending) -> None:
            answer_late(answer, {"ending": ending.value})

        sound = self._speaker.begin(RING_HZ, 1, Kind.ANNOUNCEMENT, done)
        sound.write(ring(RING_HZ))
        sound.end()
        return answer


class MicrophoneCommands(CommandGroup):
    """`devices` and `microphone_test`."""

    def __init__(
        self,
        state: Callable[[], ApplianceState],
        submit: Submit,
        model: AnyTranscriber,
        make_phrases: Callable[[str], Phrases] | None = None,
    ) -> None:
        """`submit` queues a request to `model`. `make_phrases` makes expected sentences from the
        text of a file."""
        self._make_phrases = make_phrases
        self._state, self._submit, self._gates = state, submit, model.gates
        self._window_samples = int(model.bundle.window_s * SAMPLE_RATE)
        self._tests: tuple[_Test, ...] = ()

    @property
    def is_recording(self) -> bool:
        """True while a test needs frames. Any thread."""
        return bool(self._tests)

    def record(self, frame: Frame) -> bool:
        """Give a frame to the running tests; return True if one is complete. Capture's thread."""
        complete = False
        for test in self._tests:
            if not test.is_recorded:
                test.frames.append(frame.samples)
                test.sample_count += len(frame.samples)
                complete = complete or test.is_recorded
        return complete

    def poll(self) -> None:
        """Request the text of complete recordings, and end the tests whose time is up."""
        now_s = time.monotonic()
        for test in self._tests:
            late = now_s >= test.until_s
            if test.pending:
                if late and not test.answer.done():
                    test.pending.cancel()
                    self._finish(test)
            elif test.is_recorded:
                self._judge(test)
            elif late:
                test.frames.clear()
                test.answer.set_exception(unavailable("no sound came from the microphone"))
        self._tests = tuple(test for test in self._tests if not test.answer.done())

    def _answer_devices(self) -> dict[str, Any]:
        try:
            found = list_microphones()
        except DeviceError as error:
            raise unavailable(str(error)) from error
        shown = [
            {"name": name, "channels": one.channels, "rate_hz": one.rate_hz, "default": one.default}
            for one, name in zip(found, names_to_configure(found), strict=True)
        ]
        state = self._state()
        return {"devices": shown, "current": state.microphone if state.microphone_online else None}

    def _answer_microphone_test(self, seconds: Any, phrases: Any) -> Future[Mapping[str, Any]]:
        if type(seconds) not in (int, float) or not 1 <= seconds <= LONGEST_TEST_S:
            raise bad_request(f"seconds: expected 1 to {LONGEST_TEST_S:.0f}")
        state = self._state()
        if state.muted:
            raise unavailable("the microphone is muted: unmute it first")
        if not state.microphone_online:
            raise unavailable("; ".join(state.reasons) or "there is no microphone")
        if len(self._tests) >= TESTS_AT_ONCE:
            raise ControlError(
                "too_many", f"{TESTS_AT_ONCE} tests of the microphone run; try again later"
            )
        test = _Test(round(seconds * SAMPLE_RATE), time.monotonic() + seconds + LATE_S)
        if phrases is not None and self._make_phrases:
            test.phrases = self._make_phrases(phrases)
        self._tests += (test,)
        return test.answer

    def _judge(self, test: _Test) -> None:
        """Judge a complete recording, and request its text."""
        sound = np.concatenate(test.frames)[: test.samples_wanted]
        test.frames.clear()
        level, silent = measure_loudness(sound), not has_sound(sound)
        test.result = {
            "rms_db": level.rms_db,
            "peak_db": level.peak_db,
            "clipped_share": round(level.clipped_share, 5),
            "digital_silence": bool(silent),
            "verdict": "digital_silence" if silent else _verdict(level, sound),
        }
        sound = sound[-self._window_samples :]
        length_s = len(sound) / SAMPLE_RATE
        start_s = time.monotonic() - length_s
        window = Window(new_id(), 1, True, sound, start_s, start_s + length_s, length_s)
        request = Request(window, phrases=test.phrases, room=None)
        test.until_s = time.monotonic() + TEXT_WITHIN_S
        if not silent:
            test.pending = self._submit(request, functools.partial(self._deliver, test))
        if not test.pending:
            self._finish(test, "" if silent else None)

    def _deliver(self, test: _Test, request: Request, result: Transcription | Exception) -> None:
        """Answer with the text of a test. Any thread."""
        if isinstance(result, Exception):
            self._finish(test)
            return
        accepted, reason = Gates(self._gates).apply(request.window, result)
        found = () if reason else result.candidates
        self._finish(test, "" if reason else accepted.text, list(map(events.phrase, found)))

    def _finish(
        self, test: _Test, text: str | None = None, candidates: Sequence[dict[str, Any]] = ()
    ) -> None:
        """Answer; a `text` of None says that there is none. Any thread."""
        answer_late(test.answer, {**test.result, "words": text, "candidates": [*candidates]})


def _verdict(level: Loudness, sound: Samples) -> str:
    if level.clipped_share > CLIPPED_SHARE:
        return "clipped"
    speech_dbfs, _ = measure_speech(sound)
    return "good" if speech_dbfs is None or speech_dbfs >= QUIET_DBFS else "too_quiet"
