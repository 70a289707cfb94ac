"""Resident memory of this process (Linux: /proc/self/status, /proc/self/clear_refs)."""

from __future__ import annotations

import re
from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""proc(5): written to clear_refs, it sets the peak back to the present size."""


def resident_mb() -> float:
    """Present size, MB."""
    return _kilobytes("VmRSS") * 1024 / 1e6


def peak_mb() -> float:
    """Largest size so far, MB."""
    return _kilobytes("VmHWM") * 1024 / 1e6


def reset_peak() -> bool:
    """Forgets the peak so far; False where the kernel does not let a process do so."""
    try:
        CLEAR.write_text(RESET_PEAK, encoding="ascii")
    except OSError:
        return False
    return True


def _kilobytes(key: str) -> int:
    found = re.search(rf"^{key}:\s+(\d+) kB$", STATUS.read_text(encoding="ascii"), re.MULTILINE)
    return int(found[1]) if found else 0
