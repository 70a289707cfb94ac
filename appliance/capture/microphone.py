"""Where sound comes from: a microphone, or a recording in its place.

The recorder's process gives what PortAudio reads; here it is resampled, dated and cut into frames,
and watched for a dead microphone and for distortion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from appliance.capture.clock import SampleClock
from appliance.capture.devices import MICROPHONE, PULSE, Device, Role, is_stream, stable_name
from appliance.capture.filters import Resampler
from appliance.capture.frames import Framer, Source
from appliance.capture.loudness import LAST_BIT, is_clipped, power_of
from appliance.capture.recorder import EndError, Recorder, StallError
from appliance.capture.recording import Recording
from appliance.config import CaptureSettings
from appliance.errors import ConfigError, DeviceError
from appliance.records import SAMPLE_RATE, EchoState, Frame
from appliance.system import read_secret

if TYPE_CHECKING:
    from appliance.capture.echo import EchoCanceller
    from appliance.capture.reference import PlayedSound, Reference

DEVICE_CREDENTIAL = "roomscribe.capture-device"
"""Name of systemd's credential with a stream's address."""
STREAM_FIX = "it is opened again; are the camera or the server, and the network, on?"
PULSE_FIX = "it is opened again; `pactl list short sources` lists the sound server's sources"
REMOVED_DB = 10.0
"""If our own loudspeaker becomes so much softer, speech over it is a person's."""
CLIPPED_AFTER_S, CLIPPED_AT_MOST_S = 5.0, 10.0
"""So much more clipped than clear sound is reported; it is taken back when the balance is even."""


class Levels:
    """Follows the sound of one microphone. One thread pushes, any thread looks."""

    def __init__(self, silence_s: float, channel: int = 0) -> None:
        """No sound for `silence_s` is a trouble; 0: never. `channel` is the chosen one, from 1, or
        0."""
        self._silence_s, self._channel = silence_s, channel
        self.alive = 0
        """The channel with the most sound, from 1; 0: none has any."""
        self._clipped_s = 0.0
        self.silent_s = 0.0
        """For so long no channel has had a sound: muted, or not plugged in."""
        self.distorted = False
        """For seconds a good part of the sound has been at full scale."""

    @property
    def silent(self) -> bool:
        """True while there has been no sound for long; false again with the first one."""
        return 0 < self._silence_s <= self.silent_s

    def push(self, sound: NDArray[np.int16], duration_s: float) -> None:
        """Takes note of the next samples as the device gave them, (n, channels)."""
        powers = [power_of(channel) for channel in sound.T]
        first = max(self._channel - 1, 0)
        heard = powers if not self._channel and len(powers) < 3 else powers[first : first + 1]
        self.silent_s = 0.0 if max(heard) > LAST_BIT**2 else self.silent_s + duration_s
        loudest = max(powers)
        self.alive = powers.index(loudest) + 1 if loudest > LAST_BIT**2 else 0
        balance_s = duration_s if is_clipped(sound) else -duration_s
        self._clipped_s = min(max(self._clipped_s + balance_s, 0.0), CLIPPED_AT_MOST_S)
        if not 0.0 < self._clipped_s < CLIPPED_AFTER_S:
            self.distorted = self._clipped_s > 0.0


def list_microphones(role: Role = MICROPHONE) -> list[Device]:
    """All microphones there are now, or loudspeakers, perhaps none; raises DeviceError without
    PortAudio."""
    with Recorder(noun=role.noun) as recorder:
        return recorder.devices(role)


def read_device(settings: CaptureSettings) -> str:
    """Return the device: from capture.device_file or systemd's credential, else capture.device.
    Raises DeviceError if the file cannot be read, which may be mended while the daemon runs."""
    if settings.device and not settings.device_file:
        return settings.device
    try:
        found = read_secret(
            settings.device_file, DEVICE_CREDENTIAL, "capture.device_file", "the stream's address"
        )
    except ConfigError as error:
        raise DeviceError(str(error)) from None
    return found or settings.device


class Microphone(Source):
    """Frames of 30 ms from the microphone that the settings name, opened.

    One thread reads; any thread may call `stop` and look at the public fields.
    """

    def __init__(
        self,
        settings: CaptureSettings,
        recorder: Recorder | None = None,
        played: PlayedSound | None = None,
    ) -> None:
        """Opens it, with `recorder` if there is one already; raises DeviceError. `played` is the
        reference if the settings have none."""
        self._recorder = recorder or Recorder()
        device = read_device(settings)
        opened = self._recorder.open(device, settings.channel)
        self.rate_hz, self._channels = opened.rate_hz, opened.channels
        # a network stream that has one channel has the chosen one
        channel = settings.channel if self._channels > 1 else 0
        self._levels = Levels(settings.silence_s, channel)
        self._weights = np.eye(self._channels)[channel - 1].tolist() if channel else None
        self._is_stream = is_stream(device)
        self.name = opened.name
        self._played = played
        self._reference, self._canceller = _open_reference(settings, played)
        self.description = stable_name(opened.name)

    @property
    def echo(self) -> EchoState | None:
        """What the echo canceller does; None without a reference."""
        if self._reference is None:
            return None
        if self._canceller is None:
            return EchoState(problem=self._reference.problem)
        return replace(self._canceller.state, problem=self._reference.problem)

    @property
    def silence(self) -> str:
        """Why there is no sound although samples come; empty when all is well."""
        if not self._levels.silent:
            return ""
        if self._levels.alive:
            return (
                f"microphone {self.name!r}: expected sound, found digital silence on the channel "
                f"that is heard: set capture.channel = {self._levels.alive}, which has sound"
            )
        return (
            f"microphone {self.name!r}: expected sound, found digital silence (at most the last "
            "bit changes): turn it on at its own switch, or unmute it and turn it up (`alsamixer`, "
            "F4, space)"
        )

    @property
    def trouble(self) -> str:
        """What is wrong with the sound; empty when all is well."""
        if not self._levels.distorted:
            return ""
        return (
            f"microphone {self.name!r}: expected sound below full scale, found it clipped for "
            "seconds: turn its gain down (`alsamixer`, F4)"
        )

    def frames(self) -> Iterator[Frame]:
        """Frames until `stop`; raises DeviceError when the device is lost."""
        stream = _Stream(self.rate_hz, self._weights)
        received = 0
        waiting: list[NDArray[np.int16]] = []
        try:
            while (block := self._recorder.read()) is not None:
                sound = np.frombuffer(block.data, np.int16).reshape(-1, self._channels)
                received += len(sound)
                self._levels.push(sound, len(sound) / self.rate_hz)
                waiting.append(sound)
                lost = stream.clock.follow(block.end_s, received / self.rate_hz, lost=block.lost)
                if lost is None:
                    continue
                if lost:
                    stream.framer.gap()
                yield from self._without_echo(stream.push(waiting))
        except (StallError, EndError) as error:
            yield from stream.push(waiting)
            known = STREAM_FIX if self._is_stream else error.fix
            fix = PULSE_FIX if self.name.startswith(PULSE) else known
            raise DeviceError(
                f"microphone {self.name!r}: expected sound, found {error}: {fix}"
            ) from error

    def stop(self) -> None:
        """Makes `frames` end at once. Any thread."""
        self._recorder.interrupt()

    def _without_echo(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        """The frames without what the loudspeakers play."""
        if self._reference is None or self._canceller is None:
            yield from frames
            return
        self._reference.poll()
        for frame in frames:
            yield from self._canceller.push(frame)
        if self._played:
            self._played.is_removed = (self._canceller.state.reduction_db or 0.0) >= REMOVED_DB

    def close(self) -> None:
        """End the recorder, and the reference's."""
        self._recorder.kill()
        if self._reference:
            self._reference.close()


def _open_reference(
    settings: CaptureSettings, played: PlayedSound | None
) -> tuple[Reference | None, EchoCanceller | None]:
    """The reference that the settings name, or what our own loudspeaker plays, and its canceller;
    imports neither without one.

    Without libspeexdsp there is a reference with a problem, and no canceller.
    """
    device = settings.reference.get("device", "")
    if not device and played is None:
        return None, None
    from appliance.capture.echo import EchoCanceller
    from appliance.capture.reference import Reference

    reference = Reference(device, None if device else played)
    try:
        return reference, EchoCanceller(reference.buffer)
    except DeviceError as error:
        reference.problem = str(error)
        return reference, None


class _Stream:
    """Blocks -> frames: resampled, dated, cut."""

    def __init__(self, rate_hz: float, weights: Sequence[float] | None = None) -> None:
        self.clock, self.framer = SampleClock(), Framer()
        self._resampler = Resampler(rate_hz, weights)
        self._given = 0

    def push(self, waiting: list[NDArray[np.int16]]) -> Iterator[Frame]:
        """The frames that these blocks complete; the list is emptied."""
        while waiting:
            samples = self._resampler.push(waiting.pop(0))
            start_s = self.clock.began_s + self._given / SAMPLE_RATE
            self._given += len(samples)
            yield from self.framer.push(samples, start_s)


def open_source(
    settings: CaptureSettings, recorder: Recorder, played: PlayedSound | None = None
) -> Source:
    """The configured source, opened; raises DeviceError or AudioError.

    `recorder` reads the microphone; it serves again after an error, or when that is closed.
    `played`: what our own loudspeaker plays.
    """
    if settings.recording:
        return Recording(settings.recording, real_time=True)
    return Microphone(settings, recorder, played)
