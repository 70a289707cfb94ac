"""A bundle with a flipped bit anywhere is refused in one line that names the file."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given, strategies as st
from rigs.fuzzing import ODD_TEXTS, damaged, examples, is_one_line

from appliance.config import EncoderSettings, ModelSettings, Settings
from appliance.errors import ConfigError, ModelError
from appliance.infer.opening import open_transcriber
from appliance.model.bundle import MANIFEST, Bundle, load_bundle

ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 10**300, 0.5, -1e308, float("nan"), float("inf"), "", "x",
    "\0", "../x", [], [0], [[]], {}, {"a": 1}, [True], ["en"] * 1000, [5] * 1000, *ODD_TEXTS,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, bundle_folder: Path) -> Path:
    """A copy of a small bundle."""
    return Path(shutil.copytree(bundle_folder, tmp_path_factory.mktemp("copy") / "home"))


@pytest.fixture(scope="module")
def manifest(bundle_folder: Path) -> bytes:
    return (bundle_folder / MANIFEST).read_bytes()


def test_a_flipped_bit_in_a_file_is_found(folder: Path, manifest: bytes) -> None:
    every = {name: (folder / name).read_bytes() for name in json.loads(manifest)["files"]}
    files = {name: content for name, content in every.items() if content}
    assert len(files) >= 5

    @given(st.sampled_from(sorted(files)), st.data())
    @examples(40)
    def flip(name: str, data: st.DataObject) -> None:
        changed = bytearray(files[name])
        bit = data.draw(st.integers(0, len(changed) * 8 - 1))
        changed[bit // 8] ^= 1 << bit % 8
        (folder / name).write_bytes(changed)
        try:
            with pytest.raises(ModelError) as caught:
                load_bundle(folder)
        finally:
            (folder / name).write_bytes(files[name])
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


def test_a_flipped_bit_in_the_manifest_is_found_or_harmless(folder: Path, manifest: bytes) -> None:
    @given(st.integers(0, len(manifest) * 8 - 1))
    @examples(60)
    def flip(bit: int) -> None:
        changed = bytearray(manifest)
        changed[bit // 8] ^= 1 << bit % 8
        (folder / MANIFEST).write_bytes(changed)
        event(opened(folder))

    flip()


def test_a_damaged_manifest_is_found_or_harmless(folder: Path, manifest: bytes) -> None:
    @given(damaged(manifest))
    @examples(60, 0.5)
    def damage(data: bytes) -> None:
        (folder / MANIFEST).write_bytes(data)
        event(opened(folder))

    damage()


@st.composite
def odd_manifests(draw: st.DrawFn, whole: bytes) -> bytes:
    """The manifest with values replaced by odd ones, or taken away."""
    manifest = json.loads(whole)
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


def test_odd_values_in_the_manifest_are_found_or_harmless(folder: Path, manifest: bytes) -> None:
    @given(odd_manifests(manifest))
    @examples(60, 0.5)
    def replace_values(data: bytes) -> None:
        (folder / MANIFEST).write_bytes(data)
        event(opened(folder))

    replace_values()


def test_the_copy_is_right_without_damage(folder: Path, manifest: bytes) -> None:
    (folder / MANIFEST).write_bytes(manifest)
    assert opened(folder) == "opened"
