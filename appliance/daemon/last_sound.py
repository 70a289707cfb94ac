"""The sound of the last sentence, for those who may hear it again on the page.

It is in memory only, for a minute at most. Muting and deleting discard it at once.
"""

import base64
import threading
import time
from collections.abc import Callable
from typing import Any

from appliance.control import ControlError
from appliance.daemon.command_group import CommandGroup, bad_request, parse_integer, unavailable
from appliance.records import SAMPLE_RATE, Listener, Transcription, Window
from appliance.store import Store

KEPT_S = 60.0
"""Age of the sound, from the end of speech, at which it is discarded."""
PART_SAMPLES = 20_000
"""Samples in one answer: a line of the control socket has at most 64 kB."""


class Playback(CommandGroup, Listener):
    """Keeps the last sentence's sound, and serves `playback`. Any thread."""

    def __init__(
        self, store: Store, *, enabled: bool, is_muted: Callable[[], bool] = lambda: False
    ) -> None:
        self._store, self._enabled, self._is_muted = store, enabled, is_muted
        self._lock = threading.Lock()
        self._window: Window | None = None

    def on_stored(self, window: Window, _: Transcription) -> None:
        """Keep the sound of a window whose transcript is stored, in place of the one before."""
        if self._enabled:
            with self._lock:
                self._window = None if self._is_muted() else window

    def on_mute(self) -> None:
        """Discard the sound now."""
        with self._lock:
            self._window = None

    close = on_mute

    def poll(self) -> None:
        """Discard the sound if it is too old, or if its transcript was deleted."""
        window = self._window
        if window and (
            time.monotonic() - window.speech_end_s > KEPT_S or not self._store.has(window.id)
        ):
            self.on_mute()

    on_idle = poll

    def _answer_playback(self, transcript_id: Any, offset: Any) -> dict[str, Any]:
        """Return a part of the sound: base64 of 16-bit little-endian samples."""
        if not isinstance(transcript_id, str):
            raise bad_request("transcript_id: expected the id of a transcript")
        offset = parse_integer("offset", offset, 0, 1 << 31, 0)
        if not self._enabled:
            raise ControlError("refused", "Playback is off. Set `playback = true` under `[web]`.")
        self.poll()
        window = self._window
        if window is None or window.id != transcript_id:
            raise unavailable("The sound of this sentence is no longer there.")
        part = window.samples[offset : offset + PART_SAMPLES]
        return {
            "data": base64.b64encode(part.astype("<i2").tobytes()).decode(),
            "samples": len(window.samples),
            "rate_hz": SAMPLE_RATE,
        }
