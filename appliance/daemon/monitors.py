"""What is wrong with speech over many sentences: too quiet, or never sure enough to act on."""

import logging
import math
import time

from appliance.capture import QUIET_DBFS, measure_speech
from appliance.config import Settings
from appliance.daemon.health import Health
from appliance.records import (
    HEARD_HERE,
    Listener,
    NoAct,
    Transcript,
    Transcription,
    Window,
    why_not_act,
)

log = logging.getLogger("roomscribe.daemon")

QUIET_SENTENCES = 5
"""So many sentences in a row that are too quiet are a problem."""
UNSURE_SENTENCES, UNSURE_S = 20, 86_400.0
"""So many sentences of which none is sure enough to act on are a problem, if none of a day was."""


class LevelMonitor(Listener):
    """Reports speech that is too quiet, sentence after sentence; a louder one clears it."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._levels_dbfs: list[float] = []
        """Of the last sentences, all of them too quiet."""

    def on_transcription(self, window: Window, result: Transcription) -> None:
        """Note the level of a window that has a text."""
        if not result.text:
            return
        level_dbfs, _ = measure_speech(window.samples)
        if level_dbfs is None or level_dbfs >= QUIET_DBFS:
            self._levels_dbfs.clear()
            self._health.trouble("level", None)
            return
        self._levels_dbfs = [*self._levels_dbfs[1 - QUIET_SENTENCES :], level_dbfs]
        if len(self._levels_dbfs) == QUIET_SENTENCES:
            trouble = (
                f"speech is too quiet, {max(self._levels_dbfs):.0f} dBFS in the last "
                f"{QUIET_SENTENCES} sentences; below {QUIET_DBFS:.0f} dBFS words are lost: turn "
                "the microphone up (`alsamixer`, F4), or put it closer"
            )
            if self._health.trouble("level", trouble):
                log.warning("%s", trouble)


class ActingMonitor(Listener):
    """Reports sentences of which none is sure enough to be acted on, until one is."""

    def __init__(self, settings: Settings, health: Health) -> None:
        self._settings, self._health = settings, health
        self._unsure, self._acted_s = 0, -math.inf
        """Sentences that were not sure enough since the last one that was, and when that was."""

    def on_transcript(self, transcript: Transcript) -> None:
        """Note whether something may act on a sentence of the microphone."""
        if transcript.source != HEARD_HERE:
            return
        reason = why_not_act(transcript)
        if reason is None:
            self._unsure, self._acted_s = 0, time.monotonic()
            self._health.trouble("acting", None)
            return
        self._unsure += reason in (NoAct.LOW_CONFIDENCE, NoAct.UNSURE)
        if self._unsure >= UNSURE_SENTENCES and time.monotonic() - self._acted_s > UNSURE_S:
            phrases = self._settings.phrases.own_file
            name = "" if self._settings.assist.phrase else "set assist.phrase and say it first, "
            listed = "" if phrases else "list what you say in [phrases] file, "
            self._health.trouble(
                "acting",
                f"nothing acts on what you say: none of {UNSURE_SENTENCES} sentences and more was "
                f"sure enough; {name}{listed}improve the microphone, or take a larger model "
                "(`roomscribe model add base`)",
            )
