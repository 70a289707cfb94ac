"""Frames from a sound file or from standard input, as if they came from the microphone.

libsndfile reads files, and the program ffmpeg, if installed, what libsndfile does not know (m4a,
mp4, webm, mkv, aac). A sound file from a pipe is read into memory first; raw PCM is streamed.
"""

from __future__ import annotations

import logging
import mmap
import os
import re
import resource
import select
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from appliance.capture.filters import Resampler
from appliance.capture.frames import Framer, Source
from appliance.errors import AudioError, DeviceError
from appliance.records import FULL_SCALE, SAMPLE_RATE, Frame, Samples
from appliance.system import legible, one_line

log = logging.getLogger("roomscribe.capture")

SOUND_FILE = re.compile(
    rb"RIFF|RF64|OggS|fLaC|ID3|FORM|caff|\.snd|\x1a\x45\xdf\xa3|.{4}ftyp|\xff[\xf1\xf3\xf9\xfb]",
    re.DOTALL,
)
"""How a sound file begins in a pipe; anything else there is raw PCM."""
HEAD_BYTES, NO_LENGTH = 4096, b"data" + bytes(4)
"""Where the chunk of a WAV's samples begins, with the length that a killed writer leaves."""
ADTS = re.compile(rb"\xff[\xf0\xf1\xf8\xf9]")
"""Raw AAC, which libsndfile takes for MP3 (ISO 13818-7: a sync word of 12 bits, and layer 0)."""
FIRST_PAGE = b"OggS\0\2"
"""Of a stream in an Ogg file; several make a chain, of which libsndfile reads the first one."""
UNKNOWN_FRAMES = 1 << 60
"""libsndfile's length of a FLAC from a pipe is greater; it reports an error at its end."""
LOWEST_HZ, HIGHEST_HZ = 4000, 384_000
BLOCK_S, READ_BYTES = 0.1, 1 << 20
"""Length of one read, and its limit in bytes whatever a header says."""
AHEAD_S = 1.6
"""A file's begin, in which a hum is looked for before the first sample is used."""
RAW_BYTES = 2 * int(BLOCK_S * SAMPLE_RATE)
LATE_S = 0.2
"""Sound from a slow pipe that comes later than this was also recorded later."""
BUSY_S = 5.0
"""The same for a file: if it is less late than this, the machine was just busy."""
POLL_S = 0.2
PIPED_FILE_BYTES = 256 << 20
"""Limit of a file read from a pipe into memory."""
FFMPEG_ENDS_S = 5.0
FORMATS = (
    "mov,matroska,aac,ogg,mp3,flac,wav,caf,aiff,asf,amr,avi,flv,mpegts,mpeg,wv,ape,ac3,eac3,tta"
)
"""Of ffmpeg's readers those that hold sound or films in one file (`ffmpeg -demuxers`)."""
LARGEST, MOST_BYTES, MOST_CPU_S = 64 << 20, 256 << 20, 600
"""Bytes that ffmpeg may ask for at once and in all, and seconds that it may compute, whatever a
header says. An hour of sound takes 20 MB and 10 s."""


class Recording(Source):
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

    def warn_of_damage(self, reason: str, found_s: float) -> None:
        """Log and store that only a part of the sound can be used. Raises AudioError if there is
        none."""
        if not found_s:
            found = f" ({reason})" if reason else ""
            raise AudioError(f"{self.name}: no sound in it{found}: record or copy it again")
        if reason:
            text = f"{self.name}: the file is damaged ({reason}): {found_s:.1f} s of it are used"
            self.warnings.append(text)
            log.warning("%s", text)

    def close(self) -> None:
        """Close the file."""
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


class _File:
    """A file that libsndfile reads."""

    def __init__(self, file: str, owner: Recording) -> None:
        """Raises RuntimeError (LibsndfileError) and TypeError for unknown formats, AudioError for a
        rate that no recorder has."""
        self._owner = owner
        self._file = _soundfile().SoundFile(os.fsencode(file))  # may be no UTF-8
        rate_hz, channels = self._file.samplerate, self._file.channels
        if not LOWEST_HZ <= rate_hz <= HIGHEST_HZ:
            raise AudioError(
                f"{owner.name}: expected {LOWEST_HZ} to {HIGHEST_HZ} Hz, found {rate_hz} Hz: "
                "convert it to 16000 Hz, or record it again if its header is damaged"
            )
        if self._file.frames > UNKNOWN_FRAMES and shutil.which("ffmpeg"):
            raise RuntimeError("no length in it")
        self._is_noisy = self._file.format in ("MP3", "MPEG")
        if not self._file.frames:  # by the header of a writer that was killed
            raise RuntimeError("no sound in it")
        self.description = f"{Path(owner.name).name} ({rate_hz} Hz, {channels} ch)"
        known = self._file.frames < UNKNOWN_FRAMES
        self.duration_s = self._file.frames / rate_hz if known else 0.0

    def blocks(self, stopped: threading.Event) -> Iterator[Samples]:
        """Yield the resampled mean of the channels; of a damaged file what is readable, with a
        warning."""
        rate_hz, channels = self._file.samplerate, self._file.channels
        resampler = Resampler(rate_hz, (1 / channels,) * channels)
        found, trouble = 0, ""
        size = max(1, min(int(rate_hz * BLOCK_S), READ_BYTES // (4 * channels)))
        early = list[NDArray[np.float32]]()
        while not stopped.is_set():
            try:
                with _quiet() if self._is_noisy else nullcontext():
                    sound = self._file.read(size, dtype="float32", always_2d=True)
            except RuntimeError as error:  # LibsndfileError is one
                trouble = _reason(error)
                break
            if not len(sound):
                break
            found += len(sound)
            early += [sound]
            if found >= rate_hz * AHEAD_S:
                yield resampler.push(np.concatenate(early), ahead=len(early) > 1)
                early.clear()
        early += [np.zeros((0, channels), np.float32)]
        yield resampler.push(np.concatenate(early), last=True, ahead=len(early) > 1)
        if not stopped.is_set():
            self._owner.warn_of_damage(trouble, found / rate_hz)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _FfmpegFile:
    """A file that a running ffmpeg unpacks: its default sound track, as 16-bit PCM at 16 kHz, mono.

    ffmpeg is given an open file and no name: one that begins with `-` or looks like an address
    means nothing to it. It may open nothing else, and takes none of the formats that name other
    files (playlists).
    """

    def __init__(self, file: str, owner: Recording, reason: str) -> None:
        """`reason`: why libsndfile does not read it. Raises AudioError without ffmpeg."""
        self._owner = owner
        self.description = f"{Path(owner.name).name} (ffmpeg)"
        program = shutil.which("ffmpeg")
        if program is None:
            raise AudioError(
                f"{owner.name}: expected WAV, FLAC, Ogg or MP3, found another file ({reason}): "
                "ffmpeg may read it: `sudo apt install ffmpeg`, or convert it where there is one: "
                "`ffmpeg -i FILE -vn FILE.flac`"
            )
        self._errors = os.memfd_create("ffmpeg")
        with Path(file).open("rb") as opened:
            # fmt: off
            command = [
                program, "-nostdin", "-v", "error", "-threads", "1", "-max_alloc", str(LARGEST),
                "-protocol_whitelist", "file,pipe", "-format_whitelist", FORMATS,
                "-i", f"file:/proc/self/fd/{opened.fileno()}",
                "-vn", "-sn", "-dn", "-map_metadata", "-1", "-bitexact",
                "-af", "aresample=async=1:first_pts=0",  # silence until a track that begins later
                "-ac", "1", "-ar", str(SAMPLE_RATE), "-c:a", "pcm_s16le", "-f", "s16le", "pipe:1",
            ]
            # fmt: on
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                pass_fds=[opened.fileno()],
                process_group=0,  # Ctrl-C is ours to answer
            )
        self._stdout = cast(BinaryIO, self._process.stdout)
        limits = {resource.RLIMIT_DATA: MOST_BYTES, resource.RLIMIT_CPU: MOST_CPU_S}
        for kind, most in limits.items():
            with suppress(ProcessLookupError):  # it has ended
                resource.prlimit(self._process.pid, kind, (most, most))

    def blocks(self, stopped: threading.Event) -> Iterator[Samples]:
        """Yield the first audio track; of a damaged file what ffmpeg reads, with a warning."""
        found = 0
        for samples in _raw_blocks(self._stdout.fileno(), stopped):
            found += len(samples)
            yield samples
        if not stopped.is_set():
            self._owner.warn_of_damage(self._trouble(), found / SAMPLE_RATE)

    def _trouble(self) -> str:
        """After the last sample: what ffmpeg found wrong; "" when all is well."""
        try:
            status = self._process.wait(FFMPEG_ENDS_S)
        except subprocess.TimeoutExpired:
            return "ffmpeg does not end"
        output = os.pread(self._errors, 1 << 16, 0).decode(errors="replace")
        for line in output.splitlines():
            text = re.sub(r"^(\[[^]]*\] |file:/proc/self/fd/\d+: )+", "", line).strip(" .")
            if text:
                return text
        return f"ffmpeg ended with status {status}" if status else ""

    def close(self) -> None:
        """End ffmpeg."""
        self._process.kill()
        self._process.wait()
        self._stdout.close()
        os.close(self._errors)


class _Pipe:
    """Standard input or another pipe: a sound file, or 16-bit little-endian mono PCM at 16 kHz."""

    def __init__(self, descriptor: int, owner: Recording) -> None:
        self._input, self._owner = descriptor, owner
        self.description = f"{owner.name} (16-bit PCM, 16000 Hz, 1 ch, or a sound file)"
        self._file: _Sound | None = None

    def blocks(self, stopped: threading.Event) -> Iterator[Samples]:
        """Yield (n,) int16 at 16 kHz until the writer closes the pipe or `stopped`."""
        head = next(_read(self._input, RAW_BYTES, stopped), b"")
        if stopped.is_set():
            return
        if not head:
            raise AudioError(f"{self._owner.name}: expected sound, found nothing")
        if not SOUND_FILE.match(head):
            yield from _raw_blocks(self._input, stopped, head)
        elif file := self._read_file(head, stopped):
            self._file = file
            yield from file.blocks(stopped)

    def close(self) -> None:
        """Close the file in memory, and the pipe unless it is standard input."""
        if self._file:
            self._file.close()
        if self._input != sys.stdin.fileno():
            os.close(self._input)

    def _read_file(self, head: bytes, stopped: threading.Event) -> _Sound | None:
        """Read the file into memory and return it, opened; None if `stopped`."""
        memory = os.memfd_create("recording")
        with os.fdopen(memory, "wb", buffering=0) as file:
            for data in _read(self._input, READ_BYTES, stopped, head):
                if file.tell() + len(data) > PIPED_FILE_BYTES:
                    raise AudioError(
                        f"{self._owner.name}: more than {PIPED_FILE_BYTES >> 20} MiB, too much for "
                        "a pipe: name the file, or send raw PCM"
                    )
                file.write(data)
            if stopped.is_set():
                return None
            return _open_file(f"/proc/self/fd/{memory}", self._owner)


_Sound = _File | _FfmpegFile | _Pipe


def _open(path: str, name: str, owner: Recording) -> _Sound:
    """Open a recording; `name` is for messages. Raises as Recording does."""
    if path == "-":
        owner.name = "standard input"
        return _Pipe(sys.stdin.fileno(), owner)
    try:
        if stat.S_ISFIFO(Path(path).stat().st_mode):
            return _Pipe(os.open(path, os.O_RDONLY | os.O_CLOEXEC), owner)
        with Path(path).open("rb") as file:
            is_empty = not file.read(1)
    except IsADirectoryError:
        raise AudioError(f"{path} is a folder: name a sound file in it") from None
    except FileNotFoundError:
        raise AudioError(f"{path}: no such file: check the path") from None
    except OSError as error:
        raise AudioError(
            f"{path}: cannot be read ({error.strerror}): check its permissions"
        ) from None
    if is_empty:
        raise AudioError(f"{name} is an empty file: record or copy it again")
    return _open_file(path, owner)


def _open_file(file: str, owner: Recording) -> _Sound:
    """Open a seekable file."""
    library = _soundfile()
    if reason := _unreadable(file):
        return _FfmpegFile(file, owner, reason)
    with _with_length(file) as found:
        try:
            return _File(found, owner)
        except (library.LibsndfileError, RuntimeError, TypeError) as error:
            return _FfmpegFile(found, owner, _reason(error))


def _unreadable(file: str) -> str:
    """Return why libsndfile would not read all of a file, or another one in its place; "" if it
    does."""
    with Path(file).open("rb") as opened:
        head = opened.read(len(FIRST_PAGE))
        if ADTS.match(head):
            return "raw AAC"
        if head != FIRST_PAGE:
            return ""
        with mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as data:
            return "several Ogg streams" if data.find(FIRST_PAGE, 1) >= 0 else ""


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop what a library prints on standard error: libmpg123 does for files that are right."""
    before, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nowhere)


@contextmanager
def _with_length(file: str) -> Iterator[str]:
    """Yield the file; for a WAV whose header gives no length, since its writer was killed, a copy
    in memory with the greatest one: libsndfile reads what is there."""
    with Path(file).open("rb") as opened:
        head = opened.read(HEAD_BYTES)
        at = head.find(NO_LENGTH) if head.startswith(b"RIFF") else -1
        rest = opened.read(PIPED_FILE_BYTES) if at >= 0 else b""
    if at < 0:
        yield file
        return
    with os.fdopen(os.memfd_create("recording"), "wb", buffering=0) as copy:
        copy.write(head[: at + 4] + b"\xff" * 4 + head[at + 8 :] + rest)
        yield f"/proc/self/fd/{copy.fileno()}"


def _raw_blocks(descriptor: int, stopped: threading.Event, head: bytes = b"") -> Iterator[Samples]:
    """Yield (n,) int16 from a pipe of 16-bit mono PCM at 16 kHz, without a hum."""
    resampler, pending = Resampler(SAMPLE_RATE), b""
    for data in _read(descriptor, RAW_BYTES, stopped, head, idle=True):
        pending = pending + data if data else b""  # a writer that ended within a sample
        whole = len(pending) & ~1
        sound = np.frombuffer(pending[:whole], "<i2").astype(np.float32) / FULL_SCALE
        pending = pending[whole:]
        yield resampler.push(sound.reshape(-1, 1))


def _read(
    descriptor: int,
    size: int,
    stopped: threading.Event,
    head: bytes = b"",
    *,
    idle: bool = False,
) -> Iterator[bytes]:
    """Yield `head`, then at most `size` bytes at a time until the end or `stopped`; with `idle`
    also nothing, after POLL_S without any."""
    if head:
        yield head
    while not stopped.is_set():
        if not select.select([descriptor], [], [], POLL_S)[0]:
            if idle:
                yield b""
            continue
        if not (data := os.read(descriptor, size)):
            return
        yield data


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
