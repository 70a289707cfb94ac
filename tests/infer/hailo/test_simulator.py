"""The simulated Hailo is as strict, and as treacherous, as HailoRT's sources are."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rigs.hailo_simulator.control import Simulator

from appliance.model.bundle import HEF_FILE, Bundle


class Opened:
    """The sequence of calls by hand, so that each can go wrong."""

    def __init__(self, bundle: Bundle, *, scheduled: bool = True, floats: bool = True) -> None:
        import hailo_platform

        self.platform: Any = hailo_platform
        parameters = hailo_platform.VDevice.create_params()
        if scheduled:
            parameters.scheduling_algorithm = hailo_platform.HailoSchedulingAlgorithm.ROUND_ROBIN
        self.device = hailo_platform.VDevice(parameters)
        self.model = self.device.create_infer_model(str(bundle.folder / HEF_FILE))
        if floats:
            self.model.input().set_format_type(hailo_platform.FormatType.FLOAT32)
            self.model.output().set_format_type(hailo_platform.FormatType.FLOAT32)
        self.configured = self.model.configure()
        self.bindings = self.configured.create_bindings()
        self.input = np.zeros((1, bundle.frames, bundle.n_mels), np.float32)
        self.output = np.zeros((1, bundle.positions, bundle.d_model), np.float32)
        self.bindings.input().set_buffer(self.input)
        self.bindings.output().set_buffer(self.output)

    def close(self) -> None:
        self.bindings = self.configured = self.model = None
        self.device.release()


def status(error: BaseException) -> int:
    assert error.__cause__
    return int(error.__cause__.args[0])


def test_4_x_demands_activation_unless_the_scheduler_is_asked_for(
    simulator: Simulator, hef_bundle: Bundle
) -> None:
    simulator.plug()
    opened = Opened(hef_bundle, scheduled=False)
    with pytest.raises(opened.platform.HailoRTException) as caught:
        opened.configured.run_async([opened.bindings])
    assert status(caught.value) == 69
    caught = None  # type: ignore[assignment]
    opened.close()


def test_edges_are_8_bits_wide_unless_floats_are_asked_for(
    simulator: Simulator, hef_bundle: Bundle
) -> None:
    simulator.plug()
    opened = Opened(hef_bundle, floats=False)
    with pytest.raises(opened.platform.HailoRTException) as caught:
        opened.configured.run_async([opened.bindings])
    assert status(caught.value) == 6


def test_a_path_and_bad_buffers_are_refused(simulator: Simulator, hef_bundle: Bundle) -> None:
    simulator.plug()
    opened = Opened(hef_bundle)
    with pytest.raises(TypeError):
        opened.device.create_infer_model(Path("encoder.hef"))
    with pytest.raises(opened.platform.HailoRTException, match="C_CONTIGUOUS"):
        opened.bindings.input().set_buffer(opened.input.transpose(0, 2, 1))
    opened.input.flags.writeable = False
    with pytest.raises(ValueError, match="writeable"):
        opened.bindings.input().set_buffer(opened.input)
    assert opened.bindings.output().get_buffer() is opened.output


def test_only_bytes_are_counted_and_other_numbers_give_nonsense_in_silence(
    simulator: Simulator, hef_bundle: Bundle
) -> None:
    simulator.plug()
    opened = Opened(hef_bundle)
    opened.input[:] = 0.5
    opened.configured.run([opened.bindings], 5000)
    right = opened.output.copy()
    opened.bindings.input().set_buffer(np.full(opened.input.shape, 1, np.int32))
    opened.configured.run([opened.bindings], 5000)
    assert not np.allclose(opened.output, right, atol=1e-3)


def test_a_failed_job_is_told_to_the_callback_alone_and_leaves_garbage(
    simulator: Simulator, hef_bundle: Bundle
) -> None:
    simulator.plug(fail_jobs="all")
    opened = Opened(hef_bundle)
    told: list[Any] = []
    job = opened.configured.run_async(
        [opened.bindings], lambda completion_info: told.append(completion_info.exception)
    )
    job.wait(5000)
    opened.configured.run([opened.bindings], 5000)
    assert "error: 8 (HAILO_INTERNAL_FAILURE)" in str(told[0]) and told[0].__cause__ is None
    assert opened.output.any() and np.isfinite(opened.output).all()


@pytest.mark.parametrize(("version", "reaches"), [("4.18.0", False), ("4.19.0", True)])
def test_4_18_writes_the_outputs_of_the_first_job_alone_where_they_were_bound(
    simulator: Simulator, hef_bundle: Bundle, version: str, reaches: bool
) -> None:
    simulator.plug(version=version, driver=version)
    simulator.forget()
    opened = Opened(hef_bundle)
    found = []
    for value in (0.5, -0.5):
        opened.input[:] = value
        opened.configured.run([opened.bindings], 5000)
        found.append(opened.output.copy())
    assert found[0].any() and np.array_equal(found[0], found[1]) != reaches
    opened.bindings.output().set_buffer(opened.output)
    opened.configured.run([opened.bindings], 5000)
    assert not np.array_equal(found[0], opened.output)


def test_a_job_that_hangs_may_take_no_notice_of_being_given_up(
    simulator: Simulator, hef_bundle: Bundle
) -> None:
    simulator.plug(hang_jobs="all", hang_s=60.0, ignore_abort=True, close_s=0.3)
    opened = Opened(hef_bundle)
    opened.configured.run_async([opened.bindings])
    begun_s = time.monotonic()
    opened.configured.__exit__(None, None, None)
    assert 0.25 < time.monotonic() - begun_s < 10


def test_a_job_goes_on_after_its_wait_has_timed_out(
    simulator: Simulator, hef_bundle: Bundle
) -> None:
    simulator.plug(hang_jobs=[1], hang_s=0.3)
    opened = Opened(hef_bundle)
    job = opened.configured.run_async([opened.bindings])
    with pytest.raises(opened.platform.HailoRTException) as caught:
        job.wait(10)
    assert status(caught.value) == 4 and not opened.output.any()
    job.wait(5000)
    assert opened.output.any()


def test_a_model_that_survives_keeps_the_chip_from_its_own_process(
    simulator: Simulator, hef_bundle: Bundle
) -> None:
    simulator.plug()
    first = Opened(hef_bundle)
    first.device.release()
    with pytest.raises(first.platform.HailoRTException, match="error: 74"):
        first.platform.VDevice()
    first.close()
    first.platform.VDevice().release()


def test_device_ids_drop_the_parameters_and_change_the_status(
    simulator: Simulator, hef_bundle: Bundle
) -> None:
    simulator.plug()
    first = Opened(hef_bundle)
    with pytest.raises(first.platform.HailoRTException, match="error: 73"):
        first.platform.VDevice(device_ids=first.platform.Device.scan())


def test_device_raises_a_class_that_is_no_hailort_exception(simulator: Simulator) -> None:
    simulator.plug(driver="4.20.0")
    import hailo_platform

    with pytest.raises(Exception, match=r"^76$") as caught:
        hailo_platform.Device(hailo_platform.Device.scan()[0])
    assert not isinstance(caught.value, hailo_platform.HailoRTException)
