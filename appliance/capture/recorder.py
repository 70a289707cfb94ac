"""Control of the recorder process, which reads the microphone or plays: start, request, wait,
kill."""

import contextlib
import fcntl
import json
import os
import select
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from appliance.capture.devices import MICROPHONE, Device, Role, is_stream
from appliance.capture.portaudio import LENGTH, SOUND, Inbox, Message
from appliance.errors import DeviceError
from appliance.process import end_process, how_it_ended, start_process
from appliance.system import Closing

PIPE_BYTES = 1 << 20
"""30 s of 16 kHz mono: if the appliance is busy for longer, samples are lost."""
QUIET_S = 0.15
"""Seconds of sound that are read together during silence, because waking up costs more than the
work. The shortest utterance (`min_speech_ms`) takes longer together with the silence (`TAIL_MS`)
after which its text is computed, so no text comes later for it."""
REAP_S = 0.5


@dataclass(frozen=True, slots=True)
class RecorderLimits:
    """How long the process may take, and how often it may fail."""

    start_s: float = 10.0
    """A process takes 0.1 s to start, on a busy machine sometimes several seconds."""
    open_s: float = 5.0
    """A Pi takes 1 s to list all of ALSA's devices; a sound server that hangs never answers."""
    stream_s: float = 12.0
    """A camera is asked over the network, and may have to wake first."""
    first_s: float = 4.0
    """A sound server may have to wake its device first, and then fills a buffer."""
    block_s: float = 2.5
    """If no block comes for this long, the device or the sound server hangs."""
    attempts: int = 10
    """Failed openings after which a new process replaces the old one."""


LIMITS = RecorderLimits()


class StallError(Exception):
    """The process sent nothing and was killed."""

    fix = "the sound server or the card hangs; the microphone is reopened once it answers"


class EndError(Exception):
    """The process ended, or reported the loss of the device."""

    fix = "is it still plugged in? `roomscribe devices` shows what is there"


@dataclass(frozen=True, slots=True)
class Opened:
    """The device that the process reads."""

    name: str
    rate_hz: float
    channels: int


class Recorder(Closing):
    """A process, started when needed, that opens one device once. For one thread, but any thread
    may call `interrupt`: then every wait ends at once, until `resume`."""

    def __init__(
        self,
        command: Sequence[str] = (),
        limits: RecorderLimits = LIMITS,
        noun: str = MICROPHONE.noun,
    ) -> None:
        """`command` replaces the recorder's program; `noun`: what its device is called."""
        self._command, self._limits, self._noun = command, limits, noun
        self._process: subprocess.Popen[bytes] | None = None
        self._inbox = Inbox()
        self._attempts = 0
        self._started = False
        """True once the process runs: later waits are for PortAudio alone."""
        self._block_within_s = limits.first_s
        self.alert = threading.Event()
        """Set while each block is needed at once."""
        self.alert.set()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        for end in (self._wake_receiver, self._wake_sender):
            end.setblocking(False)
            # with the recorder and not with its process, which may be started again
            weakref.finalize(self, end.close).atexit = False

    @property
    def pid(self) -> int | None:
        """Process id; None without a process."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the process if there is none. Does not wait. Raises DeviceError."""
        if self._process and self._process.poll() is None:
            return
        self.kill()
        try:
            self._process = start_process("appliance.capture.portaudio", command=self._command)
        except OSError as error:
            raise DeviceError(
                f"the {self._noun}'s process does not start ({error.strerror}): free some memory, "
                "or allow one more process; see `systemctl status roomscribe`"
            ) from error
        self._attempts, self._started = 0, False
        if self._process.stdout:
            with contextlib.suppress(OSError):
                fcntl.fcntl(self._process.stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def open(self, device: str, channel: int = 0) -> Opened:
        """Open the microphone `device`, with all its channels if one is chosen; `read` returns its
        blocks. Raises DeviceError."""
        answer = self._request(do="open", device=device, channel=channel)
        self._block_within_s = self._limits.first_s
        return Opened(**answer["opened"])

    def request_open(self, device: str) -> None:
        """Ask for the device `device` without waiting; `receive` yields the answer, then blocks.
        Raises DeviceError."""
        self.start()
        self._send(do="open", device=device, channel=0)

    def play(self, device: str, rate_hz: int) -> Opened:
        """Open the loudspeaker `device` for mono at `rate_hz`, if it can; `send` plays. Raises
        DeviceError."""
        return Opened(**self._request(do="play", device=device, rate_hz=rate_hz)["opened"])

    def send(self, sound: bytes) -> None:
        """Play int16 samples with interleaved channels, behind those before. Comes back at once
        while little waits. No sound: that was all; the process answers once it has sounded."""
        if self._process and self._process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(LENGTH.pack(len(sound)) + sound)

    def next(self, within_s: float) -> Message | None:
        """Return the next message; None if none came in time, or if interrupted. Raises EndError,
        also if the device is lost."""
        message = self._wait(within_s)
        if message and message.kind != SOUND and "lost" in (found := json.loads(message.data)):
            raise EndError(found["lost"])
        return message

    def devices(self, role: Role = MICROPHONE) -> list[Device]:
        """Return all microphones or loudspeakers, perhaps none. Raises DeviceError."""
        found = self._request(do="list", kind=role.kind)["devices"]
        return [Device(**one) for one in found]

    def read(self) -> Message | None:
        """Return the blocks that have arrived as one, up to the next loss; wait for the first, or
        for QUIET_S of them while not `alert`. None if interrupted. Raises StallError or EndError.
        """
        self.alert.wait(QUIET_S)
        while (message := self._next(self._block_within_s)) is not None:
            if message.kind == SOUND:
                self._block_within_s = self._limits.block_s
                return self._inbox.join(message)
            raise EndError(json.loads(message.data)["lost"])
        return None

    def receive(self) -> Iterator[Message]:
        """Yield the messages that have arrived, without waiting. Raises EndError."""
        while self._process and self._process.stdout:
            output = self._process.stdout.fileno()
            if not select.select([output], [], [], 0)[0]:
                break
            data = os.read(output, 1 << 16)
            if not data:
                raise EndError(self._end_reason())
            self._inbox.push(data)
        while (message := self._inbox.next()) is not None:
            yield message

    def interrupt(self) -> None:
        """Make every wait end at once, until `resume`. Any thread."""
        self.alert.set()
        with contextlib.suppress(OSError):
            self._wake_sender.send(b"!")

    def resume(self) -> None:
        """Allow waits again."""
        with contextlib.suppress(OSError):
            while self._wake_receiver.recv(4096):
                pass

    def kill(self) -> None:
        """End the process, and so close the device, in a few ms. A process that is stuck in the
        kernel ends later, when its system call returns."""
        process, self._process = self._process, None
        self._inbox = Inbox()
        if process:
            end_process(process, REAP_S)

    close = kill

    def _request(self, **request: object) -> dict[str, Any]:
        """Send a request and return the answer. Raises DeviceError, also if the answer is one."""
        if self._attempts >= self._limits.attempts:
            self.kill()
        self.start()
        self._send(**request)
        try:
            limits = self._limits
            open_s = limits.stream_s if is_stream(str(request.get("device"))) else limits.open_s
            answer = self._receive(open_s if self._started else limits.start_s)
            if "started" in answer:
                self._started = True
                answer = self._receive(open_s)
        except (StallError, EndError) as error:
            raise DeviceError(
                f"{self._noun}: PortAudio does not answer ({error}): start the sound server again, "
                f"or plug the {self._noun} in again"
            ) from error
        if "error" in answer:
            self._attempts += 1
            raise DeviceError(answer["error"])
        return answer

    def _send(self, **request: object) -> None:
        if self._process and self._process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(request).encode() + b"\n")

    def _receive(self, within_s: float) -> dict[str, Any]:
        """Return the next answer. Raises StallError, EndError; DeviceError if interrupted."""
        message = self._next(within_s)
        if message is None:
            self.kill()
            raise DeviceError(f"the {self._noun} is not opened: stopped")
        answer: dict[str, Any] = json.loads(message.data)
        return answer

    def _next(self, within_s: float) -> Message | None:
        """Return the next message; None if interrupted. Raises StallError or EndError."""
        deadline_s = time.monotonic() + within_s
        message = self._wait(within_s)
        if message is None and time.monotonic() >= deadline_s:
            self.kill()
            raise StallError(f"nothing for {within_s:g} s")
        return message

    def _wait(self, within_s: float) -> Message | None:
        """Return the next message; None if interrupted, or if none came. Raises EndError."""
        deadline_s = time.monotonic() + within_s
        while (message := self._inbox.next()) is None:
            if self._process is None or self._process.stdout is None:
                raise EndError("no process")
            output = self._process.stdout
            left_s = max(0.0, deadline_s - time.monotonic())
            wake = self._wake_receiver.fileno()
            ready = select.select([output.fileno(), wake], [], [], left_s)[0]
            if wake in ready or not ready:
                return None
            data = os.read(output.fileno(), 1 << 16)
            if not data:
                raise EndError(self._end_reason())
            self._inbox.push(data)
        return message

    def _end_reason(self) -> str:
        """Reap the process and return how it ended."""
        process = self._process
        self.kill()
        return how_it_ended(process.returncode if process else None)
