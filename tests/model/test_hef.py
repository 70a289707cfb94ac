"""HEF files are read without a device, and everything wrong with one is said before it is used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rigs.checkout import shared
from rigs.hailo_simulator.hef_files import write_hef

from appliance.errors import ModelError
from appliance.model.bundle import Bundle
from appliance.model.hef import CHIP_NAMES, Edge, describe, read_hef, verify_hef

SHAPES = (1, 1000, 80), (1, 500, 128)


@pytest.fixture
def hef_file(tmp_path: Path) -> Path:
    return write_hef(tmp_path / "encoder.hef", *SHAPES)


def test_a_real_file_for_a_hailo_8_is_read() -> None:
    hef = read_hef(shared("data/hef") / "arcface_mobilefacenet_suharvest.hef")
    assert (hef.version, hef.chips, hef.made_for) == (2, ("hailo8",), "Hailo-8")
    assert hef.compiler == "3.31.0" and hef.checksum == "651b41ff45a7c344"
    assert hef.inputs == (Edge("arcface_mobilefacenet/input_layer1", (112, 112, 3)),)
    assert hef.outputs == (Edge("arcface_mobilefacenet/fc1", (1, 1, 512)),)


def test_a_real_file_for_another_chip_is_read_and_refused(bundle: Bundle) -> None:
    file = shared("data/hef") / "scrfd_2.5g_dc.hef"
    hef = read_hef(file)
    assert (hef.version, hef.chips) == (3, ("hailo10h",)) and "5.2.0" in hef.compiler
    assert len(hef.inputs) == 1 and len(hef.outputs) == 9
    with pytest.raises(ModelError, match=r"expected a HEF for Hailo-8, found one for Hailo-10H"):
        verify_hef(file, bundle, "hailo8")


def test_a_real_file_of_another_network_is_refused_for_its_sizes(bundle: Bundle) -> None:
    with pytest.raises(ModelError, match=r"input: expected \(1, 1000, 80\).*found .*\(112, 112, 3"):
        verify_hef(shared("data/hef") / "arcface_mobilefacenet_suharvest.hef", bundle, "hailo8")


@pytest.mark.parametrize("name", ["arcface_mobilefacenet_suharvest.hef", "scrfd_2.5g_dc.hef"])
@pytest.mark.parametrize("place", [0.3, 0.99])
def test_a_changed_byte_anywhere_in_a_real_file_is_noticed(
    tmp_path: Path, name: str, place: float
) -> None:
    content = bytearray((shared("data/hef") / name).read_bytes())
    content[int(place * len(content))] ^= 4
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=r"expected XXH3 .*it is damaged"):
        read_hef(tmp_path / name)


def test_other_files_and_unknown_versions_are_named(tmp_path: Path, hef_file: Path) -> None:
    with pytest.raises(ModelError, match=r"nothing\.hef: expected a readable file, found No such"):
        read_hef(tmp_path / "nothing.hef")
    (tmp_path / "page.hef").write_bytes(b"<html>404</html>" * 40)
    with pytest.raises(ModelError, match=r"expected a HEF .* found b'<htm'"):
        read_hef(tmp_path / "page.hef")
    content = hef_file.read_bytes()
    hef_file.write_bytes(content[:7] + b"\x09" + content[8:])
    with pytest.raises(ModelError, match="version 9, from a newer compiler"):
        read_hef(hef_file)


def test_a_description_that_is_none_is_a_fault_and_no_crash() -> None:
    rng = np.random.Generator(np.random.PCG64(3))
    for _ in range(300):
        noise = rng.integers(0, 256, rng.integers(0, 200), np.uint8)
        try:
            describe(noise.data)
        except ValueError as error:
            assert str(error)


@pytest.mark.parametrize(
    ("made_for", "runs_on"),
    [("HAILO8", {"hailo8"}), ("HAILO8L", {"hailo8", "hailo8l"}), ("HAILO10H", {"hailo10h"})],
)
def test_a_chip_takes_its_own_hefs_and_a_hailo_8_those_of_the_8l(
    tmp_path: Path, bundle: Bundle, made_for: str, runs_on: set[str]
) -> None:
    file = write_hef(tmp_path / "a.hef", *SHAPES, made_for)
    for chip in CHIP_NAMES:
        if chip in runs_on:
            assert verify_hef(file, bundle, chip).chips
        else:
            with pytest.raises(ModelError, match=f"found one for .*--hef {chip}"):
                verify_hef(file, bundle, chip)


def test_a_hef_for_an_unknown_chip_is_refused_even_without_one(
    tmp_path: Path, bundle: Bundle
) -> None:
    file = write_hef(tmp_path / "a.hef", *SHAPES, "SAGE")
    with pytest.raises(ModelError, match="found for an unknown chip"):
        verify_hef(file, bundle)


@pytest.mark.parametrize("told", [(1, 250, 128), (1, 500, 384)])
def test_a_hef_of_another_window_or_width_is_refused(
    tmp_path: Path, bundle: Bundle, told: tuple[int, int, int]
) -> None:
    file = write_hef(tmp_path / "a.hef", SHAPES[0], told)
    with pytest.raises(ModelError, match=r"output: expected \(1, 500, 128\) for model random"):
        verify_hef(file, bundle)
    assert verify_hef(write_hef(file, *SHAPES), bundle).outputs


@pytest.mark.parametrize(("version", "since"), [(1, "4.18"), (2, "4.20"), (3, "4.21")])
def test_a_library_reads_no_header_newer_than_itself(
    hef_file: Path, version: int, since: str
) -> None:
    hef = replace(read_hef(hef_file), version=version)
    for library in (f"{since}.0", "4.23.0", "5.2.0"):
        hef.check_library(library)
    with pytest.raises(ModelError, match=rf"HailoRT 4\.17\.0 reads, .* from {since} on"):
        hef.check_library("4.17.0")
