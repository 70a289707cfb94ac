"""Packs: every number rounded right, every byte where the index says."""

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
from appliance.lab.packs import ALIGNMENT, DTYPES, LARGEST, narrow, write_pack

UPPER = np.arange(2**16, dtype=np.uint32) << np.uint32(16)
LOWER = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
EVERY_ROUNDING = (UPPER[:, None] | LOWER[None, :]).view(np.float32)
"""(65536, 6): on, just above, just below, at and just beyond the middle of two bfloat16 numbers."""

INT8_ENDINGS = tuple(f"{name}.weight" for name in ("conv1", "conv2", "fc1", "fc2", "proj"))

NUMPY = {"float32": "<f4", "bfloat16": "<u2", "float16": "<f2", "int8": "i1"}
Floats = NDArray[np.float32]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("packs") / "odd"
    return load_checkpoint(write_checkpoint(folder, ODD, random_weights(ODD, 6)))


@pytest.fixture
def pack(checkpoint: Checkpoint, tmp_path: Path) -> Path:
    write_pack(checkpoint, tmp_path / "pack", "bf16")
    return tmp_path / "pack"


def encoder_names() -> set[str]:
    return {name for name in expected_shapes(ODD) if name.startswith("model.encoder.")}


def stored_arrays(folder: Path) -> dict[str, list[NDArray[Any]]]:
    """The arrays of each weight as pack.json says: its numbers, and for int8 its scales."""
    found = {}
    for blob in json.loads((folder / "pack.json").read_text())["blobs"]:
        data = (folder / blob["file"]).read_bytes()
        for tensor in blob["tensors"]:
            places = [tensor, *([tensor["scales"]] if "scales" in tensor else [])]
            found[tensor["name"]] = [
                np.frombuffer(data, NUMPY[each["dtype"]], np.prod(each["shape"]), each["offset"])
                .reshape(each["shape"])
                for each in places
            ]  # fmt: skip
    return found


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
    numbers = EVERY_ROUNDING[np.abs(EVERY_ROUNDING) <= LARGEST["bfloat16"]]
    [stored], found = narrow(numbers, "bfloat16")
    assert len(numbers) > 2 * 0x7F7F * 6
    assert np.array_equal(found.view(np.uint32), nearest_bfloat16(numbers).view(np.uint32))
    assert np.array_equal(stored, found.view(np.uint32) >> 16)


def test_int8_is_symmetric_and_within_half_a_step_in_every_channel() -> None:
    rng = np.random.default_rng(1)
    sizes = np.array([1e-30, 1e-3, 1, 1e30], np.float32)[:, None, None]
    values = (rng.standard_normal((4, 5, 3)) * sizes).astype(np.float32)
    [steps, scales], found = narrow(values, "int8")
    assert steps.dtype == np.int8 and steps.shape == (4, 15) and scales.shape == (4,)
    assert np.array_equal(np.abs(steps.astype(int)).max(axis=1), [127] * 4)
    error = np.abs(found - values.astype(np.float64)).max(axis=(1, 2))
    assert (error <= 0.5001 * scales).all()
    assert np.array_equal(narrow(-values, "int8")[0][0], -steps)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_stored_is_what_was_written_to_the_precision_of_the_type(
    checkpoint: Checkpoint, tmp_path: Path, dtype: str
) -> None:
    report = write_pack(checkpoint, tmp_path / "pack", dtype)
    stored = stored_arrays(tmp_path / "pack")
    assert {*stored} == encoder_names() == {each["name"] for each in report["tensors"]}
    assert report["size"] == sum(file.stat().st_size for file in (tmp_path / "pack").glob("*.bin"))
    for each in report["tensors"]:
        expected, [numbers, *scales] = checkpoint.weights[each["name"]], stored[each["name"]]
        found = numbers.astype(np.float32)
        if each["dtype"] == "bfloat16":
            found = (numbers.astype(np.uint32) << 16).view(np.float32)
        if scales:
            found = found * scales[0].reshape(-1, *(1,) * (found.ndim - 1))
        error = np.abs(found - expected)
        assert each["max_abs_error"] == pytest.approx(error.max(), rel=1e-6)
        rms = np.sqrt(np.mean(error.astype(np.float64) ** 2) / np.mean(expected**2))
        assert each["relative_rms_error"] == pytest.approx(rms, rel=1e-4)
        limit = {"float32": 0, "bfloat16": 2**-8, "float16": 2**-11, "int8": 0.02}[each["dtype"]]
        assert rms <= limit and (rms > 0) == (limit > 0)
        assert bool(scales) == (each["dtype"] == "int8")
        assert dtype != "int8" or bool(scales) == each["name"].endswith(INT8_ENDINGS)


def test_a_number_that_does_not_fit_is_named(tmp_path: Path) -> None:
    weights = random_weights(ODD, 6)
    weights["model.encoder.layers.1.fc1.bias"][3] = 1e5
    with pytest.raises(ModelError, match=r"fc1\.bias: expected at most 65504 for float16, found 1"):
        write_pack(Checkpoint(ODD, weights, ""), tmp_path / "pack", "fp16")
    assert not [*tmp_path.iterdir()]


def test_arrays_are_aligned_and_gaps_are_zeros(pack: Path) -> None:
    index = json.loads((pack / "pack.json").read_text())
    assert index["byte_order"] == "little" and index["alignment"] == ALIGNMENT == 64
    for blob in index["blobs"]:
        free = bytearray((pack / blob["file"]).read_bytes())
        assert len(free) == blob["size"]
        for tensor in blob["tensors"]:
            begin, end = tensor["offset"], tensor["offset"] + tensor["size"]
            assert begin % ALIGNMENT == 0 and tensor["size"] == 2 * np.prod(tensor["shape"])
            free[begin:end] = bytes(end - begin)
        assert not any(free)


def test_what_is_there_is_never_replaced(checkpoint: Checkpoint, pack: Path) -> None:
    before = {file.name: file.read_bytes() for file in pack.iterdir()}
    with pytest.raises(ModelError, match="expected nothing there, found something; move it away"):
        write_pack(checkpoint, pack, "int8")
    assert {file.name: file.read_bytes() for file in pack.iterdir()} == before


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The kernel refuses to let any file of this process grow beyond `size` bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_is_one_line_and_leaves_nothing(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with files_of_at_most(10_000), pytest.raises(ModelError) as caught:
        write_pack(checkpoint, tmp_path / "pack", "int8")
    assert str(caught.value).startswith(f"{tmp_path / 'pack'}: a pack cannot be written: ")
    assert "\n" not in str(caught.value)
    assert not [*tmp_path.iterdir()]
