"""HailoRT's Python binding, and what the chip says that it is. The only importer of hailo_platform.

Written against its published sources, 4.18 to 4.23 (Hailo-8, 8L) and 5.x (Hailo-10H), and run
against a simulator of them alone: never on a real chip.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from appliance.errors import DeviceError
from appliance.infer import hailo_system
from appliance.infer.hailo_errors import NpuError, Situation, explain

CHIPS = {"HAILO8": "hailo8", "HAILO8L": "hailo8l", "HAILO10H": "hailo10h", "HAILO15H": "hailo10h"}
"""DeviceArchitecture's names; a Hailo-10H told older libraries that it was a 15H."""
OLDEST = (4, 18)
"""HailoRT's Python has had InferModel since."""
PACKAGES = "sudo apt install hailo-all (Hailo-10H: hailo-h10-all)"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a chip says that it is."""

    device_id: str
    chip: str
    """hailo8, hailo8l or hailo10h."""
    firmware: str


def load_binding() -> Any:
    """The module hailo_platform. Raises NpuError when it cannot be used.

    Unless HAILORT_LOGGER_PATH says otherwise, HailoRT is kept from writing hailort.log into the
    working directory.
    """
    os.environ.setdefault(hailo_system.LOG_VARIABLE, "NONE")
    try:
        import hailo_platform
    except Exception as error:  # its version check raises whatever it likes
        said = " ".join(str(error).split()) or type(error).__name__
        raise NpuError(
            "binding", f"HailoRT's Python binding cannot be used ({said}); {PACKAGES}"
        ) from None
    version = str(hailo_platform.__version__)
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise NpuError(
            "binding", f"expected HailoRT 4.18 or newer, found {version}; sudo apt full-upgrade"
        )
    return hailo_platform


def identify(binding: Any) -> Identity:
    """What the first chip says of itself; works beside a running model. Raises NpuError."""
    situation = Situation("asking the chip what it is", binding.__version__, scan=scanner(binding))
    fault: NpuError | None = None
    try:
        ids = binding.Device.scan()
        if ids:
            with binding.Device(ids[0]) as device:
                board = device.control.identify()
    except Exception as error:  # Device raises a class that is no HailoRTException before 5.2
        fault = explain(error, situation)
    if fault:
        raise fault
    if not ids:
        raise NpuError("absent", "expected a Hailo, found none; look for Hailo in `lspci`")
    name = str(board.device_architecture).rsplit(".", 1)[-1]
    if name not in CHIPS:
        raise NpuError("unknown chip", f"expected one of {', '.join(CHIPS)}, found {name}")
    return Identity(ids[0], CHIPS[name], str(board.firmware_version))


def find_chip() -> str | None:
    """hailo8, hailo8l or hailo10h; None where there is no Hailo.

    Raises DeviceError when there is one whose kind cannot be read.
    """
    if not hailo_system.nodes():
        return None
    try:
        return identify(load_binding()).chip
    except NpuError as error:
        raise DeviceError(
            f"{error}; or say which chip it is: --hef hailo8, hailo8l, hailo10h or none"
        ) from None


def scanner(binding: Any) -> Callable[[], list[str]]:
    """Device.scan, for a Situation."""
    return lambda: list(binding.Device.scan())
