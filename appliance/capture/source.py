"""Where sound comes from: the microphone, or a recording in its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, Self

from appliance.capture.microphone import Microphone
from appliance.capture.recorder import Recorder
from appliance.capture.recording import Recording
from appliance.config import CaptureSettings
from appliance.records import Frame


class Source(Protocol):
    """What every sound source does; one thread reads, any thread may call `stop`."""

    @property
    def description(self) -> str:
        """For people: the device's or the file's name."""
        ...

    @property
    def silence(self) -> str:
        """Why nothing is to be heard although sound comes, with the cure; empty: all is well."""
        ...

    @property
    def complaint(self) -> str:
        """What else is wrong with the sound, with the cure; empty when all is well."""
        ...

    def frames(self) -> Iterator[Frame]:
        """Frames of 30 ms until the source ends or `stop` is called; raises DeviceError."""
        ...

    def stop(self) -> None:
        """Makes `frames` end soon."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def open_source(settings: CaptureSettings, recorder: Recorder) -> Source:
    """The configured source, opened; raises DeviceError or AudioError.

    `recorder` reads the microphone; it serves again after an error, or when that is closed.
    """
    if settings.recording:
        return Recording(settings.recording, real_time=True)
    return Microphone(settings, recorder)
