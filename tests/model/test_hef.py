"""HEF files are read without a device, and everything wrong with one is said before it is used."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xxhash
from rigs.checkout import shared
from rigs.hailo_simulator.hef_files import write_hef

from appliance.errors import ModelError
from appliance.model.bundle import Bundle
from appliance.model.hef import CHIP_NAMES, Edge, describe, read_hef, verify_hef

SHAPES = (1, 1000, 80), (1, 500, 128)


@pytest.fixture
def hef_file(tmp_path: Path) -> Path:
    return write_hef(tmp_path / "encoder.hef", *SHAPES)


def as_version(file: Path, version: int) -> Path:
    """The same content behind another header; `file` has one of version 1."""
    content = file.read_bytes()
    length = int.from_bytes(content[8:12], "big")
    body = content[28:]
    if version == 0:  # there is nothing but the description
        body = body[:length] + b"\xa2\x06\x80\x04" + body[length:]
    rest = len(body) - length
    if version == 0:
        length, told = len(body), bytes(4) + hashlib.md5(body).digest()
    elif version == 2:
        told = struct.pack(">QQ16x", xxhash.xxh3_64_intdigest(body), rest)
    else:
        told = struct.pack(">QQIQ16x", xxhash.xxh3_64_intdigest(body), rest - 100, 7, 100)
    head = b"\x01HEF" + version.to_bytes(4, "big") + length.to_bytes(4, "big")
    file.write_bytes(head + told + body)
    return file


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


@pytest.mark.parametrize(
    ("length", "digest"),
    [
        (241, "c614c8c3575348c1"),
        (1024, "f22ef3dc84ff47ea"),
        (1025, "43f869a83769a435"),
        (4133, "4c107b126ccec3e1"),
        (1_100_000, "2076e3bb92028e39"),
    ],
)
def test_the_librarys_checksum_is_the_one_known(length: int, digest: str) -> None:
    content = (np.arange(length) * 7 % 251).astype(np.uint8)
    assert xxhash.xxh3_64_hexdigest(content.tobytes()) == digest


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_every_version_of_the_header_is_read(hef_file: Path, version: int) -> None:
    hef = read_hef(hef_file if version == 1 else as_version(hef_file, version))
    assert hef.version == version
    assert hef.chips == ("hailo8",) and hef.inputs[0].shape == SHAPES[0]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_file_cut_anywhere_is_refused(hef_file: Path, version: int) -> None:
    content = (hef_file if version == 1 else as_version(hef_file, version)).read_bytes()
    for length in (0, 3, 4, 11, 12, 30, 60, 200, len(content) // 2, len(content) - 1):
        hef_file.write_bytes(content[:length])
        with pytest.raises(ModelError, match=r"encoder\.hef: expected .* found .*again$"):
            read_hef(hef_file)
    hef_file.write_bytes(content + b"x")
    with pytest.raises(ModelError, match="bytes behind the header"):
        read_hef(hef_file)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_a_changed_byte_is_named_by_its_checksum(hef_file: Path, version: int) -> None:
    content = bytearray((hef_file if version == 1 else as_version(hef_file, version)).read_bytes())
    content[-3] ^= 1
    hef_file.write_bytes(content)
    with pytest.raises(ModelError, match=r"expected (MD5|CRC-32|XXH3) \w+, found \w+: it is damag"):
        read_hef(hef_file)


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
