"""The full-NPU path: encoder and decoder both on the Hailo. There for comparison only.

Each token costs a run over the whole sequence, about ten times what the CPU's decoder with its
cache takes; the text is no longer than the sequence; and the encoder has to share the chip.
"""

from __future__ import annotations

from appliance.config import EncoderSettings, Settings
from appliance.errors import ConfigError, ModelError
from appliance.infer.decoder import Decoded, Decoder
from appliance.infer.encoder import CpuEncoder
from appliance.infer.hailo.decoder_network import DecoderFiles
from appliance.infer.hailo.diagnosis import NpuError
from appliance.infer.hailo.failover import FailoverEncoder
from appliance.infer.hailo.npu import LIMITS, NpuLimits, open_npu
from appliance.infer.languages import Languages
from appliance.model import HEF_FILE, Bundle
from appliance.records import States


class HailoDecoder:
    """The decoder on the NPU that the encoder is on, and on the CPU while that cannot. One thread;
    the encoder may be another's.

    The CPU decodes a window again from its start, so that no text is of two minds. A HEF has no
    silence behind its states: it has as many positions as it was compiled for.
    """

    def __init__(self, cpu: Decoder, encoder: FailoverEncoder) -> None:
        self._cpu, self._encoder = cpu, encoder
        self.known_languages: dict[str, int] = {}

    def decode(
        self, states: States, duration_s: float, *, language: str = "", only: str = ""
    ) -> Decoded:
        """Tokens for states (P, d_model) of `duration_s` of sound.

        The language is the prompt's: see `refuse_settings`. Raises ModelError.
        """
        npu = self._encoder.npu
        if npu and npu.decoder:
            try:
                return self._cpu.decode(states, duration_s, npu.decoder)
            except NpuError as error:
                npu.fault = error  # the encoder's owner closes it
        return self._cpu.decode(states, duration_s)


def refuse_settings(settings: Settings, bundle: Bundle, languages: Languages | None) -> None:
    """Raises ConfigError for settings that need the CPU decoder: another language than the
    bundle's, and what compares texts in its KV cache."""
    refused = {
        f"[decoder] language (other than {bundle.language}, the model's)": languages is not None,
        "[vocabulary] words": settings.vocabulary.words,
        "[phrases] file": settings.phrases.own_file,
    }
    for key, used in refused.items():
        if used:
            raise ConfigError(
                f"{key}: expected [decoder] backend = cpu, which is also faster, found hailo"
            )


def open_on_npu(
    bundle: Bundle, settings: EncoderSettings, cpu: Decoder, limits: NpuLimits = LIMITS
) -> tuple[FailoverEncoder, HailoDecoder]:
    """Encoder and decoder, both on the NPU; `cpu` decodes while it cannot.

    Raises ConfigError, ModelError, and DeviceError when the NPU cannot be used at the start.
    """
    if settings.backend == "cpu":
        raise ConfigError(
            "[decoder] backend: expected cpu where [encoder] backend is cpu, found hailo; "
            "the Hailo's decoder is for comparison with both on the Hailo: "
            "set [encoder] backend = auto, or leave [decoder] backend at cpu, which is faster"
        )
    if (hef := bundle.hef) is None:
        raise ModelError(
            f"{bundle.folder}: [decoder] backend = hailo needs {HEF_FILE}, which is missing; "
            f"roomscribe model add {bundle.name} --hef hailo8 --npu-decoder, "
            "or backend = cpu, which is faster"
        )
    file, files = hef, DecoderFiles(bundle)
    encoder = FailoverEncoder(
        lambda: open_npu(bundle, file, share=settings.share, decoder=files, limits=limits),
        CpuEncoder(bundle, settings.threads),
        fallback="the CPU encodes and decodes",
    )
    encoder.open()
    return encoder, HailoDecoder(cpu, encoder)
