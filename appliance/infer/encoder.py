"""Log-mel spectrogram to encoder states: the interface of an encoder, and the CPU's."""

from typing import Any, Protocol

from appliance.model import ENCODER_FILE, Bundle
from appliance.records import Mel, States


class Backend(Protocol):
    """A device or fleet that transcribes, as the health report sees it. One thread; `name`,
    `trouble` and `facts` may be read from any."""

    @property
    def name(self) -> str:
        """What encoded last: cpu, hailo8, hailo8l or hailo10h; or fleet."""

    @property
    def trouble(self) -> str | None:
        """Why it does not run where it should, with the fix; None while it does."""
        return None

    def poll(self, now_s: float) -> None:
        """Begin slow maintenance work, such as a reconnect, without waiting for it. Called about
        once a second while there is no window to encode (`now_s` is time.monotonic())."""
        return

    def facts(self) -> dict[str, Any]:
        """Return the last readings of the chip in use. Does not wait."""
        return {}

    def close(self) -> None:
        """Free the device."""
        return


class Encoder(Backend, Protocol):
    """An encoder on any device."""

    def encode(self, mel: Mel) -> States:
        """Return states (P, d_model) float32 of `mel` (W, n_mels) float32, W = 2 P."""


class CpuEncoder(Encoder):
    """encoder.onnx through ONNX Runtime. Same input and output as the NPU's, but several threads
    may `encode`."""

    name = "cpu"

    def __init__(self, bundle: Bundle, threads: int) -> None:
        """Loads the graph; `threads` 0: one per core. Raises ModelError."""
        from appliance.infer.sessions import Session

        self._session = Session(bundle.folder / ENCODER_FILE, threads)

    def encode(self, mel: Mel) -> States:
        """Return states (P, d_model) float32 of `mel` (W, n_mels) float32. Raises ModelError."""
        # a copy: states that wait would lie in the session's arena, and make it grow for good
        states: States = self._session.run({"mel": mel[None]})[0][0].copy()
        return states
