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
