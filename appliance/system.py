"""What outlasts a power cut."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Makes what was made, renamed and deleted in `folder` outlast a power cut. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


MODEL = "proc/device-tree/model"
THROTTLED = "sys/devices/platform/soc*/*firmware/get_throttled"
GROWTH_MB = 400.0
"""More than a full spool's bookkeeping, sixty windows in memory and the publisher's queue take."""
NOW = {0: "low voltage", 1: "capped clock", 2: "throttled", 3: "near its temperature limit"}
"""Bits of get_throttled (Raspberry Pi documentation, vcgencmd)."""


def machine(root: Path = Path("/")) -> str:
    """`Raspberry Pi 5 Model B Rev 1.0`; empty where nothing says so."""
    return _text(root / MODEL).strip("\0 \n")[:64]


def soc_temperature_c(root: Path = Path("/")) -> float | None:
    """The processor's temperature."""
    text = _text(root / "sys/class/thermal/thermal_zone0/temp").strip()
    return int(text) / 1000 if re.fullmatch(r"-?\d{1,7}", text) else None


def throttling(root: Path = Path("/")) -> tuple[str, ...] | None:
    """What a Raspberry Pi suffers from now; empty for nothing."""
    text = next((_text(file).strip() for file in root.glob(THROTTLED)), "")
    if not re.fullmatch(r"(0x)?[0-9a-fA-F]{1,8}", text):
        return None
    bits = int(text, 16)
    return tuple(name for bit, name in NOW.items() if bits >> bit & 1)


def resident_mb(root: Path = Path("/")) -> float:
    """The memory that this process has, in megabytes (2**20); 0 where the kernel does not say."""
    pages = _text(root / "proc/self/statm").split()
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20) if len(pages) > 1 else 0.0


def memory_ceiling_mb(configured_mb: int, root: Path = Path("/")) -> float:
    """How much memory the appliance may have, decided once it is ready; beyond it something leaks.

    `configured_mb`, where it is not 0; else GROWTH_MB more than it has now, and less than nine
    tenths of what systemd allows (MemoryHigh=), where the kernel would begin to slow it down: but
    always a quarter of that growth, so that a small machine does not restart for ever.
    """
    if configured_mb:
        return float(configured_mb)
    now_mb = resident_mb(root)
    ceiling_mb = min(now_mb + GROWTH_MB, 0.9 * _allowed_mb(root))
    return max(ceiling_mb, now_mb + GROWTH_MB / 4)


def _allowed_mb(root: Path) -> float:
    """MemoryHigh= of the unit, in megabytes; infinite without one."""
    group = re.search(r"^0::/(.*)$", _text(root / "proc/self/cgroup"), re.MULTILINE)
    if group:
        limit = _text(root / "sys/fs/cgroup" / group[1] / "memory.high").strip()
        if limit.isdigit():
            return int(limit) / (1 << 20)
    return math.inf


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
