"""Shared by the tests: sentences between silences, a daemon's folder, a daemon fed by a pipe."""

import array
import fcntl
import functools
import json
import os
import select
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray
from rigs import recordings
from rigs.checkout import ROOT
from rigs.daemon import daemon, write_config
from rigs.sounds import read, to_int16
from rigs.systemd import Systemd
from rigs.word_errors import words

RATE = 16_000
BYTES_PER_S = 2 * RATE
STEP = 7680
"""A multiple of the frames of 30 ms and of Silero's 32 ms: a sentence begins alike everywhere."""
TAIL_S = 1.5

Sound = NDArray[np.int16]


@dataclass(frozen=True)
class Spoken:
    """One sentence between silences."""

    number: int
    text: str
    pcm: bytes


def between_silences(samples: Sound) -> Sound:
    """0.48 s of silence, the samples, at least TAIL_S of silence; whole STEPs."""
    length = STEP + len(samples) + int(TAIL_S * RATE)
    whole = np.zeros(-(-length // STEP) * STEP, np.int16)
    whole[STEP : STEP + len(samples)] = samples
    return whole


def sentences() -> list[Spoken]:
    """The 40 sentences of tests/speech."""
    return [
        Spoken(number, one.text, between_silences(to_int16(read(one.file))).tobytes())
        for number, one in enumerate(recordings.sentences())
    ]


class Place(ExitStack):
    """A folder with a daemon's configuration, state and spool, gone afterwards."""

    def __init__(self) -> None:
        super().__init__()
        memory = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
        self.folder = Path(self.enter_context(tempfile.TemporaryDirectory("-torture", dir=memory)))
        self.state, self.log = self.folder / "state", self.folder / "log"
        self.spool, self.config = self.folder / "spool", self.folder / "roomscribe.toml"

    def configure(self, port: int, **sections: Mapping[str, Any]) -> None:
        """Write the configuration; `sections` are added to what every attack needs."""
        own: dict[str, dict[str, Any]] = {
            "homeassistant": {"enabled": False},
            "store": {"path": self.state},
            "spool": {"path": self.spool},
        }
        for name, keys in sections.items():
            own[name] = own.get(name, {}) | dict(keys)
        write_config(self.folder, port, **own)


class Daemon(ExitStack):
    """A running `roomscribe run`, and the pipe that it hears as fast as it can."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.begun_s = time.monotonic()
        self.ready_s: float | None = None
        """Seconds from the start to READY."""
        self.written = 0
        """Bytes of sound put into the pipe."""
        self._systemd = Systemd(place.folder)
        self.callback(self._systemd.close)
        self.process = self.enter_context(
            daemon(
                *(place.config, "--recording", "-"),
                stdin=subprocess.PIPE,
                environment={
                    "NOTIFY_SOCKET": self._systemd.address,
                    "ROOMSCRIBE_MODELS": str(place.folder / "no"),
                },
                program=("-m", "resilience.fast"),
            )
        )
        assert self.process.stdin is not None
        self._pipe = self.process.stdin.fileno()
        fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, 4096)
        os.set_blocking(self._pipe, False)

    def feed(self, pcm: bytes, seconds: float) -> bytes:
        """Write what the pipe takes within so long; the rest. BrokenPipeError when it is dead."""
        until_s = time.monotonic() + seconds
        while pcm and (left_s := until_s - time.monotonic()) > 0:
            if select.select([], [self._pipe], [], left_s)[1]:
                try:
                    count = os.write(self._pipe, pcm[:4096])
                except BlockingIOError:
                    time.sleep(0.001)
                    continue
                self.written += count
                pcm = pcm[count:]
        return pcm

    def consumed(self) -> int:
        """Bytes of sound that it has read."""
        left = array.array("i", [0])
        fcntl.ioctl(self._pipe, termios.FIONREAD, left)
        return self.written - left[0]

    def look(self) -> None:
        """Read its messages to systemd."""
        if any("READY=1" in message for message in self._systemd.everything()):
            self.ready_s = self.ready_s or time.monotonic() - self.begun_s

    def alive(self) -> bool:
        """True while it runs."""
        return self.process.poll() is None

    def kill(self) -> None:
        """kill -9, and waits until it is gone."""
        self.process.kill()
        self.process.wait()
        self.look()

    def end_of_sound(self, timeout_s: float = 60.0) -> int:
        """Close the pipe; the exit status of the daemon, which ends then."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(timeout_s)


@functools.cache
def reference_texts(count: int) -> dict[int, set[str]]:
    """What the first `count` sentences read without faults: said first of all, and after others.

    Those that are not read as they were said, in one transcript each time, are left out: what the
    model only guesses depends on what was heard a minute before.
    """
    said = sentences()[:count]
    found: dict[int, list[str]] = {one.number: [] for one in said}
    with tempfile.TemporaryDirectory() as folder:
        files = {str(Path(folder) / f"{one.number}.wav"): [one] for one in said}
        files[str(Path(folder) / "all.wav")] = said
        for path, spoken in files.items():
            pcm = b"".join(one.pcm for one in spoken)
            soundfile.write(path, np.frombuffer(pcm, "<i2"), RATE)
        command = [sys.executable, "-m", "appliance", "transcribe", "--json", *files]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True)
    for line in map(json.loads, done.stdout.splitlines()):
        if not line["discarded"]:
            at = line["end_s"] * BYTES_PER_S
            for one in files[line["file"]]:
                at -= len(one.pcm)
                if at < 0:
                    found[one.number].append(line["text"])
                    break
    truth = {one.number: words(one.text) for one in said}
    return {
        number: set(texts)
        for number, texts in found.items()
        if len(texts) == 2 and all(words(text) == truth[number] for text in texts)
    }
