"""Windows that another machine transcribes: what a speech-to-text server (wyoming/) and the
workers of a fleet (fleet/) have in common. While none can, this machine's model does, or they wait.

Each request has a thread of its own, because looking up a name may hang and the encoder's thread
must show progress. A server that failed gets a window only after it has transcribed silence, so
that a window with which it always fails is distinguished from a broken server.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeGuard, TypeVar

import numpy as np

from appliance.config import GateSettings
from appliance.errors import DeviceError, RefusedError, ServerError
from appliance.infer.corrections import Corrections
from appliance.infer.encoder import Backend
from appliance.infer.gates import compression_ratio
from appliance.infer.transcriber import (
    IGNORE_PROGRESS,
    AnyTranscriber,
    Encoded,
    Progress,
    Transcriber,
)
from appliance.records import SAMPLE_RATE, Samples, Transcription, Window
from appliance.system import BackgroundTask

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 10.0
"""Seconds between two checks of a server that failed."""
WATCH_EVERY_S = 30.0
"""Seconds between two checks of a healthy server, to notice its end before somebody speaks."""
MOST_TRIES = 3
"""A window that fails this often with a server that transcribes silence is refused."""
POLL_S = 0.2
"""Seconds between two checks whether an answer is still wanted."""
SETTLE_S = 3.0
"""Seconds that a server has at the start to describe itself."""
LETTERS_PER_S, LETTERS = 100, 200
"""Most letters of a text for each second of its window, and besides: five times what people say."""
LANGUAGE = re.compile(r"[A-Za-z]{2,3}([_-][0-9A-Za-z]{2,8})*")

Facts = TypeVar("Facts")
"""A server's description of itself."""
Reply = TypeVar("Reply")
"""A server's answer for a window."""


class UnwantedError(ServerError):
    """The answer is not wanted any more."""


def longest_text(duration_s: float) -> int:
    """Return how many letters another machine's text for so much sound may have."""
    return int(LETTERS + LETTERS_PER_S * duration_s)


def clean_text(text: str) -> str:
    """Return another machine's text on one line, without what no transcript holds."""
    whole = text.encode("utf-8", "replace").decode()
    return " ".join("".join(letter if letter.isprintable() else " " for letter in whole).split())


def is_language(value: object) -> TypeGuard[str]:
    """Return True for a language's code, such as en or pt-BR."""
    return isinstance(value, str) and LANGUAGE.fullmatch(value) is not None


def join_transcriptions(parts: Sequence[Transcription]) -> Transcription:
    """Return one transcription of a window that was transcribed in parts.

    It is as certain as the least certain part that has a text.
    """
    if len(parts) == 1:
        return parts[0]
    spoken = [part for part in parts if part.text] or parts[:1]
    text = " ".join(part.text for part in spoken)
    return replace(
        parts[-1],
        text=text,
        tokens=tuple(token for part in spoken for token in part.tokens),
        avg_logprob=min(part.avg_logprob for part in spoken),
        no_speech_prob=min(part.no_speech_prob for part in spoken),
        compression_ratio=compression_ratio(text),
        ended=all(part.ended for part in spoken),
        encode_ms=sum(part.encode_ms for part in parts),
        decode_ms=sum(part.decode_ms for part in parts),
        confidence=min(part.confidence for part in spoken),
        flags=tuple(dict.fromkeys(flag for part in spoken for flag in part.flags)),
        phrase=None,
    )


class RemoteBackend(ABC, Generic[Facts, Reply]):
    """The state of a server that transcribes. One thread; any thread may read `name`, `trouble` and
    `facts`."""

    remote_name = ""
    """The encoder's name while the server is in use."""
    away = "its name is still being looked up"
    """What is wrong, with the fix, while a cancelled request has not ended."""
    waits = "until then speech waits to be transcribed"
    pauses_s = FIRST_PAUSE_S, LONGEST_PAUSE_S
    silence: Samples = np.zeros(SAMPLE_RATE, np.int16)
    """The window of `prove`."""

    def __init__(
        self, local: Backend | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Send the first request, without waiting. `local` encodes while the server cannot."""
        self.info: Facts | None = None
        """The server's last description."""
        self.fault: str | None = None
        """Why the server is not in use, with the fix; None while it is."""
        self._local, self._clock = local, clock
        self._pause_s, self._look_s = self.pauses_s[0], clock() + WATCH_EVERY_S
        self._failed, self._failures = "", 0
        """The window that failed last, and how often in a row."""
        self._left: BackgroundTask | None = None
        """A cancelled request that has not ended."""
        self._check: BackgroundTask | None = BackgroundTask(self.describe, "server")

    @abstractmethod
    def describe(self) -> Facts:
        """Return the server's description. Raises ServerError. A thread of its own."""

    @abstractmethod
    def prove(self) -> Facts:
        """Return the description of a server that failed, after it has transcribed silence.
        Raises ServerError. A thread of its own."""

    @abstractmethod
    def request(self, window: Window, within_s: float) -> Reply:
        """Return the server's answer. Raises ServerError. A thread of its own."""

    @abstractmethod
    def within_s(self, window: Window, failures: int) -> float:
        """Return the seconds that the server has for a window with which it failed before."""

    @abstractmethod
    def hang_up(self) -> None:
        """Cancel all requests. Any thread."""

    @property
    def name(self) -> str:
        """Name of what encodes now: the server, or the encoder on this machine."""
        return self._local.name if self._local and self.fault else self.remote_name

    @property
    def trouble(self) -> str | None:
        """Why the server is not in use, with the fix; None while it is."""
        if not self.fault:
            return None
        if not self._local:
            return f"{self.fault}; {self.waits}"
        instead = "until then this machine's model transcribes"
        return "; ".join(filter(None, (self.fault, instead, self._local.trouble)))

    def ask(self, window: Window, should_continue: Callable[[], bool] = lambda: True) -> Reply:
        """Return the server's answer. `should_continue` is called several times a second; False
        cancels the request. Raises ServerError, at once while the server is not in use, and
        RefusedError if it fails with this window only."""
        self._watch(self._clock())
        if self.fault:
            raise ServerError(self.fault)
        failures = self._failures if self._failed == window.id else 0
        if failures >= MOST_TRIES:
            raise RefusedError(f"the server failed {failures} times with this window only")
        try:
            reply = self._reply(window, self.within_s(window, failures), should_continue)
        except UnwantedError:
            raise
        except ServerError as error:
            if not error.busy:
                self._failed, self._failures = window.id, failures + 1
            self._fail(error)
            raise
        self._failed, self._pause_s = "", self.pauses_s[0]
        self._check = None  # its result would be older
        self._look_s = self._clock() + WATCH_EVERY_S
        return reply

    def poll(self, now_s: float) -> None:
        """Start a check that is due at `now_s` (time.monotonic()), and read the result of the one
        before. Does not wait."""
        if self._local:
            self._local.poll(now_s)
        self._watch(now_s)

    def settle(self, within_s: float) -> None:
        """Wait for the check that `poll` started, and read its result."""
        if self._check:
            self._check.join(within_s)
        self._collect()

    def facts(self) -> dict[str, Any]:
        """Return the facts of the chip on this machine; empty without one."""
        return self._local.facts() if self._local else {}

    def close(self) -> None:
        """Cancel all requests."""
        self.hang_up()

    def _watch(self, now_s: float) -> None:
        self._collect()
        if self._check is None and now_s >= self._look_s:
            self._check = BackgroundTask(self.prove if self.fault else self.describe, "server")

    def _reply(self, window: Window, within_s: float, should_continue: Callable[[], bool]) -> Reply:
        """Return the server's answer; wait for it while `should_continue`. Raises ServerError."""
        if self._left and self._left.is_alive():
            raise ServerError(self.away)
        task = BackgroundTask(lambda: self.request(window, within_s), "server")
        deadline_s = time.monotonic() + within_s + 1.0
        wanted = True
        while task.is_alive() and wanted and time.monotonic() < deadline_s:
            task.join(POLL_S)
            wanted = should_continue()
        if task.is_alive():
            self.hang_up()
            self._left = task
            if not wanted:
                raise UnwantedError("the answer is not wanted any more")
            raise ServerError(self.away)
        if task.error:
            raise task.error
        reply: Reply = task.outcome
        return reply

    def _collect(self) -> None:
        check = self._check
        if check is None or check.is_alive():
            return
        self._check = None
        if check.error is None:
            self.info, self.fault = check.outcome, None
            self._look_s = self._clock() + WATCH_EVERY_S
        elif not isinstance(check.error, ServerError):
            raise check.error
        else:
            self._fail(check.error)

    def _fail(self, error: ServerError) -> None:
        """Stop using the server until a check succeeds."""
        self.fault = str(error)
        self._look_s = self._clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, self.pauses_s[1])


class RemoteTranscriber(AnyTranscriber, Generic[Facts, Reply]):
    """Transcribes windows on another machine; while that cannot, with the model on this machine, if
    there is one."""

    def __init__(
        self,
        backend: RemoteBackend[Facts, Reply],
        local: Transcriber | None,
        gates: GateSettings,
        corrections: Mapping[str, str] | None = None,
    ) -> None:
        """`corrections`: misheard words and what is written in their place."""
        self._corrections = Corrections(corrections or {})
        self._backend, self._local, self.gates = backend, local, gates
        self.in_process = local is not None

    @property
    def backend(self) -> RemoteBackend[Facts, Reply]:
        """The server."""
        return self._backend

    @abstractmethod
    def transcription(self, window: Window, reply: Reply) -> Transcription:
        """Return the transcription in an answer."""

    def begin(self, window: Window) -> Encoded | Transcription:
        """Return the server's transcription; encoder states if the model on this machine stands in.

        Raises ServerError if nothing can transcribe now, and RefusedError if the server fails with
        this window only.
        """
        try:
            reply = self.backend.ask(window, self.should_continue)
        except UnwantedError:
            raise
        except DeviceError:
            if not self._local:
                raise
            return self._local.encode(window)
        return self._corrections.apply(self.transcription(window, reply))

    def decode(self, encoded: Encoded, progress: Progress = IGNORE_PROGRESS) -> Transcription:
        """Return the transcription of states of the model on this machine. Raises DeviceError if
        there is none."""
        if not self._local:
            raise DeviceError("no model on this machine can decode encoder states")
        return replace(self._local.decode(encoded, progress), model=self._local.bundle.name)

    def warm_up(self) -> None:
        """Warm up the model on this machine, and give the server time to describe itself."""
        if self._local:
            self._local.warm_up()
        self.backend.settle(SETTLE_S)

    def close(self) -> None:
        """Cancel all requests, and free the encoder's device."""
        self.backend.close()
        if self._local:
            self._local.close()
