"""The encoder on the NPU, with the CPU as fallback: no window is lost when one replaces the other.

If the NPU fails, it is dropped at once and the CPU encodes the same window. Slow work runs in
threads of its own: one closes the failed chip (10 s and more if a job hangs), another reopens it
(some hundred ms with the interpreter's lock held, inferred; seconds if it hangs) or reads it.
`poll` starts that work and applies its result: call it while nobody speaks and no window waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from appliance.errors import DeviceError, RoomscribeError
from appliance.infer.encoder import CpuEncoder
from appliance.infer.hailo import device, diagnosis
from appliance.infer.hailo.diagnosis import REPEATED, NpuError
from appliance.infer.hailo.npu import CLOSE_WITHIN_S, Npu, is_closing
from appliance.records import Mel, States
from appliance.system import BackgroundTask

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
STEADY_AFTER = 20
"""Windows encoded since opening after which the pauses start at FIRST_PAUSE_S again."""
WATCH_EVERY_S = 30.0
OPEN_WITHIN_S = 8.0
"""Seconds that a start waits for the chip; a first job that hangs takes 4 s."""


class FailoverEncoder:
    """The NPU's encoder, with the CPU's as fallback. Owned by one thread; `trouble`, `name` and
    `facts` may be read by any."""

    def __init__(
        self,
        open_npu: Callable[[], Npu],
        cpu: CpuEncoder | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open nothing yet. `open_npu` raises NpuError or ModelError."""
        self.name = "cpu"
        """Device that encodes: cpu, hailo8, hailo8l or hailo10h."""
        self.trouble: str | None = None
        """Why the NPU is not in use, with the fix; None if it is, or if there never was one."""
        self._open_npu, self._cpu, self._clock = open_npu, cpu, clock
        self._npu: Npu | None = None
        self._task: BackgroundTask | None = None
        self._on_done: Callable[[Any], None] = self._use
        """Applies the task's outcome."""
        self._pause_s, self._next_s = FIRST_PAUSE_S, 0.0
        self._is_permanent = False
        """True if another attempt is in vain."""
        self._encoded = 0
        """Windows since the NPU was opened."""
        self._watch_s = 0.0
        self._facts: dict[str, Any] = {}
        self._failovers = 0
        """Times that a chip in use was dropped."""
        self._lock, self._closed = threading.Lock(), False

    def open(self) -> None:
        """Try the NPU for the first time. Raises DeviceError or ModelError if it fails or takes too
        long; then the CPU encodes, if its encoder exists, and `poll` tries the NPU again."""
        self._begin(self._open, self._use)
        error = self.settle(OPEN_WITHIN_S)
        if self._task:
            error = NpuError("timeout", f"opening the chip took too long; {REPEATED}")
            self._fail(error)
        if error:
            raise error

    def encode(self, mel: Mel) -> States:
        """Return the states (P, d_model) float32 of `mel` (W, n_mels) float32, W = 2 P.

        Raises DeviceError if the NPU fails and there is no encoder for the CPU.
        """
        self._collect()
        if self._npu:
            try:
                states = self._npu.encode(mel)
            except NpuError as error:
                self._drop(self._npu, error)
            else:
                self._encoded += 1
                if self._encoded == STEADY_AFTER:
                    self._pause_s = FIRST_PAUSE_S
                return states
        if self._cpu is None:
            raise DeviceError(f"{self.trouble}; the model has no encoder for the CPU")
        return self._cpu.encode(mel)

    def poll(self, now_s: float) -> None:
        """Apply the result of finished work, and start what is due at `now_s` (time.monotonic()).

        Does not wait.
        """
        self._collect()
        if self._task:
            return
        if self._npu:
            if now_s >= self._watch_s:
                npu, self._watch_s = self._npu, now_s + WATCH_EVERY_S
                self._begin(lambda: (npu, _read_chip(npu)), self._apply_readings)
        elif (
            now_s >= self._next_s and diagnosis.nodes() and not (self._is_permanent or is_closing())
        ):
            self._begin(self._open, self._use)

    def settle(self, within_s: float) -> RoomscribeError | None:
        """Wait for the work that `poll` started, and apply it; return its error if it failed."""
        if self._task:
            self._task.join(within_s)
        return self._collect()

    def facts(self) -> dict[str, Any]:
        """Return the last facts read of the chip in use, none without one, and the counter of how
        often the CPU has taken over, if ever."""
        counters = {"counters": {"npu_failovers": self._failovers}} if self._failovers else {}
        return {**self._facts, **counters}

    def close(self) -> None:
        """Free the chip; wait a second or two at most if it hangs."""
        with self._lock:
            self._closed = True
        self.settle(CLOSE_WITHIN_S)
        npu, self._npu = self._npu, None
        if npu:
            npu.close(0.0)
        is_closing(CLOSE_WITHIN_S)

    def _begin(self, work: Callable[[], Any], on_done: Callable[[Any], None]) -> None:
        self._task, self._on_done = BackgroundTask(work), on_done

    def _collect(self) -> RoomscribeError | None:
        """Apply the task's outcome if it is over; return its error if it failed."""
        task = self._task
        if task is None or task.is_alive():
            return None
        self._task = None
        if task.error is None:
            self._on_done(task.outcome)
            return None
        if not isinstance(task.error, RoomscribeError):
            raise task.error
        self._fail(task.error)
        return task.error

    def _open(self) -> tuple[Npu, device.Readings]:
        """Return an open NPU and its readings. Runs in the task's thread."""
        npu = self._open_npu()
        readings = _read_chip(npu)
        with self._lock:
            if not self._closed:
                return npu, readings
        npu.close()
        raise NpuError("lost", "the chip opened after the encoder was closed")

    def _drop(self, npu: Npu, error: NpuError) -> None:
        """Stop using an NPU, without waiting until it is closed."""
        self._npu = None
        self._failovers += 1
        self._fail(error)
        npu.close(0.0)

    def _use(self, opened: tuple[Npu, device.Readings]) -> None:
        """Use an open NPU from now on."""
        npu, _ = opened
        self._npu, self.name, self.trouble, self._encoded = npu, npu.chip, None, 0
        self._watch_s = self._clock() + WATCH_EVERY_S
        self._apply_readings(opened)

    def _fail(self, error: RoomscribeError) -> None:
        """Record why the NPU is out of use, and when to try again."""
        self.name, self._facts = "cpu", {}
        self.trouble = f"{error}; until then the CPU encodes" if self._cpu else str(error)
        self._next_s = self._clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._is_permanent = not isinstance(error, NpuError) or error.lasting

    def _apply_readings(self, reading: tuple[Npu, device.Readings]) -> None:
        """Store what was read of the chip; drop it in the red temperature zone."""
        npu, readings = reading
        if npu is not self._npu:
            return
        self._facts = {
            "chip": npu.chip,
            "firmware": npu.identity.firmware,
            "driver": diagnosis.driver_version(),
            "library": str(npu.binding.__version__),
            **asdict(readings),
        }
        if readings.zone == device.RED:
            self._drop(npu, device.too_hot(readings))


def _read_chip(npu: Npu) -> device.Readings:
    return device.read(npu.binding, npu.identity.device_id)
