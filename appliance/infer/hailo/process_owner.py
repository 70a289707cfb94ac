"""The daemon's side of the encoder's process: start, wait, encode, kill."""

import json
import os
import select
import subprocess
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from appliance.errors import DeviceError
from appliance.infer.hailo.diagnosis import REPEATED, NpuError, nodes
from appliance.infer.hailo.shared import Order, SharedArrays
from appliance.process import end_process, how_it_ended, start_process
from appliance.records import Mel, States

CLOSE_WITHIN_S = 1.0
"""For HailoRT to close the chip; then the process is killed."""
SILENT, ENDED = "silent", "process"
"""Causes of an NpuError: the process does not answer in time; it ended without saying why."""


class NpuProcess:
    """A process that opens the chip and encodes. One thread: it ends with the one that started it.

    After an NpuError it can only be killed.
    """

    def __init__(self, order: Order) -> None:
        """Start it, without waiting. Raises NpuError."""
        self.facts: dict[str, Any] = {}
        """The chip's name, limit of a job and temperature; empty until it is open."""
        self._order, self._input = order, b""
        self._begun_s = time.monotonic()
        memory = os.memfd_create("roomscribe-npu", os.MFD_CLOEXEC)
        try:
            self._arrays = SharedArrays(memory, order.mel, order.states)
            self._arrays.beat()
            self._process = start_process(
                *("appliance.infer.hailo.encoder_process", json.dumps(asdict(order)), str(memory)),
                descriptors=(memory,),
            )
            pipes = self._process.stdin, self._process.stdout
            self._stdin, self._stdout = (pipe.fileno() for pipe in pipes if pipe)
        except OSError as error:
            raise NpuError(ENDED, f"its process does not start ({error.strerror})") from error
        finally:
            os.close(memory)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def poll(self, within_s: float = 0.0) -> None:
        """Take what has arrived, or arrives `within_s`. Raises NpuError, also if it hangs."""
        self._receive(within_s)
        if not self.facts and time.monotonic() > self._begun_s + self._order.open_s:
            raise NpuError(SILENT, f"opening the chip took too long; {REPEATED}")
        if self.facts and self._arrays.idle_s() > self._order.beat_s:
            raise NpuError(SILENT, f"HailoRT hangs; its process was killed; {REPEATED}")

    def wait_until_open(self) -> None:
        """Wait until the chip is open. Raises NpuError."""
        while not self.facts:  # one answer at a time: the process may end behind it
            self.poll(0.1)

    def encode(self, mel: Mel) -> States:
        """Return the states (P, d_model) float32 of `mel` (W, n_mels) float32, W = 2 P. Raises
        NpuError."""
        self._arrays.mel[0] = mel
        with suppress(BrokenPipeError):  # what it said last tells why
            os.write(self._stdin, b"\n")
        limit_ms = self.facts["job_limit_ms"] + self._order.answer_ms
        deadline_s = time.monotonic() + limit_ms / 1000
        while not any("done" in answer for answer in self._receive(deadline_s - time.monotonic())):
            if time.monotonic() >= deadline_s:
                raise NpuError(
                    SILENT,
                    f"a job had no answer within {limit_ms} ms; its process was killed; {REPEATED}",
                )
        states: States = self._arrays.states[0].copy()
        return states

    def close(self) -> None:
        """End the process; HailoRT closes the chip if it can do so in time."""
        if self._process.stdin:
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_WITHIN_S)
        self.kill()

    def kill(self, within_s: float = CLOSE_WITHIN_S) -> bool:
        """Kill the process; return True if it has ended, within `within_s`."""
        return end_process(self._process, within_s)

    def waits_in(self) -> str:
        """Return the function of the kernel in which the process sleeps (proc(5), wchan), or ""."""
        with suppress(OSError):
            found = Path(f"/proc/{self.pid}/wchan").read_text(encoding="ascii")
            return "" if found == "0" else found
        return ""

    def _receive(self, within_s: float) -> list[dict[str, Any]]:
        """Return the answers that have arrived, at least one unless none comes in time. Raises
        NpuError for an error or the end of the process."""
        if not select.select([self._stdout], [], [], max(0.0, within_s))[0]:
            return []
        data = os.read(self._stdout, 1 << 16)
        if not data:
            self.kill()
            how = how_it_ended(self._process.returncode)
            raise NpuError(ENDED, f"{how}; {REPEATED}")
        *lines, self._input = (self._input + data).split(b"\n")
        answers = [json.loads(line) for line in lines]
        for answer in answers:
            if "error" in answer:
                raise NpuError(answer["cause"], answer["error"])
            self.facts = answer.get("facts", self.facts)
        return answers


def find_chip() -> str | None:
    """Return hailo8, hailo8l or hailo10h; None without a Hailo.

    Raises DeviceError if there is one whose kind cannot be read.
    """
    if not nodes():
        return None
    try:
        process = NpuProcess(Order("", (1,), (1,)))
        try:
            process.wait_until_open()
        finally:
            process.kill()
    except NpuError as error:
        raise DeviceError(
            f"{error}; or say which chip it is: --hef hailo8, hailo8l, hailo10h or none"
        ) from None
    return str(process.facts["chip"])
