"""Make a model of whisper-tiny's decoder that writes what the built-in model writes.

    PYTHONPATH=.:tests:scripts python -m generate.tiny_shaped FOLDER

For measuring the whole product with a decoder as expensive as whisper-tiny's, where its weights
cannot be had: sizes, numbers (INT8) and vocabulary of 51,865 tokens are tiny's, the texts those of
the built-in model. Its weights lie in tiny's larger matrices so that each part computes the same:

- states: three copies of the built-in model's, so that a layer norm finds the same mean and
  variance. Only the first copy is read;
- heads of 64 numbers, of which the second half is zero, and two heads that add nothing;
- layers that are more than the built-in model's add nothing to the state;
- tokens that are more have a logit of -LOW: the last layer norm puts ONE and -ONE into the other
  two copies of a column, which real tokens have alike and the others with unlike signs.

The encoder stays the built-in model's (8 layers of 128), because a simulated Hailo computes it: its
states are followed by zeros. So its time on the CPU is not tiny's. Texts and probabilities are
nearly those of the built-in model, so its fit is copied, too: --bundle names a fitted copy of it.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import onnx
from figures.model import read, to_int16
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from rigs.recordings import sentences
from safetensors.numpy import save_file
from train.bundle_arrays import EMBEDDING, Weights, read_arrays

from appliance.config import Settings
from appliance.convert.build import Recipe, build_bundle
from appliance.convert.shapes import DECODER, WhisperConfig, expected_shapes
from appliance.infer.opening import open_transcriber
from appliance.lab.benchmark.subject import SHAPES, TEXT_TOKENS, special_tokens
from appliance.model import Bundle, load_bundle
from appliance.model.bundle import enter_files
from appliance.records import Window

Array = NDArray[np.float32]
FITTED = ("calibration", "endings", "phrase_calibration", "vtln", "fitted")
COPIES = 3
LOW, ONE = 40.0, 1.0
LEAST_SAME = 0.9
"""Of the texts; INT8 changes some."""
NOISE = 0.02
"""Size of the weights of layers that add nothing."""


def main() -> int:
    """Write the bundle."""
    parser = argparse.ArgumentParser("generate.tiny_shaped", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bundle", default="tiny.en")
    options = parser.parse_args()
    source = load_bundle(options.bundle)
    with tempfile.TemporaryDirectory() as scratch:
        write_bundle(source, Path(scratch), options.folder)
    texts = [read_texts(folder) for folder in (source.folder, options.folder)]
    same = sum(one == other for one, other in zip(*texts, strict=True))
    print(f"{options.folder}: {same} of {len(texts[0])} sentences have the built-in model's text")
    return 0 if same >= LEAST_SAME * len(texts[0]) else 1


def read_texts(folder: Path) -> list[str]:
    """Return the first texts of a model for the sentences of tests/speech."""
    with open_transcriber(
        Settings(), bundle=replace(load_bundle(folder), vtln=None)
    ) as transcriber:
        texts = []
        for sentence in sentences():
            sound = to_int16(read(sentence.file))
            texts.append(transcriber.transcribe(Window("", 1, True, sound, 0.0, 0.0, 0.0)).text)
    return texts


def write_bundle(source: Bundle, scratch: Path, folder: Path) -> None:
    """Write the bundle folder, with the fit of `source`."""
    config, weights = read_arrays(source.folder)
    large = replace(SHAPES["tiny"], encoder_layers=1)  # its encoder is replaced
    vocabulary = json.loads((source.folder / "vocabulary.json").read_text("utf-8"))
    checkpoint = scratch / "checkpoint"
    checkpoint.mkdir()
    places = token_places(vocabulary)
    save_file(widened(weights, config, large, places), checkpoint / "model.safetensors")
    write_tokens(checkpoint, large, vocabulary)
    recipe = Recipe(
        name="tiny-shaped",
        window_s=source.window_s,
        description="whisper-tiny's decoder with the built-in model's weights",
        source=source.source,
        licence=source.licence,
        language="en",
        padded_positions=source.positions,
        no_speech_sure=source.no_speech_sure,
        no_speech_lone=source.no_speech_lone,
        quantize="int8",
    )
    build_bundle(checkpoint, folder, recipe)
    for old in folder.glob("encoder.*"):
        old.unlink()
    write_encoder(source.folder / "encoder.onnx", folder / "encoder.onnx", large.d_model)
    shutil.copy(source.folder / "phrases.toml", folder)
    manifest = json.loads((source.folder / "bundle.json").read_text("utf-8"))
    enter_files(
        folder,
        ("encoder.onnx", "phrases.toml"),
        **{name: manifest.get(name) for name in FITTED},
        vocabulary_boost=source.vocabulary_boost,
    )
    load_bundle(folder)


def token_places(vocabulary: dict[str, int]) -> NDArray[np.intp]:
    """Return where each token of the built-in model stands in the larger vocabulary."""
    special = special_tokens()
    return np.array([special.get(piece, at) for piece, at in vocabulary.items()])


def write_tokens(checkpoint: Path, config: WhisperConfig, vocabulary: dict[str, int]) -> None:
    """Write the files of a checkpoint that say what its tokens are. Tokens that the built-in model
    does not have get numbers as their texts, and are never written."""
    pieces = {piece: at for piece, at in vocabulary.items() if not re.match(r"<\|", piece)}
    pieces |= {f"#{at:04x}": at for at in range(len(pieces), TEXT_TOKENS)}
    model = {"model_type": "whisper", "activation_function": "gelu", **asdict(config)}
    generation = {"is_multilingual": True, "begin_suppress_tokens": [], "suppress_tokens": []}
    for name, values in (
        ("config.json", model),
        ("vocab.json", pieces),
        ("added_tokens.json", special_tokens()),
        ("generation_config.json", generation),
    ):
        (checkpoint / name).write_text(json.dumps(values), encoding="utf-8")


def widened(
    weights: Weights, small: WhisperConfig, large: WhisperConfig, places: NDArray[np.intp]
) -> Weights:
    """Return the weights of the larger network; its encoder's are zeros."""
    if small.d_model * COPIES != large.d_model:
        raise ValueError(f"expected a model of {large.d_model // COPIES} numbers a position")
    rng = np.random.default_rng(1)
    found: Weights = {}
    for name, shape in expected_shapes(large).items():
        if DECODER not in name:
            found[name] = np.zeros(shape, np.float32)
        elif name == EMBEDDING:
            found[name] = embedding(weights[name], shape, places)
        elif name in weights:
            found[name] = widened_weight(name, weights[name], shape, small, large)
        elif re.search(r"(out_proj|fc2)\.\w+$", name):
            found[name] = np.zeros(shape, np.float32)
        else:
            found[name] = rng.normal(0.0, NOISE, shape).astype(np.float32)
    end = f"{DECODER}.layer_norm"
    column, width = quiet_column(weights[EMBEDDING]), small.d_model
    found[f"{end}.bias"][[width + column, 2 * width + column]] = ONE, -ONE
    return found


def quiet_column(rows: Array) -> int:
    """Return the column of the embedding with the smallest numbers."""
    return int(np.argmin(np.abs(rows).max(axis=0)))


def embedding(rows: Array, shape: tuple[int, ...], places: NDArray[np.intp]) -> Array:
    """Return the rows of all tokens."""
    table = np.zeros(shape, np.float32)
    column, width = quiet_column(rows), rows.shape[1]
    table[:, width + column], table[:, 2 * width + column] = -LOW / 2 / ONE, LOW / 2 / ONE
    table[places] = np.tile(rows, COPIES)
    return table


def widened_weight(
    name: str, array: Array, shape: tuple[int, ...], small: WhisperConfig, large: WhisperConfig
) -> Array:
    """Return one weight of the decoder in the larger network's shape."""
    heads, size = small.decoder_attention_heads, small.head_size
    if re.search(r"[qkv]_proj", name):  # (heads, numbers) of the state
        stretch = np.sqrt(large.head_size / size) if "q_proj" in name else 1.0
        array = array.reshape(heads, size, *array.shape[1:]) * np.float32(stretch)
        target: tuple[int, ...] = (large.decoder_attention_heads, large.head_size, *shape[1:])
    elif name.endswith("out_proj.weight"):  # the state of (heads, numbers)
        array = np.tile(array.reshape(-1, heads, size), (COPIES, 1, 1))
        target = (shape[0], large.decoder_attention_heads, large.head_size)
    else:
        if "embed_positions" in name:
            array = np.tile(array, COPIES)
        elif re.search(r"out_proj|fc2", name):  # the state, (d, numbers) or (d,)
            array = np.concatenate([array] * COPIES)
        target = shape
    return first_of(array, target).reshape(shape)


def first_of(array: Array, shape: tuple[int, ...]) -> Array:
    """Return an array with zeros behind the given one, in each direction."""
    found = np.zeros(shape, np.float32)
    found[tuple(slice(size) for size in array.shape)] = array
    return found


def write_encoder(source: Path, file: Path, width: int) -> None:
    """Write an encoder with its states followed by zeros, (1, P, width)."""
    model = onnx.load(source)
    graph, states = model.graph, model.graph.output[0]
    size = states.type.tensor_type.shape.dim[2]
    for node in graph.node:
        node.output[:] = ["narrow" if name == states.name else name for name in node.output]
        node.input[:] = ["narrow" if name == states.name else name for name in node.input]
    pads = np.array([0, 0, 0, 0, 0, width - size.dim_value])
    graph.initializer.append(numpy_helper.from_array(pads, "zeros_behind"))
    graph.node.append(helper.make_node("Pad", ["narrow", "zeros_behind"], [states.name]))
    size.dim_value = width
    onnx.save(model, file)


if __name__ == "__main__":
    sys.exit(main())
