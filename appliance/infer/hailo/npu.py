"""A Hailo chip that runs the encoder and, if requested, the decoder: open, encode, close.

Written against the published sources of HailoRT 4.19 to 5.2 (and what 5.4 changed), and tested on a
simulator that refuses what they refuse; never run on a real chip.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from appliance.errors import RoomscribeError
from appliance.infer.hailo.decoder_network import STEP_WITHIN_MS, DecoderFiles, NpuDecoder
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
    situation_of,
    too_hot,
)
from appliance.infer.hailo.errors import REPEATED, NpuError, explain, generation, status_of
from appliance.model import Bundle, Hef, verify_hef
from appliance.records import Mel, States
from appliance.system import BackgroundTask

log = logging.getLogger("roomscribe.infer")

GROUP = "SHARED"
NO_SERVICE = (6, 7, 77, 79, 89)
"""HailoRT 5.x's statuses for a Hailo-10H without a service (validate_params, VDeviceClient)."""
CLOSE_WITHIN_S = 1.0
"""Seconds for closing: a chip is free within some ms, or it hangs for 10 s or more."""
MEL_CHANGE = 0.1
"""A mel with a number that differs by more is of different sound, and its states must differ, too.
The chip's 8 bits have steps of about 0.01; a change of a few steps may leave the states equal."""

_closing: list[BackgroundTask] = []
"""Closing tasks. At most one is alive: no chip is opened meanwhile."""


@dataclass(frozen=True, slots=True)
class NpuLimits:
    """How long the chip may take for a job before it counts as failed, ms."""

    job_ms: int = 400
    """At least, and six times what the first jobs need. tiny takes some 31 ms on a Hailo-8L, as
    others measured; no time of base is published."""
    longest_job_ms: int = 1000
    """At most. HailoRT may wait twice as long; then the CPU gets the window after 2 s."""
    first_job_ms: int = 2000
    """For those before the limit is known. The very first also loads the network."""
    step_ms: int = STEP_WITHIN_MS


LIMITS = NpuLimits()
TRIAL_JOBS, PATIENCE = 3, 6
"""Jobs that are timed when the chip is opened, and the limit by the median of their times."""


def open_npu(
    bundle: Bundle,
    hef_file: Path,
    *,
    share: bool,
    decoder: DecoderFiles | None = None,
    limits: NpuLimits = LIMITS,
) -> Npu:
    """Open the chip with the encoder and, if given, the decoder. Tries once.

    A damaged or wrongly sized HEF is refused before HailoRT is loaded, one for another chip before
    the chip is opened. Raises NpuError and ModelError; the chip is free then, unless it hangs: see
    `is_closing`."""
    if is_closing():
        raise NpuError("hanging", f"HailoRT has not released a chip that hangs; {REPEATED}")
    hef = verify_hef(hef_file, bundle)
    decoder_hef = (decoder, decoder.verify()) if decoder else None
    binding = load_binding()
    identity = identify(binding)
    for each in (hef, decoder_hef[1]) if decoder_hef else (hef,):
        each.check_library(binding.__version__)
        each.check_chip(identity.chip)
    readings = read(binding, identity.device_id)
    if readings.zone == RED:
        raise too_hot(readings)
    return Npu(binding, identity, bundle, hef, decoder_hef, share=share, limits=limits)


def is_closing(within_s: float = 0.0) -> bool:
    """Return True if a chip of this process is still being closed after at most `within_s`."""
    for task in tuple(_closing):
        task.join(within_s)
    _closing[:] = [task for task in _closing if task.is_alive()]
    return bool(_closing)


class Npu:
    """An open chip with the encoder. For one thread at a time; must not be forked. Another thread
    may use its `decoder`: HailoRT's scheduler gives the chip to both in turn.

    Opening holds the interpreter's lock for some hundred ms (inferred): no sound is read meanwhile.
    """

    def __init__(
        self,
        binding: Any,
        identity: Identity,
        bundle: Bundle,
        hef: Hef,
        decoder: tuple[DecoderFiles, Hef] | None,
        *,
        share: bool,
        limits: NpuLimits,
    ) -> None:
        """Open the chip, with `decoder` if given. Raises NpuError; the chip is free then."""
        self.binding, self.identity, self.hef, self._limits = binding, identity, hef, limits
        self.decoder: NpuDecoder | None = None
        self.fault: NpuError | None = None
        """Error that the decoder's thread met; the encoder's thread drops the chip then."""
        self.sharing = ""
        """How the chip is shared with other programs; empty if it is not."""
        self._mel = (1, bundle.frames, bundle.n_mels)
        self._states = (1, bundle.positions, bundle.d_model)
        self._device: Any = None
        self._encoder: NpuModel | None = None
        self._job_ms = limits.first_job_ms
        try:
            guarded(
                lambda: self._open(share), lambda: situation_of("opening the chip", binding, hef)
            )
            self._encoder = NpuModel(binding, self._device, hef, self._check)
            self._first_job(self._encoder, "encoding")
            (encoded,) = self._encoder.outputs.values()
            self._last: States = encoded[0].copy()
            """States of the mel in the input buffer."""
            self._time_jobs(self._encoder)
            if decoder:
                self.decoder = NpuDecoder(binding, self._device, *decoder, limits.step_ms)
                self._first_job(self.decoder.model, "decoding")
        except RoomscribeError:
            self.close()
            raise

    @property
    def chip(self) -> str:
        """hailo8, hailo8l or hailo10h."""
        return self.identity.chip

    def encode(self, mel: Mel) -> States:
        """Return the states (P, d_model) float32 of `mel` (W, n_mels) float32, W = 2 P.

        Raises NpuError; then close this chip, since the job may still run and write.
        """
        if mel.shape != self._mel[1:]:
            raise ValueError(f"expected a mel of shape {self._mel[1:]}, found {mel.shape}")
        encoder = self._encoder  # another thread may close the chip during a job
        if encoder is None:
            raise NpuError("lost", "the chip was closed")
        (buffer,) = encoder.inputs.values()
        (encoded,) = encoder.outputs.values()
        is_changed = float(np.abs(buffer[0] - mel).max()) > MEL_CHANGE
        buffer[0] = mel
        encoder.run(self._job_ms)
        states: States = encoded[0].copy()
        encoder.check_finite(states)
        if is_changed and np.array_equal(states, self._last):
            raise NpuError(
                "stale",
                f"{encoder.doing}: different sound gave the states of the window before, bit for "
                f"bit; {generation().upgrade}",
            )
        self._last = states
        return states

    def close(self, within_s: float = CLOSE_WITHIN_S) -> None:
        """Free the chip in a thread of its own; wait for it at most `within_s`."""
        _closing.append(BackgroundTask(self._close))
        is_closing(within_s)

    def _close(self) -> None:
        if self.decoder:
            self.decoder.model.close()
        encoder, self._encoder = self._encoder, None
        if encoder:
            encoder.close()
        device, self._device = self._device, None
        if device is not None:
            quietly(device.release)

    def _open(self, share: bool) -> None:
        """Open the chip. A Hailo-10H without a service is shared by its group alone."""
        binding = self.binding
        parameters = binding.VDevice.create_params()
        parameters.scheduling_algorithm = binding.HailoSchedulingAlgorithm.ROUND_ROBIN
        if share:
            parameters.group_id = GROUP
            parameters.multi_process_service = True
            self.sharing = "through the hailort service"
            try:
                self._device = binding.VDevice(parameters)
            except Exception as error:  # HailoRT's classes differ with its version
                fault = explain(error, situation_of("opening the chip", binding, shared=True))
                if self.chip != "hailo10h" or status_of(error) not in NO_SERVICE:
                    raise fault from None
            if self._device is not None:
                return
            parameters.multi_process_service = False
            self.sharing = f"by group_id {GROUP} alone, without the hailort service ({fault})"
            log.info("the Hailo-10H is shared %s", self.sharing)
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
                    f"{self.hef.file}: {role}: expected one of shape {wanted}, "
                    f"found {', '.join(map(str, edges.values())) or 'none'}; "
                    "it is not this model's encoder",
                )

    def _time_jobs(self, encoder: NpuModel) -> None:
        """Run some jobs, and take the limit for all others from their times. Raises NpuError for a
        chip that never keeps the longest limit."""
        limits, times_ms = self._limits, []
        ramp = np.linspace(-1, 1, math.prod(self._mel), dtype=np.float32).reshape(self._mel[1:])
        for number in range(TRIAL_JOBS):
            begun_s = time.perf_counter()
            self.encode(ramp if number % 2 else -ramp)
            times_ms.append(1000 * (time.perf_counter() - begun_s))
        needed_ms = statistics.median(times_ms)
        longest_ms = max(limits.job_ms, limits.longest_job_ms)
        if needed_ms > longest_ms:
            raise NpuError(
                "slow",
                f"the chip needs {needed_ms:.0f} ms for a window, and {longest_ms} ms are the "
                "most; stop other programs that use it, use a smaller model, or set [encoder] "
                "backend = cpu",
            )
        self._job_ms = round(min(max(limits.job_ms, PATIENCE * needed_ms), longest_ms))
        encoder.doing = (
            f"encoding (the chip needs {needed_ms:.0f} ms and is given {self._job_ms} ms)"
        )

    def _first_job(self, model: NpuModel, next_job: str) -> None:
        model.doing = "the first job"
        model.run(self._limits.first_job_ms)
        for values in model.outputs.values():
            model.check_finite(values)
        model.doing = next_job
