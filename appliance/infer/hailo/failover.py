"""The encoder on the NPU, and on the CPU while the NPU cannot: no window is lost between them.

An NPU that fails is left alone at once, and the same window goes to the CPU. What may take long is
never done by the encoder's thread: one thread closes what failed (10 s and more where a job hangs),
another one opens the chip again (seconds where it hangs, else some hundred ms, in which the
interpreter's lock is held; inferred) or looks at it. `poll` begins that and takes over what
has come of it; its caller should call it while nobody speaks and no window waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from appliance.errors import DeviceError, RoomscribeError
from appliance.infer.encoder import CpuEncoder
from appliance.infer.hailo import device, errors
from appliance.infer.hailo.errors import REPEATED, NpuError
from appliance.infer.hailo.npu import CLOSE_WITHIN_S, Npu, is_closing
from appliance.records import Mel, States
from appliance.system import BackgroundTask

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
STEADY_AFTER = 20
"""Windows that an NPU must encode before its next failure counts as a first one."""
WATCH_EVERY_S = 30.0
OPEN_WITHIN_S = 8.0
"""A start waits for the chip at most so long; a first job that hangs takes 4 s."""
STUCK_AFTER_S = 30.0
"""HailoRT gives a job up within 10 s: one that keeps the chip for longer may keep it for ever."""


class Backoff:
    """When to try again: after pauses that double, or at once when what was in the way is gone."""

    def __init__(self) -> None:
        self._pause_s, self._next_s = FIRST_PAUSE_S, 0.0
        self._in_vain = False
        self._was_absent, self._was_owned = not errors.nodes(), False

    def fail(self, now_s: float, error: RoomscribeError) -> None:
        """The NPU, or an attempt to open it, failed just now."""
        self._next_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._in_vain = not isinstance(error, NpuError) or error.lasting
        self._was_absent = not errors.nodes()
        is_busy = isinstance(error, NpuError) and error.cause == "busy"
        self._was_owned = is_busy and bool(errors.owners())

    def recover(self) -> None:
        """The NPU works steadily."""
        self._pause_s = FIRST_PAUSE_S

    def is_over(self, now_s: float) -> bool:
        """True when it is time for another attempt; without a device node it never is."""
        if self._in_vain:
            return False
        if not errors.nodes():
            self._was_absent = True
            return False
        freed = self._was_absent or (self._was_owned and not errors.owners())
        if freed:
            self._was_absent = self._was_owned = False
        return freed or now_s >= self._next_s


class FailoverEncoder:
    """The NPU's encoder, with the CPU's behind it. Owned by one thread; `trouble`, `name` and
    `facts` may be read from any."""

    def __init__(
        self,
        open_npu: Callable[[], Npu],
        cpu: CpuEncoder | None,
        clock: Callable[[], float] = time.monotonic,
        *,
        instead: str = "the CPU encodes",
    ) -> None:
        """Opens nothing yet; `open_npu` raises NpuError or ModelError. `instead` is what happens
        while there is no NPU, for messages.
        """
        self.name = "cpu"
        """What encoded last, or would now: cpu, hailo8, hailo8l or hailo10h."""
        self.trouble: str | None = None
        """Why the NPU is not in use, with the fix; None while it is, and where there never was
        one."""
        self._open_npu, self._cpu, self._clock = open_npu, cpu, clock
        self._instead = instead
        self._npu: Npu | None = None
        self._task: BackgroundTask | None = None
        """What is being done by a thread of its own, and who takes its outcome over."""
        self._then: Callable[[Any], None] = self._take
        self._backoff = Backoff()
        self._encoded = 0
        """Windows since the NPU was opened."""
        self._watch_s = self._failed_s = 0.0
        self._facts: dict[str, Any] = {}
        self._lock, self._closed = threading.Lock(), False

    def open(self) -> None:
        """Tries the NPU for the first time. Raises DeviceError or ModelError when it fails or takes
        too long; the CPU then encodes, if there is one, and the NPU is tried again."""
        self._begin(self._open, self._take)
        error = self.settle(OPEN_WITHIN_S)
        if self._task:
            error = NpuError("timeout", f"opening the chip has not ended in time; {REPEATED}")
            self._fail(error)
        if error:
            raise error

    @property
    def npu(self) -> Npu | None:
        """The NPU in use, for its decoder. Any thread."""
        return self._npu

    def encode(self, mel: Mel) -> States:
        """States (P, d_model) float32 of `mel` (W, n_mels) float32, W = 2 P.

        Raises DeviceError when the NPU fails and there is no encoder for the CPU.
        """
        self._collect()
        self._heed_decoder()
        if self._npu:
            try:
                states = self._npu.encode(mel)
            except NpuError as error:
                self._drop(self._npu, error)
            else:
                self._encoded += 1
                if self._encoded == STEADY_AFTER:
                    self._backoff.recover()
                return states
        if self._cpu is None:
            raise DeviceError(f"{self.trouble}; the model has no encoder for the CPU")
        return self._cpu.encode(mel)

    def poll(self, now_s: float) -> None:
        """Begins what is due at `now_s` (time.monotonic()), and takes over what was begun before.

        Does not wait.
        """
        self._collect()
        self._heed_decoder()
        if self._task:
            return
        if self._npu:
            if now_s >= self._watch_s:
                npu, self._watch_s = self._npu, now_s + WATCH_EVERY_S
                self._begin(lambda: (npu, _look_at(npu)), self._note)
        elif is_closing():
            if now_s - self._failed_s > STUCK_AFTER_S:
                self._tell(
                    NpuError(
                        "hanging",
                        "the chip hangs, and HailoRT does not let go of it; "
                        "sudo systemctl restart roomscribe, or restart the machine",
                    )
                )
        elif self._backoff.is_over(now_s):
            self._begin(self._open, self._take)

    def settle(self, within_s: float) -> RoomscribeError | None:
        """Waits for what `poll` began, and takes it over; its error, if it failed."""
        if self._task:
            self._task.join(within_s)
        return self._collect()

    def facts(self) -> dict[str, Any]:
        """What is known of the chip in use, as last looked at; empty while there is none."""
        return dict(self._facts)

    def close(self) -> None:
        """Frees the chip; waits for one that hangs no longer than a second or two."""
        with self._lock:
            self._closed = True
        self.settle(CLOSE_WITHIN_S)
        npu, self._npu = self._npu, None
        if npu:
            npu.close(0.0)
        is_closing(CLOSE_WITHIN_S)

    def _begin(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self._task, self._then = BackgroundTask(work), then

    def _collect(self) -> RoomscribeError | None:
        """Takes over what has come of the task, if it is over; its error, if it failed."""
        task = self._task
        if task is None or task.is_alive():
            return None
        self._task = None
        if task.error is None:
            self._then(task.outcome)
            return None
        if not isinstance(task.error, RoomscribeError):
            raise task.error
        self._fail(task.error)
        return task.error

    def _open(self) -> tuple[Npu, device.Readings]:
        """An open NPU, and a first look at it. The task's thread."""
        npu = self._open_npu()
        readings = _look_at(npu)
        with self._lock:
            if not self._closed:
                return npu, readings
        npu.close()
        raise NpuError("lost", "the chip was opened too late")

    def _heed_decoder(self) -> None:
        """Puts an NPU out of use that failed the decoder."""
        if self._npu and self._npu.fault:
            self._drop(self._npu, self._npu.fault)

    def _drop(self, npu: Npu, error: NpuError) -> None:
        """Puts an NPU out of use; nobody waits for its being closed."""
        self._npu = None
        self._fail(error)
        npu.close(0.0)

    def _take(self, opened: tuple[Npu, device.Readings]) -> None:
        """Puts an open NPU to use."""
        npu, _ = opened
        self._npu, self.name, self.trouble, self._encoded = npu, npu.chip, None, 0
        self._watch_s = self._clock() + WATCH_EVERY_S
        self._note(opened)

    def _fail(self, error: RoomscribeError) -> None:
        """The NPU is out of use."""
        self.name, self._facts, self._failed_s = "cpu", {}, self._clock()
        self._tell(error)
        self._backoff.fail(self._failed_s, error)

    def _tell(self, error: RoomscribeError) -> None:
        self.trouble = f"{error}; until then {self._instead}" if self._cpu else str(error)

    def _note(self, looked: tuple[Npu, device.Readings]) -> None:
        """Keeps what was read of the chip; lets go of it in the red zone."""
        npu, readings = looked
        if npu is not self._npu:
            return
        self._facts = {
            "chip": npu.chip,
            "firmware": npu.identity.firmware,
            "driver": errors.driver_version(),
            "library": str(npu.binding.__version__),
            "hef": {"made_for": npu.hef.made_for, "compiler": npu.hef.compiler},
            "sharing": npu.sharing,
            **asdict(readings),
        }
        if readings.zone == device.RED:
            self._drop(npu, device.too_hot(readings))


def _look_at(npu: Npu) -> device.Readings:
    return device.read(npu.binding, npu.identity.device_id)
