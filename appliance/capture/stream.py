"""Streams in place of a sound card: a camera or a web stream through ffmpeg, a pipe, PulseAudio.

This runs in the recorder's process. A stream gives raw int16 samples on a descriptor; ffmpeg and
parec are child processes, which the kernel ends together with the recorder. An address may hold a
password, so ffmpeg reads it from a file in memory, and messages show it without user and query.
"""

import os
import re
import select
import shutil
import stat
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from appliance.capture.devices import NETWORK, PIPE, PULSE, public_name
from appliance.errors import DeviceError
from appliance.process import end_with_parent

RATE_HZ = 16_000
FIRST_S = 8.0
"""A camera may take this long to send its first sound."""
STALLED_S = 10.0
"""ffmpeg gives up on a network connection that sends nothing for this long."""
TORN_S = 0.2
"""If a pipe is empty for so long within a frame, its writer has ended: the next one begins with a
new frame."""
PULSE_CHANNELS = 32
"""pulse/sample.h, PA_CHANNELS_MAX."""
REPORT_BYTES = 4096
"""How much of the last that a program reports is kept."""
ANALYSED_S = 0.5
"""Sound that ffmpeg reads before it starts; its default of 5 s would delay all sound."""
PROTOCOLS = "http,https,tcp,tls,udp,rtp,rtmp,rtmps,srt,crypto"
"""What an address may lead to: a playlist from the network must not name this machine's files."""
SAMPLE_FORMAT = "48000:16:2"
"""Snapcast's default: rate, bits, channels."""
PREFIX = r"^(\[[^]]*\] |file:/proc/self/fd/\d+: )+"
"""Before ffmpeg's messages."""
VAGUE = "Impossible to open"
SILENT = "matches no streams"
MOVED = re.compile(r"Stream moved to device (\S+) \(")
MONITORED = re.compile(r"Connected to device (\S+\.monitor) \(")
PROGRESS = re.compile(
    r"Time: |Opening a |Connec\w+ (established|to)|Stream succ|Buffer m|Using sam"
)
"""What `parec -v` reports (pulseaudio, pacat.c, with LC_ALL=C): the server has moved the stream, as
it does when its source vanishes; where it began; and what is no problem."""


def redact(text: str, device: str) -> str:
    """Return the text without anything secret from the address."""
    rest = device.partition("://")[2]
    user, _, place = rest.rpartition("@")
    text = text.replace(device, public_name(device))
    secrets = {
        form
        for part in (user, user.partition(":")[2], place.partition("?")[2])
        for form in (part, unquote(part))
    }
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "...")
    return re.sub(r"//[^/@\s]*@", "//", text)


class Stream:
    """An open stream of int16 samples. Close it with `close`."""

    def __init__(self, device: str, channel: int = 0) -> None:
        """Open it, and wait for a network stream's first sound. With a `channel`, from 1, a network
        stream has this one alone, and PulseAudio gives all up to it. Raises DeviceError."""
        scheme, mark, rest = device.strip().partition(":")
        device = f"{scheme.casefold()}{mark}{rest}"
        self.name = public_name(device)
        if not device.startswith((PULSE, PIPE, *(f"{name}://" for name in NETWORK))):
            found = scheme if rest.startswith("//") else "no :// behind one of them"
            raise DeviceError(
                f"capture.device: expected a stream of {', '.join(NETWORK)}, pipe:// or pulse:, "
                f"found {found}"
            )
        self.rate_hz, self.channels = float(RATE_HZ), 1
        self._device, self._channel = device, channel
        self._process: subprocess.Popen[bytes] | None = None
        self._errors, self._report = -1, b""
        if device.startswith(PIPE):
            self._output = self._open_pipe()
            return
        self._errors, errors = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        command, descriptors = self._pulse() if device.startswith(PULSE) else self._ffmpeg()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            pass_fds=descriptors,
            bufsize=0,
            env=os.environ | {"LC_ALL": "C"},
            preexec_fn=end_with_parent,  # noqa: PLW1509 (this process has one thread)
        )
        for descriptor in (errors, *descriptors):
            os.close(descriptor)
        self._output = self._process.stdout.fileno() if self._process.stdout else -1
        if not device.startswith(PULSE):
            self._wait_for_sound()

    def read(self, size: int) -> bytes:
        """Return `size` bytes, whole blocks of all channels. Raises DeviceError at the end."""
        data, frame = b"", 2 * self.channels
        while len(data) < size:
            torn = len(data) % frame if self._process is None else 0
            if not self._is_ready(TORN_S if torn else None):
                data = data[: len(data) - torn]
                continue
            try:
                part = os.read(self._output, size - len(data))
            except BlockingIOError:
                continue
            if not part:
                raise DeviceError(f"the end of the stream ({self.end_reason()})")
            data += part
        return data

    def _is_ready(self, within_s: float | None) -> bool:
        """Wait until there is sound, and read what the program reports meanwhile. Return False if
        there was none in time, or only a report. Raises DeviceError if it is another source's."""
        watched = [one for one in (self._output, self._errors) if one >= 0]
        ready = select.select(watched, [], [], within_s)[0]
        if self._errors in ready:
            self._read_report()
            report = self._report.decode(errors="replace")
            if found := MOVED.search(report):
                raise DeviceError(
                    f"the end of the stream (its source has gone, and the sound server moved it to "
                    f"{found[1]})"
                )
            if self._device == PULSE and (found := MONITORED.search(report)):
                raise DeviceError(
                    f"no microphone at the sound server: its default source, {found[1]}, is what "
                    "the loudspeakers play"
                )
        return self._output in ready

    def _read_report(self) -> None:
        """Read what the program has reported, and keep the last of it."""
        with suppress(BlockingIOError):
            while part := os.read(self._errors, REPORT_BYTES):
                self._report = (self._report + part)[-REPORT_BYTES:]
            os.close(self._errors)  # the program has ended
            self._errors = -1

    def waiting_bytes(self) -> int:
        """Return how much sound can be read at once."""
        import fcntl
        import struct
        import termios

        return int(struct.unpack("i", fcntl.ioctl(self._output, termios.FIONREAD, b"\0" * 4))[0])

    def end_reason(self) -> str:
        """Return why the stream ended, without its password."""
        if self._process:
            self._process.kill()
            self._process.wait()
        if self._errors >= 0:
            self._read_report()
        lines = self._report.decode(errors="replace").splitlines()
        texts = [re.sub(PREFIX, "", line).strip(" .") for line in lines if not PROGRESS.match(line)]
        if any(SILENT in text for text in texts):
            return "the stream has no sound"
        known = [text for text in texts if text and not text.startswith(VAGUE)]
        return redact(known[-1] if known else "it ended", self._device)

    def _wait_for_sound(self) -> None:
        deadline_s = time.monotonic() + FIRST_S
        while not self.waiting_bytes():
            left_s = deadline_s - time.monotonic()
            ready = left_s > 0 and self._is_ready(left_s)
            if left_s <= 0 or (ready and not self.waiting_bytes()):
                reason = self.end_reason() if ready else f"no sound within {FIRST_S:g} s"
                sound = f"channel {self._channel} (capture.channel)" if self._channel else "sound"
                raise DeviceError(
                    f"{self.name} does not open ({reason}): check its address, user and password, "
                    f"and that it has {sound}"
                )

    def _ffmpeg(self) -> tuple[list[str], list[int]]:
        """Return ffmpeg's command, which reads the address from a file in memory."""
        program = shutil.which("ffmpeg")
        if program is None:
            raise DeviceError(f"{self.name} needs ffmpeg: `sudo apt install ffmpeg`")
        address = self._device.replace("'", r"'\''")
        listing = os.memfd_create("address")
        wait_us = int(STALLED_S * 1e6)
        options: dict[str, int | str] = {
            "probesize": 65536,
            "analyzeduration": int(ANALYSED_S * 1e6),
        }
        if urlsplit(self._device).scheme.startswith("rtsp"):
            options |= {"rtsp_transport": "tcp", "timeout": wait_us}
        else:
            options |= {"rw_timeout": wait_us}
        lines = ["ffconcat version 1.0", f"file '{address}'"]
        options["protocol_whitelist"] = PROTOCOLS
        lines += [f"option {name} {value}" for name, value in options.items()]
        os.write(listing, "\n".join([*lines, ""]).encode())
        os.lseek(listing, 0, os.SEEK_SET)
        chosen = f"channelmap=map={self._channel - 1}:channel_layout=mono"
        mono = ["-af", chosen] if self._channel else ["-ac", "1"]
        # fmt: off
        return [
            program, "-nostdin", "-v", "error", "-threads", "1",
            "-fflags", "nobuffer", "-flags", "low_delay",
            "-f", "concat", "-safe", "0", "-protocol_whitelist", f"file,{PROTOCOLS}",
            "-i", f"file:/proc/self/fd/{listing}",
            "-map", "0:a:0", *mono, "-ar", str(RATE_HZ),
            "-c:a", "pcm_s16le", "-f", "s16le", "-flush_packets", "1", "pipe:1",
        ], [listing]
        # fmt: on

    def _pulse(self) -> tuple[list[str], list[int]]:
        """Return the command that reads a source of PulseAudio or PipeWire."""
        program = shutil.which("parec")
        if program is None:
            raise DeviceError(f"{self.name} needs parec: `sudo apt install pulseaudio-utils`")
        source = self._device.removeprefix(PULSE)
        self.channels = max(1, self._channel)
        if self.channels > PULSE_CHANNELS:
            raise DeviceError(
                f"capture.channel: expected at most {PULSE_CHANNELS}, as many as the sound server "
                f"gives, found {self._channel}"
            )
        # fmt: off
        return [
            program, "-v", "--raw", "--format=s16le", f"--rate={RATE_HZ}",
            f"--channels={self.channels}", *(["--no-remap", "--no-remix"] if self._channel else []),
            "--latency-msec=30", *([f"--device={source}"] if source else []),
        ], []
        # fmt: on

    def _open_pipe(self) -> int:
        """Return the descriptor of a named pipe; it stays open when its writer ends."""
        parts = urlsplit(self._device)
        form = parse_qs(parts.query).get("sampleformat", [SAMPLE_FORMAT])[0]
        shape = re.fullmatch(r"(\d{4,6}):16:([1-8])", form)
        if not shape:
            raise DeviceError(
                f"{self.name}: expected sampleformat=RATE:16:CHANNELS such as {SAMPLE_FORMAT}, "
                f"found {form}"
            )
        self.rate_hz, self.channels = float(shape[1]), int(shape[2])
        if self._channel > self.channels:
            raise DeviceError(
                f"capture.channel: expected at most {self.channels}, the channels of {self.name} "
                f"(sampleformat={form}), found {self._channel}"
            )
        try:
            if not stat.S_ISFIFO(Path(parts.path).stat().st_mode):
                raise DeviceError(f"{self.name} is no pipe: make one with `mkfifo {parts.path}`")
            return os.open(parts.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except PermissionError as error:
            raise DeviceError(
                f"{self.name} may not be read and written by this user: "
                f"`sudo chmod 666 {parts.path}`"
            ) from error
        except OSError as error:
            raise DeviceError(f"{self.name} does not open ({error.strerror})") from error
