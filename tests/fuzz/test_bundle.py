"""A bundle with a flipped bit anywhere is refused in one line that names the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given, strategies as st
from rigs.fuzzing import ODD_TEXTS, damaged, examples, is_one_line

from appliance.config import EncoderSettings, ModelSettings, Settings
from appliance.errors import ConfigError, ModelError
from appliance.infer.opening import open_transcriber
from appliance.model.bundle import Bundle, load_bundle

BUILT_IN = load_bundle("tiny.en").folder
MANIFEST = (BUILT_IN / "bundle.json").read_bytes()
FILES = sorted(json.loads(MANIFEST)["files"])
ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 10**300, 0.5, -1e308, float("nan"), float("inf"), "", "x",
    "\0", "../x", [], [0], [[]], {}, {"a": 1}, [True], ["en"] * 1000, [5] * 1000, *ODD_TEXTS,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the built-in bundle; its files are the same ones until they are replaced."""
    place = tmp_path_factory.mktemp("copy") / "home"
    place.mkdir()
    for file in BUILT_IN.iterdir():
        (place / file.name).symlink_to(file)
    yield place


def put(folder: Path, name: str, data: bytes | None) -> None:
    """Another file in place of the right one; None: the right one again."""
    file = folder / name
    file.unlink()
    if data is None:
        file.symlink_to(BUILT_IN / name)
    else:
        file.write_bytes(data)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_in_a_file_is_found(folder: Path, name: str) -> None:
    whole = (BUILT_IN / name).read_bytes()

    @given(st.integers(0, len(whole) * 8 - 1))
    @examples(5, 1 / len(FILES))
    def flip(bit: int) -> None:
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        put(folder, name, bytes(changed))
        try:
            with pytest.raises(ModelError) as caught:
                load_bundle(folder)
        finally:
            put(folder, name, None)
        assert name in str(caught.value)
        assert is_one_line(str(caught.value)), str(caught.value)

    flip()
    load_bundle(folder)


def opened(folder: Path) -> str:
    """`refused`, or `opened` when the model runs."""
    try:
        bundle = load_bundle(folder)
        assert isinstance(bundle, Bundle)
        settings = replace(
            Settings(), model=ModelSettings(bundle=str(folder)), encoder=EncoderSettings("cpu")
        )
        with open_transcriber(settings) as transcriber:
            transcriber.warm_up()
    except (ModelError, ConfigError) as error:
        assert "bundle.json" in str(error) or str(folder) in str(error), str(error)
        assert is_one_line(str(error)), str(error)
        return "refused"
    return "opened"


@given(st.integers(0, len(MANIFEST) * 8 - 1))
@examples(60)
def test_a_flipped_bit_in_the_manifest_is_found_or_harmless(folder: Path, bit: int) -> None:
    changed = bytearray(MANIFEST)
    changed[bit // 8] ^= 1 << bit % 8
    put(folder, "bundle.json", bytes(changed))
    event(opened(folder))


@given(damaged(MANIFEST))
@examples(60, 0.5)
def test_a_damaged_manifest_is_found_or_harmless(folder: Path, data: bytes) -> None:
    put(folder, "bundle.json", data)
    event(opened(folder))


@st.composite
def odd_manifests(draw: st.DrawFn) -> bytes:
    """The manifest with values replaced by odd ones, or taken away."""
    manifest = json.loads(MANIFEST)
    for _ in range(draw(st.integers(1, 2))):
        table = manifest
        key = draw(st.sampled_from(sorted(table)))
        while isinstance(table[key], dict) and table[key] and draw(st.booleans()):
            table = table[key]
            key = draw(st.sampled_from(sorted(table)))
        if draw(st.integers(0, 5)):
            table[key] = draw(st.sampled_from(ODD_VALUES))
        else:
            del table[key]
    return json.dumps(manifest).encode()


@given(odd_manifests())
@examples(60, 0.5)
def test_odd_values_in_the_manifest_are_found_or_harmless(folder: Path, data: bytes) -> None:
    put(folder, "bundle.json", data)
    event(opened(folder))


def test_the_copy_is_right_without_damage(folder: Path) -> None:
    put(folder, "bundle.json", None)
    assert opened(folder) == "opened"
    assert (folder / "bundle.json").samefile(BUILT_IN / "bundle.json")
