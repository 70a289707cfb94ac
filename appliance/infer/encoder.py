"""Log-mel to encoder states: which encoder does it."""

from __future__ import annotations

from typing import Any, Protocol

from appliance.config import EncoderSettings
from appliance.errors import ModelError, RoomscribeError
from appliance.infer import hailo_system
from appliance.infer.cpu import CpuEncoder
from appliance.infer.hailo_failover import FailoverEncoder
from appliance.infer.hailo_npu import open_npu
from appliance.model.bundle import ENCODER, Bundle
from appliance.model.hef import HEF_FILE, bundled_hef
from appliance.records import Mel, States


class Encoder(Protocol):
    """What every encoder is, whatever it runs on. Used from one thread; `name`, `trouble` and
    `facts` may be read from any."""

    @property
    def name(self) -> str:
        """What encoded last: cpu, hailo8, hailo8l or hailo10h."""

    @property
    def trouble(self) -> str | None:
        """Why it does not run on what it should, with the cure; None while all is well."""

    def encode(self, mel: Mel) -> States:
        """States (P, d_model) float32 of `mel` (W, n_mels) float32, W = 2 P."""

    def look_after(self, now_s: float) -> None:
        """Does what may take its time; for when there is no window to encode, about once a second
        (`now_s` is time.monotonic())."""

    def facts(self) -> dict[str, Any]:
        """What is known of the chip in use, as last looked at. Does not wait."""

    def close(self) -> None:
        """Frees the device."""


class PlainEncoder:
    """The CPU's encoder, where there is nothing else."""

    name = "cpu"
    trouble: str | None = None

    def __init__(self, cpu: CpuEncoder) -> None:
        self._cpu = cpu

    def encode(self, mel: Mel) -> States:
        """States (P, d_model) float32 of `mel` (W, n_mels) float32. Raises ModelError."""
        return self._cpu.encode(mel)

    def look_after(self, now_s: float) -> None:
        """A CPU needs no looking after."""

    def facts(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def close(self) -> None:
        """Nothing to free."""


def open_encoder(bundle: Bundle, settings: EncoderSettings) -> Encoder:
    """The encoder that the settings ask for, open.

    auto: the NPU if the bundle has a HEF and there is a chip; else the CPU, which stands in for a
    chip that is there and cannot be used (see `trouble`). hailo: the same, but the NPU must be
    usable at the start: raises DeviceError or ModelError when it is not. Raises ModelError.
    """
    hef = bundled_hef(bundle)
    must = settings.backend == "hailo"
    if must and hef is None:
        raise ModelError(
            f"{bundle.folder}: expected {HEF_FILE} in the model, as [encoder] backend = hailo "
            f"wants it, found none; roomscribe model add {bundle.name} --hef hailo8, "
            "or backend = auto"
        )
    cpu = CpuEncoder(bundle, settings.threads) if ENCODER in bundle.files else None
    if cpu and (hef is None or settings.backend == "cpu"):
        return PlainEncoder(cpu)
    if hef is None or settings.backend == "cpu":
        raise ModelError(f"{bundle.folder}: expected {ENCODER} in the model, found none")
    file = hef
    encoder = FailoverEncoder(lambda: open_npu(bundle, file, share=settings.share), cpu)
    if must or cpu is None or hailo_system.nodes():
        try:
            encoder.open()
        except RoomscribeError:
            if must or cpu is None:
                raise
    return encoder
