"""Checks a pack: its layout and checksums, then its blobs in XRT buffers of an AMD NPU.

The only importer of pyxrt, XRT's Python binding. Written after its sources (Xilinx/XRT,
src/python/pybind11/src/pyxrt.cpp) and tested against a strict fake: never run on real hardware.
The kernels that would read the buffers are not part of Roomscribe.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from appliance.errors import DeviceError
from appliance.lab.packs import Pack, read_pack
from appliance.system import one_line

DEVICE = 0
"""Index of the XRT device."""


def check_pack(folder: Path) -> Iterator[str]:
    """Yield a line for each check that the pack in `folder` passes.

    Raises ModelError for a damaged pack, DeviceError if the XRT device refuses the blobs.
    """
    pack = read_pack(folder)
    blobs = pack.index.blobs
    size = sum(blob.size for blob in blobs)
    yield f"{folder}: {len(blobs)} blobs, {size} bytes, {pack.index.dtype}: layout and checksums OK"
    if not find_spec("pyxrt"):
        yield (
            "XRT: not checked, pyxrt is not installed. On a machine with an AMD NPU, install "
            "AMD's XRT (Debian forky, Ubuntu 26.04: apt install python3-xrt libxrt-npu2)."
        )
        return
    check_buffers(pack, place_blobs(pack, open_device(DEVICE)))
    yield f"XRT device {DEVICE}: {len(blobs)} buffers, read back without a difference"


def open_device(index: int) -> Any:
    """Return the pyxrt.device of that index. Raises DeviceError."""
    pyxrt = _import_pyxrt()
    try:
        return pyxrt.device(index)
    except RuntimeError as error:
        raise DeviceError(
            f"Cannot open XRT device {index}: {one_line(error)}. "
            "Run `xrt-smi examine` to see the devices."
        ) from error


def place_blobs(pack: Pack, device: Any, group: int = 0) -> dict[str, Any]:
    """Return a pyxrt.bo with the bytes of each blob on `device`, by the blob's file name.

    `group` is the memory group of the kernel's argument that takes a blob (pyxrt.kernel.group_id).
    Raises DeviceError.
    """
    pyxrt, buffers = _import_pyxrt(), {}
    for blob in pack.index.blobs:
        try:
            # host_only: an XDNA reads its weights from the machine's memory, it has no other
            buffer = pyxrt.bo(device, blob.size, pyxrt.bo.host_only, group)
            buffer.write(pack.data[blob.file], 0)
            buffer.sync(pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE, blob.size, 0)
        except RuntimeError as error:
            raise DeviceError(
                f"{pack.folder / blob.file}: no XRT buffer of {blob.size} bytes: "
                f"{one_line(error)}. Free memory of the device."
            ) from error
        buffers[blob.file] = buffer
    return buffers


def check_buffers(pack: Pack, buffers: dict[str, Any]) -> None:
    """Read the buffers of `place_blobs` back. Raises DeviceError if one differs from its blob."""
    pyxrt = _import_pyxrt()
    for file, buffer in buffers.items():
        size = len(pack.data[file])
        try:
            buffer.sync(pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE, size, 0)
            found = np.asarray(buffer.read(size, 0)).view(np.uint8)
        except RuntimeError as error:
            raise DeviceError(
                f"{pack.folder / file}: cannot read its XRT buffer: {one_line(error)}. "
                "Run `xrt-smi examine` to check the device."
            ) from error
        if not np.array_equal(found, pack.data[file]):
            raise DeviceError(
                f"{pack.folder / file}: its XRT buffer holds other bytes than the file. "
                "Run `xrt-smi examine` to check the device."
            )


def _import_pyxrt() -> Any:
    """Return the binding. Raises DeviceError if it cannot be loaded."""
    try:
        import pyxrt
    except ImportError as error:
        raise DeviceError(
            f"Cannot load pyxrt, XRT's Python binding: {one_line(error)}. Source the setup.sh of "
            "XRT, or install it again."
        ) from error
    return pyxrt
