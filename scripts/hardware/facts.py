"""Of scripts/hardware-check: the hardware's model, versions, and how hot it is."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BEGUN_S = time.monotonic()
PACKAGES = (
    "roomscribe", "hailo-all", "hailo-h10-all", "hailort", "hailo-dkms", "python3-hailort",
    "python3-numpy", "python3-onnxruntime", "libportaudio2",
)  # fmt: skip
HAILO = "0x1e60"


def machine() -> dict[str, Any]:
    """The hardware's model and the versions of what runs on it; nothing of whose it is."""
    memory = re.search(r"MemTotal:\s+(\d+) kB", text("/proc/meminfo"))
    processor = re.search(r"^model name\s*:\s*(.+)$", text("/proc/cpuinfo"), re.MULTILINE)
    system = re.search(r'^PRETTY_NAME="?([^"\n]+)', text("/etc/os-release"), re.MULTILINE)
    return {
        "model": text("/proc/device-tree/model").strip("\0\n ") or "unknown",
        "processor": processor[1] if processor else platform.machine(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "memory_mb": int(memory[1]) // 1024 if memory else None,
        "page_bytes": os.sysconf("SC_PAGE_SIZE"),
        "governor": text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip() or None,
        "system": system[1] if system else "unknown",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "hailo_driver": text("/sys/module/hailo_pci/version").strip()
        or text("/sys/module/hailo1x_pci/version").strip()
        or None,
        "hailo_links": list(hailo_links()),
        "packages": packages(),
        "daemon_runs": daemon_runs(),
    }


def hailo_links() -> Iterator[dict[str, str]]:
    """Each Hailo on the PCI bus: its kind, and how fast it is connected."""
    for vendor in sorted(Path("/sys/bus/pci/devices").glob("*/vendor")):
        if text(vendor).strip() == HAILO:
            names = ("device", "current_link_speed", "current_link_width", "max_link_speed")
            yield {name: text(vendor.with_name(name)).strip() for name in names}


def packages() -> dict[str, str]:
    """Versions of the Debian packages that matter, as far as they are installed."""
    if not shutil.which("dpkg-query"):
        return {}
    done = ask(
        ["dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Abbrev}\n", *PACKAGES], 30
    )
    lines = (line.split() for line in done.stdout.splitlines())
    return {words[0]: words[1] for words in lines if len(words) == 3 and words[2] == "ii"}


def daemon_runs() -> bool | None:
    """True when the service is active: it disturbs the figures; None where nobody can tell."""
    if not shutil.which("systemctl"):
        return None
    return ask(["systemctl", "is-active", "roomscribe"], 10).stdout.strip() == "active"


def heat(when: str) -> dict[str, Any]:
    """Temperature, clock and throttling now."""
    zone = text("/sys/class/thermal/thermal_zone0/temp").strip()
    clock = text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq").strip()
    firmware = next(iter(Path("/sys/devices/platform").glob("soc*/*firmware/get_throttled")), None)
    return {
        "when": when,
        "seconds": round(time.monotonic() - BEGUN_S),
        "soc_c": int(zone) / 1000 if zone.lstrip("-").isdigit() else None,
        "clock_mhz": int(clock) // 1000 if clock.isdigit() else None,
        "throttled": text(firmware).strip() if firmware else None,
    }


def ask(arguments: list[str], within_s: float) -> subprocess.CompletedProcess[str]:
    """A command's output; what went wrong is in its standard error."""
    try:
        return subprocess.run(
            arguments, capture_output=True, text=True, errors="replace", timeout=within_s,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(arguments, -1, "", f"{type(error).__name__}: {error}")


def text(file: str | Path) -> str:
    """A small file's text; empty when it cannot be read."""
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
