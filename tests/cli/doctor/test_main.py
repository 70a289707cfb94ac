"""`roomscribe doctor` as its user sees it: the page, the JSON, the exit status; beside a daemon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import soundfile
from rigs.broker import Broker, missing
from rigs.checkout import ROOT
from rigs.daemon import daemon, log_of, write_config
from rigs.hailo_simulator.control import Simulator, with_hef
from rigs.microphone import SINK, PulseMicrophone, missing_packages
from rigs.mqtt_client import Subscriber
from rigs.waiting import until
from rigs.windows import noise

from appliance.cli.doctor.main import MARKS, PLAIN_MARKS, lines, marks, says_nothing_new
from appliance.cli.doctor.outcome import Finding, Outcome, failed, ok, skipped
from appliance.model.bundle import load_bundle

NEEDED = [*missing_packages(), *([missing()] if missing() else [])]


def doctor(
    *arguments: str | Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "appliance", "doctor", *map(str, arguments)],
        env=environment or dict(os.environ),
        cwd=ROOT,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


def told(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """The checks of `--json` by their names."""
    answer = json.loads(done.stdout)
    failures = sum(one["status"] == "failed" for one in answer["checks"])
    assert done.returncode == answer["failed"] == failures
    assert done.stderr == ""
    return {one["name"]: one for one in answer["checks"]}


@pytest.fixture
def silent_house(tmp_path: Path) -> Path:
    """A configuration without broker and microphone."""
    return write_config(tmp_path, capture={"recording": "talk.flac"})


def test_the_page_has_a_line_for_each_check_and_counts_the_failed(silent_house: Path) -> None:
    done = doctor("--config", silent_house)
    assert f"  {MARKS['ok']} self-test on the CPU" in done.stdout
    assert f"  {MARKS['skipped']} broker" in done.stdout
    failures = done.stdout.count(f"  {MARKS['failed']} ")
    assert done.returncode == failures
    assert done.stdout.count("      cure: ") == failures
    assert len(done.stdout.splitlines()) < 60


def test_a_terminal_without_utf_8_gets_plain_marks(silent_house: Path) -> None:
    plain = dict(os.environ) | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = doctor("--config", silent_house, environment=plain)
    assert f"  {PLAIN_MARKS['ok']} self-test on the CPU" in done.stdout
    assert done.stdout.isascii()
    assert marks("utf-8") == MARKS
    assert marks(None) == PLAIN_MARKS


def test_json_has_every_check_with_all_its_fields(silent_house: Path) -> None:
    done = doctor("--json", "--config", silent_house)
    found = told(done)
    assert found["configuration"]["status"] == "ok"
    assert found["self-test on the CPU"]["status"] == "ok"
    assert found["microphone"]["status"] == "skipped"
    assert found["chip"]["group"] == "NPU"
    for one in found.values():
        assert set(one) == {"group", "name", "status", "found", "cure", "seconds"}
        assert one["status"] in ("ok", "failed", "skipped")
        assert bool(one["cure"]) == (one["status"] == "failed")
    answer = json.loads(done.stdout)
    assert (answer["schema"], answer["failed"]) == (1, done.returncode)


def test_a_wrong_configuration_is_one_fault_and_leaves_the_rest_out(tmp_path: Path) -> None:
    config = tmp_path / "house.toml"
    config.write_text("[mqtt]\nport = 0\n", encoding="utf-8")
    found = told(doctor("--json", "--config", config))
    assert found["configuration"]["status"] == "failed"
    assert "mqtt.port: expected 1 to 65535" in found["configuration"]["found"]
    assert found["Python"]["status"] == "ok"
    for name in ("microphone", "model bundle", "broker", "log", "HEF"):
        assert found[name]["status"] == "skipped"
        assert "configuration" in found[name]["found"]


@pytest.mark.skipif(bool(NEEDED), reason=f"not installed: {' '.join(NEEDED)}")
def test_beside_a_running_daemon_all_is_well_and_nothing_is_disturbed(tmp_path: Path) -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(Broker())
        rig = stack.enter_context(PulseMicrophone(tmp_path / "rig"))
        simulator = Simulator(tmp_path / "machine")
        simulator.plug(latency_ms=1)
        folder = with_hef(load_bundle("home-en"), tmp_path / "home-en").folder
        config = write_config(tmp_path, broker.port, model={"bundle": folder})
        environment = rig.environment | simulator.environment
        soundfile.write(tmp_path / "noise.wav", noise(0.01, 60), 16_000)
        player = subprocess.Popen(
            ["paplay", f"--device={SINK}", str(tmp_path / "noise.wav")], env=environment
        )
        stack.callback(player.wait)
        stack.callback(player.kill)
        listener = stack.enter_context(Subscriber(broker.port))
        running = stack.enter_context(daemon(config, environment=environment))
        until(lambda: listener.payloads("availability") == [b"online"], 30)
        found = told(doctor("--json", "--config", config, environment=environment))
        faults = {name for name, one in found.items() if one["status"] == "failed"}
        assert faults <= {"clock", "memory", "power", "disk"}, found
        assert found["microphone"]["found"].endswith("dBFS")
        assert "encoder hailo8" in found["its own word"]["found"]
        assert found["owner"]["found"] == f"held by the daemon (process {running.pid})"
        assert "in use by" in found["self-test on the NPU"]["found"]
        assert found["round trip"]["status"] == "ok"
        assert "encoder hailo8" in found["its own word"]["found"]
        assert found["log"]["status"] == "ok"
        running.send_signal(signal.SIGTERM)
        assert running.wait(15) == 0, log_of(config)
        assert listener.payloads("availability") == [b"online", b"offline"]
        assert all(b'"running"' in state for state in listener.payloads("state"))


def test_a_line_shows_what_was_found_and_below_it_the_cure() -> None:
    finding = Finding("hearing", "microphone", failed("digital silence " * 6, "unmute it"), 0.1)
    shown = lines(finding, PLAIN_MARKS, 80)
    assert shown[0].startswith("  XX microphone            digital silence")
    assert shown[1].startswith(" " * 27 + "digital")
    assert shown[-1] == " " * 7 + "cure: unmute it"
    assert all(len(line) <= 80 for line in shown)


@pytest.fixture
def absent() -> Iterator[Outcome]:
    yield skipped("there is no Hailo in this machine")


def test_the_same_reason_is_not_shown_twice_in_a_group(absent: Outcome) -> None:
    first, second = Finding("NPU", "device", absent, 0.0), Finding("NPU", "chip", absent, 0.0)
    assert says_nothing_new(second, first)
    assert not says_nothing_new(first, None)
    assert not says_nothing_new(second, Finding("service", "unit", absent, 0.0))
    well = Finding("NPU", "chip", ok("fine"), 0.0)
    assert not says_nothing_new(well, well)
