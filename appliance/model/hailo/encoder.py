"""Whisper's encoder in the form that Hailo's Dataflow Compiler takes."""

from __future__ import annotations

from pathlib import Path

from appliance.model.checkpoint import Checkpoint
from appliance.model.hailo.graph import HailoGraph
from appliance.model.tensors import Weights

STEM = "model.encoder"


def write_hailo_encoder(
    checkpoint: Checkpoint, positions: int, file: Path, *, opset: int = 13
) -> None:
    """Writes the encoder: mel (1, n_mels, 1, 2 P) float32 -> states (1, P, d_model) float32.

    The time axis is an image's width: both convolutions are two-dimensional, of height one.
    P is `positions`; the position table is cut to it. Raises ModelError.
    """
    config, graph = checkpoint.config, HailoGraph(checkpoint.weights, opset)
    mel = graph.input("mel", (1, config.num_mel_bins, 1, 2 * positions))
    x = _convolve(graph, checkpoint.weights, mel, f"{STEM}.conv1", stride=1)
    x = _convolve(graph, checkpoint.weights, x, f"{STEM}.conv2", stride=2)
    x = graph.transpose(graph.reshape(x, 1, config.d_model, -1), 0, 2, 1)
    table = checkpoint.weights[f"{STEM}.embed_positions.weight"][:positions]
    x = graph.node("Add", x, graph.constant("positions", table))
    heads = (config.encoder_attention_heads, config.head_size)
    for layer in range(config.encoder_layers):
        name = f"{STEM}.layers.{layer}"
        x = graph.attend_to_itself(x, name, heads)
        x = graph.feed_forward(x, name)
    x = graph.layer_norm(x, f"{STEM}.layer_norm")
    graph.output(x, "states", (1, positions, config.d_model))
    graph.save(file, "whisper_encoder")


def _convolve(graph: HailoGraph, weights: Weights, x: str, name: str, stride: int) -> str:
    """GELU of a convolution of three frames, x (1, channels, 1, frames)."""
    weight = graph.constant(f"{name}.image", weights[f"{name}.weight"][:, :, None])
    convolved = graph.node(
        "Conv",
        x,
        weight,
        graph.weight(f"{name}.bias"),
        kernel_shape=[1, 3],
        pads=[0, 1, 0, 1],
        strides=[1, stride],
        dilations=[1, 1],
        group=1,
    )
    return graph.gelu(convolved)
