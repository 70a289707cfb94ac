"""The encoder on the NPU, and on the CPU while the NPU cannot: no window is lost between them.

An NPU that fails is left alone at once, and the same window goes to the CPU. Everything slow waits
for `look_after`: closing what failed (up to 10 s where a job hangs), looking at the chip, trying it
again (some hundred ms, in which the interpreter's lock is held; inferred). Its caller should
therefore call it while nobody speaks and no window waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from appliance.errors import DeviceError, RoomscribeError
from appliance.infer.encoder import CpuEncoder
from appliance.infer.hailo import device, errors
from appliance.infer.hailo.errors import NpuError
from appliance.infer.hailo.npu import Npu
from appliance.records import Mel, States

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
STEADY_AFTER = 20
"""Windows that an NPU must encode before its next failure counts as a first one."""
WATCH_EVERY_S = 30.0


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
        """Why the NPU is not in use, with the cure; None while it is, and where there never was
        one."""
        self._open_npu, self._cpu, self._clock = open_npu, cpu, clock
        self._instead = instead
        self._npu: Npu | None = None
        self._failed: Npu | None = None
        self._backoff = Backoff()
        self._encoded = 0
        """Windows since the NPU was opened."""
        self._watch_s = 0.0
        self._facts: dict[str, Any] = {}

    def open(self) -> None:
        """Tries the NPU for the first time. Raises DeviceError or ModelError when it fails; the CPU
        then encodes, if there is one, and the NPU is tried again."""
        try:
            self._take(self._open_npu())
        except RoomscribeError as error:
            self._fail(error)
            raise

    @property
    def npu(self) -> Npu | None:
        """The NPU in use, for its decoder. Any thread."""
        return self._npu

    def encode(self, mel: Mel) -> States:
        """States (P, d_model) float32 of `mel` (W, n_mels) float32, W = 2 P.

        Raises DeviceError when the NPU fails and there is no encoder for the CPU.
        """
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

    def look_after(self, now_s: float) -> None:
        """Does what may take its time, if any of it is due at `now_s` (time.monotonic())."""
        self._heed_decoder()
        if self._failed:
            failed, self._failed = self._failed, None
            failed.close()
        if self._npu is None:
            if self._backoff.is_over(now_s):
                try:
                    self._take(self._open_npu())
                except RoomscribeError as error:
                    self._fail(error)
        elif now_s >= self._watch_s:
            self._watch(self._npu, now_s)

    def facts(self) -> dict[str, Any]:
        """What is known of the chip in use, as last looked at; empty while there is none."""
        return dict(self._facts)

    def close(self) -> None:
        """Frees the chip."""
        for npu in (self._failed, self._npu):
            if npu:
                npu.close()
        self._failed = self._npu = None

    def _heed_decoder(self) -> None:
        """Puts an NPU out of use that failed the decoder."""
        if self._npu and self._npu.fault:
            self._drop(self._npu, self._npu.fault)

    def _drop(self, npu: Npu, error: NpuError) -> None:
        """Puts an NPU out of use; it is closed when there is time."""
        self._failed, self._npu = npu, None
        self._fail(error)

    def _take(self, npu: Npu) -> None:
        """Puts an open NPU to use."""
        self._npu, self.name, self.trouble, self._encoded = npu, npu.chip, None, 0
        self._watch(npu, self._clock())

    def _fail(self, error: RoomscribeError) -> None:
        """The NPU is out of use."""
        self.name, self._facts = "cpu", {}
        self.trouble = f"{error}; until then {self._instead}" if self._cpu else str(error)
        self._backoff.fail(self._clock(), error)

    def _watch(self, npu: Npu, now_s: float) -> None:
        """Looks at the chip; lets go of it in the red zone."""
        self._watch_s = now_s + WATCH_EVERY_S
        readings = device.read(npu.binding, npu.identity.device_id)
        self._facts = {
            "chip": npu.chip,
            "firmware": npu.identity.firmware,
            "driver": errors.driver_version(),
            "library": str(npu.binding.__version__),
            "hef": {"made_for": npu.hef.made_for, "compiler": npu.hef.compiler},
            **asdict(readings),
        }
        if readings.zone == device.RED:
            self._npu = None
            npu.close()
            self._fail(device.too_hot(readings))
