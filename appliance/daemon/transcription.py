"""Encodes and decodes what the backlog gives out, and passes the results on; no threads."""

import gc
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from appliance.config import Settings
from appliance.daemon.backlog import Lease, Work
from appliance.daemon.core import Core
from appliance.daemon.partials import Partials
from appliance.daemon.phrase_commands import Expectations
from appliance.daemon.stages import Sentinel
from appliance.errors import StoreError, lacks_memory
from appliance.fleet import open_satellite
from appliance.infer import (
    AnyTranscriber,
    Encoded,
    Request,
    open_transcriber as open_model,
    silence_ms,
)
from appliance.records import Transcription, Window

log = logging.getLogger("roomscribe.daemon")

MEMORY_WAITS_S = (0.1, 0.5, 1.5, 4.0)
"""Pauses before a window is tried again if memory was short; their sum is less than the watchdog
allows a stage (lifecycle.STUCK_S)."""

Made = TypeVar("Made")


class WorkTranscriber:
    """Transcribes what the microphone, other programs and machines want transcribed.

    `encode` may run in a thread of its own, one work ahead, which may also `deliver` an error.
    Everything else belongs to the transcriber's thread.
    """

    def __init__(
        self,
        core: Core,
        partials: Partials,
        expectations: Expectations,
    ) -> None:
        """`expectations` are what clients expect."""
        self._core, self._partials, self._expectations = core, partials, expectations

    def leased(self, lease: Lease) -> Work:
        """Return the work on a leased window, whose transcript is stored.

        Nobody waits for a window that is not the last of its utterance: until somebody does, there
        is time to search for a better text.
        """
        backlog = self._core.backlog
        return Work(self._request(lease.window), lease=lease, must_hurry=lambda: backlog.is_awaited)

    def speculation(self, window: Window) -> Work:
        """Return the work on a window with which the utterance may end. Any thread."""
        request = self._request(window, completeness=bool(self._core.settings.segmenter.early_ms))
        return Work(request, decided=self._decide_silence)

    def _request(self, window: Window, *, completeness: bool = False) -> Request:
        """Return what is wanted of a window of the microphone."""
        phrases, words = self._expectations.phrases_for(window), self._core.settings.mqtt.words
        return Request(
            window, phrases=phrases, words=words, completeness=completeness, search=not window.last
        )

    def encode(self, work: Work, should_continue: Callable[[], bool] = lambda: True) -> None:
        """Encode a work's window. Never raises: `work.encoded` then is the error.

        If memory is short, a window of the microphone waits for it for some seconds. For
        `should_continue` see `AnyTranscriber.begin`.
        """
        if work.request.partial:
            self._core.health.count("partials")
        speculation = work.lease.speculation if work.lease else None
        known = speculation.encoded if speculation else None
        if known and not isinstance(known, Exception):
            self._core.health.count("guesses_used")
            work.encoded = known
            return
        try:
            work.encoded = with_memory(
                work, lambda: self._core.transcriber.begin(work.request, should_continue)
            )
        except Exception as error:
            work.encoded = error

    def decode(self, work: Work) -> None:
        """Decode an encoded work, and deliver its result if it is still wanted.

        Raises DeviceError when several windows of the microphone failed in a row, or when memory is
        short for some seconds: the next start finds the window then.
        """
        speculation = work.lease.speculation if work.lease else None
        result = (speculation.transcription if speculation else None) or work.encoded
        if isinstance(result, Encoded):
            if not work.wanted:
                return
            encoded = result
            try:
                result = with_memory(work, lambda: self._core.transcriber.decode(encoded, work))
            except Exception as error:
                result = error
        if result is not None:
            self.deliver(work, result)

    def deliver(self, work: Work, result: Transcription | Exception) -> None:
        """Deliver a work's result if it is still wanted. Raises as `decode`."""
        if not work.wanted:
            return
        if work.lease:
            self._core.transcripts.store(work.lease, result)
        elif not work.deliver:
            self._end_speculation(work, result)
        else:
            try:
                work.deliver(work.request, result)
            except Exception as error:
                log.error("the result of a request was not accepted: %s", error, exc_info=error)

    def _end_speculation(self, work: Work, result: Transcription | Exception) -> None:
        """Keep a speculation's result for the window that comes true, and publish its text. An
        error is no fault of that window: it is tried again then."""
        if isinstance(result, Exception):
            log.info("a speculative transcription failed: %s", result)
        else:
            work.transcription = result
            work.on_text(result)  # the final text may decide otherwise than the first one
        self._partials.publish_eager(work)
        self._core.backlog.end_speculation(work)

    def _decide_silence(self, work: Work, result: Transcription) -> None:
        """Set how much silence ends a speculation's utterance, if that depends on its text."""
        if not work.request.completeness:
            return
        whole = longer = 0
        with suppress(StoreError):
            whole, longer = self._core.store.history.count(result.text)
        settings = self._core.settings.segmenter
        work.silence_ms = silence_ms(work.window, result, settings, whole=whole, longer=longer)
        self._core.frames.mark(Sentinel.DECIDED)


def open_transcriber(settings: Settings, is_muted: Callable[[], bool]) -> AnyTranscriber:
    """Return what makes the texts: a model on this machine, or a fleet's workers, which get no
    sound while `is_muted` returns True.

    Raises ModelError, ConfigError and DeviceError, but never for another machine that is offline.
    """
    if settings.fleet.role == "satellite":
        return open_satellite(settings, is_muted)
    return open_model(settings)


def with_memory(work: Work, attempt: Callable[[], Made]) -> Made:
    """Return what `attempt` returns; for a window of the microphone, try again after each of
    MEMORY_WAITS_S while memory is short.

    Raises what `attempt` raises.
    """
    for pause_s in MEMORY_WAITS_S if work.lease else ():
        try:
            return attempt()
        except Exception as error:
            if not lacks_memory(error):
                raise
            log.warning("too little memory for a window, trying again: %s", error)
        gc.collect()
        time.sleep(pause_s)
    return attempt()
