"""Packs in XRT buffers: against a strict fake of pyxrt, for no such device is at hand."""

from __future__ import annotations

import enum
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
from rigs.models import ODD, random_weights

from appliance.convert.checkpoint import Checkpoint
from appliance.errors import DeviceError
from appliance.lab.packs import Pack, read_pack, write_pack
from appliance.lab.xrt import check_pack, place_blobs

WORD = 4
"""Bytes; an NPU's DMA moves whole words of 32 bits."""


class Flags(enum.Enum):
    """pyxrt.bo.flags."""

    normal = 0
    cacheable = 1 << 24
    device_only = 1 << 28
    host_only = 1 << 29


class Direction(enum.Enum):
    """pyxrt.xclBOSyncDirection."""

    XCL_BO_SYNC_BO_TO_DEVICE = 0
    XCL_BO_SYNC_BO_FROM_DEVICE = 1


class Device:
    """pyxrt.device: one with index 0 is there, with `room` bytes."""

    room: ClassVar[int] = 10**9

    def __init__(self, index: int) -> None:
        if type(index) is not int or index < 0:
            raise TypeError("incompatible constructor arguments")
        if index:
            raise RuntimeError(f"No such device\nwith index '{index}'")
        self.free = self.room


class Buffer:
    """pyxrt.bo: what `sync` has not moved, the device does not see."""

    flags = Flags
    normal, cacheable, host_only = Flags.normal, Flags.cacheable, Flags.host_only

    def __init__(self, device: Device, size: int, flags: Flags, group: int) -> None:
        if not isinstance(device, Device) or not isinstance(flags, Flags):
            raise TypeError("incompatible constructor arguments")
        if type(size) is not int or type(group) is not int or group < 0:
            raise TypeError("incompatible constructor arguments")
        if size <= 0 or size % WORD:
            raise RuntimeError(f"unaligned or empty buffer of {size} bytes")
        if size > device.free:
            raise RuntimeError("bo allocation failed:\nCannot allocate memory (errno 12)")
        device.free -= size
        self.chosen, self.group = flags, group
        self._host, self.on_device = bytearray(size), bytearray(size)

    def write(self, data: Any, seek: int) -> None:
        view = memoryview(data)
        if not view.c_contiguous:
            raise AssertionError("pyxrt reads size * itemsize bytes from the first one on")
        if type(seek) is not int or seek < 0:
            raise TypeError("incompatible function arguments")
        if seek + view.nbytes > len(self._host):
            raise RuntimeError("attempting to write past buffer size")
        self._host[seek : seek + view.nbytes] = view.cast("B")

    def sync(self, direction: Direction, size: int, offset: int) -> None:
        if not isinstance(direction, Direction) or type(size) is not int or type(offset) is not int:
            raise TypeError("incompatible function arguments")
        if offset + size > len(self._host):
            raise RuntimeError("invalid size or offset")
        if direction is Direction.XCL_BO_SYNC_BO_TO_DEVICE:
            self.on_device[offset : offset + size] = self._host[offset : offset + size]
        else:
            self._host[offset : offset + size] = self.on_device[offset : offset + size]

    def read(self, size: int, skip: int) -> Any:
        if type(size) is not int or type(skip) is not int:
            raise TypeError("incompatible function arguments")
        if skip + size > len(self._host):
            raise RuntimeError("attempting to read past buffer size")
        return np.frombuffer(bytes(self._host[skip : skip + size]), np.int8)

    def size(self) -> int:
        return len(self._host)


@pytest.fixture
def pyxrt(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("pyxrt")
    vars(module).update(device=Device, bo=Buffer, xclBOSyncDirection=Direction)
    module.__spec__ = ModuleSpec("pyxrt", None)
    monkeypatch.setitem(sys.modules, "pyxrt", module)
    return module


@pytest.fixture(scope="module", params=["bf16", "int8"])
def pack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pack:
    folder: Path = tmp_path_factory.mktemp("xrt") / request.param
    write_pack(Checkpoint(ODD, random_weights(ODD, 6), "0" * 64), folder, request.param)
    return read_pack(folder)


def test_the_device_has_every_byte_of_every_blob(pyxrt: ModuleType, pack: Pack) -> None:
    buffers = place_blobs(pack, Device(0), group=3)
    assert list(buffers) == [*pack.blobs] and len(buffers) == 6
    for name, buffer in buffers.items():
        assert bytes(buffer.on_device) == (pack.folder / name).read_bytes()
        assert buffer.chosen is Flags.host_only and buffer.group == 3


def test_a_pack_is_placed_on_a_device_that_a_kernel_already_uses(
    pyxrt: ModuleType, pack: Pack
) -> None:
    device = Device(0)
    buffers = place_blobs(pack, device)
    assert Device.room - device.free == sum(buffer.size() for buffer in buffers.values())


def test_a_check_reads_the_pack_and_its_buffers(pyxrt: ModuleType, pack: Pack) -> None:
    size = pack.size
    assert list(check_pack(pack.folder)) == [
        f"{pack.folder}: 6 blobs, {size} bytes, {pack.dtype}: layout and checksums OK",
        "XRT device 0: 6 buffers, read back without a difference",
    ]


def test_a_check_finds_a_device_that_changes_bytes(
    pyxrt: ModuleType, pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Buffer.write
    monkeypatch.setattr(Buffer, "write", lambda self, data, seek: write(self, data ^ 1, seek))
    with pytest.raises(DeviceError, match=r"stem\.bin: its XRT buffer holds other bytes"):
        list(check_pack(pack.folder))


def test_without_pyxrt_a_check_says_so_in_one_line(
    pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyxrt", None)
    _, line = check_pack(pack.folder)
    assert line.startswith("XRT: not checked, pyxrt is not installed.") and "\n" not in line


def test_a_device_that_is_missing_is_one_line(
    pyxrt: ModuleType, pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.lab.xrt.DEVICE", 2)
    with pytest.raises(DeviceError) as caught:
        list(check_pack(pack.folder))
    assert str(caught.value) == (
        "Cannot open XRT device 2: No such device with index '2'. "
        "Run `xrt-smi examine` to check the device."
    )


def test_a_device_without_room_is_one_line(
    pyxrt: ModuleType, pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [len(blob) for blob in pack.blobs.values()]
    monkeypatch.setattr(Device, "room", sum(sizes[:3]) - 1)
    with pytest.raises(DeviceError) as caught:
        list(check_pack(pack.folder))
    assert str(caught.value) == (
        f"{pack.folder / 'layer_00.bin'}: no XRT buffer of {sizes[2]} bytes: "
        "bo allocation failed: Cannot allocate memory (errno 12). "
        "Run `xrt-smi examine` to check the device."
    )
