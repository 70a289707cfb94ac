"""What the system tells of a Hailo without HailoRT: device nodes, driver, who holds the chip.

Nothing here was ever looked at on a machine with a Hailo; paths are those of Hailo's published
driver sources (4.18 to 5.3).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "ROOMSCRIBE_HAILO_ROOT"
"""Names a folder to be looked at in place of / for nodes and modules."""
NODES = ("dev/hailo0", "dev/h1x-0")
"""Of HailoRT 4.x's driver, and of 5.x's for the Hailo-10H."""
MODULES = ("sys/module/hailo_pci", "sys/module/hailo1x_pci")
LARGE_PAGE, FORCED_PAGE = 16384, 4096
"""Bytes: the page of a Raspberry Pi 5's usual kernel, and the largest that the chip's DMA takes."""
LOG_VARIABLE, LOG_FILE, LOG_TAIL = "HAILORT_LOGGER_PATH", "hailort.log", 20_000
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that has the chip's node open."""

    pid: int
    name: str

    @property
    def alive(self) -> bool:
        """False once it has ended."""
        return (PROC / str(self.pid)).exists()

    def __str__(self) -> str:
        return "this very process" if self.pid == os.getpid() else f"{self.name} (pid {self.pid})"


def nodes() -> list[Path]:
    """The device nodes that are there; none: no chip, or no driver."""
    return [path for node in NODES if (path := _root() / node).exists()]


def driver_version() -> str | None:
    """Version of the kernel module that is loaded, like 4.23.0; None where there is none."""
    for module in MODULES:
        if text := _read(_root() / module / "version"):
            return text
    return None


def owners() -> list[Owner]:
    """Processes with a node open, as far as /proc lets this user see; this one comes last."""
    wanted = {str(node) for node in nodes()} | {str(node.resolve()) for node in nodes()}
    found = []
    for folder in PROC.iterdir() if wanted else ():
        if folder.name.isdigit() and _has_open(folder, wanted):
            found.append(Owner(int(folder.name), _read(folder / "comm") or "a process"))
    return sorted(found, key=lambda owner: owner.pid == os.getpid())


def page_size() -> int:
    """Bytes of a page of memory."""
    return os.sysconf("SC_PAGE_SIZE")


def lacks_small_pages() -> bool:
    """True where pages are too large for the chip and the driver was not told to use smaller ones;
    also where HailoRT's log, if there is one, says so."""
    forced = {_read(_root() / module / "parameters/force_desc_page_size") for module in MODULES}
    unforced = page_size() > FORCED_PAGE and str(FORCED_PAGE) not in forced
    return unforced or "max_desc_page_size" in _log()


def is_accessible(node: Path) -> bool:
    """True when this user may use a node."""
    return os.access(node, os.R_OK | os.W_OK)


def _root() -> Path:
    return Path(os.environ.get(VARIABLE, "/"))


def _has_open(process: Path, wanted: set[str]) -> bool:
    try:
        return any(str(entry.readlink()) in wanted for entry in (process / "fd").iterdir())
    except OSError:  # it has ended, or belongs to somebody else
        return False


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
