"""The encoder on the NPU, with the CPU as fallback: no window is lost when one replaces the other.

If the NPU fails or does not answer, its process is killed and the CPU encodes the same window.
`poll` starts another process and applies what it says: call it while nobody speaks and no window
waits. Nothing here waits for the chip but `open`, and `encode` for a job's limit.
"""

import math
import time
from collections.abc import Callable
from typing import Any

from appliance.errors import DeviceError
from appliance.infer.encoder import CpuEncoder, Encoder
from appliance.infer.hailo import diagnosis
from appliance.infer.hailo.diagnosis import NpuError
from appliance.infer.hailo.process_owner import CLOSE_WITHIN_S, ENDED, SILENT, NpuProcess
from appliance.records import Mel, States

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
FIRST_LONG_S, LONGEST_LONG_S = 30.0, 300.0
"""After a process that hung or crashed, or without HailoRT's binding."""
LONG_CAUSES = {SILENT, ENDED, "binding"}
STEADY_AFTER = 20
"""Windows encoded since opening after which the pauses start at FIRST_PAUSE_S again."""
KILLED_WITHIN_S = 5.0
"""A killed process that lives for longer sleeps in the kernel, and cannot be killed."""


class FailoverEncoder(Encoder):
    """The NPU's encoder, with the CPU's as fallback. Owned by one thread; `trouble`, `name` and
    `facts` may be read by any."""

    def __init__(
        self,
        start: Callable[[], NpuProcess],
        cpu: CpuEncoder | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start nothing yet. `start` raises NpuError."""
        self._trouble: str | None = None
        self._start, self._cpu, self._clock = start, cpu, clock
        self._npu: NpuProcess | None = None
        """The process that is opening the chip, or has opened it."""
        self._killed: NpuProcess | None = None
        """The last one that was killed, until it has ended: it may still hold the chip."""
        self._killed_s = 0.0
        self._pause_s, self._next_s = FIRST_PAUSE_S, 0.0
        """Seconds until the next attempt, and when it is due: never, if it would be in vain."""
        self._encoded = 0
        """Windows since the NPU was opened."""
        self._failovers = 0
        """Times that a chip in use was dropped."""

    @property
    def name(self) -> str:
        """Device that encodes: cpu, hailo8, hailo8l or hailo10h."""
        return str(self._chip().get("chip", "cpu"))

    @property
    def trouble(self) -> str | None:
        """Why the NPU is not in use, with the fix; None if it is, or if there never was one."""
        return None if self._chip() else self._trouble

    @property
    def pid(self) -> int | None:
        """Id of the process; None without one."""
        return self._npu.pid if self._npu else None

    def open(self) -> None:
        """Try the NPU for the first time. Raises NpuError if it fails or takes too long; then the
        CPU encodes, if its encoder exists, and `poll` tries the NPU again."""
        try:
            self._npu = self._start()
            self._npu.wait_until_open()
        except NpuError as error:
            self._drop(error, CLOSE_WITHIN_S)
            raise

    def encode(self, mel: Mel) -> States:
        """Return the states (P, d_model) float32 of `mel` (W, n_mels) float32, W = 2 P.

        Raises DeviceError if the NPU fails and there is no encoder for the CPU.
        """
        try:
            if self._npu:
                self._npu.poll()
                if self._npu.facts:
                    states = self._npu.encode(mel)
                    self._encoded += 1
                    if self._encoded == STEADY_AFTER:
                        self._pause_s = FIRST_PAUSE_S
                    return states
        except NpuError as error:
            self._drop(error)
        if self._cpu is None:
            raise DeviceError(f"{self.trouble}; the model has no encoder for the CPU")
        return self._cpu.encode(mel)

    def poll(self, now_s: float) -> None:
        """Apply what the process says, and start one if that is due at `now_s` (time.monotonic()).

        Does not wait.
        """
        try:
            if self._npu:
                self._npu.poll()
            elif self.has_released() and now_s >= self._next_s and diagnosis.nodes():
                self._npu = self._start()
        except NpuError as error:
            self._drop(error)

    def facts(self) -> dict[str, Any]:
        """Return the last facts read of the chip in use, none without one, and the counter of how
        often the CPU has taken over, if ever."""
        counters = {"counters": {"npu_failovers": self._failovers}} if self._failovers else {}
        return {**self._chip(), **counters}

    def close(self) -> None:
        """Free the chip; wait for a second at most if it hangs."""
        npu, self._npu = self._npu, None
        if npu:
            npu.close()
        if self._killed:
            self._killed.kill()

    def _chip(self) -> dict[str, Any]:
        """Return the facts of an open chip; none without one."""
        npu = self._npu
        return npu.facts if npu else {}

    def _drop(self, error: NpuError, wait_s: float = 0.0) -> None:
        """Kill the process; wait `wait_s` at most. Record why, and when to try again."""
        self._trouble = f"{error}; until then the CPU encodes" if self._cpu else str(error)
        npu, self._npu, self._encoded = self._npu, None, 0
        if npu:
            self._failovers += bool(npu.facts)
            npu.kill(wait_s)
            self._killed, self._killed_s = npu, time.monotonic()
        is_long = error.cause in LONG_CAUSES
        pause_s = max(self._pause_s, FIRST_LONG_S if is_long else FIRST_PAUSE_S)
        self._next_s = math.inf if error.lasting else self._clock() + pause_s
        self._pause_s = min(2 * pause_s, LONGEST_LONG_S if is_long else LONGEST_PAUSE_S)

    def has_released(self) -> bool:
        """Return True unless a killed process still lives; say so if it cannot be killed."""
        killed = self._killed
        if killed and not killed.kill(0.0):
            if time.monotonic() > self._killed_s + KILLED_WITHIN_S:
                where = f" (in {killed.waits_in()})" if killed.waits_in() else ""
                self._trouble = (
                    f"NPU: its process {killed.pid} hangs in the driver{where} and cannot be "
                    "killed; restart the machine; look for hailo in `journalctl -k`; until then "
                    "the CPU encodes"
                )
            return False
        self._killed = None
        return True
