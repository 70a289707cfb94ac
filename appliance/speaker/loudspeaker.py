"""The loudspeaker: plays answers, announcements and a ring one after the other.

A process of its own plays, as one records: a device that hangs or vanishes ends that process alone.
To stop a sound it is killed, which empties the device's buffer at once.
"""

import enum
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import soxr

from appliance.capture import (
    LOUDSPEAKER,
    SOUND,
    EndError,
    Opened,
    PlayedSound,
    Recorder,
    StallError,
)
from appliance.config import SpeakerSettings
from appliance.errors import DeviceError
from appliance.records import Listener

log = logging.getLogger("roomscribe.speaker")

BLOCK_S, AHEAD_S = 0.02, 0.12
"""Length of a part that is sent to the process, and how much may wait there for the device."""
AHEAD_BYTES = 32_000
"""The same in bytes: its pipe takes 64 kB, and more would wait for a device that hangs."""
MOST_BYTES = 16 << 20
"""Of a sound that may wait here: Home Assistant sends a whole answer at once, 380 s at most (22,050
Hz, mono)."""
STARVED_S = 10.0
"""If no sound comes for this long, the sound has failed."""
STALLED_S = 2.5
"""If the device takes nothing for this long, it hangs."""
MOST_WAITING = 8
LOWERED = 0.2
"""Share of the amplitude while a person speaks (-14 dB)."""
REOPEN_S = 5.0
"""Seconds between two attempts to open a loudspeaker that was lost."""
IDLE_S, PROBE_HZ = 1.0, 48_000


class Kind(enum.IntEnum):
    """What a sound is: the lowest goes first. Only a ring pauses for another sound."""

    ANSWER = 0
    ANNOUNCEMENT = 1
    RING = 2


class Ending(enum.Enum):
    """How a sound ended."""

    PLAYED = "played"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class SpokenSound:
    """A sound to play, from `Loudspeaker.begin`. Any thread."""

    rate_hz: int
    channels: int
    kind: Kind
    done: Callable[[Ending], None]
    wake: Callable[[], None]
    """Tells the loudspeaker that there is something to do."""
    sound: bytearray = field(default_factory=bytearray)
    """What is still to be played."""
    is_whole: bool = False
    is_stopped: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def write(self, pcm: bytes) -> bool:
        """Add int16 samples with interleaved channels. Return False, and take none of them, while
        MOST_BYTES wait."""
        with self.lock:
            if len(self.sound) > MOST_BYTES:
                return False
            self.sound += pcm
        self.wake()
        return True

    def end(self) -> None:
        """Say that no more sound comes: `done` is called once all has sounded. A ring begins again
        instead, until it is stopped."""
        self.is_whole = True
        self.wake()

    def stop(self) -> None:
        """End the sound now, also if it waits; `done` is called with STOPPED."""
        self.is_stopped = True
        self.wake()

    def take(self, duration_s: float) -> bytes:
        """Return the next samples, at most so many seconds; empty without any."""
        with self.lock:
            count = min(round(duration_s * self.rate_hz), len(self.sound) // self._frame)
            part = bytes(self.sound[: count * self._frame])
            del self.sound[: len(part)]
            if self.kind is Kind.RING:  # what was played comes round again
                self.sound += part
        return part

    @property
    def is_over(self) -> bool:
        """True if nothing is left and nothing more comes."""
        return self.is_whole and len(self.sound) < self._frame

    @property
    def _frame(self) -> int:
        return 2 * self.channels


class Loudspeaker(Listener):
    """Plays sounds. One thread calls `run`; any thread may call the other methods."""

    def __init__(
        self,
        settings: SpeakerSettings,
        *,
        complain: Callable[[str | None], object] = lambda _: None,
        played: PlayedSound | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """`complain` gets why there is no loudspeaker, or None; `played` all that is played."""
        self._settings, self._complain, self._played = settings, complain, played
        self._recorder = recorder or Recorder(noun=LOUDSPEAKER.noun)
        # the cube of the volume, as PulseAudio's (pulse/volume.c, pa_sw_volume_to_linear)
        self._gain = (settings.volume / 100) ** 3
        self._lowered = self._stopping = False
        self._lock, self._woken = threading.Lock(), threading.Event()
        self._sounds: list[SpokenSound] = []
        self._current: SpokenSound | None = None
        self._problem: str | None = None
        """Why there is no loudspeaker; None before the first attempt to open it."""
        self._reopen_s = 0.0

    @property
    def available(self) -> bool:
        """False while the device is missing. A sound is tried all the same."""
        return not self._problem

    def begin(
        self, rate: int, channels: int, kind: Kind, done: Callable[[Ending], None]
    ) -> SpokenSound:
        """Return a sound to play in its turn, of int16 samples. `done` is called once, from the
        loudspeaker's thread, or from this one if too many wait."""
        sound = SpokenSound(rate, channels, kind, done, self._wake)
        with self._lock:
            is_full = self._stopping or len(self._sounds) >= MOST_WAITING
            if not is_full:
                self._sounds.append(sound)
                self._sounds.sort(key=lambda one: one.kind)
        if is_full:
            done(Ending.FAILED)
        self._wake()
        return sound

    def on_speech(self, speaking: bool) -> None:
        """Play softly while somebody speaks, if our own voice does not count as that."""
        self._lowered = speaking and self._played is not None and self._played.is_removed

    def run(self, heartbeat: Callable[[], None]) -> None:
        """Play until `stop`."""
        try:
            while not self._stopping:
                heartbeat()
                self._woken.clear()
                if sound := self._next():
                    self._play_next(sound, heartbeat)
                else:
                    self._rest()
        finally:
            self._recorder.kill()
            for sound in self._sounds:
                sound.done(Ending.STOPPED)

    def stop(self) -> None:
        """End `run` and all sounds."""
        self._stopping = True
        self._wake()

    def _wake(self) -> None:
        """Let the thread look what there is to do."""
        self._woken.set()
        with self._lock:  # or it would end the opening for the next sound
            if self._current and self._must_leave(self._current):
                self._recorder.interrupt()

    def _next(self) -> SpokenSound | None:
        """Return the sound whose turn it is, after the end of those that were stopped."""
        with self._lock:
            stopped = [sound for sound in self._sounds if sound.is_stopped]
            self._sounds = [sound for sound in self._sounds if not sound.is_stopped]
            self._current = next(iter(self._sounds), None)
            self._recorder.resume()
        for sound in stopped:
            sound.done(Ending.STOPPED)
        return self._current

    def _must_leave(self, sound: SpokenSound) -> bool:
        """True if a sound is to be silent now: stopped, or a ring while another sound waits."""
        first = next(iter(self._sounds), sound)
        waits = sound.kind is Kind.RING and first.kind is not Kind.RING
        return self._stopping or sound.is_stopped or waits

    def _rest(self) -> None:
        """Wait for something to play, with a process ready; look for a lost loudspeaker."""
        with suppress(DeviceError):
            self._recorder.start()
        if self._problem != "" and time.monotonic() >= self._reopen_s:
            try:
                self._open(PROBE_HZ)
            except DeviceError as error:
                if not self._stopping:
                    self._lose(str(error))
            self._recorder.kill()
        self._woken.wait(IDLE_S)

    def _play_next(self, sound: SpokenSound, heartbeat: Callable[[], None]) -> None:
        """Play a sound, and forget it if it has ended. One that must leave stays, until it goes on
        or is forgotten because it was stopped."""
        try:
            self._play(sound, heartbeat)
            ending = Ending.PLAYED
        except (DeviceError, EndError, StallError) as error:
            self._recorder.kill()
            if self._must_leave(sound):
                return
            lost = f"loudspeaker: expected to play, found {error}: {EndError.fix}"
            self._lose(str(error) if isinstance(error, DeviceError) else lost)
            ending = Ending.FAILED
        if not self._must_leave(sound):
            with self._lock:
                self._sounds.remove(sound)
            sound.done(ending)

    def _play(self, sound: SpokenSound, heartbeat: Callable[[], None]) -> None:
        """Play a sound until it has ended or must leave. Raises DeviceError, EndError and
        StallError."""
        opened = self._open(sound.rate_hz)
        shape = _Shaper(sound, opened)
        most = min(2 * opened.channels * opened.rate_hz * AHEAD_S, AHEAD_BYTES)
        ahead, moved_s, ended = 0, time.monotonic(), False
        while not self._must_leave(sound):
            heartbeat()
            self._woken.clear()
            is_last = not ended and sound.is_over
            if is_last or (ahead < most and (part := sound.take(BLOCK_S))):
                gain = self._gain * (LOWERED if self._lowered else 1.0)
                if data := shape.push(b"" if is_last else part, gain, last=is_last):
                    self._recorder.send(data)
                    ahead += len(data)
                if is_last:
                    self._recorder.send(b"")
                ended, moved_s = is_last, time.monotonic()
                continue
            limit_s = STALLED_S if ahead or ended else STARVED_S
            if time.monotonic() > moved_s + limit_s:
                raise StallError(f"nothing for {limit_s:g} s")
            if not ahead and not ended:
                self._woken.wait(BLOCK_S)
            elif message := self._recorder.next(IDLE_S):
                moved_s = time.monotonic()
                if message.kind != SOUND:
                    return
                ahead -= len(message.data)
                if self._played:
                    self._played.push(message, speaks=sound.kind is not Kind.RING)
        self._recorder.kill()

    def _open(self, rate_hz: int) -> Opened:
        """Open the device. Raises DeviceError."""
        opened = self._recorder.play(self._settings.device, rate_hz)
        if self._problem:
            log.info("the loudspeaker %s is back", opened.name)
        self._problem = ""
        self._complain(None)
        if self._played:
            self._played.begin(opened.rate_hz, opened.channels)
        return opened

    def _lose(self, problem: str) -> None:
        """Set and log why there is no loudspeaker."""
        self._reopen_s = time.monotonic() + REOPEN_S
        if problem != self._problem:
            log.warning("%s", problem)
        self._problem = problem
        self._complain(problem)


def play_once(settings: SpeakerSettings, pcm: bytes, rate_hz: int) -> str:
    """Play int16 mono samples, and wait until they have sounded. Return "", or what is wrong."""
    problems = list[str | None]()
    speaker = Loudspeaker(settings, complain=problems.append)
    sound = speaker.begin(rate_hz, 1, Kind.ANSWER, lambda _: speaker.stop())
    sound.write(pcm)
    sound.end()
    speaker.run(lambda: None)
    return problems[-1] or ""


class _Shaper:
    """Turns a sound into what its device takes."""

    def __init__(self, sound: SpokenSound, opened: Opened) -> None:
        self._channels, self._outputs, self._stream = sound.channels, opened.channels, None
        if opened.rate_hz != sound.rate_hz:
            self._stream = soxr.ResampleStream(sound.rate_hz, opened.rate_hz, 1, dtype="float32")

    def push(self, part: bytes, gain: float, *, last: bool = False) -> bytes:
        """Return the next samples for the device: the channels' mean, in all of its channels."""
        sound = np.frombuffer(part, "<i2").reshape(-1, self._channels)
        mono = sound.mean(axis=1, dtype=np.float32) * np.float32(gain)
        if self._stream is not None:
            mono = self._stream.resample_chunk(mono, last=last)
        samples = np.rint(mono).clip(-32768, 32767).astype(np.int16)
        return np.repeat(samples, self._outputs).tobytes()
