"""A Hailo chip that runs the encoder: open, encode, close.

Written against the published sources of HailoRT 4.19 to 5.2 (and what 5.4 changed), and tested on a
simulator that refuses what they refuse; never run on a real chip.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.errors import RoomscribeError
from appliance.infer.hailo.device import (
    RED,
    Identity,
    NpuModel,
    Shapes,
    guarded,
    identify,
    load_binding,
    quietly,
    read,
    too_hot,
)
from appliance.infer.hailo.diagnosis import REPEATED, NpuError
from appliance.model import Bundle
from appliance.records import Mel, States
from appliance.system import BackgroundTask

GROUP = "SHARED"
CLOSE_WITHIN_S = 1.0
"""Seconds for closing: a chip is free within some ms, or it hangs for 10 s or more."""

_closing: list[BackgroundTask] = []
"""Closing tasks. At most one is alive: no chip is opened meanwhile."""


@dataclass(frozen=True, slots=True)
class NpuLimits:
    """How long the chip may take for a job before it counts as failed, ms."""

    job_ms: int = 400
    """At least, and six times what the first jobs need. Others measured some 31 ms of tiny on
    a Hailo-8L, and about 40 of base (5 s) on a Hailo-8."""
    longest_job_ms: int = 1000
    """At most. HailoRT may wait twice as long; then the CPU gets the window after 2 s."""
    first_job_ms: int = 2000
    """For the first one, which also loads the network."""


LIMITS = NpuLimits()
TRIAL_JOBS, PATIENCE = 3, 6
"""Jobs that are timed when the chip is opened, and the limit by the median of their times."""


def open_npu(
    bundle: Bundle,
    hef_file: Path,
    *,
    share: bool,
    limits: NpuLimits = LIMITS,
) -> Npu:
    """Open the chip with the encoder. Tries once.

    Raises NpuError; the chip is free then, unless it hangs: see `is_closing`."""
    if is_closing():
        raise NpuError("hanging", f"HailoRT has not released a chip that hangs; {REPEATED}")
    binding = load_binding()
    identity = identify(binding)
    readings = read(binding, identity.device_id)
    if readings.zone == RED:
        raise too_hot(readings)
    return Npu(binding, identity, bundle, hef_file, share=share, limits=limits)


def is_closing(within_s: float = 0.0) -> bool:
    """Return True if a chip of this process is still being closed after at most `within_s`."""
    for task in tuple(_closing):
        task.join(within_s)
    _closing[:] = [task for task in _closing if task.is_alive()]
    return bool(_closing)


class Npu:
    """An open chip with the encoder. For one thread at a time; must not be forked.

    Opening holds the interpreter's lock for some hundred ms (inferred): no sound is read meanwhile.
    """

    def __init__(
        self,
        binding: Any,
        identity: Identity,
        bundle: Bundle,
        hef: Path,
        *,
        share: bool,
        limits: NpuLimits,
    ) -> None:
        """Open the chip. Raises NpuError; the chip is free then."""
        self.binding, self.identity, self.hef, self._limits = binding, identity, hef, limits
        self._mel = (1, bundle.frames, bundle.n_mels)
        self._states = (1, bundle.positions, bundle.d_model)
        self._device: Any = None
        self._models: list[NpuModel] = []
        """The encoder, and what else was loaded."""
        try:
            guarded(lambda: self._open(share), "opening the chip", binding)
            encoder = self.load(hef, self._check, "encoding")
            self._job_ms = self._time_jobs(encoder)
        except RoomscribeError:
            self.close()
            raise

    @property
    def chip(self) -> str:
        """hailo8, hailo8l or hailo10h."""
        return self.identity.chip

    def load(self, hef: Path, check: Callable[[Shapes, Shapes], None], doing: str) -> NpuModel:
        """Return a network on this chip after its first job; see NpuModel for `check`. `doing`
        names its later jobs. Raises NpuError."""
        model = NpuModel(self.binding, self._device, hef, check)
        self._models.append(model)
        model.doing = "the first job"
        model.run(self._limits.first_job_ms)
        for values in model.outputs.values():
            model.check_finite(values)
        model.doing = doing
        return model

    def encode(self, mel: Mel) -> States:
        """Return the states (P, d_model) float32 of `mel` (W, n_mels) float32, W = 2 P.

        Raises NpuError; then close this chip, since the job may still run and write.
        """
        if mel.shape != self._mel[1:]:
            raise ValueError(f"expected a mel of shape {self._mel[1:]}, found {mel.shape}")
        encoder = self._models[0]
        (buffer,) = encoder.inputs.values()
        (encoded,) = encoder.outputs.values()
        buffer[0] = mel
        encoder.run(self._job_ms)
        states: States = encoded[0].copy()
        encoder.check_finite(states)
        return states

    def close(self, within_s: float = CLOSE_WITHIN_S) -> None:
        """Free the chip in a thread of its own; wait for it at most `within_s`."""
        _closing.append(BackgroundTask(self._close))
        is_closing(within_s)

    def _close(self) -> None:
        for model in reversed(self._models):
            model.close()
        device, self._device = self._device, None
        if device is not None:
            quietly(device.release)

    def _open(self, share: bool) -> None:
        """Open the chip. A Hailo-10H is shared by its group, without a service."""
        binding = self.binding
        parameters = binding.VDevice.create_params()
        parameters.scheduling_algorithm = binding.HailoSchedulingAlgorithm.ROUND_ROBIN
        if share:
            parameters.group_id = GROUP
            parameters.multi_process_service = self.chip != "hailo10h"
        self._device = binding.VDevice(parameters)

    def _check(self, inputs: Shapes, outputs: Shapes) -> None:
        """Raise NpuError unless there is one input and one output, each of the right shape."""
        for role, edges, wanted in (
            ("input", inputs, self._mel),
            ("output", outputs, self._states),
        ):
            if list(edges.values()) != [wanted]:
                raise NpuError(
                    "hef refused",
                    f"{self.hef}: {role}: expected one of shape {wanted}, "
                    f"found {', '.join(map(str, edges.values())) or 'none'}; "
                    "it is not this model's encoder",
                )

    def _time_jobs(self, encoder: NpuModel) -> int:
        """Return the limit for a job, ms, by the times of some. Raises NpuError for a chip that
        does not keep the longest limit."""
        limits, times_ms = self._limits, list[float]()
        longest_ms = max(limits.job_ms, limits.longest_job_ms)
        for _ in range(TRIAL_JOBS):
            begun_s = time.perf_counter()
            encoder.run(longest_ms)
            times_ms.append(1000 * (time.perf_counter() - begun_s))
        needed_ms = statistics.median(times_ms)
        limit_ms = round(min(max(limits.job_ms, PATIENCE * needed_ms), longest_ms))
        encoder.doing = f"encoding (the chip needs {needed_ms:.0f} ms and is given {limit_ms} ms)"
        return limit_ms
