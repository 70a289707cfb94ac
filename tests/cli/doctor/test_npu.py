"""The NPU's checks against the simulated Hailo."""

import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rigs.checkout import BUILT_IN
from rigs.hailo import PATIENT
from rigs.hailo_simulator.control import Simulator, with_hef

from appliance import infer
from appliance.cli.doctor import npu
from appliance.cli.doctor.daemon import DaemonProcess
from appliance.cli.doctor.main import look as look_at
from appliance.cli.doctor.model import word_errors
from appliance.cli.doctor.outcome import Outcome, Surroundings
from appliance.config import EncoderSettings, ModelSettings, Settings
from appliance.errors import DeviceError, RoomscribeError
from appliance.infer.hailo import diagnosis
from appliance.infer.hailo.npu import open_npu
from appliance.model.bundle import Bundle

EVERY = (npu.device, npu.library, npu.chip, npu.owner, npu.self_test)


@pytest.fixture
def simulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulator]:
    """A machine with a Hailo driver and no chip yet, for which the CPU stands in: it has time."""
    monkeypatch.setattr(infer, "open_npu", functools.partial(open_npu, **PATIENT))
    simulator = Simulator(tmp_path / "machine")
    simulator.set(latency_ms=1)
    simulator.enter()
    yield simulator
    simulator.leave()


@pytest.fixture
def around(built_in: Bundle, tmp_path: Path) -> Surroundings:
    """tiny.en with a HEF for a Hailo-8."""
    folder = with_hef(built_in, tmp_path / "tiny.en").folder
    return Surroundings(Settings(model=ModelSettings(bundle=str(folder))), root=tmp_path / "root")


def with_encoder(around: Surroundings, **encoder: object) -> Surroundings:
    settings = replace(around.settings, encoder=EncoderSettings(**encoder))  # type: ignore[arg-type]
    return replace(around, settings=settings)


def test_without_a_hailo_its_checks_are_skipped(simulator: Simulator, around: Surroundings) -> None:
    for look in EVERY:
        found = look(around)
        assert found.status == "skipped" and found.found.startswith(npu.ABSENT)
    assert "the model is for one: check its cable" in npu.device(around).found
    plain = replace(around, settings=Settings(model=ModelSettings(bundle=str(BUILT_IN))))
    assert npu.device(plain) == Outcome("skipped", npu.ABSENT)


def test_a_hailo_that_is_wanted_and_not_there_is_a_fault(
    simulator: Simulator, around: Surroundings
) -> None:
    found = npu.device(with_encoder(around, backend="hailo"))
    assert found.status == "failed"
    assert "lspci" in found.fix


@pytest.mark.parametrize(
    ("device", "package"), [("0x2864", "hailo-all"), ("0x45c4", "hailo-h10-all")]
)
def test_a_hailo_without_a_driver_is_a_fault_whose_fix_is_its_package(
    simulator: Simulator, around: Surroundings, device: str, package: str
) -> None:
    vendor = simulator.folder / "sys/bus/pci/devices/0001:01:00.0/vendor"
    vendor.parent.mkdir(parents=True)
    vendor.write_text("0x1e60\n", encoding="ascii")
    vendor.with_name("device").write_text(f"{device}\n", encoding="ascii")
    found = npu.device(around)
    assert found.status == "failed"
    assert "no driver is loaded" in found.found
    assert f"sudo apt install dkms {package}`" in found.fix


def test_with_the_cpu_as_backend_the_hailo_is_not_opened(
    simulator: Simulator, around: Surroundings
) -> None:
    simulator.plug()
    on_cpu = with_encoder(around, backend="cpu")
    assert {look(on_cpu).found for look in EVERY} == {"[encoder] backend is cpu"}


def test_a_healthy_hailo_passes_everything(simulator: Simulator, around: Surroundings) -> None:
    simulator.plug()
    found = {look.__name__: look(around) for look in EVERY}
    assert {one.status for one in found.values()} == {"ok"}, found
    assert "driver 4.23.0" in found["device"].found
    assert found["library"].found == "Python binding 4.23.0, driver 4.23.0"
    assert found["chip"].found.startswith("Hailo-8, firmware 4.23.0")
    assert "52 C, 1.6 W" in found["chip"].found
    assert found["self_test"].found.startswith("cosine of the states 1.0000; heard 'What is")
    assert simulator.violations == []


def test_versions_that_differ_are_a_fault_with_both(
    simulator: Simulator, around: Surroundings
) -> None:
    simulator.plug(driver="4.20.0")
    found = npu.library(around)
    assert found.status == "failed"
    assert found.found == "Python binding 4.23.0, driver 4.20.0"
    simulator.set(driver="4.23.0", firmware="4.20.0")
    found = npu.chip(around)
    assert "firmware 4.20.0 (release,app), 52 C, 1.6 W; HailoRT is 4.23.0" in found.found
    assert "switch it off and on" in found.fix


def test_the_library_of_another_chip_is_a_fault_with_a_fix_of_its_own(
    simulator: Simulator, around: Surroundings
) -> None:
    simulator.plug()
    (simulator.folder / "dev/hailo0").rename(simulator.folder / "dev/h1x-0")
    driver = simulator.folder / "sys/module/hailo1x_pci/version"  # and hailo_pci is loaded, too
    driver.parent.mkdir()
    driver.write_text("5.3.0\n", encoding="ascii")
    found = npu.library(around)
    assert (found.status, "this chip needs HailoRT 5" in found.found) == ("failed", True)
    assert found.fix.startswith("run `sudo apt install dkms hailo-h10-all`")
    assert diagnosis.driver_version() == "5.3.0"
    for text in diagnosis.TEXTS.values():
        assert "full-upgrade" not in text
        assert text.count("; ") == 1, "the doctor shows what follows as the fix"


def test_a_healthy_hailo_10h_with_the_node_of_a_hailo_8_passes(
    simulator: Simulator, around: Surroundings, built_in: Bundle, tmp_path: Path
) -> None:
    simulator.plug(version="5.1.1", driver="5.1.1", chip="HAILO10H")
    simulator.forget()
    modules = simulator.folder / "sys/module"
    (modules / "hailo_pci").rename(modules / "hailo1x_pci")
    vendor = simulator.folder / "sys/bus/pci/devices/0001:01:00.0/vendor"
    vendor.parent.mkdir(parents=True)
    vendor.write_text("0x1e60\n", encoding="ascii")
    vendor.with_name("device").write_text("0x45c4\n", encoding="ascii")
    model = with_hef(built_in, tmp_path / "for10h", "HAILO10H").folder
    around = replace(around, settings=Settings(model=ModelSettings(bundle=str(model))))
    found = {look.__name__: look(around) for look in EVERY}
    assert {one.status for one in found.values()} == {"ok"}, found
    assert "driver 5.1.1" in found["device"].found


def test_texts_that_the_npu_did_not_hear_are_a_fault(
    simulator: Simulator, around: Surroundings
) -> None:
    simulator.plug(deaf=True)
    found = npu.self_test(around)
    assert found.status == "failed"
    assert "the text is empty with the NPU's encoder only" in found.found
    assert "Hailo-Application-Code-Examples#369" in found.fix


def test_the_self_test_judges_by_words_and_not_by_equal_texts() -> None:
    right = "What is the weather like in Chicago?"
    assert npu.judge(0.98, right, "What's the weather like in Chicago?", "").status == "ok"
    worse = npu.judge(0.98, right, "Where is a feather in Chicago?", "")
    assert worse.status == "failed"
    assert "4 of 7 words more are wrong" in worse.found
    assert "should be 0.9" in npu.judge(0.2, right, right, "").found


def test_a_binding_that_cannot_be_imported_fails(
    simulator: Simulator, around: Surroundings
) -> None:
    simulator.plug(import_error="libhailort.so.4.22.0: cannot open shared object file")
    with pytest.raises(DeviceError, match=r"libhailort\.so\.4\.22\.0: cannot open.*hailo-all"):
        npu.library(around)


def test_a_driver_that_hangs_is_a_fault_whose_fix_is_a_restart(
    simulator: Simulator, around: Surroundings
) -> None:
    simulator.plug(hold_s=30.0)
    (chip,) = (check for check in npu.CHECKS if check.name == npu.CHIP)
    found = look_at(replace(chip, within_s=3.0), around)
    assert found.found == "no result after 3 s while identifying the chip"
    assert found.fix.startswith("restart the machine")


def test_a_hot_chip_is_a_fault(simulator: Simulator, around: Surroundings) -> None:
    simulator.plug(temperature_c=104.0, zone=2)
    found = npu.chip(around)
    assert found.status == "failed"
    assert "104 C" in found.found
    assert "heat sink" in found.fix


def test_a_model_without_a_hef_runs_on_the_cpu(simulator: Simulator, around: Surroundings) -> None:
    simulator.plug()
    plain = replace(around, settings=Settings(model=ModelSettings(bundle=str(BUILT_IN))))
    assert npu.self_test(plain).status == "skipped"
    found = npu.self_test(with_encoder(plain, backend="hailo"))
    assert found.status == "failed"
    assert "roomscribe model add tiny.en --hef" in found.fix


def test_a_chip_that_another_program_has_is_left_to_it(
    simulator: Simulator, around: Surroundings
) -> None:
    simulator.plug()
    program = "import sys, time; file = open(sys.argv[1]); print(flush=True); time.sleep(60)"
    node = str(simulator.folder / "dev/hailo0")
    other = subprocess.Popen([sys.executable, "-c", program, node], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        other.stdout.readline()
        found = npu.owner(around)
        assert found.status == "failed"
        assert f"{other.pid}" in found.found
        assert "share = true" in found.fix
        assert npu.self_test(around).found.endswith("for this test, stop it")
        ours = replace(around, daemon=DaemonProcess(os.getpid(), service=True))
        assert npu.owner(ours) == Outcome("ok", f"used by {ours.daemon}")
        assert "`sudo systemctl stop roomscribe`" in npu.self_test(ours).found
        assert npu.owner(with_encoder(around, share=True)).status == "ok"
        assert npu.chip(around).status == "ok"
    finally:
        other.kill()
        other.communicate()
    assert npu.owner(around).status == "ok"


def test_a_busy_chip_with_an_unknown_owner_is_skipped(
    simulator: Simulator, around: Surroundings
) -> None:
    simulator.plug(busy=True)
    ours = replace(around, daemon=DaemonProcess(1, service=True))
    assert npu.self_test(ours).status == "skipped"
    with pytest.raises(DeviceError, match="in use by"):
        npu.self_test(around)


def test_a_chip_that_computes_something_else_is_a_fault(
    simulator: Simulator, around: Surroundings
) -> None:
    simulator.plug(fail_jobs=[2])
    with pytest.raises(RoomscribeError, match="NPU: encoding"):
        npu.self_test(around)


def test_int8_edges_and_a_real_chips_noise_are_no_fault(
    simulator: Simulator, around: Surroundings
) -> None:
    simulator.plug(round_int8=True, noise_db=15)
    found = npu.self_test(around)
    assert found.status == "ok"
    assert found.found.startswith("cosine of the states 0.9")


def test_words_are_counted_as_levenshtein_does() -> None:
    assert word_errors(["a", "b", "c"], ["a", "b", "c"]) == 0
    assert word_errors(["a", "b", "c"], ["a", "x", "c", "d"]) == 2
    assert word_errors(["a", "b", "c"], []) == 3
    assert word_errors([], ["a"]) == 1
