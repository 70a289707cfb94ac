"""Packs: every number rounded right, every byte where the index says, damage told in one line."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rigs.models import ODD, random_weights, write_checkpoint

from appliance.convert.checkpoint import Checkpoint, load_checkpoint
from appliance.convert.shapes import expected_shapes
from appliance.errors import ModelError
from appliance.lab.pack_layout import (
    ALIGNMENT,
    DTYPES,
    STORED,
    Array,
    from_bfloat16,
    from_int8,
    to_bfloat16,
    to_int8,
    widen,
)
from appliance.lab.packs import Pack, read_pack, write_pack

UPPER = np.arange(2**16, dtype=np.uint32) << np.uint32(16)
LOWER = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
EVERY_ROUNDING = (UPPER[:, None] | LOWER[None, :]).view(np.float32)
"""(65536, 6): on, just above, just below, at and just beyond the middle of two bfloat16 numbers."""

INT8_ENDINGS = tuple(f"{name}.weight" for name in ("conv1", "conv2", "fc1", "fc2", "proj"))

Floats = NDArray[np.float32]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("packs") / "odd"
    return load_checkpoint(write_checkpoint(folder, ODD, random_weights(ODD, 6)))


@pytest.fixture
def pack(checkpoint: Checkpoint, tmp_path: Path) -> Path:
    """A pack, to be damaged."""
    write_pack(checkpoint, tmp_path / "pack", "bf16")
    return tmp_path / "pack"


def encoder_names() -> set[str]:
    return {name for name in expected_shapes(ODD) if name.startswith("model.encoder.")}


def stored_arrays(pack: Pack, name: str) -> list[NDArray[Any]]:
    """The arrays of a weight: its numbers, and for int8 its scales."""
    blob, tensor = next(
        (blob, each) for blob in pack.index.blobs for each in blob.tensors if each.name == name
    )

    def view(array: Array) -> NDArray[Any]:
        data = pack.data[blob.file][array.offset : array.offset + array.size]
        return data.view(STORED[array.dtype]).reshape(array.shape)

    return [view(array) for array in tensor.arrays]


def read_weight(pack: Pack, name: str) -> Floats:
    """A weight as float32 numbers."""
    stored = stored_arrays(pack, name)
    dtypes = {each.name: each.values.dtype for blob in pack.index.blobs for each in blob.tensors}
    return widen(stored, dtypes[name])


def packed_names(pack: Pack) -> set[str]:
    return {each.name for blob in pack.index.blobs for each in blob.tensors}


def nearest_bfloat16(values: Floats) -> Floats:
    """Round to nearest, ties to even, from its definition, in float64 which holds all exactly."""
    upper = values.view(np.uint32) >> np.uint32(16)
    below = (upper << np.uint32(16)).view(np.float32).astype(np.float64)
    above = ((upper + np.uint32(1)) << np.uint32(16)).view(np.float32).astype(np.float64)
    last = (upper & np.uint32(0x7FFF)) == 0x7F7F
    above = np.where(last, np.copysign(2.0**128, below), above)
    to_below, to_above = np.abs(values - below), np.abs(above - values)
    up = (to_above < to_below) | ((to_above == to_below) & (upper % 2 == 1))
    result = np.where(up, above, below)
    return np.where(np.abs(result) == 2.0**128, np.copysign(np.inf, result), result).astype("f4")


def test_every_bfloat16_and_every_kind_of_remainder_rounds_to_the_nearest_even() -> None:
    numbers = EVERY_ROUNDING[np.isfinite(EVERY_ROUNDING)]
    found = from_bfloat16(to_bfloat16(numbers))
    assert len(numbers) == 2 * 0x7F80 * 6
    assert np.array_equal(found.view(np.uint32), nearest_bfloat16(numbers).view(np.uint32))


def test_nan_infinity_subnormals_and_overflow_become_what_ieee_754_says() -> None:
    signalling = np.array([0x7F800001, 0xFFBFFFFF], np.uint32).view(np.float32)
    assert to_bfloat16(signalling).tolist() == [0x7FC0, 0xFFFF]
    largest = np.float32(3.3895314e38)
    for number, bits in (
        (np.inf, 0x7F80),
        (-np.inf, 0xFF80),
        (largest, 0x7F7F),
        (np.finfo(np.float32).max, 0x7F80),
        (-0.0, 0x8000),
        (2.0**-149, 0x0000),
        (2.0**-133, 0x0001),
        (1.0, 0x3F80),
    ):
        assert to_bfloat16(np.array([number], np.float32)).tolist() == [bits]


def test_int8_is_symmetric_and_within_half_a_step_in_every_channel() -> None:
    rng = np.random.default_rng(1)
    sizes = np.array([1e-30, 1e-3, 1, 1e30], np.float32)[:, None, None]
    values = (rng.standard_normal((4, 5, 3)) * sizes).astype(np.float32)
    steps, scales = to_int8(values)
    assert steps.dtype == np.int8 and steps.shape == values.shape and scales.shape == (4,)
    assert np.array_equal(np.abs(steps.astype(int)).max(axis=(1, 2)), [127] * 4)
    error = np.abs(from_int8(steps, scales) - values.astype(np.float64)).max(axis=(1, 2))
    assert (error <= 0.5001 * scales).all()
    assert np.array_equal(to_int8(-values)[0], -steps)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_read_is_what_was_written_to_the_precision_of_the_type(
    checkpoint: Checkpoint, tmp_path: Path, dtype: str
) -> None:
    report = write_pack(checkpoint, tmp_path / "pack", dtype)
    pack = read_pack(tmp_path / "pack")
    assert packed_names(pack) == encoder_names() == {each.name for each in report.tensors}
    for each in report.tensors:
        expected, found = checkpoint.weights[each.name], read_weight(pack, each.name)
        assert found.dtype == np.float32 and found.shape == expected.shape == each.shape
        error = np.abs(found - expected)
        assert each.max_abs_error == pytest.approx(error.max(), rel=1e-6)
        rms = np.sqrt(np.mean(error.astype(np.float64) ** 2) / np.mean(expected**2))
        assert each.relative_rms_error == pytest.approx(rms, rel=1e-4)
        relative = {"float32": 0, "bfloat16": 2**-8, "float16": 2**-11, "int8": 0.02}[each.dtype]
        if each.dtype == "int8":
            assert 0 < rms < relative
        else:
            assert (error <= relative * np.abs(expected) + 2**-25 * (relative > 0)).all()


def test_a_kernel_finds_the_numbers_with_the_index_and_the_blobs_alone(
    checkpoint: Checkpoint, pack: Path
) -> None:
    index = json.loads((pack / "pack.json").read_text())
    assert index["byte_order"] == "little" and index["alignment"] == ALIGNMENT == 64
    seen = set()
    for blob in index["blobs"]:
        data = (pack / blob["file"]).read_bytes()
        assert len(data) == blob["size"]
        free = bytearray(data)
        for tensor in blob["tensors"]:
            begin, end = tensor["offset"], tensor["offset"] + tensor["size"]
            assert tensor["dtype"] == "bfloat16" and begin % ALIGNMENT == 0
            assert tensor["size"] == 2 * np.prod(tensor["shape"])
            numbers = np.frombuffer(data[begin:end], "<u2").astype(np.uint32) << 16
            weight = checkpoint.weights[tensor["name"]]
            assert np.array_equal(
                numbers.view(np.float32).reshape(tensor["shape"]), nearest_bfloat16(weight)
            )
            free[begin:end] = bytes(end - begin)
            seen.add(tensor["name"])
        assert not any(free), "gaps are zeros"
    assert seen == encoder_names()


def test_an_int8_pack_has_int8_matrices_with_scales_and_float32_for_the_rest(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    write_pack(checkpoint, tmp_path / "pack", "int8")
    pack = read_pack(tmp_path / "pack")
    for name in packed_names(pack):
        stored = stored_arrays(pack, name)
        matrix = name.endswith(INT8_ENDINGS)
        assert [each.dtype for each in stored] == (
            [np.dtype(np.int8), np.dtype(np.float32)] if matrix else [np.dtype(np.float32)]
        )
        if matrix:
            assert stored[1].shape == stored[0].shape[:1]


def test_an_unknown_type_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="dtype: expected one of bf16, fp16, int8, fp32, found"):
        write_pack(checkpoint, tmp_path / "pack", "fp8")


def test_a_pack_is_replaced_and_leaves_nothing_beside(checkpoint: Checkpoint, pack: Path) -> None:
    write_pack(checkpoint, pack, "int8")
    assert read_pack(pack).index.dtype == "int8"
    assert [file.name for file in pack.parent.iterdir()] == ["pack"]


@pytest.mark.parametrize("trouble", ["a file", "a folder", "more in it", "another pack.json"])
def test_what_is_no_pack_is_never_replaced(
    checkpoint: Checkpoint, pack: Path, trouble: str
) -> None:
    precious = pack / "cat.jpg"
    if trouble == "more in it":
        precious.write_text("cat")
    elif trouble == "a file":
        precious = pack.parent / "cat.jpg"
        precious.write_text("cat")
        pack = precious
    elif trouble == "a folder":
        (pack / "pack.json").unlink()
        precious = pack / "layer_00.bin"
    else:
        precious = pack / "pack.json"
        precious.write_text('{"name": "my things"}')
    before = precious.read_bytes()
    with pytest.raises(ModelError, match="expected a pack to replace or nothing, found something"):
        write_pack(checkpoint, pack, "bf16")
    assert precious.read_bytes() == before


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The kernel refuses to let any file of this process grow beyond `size` bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_is_one_line_and_the_old_pack_stays(checkpoint: Checkpoint, pack: Path) -> None:
    before = {file.name: file.read_bytes() for file in pack.iterdir()}
    with files_of_at_most(10_000), pytest.raises(ModelError) as caught:
        write_pack(checkpoint, pack, "int8")
    assert str(caught.value).startswith(f"{pack}: a pack cannot be written: ")
    assert "\n" not in str(caught.value)
    assert {file.name: file.read_bytes() for file in pack.iterdir()} == before
    assert [file.name for file in pack.parent.iterdir()] == ["pack"]


def edit(pack: Path, *keys: str | int, value: object) -> None:
    """Changes one value of pack.json; Ellipsis takes it away."""
    index = json.loads((pack / "pack.json").read_text())
    table = index
    for key in keys[:-1]:
        table = table[key]
    if value is ...:
        del table[keys[-1]]
    else:
        table[keys[-1]] = value
    (pack / "pack.json").write_text(json.dumps(index))


TENSOR = ("blobs", 2, "tensors", 3)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("format",), "other"),
        (("schema",), True),
        (("dtype",), "bf17"),
        (("dtype",), ["bf16"]),
        (("dtype",), "int8"),
        (("byte_order",), "big"),
        (("checkpoint_sha256",), ...),
        (("config",), 3),
        (("config", "d_model"), 10**9),
        (("config", "d_model"), 0),
        (("config", "d_model"), "48"),
        (("config", "encoder_layers"), 4),
        (("config", "more"), 1),
        (("blobs",), "none"),
        (("blobs", 1), 5),
        (("blobs", 1, "file"), "../../etc/passwd"),
        (("blobs", 1, "size"), -1),
        (("blobs", 2, "tensors", 14), ...),
        ((*TENSOR, "shape"), [48.0]),
        ((*TENSOR, "dtype"), "int8"),
        ((*TENSOR, "offset"), 4863),
        ((*TENSOR, "size"), 10**12),
    ],
)
def test_every_wrong_value_of_the_index_is_refused_in_one_line(
    pack: Path, keys: tuple[str | int, ...], value: object
) -> None:
    edit(pack, *keys, value=value)
    with pytest.raises(ModelError) as caught:
        read_pack(pack)
    assert str(caught.value) == (
        f"{pack / 'pack.json'}: expected the index of a pack as it was written, found a changed "
        "one; the pack is damaged: write it again with roomscribe model pack"
    )


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": "roomscribe pack"', "\x00\xff"])
def test_an_index_that_is_no_json_table_is_one_line(pack: Path, text: str) -> None:
    (pack / "pack.json").write_text(text)
    with pytest.raises(ModelError, match=r"^[^\n]*pack\.json: expected [^\n]*$"):
        read_pack(pack)


def test_a_folder_without_an_index_is_no_pack(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ModelError, match=r"pack\.json: expected a readable file, found: No"):
            read_pack(folder)


@pytest.mark.parametrize("name", ["stem.bin", "positions.bin", "layer_01.bin"])
@pytest.mark.parametrize(
    ("damage", "found"),
    [
        ("missing", "expected a readable file, found: No such file"),
        ("a folder", "expected a readable file, found: Is a directory"),
        ("empty", "bytes, found 0"),
        ("short", "bytes, found "),
        ("long", "bytes, found "),
        ("one bit", "expected the SHA-256 "),
    ],
)
def test_every_kind_of_damage_to_a_blob_is_one_line(
    pack: Path, name: str, damage: str, found: str
) -> None:
    file = pack / name
    data = bytearray(file.read_bytes())
    file.unlink()
    if damage == "a folder":
        file.mkdir()
    elif damage != "missing":
        data[len(data) // 2] ^= 16 if damage == "one bit" else 0
        file.write_bytes(
            data + b"\0" if damage == "long" else data[: {"empty": 0, "short": -1}.get(damage)]
        )
    with pytest.raises(ModelError) as caught:
        read_pack(pack)
    text = str(caught.value)
    assert text.startswith(f"{file}: ") and found in text and "\n" not in text
    assert text.endswith("write it again with roomscribe model pack")


def test_a_pack_that_is_read_cannot_be_changed_by_accident(pack: Path) -> None:
    opened = read_pack(pack)
    with pytest.raises(ValueError, match="read-only"):
        opened.data["stem.bin"][0] = 1
