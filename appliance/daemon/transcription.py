"""Tasks to transcriptions, and windows of the microphone to stored transcripts; no threads.

A transcript is committed to the store before any listener is notified.
"""

from __future__ import annotations

import functools
import gc
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

from appliance.capture import QUIET_DBFS, measure_speech
from appliance.config import Settings
from appliance.daemon import systemd
from appliance.daemon.backlog import Kind, Lease, Task
from appliance.daemon.health import Health
from appliance.daemon.phrase_commands import Expectations
from appliance.errors import DeviceError, StoreError, lacks_memory
from appliance.fleet import open_satellite
from appliance.homeassistant import AddressPhrase
from appliance.infer import (
    AnyTranscriber,
    Encoded,
    Gates,
    Phrases,
    Progress,
    open_transcriber as open_model,
    silence_ms,
)
from appliance.records import (
    Discarded,
    Listener,
    NoAct,
    Transcript,
    Transcription,
    Window,
    acting_text,
    utc_from_monotonic,
    why_not_act,
)
from appliance.store import Store, Wanted

log = logging.getLogger("roomscribe.daemon")

EXPIRE_EVERY_S = 3600.0
"""Seconds between two deletions of transcripts that are older than the retention."""
UNSURE_FROM, DAY_S = 20, 86_400.0
"""So many sentences of which none is sure enough to act on are a problem, if none of a day was."""
QUIET_FROM = 5
"""So many sentences in a row that are too quiet are a problem."""
MEMORY_WAITS_S = (0.1, 0.5, 1.5, 4.0)
"""Pauses before a window is tried again if memory was short; their sum is less than the watchdog
allows a stage (lifecycle.STUCK_S)."""

Made = TypeVar("Made")


class TaskTranscriber:
    """Transcribes tasks, and stores the transcripts of the microphone's windows.

    `encode` may run in a thread of its own, one task ahead, which may also `deliver` an error. Any
    thread may call `discard`. Everything else belongs to the transcriber's thread, which owns the
    store, too.
    """

    def __init__(
        self,
        settings: Settings,
        transcriber: AnyTranscriber,
        store: Store,
        health: Health,
        listeners: tuple[Listener, ...] = (),
        *,
        on_decision: Callable[[], object] = lambda: None,
        on_speculation: Callable[[Task], object] = lambda _: None,
        on_stored: Callable[[Window], object] = lambda _: None,
        on_idle: Callable[[], object] = lambda: None,
        expectations: Expectations | None = None,
        is_room_busy: Callable[[], bool] = lambda: False,
        media_plays: Callable[[datetime], bool] = lambda _: False,
    ) -> None:
        """`expectations` are what clients expect; `on_speculation` is called with each transcribed
        speculation, `on_decision` when a speculation's `silence_ms` is known, `on_stored` with each
        window of the microphone whose transcript is stored, and `on_idle` about once a second while
        nothing is to be transcribed."""
        self._settings, self._transcriber, self._store = settings, transcriber, store
        self._health, self._listeners = health, listeners
        self._kept: deque[Transcript] = deque()
        """Of windows that other programs sent."""
        self._on_decision, self.on_speculation = on_decision, on_speculation
        self._expectations = expectations or Expectations()
        self._is_room_busy = is_room_busy
        self._on_stored, self._on_idle = on_stored, on_idle
        self._gates = Gates(transcriber.gates)
        self._address = AddressPhrase(settings.assist.phrase, media_plays)
        self._quiet_dbfs: list[float] = []
        """Levels of the last sentences, all of them too quiet."""
        self._unsure, self._acted_s = 0, -math.inf
        """Sentences that were not sure enough since the last one that was, and when that was."""
        self._expire_s = 0.0

    def leased_task(self, lease: Lease) -> Task:
        """Return the task of a leased window, whose transcript is stored."""
        queue_ms = (time.monotonic() - lease.queued_s) * 1000
        deliver = functools.partial(self._store_result, lease, queue_ms)
        return Task(
            lease.window,
            deliver,
            Kind.MICROPHONE,
            words=self._settings.mqtt.words,
            speculation=lease.speculation,
        )

    def speculation(self, window: Window) -> Task:
        """Return the task of a window with which the utterance may end."""
        task = Task(window, lambda result: self._end_speculation(weak(), result), Kind.SPECULATION)
        weak = task.weak()
        task.words = self._settings.mqtt.words
        if self._settings.segmenter.early_ms:
            task.ask_completeness = True
            task.decided = lambda result: self._decide_silence(weak(), result)
        return task

    def encode(self, task: Task) -> None:
        """Encode a task's window. Never raises: `task.encoded` then is the error.

        If memory is short, a window of the microphone waits for it for some seconds.
        """
        if task.kind is Kind.PARTIAL:
            self._health.count("partials")
        known = task.speculation.encoded if task.speculation else None
        if known and not isinstance(known, Exception):
            self._health.count("guesses_used")
            task.encoded = known
            return
        try:
            begun = with_memory(task, lambda: self._transcriber.begin(task.window))
            if isinstance(begun, Encoded):
                room = None if task.kind is Kind.REQUEST else ""
                begun = replace(
                    begun,
                    speculative=task.ask_completeness,
                    names=task.names,
                    language=task.language,
                    room=room,
                    phrases=task.phrases or self._expected(task),
                )
            task.encoded = begun
        except Exception as error:
            task.encoded = error

    def decode(self, task: Task) -> None:
        """Decode an encoded task, and deliver its result if it is still wanted.

        Raises DeviceError when several windows of the microphone failed in a row, or when memory is
        short for some seconds: the next start finds the window then.
        """
        known = task.speculation.transcription if task.speculation else None
        result = known or task.encoded
        if isinstance(result, Encoded):
            if not task.wanted:
                return
            states, progress = result, self._progress(task)
            try:
                result = with_memory(task, lambda: self._transcriber.decode(states, progress))
            except Exception as error:
                result = error
        if result is not None:
            self.deliver(task, result)

    def _progress(self, task: Task) -> Progress:
        """Return how a task follows its transcription; no search delays the microphone."""
        return Progress(
            task.decided,
            lambda: task.wanted,
            lambda: task.search and not self._is_room_busy(),
            task.words,
        )

    def deliver(self, task: Task, result: Transcription | Exception) -> None:
        """Deliver a task's result if it is still wanted. Raises as `decode`."""
        if not task.wanted:
            return
        try:
            task.deliver(result)
        except Exception as error:
            if task.kind in (Kind.MICROPHONE, Kind.SPECULATION):
                raise
            log.error("the result of a request was not accepted: %s", error, exc_info=error)

    def preview(self, window: Window, result: Transcription) -> str:
        """Return the text that would be stored; empty if it would be discarded."""
        return self._gates.preview(window, result, lambda: self._text_before(window))

    def _end_speculation(self, task: Task, result: Transcription | Exception) -> None:
        """Keep a speculation's result for the window that comes true. An error is no fault of that
        window: it is tried again then."""
        if isinstance(result, Exception):
            log.info("a speculative transcription failed: %s", result)
        else:
            task.transcription = result
            task.decided(result)  # the final text may decide otherwise than the first one
        self.on_speculation(task)

    def _decide_silence(self, task: Task, result: Transcription) -> None:
        """Set how much silence ends a speculation's utterance."""
        whole = longer = 0
        with suppress(StoreError):
            whole, longer = self._store.history.count(result.text)
        settings = self._settings.segmenter
        task.silence_ms = silence_ms(task.window, result, settings, whole=whole, longer=longer)
        self._on_decision()

    def _store_result(
        self, lease: Lease, queue_ms: float, result: Transcription | Exception
    ) -> None:
        """Store a leased window's text, and end its lease. Raises DeviceError and StoreError."""
        window = lease.window
        if isinstance(result, Exception):
            if not lacks_memory(result):
                lease.fail(result)
                return
            lease.leave()
            raise DeviceError(
                f"too little memory to transcribe {window.duration_s:.1f} s: {result}; "
                "restarting, what waits to be transcribed is kept"
            ) from result
        lease.mark_transcribed()
        if result.text:
            self._judge_level(window)
        result, reason = self._gates.apply(window, result, lambda: self._text_before(window))
        if reason:
            lease.discard(reason)
            return
        transcript = compose(window, result, result.model or self.model, queue_ms)
        transcript = self._address.mark(transcript)
        self._store_transcript(transcript)
        self._judge_acting(transcript)
        lease.finish()
        self._on_stored(window)
        self._expectations.complete(window, result.text, result.candidates)

    def _judge_level(self, window: Window) -> None:
        """Note whether speech is too quiet, sentence after sentence; a louder one clears it."""
        level_dbfs, _ = measure_speech(window.samples)
        if level_dbfs is None or level_dbfs >= QUIET_DBFS:
            self._quiet_dbfs.clear()
            self._health.trouble("level", None)
            return
        self._quiet_dbfs = [*self._quiet_dbfs[1 - QUIET_FROM :], level_dbfs]
        if len(self._quiet_dbfs) == QUIET_FROM:
            trouble = (
                f"speech is too quiet, {max(self._quiet_dbfs):.0f} dBFS in the last {QUIET_FROM} "
                f"sentences; below {QUIET_DBFS:.0f} dBFS words are lost: turn the microphone up "
                "(`alsamixer`, F4), or put it closer"
            )
            if self._health.trouble("level", trouble):
                log.warning("%s", trouble)

    def _judge_acting(self, transcript: Transcript) -> None:
        """Report sentences of which none is sure enough to be acted on, until one is."""
        reason = why_not_act(transcript)
        if reason is None:
            self._unsure, self._acted_s = 0, time.monotonic()
            self._health.trouble("acting", None)
            return
        self._unsure += reason in (NoAct.LOW_CONFIDENCE, NoAct.UNSURE)
        if self._unsure >= UNSURE_FROM and time.monotonic() - self._acted_s > DAY_S:
            phrases = self._settings.phrases.own_file
            name = "" if self._settings.assist.phrase else "set assist.phrase and say it first, "
            listed = "" if phrases else "list what you say in [phrases] file, "
            self._health.trouble(
                "acting",
                f"nothing acts on what you say: none of {UNSURE_FROM} sentences and more was sure "
                f"enough; {name}{listed}improve the microphone, or take a larger model "
                "(`roomscribe model add base`)",
            )

    def keep(self, window: Window, result: Transcription, queue_ms: float) -> None:
        """Let `flush` store the text of a window that another program sent. Any thread."""
        transcript = compose(window, result, result.model or self.model, queue_ms)
        self._kept.append(replace(transcript, source="wyoming"))

    def flush(self) -> None:
        """Store what `keep` got. Raises StoreError."""
        while self._kept:
            self._store_transcript(self._kept.popleft())

    def _store_transcript(self, transcript: Transcript) -> None:
        """Store a transcript, then notify the listeners. Raises StoreError: file and memory refuse,
        and the next start finds the window."""
        stored = self._store.append(transcript)
        self._health.count("transcripts")
        if transcript.continues and transcript.window == 1:
            self._health.count("resumed")
        systemd.log_transcript(stored, self._settings.journal)
        for listener in self._listeners:
            listener.on_transcript(transcript)

    def is_stored(self, transcript_id: str) -> bool:
        """Return True if the log has that transcript; False if it cannot be read."""
        with suppress(StoreError):
            return self._store.count(Wanted(ids=(transcript_id,))) > 0
        return False

    def tidy(self) -> None:
        """Store what `keep` got and delete old transcripts, while nobody speaks."""
        self._expectations.poll()
        self._on_idle()
        self.flush()
        if time.monotonic() < self._expire_s:
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
        """Count and report speech that gave no transcript."""
        self._health.count(f"discarded_{discarded.reason}")
        log.info(
            "discarded %.1f s of sound: %s (utterance %s)",
            discarded.duration_s,
            discarded.reason,
            discarded.utterance_id,
        )
        for listener in self._listeners:
            listener.on_discarded(discarded)

    def _expected(self, task: Task) -> Phrases | None:
        """Return what a client expects in a window of the microphone."""
        if task.kind in (Kind.MICROPHONE, Kind.SPECULATION):
            return self._expectations.phrases_for(task.window)
        return None

    @property
    def model(self) -> str:
        """Name of the model bundle in use."""
        return self._transcriber.bundle.name

    def _text_before(self, window: Window) -> str:
        """Return the text of the window before, if an earlier process stored it; else ""."""
        try:
            newest = [row.transcript for row in self._store.query(limit=1)]
        except StoreError:
            return ""
        wanted = (window.utterance_id, window.index - 1)
        return "".join(one.text for one in newest if (one.utterance_id, one.window) == wanted)


def open_transcriber(settings: Settings) -> AnyTranscriber:
    """What makes the texts: a model on this machine, or a fleet's workers.

    Raises ModelError, ConfigError and DeviceError, but never for another machine that is away.
    """
    return open_satellite(settings) if settings.fleet.role == "satellite" else open_model(settings)


def with_memory(task: Task, work: Callable[[], Made]) -> Made:
    """Return what `work` returns; for a window of the microphone, try again after each of
    MEMORY_WAITS_S while memory is short.

    Raises what `work` raises.
    """
    for pause_s in MEMORY_WAITS_S if task.kind is Kind.MICROPHONE else ():
        try:
            return work()
        except Exception as error:
            if not lacks_memory(error):
                raise
            log.warning("too little memory for a window, trying again: %s", error)
        gc.collect()
        time.sleep(pause_s)
    return work()


def text_to_act_on(window: Window, result: Transcription) -> str:
    """Return the words to act on of another program's window: those of the expected sentence where
    that is sure enough, by the microphone's rule; else its text."""
    one = compose(window, result, result.model, 0.0)
    return one.text if why_not_act(one) else acting_text(one)


def compose(window: Window, result: Transcription, model: str, queue_ms: float) -> Transcript:
    """Return the transcript of a window, whose times are on time.monotonic()'s clock."""
    probability = result.language_probability
    level_dbfs, snr_db = measure_speech(window.samples)
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
        level_dbfs=level_dbfs,
        snr_db=snr_db,
        words=tuple(word.shifted(-window.overlap_s) for word in result.words),
    )
