"""A network on an open chip: its HEF configured, its buffers, its jobs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.infer.hailo import scanner
from appliance.infer.hailo_errors import NpuError, Situation, explain
from appliance.model.hef import Hef

READY_WITHIN_MS = 200

Shapes = dict[str, tuple[int, ...]]
Buffers = dict[str, NDArray[np.float32]]


class NpuModel:
    """A HEF on an open chip, float32 at every edge. For one thread at a time, but for `close`,
    which waits for the job in hand.
    """

    def __init__(
        self, binding: Any, device: Any, hef: Hef, check: Callable[[Shapes, Shapes], None]
    ) -> None:
        """Configures it; `device` is an open VDevice, `check` raises NpuError for names and shapes
        of inputs and outputs that will not do. Raises NpuError; then nothing is held.
        """
        self.doing = "loading the HEF"
        """For messages."""
        self.inputs: Buffers = {}
        """To be filled before a job, by name."""
        self.outputs: Buffers = {}
        """Overwritten by the next job."""
        self._binding, self._hef = binding, hef
        self._lock = threading.Lock()
        self._model: Any = None
        self._configured: Any = None
        self._bindings: Any = None
        try:
            guarded(lambda: self._open(device, check), self._situation)
        except NpuError:
            self.close()
            raise

    def run(self, within_ms: int) -> None:
        """Runs a job on what lies in `inputs`. Raises NpuError, after which there is nothing to do
        but to close it: the job may still run and write.
        """
        outcomes: list[Any] = []
        with self._lock:
            guarded(lambda: self._run(outcomes, within_ms), self._situation)
        if not outcomes:
            raise NpuError("lost", f"{self.doing}: the job ended without saying how")
        if outcomes[0].exception is not None:
            raise explain(outcomes[0].exception, self._situation())

    def check_finite(self, values: NDArray[np.float32]) -> None:
        """Raises NpuError unless all are numbers."""
        if not np.isfinite(values).all():
            raise NpuError("garbage", f"{self.doing}: expected numbers, found NaN or infinity")

    def close(self) -> None:
        """Lets go of the chip. May take 10 s where a job still runs."""
        with self._lock:
            configured, self._configured, self._bindings = self._configured, None, None
            if configured is not None:
                # a pending job's callback holds it: letting go of it here alone would not end it
                quietly(lambda: configured.__exit__(None, None, None))
                del configured
            self._model = None

    def _open(self, device: Any, check: Callable[[Shapes, Shapes], None]) -> None:
        # no local name for the model: an error's traceback would hold it, and it the chip
        self._model = device.create_infer_model(str(self._hef.file))
        self._model.set_batch_size(1)
        inputs = {edge.name: tuple(edge.shape) for edge in self._model.inputs}
        outputs = {edge.name: tuple(edge.shape) for edge in self._model.outputs}
        check(inputs, outputs)  # HailoRT itself would only compare numbers of bytes
        self.inputs = {name: np.zeros(shape, np.float32) for name, shape in inputs.items()}
        self.outputs = {name: np.zeros(shape, np.float32) for name, shape in outputs.items()}
        for name in inputs:
            self._model.input(name).set_format_type(self._binding.FormatType.FLOAT32)
        for name in outputs:
            self._model.output(name).set_format_type(self._binding.FormatType.FLOAT32)
        self._configured = self._model.configure()
        self._bindings = self._configured.create_bindings()
        for name, buffer in self.inputs.items():
            self._bindings.input(name).set_buffer(buffer)
        for name, buffer in self.outputs.items():
            self._bindings.output(name).set_buffer(buffer)

    def _run(self, outcomes: list[Any], within_ms: int) -> None:
        """Runs a job. Neither this nor the wait raises when it fails: the outcome tells alone."""
        if self._configured is None:
            raise NpuError("lost", "the chip was closed")

        def store(*, completion_info: Any) -> None:
            outcomes.append(completion_info)

        self._configured.wait_for_async_ready(timeout_ms=READY_WITHIN_MS)
        self._configured.run_async([self._bindings], store).wait(within_ms)

    def _situation(self) -> Situation:
        version = str(self._binding.__version__)
        return Situation(self.doing, version, self._hef, scanner(self._binding))


def guarded(action: Callable[[], None], situation: Callable[[], Situation]) -> None:
    """Raises what HailoRT raises as NpuError, without its traceback: that would keep the chip's
    objects alive, and the chip would be busy with ourselves."""
    fault: NpuError | None = None
    try:
        action()
    except NpuError:
        raise
    except Exception as error:  # HailoRT's classes differ with its version
        fault = explain(error, situation())
    if fault:
        raise fault


def quietly(action: Callable[[], object]) -> None:
    """Does what may fail without harm: the object is let go of in any case."""
    try:
        action()
    except Exception:  # whatever HailoRT raises while it is being closed
        return
