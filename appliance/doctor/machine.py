"""The machine: memory, clock, and what a Raspberry Pi says of its power and heat."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess

from appliance.doctor.outcome import Outcome, Surroundings, failed, ok, skipped
from appliance.system import THROTTLED, soc_temperature_c

LEAST_MB = 150
"""Available memory below which the kernel soon ends something; the largest thing that is loaded,
whisper-base, takes some 300 MB, and the daemon, where it runs, has its own already."""
UNSYNCHRONISED_US = 16_000_000
"""adjtimex(2): the kernel's largest possible error, which it shows for a clock that nobody sets;
systemd's timedatectl takes it for the limit, too."""
NOW = {
    0: "the voltage is too low",
    1: "the clock is capped",
    2: "it is throttled",
    3: "it is near its temperature limit",
}
"""Bits of get_throttled (Raspberry Pi documentation, vcgencmd); 16 bits higher: since the start."""
SINCE_START = 16
VOLTAGE = 0


def memory(around: Surroundings) -> Outcome:
    """There is memory left."""
    text = (around.root / "proc/meminfo").read_text(encoding="ascii", errors="replace")
    found = {
        key: int(kilobytes) / 1024 for key, kilobytes in re.findall(r"(\w+):\s+(\d+) kB", text)
    }
    available, total = found["MemAvailable"], found["MemTotal"]
    line = f"{available:.0f} of {total:.0f} MB available"
    if pages_kb() != 4:
        line += f", pages of {pages_kb()} kB"
    if available < LEAST_MB:
        cure = "end what takes it (`ps -eo rss,comm --sort=-rss | head`), or take a smaller model"
        return failed(f"{line}; wanted are {LEAST_MB}", cure)
    return ok(line)


def pages_kb() -> int:
    """Size of the kernel's pages."""
    return os.sysconf("SC_PAGE_SIZE") // 1024


class _Timex(ctypes.Structure):
    """The start of struct timex (adjtimex(2)), with room for the rest of it."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("rest", ctypes.c_char * 256),
    )


def clock(around: Surroundings) -> Outcome:
    """Somebody keeps the clock right."""
    timesyncd = (around.root / "run/systemd/timesync/synchronized").exists()
    return judge_clock(kernel_clock_error_us(), timesyncd=timesyncd)


def kernel_clock_error_us() -> int | None:
    """How wrong the clock may be at most, as the kernel knows it; None when it does not say."""
    libc = ctypes.CDLL(None, use_errno=True)
    now = _Timex()
    return None if libc.adjtimex(ctypes.byref(now)) < 0 else int(now.maxerror)


def judge_clock(error_us: int | None, *, timesyncd: bool) -> Outcome:
    """The outcome for the kernel's largest error and for systemd-timesyncd's word."""
    if error_us is not None and error_us < UNSYNCHRONISED_US:
        return ok(f"synchronised, wrong by {error_us / 1e6:.2g} s at most")
    if timesyncd:
        return ok("synchronised once since the start")
    if error_us is None:
        return skipped("the kernel does not say")
    return failed(
        "nobody sets it: the times of transcripts may be wrong",
        "see `timedatectl`; `timedatectl set-ntp true` with systemd-timesyncd or chrony installed, "
        "and a way to a time server",
    )


def pi_power(around: Surroundings) -> Outcome:
    """The Raspberry Pi has enough voltage and is not throttled."""
    bits = throttled_bits(around)
    if bits is None:
        return skipped("not a Raspberry Pi (its firmware is not here)")
    outcome = judge_throttled(bits)
    temperature = soc_temperature_c(around.root)
    if temperature is None:
        return outcome
    found = f"{outcome.found}; {temperature:.0f} C"
    return Outcome(outcome.status, found, outcome.cure)


def throttled_bits(around: Surroundings) -> int | None:
    """The firmware's get_throttled: from its file, else from vcgencmd; None without either."""
    told = next((file.read_text(encoding="ascii") for file in around.root.glob(THROTTLED)), "")
    if not told and shutil.which("vcgencmd"):
        around.doing("asking vcgencmd")
        told = subprocess.run(
            ["vcgencmd", "get_throttled"], capture_output=True, text=True, check=False
        ).stdout
    found = re.fullmatch(r"(?:throttled=)?(?:0x)?([0-9a-fA-F]+)", told.strip())
    return int(found[1], 16) if found else None


def judge_throttled(bits: int) -> Outcome:
    """The outcome for the firmware's get_throttled."""
    now = {bit for bit in NOW if bits >> bit & 1}
    before = {bit for bit in NOW if bits >> (bit + SINCE_START) & 1} - now
    parts = [", ".join(NOW[bit] for bit in sorted(now))] if now else []
    if before:
        parts.append("earlier since the start: " + ", ".join(NOW[bit] for bit in sorted(before)))
    if not now and VOLTAGE not in before:
        return ok("; ".join(["voltage and clock are right", *parts]))
    if VOLTAGE in now | before:
        cure = (
            "take the official power supply (27 W for a Pi 5) and a short cable, fewer USB devices"
        )
    else:
        cure = "cool it: a fan or the Active Cooler, and air around the case"
    return failed("; ".join(parts), cure)
