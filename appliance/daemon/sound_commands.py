"""Commands of the control socket that transcribe a sound in parts, for programs on this machine.

The same limits as for a Wyoming client apply, and the microphone goes first: each sound is cut into
windows by a segmenter of its own, of which few wait for the encoder at once. Nothing is stored.
"""

from __future__ import annotations

import base64
import binascii
import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from appliance.capture import Framer, Resampler, Segmenter, VoiceDetector
from appliance.config import Settings
from appliance.control import ControlError
from appliance.daemon.backlog import Task
from appliance.daemon.command_group import (
    CommandGroup,
    bad_request,
    parse_integer,
    take_arguments,
    unavailable,
)
from appliance.infer import AnyTranscriber, Gates
from appliance.mqtt import events
from appliance.records import FULL_SCALE, SAMPLE_RATE, Discarded, Transcription, Window, new_id

SOUNDS_AT_ONCE, LONGEST_S = 8, 60.0
IDLE_S = 15.0
"""A sound without a command for this long is discarded."""
WAITING = 2
"""Windows of one sound that wait for the encoder at once."""
LOWEST_HZ, HIGHEST_HZ = 4000, 192_000

Answer = Mapping[str, Any]


@dataclass(slots=True, eq=False)
class _Part:
    """A window of a sound, and its text once that is there."""

    window: Window
    task: Task | None = None
    result: Transcription | Exception | None = None


class _Upload:
    """A sound that is sent in parts."""

    def __init__(self, rate_hz: int, settings: Settings, window_s: float) -> None:
        self.rate_hz, self.received, self.framed = rate_hz, 0, 0
        self.resampler, self.framer = Resampler(rate_hz), Framer()
        self.segmenter = Segmenter(VoiceDetector(settings.voice), settings.segmenter, window_s)
        self.began_s = self.used_s = time.monotonic()
        self.parts: deque[_Part] = deque()
        self.ended = False
        self.awaited: Future[Answer] | None = None
        self.language = ""

    def push(self, samples: np.ndarray[Any, np.dtype[np.int16]], *, last: bool = False) -> None:
        """Cut (n,) int16 at the sound's rate into windows."""
        self.received += len(samples)
        scaled = samples.astype(np.float32).reshape(-1, 1) / np.float32(FULL_SCALE)
        found = self.resampler.push(scaled, last=last)
        start_s = self.began_s + self.framed / SAMPLE_RATE
        self.framed += len(found)
        frames = [*self.framer.push(found, start_s)]
        if last:
            frames += self.framer.rest(self.began_s + self.framed / SAMPLE_RATE)
        for frame in frames:
            self._add(self.segmenter.push(frame))
        if last:
            self._add(self.segmenter.flush())
            self.ended = True

    def _add(self, found: Iterable[Window | Discarded]) -> None:
        self.parts.extend(_Part(window) for window in found if isinstance(window, Window))


class SoundCommands(CommandGroup):
    """`sound_begin`, `sound_push` and `sound_text`. Results come from any thread."""

    def __init__(
        self, settings: Settings, model: AnyTranscriber, submit: Callable[[Task], bool]
    ) -> None:
        """`submit` queues a request; it returns False if too many wait."""
        self._settings, self._model, self._submit = settings, model, submit
        self._lock = threading.RLock()
        self._sounds: dict[str, _Upload] = {}
        self.commands = {
            "sound_begin": self._begin, "sound_push": self._push, "sound_text": self._text,
        }  # fmt: skip

    def poll(self) -> None:
        """Submit what found no room before, and discard sounds that nobody sends any more."""
        with self._lock:
            for id, sound in list(self._sounds.items()):
                if sound.awaited is None and time.monotonic() - sound.used_s > IDLE_S:
                    self._discard(id)
                else:
                    self._submit_parts(sound)

    def close(self) -> None:
        """Give up every sound."""
        with self._lock:
            for id in list(self._sounds):
                self._discard(id)

    def _begin(self, request: Mapping[str, Any]) -> dict[str, Any]:
        (rate_hz,) = take_arguments(request, "rate_hz")
        rate_hz = parse_integer("rate_hz", rate_hz, LOWEST_HZ, HIGHEST_HZ, SAMPLE_RATE)
        self.poll()
        with self._lock:
            if len(self._sounds) >= SOUNDS_AT_ONCE:
                raise ControlError(
                    "too_many", f"{SOUNDS_AT_ONCE} sounds are being transcribed; try again later"
                )
            id = new_id()
            self._sounds[id] = _Upload(rate_hz, self._settings, self._model.bundle.window_s)
            return {"sound": id}

    def _push(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Add samples: base64 of 16-bit little-endian mono."""
        id, data = take_arguments(request, "sound", "data")
        with self._lock:
            sound = self._find(id)
            try:
                samples = np.frombuffer(base64.b64decode(data, validate=True), "<i2")
            except (TypeError, ValueError, binascii.Error):
                raise bad_request("data: expected base64 of 16-bit samples") from None
            if sound.ended:
                raise bad_request("sound: its end was already given")
            if sound.received + len(samples) > LONGEST_S * sound.rate_hz:
                self._discard(id)
                raise bad_request(f"expected at most {LONGEST_S:g} s of sound, found more")
            sound.push(samples)
            self._submit_parts(sound)
            return {"seconds": round(sound.received / sound.rate_hz, 3)}

    def _text(self, request: Mapping[str, Any]) -> Future[Answer]:
        """End the sound, and answer with its next part of text; null after the last one."""
        (id,) = take_arguments(request, "sound")
        with self._lock:
            sound = self._find(id)
            if sound.awaited:
                raise bad_request("sound: its text is already awaited")
            if not sound.ended:
                sound.push(np.zeros(0, np.int16), last=True)
            sound.awaited = answer = Future[Answer]()
            self._submit_parts(sound)
            self._answer(id, sound)
            return answer

    def _find(self, id: object) -> _Upload:
        sound = self._sounds.get(id) if isinstance(id, str) else None
        if sound is None:
            raise unavailable("this sound is not known any more; begin again")
        sound.used_s = time.monotonic()
        return sound

    def _submit_parts(self, sound: _Upload) -> None:
        """Submit the sound's next windows, as many as may wait."""
        waiting = sum(part.task is not None and part.result is None for part in sound.parts)
        for part in list(sound.parts):
            if waiting >= WAITING:
                return
            if part.task is None:
                finish = functools.partial(self._finish, sound, part)
                task = part.task = Task(part.window, finish, search=True)
                if not self._submit(task):
                    part.task = None
                    return
                waiting += part.result is None

    def _finish(self, sound: _Upload, part: _Part, result: Transcription | Exception) -> None:
        """Take in a window's text. Any thread."""
        with self._lock:
            part.result = result
            self._submit_parts(sound)
            id = next((id for id, one in self._sounds.items() if one is sound), None)
            if id:
                self._answer(id, sound)

    def _answer(self, id: str, sound: _Upload) -> None:
        """Answer with the next part of text if it is there."""
        answer = sound.awaited
        while answer and sound.parts and (result := sound.parts[0].result) is not None:
            window = sound.parts.popleft().window
            if isinstance(result, Exception):
                self._discard(id, "the sound could not be transcribed; see the journal")
                return
            accepted, reason = Gates(self._model.gates).apply(window, result)
            if reason:
                continue
            sound.awaited, sound.used_s, sound.language = None, time.monotonic(), accepted.language
            self._submit_parts(sound)
            if answer.set_running_or_notify_cancel():
                answer.set_result(_describe(sound, window, accepted))
            return
        if answer and sound.ended and not sound.parts:
            del self._sounds[id]
            seconds = round(sound.received / sound.rate_hz, 3)
            if answer.set_running_or_notify_cancel():
                answer.set_result({"text": None, "language": sound.language, "seconds": seconds})

    def _discard(self, id: str, why: str = "Roomscribe is stopping; try again") -> None:
        sound = self._sounds.pop(id)
        for part in sound.parts:
            if part.task:
                part.task.wanted = False
        if sound.awaited and sound.awaited.set_running_or_notify_cancel():
            sound.awaited.set_exception(unavailable(why))


def _describe(sound: _Upload, window: Window, result: Transcription) -> dict[str, Any]:
    """Return a part of the text, with its times in the sound."""
    longest_s = sound.received / sound.rate_hz  # the last frame is filled up with silence
    return {
        "text": result.text,
        "start_s": round(window.start_s + window.overlap_s - sound.began_s, 3),
        "end_s": round(min(longest_s, window.speech_end_s - sound.began_s), 3),
        "language": result.language,
        "confidence": events.rounded(result.confidence, 3),
        "avg_logprob": events.rounded(result.avg_logprob, 3),
        "no_speech_prob": events.rounded(result.no_speech_prob, 3),
        "compression_ratio": events.rounded(result.compression_ratio, 3),
    }
