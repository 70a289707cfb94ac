"""`roomscribe doctor --report FILE`: all findings and this machine's parts, for a bug report.

Names of the machine and its users, addresses, and the texts in the private sections of the
configuration are replaced by placeholders such as <node>.
"""

import json
import os
import platform
import re
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from appliance.cli.doctor.daemon import ask_daemon, output
from appliance.config import Settings, default_path, slug
from appliance.errors import RoomscribeError
from appliance.system import machine as board, read_or_empty

PACKAGES = (
    "roomscribe", "dkms", "raspi-firmware", "python3-numpy", "python3-onnxruntime", "libportaudio2"
)  # fmt: skip
"""Beside those of a Hailo."""
OF_DAEMON = (
    "status", "reasons", "encoder", "model", "uptime_s", "transcripts", "npu_failovers",
    "latency_ms_p50", "latency_ms_p95", "npu_temperature_c", "soc_temperature_c", "throttling",
)  # fmt: skip
"""What is reported of its state and stats."""
PRIVATE = ("appliance", "capture", "mqtt", "store")
"""Sections of the configuration whose texts may identify this machine or its owner."""
HARMLESS = {"", "localhost", "127.0.0.1", "/", "~", "pi", "root", "default"}
ADDRESSES = (
    (r"\b(?!127\.)\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b", "<address>"),
    (r"\b(?:[0-9A-Fa-f]{2}[:_-]){5}[0-9A-Fa-f]{2}\b", "<hardware address>"),
    (r"\b(?:[0-9A-Fa-f]{1,4}:){3,7}:?[0-9A-Fa-f]{0,4}\b|\bfe80:[0-9A-Fa-f:]+", "<address>"),
    (r"/(home|Users)/[^/\s'\"]+", r"/\1/<user>"),
)


def write_report(
    file: Path, findings: dict[str, Any], configuration: Path | None, settings: Settings
) -> None:
    """Write the doctor's findings (`as_json`), and what the running daemon has counted, without
    names. Raises OSError."""
    answer = ask_daemon(settings, "state") | ask_daemon(settings, "stats")
    running = {name: answer[name] for name in OF_DAEMON if name in answer}
    findings = {"machine": machine(settings), "daemon": running} | findings
    found = redact(findings, private_texts(configuration))
    file.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")


def machine(settings: Settings) -> dict[str, Any]:
    """Return the hardware's model and the versions of the software, without names."""
    from appliance.infer import diagnosis

    of_hailo = [name for one in diagnosis.GENERATIONS for name in one.packages]
    memory = re.search(r"MemTotal:\s+(\d+) kB", read_or_empty(Path("/proc/meminfo")))
    processor = re.search(
        r"^model name\s*:\s*(.+)$", read_or_empty(Path("/proc/cpuinfo")), re.MULTILINE
    )
    system = re.search(
        r'^PRETTY_NAME="?([^"\n]+)', read_or_empty(Path("/etc/os-release")), re.MULTILINE
    )
    return {
        "model": board() or "unknown",
        "processor": processor[1] if processor else platform.machine(),
        "cores": os.cpu_count(),
        "memory_mb": int(memory[1]) // 1024 if memory else None,
        "page_bytes": os.sysconf("SC_PAGE_SIZE"),
        "system": system[1] if system else "unknown",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": _package_versions((*PACKAGES, *of_hailo)),
        "hailo": _hailo(settings),
    }


def _hailo(settings: Settings) -> dict[str, Any]:
    """Return what the kernel knows of a Hailo: chips, links, nodes, drivers and its log; and the
    model's HEF."""
    from appliance.infer import diagnosis
    from appliance.model import HEF_FILE, MANIFEST, find_bundle

    hef = None
    with suppress(OSError, ValueError, RoomscribeError):
        manifest = find_bundle(settings.model.bundle) / MANIFEST
        hef = json.loads(manifest.read_text(encoding="utf-8"))["files"].get(HEF_FILE)
    log = output("journalctl", "--dmesg", "--output=cat", "--grep=hailo", "--lines=30", within_s=20)
    return diagnosis.system_facts() | {
        "hef": hef,
        "dkms": output("/usr/sbin/dkms", "status", within_s=20).splitlines(),
        "kernel_log": log.splitlines(),
    }


def _package_versions(names: Sequence[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    form = "${Package} ${Version} ${db:Status-Abbrev}\n"
    known = (output("dpkg-query", "-W", "-f", form, name) for name in names)
    lines = (line.split() for line in known)
    return {words[0]: words[1] for words in lines if len(words) == 3 and words[2] == "ii"}


def private_texts(configuration: Path | None) -> dict[str, str]:
    """Return texts that must not be in the report, with their placeholders."""
    host = platform.node()
    short = host.split(".")[0]
    found = {host: "<host>", short: "<host>", slug(short): "<node>", str(Path.home()): "~"}
    found[os.environ.get("SUDO_USER", "")] = "<user>"
    if os.geteuid():
        found[os.environ.get("USER", "")] = "<user>"
    if configuration:
        found[str(configuration)] = "<configuration>"
    try:  # even with mistakes, as long as it is TOML
        written = tomllib.loads(read_or_empty(configuration or default_path()))
    except ValueError:
        written = {}
    for section, values in written.items():
        for key, value in values.items() if isinstance(values, dict) else ():
            folder = f"{section}.{key}" == "model.bundle" and "/" in str(value)
            if isinstance(value, str) and (section in PRIVATE or folder):
                found[value] = f"<{section}.{key}>"
    return {text: placeholder for text, placeholder in found.items() if text not in HARMLESS}


def redact(value: Any, hidden: dict[str, str]) -> Any:
    """Return `value` with all `hidden` texts and addresses replaced, the longest first."""
    if isinstance(value, dict):
        return {key: redact(part, hidden) for key, part in value.items()}
    if isinstance(value, list):
        return [redact(part, hidden) for part in value]
    if not isinstance(value, str):
        return value
    for secret in sorted(hidden, key=len, reverse=True):
        pattern = rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])"
        value = re.sub(pattern, hidden[secret].replace("\\", r"\\"), value)
    for pattern, placeholder in ADDRESSES:
        value = re.sub(pattern, placeholder, value)
    return value
