"""Log-mel to encoder states: what an encoder is, and the one on the CPU."""

from __future__ import annotations

from typing import Any, Protocol

from appliance.model import ENCODER_FILE, Bundle
from appliance.records import Mel, States


class Unit(Protocol):
    """What windows are transcribed on, and how it is. Used from one thread; `name`, `trouble` and
    `facts` may be read from any."""

    @property
    def name(self) -> str:
        """What encoded last: cpu, hailo8, hailo8l or hailo10h; or wyoming, a server."""

    @property
    def trouble(self) -> str | None:
        """Why it does not run on what it should, with the fix; None while all is well."""

    def look_after(self, now_s: float) -> None:
        """Begins what may take its time, and does not wait for it; for when there is no window to
        encode, about once a second (`now_s` is time.monotonic())."""

    def facts(self) -> dict[str, Any]:
        """What is known of the chip in use, as last looked at. Does not wait."""

    def close(self) -> None:
        """Frees the device."""


class Encoder(Unit, Protocol):
    """What every encoder is, whatever it runs on."""

    def encode(self, mel: Mel) -> States:
        """States (P, d_model) float32 of `mel` (W, n_mels) float32, W = 2 P."""


class CpuEncoder:
    """encoder.onnx through ONNX Runtime. Interchangeable with the NPU's: same input and output, but
    that several threads may `encode`."""

    name = "cpu"
    trouble: str | None = None

    def __init__(self, bundle: Bundle, threads: int) -> None:
        """Loads the graph; `threads` 0 is one for each core. Raises ModelError."""
        from appliance.infer.sessions import Session

        self._session = Session(
            bundle.folder / ENCODER_FILE,
            threads,
            inputs={"mel": (1, bundle.frames, bundle.n_mels)},
            outputs={"states": (1, bundle.positions, bundle.d_model)},
            precise=bundle.zero_points,
        )

    def encode(self, mel: Mel) -> States:
        """States (P, d_model) float32 of `mel` (W, n_mels) float32, W = 2 P. Raises ModelError."""
        states: States = self._session.run({"mel": mel[None]})[0][0]
        return states

    def look_after(self, now_s: float) -> None:
        """A CPU needs no looking after."""

    def facts(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def close(self) -> None:
        """Nothing to free."""
