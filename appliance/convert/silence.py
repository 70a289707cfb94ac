"""The encoder's states of silence, computed with numpy from a checkpoint.

Whisper was trained on windows of 30 s with silence behind the speech, and its decoder looks there
to learn that nothing more is said. A shorter window has no such positions, so the decoder gets
virtual ones: each stands for several positions of a silent window, and is the mean of their states.
"""

import numpy as np
from numpy.typing import NDArray

from appliance.convert.checkpoint import Checkpoint
from appliance.convert.graph import LAYER_NORM_EPSILON
from appliance.convert.shapes import ENCODER, SOUND_POSITIONS
from appliance.convert.tensors import Weights
from appliance.model import FRAMES_PER_POSITION, SILENT_MEL

Floats = NDArray[np.float32]
ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
"""Coefficients of an approximation of erf that is within 1.5e-7 (Abramowitz and Stegun, 7.1.26)."""


def silent_means(checkpoint: Checkpoint, positions: int, count: int) -> Floats:
    """Return the virtual positions (count, d_model) behind a window of `positions`."""
    if not count:
        return np.empty((0, checkpoint.config.d_model), np.float32)
    parts = np.array_split(silent_states(checkpoint, positions), count)
    return np.stack([part.mean(axis=0) for part in parts])


def silent_states(checkpoint: Checkpoint, first: int = 0) -> Floats:
    """Return the states (positions, d_model) of a silent window as long as the model's, from
    position `first` on."""
    config, weights = checkpoint.config, checkpoint.weights
    frames = FRAMES_PER_POSITION * config.max_source_positions
    mel = np.full((frames, config.num_mel_bins), SILENT_MEL, np.float32)
    x = _convolve(weights, _convolve(weights, mel, "conv1", 1), "conv2", 2)
    x += weights[SOUND_POSITIONS]
    for layer in range(config.encoder_layers):
        name = f"{ENCODER}.layers.{layer}"
        normed = _norm(weights, x, f"{name}.self_attn_layer_norm")
        asking = first if layer == config.encoder_layers - 1 else 0  # the others are attended to
        x = x[asking:]
        x += _attend(weights, normed, f"{name}.self_attn", config.encoder_attention_heads, asking)
        inner = _linear(weights, _norm(weights, x, f"{name}.final_layer_norm"), f"{name}.fc1")
        x += _linear(weights, _gelu(inner), f"{name}.fc2")
    return _norm(weights, x, f"{ENCODER}.layer_norm")


def _convolve(weights: Weights, x: Floats, name: str, stride: int) -> Floats:
    """GELU of a convolution of three frames of x (frames, channels)."""
    kernel = weights[f"{ENCODER}.{name}.weight"]
    padded = np.pad(x, ((1, 1), (0, 0)))
    parts = [padded[at : at + len(x) : stride] @ kernel[:, :, at].T for at in range(3)]
    return _gelu(parts[0] + parts[1] + parts[2] + weights[f"{ENCODER}.{name}.bias"])


def _attend(weights: Weights, x: Floats, name: str, heads: int, first: int) -> Floats:
    """out(attention of positions x (p, d) from the `first` on to all of them), head by head."""
    queries = _linear(weights, x[first:], f"{name}.q_proj")
    values = _linear(weights, x, f"{name}.v_proj")
    keys = x @ weights[f"{name}.k_proj.weight"].T
    seen = np.empty_like(queries)
    for part in np.split(np.arange(x.shape[1]), heads):
        scores = queries[:, part] @ keys[:, part].T * np.float32(len(part) ** -0.5)
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        seen[:, part] = odds @ values[:, part] / odds.sum(axis=1, keepdims=True)
    return _linear(weights, seen, f"{name}.out_proj")


def _linear(weights: Weights, x: Floats, name: str) -> Floats:
    result: Floats = x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
    return result


def _norm(weights: Weights, x: Floats, name: str) -> Floats:
    centred = x - x.mean(axis=1, keepdims=True)
    spread = np.sqrt((centred**2).mean(axis=1, keepdims=True) + np.float32(LAYER_NORM_EPSILON))
    normed: Floats = (centred / spread).astype(np.float32, copy=False)
    result: Floats = normed * weights[f"{name}.weight"] + weights[f"{name}.bias"]
    return result


def _gelu(x: Floats) -> Floats:
    """The exact GELU, x (1 + erf(x / sqrt 2)) / 2."""
    root = np.abs(x) * np.float32(0.5**0.5)
    t = 1 / (1 + np.float32(0.3275911) * root)
    series = np.zeros_like(t)
    for factor in reversed(ERF):
        series = (series + np.float32(factor)) * t
    erf = np.copysign(1 - series * np.exp(-root * root), x)
    result: Floats = x * (1 + erf) / 2
    return result
