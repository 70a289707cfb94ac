"""Windows in, stored transcripts out: the encoder's and the transcriber's work, without threads.

A transcript is committed to the store before anyone is told of it. While the store refuses
(disk full), transcripts wait here, in order and bounded.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from appliance.config import Settings
from appliance.daemon import journal
from appliance.daemon.health import Health
from appliance.daemon.spool import Spool
from appliance.errors import DeviceError, StoreError
from appliance.infer import Encoded, Gates, Transcriber
from appliance.records import Discarded, Transcript, Transcription, Window, utc_from_monotonic
from appliance.store import Store

log = logging.getLogger("roomscribe.daemon")

FAILURES_IN_A_ROW = 3
"""So many windows failing one after another are a broken device, not a strange sound."""
TRANSCRIPTS_WAITING = 1000
"""Kept in memory while the store refuses; about a day of commands."""

EXPIRE_EVERY_S = 3600.0


class Listener(Protocol):
    """Who is told, after the store, of what was heard."""

    def notify(self) -> None:
        """The store has a new transcript."""

    def discarded(self, discarded: Discarded) -> None:
        """Speech that gave no transcript."""


@dataclass(frozen=True, slots=True)
class EncodedWindow:
    """A window on its way from the encoder to the decoder."""

    window: Window
    queue_ms: float
    """How long it waited for the encoder."""
    encoded: Encoded | Transcription | Exception
    """Or what another process made of it, or why it could not be encoded."""


class Scribe:
    """Transcribes windows and stores the result.

    `encode` may run in a thread of its own, one window ahead; all the rest is one other thread's,
    and the store is its own.
    """

    def __init__(
        self,
        settings: Settings,
        transcriber: Transcriber,
        store: Store,
        health: Health,
        listeners: tuple[Listener, ...] = (),
        *,
        spool: Spool | None = None,
    ) -> None:
        self._settings, self._transcriber, self._store = settings, transcriber, store
        self._health, self._listeners = health, listeners
        self._spool = spool or Spool(None, -1, health)
        self._waiting: deque[Transcript] = deque()
        self._verdicts = Gates(transcriber.gates)
        self._failed: list[str] = []
        """Ids of the windows that failed in a row."""
        self._expire_s = 0.0

    def encode(self, window: Window, queued_s: float) -> EncodedWindow:
        """Encodes a window that was queued at `queued_s` (time.monotonic())."""
        queue_ms = (time.monotonic() - queued_s) * 1000
        try:
            return EncodedWindow(window, queue_ms, self._transcriber.encode(window))
        except Exception as error:
            return EncodedWindow(window, queue_ms, error)

    def write(self, heard: EncodedWindow) -> None:
        """Makes text of an encoded window and stores it.

        Raises DeviceError when several windows failed in a row.
        """
        window = heard.window
        try:
            if isinstance(heard.encoded, Exception):
                raise heard.encoded
            if isinstance(heard.encoded, Transcription):
                transcription = heard.encoded
            else:
                transcription = self._transcriber.write(heard.encoded)
        except Exception as error:
            self._fail(window, error)
            return
        for strange in self._failed:
            self._spool.done(strange)
        self._failed = []
        self._spool.survived(window.id)
        transcription, reason = self._verdicts.on(
            window, transcription, lambda: self._said_before(window)
        )
        if reason:
            self._drop(window, reason)
        else:
            self._waiting.append(compose(window, transcription, self.model, heard.queue_ms))
            if len(self._waiting) > TRANSCRIPTS_WAITING:
                self._spool.done(self._waiting.popleft().id)
                self._health.count("lost_store_refused")
                log.error("the store has refused for too long: the oldest transcript is lost")
            self.flush()

    def flush(self) -> int:
        """Stores what waits; how many transcripts still do because the store refuses."""
        while self._waiting:
            try:
                stored = self._store.append(self._waiting[0])
            except StoreError as error:
                self._health.trouble("store", str(error))
                return len(self._waiting)
            self._spool.done(self._waiting.popleft().id)
            self._health.count("transcripts")
            journal.heard(stored, self._settings.journal)
            for listener in self._listeners:
                listener.notify()
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

    def give_up(self, window: Window, error: Exception) -> None:
        """Says that a window failed."""
        log.error("a window of %.1f s failed: %s", window.duration_s, error, exc_info=error)
        self.discard(Discarded("failed", window.utterance_id, window.duration_s))

    def set_aside(self, window: Window, why: str) -> None:
        """Gives a window up that kills whatever transcribes it."""
        log.error("a window of %.1f s is set aside: %s", window.duration_s, why)
        self._health.count("set_aside")
        self._drop(window, "set_aside")

    def take_leave(self, lost: int) -> None:
        """Says, at the end, what the next start finds, and what nobody will; `lost` windows wait
        outside the spool."""
        self.flush()
        kept = {one.id for one in self._spool.left()}
        lost += sum(1 for one in self._waiting if one.id not in kept)
        if kept:
            log.info("%d windows are left to the next start", len(kept))
        if lost:
            log.error("stopped with %d windows untranscribed or transcripts unstored", lost)

    @property
    def model(self) -> str:
        """Name of the model bundle in use."""
        return self._transcriber.bundle.name

    @property
    def encoder(self) -> str:
        """What runs the encoder: cpu, hailo8..."""
        return self._transcriber.encoder.name

    def _said_before(self, window: Window) -> str:
        """The stored text of the window before, which an earlier process transcribed; else none."""
        try:
            newest = [row.transcript for row in self._store.query(limit=1)]
        except StoreError:
            return ""
        wanted = (window.utterance_id, window.index - 1)
        return "".join(one.text for one in newest if (one.utterance_id, one.window) == wanted)

    def _drop(self, window: Window, reason: str) -> None:
        """Discards a window."""
        self.discard(Discarded(reason, window.utterance_id, window.duration_s))
        self._spool.done(window.id)

    def _fail(self, window: Window, error: Exception) -> None:
        """Discards a window that failed; the spool keeps it until another one does not: were it the
        device, the next start tries it again."""
        self.give_up(window, error)
        self._failed.append(window.id)
        if len(self._failed) >= FAILURES_IN_A_ROW:
            raise DeviceError(
                f"transcribing failed {len(self._failed)} times in a row, last with: {error}"
            ) from error


def compose(window: Window, result: Transcription, model: str, queue_ms: float) -> Transcript:
    """The transcript of a window on time.monotonic()'s clock."""
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
        flags=(*window.flags, *result.flags),
    )
