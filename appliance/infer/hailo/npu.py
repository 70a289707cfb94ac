"""A Hailo chip that runs the encoder: open, encode, close. `device` says what it is made from."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from appliance.infer.encoder import Encoder
from appliance.infer.hailo import device
from appliance.infer.hailo.device import NpuModel, Shapes
from appliance.infer.hailo.diagnosis import NpuError
from appliance.infer.hailo.shared import Order, make_order
from appliance.model import Bundle
from appliance.records import Mel, States

TRIAL_JOBS, PATIENCE = 3, 6
"""Jobs that are timed when the chip is opened, and the limit by the median of their times."""


def open_npu(bundle: Bundle, *, share: bool, **limits: Any) -> Npu:
    """Open the chip with a bundle's encoder in this process, which HailoRT may then stop or end.
    Raises NpuError."""
    return Npu(make_order(bundle, share=share, **limits))


class Npu(Encoder):
    """A chip with the encoder. For one thread; must not be forked.

    A failed job may go on and write: end the process then. Opening holds the interpreter's lock for
    some hundred ms (inferred).
    """

    def __init__(self, order: Order) -> None:
        """Open the chip and time its first jobs. Tries once. Raises NpuError."""
        self.binding = device.load_binding()
        self.identity = device.identify(self.binding)
        self._order = order
        self._device: Any = None
        self._models: list[NpuModel] = []
        """The encoder, and what else was loaded."""
        try:
            with device.explaining("opening the chip", self.binding):
                self._device = self.binding.VDevice(self._parameters())
            self._time_jobs(self.load(Path(order.hef), self._check))
            self.read_sensors()
        except NpuError:
            self.close()
            raise

    def read_sensors(self) -> None:
        """Read the sensors; on a chip that has just failed a job that may hang. Raises NpuError if
        it is too hot."""
        self.readings = found = device.read(self.binding, self.identity.device_id)
        """The last ones."""
        if found.zone == device.RED:
            at = "" if found.temperature_c is None else f" of {found.temperature_c:.0f} °C"
            raise NpuError(
                "hot",
                f"the chip is too hot: its temperature{at} is in the red zone; it is not used "
                "until it has cooled down; give it a heat sink and moving air",
            )

    @property
    def name(self) -> str:
        """hailo8, hailo8l or hailo10h."""
        return self.identity.chip

    def load(self, hef: Path, check: Callable[[Shapes, Shapes], None]) -> NpuModel:
        """Return a network on this chip after its first job; see NpuModel for `check`. Raises
        NpuError."""
        model = NpuModel(self.binding, self._device, hef, check)
        self._models.append(model)
        model.run("the first job", self._order.first_job_ms)
        return model

    def encode(self, mel: Mel) -> States:
        """Return the states (P, d_model) float32 of `mel` (W, n_mels) float32, W = 2 P. Raises
        NpuError; then only `close` may follow."""
        encoder = self._models[0]
        (buffer,) = encoder.inputs.values()
        (encoded,) = encoder.outputs.values()
        buffer[0] = mel
        encoder.run(self._doing, self.job_ms)
        states: States = encoded[0].copy()
        return states

    def close(self) -> None:
        """Free the chip. Takes 10 s, or hangs, while a job runs."""
        for model in reversed(self._models):
            model.close()
        if self._device is not None:
            device.or_none(self._device.release)
            self._device = None

    def _parameters(self) -> Any:
        """Return what the chip is opened with. A Hailo-10H is shared by its group, without a
        service [vdevice.cpp: validate_params, 5.0.1]. The scheduler activates networks; Python's
        default was none before 5.0 [py: VDevice.create_params; pyhailort.cpp: VDeviceParams]."""
        parameters = self.binding.VDevice.create_params()
        parameters.scheduling_algorithm = self.binding.HailoSchedulingAlgorithm.ROUND_ROBIN
        if self._order.share:
            parameters.group_id = "SHARED"
            parameters.multi_process_service = self.identity.chip != "hailo10h"
        return parameters

    def _check(self, inputs: Shapes, outputs: Shapes) -> None:
        """Raise NpuError unless there is one input and one output, each of the right shape."""
        for role, edges, wanted in (
            ("input", inputs, tuple(self._order.mel)),
            ("output", outputs, tuple(self._order.states)),
        ):
            if list(edges.values()) != [wanted]:
                raise NpuError(
                    "hef refused",
                    f"{self._order.hef}: {role}: expected one of shape {wanted}, "
                    f"found {', '.join(map(str, edges.values())) or 'none'}; "
                    "it is not this model's encoder",
                )

    def _time_jobs(self, encoder: NpuModel) -> None:
        """Set the limit for a job, ms, by the times of some. Raises NpuError for a chip that does
        not keep the longest limit."""
        order, times_ms = self._order, list[float]()
        longest_ms = max(order.job_ms, order.longest_job_ms)
        for _ in range(TRIAL_JOBS):
            begun_s = time.perf_counter()
            encoder.run("encoding", longest_ms)
            times_ms.append(1000 * (time.perf_counter() - begun_s))
        needed_ms = statistics.median(times_ms)
        self.job_ms = round(min(max(order.job_ms, PATIENCE * needed_ms), longest_ms))
        self._doing = f"encoding (the chip needs {needed_ms:.0f} ms and is given {self.job_ms} ms)"
