"""Frames from a sound file or from standard input, as if they came from the microphone.

libsndfile reads files; ffmpeg, if installed, reads the formats that libsndfile does not know. Raw
PCM and WAV are streamed from a pipe; other formats need seeking and are read into memory first.
"""

from __future__ import annotations

import logging
import math
import os
import re
import select
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from appliance.capture.ffmpeg import Ffmpeg, find_ffmpeg
from appliance.capture.formats import (
    AAC,
    HEAD,
    MAY_NEED_FFMPEG,
    RAW,
    READ_BY_FFMPEG,
    WAV,
    Layout,
    kind_of,
    name_if_not_sound,
    wave_layout,
)
from appliance.capture.frames import Framer, Resampler, channel_weights
from appliance.errors import AudioError, DeviceError
from appliance.records import SAMPLE_RATE, Frame, Samples
from appliance.system import legible, one_line

if TYPE_CHECKING:
    import soundfile

log = logging.getLogger("roomscribe.capture")

EXPECTED = "expected a sound file such as WAV, FLAC or Ogg"
LOWEST_HZ, HIGHEST_HZ = 4000, 384_000
BLOCK_S, READ_BYTES = 0.1, 1 << 20
"""Length of one read, and its limit in bytes whatever a header says."""
LATE_S = 0.2
"""Sound from a slow pipe that comes later than this was also recorded later."""
BUSY_S = 5.0
"""The same for a file: if it is less late than this, the machine was just busy."""
POLL_S = 0.2
UNKNOWN_LENGTH = 0x7FFFFF00
"""Writers that cannot seek back put this or more, or 0, into a WAV header instead of a length."""
PIPED_FILE_BYTES = 256 << 20
"""Limit of a file read from a pipe into memory: hours of anything but WAV."""


class Recording:
    """Frames of 30 ms from a file of any rate, channels and encoding, or from `-`: standard input.

    In real time, a frame comes when it would have been recorded, on time.monotonic()'s clock.
    Otherwise it comes at once, and its time is the position in the file. Only one block is in
    memory at a time. One thread reads; any thread may call `stop`.
    """

    def __init__(self, path: str, *, real_time: bool, name: str = "") -> None:
        """Open the file; only `frames` reads a pipe. `name` replaces its path in messages. Raises
        AudioError, and DeviceError without libsndfile."""
        self.warnings: list[str] = []
        """Faults of the recording that do not make it useless."""
        self._real_time, self._max_late_s = real_time, LATE_S if path == "-" else BUSY_S
        self._stopped = threading.Event()
        self.name = name or path
        self._sound = _open(path, self.name, self)
        self.description = legible(self._sound.description)

    silence = trouble = ""
    echo = stream = None

    @property
    def duration_s(self) -> float:
        """Length by the file's header; 0 if that is unknown."""
        return getattr(self._sound, "duration_s", 0.0)

    def frames(self) -> Iterator[Frame]:
        """Yield all frames, the last one padded with silence. Raises as `__init__` does."""
        framer = Framer()
        count = 0
        for samples in self._sound.blocks(self._stopped):
            yield from self._paced(framer.push(samples, count / SAMPLE_RATE))
            count += len(samples)
        yield from self._paced(framer.rest(count / SAMPLE_RATE))

    def stop(self) -> None:
        """Make `frames` end within POLL_S. Any thread."""
        self._stopped.set()

    def warn(self, message: str) -> None:
        """Log and store a warning."""
        self.warnings.append(message)
        log.warning("%s", message)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sound.close()

    def _paced(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        """Yield each frame when it is due, until `stop`."""
        for frame in frames:
            due = self._on_time(frame) if self._real_time else frame
            if self._stopped.is_set():
                return
            yield due

    _began_s: float | None = None

    def _on_time(self, frame: Frame) -> Frame:
        """Wait until the frame would have been recorded, and return it with that time."""
        now_s = time.monotonic()
        if self._began_s is None:
            self._began_s = now_s
        late_s = now_s - (self._began_s + frame.end_s)
        if late_s > self._max_late_s:
            self._began_s += late_s
        elif late_s < 0:
            self._stopped.wait(-late_s)
        return Frame(frame.samples, self._began_s + frame.start_s, frame.after_gap)


class _Sound(Protocol):
    """Source of a recording's samples."""

    description: str

    def blocks(self, stopped: threading.Event) -> Iterator[Samples]:
        """Yield (n,) int16 at 16 kHz until the end or `stopped`. Raises AudioError."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class _File:
    """A file that libsndfile reads."""

    def __init__(self, file: str, name: str, owner: Recording) -> None:
        """Raises RuntimeError (LibsndfileError) and TypeError for unknown formats."""
        self._name, self._owner = name, owner
        with _mpg123_muted():
            self._file = _soundfile().SoundFile(os.fsencode(file))  # may be no UTF-8
        rate_hz, channels = self._file.samplerate, self._file.channels
        _check_rate(name, rate_hz)
        self.description = f"{Path(name).name} ({rate_hz} Hz, {channels} ch)"
        self._weights = channel_weights(channels, ogg=self._file.format == "OGG")
        self._expected = _expected_samples(self._file)
        self.duration_s = self._expected / rate_hz

    def blocks(self, stopped: threading.Event) -> Iterator[Samples]:
        """Yield the resampled file; of a damaged or short one what is readable, with a warning."""
        rate_hz = self._file.samplerate
        resampler = Resampler(rate_hz, self._weights)
        muted = _mpg123_muted if "MPEG" in self._file.subtype else nullcontext
        found = 0
        trouble = ""
        size = max(1, min(int(rate_hz * BLOCK_S), READ_BYTES // (4 * self._file.channels)))
        while not stopped.is_set():
            try:
                with muted():
                    sound = self._file.read(size, dtype="float32", always_2d=True)
            except RuntimeError as error:  # LibsndfileError is one
                trouble = f" ({_reason(error)})"
                break
            if not len(sound):
                break
            found += len(sound)
            yield resampler.push(sound)
        yield resampler.push(np.zeros((0, self._file.channels), np.float32), last=True)
        if not stopped.is_set():
            found_s, expected_s = found / rate_hz, self._expected / rate_hz
            _check_length(self._name, found_s, expected_s, trouble, self._owner)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _Pcm:
    """PCM samples from a pipe."""

    def __init__(
        self, descriptor: int, layout: Layout, head: bytes = b"", length: int | None = None
    ) -> None:
        """`head` is already read; there are `length` bytes in all, or as many as come."""
        self._input, self._layout, self._pending, self._length = descriptor, layout, head, length
        self._type = np.dtype(layout.dtype)
        self._width = self._type.itemsize * layout.channels
        self.found_s = 0.0
        self.is_odd = False
        """True if the input ended inside a sample."""

    def blocks(self, stopped: threading.Event) -> Iterator[Samples]:
        """Yield (n,) int16 at 16 kHz until the end or `stopped`."""
        rate_hz, channels = self._layout.rate_hz, self._layout.channels
        resampler = Resampler(rate_hz, channel_weights(channels))
        size = max(self._width, min(int(rate_hz * BLOCK_S) * self._width, READ_BYTES))
        left = math.inf if self._length is None else self._length
        for data in _read(self._input, size, stopped, self._pending):
            self._pending = data if data is self._pending else self._pending + data
            whole = int(min(len(self._pending), left)) // self._width * self._width
            sound = np.frombuffer(self._pending[:whole], self._type).reshape(-1, channels)
            self._pending = self._pending[whole:]
            left -= whole
            self.found_s += len(sound) / rate_hz
            if whole:
                yield resampler.push(self._as_float(sound))
            if left < self._width:
                break
        else:
            self.is_odd = bool(self._pending)
        yield resampler.push(np.zeros((0, channels), np.float32), last=True)

    def _as_float(self, sound: NDArray[Any]) -> NDArray[np.float32]:
        """Return the samples scaled to -1..1."""
        kind = self._type.kind
        if kind == "f":
            with np.errstate(over="ignore", invalid="ignore"):  # the resampler clips
                return sound.astype(np.float32)
        full = np.float32(2 ** (8 * self._type.itemsize - 1))
        return (sound.astype(np.float32) - (full if kind == "u" else 0)) / full


class _FfmpegFile:
    """A file that ffmpeg decodes."""

    def __init__(self, file: str, name: str, kind: str, owner: Recording) -> None:
        """Raises AudioError."""
        self._name, self._owner = name, owner
        with Path(file).open("rb") as opened:
            self._program = Ffmpeg(name, opened.fileno(), kind)
        layout = self._program.layout
        self.description = f"{Path(name).name} ({layout.rate_hz} Hz, {layout.channels} ch, ffmpeg)"
        try:
            _check_rate(name, layout.rate_hz)
        except AudioError:
            self._program.close()
            raise

    def blocks(self, stopped: threading.Event) -> Iterator[Samples]:
        """Yield the first audio track; of a damaged file what ffmpeg reads, with a warning."""
        pcm = _Pcm(self._program.output, self._program.layout)
        yield from pcm.blocks(stopped)
        trouble = "" if stopped.is_set() else self._program.trouble()
        if not pcm.found_s and not stopped.is_set():
            reason = trouble and f" ({trouble})"
            raise AudioError(f"{self._name}: no sound in it{reason}: record or copy it again")
        if trouble:
            self._owner.warn(
                f"{self._name}: the file is damaged ({trouble}): {pcm.found_s:.1f} s of it are used"
            )

    def close(self) -> None:
        """End ffmpeg."""
        self._program.close()


class _Pipe:
    """Standard input or another pipe: a sound file of any format, or raw PCM."""

    def __init__(self, descriptor: int, name: str, owner: Recording, *, raw: bool) -> None:
        """`raw`: without a known format, it is 16-bit little-endian mono PCM at 16 kHz."""
        self._input, self._name, self._owner, self._raw = descriptor, name, owner, raw
        self.description = f"{name} (16-bit PCM, 16000 Hz, 1 ch, or a sound file)" if raw else name
        self._file: _Sound | None = None

    def blocks(self, stopped: threading.Event) -> Iterator[Samples]:
        """Yield (n,) int16 at 16 kHz until the writer closes the pipe or `stopped`."""
        head = b""
        for data in _read(self._input, HEAD, stopped):
            head += data
            if len(head) >= HEAD:
                break
        if stopped.is_set():
            return
        kind = kind_of(head)
        if kind == WAV and (wave := wave_layout(head)):
            yield from self._wave(head, *wave, stopped)
        elif kind:
            self._file = self._read_file(head, stopped)
            if self._file:
                yield from self._file.blocks(stopped)
        else:
            yield from self._raw_samples(head, stopped)

    def close(self) -> None:
        """Close the pipe, except standard input."""
        if self._file:
            self._file.close()
        if not self._raw:
            os.close(self._input)

    def _wave(
        self, head: bytes, layout: Layout, start: int, length: int, stopped: threading.Event
    ) -> Iterator[Samples]:
        """Stream a WAV file."""
        _check_rate(self._name, layout.rate_hz)
        known = 0 < length < UNKNOWN_LENGTH
        pcm = _Pcm(self._input, layout, head[start:], length if known else None)
        yield from pcm.blocks(stopped)
        expected_s = length / np.dtype(layout.dtype).itemsize / layout.channels / layout.rate_hz
        if not stopped.is_set():
            _check_length(self._name, pcm.found_s, expected_s * known, "", self._owner)

    def _read_file(self, head: bytes, stopped: threading.Event) -> _Sound | None:
        """Read the file into memory and return it, opened; None if `stopped`."""
        memory = os.memfd_create("recording")
        with os.fdopen(memory, "wb", buffering=0) as file:
            for data in _read(self._input, 1 << 20, stopped, head):
                if file.tell() + len(data) > PIPED_FILE_BYTES:
                    raise AudioError(
                        f"{self._name}: more than {PIPED_FILE_BYTES >> 20} MiB, too much in this "
                        "format for a pipe: name the file, or send WAV"
                    )
                file.write(data)
            if stopped.is_set():
                return None
            return _open_file(f"/proc/self/fd/{memory}", self._name, head, self._owner)

    def _raw_samples(self, head: bytes, stopped: threading.Event) -> Iterator[Samples]:
        if not self._raw:
            raise AudioError(f"{self._name}: {EXPECTED}, found data that starts with {head[:4]!r}")
        if found := name_if_not_sound(head):
            raise AudioError(
                f"{self._name}: expected raw 16-bit PCM at 16000 Hz or a sound file, found {found}"
            )
        pcm = _Pcm(self._input, RAW, head)
        yield from pcm.blocks(stopped)
        if pcm.is_odd and not stopped.is_set():
            self._owner.warn(f"{self._name} ended inside a sample; that sample is left out")


def _open(path: str, name: str, owner: Recording) -> _Sound:
    """Open a recording; `name` is for messages. Raises as Recording does."""
    if path == "-":
        return _Pipe(sys.stdin.fileno(), "standard input", owner, raw=True)
    try:
        if stat.S_ISFIFO(Path(path).stat().st_mode):
            return _Pipe(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path, owner, raw=False)
        with Path(path).open("rb") as file:
            head = file.read(HEAD)
    except IsADirectoryError:
        raise AudioError(f"{path} is a folder: name a sound file in it") from None
    except FileNotFoundError:
        raise AudioError(f"{path}: no such file: check the path") from None
    except OSError as error:
        raise AudioError(
            f"{path}: cannot be read ({error.strerror}): check its permissions"
        ) from None
    if not head:
        raise AudioError(f"{name} is an empty file: record or copy it again")
    return _open_file(path, name, head, owner)


def _open_file(file: str, name: str, head: bytes, owner: Recording) -> _Sound:
    """Open a seekable file that begins with `head`; `name` is for messages."""
    kind = kind_of(head)
    if kind == AAC or kind in READ_BY_FFMPEG.values():
        return _FfmpegFile(file, name, kind, owner)
    library = _soundfile()
    wave = wave_layout(head) if kind == WAV else None
    try:
        if not wave or wave[2]:  # libsndfile believes a length of 0
            return _File(file, name, owner)
    except (library.LibsndfileError, TypeError) as error:
        if kind in MAY_NEED_FFMPEG and find_ffmpeg():
            return _FfmpegFile(file, name, kind, owner)
        if not wave:
            raise AudioError(
                f"{name}: {EXPECTED}, found data that starts with {head[:4]!r} ({_reason(error)}): "
                "convert it, or send raw 16-bit PCM at 16000 Hz to standard input and name the "
                "file -"
            ) from None
    return _Pipe(os.open(file, os.O_RDONLY | os.O_CLOEXEC), name, owner, raw=False)


def _read(
    descriptor: int, size: int, stopped: threading.Event, head: bytes = b""
) -> Iterator[bytes]:
    """Yield `head`, then at most `size` bytes at a time until the end or `stopped`."""
    if head:
        yield head
    while not stopped.is_set():
        if not select.select([descriptor], [], [], POLL_S)[0]:
            continue
        if not (data := os.read(descriptor, size)):
            return
        yield data


def _check_rate(name: str, rate_hz: int) -> None:
    """Raise AudioError for a rate that no recorder has."""
    if not LOWEST_HZ <= rate_hz <= HIGHEST_HZ:
        raise AudioError(
            f"{name}: expected {LOWEST_HZ} to {HIGHEST_HZ} Hz, found {rate_hz} Hz: convert it "
            "to 16000 Hz, or record it again if its header is damaged"
        )


def _check_length(
    name: str, found_s: float, expected_s: float, trouble: str, owner: Recording
) -> None:
    """Raise AudioError if there is no sound; warn if there is less than the header says."""
    if not found_s:
        raise AudioError(
            f"{name}: a header for {expected_s:.1f} s of sound and nothing after it{trouble}: "
            "record or copy the file again"
        )
    if trouble or expected_s - found_s > BLOCK_S:
        owner.warn(
            f"{name}: expected {expected_s:.1f} s by its header, found {found_s:.1f} s{trouble}: "
            "the file is damaged or cut short; the part that is left is used"
        )


@contextmanager
def _mpg123_muted() -> Iterator[None]:
    """Drop libmpg123's remarks on tags and frames from standard error; pass on all other lines."""
    sys.stderr.flush()
    try:
        original = os.dup(2)
    except OSError:  # closed
        original = -1
    if original < 0:
        yield
        return
    captured = os.memfd_create("stderr")
    os.dup2(captured, 2)
    try:
        yield
    finally:
        os.dup2(original, 2)
        os.close(original)
        for line in os.pread(captured, 1 << 20, 0).splitlines(keepends=True):
            if line.strip() and not re.search(rb"libmpg123|^(Note|Warning|Hint): ", line):
                os.write(2, line)
        os.close(captured)


def _soundfile() -> ModuleType:
    """Return the module soundfile, which the microphone does not need.

    Raises DeviceError if it is missing, or not ready: it uses `ctypes.util.find_library`, which
    finds a libsndfile that apt has unpacked only after ldconfig, at the end of apt's run.
    """
    try:
        import soundfile as library
    except (ImportError, OSError) as error:
        raise DeviceError(
            f"sound files: the library soundfile cannot be used ({one_line(error)}): "
            "`sudo apt install python3-soundfile libsndfile1`, or pip install soundfile"
        ) from None
    found: ModuleType = library
    return found


def _reason(error: Exception) -> str:
    """Return libsndfile's reason, without soundfile's prefix and full stop."""
    return str(getattr(error, "error_string", error)).rstrip(".")


def _expected_samples(file: soundfile.SoundFile) -> int:
    """Return samples per channel by the header; libsndfile counts only those present."""
    data = re.search(r"^data\s*:\s*(\d+) \(should be (\d+)\)", file.extra_info, re.MULTILINE)
    if not data or int(data[1]) >= UNKNOWN_LENGTH:
        return int(file.frames)
    rate = re.search(r"Bytes/sec\s*:\s*(\d+)", file.extra_info)
    bytes_per_s = int(rate[1]) if rate else 0
    return int(data[1]) * int(file.samplerate) // bytes_per_s if bytes_per_s else int(file.frames)
