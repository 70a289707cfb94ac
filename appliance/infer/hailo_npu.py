"""The encoder as a HEF on a Hailo: open, encode, close.

Never run on a real chip: written against the published sources of HailoRT 4.18 to 5.2, and run
against a simulator that refuses what they refuse.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from appliance.errors import RoomscribeError
from appliance.infer import hailo_watch
from appliance.infer.bundle import Bundle
from appliance.infer.hailo import Identity, identify, load_binding, scanner
from appliance.infer.hailo_errors import NpuError, Situation, explain
from appliance.infer.hef import Hef, verify_hef
from appliance.records import Mel, States

READY_WITHIN_MS = 200
JOB_WITHIN_MS = 400
"""Of an encode, which takes some 31 ms on a Hailo-8. HailoRT's wait for a job may last twice what
it is told: with both, a window is 1 s late at most when the CPU gets it."""
FIRST_JOB_WITHIN_MS = 2000
"""The chip loads the network for the first one."""
GROUP = "SHARED"


def open_npu(bundle: Bundle, hef_file: Path, *, share: bool) -> Npu:
    """The encoder on the chip that is here, tried once.

    A HEF that is damaged or of other sizes is refused before HailoRT is even loaded, one for
    another chip before the chip is taken. Raises NpuError and ModelError; then nothing is held.
    """
    hef = verify_hef(hef_file, bundle)
    binding = load_binding()
    hef.check_library(binding.__version__)
    identity = identify(binding)
    hef.check_chip(identity.chip)
    readings = hailo_watch.read(binding, identity.device_id)
    if readings.zone == hailo_watch.RED:
        raise hailo_watch.too_hot(readings)
    return Npu(binding, identity, bundle, hef, share=share)


class Npu:
    """A chip with an encoder on it, open. For one thread at a time; not to be forked.

    Opening holds the interpreter's lock for some hundred ms (inferred): no sound is read meanwhile.
    """

    def __init__(
        self, binding: Any, identity: Identity, bundle: Bundle, hef: Hef, *, share: bool
    ) -> None:
        self.binding, self.identity, self.hef = binding, identity, hef
        self._input = np.zeros((1, bundle.frames, bundle.n_mels), np.float32)
        self._output = np.zeros((1, bundle.positions, bundle.d_model), np.float32)
        self._device: Any = None
        self._model: Any = None
        self._configured: Any = None
        self._bindings: Any = None
        self._doing = "opening the chip"
        try:
            self._guarded(lambda: self._open(share))
            self._doing = "the first job"
            self._encode(FIRST_JOB_WITHIN_MS)
        except RoomscribeError:
            self.close()
            raise
        self._doing = "encoding"

    @property
    def chip(self) -> str:
        """hailo8, hailo8l or hailo10h."""
        return self.identity.chip

    def encode(self, mel: Mel) -> States:
        """States (P, d_model) float32 of `mel` (W, n_mels) float32, W = 2 P.

        Raises NpuError; after that there is nothing to do with it but to close it, since the job
        may still run and write.
        """
        if mel.shape != self._input.shape[1:]:
            raise ValueError(f"expected a mel of shape {self._input.shape[1:]}, found {mel.shape}")
        self._input[0] = mel
        return self._encode(JOB_WITHIN_MS)

    def close(self) -> None:
        """Frees the chip. May take 10 s where a job still runs."""
        configured, self._configured, self._bindings = self._configured, None, None
        if configured is not None:
            # a pending job's callback holds it: letting go of it here alone would not end it
            _quietly(lambda: configured.__exit__(None, None, None))
            del configured
        self._model = None
        device, self._device = self._device, None
        if device is not None:
            _quietly(device.release)

    def _open(self, share: bool) -> None:
        binding = self.binding
        parameters = binding.VDevice.create_params()
        parameters.scheduling_algorithm = binding.HailoSchedulingAlgorithm.ROUND_ROBIN
        if share:
            parameters.group_id = GROUP
            parameters.multi_process_service = True
        self._device = binding.VDevice(parameters)
        self._doing = "loading the HEF"
        self._model = self._device.create_infer_model(str(self.hef.file))
        self._model.set_batch_size(1)
        self._check("input", self._model.inputs, self._input.shape)
        self._check("output", self._model.outputs, self._output.shape)
        self._model.input().set_format_type(binding.FormatType.FLOAT32)
        self._model.output().set_format_type(binding.FormatType.FLOAT32)
        self._configured = self._model.configure()
        self._bindings = self._configured.create_bindings()
        self._bindings.input().set_buffer(self._input)
        self._bindings.output().set_buffer(self._output)

    def _check(self, role: str, edges: list[Any], wanted: tuple[int, ...]) -> None:
        """Raises NpuError unless there is one edge, and it has that shape: HailoRT itself would
        only compare numbers of bytes."""
        found = [tuple(edge.shape) for edge in edges]
        if found != [wanted]:
            raise NpuError(
                "hef refused",
                f"{self.hef.file}: {role}: expected one of shape {wanted}, "
                f"found {', '.join(map(str, found)) or 'none'}; it is not this model's encoder",
            )

    def _encode(self, within_ms: int) -> States:
        """The states of what lies in the input, a copy. Raises NpuError."""
        outcomes: list[Any] = []
        self._guarded(lambda: self._run(outcomes, within_ms))
        if not outcomes:
            raise NpuError("lost", f"{self._doing}: the job ended without saying how")
        if outcomes[0].exception is not None:
            raise explain(outcomes[0].exception, self._situation())
        states: States = self._output[0].copy()
        if not np.isfinite(states).all():
            raise NpuError("garbage", f"{self._doing}: expected numbers, found NaN or infinity")
        return states

    def _run(self, outcomes: list[Any], within_ms: int) -> None:
        """Runs a job. Neither this nor the wait raises when it fails: the outcome tells alone."""
        if self._configured is None:
            raise NpuError("lost", "the chip was closed")

        def store(*, completion_info: Any) -> None:
            outcomes.append(completion_info)

        self._configured.wait_for_async_ready(timeout_ms=READY_WITHIN_MS)
        self._configured.run_async([self._bindings], store).wait(within_ms)

    def _guarded(self, action: Callable[[], None]) -> None:
        """Raises what HailoRT raises as NpuError, without its traceback: that would keep the
        chip's objects alive, and the chip would be busy with ourselves."""
        fault: NpuError | None = None
        try:
            action()
        except NpuError:
            raise
        except Exception as error:  # HailoRT's classes differ with its version
            fault = explain(error, self._situation())
        if fault:
            raise fault

    def _situation(self) -> Situation:
        return Situation(self._doing, self.binding.__version__, self.hef, scanner(self.binding))


def _quietly(action: Callable[[], object]) -> None:
    """Does what may fail without harm: the object is let go of in any case."""
    try:
        action()
    except Exception:  # whatever HailoRT raises while it is being closed
        return
