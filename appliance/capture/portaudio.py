"""The recorder's program: blocks of samples from PortAudio, written to a pipe as messages.

Nothing else touches PortAudio.

In a process of its own, since a PortAudio call may hang for ever, or crash, when a card vanishes or
a sound server stalls: then the process is killed, and another has a fresh list of devices. It
imports no numpy and so starts in less than 0.1 s.

No callback: under MemoryDenyWriteExecute cffi cannot make one, and a callback stream ends without
a word when its device vanishes.

Standard input: requests, JSON, one a line. Standard output: `Message`s, which the appliance takes
apart with an `Inbox`.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import json
import os
import signal
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from appliance.capture.devices import Device, choose, why_missing
from appliance.errors import DeviceError

HEADER = struct.Struct("=BBId")
"""Kind, whether samples were lost before it, bytes that follow, and end_s."""
WORDS, SOUND = 0, 1
"""JSON; a block of int16 samples, channels in turn, as the device gives them."""
SPEECH_RATE_HZ = 16_000
LATENCY_S = 0.2
"""Asked of PortAudio: so long may a read be held up before samples are lost."""
FRESH_S = 0.3
"""A list of devices that is not older need not be read again."""
PR_SET_PDEATHSIG = 1
SONAMES = {"portaudio": "libportaudio.so.2"}


class Message(NamedTuple):
    """What goes through the pipe."""

    kind: int
    data: bytes
    end_s: float
    """When the last sample was recorded, on time.monotonic()'s clock, which all processes share."""
    lost: bool = False
    """True when samples were lost before it."""

    def packed(self) -> bytes:
        """As it goes through the pipe."""
        return HEADER.pack(self.kind, self.lost, len(self.data), self.end_s) + self.data


class Inbox:
    """Bytes in whatever number a pipe gives them -> messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def push(self, data: bytes) -> None:
        """Takes what the pipe gave."""
        self._bytes += data

    def next(self) -> Message | None:
        """The oldest message that has come to its end; None when there is none."""
        if len(self._bytes) < HEADER.size:
            return None
        kind, lost, length, end_s = HEADER.unpack_from(self._bytes)
        end = HEADER.size + length
        if len(self._bytes) < end:
            return None
        data = bytes(self._bytes[HEADER.size : end])
        del self._bytes[:end]
        return Message(kind, data, end_s, bool(lost))


def main() -> NoReturn:
    """Answers requests until the parent ends. It ends by a signal, never by clearing up."""
    _die_with_parent()
    output = os.dup(1)
    for chatty in (1, 2):  # ALSA has much to say about devices that are not there
        os.dup2(os.open(os.devnull, os.O_WRONLY), chatty)
    recorder = _Recorder(output)
    with contextlib.suppress(BrokenPipeError):
        for request in sys.stdin.buffer:
            recorder.answer(json.loads(request))
    os._exit(0)


@contextlib.contextmanager
def _soname_known() -> Iterator[None]:
    """sounddevice asks ldconfig for the library, which knows it only when apt has ended; the
    loader finds it by its own name before, when the package's daemon is started."""
    find = ctypes.util.find_library
    ctypes.util.find_library = lambda name: find(name) or SONAMES.get(name)
    try:
        yield
    finally:
        ctypes.util.find_library = find


class _Recorder:
    """PortAudio, and the pipe that takes what it gives."""

    def __init__(self, output: int) -> None:
        self._output = output
        self._portaudio: ModuleType | None = None
        self._listed_s = 0.0
        self._say(started=True)
        with contextlib.suppress(DeviceError):  # raised again by the first request
            self._load()

    def answer(self, request: dict[str, Any]) -> None:
        """Does what is asked; an error is an answer."""
        try:
            portaudio = self._load()
            devices = _microphones(portaudio)
            if request["do"] == "list":
                self._say(devices=[asdict(device) for device in devices])
                return
            self._record(portaudio, devices, request["device"], request["block_ms"])
        except DeviceError as error:
            self._say(error=str(error))
        except BrokenPipeError:
            raise
        except Exception as error:
            self._say(error=f"PortAudio does not work: {_reason(error)}")

    def _load(self) -> ModuleType:
        """sounddevice with a fresh list of devices; raises DeviceError."""
        try:
            with _soname_known():
                import sounddevice

            if self._portaudio and time.monotonic() > self._listed_s + FRESH_S:
                sounddevice._terminate()
                sounddevice._initialize()
        except ImportError as error:
            raise DeviceError(
                f"expected the Python module sounddevice, found none ({error}): "
                "pip install sounddevice"
            ) from error
        except OSError as error:
            raise DeviceError(
                f"expected the library PortAudio, but {error}: install the package libportaudio2"
            ) from error
        except Exception as error:
            raise DeviceError(
                f"PortAudio does not start: {_reason(error)}: is the sound server running?"
            ) from error
        self._portaudio, self._listed_s = sounddevice, time.monotonic()
        return self._portaudio

    def _record(
        self, portaudio: ModuleType, devices: list[Device], wanted: str, block_ms: int
    ) -> None:
        """Sends blocks for ever. Raises DeviceError when there is nothing to open."""
        try:
            device = choose(devices, wanted)
        except DeviceError:
            if cause := why_missing(wanted):
                raise DeviceError(cause) from None
            raise
        stream, rate_hz, channels = _open(portaudio, device, wanted, block_ms)
        block = round(rate_hz * block_ms / 1000)
        try:
            stream.start()
            self._say(opened={"name": device.name, "rate_hz": rate_hz, "channels": channels})
            while True:
                data, lost = stream.read(block)
                end_s = time.monotonic() - stream.read_available / rate_hz
                self._write(Message(SOUND, bytes(data), end_s, bool(lost)))
        except portaudio.PortAudioError as error:
            self._say(lost=_reason(error))
            os._exit(0)  # closing the stream might hang

    def _say(self, **words: object) -> None:
        self._write(Message(WORDS, json.dumps(words).encode(), time.monotonic()))

    def _write(self, message: Message) -> None:
        left = message.packed()
        while left:
            left = left[os.write(self._output, left) :]


def _die_with_parent() -> None:
    """Ignores signals that stop the parent, which gets them too, and ends when the parent ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    parent = int(sys.argv[1])
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _microphones(portaudio: ModuleType) -> list[Device]:
    default = portaudio.default.device[0]
    with contextlib.suppress(portaudio.PortAudioError, ValueError):
        default = portaudio.query_devices(kind="input")["index"]
    return [
        Device(
            index=found["index"],
            name=found["name"],
            channels=found["max_input_channels"],
            rate_hz=found["default_samplerate"],
            default=found["index"] == default,
        )
        for found in portaudio.query_devices()
        if found["max_input_channels"] > 0
    ]


def _open(
    portaudio: ModuleType, device: Device, wanted: str, block_ms: int
) -> tuple[Any, float, int]:
    """An input stream, its rate and channels: 16 kHz mono if the device can; raises DeviceError.

    PortAudio makes 16-bit samples of whatever the device has.
    """
    two = min(2, device.channels)
    rates = (float(SPEECH_RATE_HZ), device.rate_hz)
    shapes = [(rate, channels) for rate in rates for channels in (1, two, device.channels)]
    trouble: Exception | None = None
    for rate_hz, channels in dict.fromkeys(shapes):
        try:
            stream = portaudio.RawInputStream(
                device=device.index,
                samplerate=rate_hz,
                channels=channels,
                dtype="int16",
                blocksize=round(rate_hz * block_ms / 1000),
                latency=LATENCY_S,
            )
        except portaudio.PortAudioError as error:
            trouble = error
        else:
            return stream, rate_hz, channels
    if cause := why_missing(wanted or device.name):
        raise DeviceError(cause)
    reason = _reason(trouble)
    taken = "busy" in reason.lower() or "unavailable" in reason.lower()
    raise DeviceError(
        f"microphone {device.name!r}: expected 16-bit sound at 16000 or {device.rate_hz:.0f} Hz, "
        f"found {reason}: "
        + ("end the program that is using it" if taken else "plug it in again")
        + ", or choose another one: `roomscribe devices`"
    )


def _reason(error: BaseException | None) -> str:
    """PortAudio's own words, or those of the sound system below it, on one line."""
    words = list(error.args) if error else []
    below = words[2][2] if len(words) > 2 else ""
    return " ".join(str(below or (words[0] if words else error)).split())


if __name__ == "__main__":
    main()
