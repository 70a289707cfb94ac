"""The reference: what the loudspeakers play, read by a recorder of its own.

Nothing here waits: a reference that is missing or slow never delays the microphone.
"""

from __future__ import annotations

import json
import time

import numpy as np

from appliance.capture.devices import is_stream, public_name
from appliance.capture.echo import ReferenceBuffer
from appliance.capture.filters import Resampler
from appliance.capture.portaudio import SOUND, Message
from appliance.capture.recorder import EndError, Recorder
from appliance.errors import DeviceError

REOPEN_S = 5.0
"""Seconds between two attempts to open it."""
STALLED_S = 15.0
"""A sound card that delivers nothing for this long is opened again."""


class Reference:
    """Fills a buffer with the reference. One thread."""

    def __init__(self, device: str) -> None:
        self.buffer = ReferenceBuffer()
        self.problem = ""
        """Why there is no reference; empty when all is well."""
        self._device = device
        self._recorder = Recorder()
        self._resampler: Resampler | None = None
        self._channels = 1
        self._next_s = self._newest_s = 0.0
        self._requested = False

    def poll(self) -> None:
        """Take in what has arrived; open the reference if it is not."""
        now_s = time.monotonic()
        try:
            if not self._requested:
                if now_s < self._next_s:
                    return
                self._recorder.request_open(self._device)
                self._requested, self._newest_s = True, now_s
            for message in self._recorder.receive():
                self._newest_s = now_s
                self._take(message)
            if now_s > self._newest_s + STALLED_S and not is_stream(self._device):
                raise EndError(f"nothing for {STALLED_S:g} s")
        except (DeviceError, EndError) as error:
            self._lose(str(error), now_s)

    def close(self) -> None:
        """End the recorder."""
        self._recorder.kill()
        self._requested = False

    def _take(self, message: Message) -> None:
        if message.kind == SOUND and self._resampler:
            sound = np.frombuffer(message.data, np.int16).reshape(-1, self._channels)
            samples = self._resampler.push(sound)
            self.buffer.push(samples, message.end_s, lost=message.lost)
            return
        answer = json.loads(message.data)
        if opened := answer.get("opened"):
            self._channels = opened["channels"]
            self._resampler = Resampler(opened["rate_hz"])
            self.buffer.restart()
            self.problem = ""
        elif reason := answer.get("error") or answer.get("lost"):
            raise EndError(reason)

    def _lose(self, reason: str, now_s: float) -> None:
        self._recorder.kill()
        self._requested, self._resampler = False, None
        self._next_s = now_s + REOPEN_S
        self.problem = (
            f"capture.reference: {public_name(self._device)!r}: {reason}; the television is not "
            "removed from the sound until it works"
        )
