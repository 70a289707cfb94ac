"""The reference: what the loudspeakers play, read by a recorder of its own, or what our own
loudspeaker plays, before it sounds.

Nothing here waits: a reference that is missing or slow never delays the microphone.
"""

import json
import time
from collections import deque
from collections.abc import Iterator

import numpy as np

from appliance.capture.devices import is_stream, public_name
from appliance.capture.echo import ReferenceBuffer
from appliance.capture.filters import Resampler
from appliance.capture.portaudio import FIELDS, SOUND, Message
from appliance.capture.recorder import EndError, Recorder
from appliance.errors import DeviceError

REOPEN_S = 5.0
"""Seconds between two attempts to open it."""
MOST_PLAYED = 500
"""Blocks of our own loudspeaker that wait while the microphone is not read: 10 s."""
HEARD_S = 0.5
"""A microphone still hears what was played this long ago: the device's buffer, and the echo."""
STALLED_S = 15.0
"""A sound card that delivers nothing for this long is opened again."""


class PlayedSound:
    """What our own loudspeaker plays, in place of a recorder. One thread plays, one reads."""

    def __init__(self) -> None:
        self._messages = deque[Message](maxlen=MOST_PLAYED)
        self.is_removed = False
        """True once it is removed from the microphone's sound well."""
        self._until_s = 0.0

    def begin(self, rate_hz: float, channels: int) -> None:
        """Take in that the device was opened."""
        opened = {"rate_hz": rate_hz, "channels": channels, "resumed": True}
        self._messages.append(Message(FIELDS, json.dumps({"opened": opened}).encode(), 0.0))

    def push(self, block: Message, *, speaks: bool) -> None:
        """Take in a block that the device has taken, with the time when it has sounded; `speaks`
        if words may be in it."""
        self._messages.append(block)
        if speaks:
            self._until_s = block.end_s

    def is_heard(self, start_s: float) -> bool:
        """Return True if speech that began then may be ours: it played, and is not removed well."""
        return not self.is_removed and start_s < self._until_s + HEARD_S

    def receive(self) -> Iterator[Message]:
        """Yield what has come since the last call."""
        while self._messages:
            yield self._messages.popleft()

    def request_open(self, device: str) -> None:
        """Do nothing: it is opened when there is something to play."""

    def kill(self) -> None:
        """Do nothing: it goes on without a listener."""


class Reference:
    """Fills a buffer with the reference. One thread."""

    def __init__(self, device: str, played: PlayedSound | None = None) -> None:
        """`played` replaces the device."""
        self.buffer = ReferenceBuffer()
        self.problem = ""
        """Why there is no reference; empty when all is well."""
        self._device = device
        self._recorder = played or Recorder()
        self._may_be_silent = bool(played) or is_stream(device)
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
            if now_s > self._newest_s + STALLED_S and not self._may_be_silent:
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
            self.buffer.restart(resumed="resumed" in opened)
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
