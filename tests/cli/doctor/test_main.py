"""`roomscribe doctor` as its user sees it: the page, the JSON, the exit status; beside a daemon."""

import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from rigs.broker import Broker
from rigs.checkout import ROOT
from rigs.command import captured
from rigs.daemon import daemon, end, write_config
from rigs.hailo_simulator.control import Simulator, with_hef
from rigs.microphone import PulseMicrophone
from rigs.mqtt_client import Subscriber
from rigs.needs import needs_broker, needs_microphone
from rigs.waiting import NEVER_S, PATIENCE_S, until
from rigs.windows import noise

from appliance.cli.doctor.main import (
    GROUPS,
    MARKS,
    PLAIN_MARKS,
    examine,
    exit_status,
    lines,
    look,
    marks,
    repeats_reason,
)
from appliance.cli.doctor.outcome import Check, Finding, Outcome, Surroundings, failed, ok, skipped
from appliance.config import Settings, keys
from appliance.errors import DeviceError
from appliance.model.bundle import load_bundle


def doctor(
    *arguments: str | Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = sys.executable, "-m", "appliance", "doctor", *arguments
    return captured(*command, env=environment, cwd=ROOT, encoding="utf-8")


def checks_by_name(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
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
    assert done.stdout.count("      fix: ") == failures
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
    found = checks_by_name(done)
    assert found["configuration"]["status"] == "ok"
    assert found["self-test on the CPU"]["status"] == "ok"
    assert found["microphone"]["status"] == "skipped"
    assert found["chip"]["group"] == "NPU"
    for one in found.values():
        assert set(one) == {"group", "name", "status", "found", "fix", "seconds"}
        assert one["status"] in ("ok", "failed", "skipped")
        assert bool(one["fix"]) == (one["status"] == "failed")
    answer = json.loads(done.stdout)
    assert (answer["schema"], answer["failed"]) == (1, done.returncode)


def test_a_wrong_configuration_comes_first_and_the_rest_is_still_checked(tmp_path: Path) -> None:
    config = write_config(tmp_path, mqtt={"port": 0}, capture={"silence_s": -9})
    found = checks_by_name(doctor("--json", "--config", config))
    first = next(iter(found.values()))
    assert (first["name"], first["status"]) == ("configuration", "failed")
    assert first["found"].startswith("2 mistakes: ")
    assert "mqtt.port: expected 1 to 65535" in first["found"]
    assert found["self-test on the CPU"]["status"] == "ok"
    assert str(tmp_path / "state") in found["log"]["found"]
    for name, section in (("broker", "[mqtt]"), ("microphone", "[capture]")):
        assert found[name]["status"] == "skipped"
        assert found[name]["found"] == (f"skipped because of {section} in the configuration")


def test_with_an_unreadable_configuration_only_impersonal_defaults_are_checked(
    tmp_path: Path,
) -> None:
    found = checks_by_name(doctor("--json", "--config", tmp_path))
    assert "found a folder" in found["configuration"]["found"]
    assert found["self-test on the CPU"]["status"] == "ok"
    for name in ("microphone", "log", "disk", "broker"):
        assert found[name]["status"] == "skipped"


def test_a_check_needs_only_earlier_checks_and_known_sections() -> None:
    known = {f"[{section}]" for section, _key in keys()}
    for checks in GROUPS.values():
        for one in checks:
            assert known.issuperset(one.needs), one.name
            known.add(one.name)


@needs_broker
@needs_microphone
def test_beside_a_running_daemon_all_checks_pass_and_nothing_is_disturbed(tmp_path: Path) -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(Broker())
        rig = stack.enter_context(PulseMicrophone(tmp_path / "rig"))
        simulator = Simulator(tmp_path / "machine")
        simulator.plug(latency_ms=1)
        folder = with_hef(load_bundle("tiny.en"), tmp_path / "tiny.en").folder
        config = write_config(tmp_path, broker.port, model={"bundle": folder})
        environment = rig.environment | simulator.environment
        stack.enter_context(rig.playing(noise(0.01, 60)))
        listener = stack.enter_context(Subscriber(broker.port))
        running = stack.enter_context(daemon(config, environment=environment))
        until(lambda: listener.payloads("availability") == [b"online"])
        found = checks_by_name(doctor("--json", "--config", config, environment=environment))
        faults = {name for name, one in found.items() if one["status"] == "failed"}
        assert faults <= {"clock", "memory", "power", "disk"}, found
        assert found["microphone"]["found"].endswith("which receives sound")
        assert "encoder hailo8" in found["daemon state"]["found"]
        assert found["owner"]["found"] == f"used by the daemon (process {running.pid})"
        assert "in use by" in found["self-test on the NPU"]["found"]
        assert found["broker"]["status"] == "ok"
        assert "encoder hailo8" in found["daemon state"]["found"]
        assert found["log"]["status"] == "ok"
        end(running)
        # if the machine is busy for longer than the daemon waits for the broker when it stops, the
        # broker publishes the last will, too: `offline` once more
        until(lambda: listener.payloads("availability")[:2] == [b"online", b"offline"])
        assert b"online" not in listener.payloads("availability")[2:]
        states = [json.loads(state) for state in listener.payloads("state")]
        # a simulated chip, which is a Python program, may be late on a busy machine
        late = "the chip did not answer in time"
        disturbed = [one for one in states if one["status"] not in ("running", "stopped")]
        assert all(late in reason for one in disturbed for reason in one["reasons"]), disturbed


def test_a_line_shows_what_was_found_and_below_it_the_fix() -> None:
    finding = Finding("hearing", "microphone", failed("digital silence " * 6, "unmute it"), 0.1)
    shown = lines(finding, PLAIN_MARKS, 80)
    assert shown[0].startswith("  XX microphone            digital silence")
    assert shown[1].startswith(" " * 27 + "digital")
    assert shown[-1] == " " * 7 + "fix: unmute it"
    assert all(len(line) <= 80 for line in shown)


@pytest.fixture
def absent() -> Iterator[Outcome]:
    yield skipped("there is no Hailo in this machine")


def test_the_same_reason_is_not_shown_twice_in_a_group(absent: Outcome) -> None:
    first, second = Finding("NPU", "device", absent, 0.0), Finding("NPU", "chip", absent, 0.0)
    assert repeats_reason(second, first)
    assert not repeats_reason(first, None)
    assert not repeats_reason(second, Finding("service", "unit", absent, 0.0))
    well = Finding("NPU", "chip", ok("fine"), 0.0)
    assert not repeats_reason(well, well)


# a check may hang, crash, raise or print: the doctor says so and goes on


AROUND = Surroundings(Settings())


def check(look_at: object, within_s: float = PATIENCE_S) -> Outcome:
    return look(Check("it", look_at, "do something", within_s), AROUND)  # type: ignore[arg-type]


def test_a_long_outcome_comes_back_whole_from_the_other_process() -> None:
    long = "µ and a\nline " * 50_000
    assert check(lambda _around: failed(long, "c")) == failed(long, "c")


def test_a_check_that_hangs_is_stopped_and_reports_its_step() -> None:
    def hang(around: Surroundings) -> Outcome:
        around.doing("opening the microphone")
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        time.sleep(NEVER_S)
        return ok("never")

    assert check(hang, within_s=0.3) == failed(
        "no result after 0.3 s while opening the microphone", "do something"
    )


def test_a_crash_is_a_failed_check_with_the_last_words() -> None:
    def crash(around: Surroundings) -> Outcome:
        around.doing("importing onnxruntime")
        os.write(2, b"something first\nillegal  instruction in libfoo\n")
        faulthandler.disable()  # pytest's
        os.kill(os.getpid(), signal.SIGSEGV)
        return ok("never")

    found = check(crash)
    assert found.status == "failed"
    assert found.found == (
        "the check was stopped by SIGSEGV while importing onnxruntime: "
        "illegal instruction in libfoo"
    )


def test_an_unexpected_error_is_a_failed_check_with_its_text_and_place() -> None:
    def stumble(_around: Surroundings) -> Outcome:
        raise KeyError("MemAvailable")

    found = check(stumble)
    assert found.status == "failed"
    assert "KeyError: 'MemAvailable' (test_main.py:" in found.found
    assert found.fix == "do something"


def test_an_expected_error_gives_what_is_wrong_and_its_own_fix() -> None:
    def refuse(_around: Surroundings) -> Outcome:
        raise DeviceError("expected a chip, found none; plug one in")

    assert check(refuse) == failed("expected a chip, found none", "plug one in")


def test_what_a_check_prints_does_not_reach_the_page(capfd: pytest.CaptureFixture[str]) -> None:
    def chatter(_around: Surroundings) -> Outcome:
        print("ALSA lib confmisc.c: cannot find card", flush=True)
        os.write(2, b"x" * 300_000)
        return ok("fine")

    assert check(chatter) == ok("fine")
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("", "")


def test_a_failure_skips_only_the_checks_that_need_it() -> None:
    groups = {
        "a": (
            Check("first", lambda _around: failed("broken", "mend it"), ""),
            Check("second", lambda _around: ok("stands on first"), "", needs=("first",)),
        ),
        "b": (Check("third", lambda _around: ok("stands alone"), ""),),
    }
    findings = list(examine(AROUND, groups))
    assert [one.outcome.status for one in findings] == ["failed", "skipped", "ok"]
    assert findings[1].outcome.found == "skipped because of first"
    assert exit_status(findings) == 1


def test_the_exit_status_counts_to_63_at_most() -> None:
    findings = list(examine(AROUND, {"a": (Check("x", lambda _around: failed("", ""), ""),)}))
    assert exit_status(findings * 2) == 2
    assert exit_status(findings * 300) == 63
