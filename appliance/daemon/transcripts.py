"""Transcriptions of the microphone's windows become transcripts in the store; no threads.

A transcript is committed to the store before any listener is notified.
"""

import logging
import math
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple, Self

import numpy as np

from appliance.capture import PRE_ROLL_MS, is_same_voice, measure_speech
from appliance.config import Settings
from appliance.daemon import systemd
from appliance.daemon.backlog import Lease, Work
from appliance.daemon.health import Health
from appliance.errors import DeviceError, StoreError, lacks_memory
from appliance.homeassistant import AddressPhrase, MediaPlayers, after_phrase
from appliance.infer import AnyTranscriber, Deliver, Gates, Request
from appliance.records import (
    ADDRESSED,
    JOINED,
    SAMPLE_RATE,
    AssistReply,
    Discarded,
    Listener,
    NoAct,
    Transcript,
    Transcription,
    Window,
    acting_text,
    is_expected,
    new_id,
    utc_from_monotonic,
    why_not_act,
)
from appliance.speaker import Spoken
from appliance.store import Store

log = logging.getLogger("roomscribe.daemon")

REPLY_S = 15.0
"""A media player has begun and ended an answer of Assist after this."""
EXPIRE_EVERY_S = 3600.0
"""Seconds between two deletions of transcripts that are older than the retention."""
CONTINUES_S, PRE_ROLL_S = 2.0, PRE_ROLL_MS / 1000
"""Longest pause in a sentence; longest sound before the speech of a window. In 14 of 34 commands of
people, a pause of 1 s within them ended an utterance."""
UNSURE = (NoAct.LOW_CONFIDENCE, NoAct.UNSURE, NoAct.GUARDED, NoAct.PART)
"""Why nothing acts on a part of a sentence, though it may on the whole."""
PART_KEPT_S = 15.0
"""So long after its speech, the sound of a sentence is kept for one that continues it."""


class _Part(NamedTuple):
    """A window of the microphone, which may be a part of a sentence, and its transcript."""

    window: Window
    transcript: Transcript

    def is_continued_by(self, window: Window, level_dbfs: float | None) -> bool:
        """Return True if the speech of a window, of that level, follows soon and is as loud as the
        last second of this one's, and nothing is sure enough to act without it."""
        pause_s = window.start_s - self.window.speech_end_s
        is_whole = self.window.last and self.window.index == window.index == 1
        soon = is_whole and 0 <= pause_s <= CONTINUES_S - PRE_ROLL_S
        alike = is_same_voice(measure_speech(self.window.samples[-SAMPLE_RATE:])[0], level_dbfs)
        return soon and alike and why_not_act(self.transcript) in UNSURE

    def has_rest(self, later: Transcript) -> bool:
        """Return True if nothing may act on a transcript that continues this one, as the rest of
        its sentence: this is a beginning, or that begins without a capital letter, unlike this."""
        first = self.transcript
        goes_on = first.text[:1].isupper() and not later.text[:1].isupper()
        return (goes_on or NoAct.PART in first.flags) and not is_expected(later)

    def join(self, later: Self, longest_s: float) -> Window | None:
        """Return the sentence as one window, of the later part's utterance; None if that would be
        longer than `longest_s`, or if something may act on a part alone.

        The sound of a longer pause is not kept: that before the later speech fills it.
        """
        first, second = self.window, later.window
        goes_on = later.transcript.continues == first.utterance_id
        length_s = second.start_s + second.duration_s - first.start_s
        reasons = {why_not_act(self.transcript), why_not_act(later.transcript)}
        if not goes_on or length_s > longest_s or not reasons <= {*UNSURE}:
            return None
        gap = round((second.start_s - first.start_s) * SAMPLE_RATE) - len(first.samples)
        pause = np.resize(second.samples[: int(PRE_ROLL_S / 2 * SAMPLE_RATE)], max(0, gap))
        return replace(
            second,
            id=new_id(),
            samples=np.concatenate([first.samples, pause, second.samples]),
            start_s=first.start_s,
            voiced_s=first.voiced_s + second.voiced_s,
            flags=tuple(dict.fromkeys((*first.flags, *second.flags, JOINED))),
            continues="",
        )


class Transcripts(Listener):
    """Gates texts and stores them. The transcriber's thread, if a method does not say otherwise."""

    def __init__(
        self,
        settings: Settings,
        transcriber: AnyTranscriber,
        store: Store,
        health: Health,
        bus: Listener,
        *,
        media: MediaPlayers,
        spoken: Spoken,
        submit: Callable[[Request, Deliver], Work | None],
    ) -> None:
        """`submit` queues a request of the appliance itself."""
        self.submit = submit
        self._settings, self._transcriber, self._store = settings, transcriber, store
        self._health, self._bus = health, bus
        self._gates = Gates(transcriber.gates)
        self._address = AddressPhrase(settings.assist.phrase, media.play_since)
        self._media, self._spoken, self._replies = media, spoken, Spoken()
        self._kept: deque[Transcript] = deque()
        """Of windows that other programs sent."""
        self._before: _Part | None = None
        """The newest sentence of the microphone, while another one may continue it."""
        self._expire_s = 0.0

    def invite(self, within_s: float) -> None:
        """Take the next sentence as said to the home if it begins so soon. Any thread."""
        self._address.invite(within_s)

    def preview(self, window: Window, result: Transcription) -> str:
        """Return the text that would be stored; empty if it would be discarded."""
        result = self._without_own_words(window, result)
        return self._gates.preview(window, result, lambda: self._text_before(window))

    def store(self, lease: Lease, result: Transcription | Exception) -> None:
        """Store a leased window's text, and end its lease. Raises DeviceError and StoreError."""
        window = lease.window
        if isinstance(result, Exception):
            if not lacks_memory(result):
                lease.fail(result)
                return
            lease.keep_for_next_start()
            raise DeviceError(
                f"too little memory to transcribe {window.duration_s:.1f} s: {result}; "
                "restarting, what waits to be transcribed is kept"
            ) from result
        lease.mark_transcribed()
        self._bus.on_transcription(window, result)
        result = self._without_own_words(window, result)
        result, reason = self._gates.apply(window, result, lambda: self._text_before(window))
        if reason:
            lease.discard(reason)
            return
        model = result.model or self._transcriber.bundle.name
        transcript, before = compose(window, result, model, lease.queue_ms), self._before
        if before and before.is_continued_by(window, transcript.level_dbfs):
            transcript = replace(transcript, continues=before.window.utterance_id)
            if before.has_rest(transcript):
                transcript = replace(transcript, flags=(*transcript.flags, NoAct.PART.value))
        if self._is_own(transcript, window.start_s):
            result = replace(result, flags=(*result.flags, NoAct.OWN_VOICE.value))
            transcript = replace(transcript, flags=(*transcript.flags, NoAct.OWN_VOICE.value))
        else:
            transcript = self._address.mark(transcript)
        part = self._before = _Part(window, transcript)
        self._append(transcript)
        lease.finish()
        self._bus.on_stored(window, result)
        if before and (joined := before.join(part, self._transcriber.bundle.window_s)):
            self._bus.on_window(joined)
            request = Request(joined, search=True, words=self._settings.mqtt.words)
            self.submit(request, partial(self._store_joined, before.transcript, part))

    def _store_joined(
        self, first: Transcript, second: _Part, request: Request, result: Transcription | Exception
    ) -> None:
        """Store the text of a sentence whose parts were stored before, if it has other words, or if
        something may act on it. Raises StoreError."""
        if isinstance(result, Exception):
            log.info("a sentence in two parts was not joined: %s", result)
            return
        window = request.window
        result, reason = Gates(self._transcriber.gates).apply(window, result)
        one = compose(window, result, result.model or self._transcriber.bundle.name, 0.0)
        if ADDRESSED in first.flags:
            one = replace(one, flags=(*one.flags, ADDRESSED))
        else:  # with another memory: the next sentence may be a command of the phrase alone
            one = AddressPhrase(self._settings.assist.phrase, self._media.play_since).mark(one)
        texts = f"{first.text} {second.transcript.text}", one.text
        apart, whole = (re.findall(r"[\w']+", text.casefold()) for text in texts)
        if reason or (why_not_act(one) and whole == apart):
            return
        self._append(one)
        self._bus.on_stored(window, result)
        if self._before is second:
            self._before = _Part(window, one)

    def keep(self, window: Window, result: Transcription, queue_ms: float) -> None:
        """Let `flush` store the text of a window that another program sent. Any thread."""
        transcript = compose(
            window, result, result.model or self._transcriber.bundle.name, queue_ms
        )
        self._kept.append(replace(transcript, source="wyoming"))

    def flush(self) -> None:
        """Store what `keep` got. Raises StoreError."""
        while self._kept:
            self._append(self._kept.popleft())

    def _append(self, transcript: Transcript) -> None:
        """Store a transcript, then notify the listeners. Raises StoreError: file and memory refuse,
        and the next start finds the window."""
        stored = self._store.append(transcript)
        self._health.count("transcripts")
        if transcript.continues and transcript.window == 1:
            self._health.count("resumed")
        systemd.log_transcript(stored, self._settings.journal)
        self._bus.on_transcript(transcript)

    def on_reply(self, reply: AssistReply) -> None:
        """Remember an answer of Assist, which a media player of the area may say. Any thread."""
        self._replies.note(reply.speech, time.monotonic() + REPLY_S)

    def _without_own_words(self, window: Window, result: Transcription) -> Transcription:
        """Return a text without what a loudspeaker said before the address phrase."""
        rest = self._spoken.behind(
            result.text, window.start_s,
            lambda text: after_phrase(text, self._settings.assist.phrase) is not None,
        )  # fmt: skip
        if rest == result.text:
            return result
        words = result.words[len(result.words) - len(rest.split()) :]
        return replace(result, text=rest, words=words)

    def _is_own(self, transcript: Transcript, start_s: float) -> bool:
        """Return True if a loudspeaker of the home said this, by what is known to be said, or a
        media player of the area that plays Assist's answer."""
        sources = [self._spoken]
        if self._media.play_since(transcript.start):
            sources.append(self._replies)
        home = after_phrase(transcript.text, self._settings.assist.phrase) is not None
        texts = {transcript.text} if home else {transcript.text, acting_text(transcript)}
        return any(one.is_own(text, start_s, addressed=home) for one in sources for text in texts)

    def on_idle(self) -> None:
        """Store what `keep` got and delete old transcripts, while nobody speaks."""
        self.flush()
        if self._before and time.monotonic() > self._before.window.speech_end_s + PART_KEPT_S:
            self._before = None
        if time.monotonic() < self._expire_s:
            return
        self._expire_s = time.monotonic() + EXPIRE_EVERY_S
        try:
            if deleted := self._store.expire(datetime.now(UTC)):
                log.info("deleted %d transcripts older than the retention", deleted)
        except StoreError as error:
            log.warning("%s", error)

    def on_discarded(self, discarded: Discarded) -> None:
        """Count and log speech that gave no transcript. Any thread."""
        self._health.count(f"discarded_{discarded.reason}")
        what = discarded.duration_s, discarded.reason, discarded.utterance_id
        log.info("discarded %.1f s of sound: %s (utterance %s)", *what)

    def _text_before(self, window: Window) -> str:
        """Return the text of the window before, if an earlier process stored it; else ""."""
        try:
            newest = [row.transcript for row in self._store.query(limit=1)]
        except StoreError:
            return ""
        wanted = (window.utterance_id, window.index - 1)
        return "".join(one.text for one in newest if (one.utterance_id, one.window) == wanted)


def text_to_act_on(window: Window, result: Transcription) -> str:
    """Return the words to act on of another program's window: those of the expected sentence where
    that is sure enough, by the microphone's rule; else its text."""
    if result.phrase is None:
        return result.text
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
