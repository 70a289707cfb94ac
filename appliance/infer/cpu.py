"""The encoder on the CPU: encoder.onnx through ONNX Runtime."""

from __future__ import annotations

from appliance.infer.sessions import Session
from appliance.model.bundle import ENCODER, Bundle
from appliance.records import Mel, States


class CpuEncoder:
    """Log-mel to encoder states. Interchangeable with the NPU's: same input, same output."""

    name = "cpu"

    def __init__(self, bundle: Bundle, threads: int) -> None:
        """Loads the graph; `threads` 0 is one for each core. Raises ModelError."""
        self._session = Session(
            bundle.folder / ENCODER,
            threads,
            inputs={"mel": (1, bundle.frames, bundle.n_mels)},
            outputs={"states": (1, bundle.positions, bundle.d_model)},
            precise=bundle.zero_points,
        )

    def encode(self, mel: Mel) -> States:
        """States (P, d_model) float32 of `mel` (W, n_mels) float32, W = 2 P. Raises ModelError."""
        states: States = self._session.run({"mel": mel[None]})[0][0]
        return states
