"""Python and its libraries, the configuration, memory, clock and the Raspberry Pi's power."""

import os
import sys
from pathlib import Path

import pytest
from rigs.command import captured

from appliance.cli.doctor.machine import (
    configuration,
    judge_clock,
    judge_throttled,
    libraries,
    memory,
    pi_power,
)
from appliance.cli.doctor.outcome import Outcome, Surroundings
from appliance.config import Settings


def test_these_libraries_are_right() -> None:
    found = libraries(Surroundings(Settings()))
    assert found.status == "ok"
    assert "onnxruntime 1." in found.found
    assert "webrtcvad-wheels 2." in found.found


def test_a_library_that_cannot_be_imported_is_named_with_its_error(tmp_path: Path) -> None:
    """As webrtcvad 2.0.10 behaves beside setuptools 82."""
    text = "raise ModuleNotFoundError(\"No module named 'pkg_resources'\")"
    (tmp_path / "webrtcvad.py").write_text(text, encoding="utf-8")
    program = (
        "from appliance.cli.doctor.machine import libraries\n"
        "from appliance.cli.doctor.outcome import Surroundings\n"
        "from appliance.config import Settings\n"
        "print(libraries(Surroundings(Settings())).found)"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = captured(sys.executable, "-c", program, env=environment, check=True)
    assert done.stdout.startswith(
        "webrtcvad cannot be imported (ModuleNotFoundError: No module named 'pkg_resources')"
    )


def test_every_mistake_in_a_configuration_is_listed(tmp_path: Path) -> None:
    file = tmp_path / "house.toml"
    file.write_text('[mqtt]\nport = 0\nhots = "x"\n', encoding="utf-8")
    found = configuration(Surroundings(Settings(), file))
    assert found.status == "failed"
    assert "2 mistakes" in found.found
    assert "mqtt.port" in found.found
    assert "did you mean host?" in found.found
    file.write_text("[mqtt]\nport = 1884\n", encoding="utf-8")
    assert configuration(Surroundings(Settings(), file)).status == "ok"


def test_keys_that_were_chosen_while_it_runs_are_named_with_their_file(tmp_path: Path) -> None:
    file = tmp_path / "house.toml"
    file.write_text(f'[store]\npath = "{tmp_path}"\n', encoding="utf-8")
    over = tmp_path / "settings.toml"
    over.write_text('[capture]\ndevice = "USB"\n', encoding="utf-8")
    found = configuration(Surroundings(Settings(), file))
    assert found.found == f"{file} is valid; {over} overrides capture.device"


@pytest.mark.parametrize(("kilobytes", "status"), [(2_000_000, "ok"), (90_000, "failed")])
def test_little_memory_is_a_fault(tmp_path: Path, kilobytes: int, status: str) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(
        f"MemTotal:        8256000 kB\nMemFree: 1 kB\nMemAvailable:  {kilobytes} kB\n",
        encoding="ascii",
    )
    found = memory(Surroundings(Settings(), root=tmp_path))
    assert found.status == status
    assert "of 8062 MB" in found.found


def test_an_unsynchronised_clock_fails() -> None:
    assert judge_clock("yes").status == "ok"
    assert judge_clock("no").status == "failed"
    assert judge_clock("").status == "skipped"


def pi(tmp_path: Path, bits: str) -> Outcome:
    firmware = tmp_path / "sys/devices/platform/soc@107c000000/soc@107c000000:firmware"
    firmware.mkdir(parents=True, exist_ok=True)
    (firmware / "get_throttled").write_text(f"{bits}\n", encoding="ascii")
    zone = tmp_path / "sys/class/thermal/thermal_zone0"
    zone.mkdir(parents=True, exist_ok=True)
    (zone / "temp").write_text("61250\n", encoding="ascii")
    return pi_power(Surroundings(Settings(), root=tmp_path))


def test_a_healthy_pi_passes(tmp_path: Path) -> None:
    assert pi(tmp_path, "0") == Outcome("ok", "voltage and clock speed are normal; 61 C")


def test_low_voltage_is_a_fault_now_and_afterwards(tmp_path: Path) -> None:
    now = pi(tmp_path, "50005")
    assert now.status == "failed"
    assert "low voltage, throttled" in now.found
    assert "27 W" in now.fix
    before = pi(tmp_path, "10000")
    assert before.status == "failed"
    assert "earlier since boot: low voltage" in before.found


def test_heat_is_a_fault_while_it_lasts(tmp_path: Path) -> None:
    hot = pi(tmp_path, "80008")
    assert hot.status == "failed"
    assert "temperature limit" in hot.found
    assert "fan" in hot.fix
    assert judge_throttled(0x80000).status == "ok"
    assert "earlier" in judge_throttled(0x80000).found


def test_elsewhere_there_is_no_such_check(tmp_path: Path) -> None:
    assert pi_power(Surroundings(Settings(), root=tmp_path)).status == "skipped"
