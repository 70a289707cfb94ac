"""The encoder on a Hailo, against a simulator that refuses what HailoRT refuses."""

import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
from rigs.hailo import PATIENT, hold, mel_of
from rigs.hailo_simulator.control import Simulator, with_hef

from appliance.errors import DeviceError
from appliance.infer.encoder import CpuEncoder
from appliance.infer.hailo import device, diagnosis
from appliance.infer.hailo.device import identify, load_binding, newest_known
from appliance.infer.hailo.diagnosis import NpuError
from appliance.infer.hailo.npu import Npu, open_npu
from appliance.infer.hailo.process_owner import NpuProcess, find_chip
from appliance.infer.hailo.shared import Order, make_order
from appliance.model.bundle import HEF_FILE, Bundle

FIX = r"; .*(sudo|restart|roomscribe model add|--hef|\[encoder\]|look|install|modprobe|cma=|use )"


def open_here(bundle: Bundle, *, share: bool = False) -> Npu:
    return open_npu(bundle, share=share, **PATIENT)


def refusal(bundle: Bundle) -> NpuError:
    """Why the encoder's process does not open the chip."""
    process = NpuProcess(make_order(bundle, **PATIENT))
    with pytest.raises(NpuError) as caught:
        process.wait_until_open()
    process.kill()
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("version", "chip", "made_for", "name"),
    [
        ("4.19.0", "HAILO8", "HAILO8", "hailo8"),
        ("4.20.1", "HAILO8", "HAILO8L", "hailo8"),
        ("4.23.0", "HAILO8L", "HAILO8L", "hailo8l"),
        ("4.24.0", "HAILO8L", "HAILO8L", "hailo8l"),
        ("5.2.0", "HAILO10H", "HAILO10H", "hailo10h"),
        ("5.4.0", "HAILO10H", "HAILO10H", "hailo10h"),
    ],
)
def test_every_version_and_chip_gives_the_states_of_the_cpu(  # noqa: PLR0917
    simulator: Simulator, hef_bundle: Bundle, tmp_path: Path, version: str, chip: str,
    made_for: str, name: str,
) -> None:  # fmt: skip
    simulator.plug(version=version, driver=version, chip=chip)
    simulator.forget()
    bundle = with_hef(hef_bundle, tmp_path / "b", made_for)
    npu, cpu = open_here(bundle), CpuEncoder(bundle, 1)
    mels = [mel_of(bundle, seed) for seed in range(3)]
    states = [npu.encode(mel) for mel in mels]
    for mel, found in zip(mels, states, strict=True):
        assert found.shape == (bundle.positions, bundle.d_model) and found.dtype == np.float32
        assert np.allclose(found, cpu.encode(mel), atol=1e-5)
    assert npu.name == name == find_chip() and npu.identity.firmware.startswith(version)
    npu.close()


def test_what_was_encoded_before_stays_as_it_was(simulator: Simulator, hef_bundle: Bundle) -> None:
    simulator.plug()
    npu = open_here(hef_bundle)
    first = npu.encode(mel_of(hef_bundle, 1))
    kept = first.copy()
    npu.encode(mel_of(hef_bundle, 2))
    assert np.array_equal(first, kept)
    npu.close()


STATUSES = [
    (3, "unknown", "HAILO_OUT_OF_HOST_MEMORY"),
    (4, "timeout", "did not answer in time"),
    (13, "hef refused", "refuses it"),
    (15, "versions differ", "must be of one version"),
    (26, "hef refused", "refuses it"),
    (36, "driver", "the driver refused"),
    (63, "unknown", "abort"),
    (73, "busy", "in use by"),
    (74, "busy", "in use by"),
    (76, "versions differ", "found HailoRT 4.23.0 and driver 4.23.0"),
    (77, "service", "does not answer"),
    (81, "memory", "dtoverlay=cma,cma-512"),
    (82, "unknown", "HAILO_QUEUE_IS_FULL"),
    (91, "hef refused", "damaged"),
    (93, "hef refused", "it is for another chip"),
    (47, "unknown", "HAILO_OUT_OF_DESCRIPTORS"),
]


@pytest.mark.parametrize(
    ("status", "cause", "words"), STATUSES, ids=[str(row[0]) for row in STATUSES]
)
def test_a_status_is_a_message_with_its_fix_or_hailorts_own_words(
    simulator: Simulator, hef_bundle: Bundle, status: int, cause: str, words: str
) -> None:
    simulator.plug(refuse_status=status)
    error = refusal(hef_bundle)
    assert error.cause == cause and words in str(error)
    assert str(error).endswith(f"(HailoRT status {status})")
    assert re.search(FIX, str(error))


def test_driver_and_library_of_different_versions_are_both_named(
    simulator: Simulator, hef_bundle: Bundle
) -> None:
    simulator.plug(driver="4.22.0")
    error = refusal(hef_bundle)
    assert error.cause == "versions differ"
    assert "HailoRT 4.23.0 and driver 4.22.0" in str(error)
    assert "apt update && sudo apt install dkms hailo-all" in str(error)


def test_no_chip_and_a_chip_of_somebody_else_are_told_apart(
    simulator: Simulator, hef_bundle: Bundle
) -> None:
    assert refusal(hef_bundle).cause == "absent" and find_chip() is None
    simulator.plug()
    other = hold(simulator)
    error = refusal(hef_bundle)
    name = Path(f"/proc/{other.pid}/comm").read_text().strip()
    assert error.cause == "busy" and "share = true" in str(error)
    assert f"in use by {name} (process {other.pid}); stop" in str(error), "and by nobody else"
    assert identify(load_binding()).chip == "hailo8"
    other.send_signal(signal.SIGKILL)
    other.communicate()
    open_here(hef_bundle).close()


def test_the_chip_is_shared_through_the_service_where_all_agree(
    simulator: Simulator, hef_bundle: Bundle
) -> None:
    simulator.plug()
    other = hold(simulator, "share")
    npu = open_here(hef_bundle, share=True)
    assert npu.encode(mel_of(hef_bundle, 1)).any()
    npu.close()
    other.kill()
    other.communicate()
    for settings, words in (
        ({"service": False}, "does not answer"),
        ({"service": True, "service_version": "4.20.0"}, "must be of one version"),
    ):
        simulator.set(**settings)
        with pytest.raises(NpuError, match=words):
            open_here(hef_bundle, share=True)


def test_a_hailo_10h_is_shared_by_its_group_without_a_service(
    simulator: Simulator, hef_bundle: Bundle, tmp_path: Path
) -> None:
    simulator.plug(version="5.2.0", driver="5.2.0", chip="HAILO10H", service=False)
    simulator.forget()
    bundle = with_hef(hef_bundle, tmp_path / "b", "HAILO10H")
    other = hold(simulator, "group")
    npu = open_here(bundle, share=True)
    assert npu.encode(mel_of(bundle, 1)).any()
    npu.close()
    other.kill()
    other.communicate()


def test_the_limit_for_a_job_comes_from_the_first_ones_and_is_reported(
    simulator: Simulator, hef_bundle: Bundle
) -> None:
    simulator.plug(latency_ms=120, close_s=0.1)
    npu = open_npu(hef_bundle, share=False)
    simulator.set(latency_ms=600)
    assert npu.encode(mel_of(hef_bundle, 1)).any()
    simulator.set(hang_jobs="all", hang_s=2)
    needs = r"needs \d{3,} ms and is given \d{3,} ms\): the chip did not answer in time"
    with pytest.raises(NpuError, match=needs):
        npu.encode(mel_of(hef_bundle, 2))
    npu.close()
    simulator.set(hang_jobs=[], latency_ms=1200)
    with pytest.raises(NpuError, match="did not answer in time"):
        open_npu(hef_bundle, share=False, first_job_ms=5000)


@pytest.mark.parametrize(
    ("version", "known"),
    [("4.19.0", ""), ("4.23.0", ""), ("4.24.0", "4.23.0"), ("4.23.1", "4.23.0"), ("5.4.0", ""),
     ("5.5.0", "5.4.0"), ("6.0.0", "5.4.0"), ("unknown", "")],
)  # fmt: skip
def test_a_version_newer_than_the_compared_ones_is_recognised(version: str, known: str) -> None:
    assert newest_known(version) == known


@pytest.mark.parametrize("version", ["4.20.0", "4.23.0"])
def test_a_damaged_hef_or_one_for_another_chip_is_refused_by_hailort(
    simulator: Simulator, hef_bundle: Bundle, tmp_path: Path, version: str
) -> None:
    simulator.plug(chip="HAILO8L", version=version, driver=version)
    simulator.forget()
    error = refusal(hef_bundle)
    assert error.lasting and "for another chip" in str(error) and "--hef auto" in str(error)
    bundle = with_hef(hef_bundle, tmp_path / "b", "HAILO8L")
    content = bytearray((bundle.folder / HEF_FILE).read_bytes())
    content[-1] ^= 1
    (bundle.folder / HEF_FILE).write_bytes(content)
    assert refusal(bundle).lasting


def test_closing_or_failing_to_open_frees_the_chip(
    simulator: Simulator, hef_bundle: Bundle
) -> None:
    simulator.plug()
    for status in (0, 8, 0, 93, 0):
        simulator.set(refuse_status=status)
        if status:
            refusal(hef_bundle)
        else:
            npu = open_here(hef_bundle)
            npu.encode(mel_of(hef_bundle, 1))
            npu.close()
            npu.close()
            opened = (os.path.realpath(link) for link in Path("/proc/self/fd").iterdir())
            assert str(diagnosis.nodes()[0]) not in opened


@pytest.mark.parametrize("shape", [(1, 128, 100), (100, 1, 128), (1, 50, 256)])
def test_numbers_that_lie_otherwise_are_refused_though_they_are_as_many(
    simulator: Simulator, hef_bundle: Bundle, tmp_path: Path, shape: tuple[int, int, int]
) -> None:
    simulator.plug()
    bundle = with_hef(hef_bundle, tmp_path / "b")
    from rigs.hailo_simulator.hef_files import write_hef

    write_hef(bundle.folder / HEF_FILE, (1, bundle.frames, bundle.n_mels), shape)
    error = refusal(bundle)
    assert error.lasting and f"expected one of shape (1, 100, 128), found {shape}" in str(error)


def test_a_binding_that_cannot_be_loaded_or_is_too_old_is_a_device_error(
    simulator: Simulator, hef_bundle: Bundle
) -> None:
    simulator.plug(import_error="_pyhailort version (4.22.0) does not match\npyhailort version")
    error = refusal(hef_bundle)
    assert error.cause == "binding" and "apt install dkms hailo-all" in str(error)
    with pytest.raises(DeviceError, match="say which chip it is: --hef hailo8"):
        find_chip()
    installed = simulator.folder / "var/lib/dpkg/status"
    installed.parent.mkdir(parents=True)
    installed.write_text("Package: python3-hailort\nStatus: install ok installed\n")
    assert "apt install --only-upgrade python3-hailort`" in str(refusal(hef_bundle))
    simulator.set(crash=True)
    with pytest.raises(DeviceError, match=r"by SIGSEGV; .* --hef hailo8"):
        find_chip()
    simulator.set(crash=False, import_error="", version="4.18.0", driver="4.18.0")
    simulator.forget()
    assert "expected HailoRT 4.19 or newer, found 4.18.0" in str(refusal(hef_bundle))


def test_hailort_writes_no_log_into_the_working_directory(
    simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HAILORT_LOGGER_PATH", raising=False)
    load_binding()
    assert os.environ["HAILORT_LOGGER_PATH"] == "NONE"
    monkeypatch.setenv("HAILORT_LOGGER_PATH", "/var/log/hailo")
    load_binding()
    assert os.environ["HAILORT_LOGGER_PATH"] == "/var/log/hailo"


@pytest.mark.parametrize(
    ("chip", "name"), [("HAILO8", "hailo8"), ("HAILO8L", "hailo8l"), ("HAILO15H", "hailo10h")]
)
def test_the_chip_says_what_it_is(simulator: Simulator, chip: str, name: str) -> None:
    simulator.plug(chip=chip)
    assert find_chip() == name
    process = NpuProcess(Order("", (1,), (1,)))
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    process.wait_until_open()
    assert process.facts == {"chip": name}, "though it has ended meanwhile"
    process.kill()


def test_the_chip_is_read_beside_the_running_model(
    simulator: Simulator, hef_bundle: Bundle
) -> None:
    simulator.plug(zone=1)
    npu = open_here(hef_bundle)
    assert npu.readings == device.Readings(51.5, 1.6, 1, throttled=True)
    simulator.set(power_w=None, health=False)
    npu.read_sensors()
    assert npu.readings == device.Readings(51.5)
    assert npu.encode(mel_of(hef_bundle, 1)).any()
    simulator.unplug()
    npu.read_sensors()
    assert npu.readings == device.Readings()
    npu.close()


def test_a_chip_in_the_red_zone_is_not_taken(simulator: Simulator, hef_bundle: Bundle) -> None:
    simulator.plug(zone=2, temperature_c=118.0)
    error = refusal(hef_bundle)
    assert error.cause == "hot" and "118 °C" in str(error) and "heat sink" in str(error)
