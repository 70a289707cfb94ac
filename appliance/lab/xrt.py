"""Checks a pack: its layout and checksums, then its blobs in XRT buffers of an AMD NPU.

The only importer of pyxrt, XRT's Python binding. Written after its sources (Xilinx/XRT,
src/python/pybind11/src/pyxrt.cpp) and tested against a strict fake: never run on real hardware.
The kernels that would read the buffers are not part of Roomscribe.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from appliance.errors import DeviceError
from appliance.lab.packs import Pack, read_pack
from appliance.system import one_line

DEVICE = 0
"""Index of the XRT device."""
EXAMINE = "Run `xrt-smi examine` to check the device."


def check_pack(folder: Path) -> Iterator[str]:
    """Yield a line for each check that the pack in `folder` passes.

    Raises ModelError for a damaged pack, DeviceError if the XRT device refuses the blobs.
    """
    pack = read_pack(folder)
    count = len(pack.blobs)
    yield f"{folder}: {count} blobs, {pack.size} bytes, {pack.dtype}: layout and checksums OK"
    if not find_spec("pyxrt"):
        yield (
            "XRT: not checked, pyxrt is not installed. On a machine with an AMD NPU, install "
            "AMD's XRT (Debian forky, Ubuntu 26.04: apt install python3-xrt libxrt-npu2)."
        )
        return
    with _device_errors(f"Cannot open XRT device {DEVICE}"):
        import pyxrt

        device = pyxrt.device(DEVICE)
    check_buffers(pack, place_blobs(pack, device))
    yield f"XRT device {DEVICE}: {count} buffers, read back without a difference"


def place_blobs(pack: Pack, device: Any, group: int = 0) -> dict[str, Any]:
    """Return a pyxrt.bo with the bytes of each blob on `device`, by the blob's file name.

    `group` is the memory group of the kernel's argument that takes a blob (pyxrt.kernel.group_id).
    Raises DeviceError.
    """
    import pyxrt

    buffers = {}
    for file, data in pack.blobs.items():
        with _device_errors(f"{pack.folder / file}: no XRT buffer of {len(data)} bytes"):
            # host_only: an XDNA reads its weights from the machine's memory, it has no other
            buffer = pyxrt.bo(device, len(data), pyxrt.bo.host_only, group)
            buffer.write(data, 0)
            buffer.sync(pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE, len(data), 0)
        buffers[file] = buffer
    return buffers


def check_buffers(pack: Pack, buffers: dict[str, Any]) -> None:
    """Read the buffers of `place_blobs` back. Raises DeviceError if one differs from its blob."""
    import pyxrt

    for file, buffer in buffers.items():
        size = len(pack.blobs[file])
        with _device_errors(f"{pack.folder / file}: cannot read its XRT buffer"):
            buffer.sync(pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE, size, 0)
            found = np.asarray(buffer.read(size, 0)).view(np.uint8)
        if not np.array_equal(found, pack.blobs[file]):
            raise DeviceError(
                f"{pack.folder / file}: its XRT buffer holds other bytes than the file. {EXAMINE}"
            )


@contextmanager
def _device_errors(what: str) -> Iterator[None]:
    try:
        yield
    except (ImportError, RuntimeError) as error:
        raise DeviceError(f"{what}: {one_line(error)}. {EXAMINE}") from error
