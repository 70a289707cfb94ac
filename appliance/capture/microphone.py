"""Microphone -> frames: the blocks of a recorder's process, resampled, dated and cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import numpy as np
from numpy.typing import NDArray

from appliance.capture.devices import Device, stable_name
from appliance.capture.frames import Framer, SampleClock
from appliance.capture.levels import Levels
from appliance.capture.recorder import EndError, Recorder, StallError
from appliance.capture.resample import FULL_SCALE, Resampler
from appliance.config import CaptureSettings
from appliance.errors import DeviceError
from appliance.records import SAMPLE_RATE, Frame


def list_microphones() -> list[Device]:
    """All microphones there are now, perhaps none; raises DeviceError without PortAudio."""
    with Recorder() as recorder:
        return recorder.devices()


class Microphone:
    """Frames of 30 ms from the microphone that the settings name, opened.

    One thread reads; any thread may call `stop` and look at the public fields.
    """

    def __init__(self, settings: CaptureSettings, recorder: Recorder | None = None) -> None:
        """Opens it, with `recorder` if there is one already; raises DeviceError."""
        self._recorder = recorder or Recorder()
        opened = self._recorder.open(settings.device, settings.block_ms)
        self.rate_hz, self._channels = opened.rate_hz, opened.channels
        self._levels = Levels(settings.silence_s)
        self.name = opened.name
        self.description = stable_name(opened.name)
        self.overflows = 0
        """How often samples were lost."""

    @property
    def silence(self) -> str:
        """Why nothing is to be heard although sound comes; empty when all is well."""
        if not self._levels.silent:
            return ""
        return (
            f"microphone {self.name!r}: expected sound, found nothing but zeros: turn it on at its "
            "own switch, or unmute it and turn it up (`alsamixer`, F4, space)"
        )

    @property
    def complaint(self) -> str:
        """What is wrong with the sound; empty when all is well."""
        if not self._levels.distorted:
            return ""
        return (
            f"microphone {self.name!r}: expected sound below full scale, found it clipped for "
            "seconds: turn its gain down (`alsamixer`, F4)"
        )

    def frames(self) -> Iterator[Frame]:
        """Frames until `stop`; raises DeviceError when the device is lost."""
        stream = _Stream(self.rate_hz)
        heard = 0
        waiting: list[NDArray[np.int16]] = []
        try:
            while (block := self._recorder.read()) is not None:
                sound = np.frombuffer(block.data, np.int16).reshape(-1, self._channels)
                heard += len(sound)
                self._levels.push(sound, len(sound) / self.rate_hz)
                waiting.append(sound)
                lost = stream.clock.follow(block.heard_s, heard / self.rate_hz, lost=block.lost)
                if lost is None:
                    continue
                if lost:
                    self.overflows += 1
                    stream.framer.gap()
                yield from stream.push(waiting)
        except StallError as error:
            yield from stream.push(waiting)
            raise DeviceError(
                f"microphone {self.name!r}: expected sound, found {error}: the sound server or the "
                "card hangs; it is opened again as soon as it answers"
            ) from error
        except EndError as error:
            yield from stream.push(waiting)
            raise DeviceError(
                f"microphone {self.name!r}: expected sound, found {error}: is it still plugged in? "
                "`roomscribe devices` shows what is there"
            ) from error

    def stop(self) -> None:
        """Makes `frames` end at once. Any thread."""
        self._recorder.interrupt()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._recorder.kill()


class _Stream:
    """Blocks -> frames: resampled, dated, cut."""

    def __init__(self, rate_hz: float) -> None:
        self.clock, self.framer = SampleClock(), Framer()
        self._resampler = Resampler(rate_hz)
        self._given = 0

    def push(self, waiting: list[NDArray[np.int16]]) -> Iterator[Frame]:
        """The frames that these blocks complete; the list is emptied."""
        while waiting:
            sound = waiting.pop(0).astype(np.float32) / np.float32(FULL_SCALE)
            samples = self._resampler.push(sound)
            start_s = self.clock.began_s + self._given / SAMPLE_RATE
            self._given += len(samples)
            yield from self.framer.push(samples, start_s)
