"""A transcriber that says what it is told to say, for tests of what is made of it."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from appliance.config import Settings
from appliance.infer.request import Pending, Request
from appliance.infer.transcriber import AnyTranscriber, Encoded
from appliance.records import Transcription

HEARD = Transcription(
    text="turn on the light",
    tokens=(1, 2, 3),
    language="en",
    avg_logprob=-0.2,
    no_speech_prob=0.01,
    compression_ratio=0.7,
    ended=True,
    encoder="cpu",
    encode_ms=20.0,
    decode_ms=5.0,
    confidence=0.82,
)


class FakeEncoder:
    """What the pipeline asks of an encoder besides encoding."""

    name = "cpu"
    trouble: str | None = None

    def poll(self, _now_s: float) -> None:
        pass

    def facts(self) -> dict[str, float]:
        return {}


class FakeTranscriber(AnyTranscriber):
    """Says what it is told to say, or fails."""

    bundle: Any = SimpleNamespace(
        name="fake", title="Fake", window_s=10.0, language="en", languages=("en",)
    )

    def __init__(self) -> None:
        self.encoder = FakeEncoder()
        self.gates = replace(Settings().gates, low_confidence=0.3)
        self.answer: Transcription | Exception = HEARD
        self.fault: Exception | None = None

    def warm_up(self) -> None:
        pass

    @property
    def backend(self) -> Any:
        return self.encoder

    def begin(
        self, request: Request, should_continue: Callable[[], bool] = lambda: True
    ) -> Encoded:
        if isinstance(self.fault, Exception):
            raise self.fault
        return Encoded(request, np.zeros((1, 1), np.float32), "cpu", 20.0)

    def decode(self, encoded: Encoded, pending: Pending | None = None) -> Transcription:
        if isinstance(self.answer, Exception):
            raise self.answer
        if encoded.request.completeness and pending:
            pending.on_text(self.answer)
        return self.answer

    def close(self) -> None:
        pass


class HarmedTranscriber(FakeTranscriber):
    """Windows of utterances whose name begins with `victims` meet `harm`."""

    def __init__(self, victims: str, harm: Callable[[], object]) -> None:
        super().__init__()
        self._victims, self._harm = victims, harm

    def begin(
        self, request: Request, should_continue: Callable[[], bool] = lambda: True
    ) -> Encoded:
        if request.window.utterance_id.startswith(self._victims):
            self._harm()
        return super().begin(request)


def open_deadly(_settings: Settings, _is_muted: object) -> HarmedTranscriber:
    """Dies of each poison."""
    return HarmedTranscriber("poison", lambda: os.kill(os.getpid(), signal.SIGKILL))


def open_slow(_settings: Settings, _is_muted: object) -> HarmedTranscriber:
    """Takes a second for each utterance."""
    return HarmedTranscriber("utterance", lambda: time.sleep(1.0))
