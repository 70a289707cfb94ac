"""Read a Whisper model of CTranslate2 (faster-whisper): model.bin, verified before use.

The format (OpenNMT/CTranslate2, python/ctranslate2/specs/model_spec.py, `ModelSpec._serialize`),
little-endian: version, name and revision of the specification, the number of variables; for each
its name, rank, dimensions, type, bytes and numbers; then the aliases, each with its variable's
name. Queries, keys and values of one attention lie one below the other in one matrix. The sizes are
those of the shapes: config.json has none.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from appliance.convert.shapes import MOST_LAYERS, TIED_OUTPUT, WhisperConfig, expected_shapes
from appliance.convert.tensors import StoredTensor, reading, refuse_other, shown

MODEL_FILE = "model.bin"
VERSION, SPECIFICATION, REVISION = 6, "WhisperSpec", 3
TYPES = ("F32", "I8", "I16", "I32", "F16", "BF16")
ITEM_BYTES = {"F32": 4, "I8": 1, "I16": 2, "I32": 4, "F16": 2, "BF16": 2}
MOST_VARIABLES, MOST_RANK = 20_000, 4
"""A large Whisper with int8 weights has 1,900, up to three dimensions each."""
HEAD_SIZE = 64
"""Of every published Whisper; counts where the file has no num_heads."""
SETTINGS = {"activation": 3, "pre_norm": 1}
"""What the decoder's settings are for Whisper (3: GELU). Others of them are 0."""
IGNORED = ("num_heads", "alignment_heads", "alignment_layer")
HALVES = ("encoder", "decoder")
EMBEDDINGS, PROJECTION = "decoder/embeddings/weight", "decoder/projection/weight"
CONVERT = "convert the model again with a current ct2-transformers-converter"

PLACES = {
    "conv1": ("conv1", 0, 1),
    "conv2": ("conv2", 0, 1),
    "embed_positions": ("position_encodings", 0, 1),
    "embed_tokens": ("embeddings", 0, 1),
    "layer_norm": ("layer_norm", 0, 1),
    "self_attn_layer_norm": ("self_attention/layer_norm", 0, 1),
    "self_attn.q_proj": ("self_attention/linear_0", 0, 3),
    "self_attn.k_proj": ("self_attention/linear_0", 1, 3),
    "self_attn.v_proj": ("self_attention/linear_0", 2, 3),
    "self_attn.out_proj": ("self_attention/linear_1", 0, 1),
    "encoder_attn_layer_norm": ("attention/layer_norm", 0, 1),
    "encoder_attn.q_proj": ("attention/linear_0", 0, 1),
    "encoder_attn.k_proj": ("attention/linear_1", 0, 2),
    "encoder_attn.v_proj": ("attention/linear_1", 1, 2),
    "encoder_attn.out_proj": ("attention/linear_2", 0, 1),
    "final_layer_norm": ("ffn/layer_norm", 0, 1),
    "fc1": ("ffn/linear_0", 0, 1),
    "fc2": ("ffn/linear_1", 0, 1),
}
"""Hugging Face's name of a module: CTranslate2's, and which part of how many it is there."""


@dataclass(frozen=True, slots=True)
class CTranslate2Model:
    """The sizes and unread weights of a model.bin."""

    config: WhisperConfig
    tensors: Mapping[str, StoredTensor]
    """By Hugging Face's names."""


@dataclass(frozen=True, slots=True)
class _Content:
    """What a model.bin holds."""

    variables: dict[str, StoredTensor]
    settings: dict[str, int]
    """Variables that are one whole number."""
    aliases: dict[str, str]


def open_ctranslate2(file: Path) -> CTranslate2Model:
    """Return the model in a model.bin. Raises ModelError.

    Of the weights only the keys' biases are read, which Whisper does not have and which must be 0.
    """
    with reading(file, "a Whisper model of CTranslate2") as stream:
        content = _read_content(stream, file)
        tensors = _with_aliases(content)
        config = _read_sizes(tensors, content.settings)
        return CTranslate2Model(config, _named_weights(tensors, config))


def _take(stream: BinaryIO, count: int) -> bytes:
    """Return the next `count` bytes, few of them. Raises ValueError."""
    data = stream.read(count)
    if len(data) < count:
        raise ValueError(
            f"an end after {stream.seek(0, 2)} bytes, as after a download that was broken off"
        )
    return data


def _number(stream: BinaryIO, size: int) -> int:
    """Return a number of `size` bytes. Raises ValueError."""
    return int.from_bytes(_take(stream, size), "little")


def _text(stream: BinaryIO) -> str:
    """Return a name, which ends with a byte of zero. Raises ValueError."""
    return _take(stream, _number(stream, 2)).removesuffix(b"\0").decode()


def _read_content(stream: BinaryIO, file: Path) -> _Content:
    _check_head(stream)
    count = _number(stream, 4)
    if count > MOST_VARIABLES:
        raise ValueError(f"{count} variables where {MOST_VARIABLES} are allowed")
    content = _Content({}, {}, {})
    for _ in range(count):
        _read_variable(stream, file, content)
    for _ in range(min(_number(stream, 4), MOST_VARIABLES)):
        alias = _text(stream)
        content.aliases[alias] = _text(stream)
    end = stream.tell()
    if unused := stream.seek(0, 2) - end:
        raise ValueError(f"{unused} unused bytes at the end")
    return content


def _check_head(stream: BinaryIO) -> None:
    first = _take(stream, 4)
    refuse_other(first)
    if (version := int.from_bytes(first, "little")) != VERSION:
        raise ValueError(f"version {version} of the format where {VERSION} is supported; {CONVERT}")
    if (name := _text(stream)) != SPECIFICATION:
        raise ValueError(f"a model of another kind ({shown(name)})")
    if (revision := _number(stream, 4)) != REVISION:
        raise ValueError(f"revision {revision} of it where {REVISION} is supported; {CONVERT}")


def _read_variable(stream: BinaryIO, file: Path, content: _Content) -> None:
    name = _text(stream)
    if name in content.variables or name in content.settings:
        raise ValueError(f"{shown(name)} twice")
    if (rank := _number(stream, 1)) > MOST_RANK:
        raise ValueError(f"{shown(name)} with {rank} dimensions")
    shape = tuple(_number(stream, 4) for _ in range(rank))
    kind, length = _number(stream, 1), _number(stream, 4)
    if kind >= len(TYPES):
        raise ValueError(f"{shown(name)} of type {kind}, which is not supported")
    dtype = TYPES[kind]
    if length != (wanted := math.prod(shape) * ITEM_BYTES[dtype]):
        raise ValueError(f"{shown(name)} with {length} bytes where its shape takes {wanted}")
    if not shape and dtype.startswith("I"):
        content.settings[name] = int.from_bytes(_take(stream, length), "little", signed=True)
        return
    content.variables[name] = StoredTensor(file, stream.tell(), length, dtype, shape)
    stream.seek(length, 1)


def _with_aliases(content: _Content) -> dict[str, StoredTensor]:
    """Return the variables; aliases, too. Raises ValueError for quantised ones."""
    for name, stored in content.variables.items():
        if stored.dtype.startswith("I"):
            kind = stored.dtype.replace("I", "int")
            raise ValueError(f"{shown(name)} quantised as {kind}; take the model with float16")
    aliases = content.aliases.items()
    known = {a: content.variables[name] for a, name in aliases if name in content.variables}
    return known | content.variables


def _read_sizes(tensors: Mapping[str, StoredTensor], settings: Mapping[str, int]) -> WhisperConfig:

    def shape_of(name: str, rank: int) -> tuple[int, ...]:
        shape = tensors[name].shape if name in tensors else ()
        if len(shape) != rank or not all(shape):
            raise ValueError(f"{name} with the shape {shape}" if shape else f"no {name}")
        return shape

    for name, value in settings.items():
        key = name.rpartition("/")[2]
        if key not in IGNORED and value != SETTINGS.get(key, 0):
            raise ValueError(f"{shown(name)} {value} in place of {SETTINGS.get(key, 0)}")
    encoder_layers, decoder_layers = (_count_layers(tensors, half) for half in HALVES)
    if max(encoder_layers, decoder_layers) > MOST_LAYERS:
        raise ValueError(f"more than {MOST_LAYERS} layers")
    d_model, mels, _ = shape_of("encoder/conv1/weight", 3)
    heads, others = (settings.get(f"{half}/num_heads", d_model // HEAD_SIZE) for half in HALVES)
    if heads != others or heads < 1 or d_model % heads:
        raise ValueError(f"num_heads {heads} and {others} for {d_model} columns")
    return WhisperConfig(
        d_model=d_model,
        encoder_layers=encoder_layers,
        decoder_layers=decoder_layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=shape_of("encoder/layer_0/ffn/linear_0/weight", 2)[0],
        decoder_ffn_dim=shape_of("decoder/layer_0/ffn/linear_0/weight", 2)[0],
        num_mel_bins=mels,
        vocab_size=shape_of(EMBEDDINGS, 2)[0],
        max_source_positions=shape_of("encoder/position_encodings/encodings", 2)[0],
        max_target_positions=shape_of("decoder/position_encodings/encodings", 2)[0],
    )


def _count_layers(tensors: Mapping[str, StoredTensor], half: str) -> int:
    matches = (re.match(rf"{half}/layer_(\d{{1,5}})/", name) for name in tensors)
    return max((int(match[1]) for match in matches if match), default=-1) + 1


def _named_weights(
    tensors: Mapping[str, StoredTensor], config: WhisperConfig
) -> dict[str, StoredTensor]:
    shapes = expected_shapes(config)
    places = {name: _place(name) for name in shapes}
    wanted = {
        place: (parts * shapes[name][0], *shapes[name][1:])
        for name, (place, _, parts) in places.items()
    } | {PROJECTION: (config.vocab_size, config.d_model)}
    for name in sorted(wanted.keys() | tensors.keys()):
        shape = tensors[name].shape if name in tensors else "nothing"
        if shape != wanted.get(name):
            raise ValueError(
                f"{shown(name)} with the shape {shape} in place of {wanted.get(name, 'none')}"
            )
    for name in shapes:
        if name.endswith("k_proj.weight"):
            place, part, _ = _place(name.replace("weight", "bias"))
            if tensors[place].rows(part * config.d_model, config.d_model).read().any():
                raise ValueError(f"{place} that is not 0 for the keys")
    named = {
        name: tensors[place].rows(part * shapes[name][0], shapes[name][0])
        for name, (place, part, _) in places.items()
    }
    if tensors[PROJECTION] is not tensors[EMBEDDINGS]:
        named[TIED_OUTPUT] = tensors[PROJECTION]
    return named


def _place(name: str) -> tuple[str, int, int]:
    """Return the variable that holds a weight, and which part of how many of its rows it is."""
    module, _, kind = name.removeprefix("model.").rpartition(".")
    half, _, module = module.partition(".")
    layer = ""
    if match := re.match(r"layers\.(\d+)\.", module):
        layer, module = f"layer_{match[1]}/", module[match.end() :]
    path, part, parts = PLACES[module]
    if path.endswith("layer_norm"):
        kind = {"weight": "gamma", "bias": "beta"}[kind]
    elif path == "position_encodings":
        kind = "encodings"
    return f"{half}/{layer}{path}/{kind}", part, parts
