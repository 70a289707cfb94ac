"""The recorder process: writes blocks of samples from PortAudio to a pipe as messages, or plays
those from its standard input.

Only this module uses PortAudio. It runs in its own process because a PortAudio call may hang
forever or crash when a card vanishes or a sound server stalls. Then the process is killed, and a
new one has a fresh list of devices. It does not import numpy, and so starts in less than 0.1 s.

It uses no callback: cffi cannot create one under MemoryDenyWriteExecute, and a callback stream ends
silently when its device vanishes.

Standard input: requests in JSON, one per line; behind one to play, the sound in parts, each after
its length (`LENGTH`). Standard output: `Message`s, which the appliance reads with an `Inbox`.
"""

import contextlib
import ctypes
import importlib
import json
import os
import struct
import sys
import time
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from appliance.capture.devices import (
    LOUDSPEAKER,
    MICROPHONE,
    PULSE,
    Device,
    Role,
    choose,
    find_port,
    is_stream,
    why_missing,
)
from appliance.errors import DeviceError
from appliance.process import begin

HEADER = struct.Struct("=BBId")
"""Kind, whether samples were lost before it, length of the data in bytes, end_s."""
LENGTH = struct.Struct("=I")
"""Bytes of a part of the sound to play; 0: that was all."""
FIELDS, SOUND = 0, 1
"""A JSON object; a block of int16 samples with interleaved channels, as the device records or has
taken them to play."""
FOLLOWS = bytes((SOUND, False))
"""How a block begins before which no samples were lost."""
SPEECH_RATE_HZ = 16_000
BLOCK_S = 0.03
"""Length of one read."""
LATENCY_S = 0.2
"""Requested of PortAudio: if a read is later than this, samples are lost."""
PLAY_LATENCY_S = 0.1
"""The same for playing, and so the most sound that is lost when the loudspeaker is stopped."""
FRESH_S = 0.3
"""Age up to which the list of devices is not read again."""
PULSE_DEVICE = "pulse"
"""ALSA's plugin for PulseAudio, which PipeWire serves, too."""
SONAMES = {"portaudio": "libportaudio.so.2"}
ALSA_SONAME = "libasound.so.2"


class Message(NamedTuple):
    """A message in the pipe."""

    kind: int
    data: bytes
    end_s: float
    """Time of the last sample on time.monotonic()'s clock, which all processes share."""
    lost: bool = False
    """True if samples were lost before it."""

    def pack(self) -> bytes:
        """Return the message as bytes for the pipe."""
        return HEADER.pack(self.kind, self.lost, len(self.data), self.end_s) + self.data


class Inbox:
    """Splits a stream of bytes into messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def push(self, data: bytes) -> None:
        """Append bytes from the pipe."""
        self._bytes += data

    def next(self) -> Message | None:
        """Return the oldest complete message; None without one."""
        if len(self._bytes) < HEADER.size:
            return None
        kind, lost, length, end_s = HEADER.unpack_from(self._bytes)
        end = HEADER.size + length
        if len(self._bytes) < end:
            return None
        data = bytes(self._bytes[HEADER.size : end])
        del self._bytes[:end]
        return Message(kind, data, end_s, bool(lost))

    def join(self, block: Message) -> Message:
        """Return a block together with those that directly follow it and are complete."""
        parts = [block.data]
        while self._bytes.startswith(FOLLOWS) and (more := self.next()) is not None:
            parts.append(more.data)
            block = block._replace(end_s=more.end_s)
        return block._replace(data=b"".join(parts))


def main() -> NoReturn:
    """Answer requests until the parent ends or a signal comes; never clean up."""
    recorder = _Recorder(begin())
    with contextlib.suppress(BrokenPipeError):
        for request in sys.stdin.buffer:
            recorder.answer(json.loads(request))
    os._exit(0)


def _import_sounddevice() -> ModuleType:
    """Return sounddevice, which here finds PortAudio by its soname. It imports ctypes.util, 1.2 MB,
    for ldconfig, which lists the library only when apt has ended, after the daemon was started."""
    finder = sys.modules["ctypes.util"] = ModuleType("ctypes.util")
    vars(finder)["find_library"] = SONAMES.get
    try:
        return importlib.import_module("sounddevice")
    finally:
        del sys.modules["ctypes.util"]


def _free_plugins() -> None:
    """Have ALSA unload the plugins that no device uses. The list of devices loads them all, for
    some 70 libraries; ALSA loads them again when a device needs them."""
    with contextlib.suppress(OSError, AttributeError):  # PortAudio without ALSA
        ctypes.CDLL(ALSA_SONAME).snd_config_update_free_global()


class _Recorder:
    """PortAudio, and the pipe for its samples."""

    def __init__(self, output: int) -> None:
        self._output = output
        self._portaudio: ModuleType | None = None
        self._listed_s = 0.0
        self._send(started=True)
        with contextlib.suppress(DeviceError):  # raised again by the first request
            self._load()

    def answer(self, request: dict[str, Any]) -> None:
        """Execute a request; send an error as the answer."""
        try:
            if request["do"] == "play":
                self._play(**request)
                return
            if is_stream(request.get("device", "")):
                self._record_stream(request["device"], request["channel"])
            portaudio = self._load()
            role = LOUDSPEAKER if request.get("kind") == LOUDSPEAKER.kind else MICROPHONE
            devices = _find_devices(portaudio, role)
            if request["do"] == "list":
                self._send(devices=[device._asdict() for device in devices])
                return
            self._record(portaudio, devices, request["device"], request["channel"])
        except DeviceError as error:
            self._send(error=str(error))
        except BrokenPipeError:
            raise
        except Exception as error:
            self._send(error=f"PortAudio does not work: {_reason(error)}")

    def _load(self) -> ModuleType:
        """Return sounddevice with a fresh list of devices. Raises DeviceError."""
        try:
            sounddevice = _import_sounddevice()
            if self._portaudio and time.monotonic() > self._listed_s + FRESH_S:
                sounddevice._terminate()
                sounddevice._initialize()
            _free_plugins()
        except Exception as error:
            why = f"PortAudio does not start: {_reason(error)}: is the sound server running?"
            if isinstance(error, ImportError):
                why = f"the Python module sounddevice is missing ({error}): pip install sounddevice"
            elif isinstance(error, OSError):
                why = f"PortAudio cannot be loaded ({error}): install the package libportaudio2"
            raise DeviceError(why) from error
        self._portaudio, self._listed_s = sounddevice, time.monotonic()
        return self._portaudio

    def _record(
        self, portaudio: ModuleType, devices: list[Device], wanted: str, channel: int
    ) -> None:
        """Send blocks until the device is lost. Raises DeviceError if it cannot be opened."""
        device = _choose(devices, wanted, MICROPHONE)
        stream, rate_hz, channels = _open(portaudio, device, wanted, channel)
        block = round(rate_hz * BLOCK_S)
        try:
            stream.start()
            self._send(opened={"name": device.name, "rate_hz": rate_hz, "channels": channels})
            while True:
                data, lost = stream.read(block)
                end_s = time.monotonic() - stream.read_available / rate_hz
                self._write(Message(SOUND, bytes(data), end_s, bool(lost)))
        except portaudio.PortAudioError as error:
            self._send(lost=_reason(error))
            os._exit(0)  # closing the stream might hang

    def _record_stream(self, device: str, channel: int) -> NoReturn:
        """Send blocks until the stream ends. Raises DeviceError if it cannot be opened."""
        from appliance.capture.stream import Stream  # 40 ms of imports

        stream = Stream(device, channel)
        rate_hz, channels = stream.rate_hz, stream.channels
        block = round(rate_hz * BLOCK_S) * 2 * channels
        self._send(opened={"name": stream.name, "rate_hz": rate_hz, "channels": channels})
        try:
            while True:
                data = stream.read(block)
                waiting_s = stream.waiting_bytes() / 2 / channels / rate_hz
                self._write(Message(SOUND, data, time.monotonic() - waiting_s))
        except DeviceError as error:
            self._send(lost=str(error))
            os._exit(0)

    def _play(self, device: str, rate_hz: float, **_: object) -> None:
        """Play the sound that follows; send each part back when the device has taken it, with the
        time when it will have sounded. Raises DeviceError if the device cannot be opened."""
        sink = device.removeprefix(PULSE) if device.startswith(PULSE) else ""
        if device.startswith(PULSE):  # libpulse reads the sink's name, when ALSA's plugin opens it
            os.environ["PULSE_SINK"], device = sink, PULSE_DEVICE
        portaudio, end_s = self._load(), 0.0
        found = _choose(_find_devices(portaudio, LOUDSPEAKER), device, LOUDSPEAKER)
        found = found._replace(name=sink or found.name)
        counts = (1, min(2, found.channels), found.channels)
        shapes = [(rate, channels) for rate in (rate_hz, found.rate_hz) for channels in counts]
        output, rate_hz, channels = _open_shape(portaudio, found, device, shapes, LOUDSPEAKER)
        try:
            output.start()
            self._send(opened={"name": found.name, "rate_hz": rate_hz, "channels": channels})
            while length := LENGTH.unpack(_read_input(LENGTH.size))[0]:
                data, now_s = _read_input(length), time.monotonic()
                lost = output.write(data)  # whether the device ran out of sound before it
                end_s = (now_s if lost or not end_s else end_s) + length / 2 / channels / rate_hz
                self._write(Message(SOUND, data, end_s, bool(lost)))
            output.stop()  # once all has sounded
            output.close()
            self._send(ended=True)
        except portaudio.PortAudioError as error:
            self._send(lost=_reason(error))
            os._exit(0)

    def _send(self, **fields: object) -> None:
        self._write(Message(FIELDS, json.dumps(fields).encode(), time.monotonic()))

    def _write(self, message: Message) -> None:
        left = message.pack()
        while left:
            left = left[os.write(self._output, left) :]


def _read_input(length: int) -> bytes:
    """Return so many bytes of the standard input; ends the process with the parent."""
    data = sys.stdin.buffer.read(length)
    if len(data) < length:
        os._exit(0)
    return data


def _choose(devices: list[Device], wanted: str, role: Role) -> Device:
    """Return the wanted device. Raises DeviceError, with the kernel's reason if it has one."""
    try:
        return choose(devices, wanted, role)
    except DeviceError:
        if cause := why_missing(wanted, role=role):
            raise DeviceError(cause) from None
        raise


def _find_devices(portaudio: ModuleType, role: Role) -> list[Device]:
    default = portaudio.default.device[role is LOUDSPEAKER]
    with contextlib.suppress(portaudio.PortAudioError, ValueError):
        default = portaudio.query_devices(kind=role.kind)["index"]
    return [
        Device(
            number=found["index"],
            name=found["name"],
            channels=found[f"max_{role.kind}_channels"],
            rate_hz=found["default_samplerate"],
            default=found["index"] == default,
            port=find_port(found["name"]),
        )
        for found in portaudio.query_devices()
        if found[f"max_{role.kind}_channels"] > 0
    ]


def _open(
    portaudio: ModuleType, device: Device, wanted: str, channel: int
) -> tuple[Any, float, int]:
    """Return an input stream, its rate and channels: 16 kHz mono if possible, all of them if one is
    chosen. Raises DeviceError.

    PortAudio converts the device's samples to 16 bits.
    """
    if channel > device.channels:
        raise DeviceError(
            f"capture.channel: expected at most {device.channels}, the channels of "
            f"{device.name!r}, found {channel}"
        )
    counts = (device.channels,) if channel else (1, min(2, device.channels), device.channels)
    rates = (float(SPEECH_RATE_HZ), device.rate_hz)
    shapes = [(rate, channels) for rate in rates for channels in counts]
    return _open_shape(portaudio, device, wanted, shapes, MICROPHONE)


def _open_shape(
    portaudio: ModuleType,
    device: Device,
    wanted: str,
    shapes: list[tuple[float, int]],
    role: Role,
) -> tuple[Any, float, int]:
    """Return a stream of the first rate and channels that open, and these. Raises DeviceError."""
    plays = role is LOUDSPEAKER
    trouble: Exception | None = None
    for rate_hz, channels in dict.fromkeys(shapes):
        try:
            stream = (portaudio.RawOutputStream if plays else portaudio.RawInputStream)(
                device=device.number,
                samplerate=rate_hz,
                channels=channels,
                dtype="int16",
                blocksize=round(rate_hz * BLOCK_S),
                latency=PLAY_LATENCY_S if plays else LATENCY_S,
            )
        except portaudio.PortAudioError as error:
            trouble = error
        else:
            return stream, rate_hz, channels
    if cause := why_missing(wanted or device.name, role=role):
        raise DeviceError(cause)
    reason = _reason(trouble)
    is_busy = "busy" in reason.lower() or "unavailable" in reason.lower()
    raise DeviceError(
        f"{role.noun} {device.name!r} does not open at {shapes[0][0]:.0f} or {device.rate_hz:.0f} "
        f"Hz ({reason}): "
        + ("end the program that is using it" if is_busy else "plug it in again")
        + ", or choose another one: `roomscribe devices`"
    )


def _reason(error: BaseException | None) -> str:
    """Return the reason from PortAudio, or from the sound system below it, on one line."""
    details = list(error.args) if error else []
    below = details[2][2] if len(details) > 2 else ""
    return " ".join(str(below or (details[0] if details else error)).split())


if __name__ == "__main__":
    main()
