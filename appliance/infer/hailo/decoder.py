"""The full-NPU path: encoder and decoder both on the Hailo. There for comparison only.

Each token costs a run over the whole sequence, about ten times what the CPU's decoder with its
cache takes; the text is no longer than the sequence; and the encoder has to share the chip.
"""

from __future__ import annotations

import numpy as np

from appliance.config import EncoderSettings
from appliance.errors import ConfigError, ModelError
from appliance.infer import guards
from appliance.infer.decoder import SEED, Decoded, Decoder
from appliance.infer.encoder import CpuEncoder
from appliance.infer.hailo.decoder_network import DecoderFiles, NpuDecoder
from appliance.infer.hailo.errors import NpuError
from appliance.infer.hailo.failover import FailoverEncoder
from appliance.infer.hailo.npu import open_npu
from appliance.model import HEF_FILE, Bundle, bundled_hef
from appliance.records import Logits, States


class HailoDecoder:
    """The decoder on the NPU that the encoder is on, and on the CPU while that cannot. One thread;
    the encoder may be another's.

    The CPU decodes a window again from its start, so that no text is of two minds. Its rules are
    the CPU decoder's, but for the padding: a HEF has as many positions as it was compiled for.
    """

    def __init__(self, bundle: Bundle, cpu: Decoder, encoder: FailoverEncoder) -> None:
        self._bundle, self._cpu, self._encoder = bundle, cpu, encoder
        self._kept = bundle.kept
        """Tokens that can be written: the columns of what is chosen from."""
        tokens = bundle.tokens
        self._end = int(np.searchsorted(self._kept, tokens.end_of_text))
        first = np.intersect1d(bundle.suppressed_first, self._kept)
        self._barred_first = np.searchsorted(self._kept, first)
        self._start = bundle.prompt.index(tokens.start)

    def decode(self, states: States, duration_s: float, temperature: float = 0.0) -> Decoded:
        """Tokens for states (P, d_model) of `duration_s` of sound, greedy at `temperature` 0.

        Raises ModelError.
        """
        npu = self._encoder.npu
        if npu and npu.decoder:
            try:
                return self._decode(npu.decoder, states, duration_s, temperature)
            except NpuError as error:
                npu.fault = error  # the encoder's owner closes it
        return self._cpu.decode(states, duration_s, temperature)

    def token_limit(self, network: NpuDecoder, duration_s: float) -> int:
        """The most tokens that `duration_s` of sound may give on `network`."""
        room = network.length - len(self._bundle.prompt)
        return min(room, self._cpu.token_limit(duration_s))

    def _decode(
        self, network: NpuDecoder, states: States, duration_s: float, temperature: float
    ) -> Decoded:
        """The same on the NPU. Raises NpuError."""
        rng, rules = np.random.Generator(np.random.PCG64(SEED)), self._cpu.rules
        network.listen(states)
        tokens = list(self._bundle.prompt)
        begun, limit = len(tokens), self.token_limit(network, duration_s)
        first, logits = network.logits(tokens, (self._start, begun - 1))
        columns: list[int] = []
        logprobs: list[float] = []
        while len(columns) < limit:
            if columns:
                (logits,) = network.logits(tokens, (len(tokens) - 1,))
            kept = logits[self._kept]
            if not columns:
                kept = guards.suppress(kept, self._barred_first)
            written = np.unique(np.array(columns, np.intp))
            scores = guards.penalise(kept, written, rules.repetition_penalty)
            scores = guards.boost_end(scores, self._end, rules.eot_boost)
            column = guards.sample(scores, temperature, rng)
            logprobs.append(float(kept[column]) - guards.log_sum(kept))
            if column == self._end:
                break
            columns.append(column)
            tokens.append(int(self._kept[column]))
        text = tuple(tokens[begun:])
        probability = self._no_speech_prob(first)
        return Decoded(text, tuple(logprobs), probability, len(logprobs) > len(text))

    def _no_speech_prob(self, logits: Logits) -> float:
        """Probability of the no-speech token after start-of-transcript, 0 where there is none."""
        token = self._bundle.tokens.no_speech
        return 0.0 if token is None else float(np.exp(logits[token] - guards.log_sum(logits)))


def open_on_npu(
    bundle: Bundle, settings: EncoderSettings, cpu: Decoder
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
    hef = bundled_hef(bundle)
    if hef is None:
        raise ModelError(
            f"{bundle.folder}: expected {HEF_FILE} in the model, as [decoder] backend = hailo "
            f"wants it, found none; roomscribe model add {bundle.name} --hef hailo8 --npu-decoder, "
            "or backend = cpu, which is faster"
        )
    file, files = hef, DecoderFiles(bundle)
    encoder = FailoverEncoder(
        lambda: open_npu(bundle, file, share=settings.share, decoder=files),
        CpuEncoder(bundle, settings.threads),
        instead="the CPU encodes and decodes",
    )
    encoder.open()
    return encoder, HailoDecoder(bundle, cpu, encoder)
