"""Microphone -> frames, through PortAudio reads, each made when its block is there.

No callback: under MemoryDenyWriteExecute cffi cannot make one, and a callback stream ends without
a word when its device vanishes. A read may say so, and may hang instead: the watchdog ends that.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from appliance.capture.frames import Framer, SampleClock
from appliance.capture.quiet import quiet
from appliance.capture.resample import FULL_SCALE, Resampler
from appliance.errors import DeviceError
from appliance.records import SAMPLE_RATE, Frame
from appliance.settings import CaptureSettings

LATENCY_S = 0.2
"""Asked of PortAudio: so long may the capture thread be held up before samples are lost."""

PATIENCE_S = 2.0
"""Without a block for so long, a read is left to find out what is wrong."""


@dataclass(frozen=True, slots=True)
class Device:
    """A microphone as PortAudio sees it."""

    index: int
    name: str
    channels: int
    rate_hz: float
    """The rate it prefers; not the only one, mostly."""
    default: bool


def list_microphones() -> list[Device]:
    """All microphones there are now, perhaps none; raises DeviceError without PortAudio."""
    return _microphones(_portaudio())


class Microphone:
    """Frames of 30 ms from the microphone that the settings name, opened.

    One thread reads; any thread may call `stop` and look at the public fields.
    """

    def __init__(self, settings: CaptureSettings) -> None:
        """Opens it; raises DeviceError."""
        self._portaudio = _portaudio()
        device = _choose(_microphones(self._portaudio), settings.device)
        self._stream, self.rate_hz, self._channels = _open(self._portaudio, device, settings)
        self._block = round(self.rate_hz * settings.block_ms / 1000)
        self._stopped = threading.Event()
        self.name = device.name
        self.description = device.name
        self.last_data_s = time.monotonic()
        """When sound last came, on time.monotonic()'s clock."""
        self.silent_s = 0.0
        """For so long nothing but zeros has come: muted, or not plugged in."""
        self.overflows = 0
        """How often samples were lost."""

    def frames(self) -> Iterator[Frame]:
        """Frames until `stop`; raises DeviceError when the device is lost."""
        framer, resampler, clock = Framer(), Resampler(self.rate_hz), SampleClock()
        heard = given = 0
        try:
            self._stream.start()
            while self._wait_for_block():
                data, overflowed = self._stream.read(self._block)
                now_s = time.monotonic() - self._stream.read_available / self.rate_hz
                heard += self._block
                lost = clock.follow(now_s, heard / self.rate_hz, lost=overflowed)
                if lost:
                    self.overflows += 1
                    framer.gap()
                sound = np.frombuffer(data, np.int16).reshape(-1, self._channels)
                self._watch(sound)
                samples = resampler.push(sound.astype(np.float32) / np.float32(FULL_SCALE))
                start_s = clock.began_s + given / SAMPLE_RATE
                given += len(samples)
                for frame in framer.push(samples, start_s):
                    if self._stopped.is_set():
                        return
                    yield frame
        except self._portaudio.PortAudioError as error:
            raise DeviceError(
                f"microphone {self.name!r}: expected sound, found {_reason(error)}: is it still "
                "plugged in? `roomscribe devices` shows what is there"
            ) from error

    def stop(self) -> None:
        """Makes `frames` end at once, unless the sound server is stuck. Any thread."""
        self._stopped.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(self._portaudio.PortAudioError), quiet():
            self._stream.abort()
            self._stream.close()

    def _wait_for_block(self) -> bool:
        """Waits until a read would not, or long enough for it to say why; False once stopped.

        A read cannot be interrupted, and a sound server may let one wait for a second and more.
        """
        deadline_s = time.monotonic() + PATIENCE_S
        while not self._stopped.is_set() and time.monotonic() < deadline_s:
            missing = self._block - self._stream.read_available
            if missing <= 0:
                break
            self._stopped.wait(max(0.005, missing / self.rate_hz))
        return not self._stopped.is_set()

    def _watch(self, sound: NDArray[np.int16]) -> None:
        """Notes that sound came, and whether it was any."""
        self.last_data_s = time.monotonic()
        silent_s = self.silent_s + len(sound) / self.rate_hz
        self.silent_s = 0.0 if sound.any() else silent_s


_opened_before = False


def _portaudio() -> ModuleType:
    """sounddevice with a fresh list of devices; raises DeviceError.

    PortAudio reads the list once when it is initialised, so a microphone plugged in later is only
    seen after that is done again.
    """
    global _opened_before  # noqa: PLW0603
    try:
        with quiet():
            import sounddevice

            if _opened_before:
                sounddevice._terminate()
                sounddevice._initialize()
            _opened_before = True
    except ImportError as error:
        raise DeviceError(
            f"expected the Python module sounddevice, found none ({error}): pip install sounddevice"
        ) from error
    except OSError as error:
        raise DeviceError(
            f"expected the library PortAudio, but {error}: install the package libportaudio2"
        ) from error
    except Exception as error:
        raise DeviceError(f"PortAudio does not start: {_reason(error)}") from error
    module: ModuleType = sounddevice
    return module


def _microphones(portaudio: ModuleType) -> list[Device]:
    default = portaudio.default.device[0]
    with contextlib.suppress(portaudio.PortAudioError, ValueError):
        default = portaudio.query_devices(kind="input")["index"]
    return [
        Device(
            index=one["index"],
            name=one["name"],
            channels=one["max_input_channels"],
            rate_hz=one["default_samplerate"],
            default=one["index"] == default,
        )
        for one in portaudio.query_devices()
        if one["max_input_channels"] > 0
    ]


def _choose(devices: list[Device], wanted: str) -> Device:
    """The device of that name, or the only one with that in its name; raises DeviceError."""
    if not devices:
        raise DeviceError(
            "expected a microphone, found none: plug one in, and see that this user is in the "
            "group audio"
        )
    if not wanted:
        return next((one for one in devices if one.default), devices[0])
    name = wanted.casefold()
    matches = [one for one in devices if one.name.casefold() == name]
    matches = matches or [one for one in devices if name in one.name.casefold()]
    if len(matches) == 1:
        return matches[0]
    there = ", ".join(repr(one.name) for one in matches or devices)
    found = f"found several: {there}" if matches else f"found {there}"
    raise DeviceError(
        f"capture.device: expected one microphone with {wanted!r} in its name, {found}: "
        "see `roomscribe devices`"
    )


def _open(
    portaudio: ModuleType, device: Device, settings: CaptureSettings
) -> tuple[Any, float, int]:
    """An input stream, its rate and channels: 16 kHz mono if the device can; raises DeviceError."""
    two = min(2, device.channels)
    rates = (float(SAMPLE_RATE), device.rate_hz)
    shapes = [(rate, channels) for rate in rates for channels in (1, two, device.channels)]
    trouble: Exception | None = None
    for rate_hz, channels in dict.fromkeys(shapes):
        try:
            with quiet():
                stream = portaudio.RawInputStream(
                    device=device.index,
                    samplerate=rate_hz,
                    channels=channels,
                    dtype="int16",
                    blocksize=round(rate_hz * settings.block_ms / 1000),
                    latency=LATENCY_S,
                )
        except portaudio.PortAudioError as error:
            trouble = error
        else:
            return stream, rate_hz, channels
    raise DeviceError(
        f"microphone {device.name!r}: expected 16-bit sound at 16000 or {device.rate_hz:.0f} Hz, "
        f"found {_reason(trouble)}: is another program using it?"
    )


def _reason(error: BaseException | None) -> str:
    """PortAudio's own words, on one line."""
    return " ".join(str(error.args[0] if error and error.args else error).split())
