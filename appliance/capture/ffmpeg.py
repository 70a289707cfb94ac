"""What libsndfile does not read (m4a, mp4, webm, mkv, aac) through the program ffmpeg, if there.

ffmpeg is given an open file and no name: a name that begins with `-` or looks like an address means
nothing to it. It may open nothing else, and takes none of the formats that name other files
(playlists). It unpacks the default sound track, as raw 16-bit PCM at 16 kHz, mono.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
from contextlib import suppress
from typing import BinaryIO, cast

from appliance.errors import AudioError
from appliance.records import SAMPLE_RATE

END_S = 5.0
FORMATS = (
    "mov,matroska,aac,ogg,mp3,flac,wav,caf,aiff,asf,amr,avi,flv,mpegts,mpeg,wv,ape,ac3,eac3,tta"
)
"""Of ffmpeg's readers those that hold sound or films in one file (`ffmpeg -demuxers`)."""
LARGEST, MOST_BYTES, MOST_CPU_S = 64 << 20, 256 << 20, 600
"""Bytes that ffmpeg may ask for at once and in all, and seconds that it may compute, whatever a
header says. An hour of sound takes 20 MB and 10 s."""


class Ffmpeg:
    """A running ffmpeg that unpacks a file."""

    def __init__(self, name: str, descriptor: int, reason: str) -> None:
        """Starts it on an open file that can be sought in, which libsndfile did not read for this
        `reason`. Raises AudioError without ffmpeg."""
        program = shutil.which("ffmpeg")
        if program is None:
            raise AudioError(
                f"{name}: expected WAV, FLAC, Ogg or MP3, found another file ({reason}): ffmpeg "
                "may read it: `sudo apt install ffmpeg`, or convert it where there is one: "
                "`ffmpeg -i FILE -vn FILE.flac`"
            )
        self._errors = os.memfd_create("ffmpeg")
        # fmt: off
        command = [
            program, "-nostdin", "-v", "error", "-threads", "1", "-max_alloc", str(LARGEST),
            "-protocol_whitelist", "file,pipe", "-format_whitelist", FORMATS,
            "-i", f"file:/proc/self/fd/{descriptor}",
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
            pass_fds=[descriptor],
            process_group=0,  # Ctrl-C is ours to answer
        )
        self._stdout = cast(BinaryIO, self._process.stdout)
        limits = {resource.RLIMIT_DATA: MOST_BYTES, resource.RLIMIT_CPU: MOST_CPU_S}
        for kind, most in limits.items():
            with suppress(ProcessLookupError):  # it has ended
                resource.prlimit(self._process.pid, kind, (most, most))

    @property
    def output(self) -> int:
        """The descriptor that gives the samples, int16."""
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
