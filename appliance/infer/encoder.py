"""Log-mel to encoder states: which encoder does it."""

from __future__ import annotations

from typing import Protocol

from appliance.infer.bundle import Bundle
from appliance.infer.cpu import CpuEncoder
from appliance.records import Mel, States
from appliance.settings import EncoderSettings


class Encoder(Protocol):
    """What every encoder is, whatever it runs on. Used from one thread."""

    @property
    def name(self) -> str:
        """What runs it: cpu, hailo8, hailo8l or hailo10h."""

    def encode(self, mel: Mel) -> States:
        """States (P, d_model) float32 of `mel` (W, n_mels) float32, W = 2 P."""


def open_encoder(bundle: Bundle, settings: EncoderSettings) -> Encoder:
    """The encoder that the settings ask for, loaded. Raises ModelError."""
    return CpuEncoder(bundle, settings.threads)
