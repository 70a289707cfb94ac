"""Play one continuous stream into a PulseAudio microphone, and record when each sample came.

What is played and what the microphone gave are the same bytes, so the place of a sound in the
microphone's stream is found exactly, and so is a stutter. Between the sounds there is room tone.
"""

import fcntl
import os
import subprocess
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Self

import numpy as np
from numpy.typing import NDArray
from rigs.microphone import SINK, PulseMicrophone
from rigs.sounds import quiet, to_int16

from appliance.records import SAMPLE_RATE

Samples = NDArray[np.int16]

FORMAT = ("--raw", "--format=s16le", f"--rate={SAMPLE_RATE}", "--channels=1")
AHEAD_BYTES = 1 << 16
"""Size of the pipe to the player: 2 s of sound, against stutter on a busy machine."""
MARK = SAMPLE_RATE // 10
"""Samples by which a place is found. Room tone makes them unique."""
AROUND_S = 10.0
"""The time of a sample is computed from the blocks this long before and after it."""
STARTED_WITHIN_S = 15.0


class Stream:
    """Plays into a microphone without end; use as `with Stream(microphone, seed) as stream:`."""

    def __init__(self, microphone: PulseMicrophone, seed: int) -> None:
        self._environment = microphone.environment
        self._rng = np.random.default_rng(seed)
        self._waiting: deque[Samples] = deque()
        self._end = 0
        """The place behind the last sample that is played, or waits to be."""
        self._lock = threading.Lock()
        self._played, self._heard = bytearray(), bytearray()
        self._forgotten = [0, 0]
        """Bytes that were deleted from the beginnings of these."""
        self._arrivals: deque[tuple[int, float]] = deque()
        """After how many samples of the microphone it was when, time.monotonic()."""
        self._shift = 0
        """A sample's place in the microphone's stream less that in what is played, in bytes."""
        self._over = threading.Event()
        self.processes: list[subprocess.Popen[bytes]] = []
        """The listener and the player."""
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        source = f"--device={SINK}.monitor"
        listener = ["parec", *FORMAT, "--latency-msec=20", source]
        player = ["paplay", *FORMAT, "--latency-msec=1000", f"--device={SINK}"]
        for command, pipe in ((listener, "stdout"), (player, "stdin")):
            self.processes.append(
                subprocess.Popen(command, env=self._environment, **{pipe: subprocess.PIPE})  # type: ignore[call-overload]
            )
        for work in (self._listen, self._feed):
            self._threads.append(threading.Thread(target=work, daemon=True))
            self._threads[-1].start()
        deadline_s = time.monotonic() + STARTED_WITHIN_S
        while not self._align(SAMPLE_RATE // 2, SAMPLE_RATE // 2 + MARK):
            if time.monotonic() > deadline_s:
                self.__exit__()
                raise RuntimeError("the microphone does not give what is played into it")
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for process in self.processes:
            process.kill()
            process.wait(10)
        for thread in self._threads:
            thread.join(5)
        for process in self.processes:
            for pipe in filter(None, (process.stdin, process.stdout)):
                with suppress(OSError):
                    pipe.close()

    def play(self, sound: Samples) -> int:
        """Play a sound behind what is being played; the place of its first sample."""
        with self._lock:
            at = self._end
            self._end += len(sound)
            self._waiting.append(sound)
            return at

    def wait_for(self, place: int) -> None:
        """Wait until the microphone has given that sample."""
        while (left := place + self._shift // 2 - self._given()) > 0:
            if any(process.poll() is not None for process in self.processes):
                raise RuntimeError("the sound server ended")
            time.sleep(min(0.5, max(0.01, left / SAMPLE_RATE)))

    def has_given(self, place: int) -> bool:
        """Return True when the microphone has given that sample."""
        return self._given() >= place + self._shift // 2

    def moment_s(self, place: int) -> float:
        """When the microphone gave that sample, time.monotonic().

        A block may arrive late and never early, so the earliest ones around the sample count.
        """
        given = place + self._shift // 2
        reach = int(AROUND_S * SAMPLE_RATE)
        with self._lock:
            offsets = [
                at_s - count / SAMPLE_RATE
                for count, at_s in self._arrivals
                if abs(count - given) < reach
            ]
        return min(offsets) + given / SAMPLE_RATE

    def is_intact(self, begin: int, end: int) -> bool:
        """Return True when the microphone gave these samples without a stutter."""
        if not self._align(begin, begin + MARK):
            return False
        with self._lock:
            played = self._part(0, 2 * begin, 2 * end)
            heard = self._part(1, 2 * begin + self._shift, 2 * end + self._shift)
        return played == heard

    def forget(self, before: int) -> None:
        """Frees the memory of what came before that sample."""
        with self._lock:
            for number, store in enumerate((self._played, self._heard)):
                first = 2 * before + (self._shift if number else 0) - self._forgotten[number]
                if first > 0:
                    del store[:first]
                    self._forgotten[number] += first
            while self._arrivals and self._arrivals[0][0] < before - AROUND_S * SAMPLE_RATE:
                self._arrivals.popleft()

    def _align(self, begin: int, end: int) -> bool:
        """Find these samples in what the microphone gave."""
        with self._lock:
            wanted = self._part(0, 2 * begin, 2 * end)
            if len(wanted) < 2 * (end - begin):
                return False
            if self._part(1, 2 * begin + self._shift, 2 * end + self._shift) == wanted:
                return True
            at = self._heard.find(wanted)
            if at >= 0:
                self._shift = at + self._forgotten[1] - 2 * begin
            return at >= 0

    def _part(self, number: int, begin: int, end: int) -> bytes:
        """Bytes of what was played (0) or heard (1)."""
        store, first = (self._played, self._heard)[number], self._forgotten[number]
        return bytes(store[max(0, begin - first) : max(0, end - first)])

    def _given(self) -> int:
        with self._lock:
            return (len(self._heard) + self._forgotten[1]) // 2

    def _listen(self) -> None:
        pipe = self.processes[0].stdout
        assert pipe
        while not self._over.is_set() and (heard := os.read(pipe.fileno(), 1 << 16)):
            now_s = time.monotonic()
            with self._lock:
                self._heard += heard
                count = (len(self._heard) + self._forgotten[1]) // 2
                self._arrivals.append((count, now_s))

    def _feed(self) -> None:
        while len(self.processes) < 2:
            time.sleep(0.01)
        pipe = self.processes[1].stdin
        assert pipe
        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, AHEAD_BYTES)
        with suppress(BrokenPipeError):
            while not self._over.is_set():
                data = self._next().tobytes()
                for at in range(0, len(data), 1 << 12):
                    pipe.write(data[at : at + (1 << 12)])
                    pipe.flush()
                    if self._over.is_set():
                        return

    def _next(self) -> Samples:
        """What is played next: a sound that waits, over room tone, or room tone alone."""
        with self._lock:
            if self._waiting:
                sound = self._waiting.popleft()
            else:
                sound = np.zeros(MARK, np.int16)
                self._end += MARK
            tone = to_int16(quiet(self._rng, len(sound) / SAMPLE_RATE + 0.001))[: len(sound)]
            mixed: Samples = np.clip(sound.astype(np.int32) + tone, -32768, 32767).astype(np.int16)
            self._played += mixed.tobytes()
            return mixed
