"""Whisper's encoder as ONNX: log-mel of one window -> encoder states."""

from __future__ import annotations

from pathlib import Path

from appliance.model.checkpoint import Checkpoint
from appliance.model.graph import Graph

STEM = "model.encoder"


def write_encoder(checkpoint: Checkpoint, positions: int, file: Path, *, half: bool) -> None:
    """Writes encoder.onnx: mel (1, 2 P, n_mels) float32 -> states (1, P, d_model) float32.

    P is `positions`; the position table is cut to it.
    """
    config, graph = checkpoint.config, Graph(checkpoint.weights, half=half)
    mel = graph.input("mel", (1, 2 * positions, config.num_mel_bins))
    x = graph.transpose(mel, 0, 2, 1)
    x = _convolve(graph, x, f"{STEM}.conv1", stride=1)
    x = _convolve(graph, x, f"{STEM}.conv2", stride=2)
    x = graph.transpose(x, 0, 2, 1)
    table = checkpoint.weights[f"{STEM}.embed_positions.weight"][:positions]
    x = graph.node("Add", x, graph.constant("positions", table))
    for layer in range(config.encoder_layers):
        name = f"{STEM}.layers.{layer}"
        x = _attend_to_itself(graph, x, name, config.encoder_attention_heads, config.head_size)
        x = graph.feed_forward(x, name)
    x = graph.layer_norm(x, f"{STEM}.layer_norm")
    graph.output(x, "states", (1, positions, config.d_model))
    graph.save(file, "whisper_encoder")


def _convolve(graph: Graph, x: str, name: str, stride: int) -> str:
    """GELU of a convolution of three frames."""
    weight, bias = graph.weight(f"{name}.weight"), graph.weight(f"{name}.bias")
    return graph.gelu(
        graph.node("Conv", x, weight, bias, kernel_shape=[3], pads=[1, 1], strides=[stride])
    )


def _attend_to_itself(graph: Graph, x: str, name: str, heads: int, size: int) -> str:
    """x + out(attention(norm x)), unmasked."""
    block = f"{name}.self_attn"
    normed = graph.layer_norm(x, f"{block}_layer_norm")
    queries = graph.linear(normed, f"{block}.q_proj", scale=size**-0.5)
    keys = graph.linear(normed, f"{block}.k_proj", bias=False)
    values = graph.linear(normed, f"{block}.v_proj")
    split = [graph.reshape(part, 1, -1, heads, size) for part in (queries, keys, values)]
    seen = graph.attend(
        graph.transpose(split[0], 0, 2, 1, 3),
        graph.transpose(split[1], 0, 2, 3, 1),
        graph.transpose(split[2], 0, 2, 1, 3),
    )
    merged = graph.reshape(graph.transpose(seen, 0, 2, 1, 3), 1, -1, heads * size)
    return graph.node("Add", x, graph.linear(merged, f"{block}.out_proj"))
