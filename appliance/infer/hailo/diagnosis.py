"""HailoRT's errors in plain words, and what the system knows of a Hailo without HailoRT.

Only what an owner can mend has words of ours; everything else is HailoRT's own line. The statuses
are those of hailort.h, 4.19 to 5.4; paths of device nodes and of the driver are those of Hailo's
published driver sources, 4.18 to 5.3. No fix was tried on a machine with a Hailo.
"""

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from appliance.errors import DeviceError
from appliance.system import Holder, holders, one_line, read_or_empty

VARIABLE = "ROOMSCRIBE_HAILO_ROOT"
"""Environment variable: a folder to use in place of / for nodes and modules."""
PAGE_BYTES, FORCED_PAGE = os.sysconf("SC_PAGE_SIZE"), 4096
"""Of this machine's memory (16384 with a Raspberry Pi 5's usual kernel), and the largest that the
chip's DMA takes."""
FAMILY = {
    "HailoRTTimeout": 4,
    "HailoRTPCIeDriverException": 36,  # 4.19's
    "HailoRTDriverOperationFailedException": 36,
}
"""Status of a failed job's exception, which has no cause, if its text does not name it."""
NUMPY_2 = (5, 1, 1)
"""HailoRT's Python is built for NumPy 2 since."""
REPEATED = "if it happens again, restart the machine, and look for hailo in `journalctl -k`"
ABSENT = (
    "no Hailo found; check its cable and seat, and look for Hailo in `lspci` (if it is missing "
    "there, set dtparam=pciex1 in /boot/firmware/config.txt)"
)
_PCI, _VENDOR = "sys/bus/pci/devices/*/vendor", "0x1e60"


@dataclass(frozen=True, slots=True)
class Generation:
    """Chips with one driver and one library. A machine may have the drivers of several."""

    major: int
    """Of HailoRT's version."""
    pci_device: str
    module: str
    install: str
    """Driver, library and binding, with dkms, which builds the driver for the kernel."""
    packages: tuple[str, ...]
    """All that must have one version, of Raspberry Pi OS bookworm and trixie, and Hailo's own."""
    large_pages: bool
    """True if the driver takes the kernel's pages, and has to be told to take smaller ones."""

    @property
    def upgrade(self) -> str:
        """What to run for one version of everything that is installed, and nothing else: on a
        machine with a Hailo-10H, a full upgrade has replaced its library by that of the Hailo-8."""
        status = read_or_empty(_root() / "var/lib/dpkg/status")
        installed = set(re.findall(r"^Package: (.+)\nStatus: install ok installed$", status, re.M))
        names = " ".join(name for name in self.packages if name in installed)
        command = f"sudo apt install --only-upgrade {names}" if names else self.install
        return f"run `sudo apt update && {command}` and restart the machine"

    def read(self, file: str) -> str:
        """The text of a file of the loaded driver; "" without it."""
        return read_or_empty(_root() / "sys/module" / self.module / file).strip()


GENERATIONS = (
    Generation(
        4, "0x2864", "hailo_pci", "sudo apt install dkms hailo-all",
        ("hailo-all", "hailo-dkms", "hailort-pcie-driver", "hailofw", "hailort", "python3-hailort"),
        large_pages=True,
    ),
    Generation(
        5, "0x45c4", "hailo1x_pci", "sudo apt install dkms hailo-h10-all",
        ("hailo-h10-all", "h10-hailort-pcie-driver", "h10-hailort", "python3-h10-hailort"),
        large_pages=False,  # 5.x takes the smaller of 4096 and the page (linux/pcie/src/pcie.c)
    ),
)  # fmt: skip
"""Hailo-8 and 8L; Hailo-10H. Modules and PCI ids are those of the drivers' sources."""
OWN_NODE = "dev/h1x-0"
"""Of a Hailo-10H since driver 5.3; before, and of the others always, it is dev/hailo0."""
NODES = ("dev/hailo0", OWN_NODE)
NEW_KERNEL = (6, 12)
"""Driver 4.x is reported to hang on it: HANGS."""
HANGS = "https://github.com/hailo-ai/hailort-drivers/issues/44"


def nodes() -> list[Path]:
    """Return the device nodes; none without a chip or a driver."""
    return [path for node in NODES if (path := _root() / node).exists()]


def on_bus(file: str = "device") -> list[str]:
    """Return a file of each Hailo on the PCI bus, with or without a driver; its id by default."""
    vendors = sorted(_root().glob(_PCI))
    found = (each.with_name(file) for each in vendors if read_or_empty(each).strip() == _VENDOR)
    return [read_or_empty(each).strip() for each in found]


def generation() -> Generation:
    """Return the generation of this machine's chip: by PCI id, else by a node that only one has,
    else by the only loaded driver; else the first."""
    first, second = GENERATIONS
    present = [one for one in GENERATIONS if one.pci_device in on_bus()]
    loaded = [one for one in GENERATIONS if one.read("version")]
    if present:
        return present[0]
    if (_root() / OWN_NODE).exists():
        return second
    return loaded[0] if len(loaded) == 1 else first


def system_facts() -> dict[str, Any]:
    """Return what the kernel shows of a Hailo, for a report."""
    return {
        "pci_ids": on_bus(),
        "link_speeds": on_bus("current_link_speed"),
        "nodes": [str(node) for node in nodes()],
        "drivers": {one.module: one.read("version") for one in GENERATIONS if one.read("version")},
    }


def may_hang(kernel: str = platform.release()) -> str:
    """Return a warning if this driver is reported to hang on this kernel; else empty."""
    version = driver_version() or ""
    if not version.startswith("4.") or numbers(kernel)[:2] < NEW_KERNEL:
        return ""
    return f"driver {version} is reported to hang after hours on kernels since 6.12 ({HANGS})"


def driver_version() -> str | None:
    """Return the version of the loaded kernel module, like 4.23.0; None without one."""
    return generation().read("version") or None


def owners() -> list[Holder]:
    """Return the other processes with a node open that this user can see."""
    return holders(nodes())


def lacks_small_pages(page_bytes: int = PAGE_BYTES) -> bool:
    """True if pages are too large for the chip and the driver is not set to smaller ones."""
    chip = generation()
    forced = chip.read("parameters/force_desc_page_size") == str(FORCED_PAGE)
    return chip.large_pages and page_bytes > FORCED_PAGE and not forced


def small_pages() -> str:
    """Return the line that sets the driver to pages of FORCED_PAGE, and its file."""
    option = f"options {generation().module} force_desc_page_size={FORCED_PAGE}"
    return f"`{option}` into /etc/modprobe.d/hailo.conf"


def _root() -> Path:
    return Path(os.environ.get(VARIABLE, "/"))


class NpuError(DeviceError):
    """The NPU cannot be used; `cause` is one of a few words."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(f"NPU: {message}")
        self.cause, self.text = cause, message

    @property
    def lasting(self) -> bool:
        """True if another attempt is in vain."""
        return self.cause == "hef refused"


def status_of(error: BaseException) -> int | None:
    """Return HailoRT's status in an exception; None without one."""
    for each in (error.__cause__, error):
        if each is not None and each.args and re.fullmatch(r"\d+", str(each.args[0])):
            return int(each.args[0])
    if found := re.search(r"error: (\d+)", str(error)):
        return int(found[1])
    return next((FAMILY[base.__name__] for base in type(error).__mro__
                 if base.__name__ in FAMILY), None)  # fmt: skip


CAUSES: dict[int | None, str] = {
    4: "timeout", 87: "timeout", 36: "driver", 73: "busy", 81: "memory", 96: "absent",
    15: "versions differ", 16: "versions differ", 76: "versions differ", 78: "versions differ",
    85: "versions differ", 86: "versions differ", 13: "hef refused", 26: "hef refused",
    91: "hef refused", 92: "hef refused", 93: "hef refused", 77: "service", 89: "service",
}  # fmt: skip
"""Of the statuses that an owner can do something about; see also `_cause`."""
TEXTS = {
    "absent": ABSENT,
    "busy": "the chip is in use by {owners}; stop that, or share the chip: [encoder] share = true, "
    "in every program that uses it (Frigate cannot)",
    "forbidden": "{doing}: this user may not open the chip; restart the machine: the package's "
    "udev rule (70-roomscribe.rules) and its unit allow it from then on",
    "driver": "{doing}: the driver refused; switch the machine off and on (after an upgrade the "
    "old firmware stays until then), and if that does not help, {upgrade}",
    "versions differ": "library, driver, firmware and service must be of one version, found "
    "HailoRT {library} and driver {driver}; {upgrade} (if the firmware alone is old, switch it "
    "off and on)",
    "hef refused": "{hef}: HailoRT {library} refuses it: it is for another chip, damaged, or from "
    "a newer compiler; roomscribe model add NAME --hef auto, or {upgrade}",
    "service": "{doing}: the hailort service does not answer; sudo systemctl status hailort, or "
    "set [encoder] share = false",
    "timeout": "{doing}: the chip did not answer in time; if it stays away, sudo systemctl restart "
    "roomscribe, or restart the machine",
    "memory": "{doing}: no memory for DMA is left; write dtoverlay=cma,cma-512 into "
    "/boot/firmware/config.txt and restart the machine",
    "large pages": f"{{doing}}: expected pages of {FORCED_PAGE} bytes, found {PAGE_BYTES}; "
    "put {pages} and restart the machine",
    "numpy": "{doing}: HailoRT {library}'s Python binding seems to be built for NumPy 1, found "
    f"NumPy {np.__version__}; {{upgrade}}, for a python3-hailort that is built for this NumPy, and "
    "until there is one set [encoder] backend = cpu",
    "unknown": f"{{doing}} failed: {{reason}}; {REPEATED}",
}


def explain(error: BaseException, doing: str, library: str, hef: Path | None = None) -> NpuError:
    """Return an error of HailoRT `library` in plain words."""
    status = status_of(error)
    cause = _cause(status, library)
    text = TEXTS[cause].format(
        doing=doing,
        library=library,
        driver=driver_version() or "of unknown version",
        hef=hef or "the HEF",
        owners=", ".join(map(str, owners()[:3])) or "another process",
        pages=small_pages(),
        upgrade=generation().upgrade,
        reason=one_line(error),
    )
    return NpuError(cause, text + ("" if status is None else f" (HailoRT status {status})"))


def _cause(status: int | None, library: str) -> str:
    """The cause, by the status and, where that has several, by what the machine looks like."""
    if status == 74:
        return "busy" if nodes() else "absent"
    if status == 36 and not all(os.access(node, os.R_OK | os.W_OK) for node in nodes()):
        return "forbidden"
    if status == 8 and lacks_small_pages():
        return "large pages"
    # to a binding with pybind11 before 2.12, the buffers of NumPy 2 look empty
    if (
        status == 6
        and np.lib.NumpyVersion(np.__version__) >= "2.0.0"
        and numbers(library) < NUMPY_2
    ):
        return "numpy"
    return CAUSES.get(status, "unknown")


def numbers(version: str) -> tuple[int, ...]:
    """Return the first three numbers of a version."""
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
