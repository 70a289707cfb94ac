"""The chip with an encoder on it, and a decoder where one is wanted: open, encode, close.

Never run on a real chip: written against the published sources of HailoRT 4.19 to 5.2, and run
against a simulator that refuses what they refuse.
"""

from __future__ import annotations

import logging
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
from appliance.infer.hailo.errors import REPEATED, UPGRADE, NpuError, explain, status_of
from appliance.model import Bundle, Hef, verify_hef
from appliance.records import Mel, States
from appliance.system import BackgroundTask

log = logging.getLogger("roomscribe.infer")

GROUP = "SHARED"
NO_SERVICE = (6, 7, 77, 79, 89)
"""What HailoRT 5.x says where a Hailo-10H has no service (validate_params, VDeviceClient)."""
CLOSE_WITHIN_S = 1.0
"""A chip lets go within some ms, or it hangs and takes 10 s or more."""
OTHER_SOUND = 0.1
"""A mel with a number that differs by more is that of other sound: a chip's 8 bits have steps of
about 0.01, and within some of these equal states would be right."""


_closing: list[BackgroundTask] = []
"""At most one is alive: no chip is opened meanwhile."""


@dataclass(frozen=True, slots=True)
class NpuLimits:
    """How long the chip may take before it is given up, ms."""

    job_ms: int = 400
    """An encode takes some 31 ms on a Hailo-8. HailoRT's wait for a job may last twice as
    long: with both, a window is 1 s late at most when the CPU gets it."""
    first_job_ms: int = 2000
    """The chip loads the network for the first job."""
    step_ms: int = STEP_WITHIN_MS


LIMITS = NpuLimits()


def open_npu(
    bundle: Bundle,
    hef_file: Path,
    *,
    share: bool,
    decoder: DecoderFiles | None = None,
    limits: NpuLimits = LIMITS,
) -> Npu:
    """The encoder on the chip that is here, and the decoder if one is given; tried once.

    A HEF that is damaged or of other sizes is refused before HailoRT is even loaded, one for
    another chip before the chip is taken. Raises NpuError and ModelError; then nothing is held,
    unless the chip hangs: see `is_closing`.
    """
    if is_closing():
        raise NpuError("hanging", f"HailoRT has not yet let go of a chip that hangs; {REPEATED}")
    hef = verify_hef(hef_file, bundle)
    both = (decoder, decoder.verify()) if decoder else None
    binding = load_binding()
    identity = identify(binding)
    for each in (hef, both[1]) if both else (hef,):
        each.check_library(binding.__version__)
        each.check_chip(identity.chip)
    readings = read(binding, identity.device_id)
    if readings.zone == RED:
        raise too_hot(readings)
    return Npu(binding, identity, bundle, hef, both, share=share, limits=limits)


def is_closing(within_s: float = 0.0) -> bool:
    """True while HailoRT still lets go of a chip that this process had; waits `within_s` for it."""
    for task in tuple(_closing):
        task.join(within_s)
    _closing[:] = [task for task in _closing if task.is_alive()]
    return bool(_closing)


class Npu:
    """A chip with an encoder on it, open. For one thread at a time; not to be forked. Only its
    `decoder` may be another thread's: HailoRT's scheduler gives the chip to both in turn.

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
        """Opens it, with a decoder where one is given. Raises NpuError; the chip is free then."""
        self.binding, self.identity, self.hef, self._limits = binding, identity, hef, limits
        self.decoder: NpuDecoder | None = None
        self.fault: NpuError | None = None
        """What the decoder's thread met: this chip is to be let go of."""
        self.sharing = ""
        """How the chip is shared with other programs; empty when it is not."""
        self._mel = (1, bundle.frames, bundle.n_mels)
        self._states = (1, bundle.positions, bundle.d_model)
        self._device: Any = None
        self._encoder: NpuModel | None = None
        try:
            guarded(
                lambda: self._open(share), lambda: situation_of("opening the chip", binding, hef)
            )
            self._encoder = NpuModel(binding, self._device, hef, self._check)
            self._first_job(self._encoder, "encoding")
            (encoded,) = self._encoder.outputs.values()
            self._last: States = encoded[0].copy()
            """Of the mel that lies in the input's buffer."""
            ramp = np.linspace(-1, 1, bundle.frames * bundle.n_mels, dtype=np.float32)
            self.encode(ramp.reshape(self._mel[1:]))
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
        """States (P, d_model) float32 of `mel` (W, n_mels) float32, W = 2 P.

        Raises NpuError; after that there is nothing to do with it but to close it, since the job
        may still run and write.
        """
        if mel.shape != self._mel[1:]:
            raise ValueError(f"expected a mel of shape {self._mel[1:]}, found {mel.shape}")
        encoder = self._encoder  # another thread may close the chip in the midst of a job
        if encoder is None:
            raise NpuError("lost", "the chip was closed")
        (given,) = encoder.inputs.values()
        (encoded,) = encoder.outputs.values()
        is_other = float(np.abs(given[0] - mel).max()) > OTHER_SOUND
        given[0] = mel
        encoder.run(self._limits.job_ms)
        states: States = encoded[0].copy()
        encoder.check_finite(states)
        if is_other and np.array_equal(states, self._last):
            raise NpuError(
                "stale",
                f"{encoder.doing}: expected other states for other sound, found those of the "
                f"window before, bit for bit; {UPGRADE}",
            )
        self._last = states
        return states

    def close(self, within_s: float = CLOSE_WITHIN_S) -> None:
        """Frees the chip, in a thread of its own for which it waits at most `within_s`; see
        `is_closing`."""
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
        """Opens the chip; a Hailo-10H that has no service is shared by its group alone."""
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
        """Raises NpuError unless there is one edge of the right shape on each side."""
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

    def _first_job(self, model: NpuModel, then: str) -> None:
        model.doing = "the first job"
        model.run(self._limits.first_job_ms)
        for values in model.outputs.values():
            model.check_finite(values)
        model.doing = then
