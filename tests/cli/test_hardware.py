"""`roomscribe hardware-check`: one report, and nothing in it of whose machine it is."""

from __future__ import annotations

import functools
import json
import platform
import re
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from rigs.checkout import SPEECH
from rigs.command import errors, roomscribe
from rigs.daemon import write_config
from rigs.hailo_simulator.control import Simulator

from appliance.cli import hardware, main
from appliance.cli.doctor.model import TEXT
from appliance.lab.benchmark.rows import KEYS
from appliance.lab.recordings import listed_texts
from appliance.model.bundle import Bundle

DOCTOR = """#!/bin/sh
case "$1" in
doctor) exec {python} -m appliance doctor {arguments} ;;
*) echo "roomscribe: no benchmark for $USER at 192.168.7.41" >&2; exit 2 ;;
esac
"""


def report(tmp_path: Path, command: str, config: Path, *more: str) -> dict[str, Any]:
    arguments = ["hardware-check", "--config", str(config), "--out", str(tmp_path / "report.json")]
    check = functools.partial(hardware.hardware_check, command=[command])
    assert main.main([*arguments, *more], check) == 0
    assert sorted(file.name for file in tmp_path.glob("*report*")) == ["report.json"]
    read: dict[str, Any] = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    return read


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration full of things that are nobody's business."""
    (tmp_path / "secret-password").write_text("correct horse\n", encoding="utf-8")
    written = write_config(
        tmp_path,
        9,
        appliance={"node": "ednas_kitchen"},
        mqtt={
            "host": "127.0.0.9",
            "username": "edna",
            "password_file": tmp_path / "secret-password",
        },
        capture={"device": "Ednas Headset"},
        store={"path": tmp_path / "ednas-log"},
    )
    return written.rename(tmp_path / "aunt-ednas-house.toml")


def test_the_report_tells_what_was_found_and_not_whose_it_is(tmp_path: Path, config: Path) -> None:
    script = tmp_path / "roomscribe"
    python = sys.executable
    arguments = f"--json --config '{config}'"
    script.write_text(DOCTOR.format(python=python, arguments=arguments), encoding="utf-8")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    found = report(tmp_path, str(script), config)
    checks = {one["name"]: one for one in found["doctor"]["checks"]}
    assert checks["broker"]["found"].startswith("broker <mqtt.host>:9 does not answer")
    assert checks["microphone"]["found"].startswith("no microphone found ('<capture.device>')")
    assert checks["self-test on the CPU"]["status"] == "ok"
    assert found["benchmark"]["status"] == 2
    assert "at <address>" in found["benchmark"]["errors"][0]
    assert found["machine"]["cores"] >= 1
    assert [one["when"] for one in found["heat"]] == [
        "at the start",
        "after the doctor",
        "after the benchmark",
    ]
    everything = json.dumps(found)
    for word in ("dna", "correct horse", str(tmp_path), "127.0.0.9", "192.168."):
        assert word not in everything


def test_it_runs_its_own_doctor_and_prints_what_failed(tmp_path: Path, config: Path) -> None:
    out = tmp_path / "report.json"
    done = roomscribe("hardware-check", "--no-benchmark", "--config", config, "--out", out)
    assert done.returncode == 0, done.stderr
    checks = json.loads(out.read_text(encoding="utf-8"))["doctor"]["checks"]
    assert {one["name"]: one["status"] for one in checks}["self-test on the CPU"] == "ok"
    assert "failed: broker: " in done.stderr
    assert "NPU and CPU     not compared: this machine has no Hailo" in done.stdout


def test_with_a_hailo_the_report_compares_npu_and_cpu(tmp_path: Path, hef_bundle: Bundle) -> None:
    simulator = Simulator(tmp_path / "machine")
    simulator.plug(latency_ms=1)
    config = write_config(tmp_path, 9, model={"bundle": hef_bundle.folder})
    talk = tmp_path / "talk"
    talk.mkdir()
    for name in ("03.flac", "08.flac", "transcripts.tsv"):
        shutil.copy(SPEECH / name, talk)
    out = tmp_path / "report.json"
    done = roomscribe(
        "hardware-check", "--no-benchmark", "--config", config, "--out", out,
        "--recordings", talk, environment=simulator.environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    read = json.loads(out.read_text(encoding="utf-8"))
    summary = "\n".join(read["summary"])
    assert done.stdout.splitlines() == read["summary"]
    for expected in (
        r"^HailoRT +Python binding 4.23.0, driver 4.23.0$",
        r"^product +HAILO8 AI ACC M.2 M KEY MODULE$",
        r"^NPU and CPU +2 sentences with model small: cosine 1.0000 .*2 texts equal, 0 empty",
        r"^word errors +NPU [\d.]+%, CPU [\d.]+%$",
        r"^latency +mel p50 [\d.]+ ms, .*encoder on the NPU p50 ",
        r"^chip +51.5 C, then 51.5 C; zone 0; throttled False$",
        r"^memory +\d+ MB at most$",
    ):
        assert re.search(expected, summary, re.MULTILINE), (expected, summary)
    for spoken in listed_texts(talk).values():  # type: ignore[union-attr]
        assert spoken == TEXT or spoken not in out.read_text(encoding="utf-8")
    assert "HLDDLBB" not in out.read_text(encoding="utf-8")


def test_an_output_that_cannot_be_written_fails_before_anything_is_measured(
    tmp_path: Path, config: Path
) -> None:
    out = tmp_path / "nowhere" / "report.json"
    done = roomscribe("hardware-check", "--config", config, "--out", out, timeout_s=10)
    assert (done.returncode, len(errors(done))) == (78, 1), done.stderr
    assert str(out) in errors(done)[0]


def test_a_command_that_is_not_there_is_in_the_report(tmp_path: Path, config: Path) -> None:
    found = report(tmp_path, "/nowhere/roomscribe", config, "--no-benchmark")
    assert "FileNotFoundError" in found["doctor"]["errors"][0]
    assert "benchmark" not in found


def test_names_addresses_and_homes_are_replaced() -> None:
    hidden = {"oak": "<host>", "oak.lan": "<host>", "/srv/oak": "<store.path>"}
    assert hardware.redact(
        {"a": ["oak and oak.lan, soak", 5, None], "b": "/srv/oak/x of /home/tom/y"}, hidden
    ) == {"a": ["<host> and <host>, soak", 5, None], "b": "<store.path>/x of /home/<user>/y"}
    for address in (
        "10.0.0.7",
        "fe80::1c2b:3a4d",
        "2001:db8:0:1:2:3:4:5",
        "d8:3a:dd:01:02:03",
        "D8_3A_DD_01_02_03",
    ):
        assert "address>" in hardware.redact(f"at {address} now", {})
    for harmless in ("HailoRT 4.23.0", "12:30:05", "127.0.0.1:1883", "0001:01:00.0", "(hw:1,0)"):
        assert hardware.redact(harmless, {}) == harmless


def test_the_names_of_this_machine_are_among_the_hidden(config: Path) -> None:
    hidden = hardware.private_texts(config)
    if platform.node() not in ("", "localhost", "pi", "default", "root"):
        assert platform.node() in hidden
    assert hidden["ednas_kitchen"] == "<appliance.node>"
    assert hidden["edna"] == "<mqtt.username>"
    assert "localhost" not in hidden


def test_the_benchmark_knows_the_requested_rows() -> None:
    assert set(hardware.ROWS.split(",")) <= set(KEYS)
