"""A sound file, also on standard input, or raw PCM there -> frames, as if it were the microphone.

Files are read by libsndfile; what it does not know by ffmpeg, where there is one. From a pipe raw
PCM and WAV are heard as they come; other formats are kept in memory first, for they are sought in.
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
    RAW,
    READ_BY_FFMPEG,
    SECOND_TRY,
    WAV,
    Layout,
    kind_of,
    wave_layout,
    what_is_no_sound,
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
BLOCK_S, MOST_READ = 0.1, 1 << 20
"""Length of one read, and bytes of it at most, whatever a header says."""
LATE_S = 0.2
"""Sound that comes later than this (a slow pipe) has been recorded later, too."""
HELD_UP_S = 5.0
"""A file is there at once: when it is late, a busy machine held its reader up, and nothing else."""
POLL_S = 0.2
UNKNOWN_LENGTH = 0x7FFFFF00
"""Writers that cannot seek back put this or more into a WAV header in place of a length."""


KEPT = 256 << 20
"""Bytes of a file from a pipe that are kept in memory: hours of anything but WAV."""


class Recording:
    """Frames of 30 ms from a file (any rate, channels, encoding) or from `-`: standard input.

    In real time a frame comes when it would have been recorded, on time.monotonic()'s clock;
    otherwise at once, and its time is the position in the file. Only one block of the file is in
    memory. One thread reads; any thread may call `stop`.
    """

    def __init__(self, path: str, *, real_time: bool) -> None:
        """Opens the file; raises AudioError, and DeviceError without libsndfile. What comes from a
        pipe is looked at by `frames`."""
        self.warnings: list[str] = []
        """What is wrong with the recording without making it useless."""
        self._real_time, self._patience_s = real_time, LATE_S if path == "-" else HELD_UP_S
        self._stopped = threading.Event()
        self._sound = _open(path, self)
        self.name = path
        self.description = legible(self._sound.description)

    silence = trouble = ""

    @property
    def duration_s(self) -> float:
        """How long it is, as far as a file's header says; else 0."""
        return getattr(self._sound, "duration_s", 0.0)

    def frames(self) -> Iterator[Frame]:
        """All frames, the last one filled up with silence; raises as `__init__` does."""
        framer = Framer()
        given = 0
        for samples in self._sound.blocks(self._stopped):
            yield from self._paced(framer.push(samples, given / SAMPLE_RATE))
            given += len(samples)
        yield from self._paced(framer.rest(given / SAMPLE_RATE))

    def stop(self) -> None:
        """Makes `frames` end within POLL_S. Any thread."""
        self._stopped.set()

    def warn(self, message: str) -> None:
        """Logs and keeps a warning."""
        self.warnings.append(message)
        log.warning("%s", message)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sound.close()

    def _paced(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        """The frames, each when it is due, until `stop`."""
        for frame in frames:
            due = self._on_time(frame) if self._real_time else frame
            if self._stopped.is_set():
                return
            yield due

    _began_s: float | None = None

    def _on_time(self, frame: Frame) -> Frame:
        """Waits until the frame would have been recorded, and dates it accordingly."""
        now_s = time.monotonic()
        if self._began_s is None:
            self._began_s = now_s
        late_s = now_s - (self._began_s + frame.end_s)
        if late_s > self._patience_s:
            self._began_s += late_s
        elif late_s < 0:
            self._stopped.wait(-late_s)
        return Frame(frame.samples, self._began_s + frame.start_s, frame.after_gap)


class _Sound(Protocol):
    """Where a recording's samples come from."""

    description: str

    def blocks(self, stopped: threading.Event) -> Iterator[Samples]:
        """(n,) int16 at 16 kHz until the end or `stopped`; raises AudioError."""
        ...

    def close(self) -> None:
        """Lets go of the file."""
        ...


class _File:
    """What libsndfile reads."""

    def __init__(self, file: str, name: str, owner: Recording) -> None:
        """Raises RuntimeError (LibsndfileError) and TypeError for what it does not know."""
        self._name, self._owner = name, owner
        with _mpg123_hushed():
            self._file = _soundfile().SoundFile(os.fsencode(file))  # may be no UTF-8
        rate_hz, channels = self._file.samplerate, self._file.channels
        _check_rate(name, rate_hz)
        self.description = f"{Path(name).name} ({rate_hz} Hz, {channels} ch)"
        self._weights = channel_weights(channels, ogg=self._file.format == "OGG")
        self._promised = _promised_frames(self._file)
        self.duration_s = self._promised / rate_hz

    def blocks(self, stopped: threading.Event) -> Iterator[Samples]:
        """The whole file, resampled; a damaged or short one as far as it goes, with a warning."""
        rate_hz = self._file.samplerate
        resampler = Resampler(rate_hz, self._weights)
        hushed = _mpg123_hushed if "MPEG" in self._file.subtype else nullcontext
        found = 0
        trouble = ""
        while not stopped.is_set():
            try:
                with hushed():
                    sound = self._file.read(int(rate_hz * BLOCK_S), dtype="float32", always_2d=True)
            except RuntimeError as error:  # LibsndfileError is one
                trouble = f" ({_reason(error)})"
                break
            if not len(sound):
                break
            found += len(sound)
            yield resampler.push(sound)
        yield resampler.push(np.zeros((0, self._file.channels), np.float32), last=True)
        if not stopped.is_set():
            found_s, promised_s = found / rate_hz, self._promised / rate_hz
            _compare(self._name, found_s, promised_s, trouble, self._owner)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class _Pcm:
    """Samples in a pipe, resampled and mixed."""

    def __init__(
        self, descriptor: int, layout: Layout, begun: bytes = b"", length: int | None = None
    ) -> None:
        """`begun` was read of them already; `length` bytes there are, or as many as come."""
        self._input, self._layout, self._pending, self._length = descriptor, layout, begun, length
        self._type = np.dtype(layout.dtype)
        self._width = self._type.itemsize * layout.channels
        self.found_s = 0.0
        self.is_odd = False
        """It ended in the middle of a sample."""

    def blocks(self, stopped: threading.Event) -> Iterator[Samples]:
        """(n,) int16 at 16 kHz until the end or `stopped`."""
        rate_hz, channels = self._layout.rate_hz, self._layout.channels
        resampler = Resampler(rate_hz, channel_weights(channels))
        size = max(self._width, min(int(rate_hz * BLOCK_S) * self._width, MOST_READ))
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
        """The same in -1..1."""
        kind = self._type.kind
        if kind == "f":
            with np.errstate(over="ignore", invalid="ignore"):  # the resampler clips
                return sound.astype(np.float32)
        full = np.float32(2 ** (8 * self._type.itemsize - 1))
        return (sound.astype(np.float32) - (full if kind == "u" else 0)) / full


class _Unpacked:
    """What ffmpeg reads."""

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
        """The first sound track; of a damaged file as much as ffmpeg reads, with a warning."""
        pcm = _Pcm(self._program.output, self._program.layout)
        yield from pcm.blocks(stopped)
        trouble = "" if stopped.is_set() else self._program.trouble()
        if not pcm.found_s and not stopped.is_set():
            raise AudioError(
                f"{self._name}: expected sound, found none{trouble and f' ({trouble})'}: record or "
                "copy the file again"
            )
        if trouble:
            self._owner.warn(
                f"{self._name}: expected a whole file, found {pcm.found_s:.1f} s of sound and "
                f"damage ({trouble}); what is there is used"
            )

    def close(self) -> None:
        """Ends ffmpeg."""
        self._program.close()


class _Pipe:
    """Standard input, or another pipe: a sound file of any kind, or raw PCM."""

    def __init__(self, descriptor: int, name: str, owner: Recording, *, raw: bool) -> None:
        """`raw`: what is no sound file is 16-bit little-endian mono PCM at 16 kHz."""
        self._input, self._name, self._owner, self._raw = descriptor, name, owner, raw
        self.description = f"{name} (16-bit PCM, 16000 Hz, 1 ch, or a sound file)" if raw else name
        self._kept: _Sound | None = None

    def blocks(self, stopped: threading.Event) -> Iterator[Samples]:
        """What the writer sends, until it closes its end."""
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
            self._kept = self._keep(head, stopped)
            if self._kept:
                yield from self._kept.blocks(stopped)
        else:
            yield from self._raw_samples(head, stopped)

    def close(self) -> None:
        """Leaves standard input to whoever opened it."""
        if self._kept:
            self._kept.close()
        if not self._raw:
            os.close(self._input)

    def _wave(
        self, head: bytes, layout: Layout, start: int, length: int, stopped: threading.Event
    ) -> Iterator[Samples]:
        """A WAV as it comes."""
        _check_rate(self._name, layout.rate_hz)
        pcm = _Pcm(self._input, layout, head[start:], length if length < UNKNOWN_LENGTH else None)
        yield from pcm.blocks(stopped)
        promised_s = length / np.dtype(layout.dtype).itemsize / layout.channels / layout.rate_hz
        if not stopped.is_set() and length < UNKNOWN_LENGTH:
            _compare(self._name, pcm.found_s, promised_s, "", self._owner)

    def _keep(self, head: bytes, stopped: threading.Event) -> _Sound | None:
        """The file, read to its end into memory, and opened; None when `stopped`."""
        memory = os.memfd_create("recording")
        with os.fdopen(memory, "wb", buffering=0) as file:
            for data in _read(self._input, 1 << 20, stopped, head):
                if file.tell() + len(data) > KEPT:
                    raise AudioError(
                        f"{self._name}: expected at most {KEPT >> 20} MiB of a file that has to be "
                        "sought in, found more: name the file, or send WAV"
                    )
                file.write(data)
            return (
                None
                if stopped.is_set()
                else _open_file(f"/proc/self/fd/{memory}", self._name, head, self._owner)
            )

    def _raw_samples(self, head: bytes, stopped: threading.Event) -> Iterator[Samples]:
        if not self._raw:
            raise AudioError(
                f"{self._name}: {EXPECTED}, found something that begins with {head[:4]!r}"
            )
        if found := what_is_no_sound(head):
            raise AudioError(
                f"{self._name}: expected raw 16-bit PCM at 16000 Hz or a sound file, found {found}"
            )
        pcm = _Pcm(self._input, RAW, head)
        yield from pcm.blocks(stopped)
        if pcm.is_odd and not stopped.is_set():
            self._owner.warn(f"{self._name} ended in the middle of a sample; it is left out")


def _open(path: str, owner: Recording) -> _Sound:
    """The recording, opened; raises AudioError, and DeviceError without libsndfile."""
    if path == "-":
        return _Pipe(sys.stdin.fileno(), "standard input", owner, raw=True)
    try:
        if stat.S_ISFIFO(Path(path).stat().st_mode):
            return _Pipe(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path, owner, raw=False)
        with Path(path).open("rb") as file:
            head = file.read(HEAD)
    except IsADirectoryError:
        raise AudioError(f"{path}: {EXPECTED}, found a folder: name the files in it") from None
    except FileNotFoundError:
        raise AudioError(f"{path}: {EXPECTED}, found nothing: is the path right?") from None
    except OSError as error:
        raise AudioError(f"{path}: cannot be read: {error.strerror}: check its mode") from None
    if not head:
        raise AudioError(f"{path}: {EXPECTED}, found an empty file: record or copy it again")
    return _open_file(path, path, head, owner)


def _open_file(file: str, name: str, head: bytes, owner: Recording) -> _Sound:
    """A file that can be sought in, which begins with `head`; `name` is for messages."""
    kind = kind_of(head)
    if kind == AAC or kind in READ_BY_FFMPEG.values():
        return _Unpacked(file, name, kind, owner)
    library = _soundfile()
    try:
        return _File(file, name, owner)
    except (library.LibsndfileError, TypeError) as error:
        if kind in SECOND_TRY and find_ffmpeg():
            return _Unpacked(file, name, kind, owner)
        raise AudioError(
            f"{name}: {EXPECTED}, found something that begins with {head[:4]!r} "
            f"({_reason(error)}): convert it, or send raw 16-bit PCM at 16000 Hz to standard input "
            "and name the file -"
        ) from None


def _read(
    descriptor: int, size: int, stopped: threading.Event, begun: bytes = b""
) -> Iterator[bytes]:
    """`begun`, then what comes, at most `size` bytes at a time, until the end or `stopped`."""
    if begun:
        yield begun
    while not stopped.is_set():
        if not select.select([descriptor], [], [], POLL_S)[0]:
            continue
        if not (data := os.read(descriptor, size)):
            return
        yield data


def _check_rate(name: str, rate_hz: int) -> None:
    """Raises AudioError for a rate that no recorder has."""
    if not LOWEST_HZ <= rate_hz <= HIGHEST_HZ:
        raise AudioError(
            f"{name}: expected {LOWEST_HZ} to {HIGHEST_HZ} Hz, found {rate_hz} Hz: is the header "
            "damaged? convert the file to 16000 Hz"
        )


def _compare(name: str, found_s: float, promised_s: float, trouble: str, owner: Recording) -> None:
    """Raises AudioError when nothing was found, warns when less than promised was."""
    if not found_s:
        raise AudioError(
            f"{name}: expected sound, found a header that promises {promised_s:.1f} s "
            f"and nothing after it{trouble}: record or copy the file again"
        )
    if trouble or promised_s - found_s > BLOCK_S:
        owner.warn(
            f"{name}: expected {promised_s:.1f} s of sound as its header says, found "
            f"{found_s:.1f} s{trouble}: the file is damaged or cut short; what is there is used"
        )


@contextmanager
def _mpg123_hushed() -> Iterator[None]:
    """Keeps libmpg123's remarks on tags and frames from standard error; what others write stays."""
    sys.stderr.flush()
    try:
        kept = os.dup(2)
    except OSError:  # closed
        kept = -1
    if kept < 0:
        yield
        return
    captured = os.memfd_create("stderr")
    os.dup2(captured, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        for line in os.pread(captured, 1 << 20, 0).splitlines(keepends=True):
            if line.strip() and not re.search(rb"libmpg123|^(Note|Warning|Hint): ", line):
                os.write(2, line)
        os.close(captured)


def _soundfile() -> ModuleType:
    """The library, loaded when a file is heard: the microphone works without it.

    Raises DeviceError where it is not there, or not yet: `ctypes.util.find_library`, which it asks,
    sees a libsndfile that apt has just unpacked only after ldconfig, at the end of apt's run.
    """
    try:
        import soundfile as library
    except (ImportError, OSError) as error:
        raise DeviceError(
            f"sound files: expected the library soundfile, found {one_line(error)}: "
            "`sudo apt install python3-soundfile libsndfile1`, or pip install soundfile"
        ) from None
    found: ModuleType = library
    return found


def _reason(error: Exception) -> str:
    """Why libsndfile refuses, without what soundfile writes before it and its full stop."""
    return str(getattr(error, "error_string", error)).rstrip(".")


def _promised_frames(file: soundfile.SoundFile) -> int:
    """Samples per channel that the header promises; libsndfile's count is cut to what is there."""
    data = re.search(r"^data\s*:\s*(\d+) \(should be (\d+)\)", file.extra_info, re.MULTILINE)
    if not data or int(data[1]) >= UNKNOWN_LENGTH:
        return int(file.frames)
    rate = re.search(r"Bytes/sec\s*:\s*(\d+)", file.extra_info)
    bytes_per_s = int(rate[1]) if rate else 0
    return int(data[1]) * int(file.samplerate) // bytes_per_s if bytes_per_s else int(file.frames)
