"""`roomscribe hardware-check`: write a report on this machine, for a bug report."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from appliance.config import DEFAULT_PATH, Settings
from appliance.errors import ConfigError
from appliance.system import writing

SCHEMA = 2
BEGUN_S = time.monotonic()
PACKAGES = (
    "roomscribe", "hailo-all", "hailo-h10-all", "hailort", "hailo-dkms", "python3-hailort",
    "python3-numpy", "python3-onnxruntime", "libportaudio2",
)  # fmt: skip
HAILO = "0x1e60"
CPUFREQ = "/sys/devices/system/cpu/cpu0/cpufreq"
ROWS = "cpu,hybrid,npu"
DOCTOR_WITHIN_S, BENCHMARK_WITHIN_S = 1500, 2400
PRIVATE = ("appliance", "capture", "mqtt", "store")
"""Sections of the configuration whose texts may identify this machine or its owner."""
ADDRESSES = (
    (r"\b(?!127\.)\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b", "<address>"),
    (r"\b(?:[0-9A-Fa-f]{2}[:_-]){5}[0-9A-Fa-f]{2}\b", "<hardware address>"),
    (r"\b(?:[0-9A-Fa-f]{1,4}:){3,7}:?[0-9A-Fa-f]{0,4}\b|\bfe80:[0-9A-Fa-f:]+", "<address>"),
    (r"/(home|Users)/[^/\s'\"]+", r"/\1/<user>"),
)


def add_hardware_check(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `roomscribe hardware-check` to the command line."""
    sub = add(
        "hardware-check",
        help="write a report on this machine, for a bug report",
        description="Runs `roomscribe doctor`, which sends 40 sentences of synthetic voices "
        "through the encoders of NPU and CPU, and `roomscribe benchmark` with the model in use. "
        "Prints a summary, and writes it with all results into a JSON file: "
        "hardware, versions and measurements. It contains no audio, transcripts or passwords; "
        "addresses and names are replaced by placeholders such as <node>. Check the file before "
        "you share it. First stop the service (sudo systemctl stop roomscribe) and other programs. "
        "It takes about ten minutes on a Raspberry Pi 5. Without a Hailo it measures the CPU only. "
        "The exit status is 0 if the report was written.",
    )
    sub.add_argument(
        "--out",
        type=Path,
        default=Path("roomscribe-hardware.json"),
        metavar="FILE",
        help="file for the report (default: roomscribe-hardware.json)",
    )
    sub.add_argument(
        "--recordings",
        type=Path,
        metavar="FOLDER",
        help="folder of sound files for the comparison of NPU and CPU, with a transcripts.tsv if "
        "possible (default: sentences that come with the package)",
    )
    sub.add_argument("--no-benchmark", action="store_true", help="run only the doctor")
    sub.set_defaults(command=hardware_check, lenient=True)


def hardware_check(
    options: argparse.Namespace, _settings: Settings, command: Sequence[str] = ()
) -> int:
    """Run `roomscribe hardware-check`; `command` replaces this program."""
    command = command or [sys.executable, *sys.orig_argv[1 : sys.orig_argv.index("hardware-check")]]
    try:
        with writing(options.out) as file:
            found = make_report(command, options)
            hidden = redact(found, private_texts(options.config))
            hidden = {"summary": summarize(hidden)} | hidden
            file.write_text(json.dumps(hidden, indent=1, ensure_ascii=False) + "\n", "utf-8")
    except OSError as error:
        raise ConfigError(
            f"{options.out} cannot be written: {error.strerror}. Choose another file with --out."
        ) from error
    for check in found["doctor"].get("checks", []):
        if check["status"] == "failed":
            print_progress(f"failed: {check['name']}: {check['found']}")
    print("\n".join(hidden["summary"]))
    print_progress(f"Wrote {options.out}. Check it before you share it.")
    return 0


def make_report(command: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """Return the results of doctor and benchmark, still with names and addresses."""
    from appliance.lab import SHIPPED

    found: dict[str, Any] = {"schema": SCHEMA, "day": f"{datetime.now(UTC):%Y-%m-%d}"}
    found["machine"] = describe_machine()
    print_progress("running roomscribe doctor")
    found["heat"] = [read_heat("at the start")]
    speech = options.recordings or (SHIPPED if SHIPPED.is_dir() else None)
    found["doctor"] = run_doctor(command, options.config, speech)
    found["heat"].append(read_heat("after the doctor"))
    if not options.no_benchmark:
        print_progress("running roomscribe benchmark")
        found["benchmark"] = run_benchmark(command, options.config)
        found["heat"].append(read_heat("after the benchmark"))
    return found


def summarize(report: dict[str, Any]) -> list[str]:
    """Return the report's main points as lines that a person can read."""
    machine, heat = report["machine"], report["heat"]
    checks = {check["name"]: check for check in report["doctor"].get("checks", [])}
    compared = [check["figures"] for check in checks.values() if check.get("figures")]
    driver = machine["hailo_driver"] or "none"
    rows = [
        ("board", f"{machine['model']}, {machine['processor']}, {machine['cores']} cores, "
                  f"{machine['memory_mb']} MB, pages of {machine['page_bytes']} bytes"),
        ("software", f"{machine['system']}, kernel {machine['kernel']}, "
                     f"Python {machine['python']}, Hailo driver {driver}"),
    ]  # fmt: skip
    for name in ("device", "HailoRT", "chip", "HEF"):
        if name in checks:
            rows.append((name, _line(checks[name])))
            if name == "device" and checks[name]["status"] == "skipped":
                break
    if compared:
        rows += _compared_rows(max(compared, key=lambda figures: int(figures["windows"])))
    elif checks:
        reason = checks.get("self-test on the NPU", {}).get("found", "not tested")
        rows.append(("NPU and CPU", f"not compared: {reason}"))
    first, last = heat[0], heat[-1]
    rows.append(("heat", f"processor {first['soc_c']} C, then {last['soc_c']} C; "
                         f"throttled {last['throttled'] or 'unknown'}"))  # fmt: skip
    bad = [name for name, check in checks.items() if check["status"] == "failed"]
    rows.append(("failed checks", ", ".join(bad) or ("none" if checks else "the doctor failed")))
    return [f"{name:16}{text}" for name, text in rows]


def _line(check: dict[str, Any]) -> str:
    return str(check["found"]) if check["status"] != "failed" else f"FAILED: {check['found']}"


def _compared_rows(figures: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of a comparison of NPU and CPU (`doctor/comparison.py`)."""
    stages = (("mel", "mel_ms"), ("encoder on the NPU", "npu_ms"), ("on the CPU", "cpu_ms"),
              ("decoder", "npu_decode_ms"))  # fmt: skip
    before, after = figures["chip_before"], figures["chip_after"]
    return [
        ("product", figures["product"] or "unknown"),
        ("NPU and CPU", f"{figures['windows']} sentences with model {figures['model']}: cosine "
                        f"{figures['cosine_mean']:.4f} (least {figures['cosine_min']:.4f}), "
                        f"{figures['texts_equal']} texts equal, {figures['texts_empty_on_npu']} "
                        "empty with the NPU only"),
        ("word errors", ", ".join(f"{name} {figures[key]:.1%}" for name, key in
                                  (("NPU", "word_npu_errors"), ("CPU", "word_cpu_errors"))
                                  if key in figures) or "unknown: no texts"),
        ("latency", "; ".join(f"{name} p50 {figures[key]['p50']} ms, p95 {figures[key]['p95']} ms"
                              for name, key in stages)),
        ("chip", f"{before['temperature_c']} C, then {after['temperature_c']} C; "
                 f"zone {after['zone']}; throttled {after['throttled']}"),
        ("memory", f"{figures['memory_mb']} MB at most"),
    ]  # fmt: skip


def run_doctor(
    command: Sequence[str], config: Path | None, recordings: Path | None
) -> dict[str, Any]:
    """Return the doctor's JSON, or the reason why there is none."""
    arguments = [*command, "doctor", "--json"]
    if config:
        arguments += ["--config", str(config)]
    if recordings:
        arguments += ["--recordings", str(recordings)]
    done = run_command(arguments, DOCTOR_WITHIN_S)
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return failure(done)
    return found


def run_benchmark(command: Sequence[str], config: Path | None) -> dict[str, Any]:
    """Return the benchmark's JSON, or the reason why there is none."""
    with tempfile.TemporaryDirectory(prefix="roomscribe-hardware.") as scratch:
        file = Path(scratch) / "benchmark.json"
        arguments = [*command, "benchmark", "--rows", ROWS, "--json", str(file)]
        if config:
            arguments += ["--config", str(config)]
        done = run_command(arguments, BENCHMARK_WITHIN_S)
        try:
            found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return failure(done)
    return found


def failure(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return status and errors of a command without JSON."""
    return {"status": done.returncode, "errors": done.stderr.splitlines()[-10:]}


def describe_machine() -> dict[str, Any]:
    """Return the hardware's model and the versions of the software, without names."""
    memory = re.search(r"MemTotal:\s+(\d+) kB", read_text("/proc/meminfo"))
    processor = re.search(r"^model name\s*:\s*(.+)$", read_text("/proc/cpuinfo"), re.MULTILINE)
    system = re.search(r'^PRETTY_NAME="?([^"\n]+)', read_text("/etc/os-release"), re.MULTILINE)
    return {
        "model": read_text("/proc/device-tree/model").strip("\0\n ") or "unknown",
        "processor": processor[1] if processor else platform.machine(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "memory_mb": int(memory[1]) // 1024 if memory else None,
        "page_bytes": os.sysconf("SC_PAGE_SIZE"),
        "governor": read_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip()
        or None,
        "system": system[1] if system else "unknown",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "hailo_driver": read_text("/sys/module/hailo_pci/version").strip()
        or read_text("/sys/module/hailo1x_pci/version").strip()
        or None,
        "hailo_links": list(hailo_links()),
        "packages": package_versions(),
        "daemon_runs": daemon_is_active(),
    }


def hailo_links() -> Iterator[dict[str, str]]:
    """Yield kind and link speed of each Hailo on the PCI bus."""
    for vendor in sorted(Path("/sys/bus/pci/devices").glob("*/vendor")):
        if read_text(vendor).strip() == HAILO:
            names = ("device", "current_link_speed", "current_link_width", "max_link_speed")
            yield {name: read_text(vendor.with_name(name)).strip() for name in names}


def package_versions() -> dict[str, str]:
    """Return the versions of the installed packages in PACKAGES."""
    if not shutil.which("dpkg-query"):
        return {}
    done = run_command(
        ["dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Abbrev}\n", *PACKAGES], 30
    )
    lines = (line.split() for line in done.stdout.splitlines())
    return {words[0]: words[1] for words in lines if len(words) == 3 and words[2] == "ii"}


def daemon_is_active() -> bool | None:
    """Return True if the service is active, which disturbs the figures; None if unknown."""
    if not shutil.which("systemctl"):
        return None
    return run_command(["systemctl", "is-active", "roomscribe"], 10).stdout.strip() == "active"


def read_heat(when: str) -> dict[str, Any]:
    """Return temperature, clock and throttling now."""
    zone = read_text("/sys/class/thermal/thermal_zone0/temp").strip()
    clock = read_text(f"{CPUFREQ}/scaling_cur_freq").strip()
    firmware = next(iter(Path("/sys/devices/platform").glob("soc*/*firmware/get_throttled")), None)
    return {
        "when": when,
        "seconds": round(time.monotonic() - BEGUN_S),
        "soc_c": int(zone) / 1000 if zone.lstrip("-").isdigit() else None,
        "clock_mhz": int(clock) // 1000 if clock.isdigit() else None,
        "throttled": read_text(firmware).strip() if firmware else None,
    }


def run_command(arguments: list[str], within_s: float) -> subprocess.CompletedProcess[str]:
    """Run a command and return its output; if it cannot run, stderr has the reason."""
    try:
        return subprocess.run(
            arguments, capture_output=True, text=True, errors="replace", timeout=within_s,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(arguments, -1, "", f"{type(error).__name__}: {error}")


def read_text(file: str | Path) -> str:
    """Return a small file's text; empty if it cannot be read."""
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def private_texts(config: Path | None) -> dict[str, str]:
    """Return texts that must not be in the report, with their placeholders: names of this machine
    and its users, and all texts in the private sections of the configuration."""
    name = platform.node()
    slug = re.sub(r"[^a-z0-9]+", "_", name.split(".")[0].lower()).strip("_")
    found = {name: "<host>", name.split(".")[0]: "<host>", slug: "<node>"}
    found |= {str(Path.home()): "~", os.environ.get("SUDO_USER", ""): "<user>"}
    if os.geteuid():
        found[os.environ.get("USER", "")] = "<user>"
    if config:
        found[str(config)] = "<configuration>"
    for section, values in read_config(config or DEFAULT_PATH).items():
        if section in PRIVATE and isinstance(values, dict):
            for key, value in values.items():
                if isinstance(value, str):
                    found[value] = f"<{section}.{key}>"
    model = read_config(config or DEFAULT_PATH).get("model", {})
    if isinstance(model, dict) and "/" in str(model.get("bundle", "")):
        found[model["bundle"]] = "<model.bundle>"
    harmless = {"", "localhost", "127.0.0.1", "/", "~", "pi", "root", "default"}
    return {value: stand_in for value, stand_in in found.items() if value not in harmless}


def read_config(file: Path) -> dict[str, Any]:
    """Return the configuration as written; empty if it is not TOML."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


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
    for pattern, stand_in in ADDRESSES:
        value = re.sub(pattern, stand_in, value)
    return value


def print_progress(line: str) -> None:
    """Print a line of progress."""
    print(f"roomscribe: {line}", file=sys.stderr, flush=True)
