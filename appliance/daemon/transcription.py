"""Windows in, stored transcripts out: the encoder's and the transcriber's work, without threads.

A transcript is committed to the store before any listener is notified. While the store refuses
(disk full), transcripts wait here, in order and bounded.
"""

from __future__ import annotations

import gc
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from appliance.config import Settings
from appliance.daemon import journal
from appliance.daemon.backlog import Guess, Lease, Request
from appliance.daemon.health import Health
from appliance.errors import DeviceError, StoreError, lacks_memory
from appliance.fleet import open_ear
from appliance.infer import AnyTranscriber, Encoded, Gates, Progress, silence_ms
from appliance.records import (
    Discarded,
    Partial,
    Transcript,
    Transcription,
    Window,
    utc_from_monotonic,
)
from appliance.store import Store
from appliance.wyoming import open_transcriber as open_served

log = logging.getLogger("roomscribe.daemon")

TRANSCRIPTS_WAITING = 1000
"""Kept in memory while the store refuses; about a day of commands."""
EXPIRE_EVERY_S = 3600.0
"""Between two looks for transcripts that are older than the retention."""
MEMORY_WAITS_S = (0.1, 0.5, 1.5, 4.0)
"""Pauses before a window that met too little memory is tried again; in all less than the watchdog
allows a stage (service.STILL_S)."""

Made = TypeVar("Made")


class Listener(Protocol):
    """Who is notified when speech was transcribed or discarded."""

    def notify(self) -> None:
        """The store has a new transcript."""

    def discarded(self, discarded: Discarded) -> None:
        """Speech gave no transcript."""

    @property
    def wants_partials(self) -> bool:
        """True while somebody wants texts while they are spoken; they cost a pass a second."""

    def partial(self, partial: Partial) -> None:
        """What somebody says, so far; also given to those who do not want it."""


@dataclass(frozen=True, slots=True)
class EncodedWindow:
    """A window on its way from the encoder to the decoder."""

    lease: Lease
    queue_ms: float
    """How long it waited for the encoder."""
    result: Encoded | Transcription | Exception
    """Its states; or its transcription, by another process or ahead; or why it could not be
    encoded."""


class Scribe:
    """Transcribes windows and stores the result.

    `encode` may run in a thread of its own, one window ahead, and any thread may call `discard`;
    all the rest is one other thread's, and the store is its own.
    """

    def __init__(
        self,
        settings: Settings,
        transcriber: AnyTranscriber,
        store: Store,
        health: Health,
        listeners: tuple[Listener, ...] = (),
        *,
        said: Callable[[Transcript], object] = lambda _: None,
        on_decision: Callable[[], object] = lambda: None,
    ) -> None:
        """`said` is given each transcript that is stored; `on_decision` is called when it is known
        how much silence ends the utterance of a guess."""
        self._settings, self._transcriber, self._store = settings, transcriber, store
        self._health, self._listeners, self._said = health, listeners, said
        self._waiting: deque[tuple[Lease | None, Transcript]] = deque()
        self._on_decision = on_decision
        self._gates = Gates(transcriber.gates)
        self._expire_s = 0.0

    def encode(self, lease: Lease) -> EncodedWindow:
        """Encodes a window; never raises. Too little memory is waited for, some seconds."""
        queue_ms = (time.monotonic() - lease.queued_s) * 1000
        if lease.guess and lease.guess.encoded:
            self._health.count("guesses_used")
            return EncodedWindow(lease, queue_ms, lease.guess.encoded)
        try:
            encoded = with_memory(lambda: self._transcriber.encode(lease.window))
            return EncodedWindow(lease, queue_ms, encoded)
        except Exception as error:
            return EncodedWindow(lease, queue_ms, error)

    def encode_ahead(self, guess: Guess) -> bool:
        """Encodes a window that is likely to come; whether it worked. Never raises: what fails is
        tried again if the window comes."""
        try:
            encoded = self._transcriber.encode(guess.window)
            guess.encoded = replace(encoded, ahead=self._settings.segmenter.early_ms > 0)
        except Exception as error:
            log.info("a window could not be encoded ahead: %s", error)
        return guess.encoded is not None

    def write_ahead(self, guess: Guess) -> None:
        """Decodes a window that is likely to come, while it still is. Never raises.

        As soon as the text tells how much silence ends its utterance, `guess` has that and
        `on_decision` is called. The rest of the transcription follows, and may change it again.
        """
        if not guess.wanted or guess.encoded is None:
            return

        def decided(result: Transcription) -> None:
            if self._settings.segmenter.early_ms:
                guess.silence_ms = self._silence_ms(guess.window, result)
                self._on_decision()

        try:
            progress = Progress(decided, lambda: guess.wanted)
            result = self._transcriber.write(guess.encoded, progress)
        except Exception as error:
            log.info("a window could not be decoded ahead: %s", error)
            return
        if guess.wanted:  # else it was cancelled, and may lack a part
            guess.transcription = result
            decided(result)

    def _silence_ms(self, window: Window, result: Transcription) -> int:
        """So much silence ends the utterance of a guess."""
        whole = longer = 0
        with suppress(StoreError):
            whole, longer = self._store.history.count(result.text)
        settings, gates = self._settings.segmenter, self._transcriber.gates
        return silence_ms(window, result, settings, gates, whole=whole, longer=longer)

    def encode_asked(self, request: Request) -> bool:
        """Encodes a request's window; False when that failed, which it is told. Never raises."""
        if request.idle:
            self._health.count("partials")
        try:
            encoded = self._transcriber.encode(request.window)
            room = "" if request.idle else None
            request.encoded = replace(encoded, ahead=request.ahead, names=request.names, room=room)
        except Exception as error:
            _answer(request, error)
        return request.encoded is not None

    def answer(self, request: Request) -> None:
        """Decodes a request's window, if that is still wanted, and answers it. Never raises."""
        if not request.wanted or request.encoded is None:
            return
        result: Transcription | Exception
        try:
            result = self._transcriber.write(request.encoded)
        except Exception as error:
            result = error
        _answer(request, result)

    def preview(self, window: Window, result: Transcription) -> str:
        """The text of the transcript that `write` would make; empty where it would discard it."""
        return self._gates.preview(window, result, lambda: self._text_before(window))

    def write(self, encoded: EncodedWindow) -> None:
        """Decodes an encoded window and stores its text; ends its lease, or leaves that to `flush`.

        Raises DeviceError when several windows failed in a row, or when memory is short for some
        seconds: the next start finds the window then.
        """
        lease, result = encoded.lease, encoded.result
        try:
            if isinstance(result, Exception):
                raise result
            if isinstance(result, Encoded):
                ahead = lease.guess.transcription if lease.guess else None
                states = result
                result = ahead or with_memory(lambda: self._transcriber.write(states))
        except Exception as error:
            if lacks_memory(error):
                lease.leave()
                raise DeviceError(
                    f"too little memory to transcribe {lease.window.duration_s:.1f} s: {error}; "
                    "restarting, what waits to be transcribed is kept"
                ) from error
            lease.failed(error)
            return
        lease.transcribed()
        window = lease.window
        result, reason = self._gates.on(window, result, lambda: self._text_before(window))
        if reason:
            lease.discard(reason)
            return
        self._waiting.append(
            (lease, compose(window, result, result.model or self.model, encoded.queue_ms))
        )
        if len(self._waiting) > TRANSCRIPTS_WAITING:
            oldest = self._waiting.popleft()[0]
            if oldest:
                oldest.done()
            self._health.count("lost_store_refused")
            log.error("the store has refused for too long: the oldest transcript is lost")
        self.flush()

    def keep(self, window: Window, result: Transcription, queue_ms: float) -> None:
        """Has `flush` store the text of a window that was not heard here. Any thread."""
        if len(self._waiting) >= TRANSCRIPTS_WAITING:
            self._health.count("lost_store_refused")
            return
        transcript = compose(window, result, result.model or self.model, queue_ms)
        self._waiting.append((None, replace(transcript, source="wyoming")))

    def flush(self) -> int:
        """Stores what waits; how many transcripts still do because the store refuses."""
        while self._waiting:
            lease, transcript = self._waiting[0]
            try:
                stored = self._store.append(transcript)
            except StoreError as error:
                self._health.trouble("store", str(error))
                return len(self._waiting)
            self._waiting.popleft()
            if lease:
                lease.done()
            self._health.count("transcripts")
            if transcript.continues and transcript.window == 1:
                self._health.count("resumed")
            journal.log_transcript(stored, self._settings.journal)
            for listener in self._listeners:
                listener.notify()
            self._said(transcript)
        self._health.trouble("store", None)
        return 0

    def tidy(self) -> None:
        """What there is time for while nobody speaks: stores what waits, deletes what is old."""
        if self.flush() or time.monotonic() < self._expire_s:
            return
        self._expire_s = time.monotonic() + EXPIRE_EVERY_S
        try:
            deleted = self._store.expire(datetime.now(UTC))
        except StoreError as error:
            log.warning("%s", error)
            return
        if deleted:
            log.info("deleted %d transcripts older than the retention", deleted)

    def discard(self, discarded: Discarded) -> None:
        """Counts and reports speech that gave no transcript."""
        self._health.count(f"discarded_{discarded.reason}")
        log.info(
            "discarded %.1f s of sound: %s (utterance %s)",
            discarded.duration_s,
            discarded.reason,
            discarded.utterance_id,
        )
        for listener in self._listeners:
            listener.discarded(discarded)

    @property
    def model(self) -> str:
        """Name of the model bundle in use."""
        return self._transcriber.bundle.name

    def _text_before(self, window: Window) -> str:
        """The stored text of the window before, which an earlier process transcribed; else none."""
        try:
            newest = [row.transcript for row in self._store.query(limit=1)]
        except StoreError:
            return ""
        wanted = (window.utterance_id, window.index - 1)
        return "".join(one.text for one in newest if (one.utterance_id, one.window) == wanted)


def open_transcriber(settings: Settings) -> AnyTranscriber:
    """What makes the texts: a model on this machine, a speech-to-text server, or a fleet's brains.

    Raises ModelError, ConfigError and DeviceError, but never for another machine that is away.
    """
    return open_ear(settings) if settings.fleet.role == "ear" else open_served(settings)


def _answer(request: Request, result: Transcription | Exception) -> None:
    """Tells who asked; what goes wrong there is no fault of ours."""
    try:
        request.answer(result)
    except Exception as error:
        log.error("a request's answer was not taken: %s", error, exc_info=error)


def with_memory(work: Callable[[], Made]) -> Made:
    """What `work` returns; it is tried again after each of MEMORY_WAITS_S while memory is short.

    Raises what `work` raises.
    """
    for pause_s in MEMORY_WAITS_S:
        try:
            return work()
        except Exception as error:
            if not lacks_memory(error):
                raise
            log.warning("too little memory for a window, trying again: %s", error)
        gc.collect()
        time.sleep(pause_s)
    return work()


def compose(window: Window, result: Transcription, model: str, queue_ms: float) -> Transcript:
    """The transcript of a window on time.monotonic()'s clock."""
    probability = result.language_probability
    return Transcript(
        id=window.id,
        utterance_id=window.utterance_id,
        window=window.index,
        windows=window.index if window.last else None,
        start=utc_from_monotonic(window.start_s + window.overlap_s),
        end=utc_from_monotonic(window.speech_end_s),
        text=result.text,
        language=result.language,
        avg_logprob=result.avg_logprob,
        no_speech_prob=result.no_speech_prob,
        compression_ratio=result.compression_ratio,
        duration_s=window.duration_s - window.overlap_s,
        model=model,
        encoder=result.encoder,
        encode_ms=result.encode_ms,
        decode_ms=result.decode_ms,
        queue_ms=queue_ms,
        latency_ms=(time.monotonic() - window.speech_end_s) * 1000,
        confidence=result.confidence,
        phrase=result.phrase if window.index == 1 and window.last else None,
        flags=(*window.flags, *result.flags),
        continues=window.continues,
        language_probability=None if math.isnan(probability) else probability,
    )
