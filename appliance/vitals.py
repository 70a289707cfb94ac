"""What the machine says of itself: its name, its processor's temperature, what slows it down.

Read from files alone, in less than a millisecond; what a machine does not say is None.
"""

from __future__ import annotations

import re
from pathlib import Path

from appliance.health import Health
from appliance.publish.events import ApplianceStats

MODEL = "proc/device-tree/model"
THROTTLED = "sys/devices/platform/soc*/*firmware/get_throttled"
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


def stats(health: Health, npu_temperature_c: float | None) -> ApplianceStats:
    """Counters and readings of this moment."""
    return ApplianceStats(
        counters=health.counters(),
        uptime_s=health.uptime_s,
        npu_temperature_c=npu_temperature_c,
        soc_temperature_c=soc_temperature_c(),
        throttling=throttling(),
    )


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
