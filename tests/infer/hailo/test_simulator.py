"""The simulated Hailo can refuse: what HailoRT's sources refuse, it refuses, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rigs.hailo_simulator.control import Simulator

from appliance.model.bundle import HEF_FILE, Bundle


class Opened:
    """The sequence of calls by hand, so that each can go wrong."""

    def __init__(self, bundle: Bundle, *, scheduled: bool = True) -> None:
        import hailo_platform

        self.platform: Any = hailo_platform
        parameters = hailo_platform.VDevice.create_params()
        if scheduled:
            parameters.scheduling_algorithm = hailo_platform.HailoSchedulingAlgorithm.ROUND_ROBIN
        self.device = hailo_platform.VDevice(parameters)
        self.model = self.device.create_infer_model(str(bundle.folder / HEF_FILE))
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


def test_a_real_chips_noise_is_as_loud_as_it_should_be_and_the_same_each_time(
    simulator: Simulator, hef_bundle: Bundle
) -> None:
    simulator.plug()
    opened = Opened(hef_bundle)
    states = []
    for noise_db in (0.0, 15.0, 15.0):
        simulator.set(noise_db=noise_db, remember=False)
        opened.input[:] = np.linspace(-1, 1, opened.input.size).reshape(opened.input.shape)
        opened.configured.run([opened.bindings], 5000)
        states.append(opened.output[0].astype(np.float64))
    clean, noisy, again = states
    spread, noise = clean.std(axis=0), (noisy - clean).std(axis=0)
    assert np.median(20 * np.log10(spread / noise)) == pytest.approx(15, abs=0.5)
    assert np.array_equal(noisy, again)
    opened.close()
