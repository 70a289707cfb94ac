"""`roomscribe doctor --report`: one report, and nothing in it of whose machine it is."""

import json
import platform
from pathlib import Path

import pytest
from rigs.command import errors, roomscribe
from rigs.daemon import daemon, log_of, write_config
from rigs.hailo_simulator.control import Simulator, with_hef
from rigs.waiting import until

from appliance.cli.doctor import report
from appliance.model.bundle import Bundle


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
    out = tmp_path / "report.json"
    done = roomscribe("doctor", "--config", config, "--report", out)
    assert "Edna" in done.stdout, "the terminal shows names"
    text = out.read_text(encoding="utf-8")
    found = json.loads(text)
    assert done.returncode == found["failed"] > 0
    checks = {one["name"]: one for one in found["checks"]}
    assert checks["broker"]["found"].startswith("broker <mqtt.host>:9 does not answer")
    assert checks["microphone"]["found"].startswith("no microphone found ('<capture.device>')")
    assert checks["self-test on the CPU"]["status"] == "ok"
    assert found["machine"]["cores"] >= 1
    for word in ("dna", "correct horse", str(tmp_path), "127.0.0.9"):
        assert word not in text


def test_the_report_has_what_the_running_daemon_counted(tmp_path: Path, built_in: Bundle) -> None:
    simulator = Simulator(tmp_path / "machine")
    simulator.plug(latency_ms=1, patience=100)
    model = with_hef(built_in, tmp_path / "with-hef").folder
    config = write_config(tmp_path, model={"bundle": model})
    out = tmp_path / "report.json"
    environment = simulator.environment
    with (
        Path("/dev/zero").open("rb") as silence,
        daemon(config, "--recording", "-", stdin=silence, environment=environment),
    ):
        until(lambda: "on hailo8" in log_of(config))
        arguments = ("doctor", "--config", config, "--report", out)
        roomscribe(*arguments, environment=environment)
    found = json.loads(out.read_text(encoding="utf-8"))
    running = found["daemon"]
    assert (running["encoder"], running["npu_failovers"]) == ("hailo8", 0)
    assert found["machine"]["hailo"]["hef"].keys() == {"sha256", "size"}
    assert found["machine"]["hailo"]["drivers"] == {"hailo_pci": "4.23.0"}
    assert running["npu_temperature_c"] == 51.5 and running["uptime_s"] > 0
    checks = {one["name"]: one for one in found["checks"]}
    assert checks["self-test on the NPU"]["status"] == "skipped", "the daemon uses the chip"


def test_an_output_that_cannot_be_written_fails_before_anything_is_measured(
    tmp_path: Path, config: Path
) -> None:
    out = tmp_path / "nowhere" / "report.json"
    done = roomscribe("doctor", "--config", config, "--report", out, timeout_s=10)
    assert (done.returncode, len(errors(done))) == (74, 1), done.stderr
    assert str(out) in errors(done)[0]


def test_names_addresses_and_homes_are_replaced() -> None:
    hidden = {"oak": "<host>", "oak.lan": "<host>", "/srv/oak": "<store.path>"}
    assert report.redact(
        {"a": ["oak and oak.lan, soak", 5, None], "b": "/srv/oak/x of /home/tom/y"}, hidden
    ) == {"a": ["<host> and <host>, soak", 5, None], "b": "<store.path>/x of /home/<user>/y"}
    for address in (
        "10.0.0.7",
        "fe80::1c2b:3a4d",
        "2001:db8:0:1:2:3:4:5",
        "d8:3a:dd:01:02:03",
        "D8_3A_DD_01_02_03",
    ):
        assert "address>" in report.redact(f"at {address} now", {})
    for harmless in ("HailoRT 4.23.0", "12:30:05", "127.0.0.1:1883", "0001:01:00.0", "(hw:1,0)"):
        assert report.redact(harmless, {}) == harmless


def test_the_names_of_this_machine_are_among_the_hidden(config: Path) -> None:
    hidden = report.private_texts(config)
    if platform.node() not in ("", "localhost", "pi", "default", "root"):
        assert platform.node() in hidden
    assert hidden["ednas_kitchen"] == "<appliance.node>"
    assert hidden["edna"] == "<mqtt.username>"
    assert "localhost" not in hidden
