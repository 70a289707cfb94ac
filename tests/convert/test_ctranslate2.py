"""A model of CTranslate2 is read with every number as it is, or refused in one line."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rigs.ctranslate2_folder import Variables, serialize, write_ctranslate2
from rigs.models import SPECIALS, random_weights, refusal, sized, write_checkpoint

from appliance.convert.build import Recipe, build_bundle
from appliance.convert.checkpoint import load_checkpoint, read_sizes
from appliance.convert.decoding import read_decoding, read_vocabulary
from appliance.errors import ModelError

SMALL = sized(8, (1, 2), 2, 30, 12, 10, n_mels=4, feed_forward=20)
WEIGHTS = random_weights(SMALL, 7)
NORM = "decoder/layer_norm/gamma"


@pytest.mark.parametrize(
    ("kind", "error"), [("float32", 0), ("float16", 2**-11), ("bfloat16", 2**-7)]
)
def test_every_number_of_every_kind_arrives(tmp_path: Path, kind: str, error: float) -> None:
    folder = write_ctranslate2(tmp_path / "model", SMALL, WEIGHTS, kind)
    assert read_sizes(folder) == SMALL
    checkpoint = load_checkpoint(folder)
    assert checkpoint.config == SMALL and set(checkpoint.weights) == set(WEIGHTS)
    data = (folder / "model.bin").read_bytes()
    assert checkpoint.sha256 == hashlib.sha256(data).hexdigest()
    for name, wanted in WEIGHTS.items():
        found = checkpoint.weights[name]
        assert (
            found.dtype == np.float32 and found.flags.c_contiguous and found.shape == wanted.shape
        )
        assert np.abs(found - wanted).max() <= error * np.abs(wanted).max(), name


def test_the_bundle_is_that_of_the_same_weights_in_safetensors(tmp_path: Path) -> None:
    config = sized(16, (1, 1), 2, 140, 500, 60)
    weights = random_weights(config, 6)
    theirs = write_ctranslate2(tmp_path / "theirs", config, weights)
    ours = write_checkpoint(tmp_path / "ours", config, weights)
    rules = {"suppress_tokens": [1, 2], "begin_suppress_tokens": [0], "is_multilingual": False}
    rules |= {"alignment_heads": [[0, 0]]}
    (ours / "generation_config.json").write_text(json.dumps(rules))
    bundles = [tmp_path / "one", tmp_path / "other"]
    for folder, bundle in zip((theirs, ours), bundles, strict=True):
        build_bundle(folder, bundle, Recipe(name="same", window_s=2.0, quantize="int8"))
    one, other = ({file.name: file.read_bytes() for file in each.iterdir()} for each in bundles)
    facts = [json.loads(each.pop("bundle.json")) for each in (one, other)]
    assert one == other and len(one) > 5
    assert facts[0].pop("checkpoint_sha256") != facts[1].pop("checkpoint_sha256")
    assert facts[0] == facts[1]


@pytest.mark.parametrize("name", ["vocabulary.txt", "vocabulary.json"])
def test_tokens_and_rules_are_those_of_its_files(tmp_path: Path, name: str) -> None:
    folder = write_ctranslate2(tmp_path / "model", SMALL, WEIGHTS, vocabulary=name)
    vocabulary = read_vocabulary(folder)
    assert vocabulary["a"] == 0 and vocabulary["<|notimestamps|>"] == 29
    decoding = read_decoding(folder, SMALL)
    first_special = 30 - len(SPECIALS)
    assert decoding.suppressed == (1, 2, *range(first_special + 1, 30))
    assert decoding.suppressed_first == (0,) and decoding.language == "en"


@pytest.mark.parametrize(
    ("name", "text"),
    [("vocabulary.txt", "a\na\n"), ("vocabulary.json", "[1"), ("vocabulary.json", "5"),
     ("vocabulary.json", "[[]]"), ("vocabulary.txt", "")],
)  # fmt: skip
def test_a_damaged_vocabulary_is_refused(tmp_path: Path, name: str, text: str) -> None:
    folder = write_ctranslate2(tmp_path / "model", SMALL, WEIGHTS, vocabulary=name)
    (folder / name).write_text(text)
    with pytest.raises(ModelError, match=name):
        read_vocabulary(folder)


def set_nan(variables: Variables) -> None:
    broken = variables[NORM].copy()
    broken[3] = np.nan
    variables[NORM] = broken


def give_keys_a_bias(variables: Variables) -> None:
    variables["encoder/layer_0/self_attention/linear_0/bias"][9] = 0.5


def set_variable(name: str, value: object, dtype: str) -> Callable[[Variables], None]:
    return lambda variables: variables.update({name: np.asarray(value, dtype)})


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda variables: variables.pop("encoder/conv2/bias"), "encoder/conv2/bias with the shape "
         "nothing in place of (8,)"),
        (set_variable("decoder/extra/weight", [1.0], "float32"), "weight with the shape (1,)"),
        (set_variable(NORM, [1.0] * 7, "float32"), "(7,) in place of (8,)"),
        (set_variable("decoder/scale_embeddings", 1, "int8"), "embeddings 1 in place of 0"),
        (set_nan, "model.decoder.layer_norm.weight: expected finite numbers, found NaN"),
        (give_keys_a_bias, "linear_0/bias that is not 0 for the keys"),
        (set_variable("decoder/activation", 0, "int8"), "activation 0 in place of 3"),
        (set_variable("decoder/num_heads", 3, "int16"), "num_heads 2 and 3 for 8 columns"),
        (set_variable(NORM, [1] * 8, "int8"), f"{NORM} quantised as int8; take the model with fl"),
        (set_variable("decoder/projection/weight", np.ones((30, 8)), "float32"),
         "proj_out.weight: expected the same numbers"),
        (lambda variables: [variables.pop(name) for name in sorted(variables)[:20]],
         "found no decoder/"),
        (set_variable("encoder/layer_9999/ffn/linear_0/weight", np.ones((2, 2)), "float32"),
         "more than 256 layers"),
        (set_variable("encoder/conv1/weight", 1.0, "float32"), "no encoder/conv1/weight"),
    ],
)  # fmt: skip
def test_a_model_that_is_not_whispers_is_refused(
    tmp_path: Path, change: Callable[[Variables], object], fault: str
) -> None:
    assert fault in refusal(write_ctranslate2(tmp_path / "model", SMALL, WEIGHTS, change=change))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "an end after 0 bytes, as after a download that was broken off"),
        (serialize({}, version=5), "version 5 of the format where 6 is supported; convert the"),
        (serialize({}, kind="TransformerSpec"), "a model of another kind (TransformerSpec)"),
        (serialize({}, revision=2), "revision 2 of it where 3 is supported"),
        (serialize({}) + b"\0", "1 unused bytes at the end"),
        (serialize({})[:22] + b"\xff\xff\xff\xff", "4294967295 variables where 20000 are allowed"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS in its place"),
        (b"PK\x03\x04" + bytes(60), "a pickle (PyTorch's own format) under this name"),
        (serialize({"\x1b[2J" + "x" * 900: np.zeros((1,) * 5, "f4")}), r"\x1b[2Jxxx"),
    ],
)
def test_a_file_that_is_no_such_model_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    folder = write_ctranslate2(tmp_path / "model", SMALL, WEIGHTS)
    (folder / "model.bin").write_bytes(data)
    assert message in refusal(folder) and len(refusal(folder)) < 600


def test_safetensors_go_before_it(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", SMALL, WEIGHTS)
    (folder / "model.bin").write_bytes(b"of another program")
    assert read_sizes(folder) == SMALL
    assert len(load_checkpoint(folder).weights) == len(WEIGHTS)
