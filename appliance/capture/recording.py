"""A sound file, or raw PCM on standard input -> frames, as if it were the microphone."""

from __future__ import annotations

import logging
import os
import re
import select
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from appliance.capture.frames import Framer, Resampler
from appliance.errors import AudioError, DeviceError
from appliance.records import SAMPLE_RATE, Frame, Samples
from appliance.system import legible, one_line

if TYPE_CHECKING:
    import soundfile

log = logging.getLogger("roomscribe.capture")

EXPECTED = "expected a sound file such as WAV, FLAC or Ogg"
LOWEST_HZ, HIGHEST_HZ = 4000, 384_000
BLOCK_S = 0.1
LATE_S = 0.2
"""Sound that comes later than this (a slow pipe) has been recorded later, too."""
HELD_UP_S = 5.0
"""A file is there at once: when it is late, a busy machine held its reader up, and nothing else."""
POLL_S = 0.2
KNOWN_HEADERS = {b"RIFF": "WAV", b"fLaC": "FLAC", b"OggS": "Ogg", b"ID3\x03": "MP3"}
UNKNOWN_LENGTH = 0x7FFFFF00
"""Writers that cannot seek back put this or more into a WAV header in place of a length."""


class Recording:
    """Frames of 30 ms from a file (any rate, channels, encoding) or from `-`: standard input.

    In real time a frame comes when it would have been recorded, on time.monotonic()'s clock;
    otherwise at once, and its time is the position in the file. Only one block of the file is in
    memory. One thread reads; any thread may call `stop`.
    """

    def __init__(self, path: str, *, real_time: bool) -> None:
        """Opens the file; raises AudioError, and DeviceError without libsndfile."""
        self.warnings: list[str] = []
        """What is wrong with the recording without making it useless."""
        self.last_data_s = time.monotonic()
        """When sound last came, on time.monotonic()'s clock."""
        self._real_time, self._patience_s = real_time, LATE_S if path == "-" else HELD_UP_S
        self._stopped = threading.Event()
        self._sound: _Sound = _RawInput(self) if path == "-" else _File(path, self)
        self.name = path
        self.description = self._sound.description

    silence = trouble = ""

    def frames(self) -> Iterator[Frame]:
        """All frames, the last one filled up with silence; raises AudioError."""
        framer = Framer()
        given = 0
        for samples in self._sound.blocks(self._stopped):
            self.last_data_s = time.monotonic()
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
    """Anything that libsndfile reads."""

    def __init__(self, path: str, owner: Recording) -> None:
        self._path, self._owner = path, owner
        self._file = _open(path)
        rate_hz = self._file.samplerate
        if not LOWEST_HZ <= rate_hz <= HIGHEST_HZ:
            raise AudioError(
                f"{path}: expected {LOWEST_HZ} to {HIGHEST_HZ} Hz, found {rate_hz} Hz: "
                "is the header damaged? convert the file to 16000 Hz"
            )
        self.description = f"{legible(Path(path).name)} ({rate_hz} Hz, {self._file.channels} ch)"
        self._promised = _promised_frames(self._file)

    def blocks(self, stopped: threading.Event) -> Iterator[Samples]:
        """The whole file, resampled; a damaged or short one as far as it goes, with a warning."""
        rate_hz = self._file.samplerate
        resampler = Resampler(rate_hz)
        found = 0
        trouble = ""
        while not stopped.is_set():
            try:
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
            self._compare(found / rate_hz, self._promised / rate_hz, trouble)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _compare(self, found_s: float, promised_s: float, trouble: str) -> None:
        """Raises AudioError when nothing was found, warns when less than promised was."""
        if not found_s:
            raise AudioError(
                f"{self._path}: expected sound, found a header that promises {promised_s:.1f} s "
                f"and nothing after it{trouble}: record or copy the file again"
            )
        if trouble or promised_s - found_s > BLOCK_S:
            self._owner.warn(
                f"{self._path}: expected {promised_s:.1f} s of sound as its header says, found "
                f"{found_s:.1f} s{trouble}: the file is damaged or cut short; what is there is used"
            )


def _open(path: str) -> soundfile.SoundFile:
    """The file, opened; raises AudioError, and DeviceError without libsndfile."""
    try:
        with Path(path).open("rb") as file:
            head = file.read(4)
    except IsADirectoryError:
        raise AudioError(f"{path}: {EXPECTED}, found a folder: name the files in it") from None
    except FileNotFoundError:
        raise AudioError(f"{path}: {EXPECTED}, found nothing: is the path right?") from None
    except OSError as error:
        raise AudioError(f"{path}: cannot be read: {error.strerror}: check its mode") from None
    if not head:
        raise AudioError(f"{path}: {EXPECTED}, found an empty file: record or copy it again")
    library = _soundfile()
    try:
        return library.SoundFile(os.fsencode(path))  # its name need not be UTF-8
    except (library.LibsndfileError, TypeError) as error:
        raise AudioError(
            f"{path}: {EXPECTED}, found something that begins with {head!r} ({_reason(error)}): "
            "convert it, or send raw 16-bit PCM at 16000 Hz to standard input and name the file -"
        ) from None


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


class _RawInput:
    """16-bit little-endian mono PCM at 16 kHz from standard input."""

    description = "standard input (16-bit PCM, 16000 Hz, 1 ch)"

    def __init__(self, owner: Recording) -> None:
        self._owner = owner
        self._input = sys.stdin.fileno()

    def blocks(self, stopped: threading.Event) -> Iterator[Samples]:
        """What the writer sends, until it closes its end."""
        size = int(SAMPLE_RATE * BLOCK_S) * 2
        odd, first = b"", True
        while not stopped.is_set():
            if not select.select([self._input], [], [], POLL_S)[0]:
                continue
            data = os.read(self._input, size)
            if first and (kind := KNOWN_HEADERS.get(data[:4])):
                raise AudioError(
                    f"standard input: expected raw 16-bit PCM at 16000 Hz, found a {kind} file: "
                    "name the file in place of -"
                )
            if not data:
                break
            first = False
            data = odd + data
            odd = data[len(data) & ~1 :]
            yield np.frombuffer(data[: len(data) & ~1], "<i2").astype(np.int16)
        if first and not stopped.is_set():
            raise AudioError("standard input: expected raw 16-bit PCM at 16000 Hz, found nothing")
        if odd:
            self._owner.warn("standard input ended in the middle of a sample; it is left out")

    def close(self) -> None:
        """Leaves standard input to whoever opened it."""
