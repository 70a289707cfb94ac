"""Whisper's decoder in plain numpy, float64, every position really there: to compare with."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from appliance.convert.shapes import WhisperConfig
from appliance.convert.tensors import Weights

Array = NDArray[np.float64]
STEM = "model.decoder"


def pad(
    states: NDArray[np.float32], silence: NDArray[np.float32], positions: int
) -> NDArray[np.float32]:
    """States (P, d) with each of `silence` (s, d) behind, equally often: (positions, d)."""
    each, rest = divmod(positions - len(states), max(1, len(silence)))
    if rest:
        raise ValueError(f"{positions} positions: not the same number of each silent one")
    return np.concatenate([states, np.repeat(silence, each, axis=0)])


class PlainDecoder:
    """All logits of a row of tokens at once, without a cache."""

    def __init__(self, config: WhisperConfig, weights: Weights) -> None:
        self._config = config
        self._weights = {name: array.astype(np.float64) for name, array in weights.items()}

    def logits(self, states: NDArray[np.float32], tokens: Sequence[int]) -> Array:
        """Logits (n, vocabulary) after each of n tokens, for states (P, d) as they are."""
        weights, encoded = self._weights, states.astype(np.float64)
        embedding = weights[f"{STEM}.embed_tokens.weight"]
        x: Array = (
            embedding[list(tokens)] + weights[f"{STEM}.embed_positions.weight"][: len(tokens)]
        )
        for layer in range(self._config.decoder_layers):
            name = f"{STEM}.layers.{layer}"
            normed = self._norm(x, f"{name}.self_attn_layer_norm")
            x = x + self._attend(normed, normed, f"{name}.self_attn", causal=True)
            normed = self._norm(x, f"{name}.encoder_attn_layer_norm")
            x = x + self._attend(normed, encoded, f"{name}.encoder_attn", causal=False)
            inner = self._linear(self._norm(x, f"{name}.final_layer_norm"), f"{name}.fc1")
            x = x + self._linear(gelu(inner), f"{name}.fc2")
        return self._norm(x, f"{STEM}.layer_norm") @ embedding.T

    def _attend(self, x: Array, over: Array, name: str, *, causal: bool) -> Array:
        queries = self._heads(self._linear(x, f"{name}.q_proj"))
        keys = self._heads(over @ self._weights[f"{name}.k_proj.weight"].T)
        values = self._heads(self._linear(over, f"{name}.v_proj"))
        scores = queries @ keys.transpose(0, 2, 1) / np.sqrt(self._config.head_size)
        if causal:
            scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        odds = np.exp(scores - scores.max(axis=-1, keepdims=True))
        seen = odds / odds.sum(axis=-1, keepdims=True) @ values
        return self._linear(seen.transpose(1, 0, 2).reshape(len(x), -1), f"{name}.out_proj")

    def _heads(self, x: Array) -> Array:
        heads = self._config.decoder_attention_heads
        return x.reshape(len(x), heads, -1).transpose(1, 0, 2)

    def _linear(self, x: Array, name: str) -> Array:
        return x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _norm(self, x: Array, name: str) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
        scale, shift = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        normal: Array = centred / deviation * scale + shift
        return normal


def gelu(x: Array) -> Array:
    """The exact GELU."""
    share: Array = 0.5 + 0.5 * np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2.0))
    return x * share
