"""Whisper as ONNX: an encoder, a decoder of two graphs, and the token embedding as a table.

The encoder and the first of the decoder's graphs run once a window, the second once a step. P
encoder positions, L layers, H heads of size h, d = H h, a context of T tokens.

Whisper was trained on windows of 30 s, most of them silence. Behind a shorter window's P states
stand S virtual positions: each is the mean state of several positions of silence (see silence.py),
with the logarithm of their number added to its score. The weights of an attention sum to 1, so
v_bias is moved through out_proj.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from appliance.convert.checkpoint import Checkpoint
from appliance.convert.graph import INLINE, MICROSOFT, RuntimeGraph, to_int8
from appliance.convert.shapes import DECODER, EMBEDDING, ENCODER, SOUND_POSITIONS, WhisperConfig
from appliance.model import EMBEDDING_FILE, SCREENED_FILE, Bundle

ROWS_AT_ONCE = 4096


def write_encoder(
    checkpoint: Checkpoint, positions: int, file: Path, *, int8: bool, inline: int = INLINE
) -> None:
    """Write encoder.onnx: mel (1, 2 p, n_mels) float32 -> states (1, p, d_model) float32, for any p
    up to `positions`.

    The position table is cut to `positions`, and in each run to p. The convolutions are never
    `int8`. Residuals are Sum, not Add, which ONNX Runtime would fuse with the layer norm behind it:
    its 1.31 takes seven times as long for both in one.
    """
    config, weights = checkpoint.config, checkpoint.weights
    graph = RuntimeGraph(weights, file, inline, int8=int8, many_rows=True)
    mel = graph.input("mel", (1, "frames", config.num_mel_bins))
    x = graph.transpose(mel, 0, 2, 1)
    x = _convolve(graph, x, f"{ENCODER}.conv1", stride=1)
    x = _convolve(graph, x, f"{ENCODER}.conv2", stride=2)
    x = graph.transpose(x, 0, 2, 1)
    table = graph.constant("positions", weights[SOUND_POSITIONS][:positions])
    count = graph.node("Shape", x, start=1, end=2)
    first = graph.constant("first_position", np.array([0]))
    x = graph.node("Sum", x, graph.node("Slice", table, first, count))
    normed = graph.layer_norm(x, f"{ENCODER}.layers.0.self_attn_layer_norm")
    for layer in range(config.encoder_layers):
        name = f"{ENCODER}.layers.{layer}"
        part = _attend_to_itself(graph, normed, f"{name}.self_attn", config)
        x = graph.node("Sum", x, part)
        normed = graph.layer_norm(x, f"{name}.final_layer_norm")
        offset = weights[f"{name}.fc2.bias"]
        x = graph.node("Sum", x, graph.feed_forward_part(normed, name, offset))
        last = layer + 1 == config.encoder_layers
        after = f"{ENCODER}.layers.{layer + 1}.self_attn_layer_norm"
        normed = graph.layer_norm(x, f"{ENCODER}.layer_norm" if last else after)
    graph.output(normed, "states", (1, "positions", config.d_model))
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


def write_embedding(checkpoint: Checkpoint, bundle: Bundle, file: Path) -> None:
    """Write the token embedding (vocabulary, d) row by row, those of the tokens that can be
    written first: little-endian float32; in an int8 bundle 8-bit numbers, and before all rows their
    scales in float32.
    """
    table, order = checkpoint.weights[EMBEDDING], np.concatenate([bundle.kept, bundle.left_out])
    scales: NDArray[np.float32] = np.empty(len(order) if bundle.quantize == "int8" else 0, "<f4")
    with file.open("wb") as stream:
        stream.seek(scales.nbytes)
        for start in range(0, len(order), ROWS_AT_ONCE):
            rows = table[order[start : start + ROWS_AT_ONCE]]
            if bundle.quantize == "int8":
                whole, scales[start : start + len(rows)] = to_int8(rows.T)
                stream.write(whole.T.tobytes())
            else:
                stream.write(rows.astype("<f4").tobytes())
        stream.seek(0)
        stream.write(scales.tobytes())


def write_cross(
    checkpoint: Checkpoint, places: int, file: Path, *, int8: bool, inline: int = INLINE
) -> None:
    """Write cross.onnx: states (1, P + S, d), P + S = `places`, -> cross_keys_l (H, h, P + S) and
    cross_values_l (H, P + S, h) of every layer l.
    """
    config = checkpoint.config
    graph = RuntimeGraph(checkpoint.weights, file, inline, int8=int8, many_rows=True)
    heads, size = config.decoder_attention_heads, config.head_size
    states = graph.input("states", (1, places, config.d_model))
    for layer in range(config.decoder_layers):
        block = f"{DECODER}.layers.{layer}.encoder_attn"
        keys = graph.linear(states, f"{block}.k_proj", bias=False)
        turned = graph.transpose(graph.reshape(keys, places, heads, size), 1, 2, 0)
        graph.output(turned, f"cross_keys_{layer}", (heads, size, places))
        values = graph.linear(states, f"{block}.v_proj", bias=False)
        turned = graph.transpose(graph.reshape(values, places, heads, size), 1, 0, 2)
        graph.output(turned, f"cross_values_{layer}", (heads, places, size))
    graph.save(file, "whisper_cross")


def write_step(checkpoint: Checkpoint, bundle: Bundle, file: Path, *, inline: int = INLINE) -> None:
    """Write step.onnx: n new tokens behind those known of each of b equally long texts -> what
    follows w of the n.

    Inputs: embedded (b, n, d) the tokens' rows of the embedding; places (n,) int64 where they
    stand; last (b,) int32 the last one's place; count () int32 = last + 1; wanted (w,) int64, which
    of the n are asked for; offsets (P + S,) added to the scores of the encoder's positions; the
    cross keys and values, which all texts share; self_keys_l and self_values_l (b, H, T, h), which
    are grown in place: the outputs grown_self_... must lie in the same memory.
    Outputs: logits (b w, K) of the tokens that can be written; odds (b w, K), their softmax;
    left_out (s, vocabulary - K), the logits of the others for those of the b w that the input
    started (s,) int64 names, mostly none; attention_l (H, b n, P + S), the weights of the layers
    with alignment heads, for who binds them.
    """
    config, int8 = checkpoint.config, bundle.quantize == "int8"
    graph = RuntimeGraph(checkpoint.weights, file, inline, int8=int8, many_rows=False)
    normed = _layers(graph, checkpoint, bundle)
    wanted = graph.input("wanted", ("wanted",), TensorProto.INT64)
    final = graph.reshape(graph.node("Gather", normed, wanted, axis=1), -1, config.d_model)
    size = len(bundle.kept)
    started = graph.input("started", ("started",), TensorProto.INT64)
    left_out = range(size, config.vocab_size)
    others = _logits(graph, final, left_out, bundle, started)
    graph.output(others, "left_out", ("started", config.vocab_size - size))
    screened = graph.branch()
    logits = _logits(graph, final, range(size), bundle)
    graph.output(logits, "logits", ("rows", size))
    graph.output(graph.node("Softmax", "logits", axis=-1), "odds", ("rows", size))
    if graph.int8:
        _screen(screened, final, checkpoint, bundle)
        screened.save(file.with_name(SCREENED_FILE), "whisper_screened")
    graph.save(file, "whisper_step")


def _screen(graph: RuntimeGraph, final: str, checkpoint: Checkpoint, bundle: Bundle) -> None:
    """Declare what screened.onnx has in place of exact logits: logits and odds of 4 bits; best
    (b w, C) int64, the columns of the C highest; final (b w, d), of which the host computes these
    with 8 bits, rounded as for the exact logits.

    The layer norm's gain is moved to the rows, and columns with like gains share blocks: errors of
    4 bits are 0.6 of what they are without.
    """
    size, count = len(bundle.kept), bundle.candidates
    gain = checkpoint.weights[f"{DECODER}.layer_norm.weight"]
    order = np.argsort(np.abs(gain), kind="stable")
    gain = np.where(gain == 0, 1, gain)[order].astype(np.float32)
    sorted_ = graph.node("Gather", final, graph.constant("order", order), axis=1)
    scaled = graph.node("Mul", sorted_, graph.constant("final_gain", 1 / gain))
    table, starts = checkpoint.weights[EMBEDDING], range(0, size, ROWS_AT_ONCE)
    parts = (table[bundle.kept[at : at + ROWS_AT_ONCE]][:, order] * gain for at in starts)
    nearly = graph.screen(scaled, EMBEDDING, bundle.d_model, parts)
    graph.output(nearly, "logits", ("rows", size))
    graph.output(graph.node("Softmax", "logits", axis=-1), "odds", ("rows", size))
    graph.nodes(
        "TopK", "logits", graph.constant("candidates", np.array([count])), outputs=("", "best")
    )
    graph.declare("best", ("rows", count), TensorProto.INT64)
    rounded = graph.node("DequantizeLinear", *graph.narrowed(final))
    graph.output(rounded, "final", ("rows", bundle.d_model))


def _layers(graph: RuntimeGraph, checkpoint: Checkpoint, bundle: Bundle) -> str:
    """The states (b, n, d) after the last layer norm."""
    config, weights = checkpoint.config, checkpoint.weights
    embedded = graph.input("embedded", ("texts", "new", config.d_model))
    places = graph.input("places", ("new",), TensorProto.INT64)
    graph.input("last", ("texts",), TensorProto.INT32)
    graph.input("count", (), TensorProto.INT32)
    graph.input("offsets", (bundle.attended,))
    table = graph.weight(f"{DECODER}.embed_positions.weight")
    x = graph.node("Add", embedded, graph.node("Gather", table, places))
    normed = graph.layer_norm(x, f"{DECODER}.layers.0.self_attn_layer_norm")
    for layer in range(config.decoder_layers):
        name = f"{DECODER}.layers.{layer}"
        part = _attend_to_text(graph, normed, layer, checkpoint)
        x, normed = graph.add_and_norm(x, *part, f"{name}.encoder_attn_layer_norm")
        part = _attend_to_sound(graph, normed, layer, bundle, checkpoint)
        x, normed = graph.add_and_norm(x, *part, f"{name}.final_layer_norm")
        part = graph.feed_forward_part(normed, name), weights[f"{name}.fc2.bias"]
        last = layer + 1 == config.decoder_layers
        after = f"{DECODER}.layers.{layer + 1}.self_attn_layer_norm"
        x, normed = graph.add_and_norm(x, *part, f"{DECODER}.layer_norm" if last else after)
    return normed


def _logits(graph: RuntimeGraph, final: str, rows: range, bundle: Bundle, chosen: str = "") -> str:
    """Logits (n, rows) of states (w, d), or of those n that `chosen` names, for these rows of the
    embedding's file."""
    name, shape = f"{EMBEDDING}.left_out" if chosen else EMBEDDING, (len(rows), bundle.d_model)
    if not graph.int8:
        if chosen:
            final = graph.node("Gather", final, chosen)
        start = 4 * rows.start * bundle.d_model
        table = graph.elsewhere(name, shape, TensorProto.FLOAT, EMBEDDING_FILE, start)
        return graph.node("Gemm", final, table, transB=1)
    narrow, scale, zero = graph.narrowed(final)
    if chosen:
        narrow = graph.node("Gather", narrow, chosen)
    start = 4 * bundle.vocabulary_size + rows.start * bundle.d_model
    table = graph.elsewhere(name, shape, TensorProto.INT8, EMBEDDING_FILE, start)
    scales = graph.elsewhere(
        f"{name}.scales", shape[:1], TensorProto.FLOAT, EMBEDDING_FILE, 4 * rows.start
    )
    return graph.node("Mul", graph.scan((narrow, scale, zero), table), scales)


def _attend_to_text(
    graph: RuntimeGraph, normed: str, layer: int, checkpoint: Checkpoint
) -> tuple[str, NDArray[np.float32]]:
    """out(attention over the tokens so far), its bias left out, and the bias."""
    config, weights = checkpoint.config, checkpoint.weights
    heads, size = config.decoder_attention_heads, config.head_size
    block, shape = (
        f"{DECODER}.layers.{layer}.self_attn",
        ("texts", heads, config.max_target_positions, size),
    )
    known = [graph.input(f"self_{part}_{layer}", shape) for part in ("keys", "values")]
    matrix = np.hstack([weights[f"{block}.{part}_proj.weight"].T for part in "qkv"])
    no_bias = np.zeros(config.d_model, np.float32)
    offset = np.hstack([weights[f"{block}.q_proj.bias"], no_bias, weights[f"{block}.v_proj.bias"]])
    projected = graph.project(normed, f"{block}.qkv", matrix, offset)
    grown = [f"grown_{name}" for name in known]
    for name in grown:
        graph.declare(name, shape)
    seen, *_ = graph.nodes(
        "GroupQueryAttention",
        *(projected, "", "", *known, "last", "count"),
        outputs=("", *grown),
        domain=MICROSOFT,
        num_heads=heads,
        kv_num_heads=heads,
    )
    out = f"{block}.out_proj"
    return graph.linear(seen, out, bias=False), weights[f"{out}.bias"]


def _attend_to_sound(
    graph: RuntimeGraph, normed: str, layer: int, bundle: Bundle, checkpoint: Checkpoint
) -> tuple[str, NDArray[np.float32]]:
    """out(attention over the encoder's positions), its bias left out, and the bias.

    All tokens of all texts are queries of the same keys and values.
    """
    config, weights = checkpoint.config, checkpoint.weights
    heads, size = config.decoder_attention_heads, config.head_size
    block = f"{DECODER}.layers.{layer}.encoder_attn"
    keys = graph.input(f"cross_keys_{layer}", (heads, size, bundle.attended))
    values = graph.input(f"cross_values_{layer}", (heads, bundle.attended, size))
    queries = graph.linear(normed, f"{block}.q_proj", scale=size**-0.5)
    queries = graph.transpose(graph.reshape(queries, -1, heads, size), 1, 0, 2)
    scores = graph.node("Add", graph.node("MatMul", queries, keys), "offsets")
    shares = graph.node("Softmax", scores, axis=-1)
    seen = graph.transpose(graph.node("MatMul", shares, values), 1, 0, 2)
    if layer in {head // heads for head in bundle.alignment}:
        graph.output(shares, f"attention_{layer}", (heads, "queries", bundle.attended))
    merged = graph.node("Reshape", seen, graph.node("Shape", normed))
    matrix = weights[f"{block}.out_proj.weight"]
    offset = weights[f"{block}.out_proj.bias"] + matrix @ weights[f"{block}.v_proj.bias"]
    return graph.project(merged, f"{block}.out_proj", matrix.T), offset
