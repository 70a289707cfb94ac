"""Whisper's encoder as ONNX: log-mel of one window -> encoder states."""

from __future__ import annotations

from pathlib import Path

from appliance.model.graphs.graph import MICROSOFT
from appliance.model.graphs.runtime_graph import RuntimeGraph
from appliance.model.weights.checkpoint import Checkpoint, WhisperConfig

STEM = "model.encoder"


def write_encoder(checkpoint: Checkpoint, positions: int, file: Path, *, int8: bool) -> None:
    """Writes encoder.onnx: mel (1, 2 P, n_mels) float32 -> states (1, P, d_model) float32.

    P is `positions`; the position table is cut to it. The convolutions are never `int8`. Residuals
    are Sum, not Add, which ONNX Runtime would fuse with the layer norm behind it: its 1.31 takes
    seven times as long for both in one.
    """
    config, weights = checkpoint.config, checkpoint.weights
    graph = RuntimeGraph(weights, int8=int8, many_rows=True)
    mel = graph.input("mel", (1, 2 * positions, config.num_mel_bins))
    x = graph.transpose(mel, 0, 2, 1)
    x = _convolve(graph, x, f"{STEM}.conv1", stride=1)
    x = _convolve(graph, x, f"{STEM}.conv2", stride=2)
    table = weights[f"{STEM}.embed_positions.weight"][:positions]
    x = graph.node("Sum", graph.transpose(x, 0, 2, 1), graph.constant("positions", table))
    normed = graph.layer_norm(x, f"{STEM}.layers.0.self_attn_layer_norm")
    for layer in range(config.encoder_layers):
        name = f"{STEM}.layers.{layer}"
        part = _attend_to_itself(graph, normed, f"{name}.self_attn", config)
        x = graph.node("Sum", x, part)
        normed = graph.layer_norm(x, f"{name}.final_layer_norm")
        inner = graph.gelu(graph.linear(normed, f"{name}.fc1"))
        x = graph.node("Sum", x, graph.linear(inner, f"{name}.fc2"))
        last = layer + 1 == config.encoder_layers
        after = f"{STEM}.layers.{layer + 1}.self_attn_layer_norm"
        normed = graph.layer_norm(x, f"{STEM}.layer_norm" if last else after)
    graph.output(normed, "states", (1, positions, config.d_model))
    graph.save(file, "whisper_encoder")


def _convolve(graph: RuntimeGraph, x: str, name: str, stride: int) -> str:
    """GELU of a convolution of three frames."""
    weight, bias = graph.weight(f"{name}.weight"), graph.weight(f"{name}.bias")
    return graph.gelu(
        graph.node("Conv", x, weight, bias, kernel_shape=[3], pads=[1, 1], strides=[stride])
    )


def _attend_to_itself(graph: RuntimeGraph, normed: str, block: str, config: WhisperConfig) -> str:
    """out(attention over all positions)."""
    seen = graph.node(
        "MultiHeadAttention",
        graph.linear(normed, f"{block}.q_proj"),
        graph.linear(normed, f"{block}.k_proj", bias=False),
        graph.linear(normed, f"{block}.v_proj"),
        domain=MICROSOFT,
        num_heads=config.encoder_attention_heads,
    )
    return graph.linear(seen, f"{block}.out_proj")
