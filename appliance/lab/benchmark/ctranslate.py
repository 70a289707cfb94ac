"""CTranslate2, which faster-whisper runs: the checkpoint in its format, and how it decodes.

Names of the specification's fields: ctranslate2.specs.WhisperSpec, as CTranslate2's own converter
for Hugging Face's Whisper fills them (queries, keys and values of one attention in one matrix).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2 import specs
from numpy.typing import NDArray

from appliance.convert import Checkpoint, Weights
from appliance.infer import log_mel
from appliance.lab.benchmark import clock
from appliance.lab.benchmark.clock import TimedDecode
from appliance.model import Bundle
from appliance.records import Mel


def write_model(
    checkpoint: Checkpoint, pieces: dict[str, int], quantization: str, out: Path
) -> int:
    """Write the model folder and return the bytes that one token reads of it.

    `pieces` is the vocabulary by Hugging Face's names, `quantization` int8 or float32.
    """
    config, weights = checkpoint.config, checkpoint.weights
    spec = specs.WhisperSpec(
        config.encoder_layers,
        config.encoder_attention_heads,
        config.decoder_layers,
        config.decoder_attention_heads,
    )
    for part in ("conv1", "conv2"):
        _fill(getattr(spec.encoder, part), weights, f"model.encoder.{part}")
    _fill_stack(spec.encoder, weights, "model.encoder")
    _fill_stack(spec.decoder, weights, "model.decoder")
    embedding = weights["model.decoder.embed_tokens.weight"]
    spec.decoder.embeddings.weight = embedding
    spec.decoder.projection.weight = embedding
    spec.register_vocabulary(_names(pieces, config.vocab_size))
    spec.config.suppress_ids, spec.config.suppress_ids_begin = [], []
    spec.config.lang_ids, spec.config.alignment_heads = [], [(0, 0)]
    spec.validate()
    spec.optimize(quantization=quantization)
    out.mkdir(parents=True)
    spec.save(str(out))
    return _bytes_per_token(spec)


class CTranslateRunner:
    """CTranslate2's Whisper as faster-whisper calls it, but greedy: encode, then generate.

    The prompt's first tokens pass the network without logits, its last one gives the first token.
    """

    def __init__(self, folder: Path, bundle: Bundle, frames: int, threads: int) -> None:
        """Load the model for mels of `frames` frames."""
        self._bundle, self._frames = bundle, frames
        self._model = ctranslate2.models.Whisper(
            str(folder), device="cpu", compute_type="default", intra_threads=threads
        )

    def mel(self, samples: NDArray[np.float32]) -> Mel:
        """Log-mel (frames, n_mels)."""
        return log_mel(samples, self._bundle.n_mels, self._frames)

    def encode(self, mel: Mel) -> Any:
        """Encoder states in CTranslate2's own array."""
        features = np.ascontiguousarray(mel.T[None])
        return self._model.encode(ctranslate2.StorageView.from_array(features))

    def decode(self, states: Any, count: int) -> TimedDecode:
        """`count` tokens; the first one's time is that of a call of its own for one token."""
        begun = clock.now()
        self._generate(states, 1)
        first = clock.now()
        tokens = self._generate(states, count)
        ended = clock.now()
        return TimedDecode(tuple(tokens), (first - begun) * 1000, (ended - first) * 1000)

    def transcribe(self, states: Any, limit: int) -> tuple[int, ...]:
        """Tokens until end-of-text, at most `limit`."""
        bundle = self._bundle
        return tuple(self._call(states, _length(limit, len(bundle.prompt)), bundle.suppressed))

    def _generate(self, states: Any, count: int) -> list[int]:
        """Exactly `count` tokens: end-of-text is suppressed and the length limited."""
        bundle = self._bundle
        banned = (*bundle.suppressed, bundle.tokens.end_of_text)
        tokens = self._call(states, _length(count, len(bundle.prompt)), banned)
        if len(tokens) != count:
            raise RuntimeError(f"CTranslate2: expected {count} tokens, found {len(tokens)}")
        return tokens

    def _call(self, states: Any, length: int, banned: tuple[int, ...]) -> list[int]:
        [result] = self._model.generate(
            states,
            [list(self._bundle.prompt)],
            beam_size=1,
            max_length=length,
            return_scores=True,
            return_no_speech_prob=True,
            suppress_blank=True,
            suppress_tokens=list(banned),
        )
        return list(result.sequences_ids[0])


def _length(count: int, prompt: int) -> int:
    """max_length that lets `count` tokens come: CTranslate2 takes the lesser of half of it and what
    the prompt, but for its last token, leaves of it."""
    return max(2 * count, count + prompt - 1)


def _fill_stack(spec: Any, weights: Weights, stem: str) -> None:
    """An encoder's or decoder's positions, layers and final layer norm."""
    spec.position_encodings.encodings = weights[f"{stem}.embed_positions.weight"]
    _fill_norm(spec.layer_norm, weights, f"{stem}.layer_norm")
    for number, layer in enumerate(spec.layer):
        name = f"{stem}.layers.{number}"
        _fill_attention(layer.self_attention, weights, f"{name}.self_attn", together=3)
        if hasattr(layer, "attention"):
            _fill_attention(layer.attention, weights, f"{name}.encoder_attn", together=2)
        _fill_norm(layer.ffn.layer_norm, weights, f"{name}.final_layer_norm")
        _fill(layer.ffn.linear_0, weights, f"{name}.fc1")
        _fill(layer.ffn.linear_1, weights, f"{name}.fc2")


def _fill_attention(spec: Any, weights: Weights, name: str, together: int) -> None:
    """Queries, keys and values in one matrix, or (`together` 2) queries apart from the others."""
    _fill_norm(spec.layer_norm, weights, f"{name}_layer_norm")
    parts = ["q_proj", "k_proj", "v_proj"]
    if together == 2:
        _fill(spec.linear[0], weights, f"{name}.{parts.pop(0)}")
    fused = spec.linear[-2]
    fused.weight = np.concatenate([weights[f"{name}.{part}.weight"] for part in parts])
    offset = weights[f"{name}.v_proj.bias"]
    fused.bias = np.concatenate(
        [weights.get(f"{name}.{part}.bias", np.zeros_like(offset)) for part in parts]
    )
    _fill(spec.linear[-1], weights, f"{name}.out_proj")


def _fill(spec: Any, weights: Weights, name: str) -> None:
    spec.weight, spec.bias = weights[f"{name}.weight"], weights[f"{name}.bias"]


def _fill_norm(spec: Any, weights: Weights, name: str) -> None:
    spec.gamma, spec.beta = weights[f"{name}.weight"], weights[f"{name}.bias"]


def _names(pieces: dict[str, int], size: int) -> list[str]:
    """The vocabulary by id; ids without a name are timestamps, as in Whisper."""
    written = {number: piece for piece, number in pieces.items()}
    return [written.get(i, f"<|{(i - len(pieces)) * 0.02:.2f}|>") for i in range(size)]


def _bytes_per_token(spec: Any) -> int:
    """Of the decoder's weights, but those of the sound's keys and values (read once a window) and
    the positions; the embedding is also the vocabulary's matrix."""
    return sum(
        variable.num_bytes()
        for name, variable in spec.decoder.variables(ordered=True)
        if not isinstance(variable, str)
        and "/attention/linear_1/" not in name
        and "position_encodings" not in name
    )
