"""What libsndfile does not read (m4a, mp4, webm, mkv, aac) through the program ffmpeg, if there.

ffmpeg is given an open file and no name: a name that begins with `-` or looks like an address means
nothing to it. It may open nothing else, and takes none of the formats that name other files
(playlists). It unpacks the first sound track, in its own rate and channels; mixing and resampling
are the same for all recordings.
"""

from __future__ import annotations

import os
import re
import resource
import select
import shutil
import struct
import subprocess
from contextlib import suppress
from typing import BinaryIO, cast

from appliance.capture.formats import Layout
from appliance.errors import AudioError

ANSWER_S = 30.0
END_S = 5.0
FORMATS = (
    "mov,matroska,aac,ogg,mp3,flac,wav,caf,aiff,asf,amr,avi,flv,mpegts,mpeg,wv,ape,ac3,eac3,tta"
)
"""Of ffmpeg's readers those that hold sound or films in one file (`ffmpeg -demuxers`)."""
LARGEST, MOST_BYTES, MOST_CPU_S = 64 << 20, 256 << 20, 600
"""Bytes that ffmpeg may ask for at once and in all, and seconds that it may compute, whatever a
header says. An hour of sound takes 20 MB and 10 s."""
HEADER = struct.Struct(">4s5I")
"""Of an AU file, as ffmpeg writes it into a pipe: magic, offset of the sound, its length, encoding,
rate, channels (the order of the channels is WAV's)."""
ENCODING = 6
"""float32, big-endian."""
FLOAT = ">f4"


def find_ffmpeg() -> str | None:
    """The program's path; None where it is not installed."""
    return shutil.which("ffmpeg")


class Ffmpeg:
    """A running ffmpeg that unpacks a file. `layout` says what `output` gives."""

    def __init__(self, name: str, descriptor: int, kind: str) -> None:
        """Starts it on an open file that can be sought in. `name` and `kind` are for messages.

        Raises AudioError: there is no ffmpeg, or no sound that it knows.
        """
        self._name, self._kind = name, kind
        program = find_ffmpeg()
        if program is None:
            raise AudioError(
                f"{name}: expected WAV, FLAC, Ogg or MP3, found {kind}, which ffmpeg can read: "
                "`sudo apt install ffmpeg`, or convert it where there is one: "
                "`ffmpeg -i FILE -vn FILE.flac`"
            )
        self._errors = os.memfd_create("ffmpeg")
        # fmt: off
        command = [
            program, "-nostdin", "-v", "error", "-threads", "1", "-max_alloc", str(LARGEST),
            "-protocol_whitelist", "file,pipe", "-format_whitelist", FORMATS,
            "-i", f"file:/proc/self/fd/{descriptor}",
            "-map", "0:a:0", "-map_metadata", "-1", "-bitexact",
            "-c:a", "pcm_f32be", "-f", "au", "pipe:1",
        ]
        # fmt: on
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            pass_fds=[descriptor],
            process_group=0,  # Ctrl-C is ours to answer
        )
        self._stdout = cast(BinaryIO, self._process.stdout)
        try:
            self._limit()
            self.layout = self._read_header()
        except BaseException:
            self.close()
            raise

    def _limit(self) -> None:
        limits = {resource.RLIMIT_DATA: MOST_BYTES, resource.RLIMIT_CPU: MOST_CPU_S}
        for kind, most in limits.items():
            with suppress(ProcessLookupError):  # it has ended
                resource.prlimit(self._process.pid, kind, (most, most))

    @property
    def output(self) -> int:
        """The descriptor that gives the samples."""
        return self._stdout.fileno()

    def trouble(self) -> str:
        """After the last sample: what ffmpeg found wrong; "" when all is well."""
        try:
            status = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            return "ffmpeg does not end"
        output = os.pread(self._errors, 1 << 16, 0).decode(errors="replace")
        for line in output.splitlines():
            text = re.sub(r"^(\[[^]]*\] |file:/proc/self/fd/\d+: )+", "", line).strip(" .")
            if text:
                return text
        return f"ffmpeg ended with status {status}" if status else ""

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait()
        self._stdout.close()
        os.close(self._errors)

    def _read_header(self) -> Layout:
        """What the samples will look like; raises AudioError when none come."""
        header = self._read(HEADER.size)
        if len(header) < HEADER.size:
            reason = self.trouble()
            if "matches no streams" in reason:
                raise AudioError(f"{self._name}: expected sound, found {self._kind} without any")
            raise AudioError(
                f"{self._name}: expected sound, found {self._kind} that ffmpeg does not read: "
                f"{reason or 'it says nothing'}: record, copy or convert it again"
            )
        magic, offset, _, encoding, rate_hz, channels = HEADER.unpack(header)
        if (magic, encoding) != (b".snd", ENCODING) or not channels:
            raise AudioError(f"{self._name}: expected AU of float32 from ffmpeg, found {header!r}")
        self._read(offset - HEADER.size)
        return Layout(FLOAT, rate_hz, channels)

    def _read(self, size: int) -> bytes:
        """So many bytes, fewer at the end; raises AudioError when nothing comes."""
        found = b""
        while len(found) < size:
            if not select.select([self.output], [], [], ANSWER_S)[0]:
                raise AudioError(
                    f"{self._name}: expected {self._kind} to be unpacked, found no answer of "
                    f"ffmpeg within {ANSWER_S:g} s: convert it by hand: `ffmpeg -i FILE FILE.flac`"
                )
            if not (data := os.read(self.output, size - len(found))):
                break
            found += data
        return found
