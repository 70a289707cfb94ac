"""A pack's blobs in the buffers of an AMD NPU or accelerator, through XRT.

The only importer of pyxrt, XRT's Python binding. Written after its sources (Xilinx/XRT,
src/python/pybind11/src/pyxrt.cpp) and tested against a strict fake: never run on real hardware.
The kernels that would read the buffers are not part of Roomscribe.
"""

from __future__ import annotations

from typing import Any

from appliance.errors import DeviceError
from appliance.lab.packs import Pack
from appliance.system import one_line


def place_pack(pack: Pack, device_index: int = 0, group: int = 0) -> dict[str, Any]:
    """A pyxrt.bo with its bytes for every blob, by its file's name, on the device of that index.

    `group` is the memory group of the kernel's argument that takes a blob (pyxrt.kernel.group_id).
    Raises DeviceError when pyxrt or the device is missing, or refuses. Never run on real hardware.
    """
    return place_blobs(pack, open_device(device_index), group)


def open_device(index: int) -> Any:
    """The pyxrt.device of that index. Raises DeviceError."""
    pyxrt = _pyxrt()
    try:
        return pyxrt.device(index)
    except RuntimeError as error:
        raise DeviceError(
            f"XRT device {index}: expected to open it, found: {one_line(error)}; "
            "xrt-smi examine shows the devices there are"
        ) from error


def place_blobs(pack: Pack, device: Any, group: int = 0) -> dict[str, Any]:
    """As `place_pack`, on a device that is open already, as its kernels need."""
    pyxrt, buffers = _pyxrt(), {}
    for blob in pack.index.blobs:
        try:
            # host_only: an XDNA reads its weights from the machine's memory, it has no other
            buffer = pyxrt.bo(device, blob.size, pyxrt.bo.host_only, group)
            buffer.write(pack.data[blob.file], 0)
            buffer.sync(pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE, blob.size, 0)
        except RuntimeError as error:
            raise DeviceError(
                f"{pack.folder / blob.file}: expected a buffer of {blob.size} bytes on the XRT "
                f"device, found: {one_line(error)}; free its memory or choose another group"
            ) from error
        buffers[blob.file] = buffer
    return buffers


def _pyxrt() -> Any:
    """The binding. Raises DeviceError."""
    try:
        import pyxrt
    except ImportError as error:
        raise DeviceError(
            f"XRT: expected its Python binding pyxrt, found: {one_line(error)}; install AMD's XRT "
            "(Debian forky, Ubuntu 26.04: apt install python3-xrt libxrt-npu2; trixie's package "
            "python3-xrt is another program) or source the setup.sh of the one that is there"
        ) from error
    return pyxrt
