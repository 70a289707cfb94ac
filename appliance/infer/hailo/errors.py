"""HailoRT's errors in plain words, and what the system knows of a Hailo without HailoRT.

Most of HailoRT's errors have one class; the status number tells them apart. Numbers are those of
hailort.h, 4.19 to 5.2, which agree, and two that 5.4 changed; paths of device nodes and of the
driver are those of Hailo's published driver sources, 4.18 to 5.3. The fixes come from sources and
users' reports: none was tried on a machine with a Hailo.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from appliance.errors import DeviceError
from appliance.model import Hef
from appliance.system import Holder, holders, one_line

VARIABLE = "ROOMSCRIBE_HAILO_ROOT"
"""Environment variable: a folder to use in place of / for nodes and modules."""
PAGE_BYTES, FORCED_PAGE = os.sysconf("SC_PAGE_SIZE"), 4096
"""Of this machine's memory (16384 with a Raspberry Pi 5's usual kernel), and the largest that the
chip's DMA takes."""
DEBIAN_MODULES = "usr/lib/python3/dist-packages"
"""Where python3-hailort installs, which virtual environments do not see."""
LOG_VARIABLE, LOG_FILE, LOG_TAIL = "HAILORT_LOGGER_PATH", "hailort.log", 20_000
LASTING = frozenset({"wrong chip", "hef missing", "hef damaged", "hef too new", "hef refused"})
"""Causes that another attempt does not fix."""
FAMILY = {
    "HailoRTInvalidArgumentException": 2,
    "HailoRTTimeout": 4,
    "HailoRTInvalidOperationException": 6,
    "HailoRTInvalidHEFException": 26,
    "HailoRTPCIeDriverException": 36,
    "HailoRTDriverOperationFailedException": 36,
    "HailoRTNotFoundException": 61,
    "HailoCommunicationClosedException": 62,
    "HailoRTStreamAborted": 63,
    "HailoRTNetworkGroupNotActivatedException": 69,
    "HailoRTHEFNotCompatibleWithDevice": 93,
}
"""Status of the classes whose text does not name it (a failed job's exception has no cause)."""
NUMPY_2 = (5, 1, 1)
"""HailoRT's Python is built for NumPy 2 since."""
SERVICE = "sudo systemctl status hailort, or set [encoder] share = false"
REPEATED = "if it happens again, restart the machine; look for hailo in `journalctl -k`"
_PCI, _VENDOR = "sys/bus/pci/devices/*/vendor", "0x1e60"


@dataclass(frozen=True, slots=True)
class Generation:
    """Chips with one driver. A machine may have both drivers; the node or the chip decides."""

    major: int
    """Of HailoRT's version."""
    node: str
    module: str
    pci_device: str
    install: str
    """Driver, library and binding, with dkms, which builds the driver for the kernel."""
    packages: str
    """What to bring up to date, and nothing else: on a machine with a Hailo-10H, a full upgrade
    has replaced its library by that of the Hailo-8."""

    @property
    def upgrade(self) -> str:
        """What to run for one version of everything."""
        update = f"sudo apt update && sudo apt install --only-upgrade {self.packages}"
        return f"run `{update}` and restart the machine"

    def read(self, file: str) -> str:
        """The text of a file of the loaded driver; "" without it."""
        return _read(_root() / "sys/module" / self.module / file)


GENERATIONS = (
    Generation(
        4, "dev/hailo0", "hailo_pci", "0x2864", "sudo apt install dkms hailo-all",
        "hailo-all hailo-dkms hailort python3-hailort",
    ),
    Generation(
        5, "dev/h1x-0", "hailo1x_pci", "0x45c4", "sudo apt install dkms hailo-h10-all",
        "hailo-h10-all h10-hailort-pcie-driver h10-hailort python3-h10-hailort",
    ),
)  # fmt: skip
"""Hailo-8 and 8L; Hailo-10H. Nodes, modules and PCI ids are those of the drivers' sources, packages
those of Raspberry Pi OS."""


def nodes() -> list[Path]:
    """Return the device nodes; none without a chip or a driver."""
    return [path for one in GENERATIONS if (path := _root() / one.node).exists()]


def on_the_bus() -> Generation | None:
    """Return the generation of a chip that is on the PCI bus, with or without a driver."""
    for vendor in sorted(_root().glob(_PCI)):
        if _read(vendor) == _VENDOR:
            device = _read(vendor.with_name("device"))
            return next((one for one in GENERATIONS if one.pci_device == device), GENERATIONS[0])
    return None


def generation() -> Generation:
    """Return the generation of this machine's chip: by node, bus or driver; else the first."""
    of_node = (one for one in GENERATIONS if (_root() / one.node).exists())
    loaded = (one for one in GENERATIONS if one.read("version"))
    return next(of_node, None) or on_the_bus() or next(loaded, GENERATIONS[0])


def driver_version() -> str | None:
    """Return the version of the loaded kernel module, like 4.23.0; None without one."""
    return generation().read("version") or None


def is_installed_for_debian() -> bool:
    """True if the Python binding is installed for /usr/bin/python3."""
    return (_root() / DEBIAN_MODULES / "hailo_platform").is_dir()


def owners() -> list[Holder]:
    """Return the processes with a node open that this user can see; this process comes last."""
    return holders(nodes())


def lacks_small_pages(page_bytes: int = PAGE_BYTES) -> bool:
    """True if pages are too large for the chip and the driver is not set to smaller ones, or if
    HailoRT's log says so."""
    forced = generation().read("parameters/force_desc_page_size")
    unforced = page_bytes > FORCED_PAGE and forced != str(FORCED_PAGE)
    return unforced or "max_desc_page_size" in _log()


def small_pages() -> str:
    """Return the line that sets the driver to pages of FORCED_PAGE, and its file."""
    option = f"options {generation().module} force_desc_page_size={FORCED_PAGE}"
    return f"`{option}` into /etc/modprobe.d/hailo.conf"


def is_accessible(node: Path) -> bool:
    """True if this user may use a node."""
    return os.access(node, os.R_OK | os.W_OK)


def _root() -> Path:
    return Path(os.environ.get(VARIABLE, "/"))


def _read(file: Path) -> str:
    """The text of a small file; "" where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _log() -> str:
    """The end of HailoRT's log, where the user has it written."""
    folder = os.environ.get(LOG_VARIABLE, "NONE")
    return "" if folder == "NONE" else _read(Path(folder) / LOG_FILE)[-LOG_TAIL:]


class NpuError(DeviceError):
    """The NPU cannot be used; `cause` is one of a few words."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(f"NPU: {message}")
        self.cause = cause

    @property
    def lasting(self) -> bool:
        """True if another attempt is in vain."""
        return self.cause in LASTING


@dataclass(frozen=True, slots=True)
class Situation:
    """What was going on when HailoRT failed."""

    doing: str
    library: str
    """Version of HailoRT; "" if it could not be loaded."""
    hef: Hef | None = None
    scan: Callable[[], list[str]] = list
    """Device.scan."""
    page_bytes: int = PAGE_BYTES
    accessible: Callable[[Path], bool] = is_accessible
    shared: bool = False
    """The chip was being opened through the hailort service."""


def status_of(error: BaseException) -> int | None:
    """Return HailoRT's status in an exception; None without one."""
    for each in (error.__cause__, error):
        if each is not None and each.args and re.fullmatch(r"\d+", str(each.args[0])):
            return int(each.args[0])
    if found := re.search(r"error: (\d+)", str(error)):
        return int(found[1])
    return next((FAMILY[base.__name__] for base in type(error).__mro__
                 if base.__name__ in FAMILY), None)  # fmt: skip


def explain(error: BaseException, situation: Situation) -> NpuError:
    """Return the error in plain words, without its traceback, which would keep the chip's objects
    alive and the chip busy."""
    status, hef = status_of(error), situation.hef
    if status in BY_SITUATION:
        cause, text = BY_SITUATION[status](situation)
    elif status in PLAIN:
        cause, text = PLAIN[status]
        text = text.format(
            doing=situation.doing,
            library=situation.library,
            driver=driver_version() or "of unknown version",
            hef=hef.file if hef else "the HEF",
            made_for=hef.made_for if hef else "another chip",
            compiler=f" (compiler {hef.compiler})" if hef else "",
            upgrade=generation().upgrade,
        )
    else:
        reason = one_line(error)
        cause, text = "unknown", f"{situation.doing} failed: {reason}; {REPEATED}"
    number = "" if status is None else f" (HailoRT status {status})"
    return NpuError(cause, text + number)


def _none_or_busy(situation: Situation) -> tuple[str, str]:
    """74: no chip, or one that another process uses."""
    if not _scan(situation):
        return "absent", (
            "no Hailo found; check the cable, and look for Hailo in `lspci`; "
            "if it is missing there, set dtparam=pciex1 in /boot/firmware/config.txt"
        )
    return _busy(situation)


def _busy(_situation: Situation) -> tuple[str, str]:
    """73, or 74 with a chip: one process at a time, unless all share it."""
    names = ", ".join(map(str, owners()[:3])) or "another process"
    return "busy", (
        f"the chip is in use by {names}; stop that, or share the chip: "
        "[encoder] share = true, in every program that uses it"
    )


def _driver(situation: Situation) -> tuple[str, str]:
    """36: the node cannot be opened, or the driver refused."""
    for node in nodes():
        if not situation.accessible(node):
            return "forbidden", (
                f"this user may not use {node} (mode {node.stat().st_mode & 0o777:04o}); "
                "restart the machine: the package's udev rule (70-roomscribe.rules) and its "
                "unit allow it from then on"
            )
    return "driver", f"{situation.doing}: the driver refused; {REPEATED}"


def _internal(situation: Situation) -> tuple[str, str]:
    """8: anything, and often pages that are too large for the chip."""
    if lacks_small_pages(situation.page_bytes):
        return "large pages", (
            f"{situation.doing}: expected pages of 4096 bytes, found {situation.page_bytes}; "
            f"put {small_pages()} and restart the machine"
        )
    return "internal", f"{situation.doing}: HailoRT failed inside; {REPEATED}"


def _operation(situation: Situation) -> tuple[str, str]:
    """6: no service for this chip, or in this build; from a binding that was built against NumPy 1,
    it means that buffers look empty (HailoRT's own builds have pybind11 2.10 before 5.1.1, and
    NumPy 2 is known to pybind11 since 2.12)."""
    if situation.shared:
        return "service", (
            f"{situation.doing}: HailoRT {situation.library} has no service for this chip; "
            "set [encoder] share = false"
        )
    version = tuple(map(int, re.findall(r"\d+", situation.library)[:3]))
    if int(np.__version__.split(".")[0]) >= 2 and version < NUMPY_2:
        return "numpy", (
            f"{situation.doing}: HailoRT {situation.library}'s Python binding seems to be built "
            f"for NumPy 1, found NumPy {np.__version__}; {generation().upgrade}, for a "
            "python3-hailort that is built for this NumPy (with pybind11 2.12 or newer), and "
            "until there is one set [encoder] backend = cpu"
        )
    return "operation", f"{situation.doing}: HailoRT calls this an invalid operation; {REPEATED}"


def _scan(situation: Situation) -> list[str]:
    try:
        return situation.scan()
    except Exception:  # whatever it raises, it has found no chip
        return []


BY_SITUATION: dict[int | None, Callable[[Situation], tuple[str, str]]] = {
    6: _operation, 8: _internal, 36: _driver, 73: _busy, 74: _none_or_busy,
}  # fmt: skip
"""Cause and text of a status that depend on the situation."""
_POWER_CYCLE = "{upgrade}, or switch it off and on, if only the chip's firmware is old"
_VERSIONS = (
    "versions differ",
    "expected a driver of HailoRT's version {library}, found driver {driver}; "
    "{upgrade}: both must be equal to the digit",
)
PLAIN: dict[int | None, tuple[str, str]] = {
    2: (
        "invalid",
        "{doing}: HailoRT {library} calls that invalid, as it does while the driver is being "
        f"loaded; {REPEATED}",
    ),
    3: (
        "memory",
        "{doing}: this machine has no memory left for HailoRT; look at `free -m`, and for "
        "`Out of memory` in `journalctl -k`; a smaller model or fewer programs leave it some",
    ),
    4: ("timeout", f"{{doing}}: the chip did not answer in time; {REPEATED}"),
    7: (
        "not implemented",
        "{doing}: HailoRT {library} cannot do this with this chip; {upgrade}, "
        "or [encoder] backend = cpu",
    ),
    13: (
        "hef missing",
        "{hef}: expected a readable HEF, found none; install the model again",
    ),
    15: (
        "firmware differs",
        "expected the chip's firmware to know HailoRT {library}'s commands, found one of another "
        f"version; {_POWER_CYCLE}",
    ),
    16: (
        "firmware differs",
        "expected firmware of HailoRT's version {library} on the chip, found another; "
        f"{_POWER_CYCLE}",
    ),
    18: (
        "firmware",
        "{doing}: the chip's firmware failed at a command; switch the machine off and on; "
        f"{REPEATED}",
    ),
    26: (
        "hef refused",
        "{hef}: HailoRT {library} refuses it (up to 4.20 that means another chip, a damaged file "
        "or one from a newer compiler); {upgrade}, or roomscribe model add NAME --hef auto",
    ),
    47: (
        "descriptors",
        "{doing}: the chip's list of transfers (DMA descriptors) is full; stop other programs that "
        f"use the chip; {REPEATED}",
    ),
    62: ("lost", f"{{doing}}: the chip hung up; {REPEATED}"),
    63: (
        "aborted",
        f"{{doing}}: the chip gave the work up (it also does so when too hot); {REPEATED}",
    ),
    69: ("operation", f"{{doing}}: the network is not active; {REPEATED}"),
    76: _VERSIONS,
    77: ("service", f"{{doing}}: the hailort service does not answer; {SERVICE}"),
    78: (
        "service",
        "{doing}: the hailort service has another version than the library; {upgrade}",
    ),
    81: (
        "memory",
        "{doing}: no memory for DMA is left (since HailoRT 5.4: or something else); "
        "give Linux more: cma=512M on the command line",
    ),
    82: ("queue full", f"{{doing}}: the chip takes no more work; {REPEATED}"),
    85: _VERSIONS,
    86: _VERSIONS,
    87: ("driver timeout", f"{{doing}}: the driver waited in vain for the chip; {REPEATED}"),
    89: ("service", f"{{doing}}: the hailort service refuses the connection; {SERVICE}"),
    91: ("hef damaged", "{hef}: the HEF is damaged; install the model again"),
    92: (
        "hef too new",
        "{hef}: expected a HEF that HailoRT {library} knows, found one of a newer "
        "compiler{compiler}; {upgrade}",
    ),
    93: (
        "wrong chip",
        "{hef}: expected a HEF for this chip, found that it is for {made_for}; "
        "roomscribe model add NAME --hef auto fetches the right one",
    ),
    96: (
        "absent",
        "{doing}: the chip is no longer connected; look at the cable and its power",
    ),
    97: ("busy", "{doing}: the chip is not to be had for now; it will be tried again"),
    98: (
        "usb",
        "{doing}: the USB connection to the chip failed; use another port or cable, without a hub",
    ),
}
"""Cause and text of a status; the situation is filled in."""
