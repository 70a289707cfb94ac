"""The chip through HailoRT's Python binding: its identity, a network on it, its readings.

The only importer of hailo_platform. Written against its published sources, 4.19 to 4.23 (Hailo-8,
8L) and 5.0 to 5.2 (Hailo-10H), and what 5.4 changed for this code (docs/hailo.md). Run against a
simulator of them alone: never on a real chip.

Sources in brackets: files of github.com/hailo-ai/hailort, alike in v4.19.0 to v5.2.0 unless a
version is named. `py` is pyhailort.py of its Python package; vdevice.cpp, infer_model.cpp,
hailort_logger.cpp and control.cpp are libhailort's; other .cpp and .hpp are of the binding.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.infer.hailo import diagnosis
from appliance.infer.hailo.diagnosis import NpuError, explain
from appliance.system import one_line

CHIPS = {"HAILO8": "hailo8", "HAILO8L": "hailo8l", "HAILO10H": "hailo10h", "HAILO15H": "hailo10h"}
"""DeviceArchitectureTypes' names [py]; a Hailo-10H's firmware says 15H [control.cpp: identify]."""
OLDEST = (4, 19)
"""4.18 has InferModel, too, but copies bindings flat (infer_model_api.cpp): after the first job it
writes the outputs into memory that it has freed, and the bound buffers keep those of the first."""
NEWEST = {4: (4, 23, 0), 5: (5, 4, 0)}
"""Of each line, the newest version that this was compared with, 5.4 in part (docs/hailo.md)."""
READY_WITHIN_MS = 200
GREEN, RED = 0, 2
"""The firmware's zones of temperature; in the red one it stops the network by itself."""

Shapes = dict[str, tuple[int, ...]]
Buffers = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a chip."""

    device_id: str
    chip: str
    """hailo8, hailo8l or hailo10h."""
    firmware: str


def load_binding() -> Any:
    """Return the module hailo_platform. Raises NpuError if it cannot be used.

    Unless HAILORT_LOGGER_PATH says otherwise, HailoRT is kept from writing hailort.log into the
    working directory [hailort_logger.cpp: get_log_path].
    """
    os.environ.setdefault("HAILORT_LOGGER_PATH", "NONE")
    advice = diagnosis.generation()
    try:
        import hailo_platform

        version = str(hailo_platform.__version__)
    except Exception as error:  # [__init__.py: MissingPyHRTLib, ImportError of another version]
        missing = isinstance(error, ModuleNotFoundError)
        fix = f"run `{advice.install}` and restart the machine" if missing else advice.upgrade
        text = f"HailoRT's Python binding cannot be used ({one_line(error)}); {fix}"
        raise NpuError("binding", text) from None
    if diagnosis.numbers(version) < OLDEST:
        text = f"expected HailoRT 4.19 or newer, found {version}; {advice.upgrade}"
        raise NpuError("binding", text)
    return hailo_platform


def newest_known(version: str) -> str:
    """Return the newest version of the line that is known, like "4.23.0", if `version` is newer;
    otherwise empty."""
    found = diagnosis.numbers(version)
    known = NEWEST.get(found[0], max(NEWEST.values())) if found else found
    return ".".join(map(str, known)) if found > known else ""


def identify(binding: Any) -> Identity:
    """Return the identity of the first chip; works beside a running model. Raises NpuError.

    [py: Device.scan, Device, Control.identify, BoardInformation; device_api.cpp. Device raises raw
    statuses, which are HailoRTExceptions only since 5.2, pyhailort.cpp]
    """
    with explaining("asking the chip what it is", binding):
        ids = binding.Device.scan()
        if not ids:
            raise NpuError("absent", diagnosis.ABSENT)
        with binding.Device(ids[0]) as device:
            board = device.control.identify()
    name = str(board.device_architecture).rsplit(".", 1)[-1]
    if name not in CHIPS:
        raise NpuError("unknown chip", f"expected one of {', '.join(CHIPS)}, found {name}")
    return Identity(ids[0], CHIPS[name], str(board.firmware_version))


class NpuModel:
    """A HEF on an open chip, float32 at every edge. For one thread."""

    def __init__(
        self, binding: Any, device: Any, hef: Path, check: Callable[[Shapes, Shapes], None]
    ) -> None:
        """Configures it. `device` is an open VDevice; `check` raises NpuError for inputs and
        outputs that do not fit. Raises NpuError.

        [py: VDevice.create_infer_model, of a path as str; InferModel; Bindings.InferStream's
        set_buffer, of writable C-contiguous arrays; infer_model_api.cpp]
        """
        self._binding, self._hef, float32 = binding, hef, binding.FormatType.FLOAT32
        with explaining("loading the HEF", binding, hef):
            model = device.create_infer_model(str(hef))
            model.set_batch_size(1)
            inputs = {edge.name: tuple(edge.shape) for edge in model.inputs}
            outputs = {edge.name: tuple(edge.shape) for edge in model.outputs}
            check(inputs, outputs)  # HailoRT compares bytes [infer_model.cpp: validate_bindings]
            self.inputs: Buffers = {name: np.zeros(of, np.float32) for name, of in inputs.items()}
            """To be filled before a job, by name."""
            self.outputs: Buffers = {name: np.zeros(of, np.float32) for name, of in outputs.items()}
            """Overwritten by the next job."""
            for edge in (*map(model.input, inputs), *map(model.output, outputs)):
                edge.set_format_type(float32)
            self._configured = model.configure()
            self._bindings = self._configured.create_bindings()
            for name, buffer in self.inputs.items():
                self._bindings.input(name).set_buffer(buffer)
            for name, buffer in self.outputs.items():
                self._bindings.output(name).set_buffer(buffer)

    def run(self, doing: str, within_ms: int) -> None:
        """Run a job on `inputs`; `doing` is for messages. Raises NpuError, also for outputs that
        are no numbers; after that it can only be closed, because the job may still run and write.

        [py: ConfiguredInferModel.run_async, whose callback alone has the job's error, and which
        asks for wait_for_async_ready; AsyncInferJob.wait takes twice `within_ms` at worst,
        infer_model_api.cpp]
        """
        faults: list[Any] = []

        def store(*, completion_info: Any) -> None:
            faults.append(completion_info.exception)

        with explaining(doing, self._binding, self._hef):
            self._configured.wait_for_async_ready(timeout_ms=READY_WITHIN_MS)
            self._configured.run_async([self._bindings], store).wait(within_ms)
            if not faults:
                raise NpuError("lost", f"{doing}: the job ended without saying how")
            if faults[0] is not None:  # neither the call nor the wait raises it
                raise faults[0]
        if not all(np.isfinite(values).all() for values in self.outputs.values()):
            text = f"{doing}: expected numbers, found NaN or infinity; {diagnosis.REPEATED}"
            raise NpuError("garbage", text)

    def close(self) -> None:
        """Free the chip. May take 10 s, or hang, if a job still runs [infer_model.cpp:
        WAIT_FOR_ASYNC_IN_DTOR_TIMEOUT]."""
        configured, self._configured, self._bindings = self._configured, None, None
        if configured is not None:
            # a pending job's callback holds it: dropping the reference here would not end it [py:
            # callback_wrapper]
            or_none(lambda: configured.__exit__(None, None, None))


@contextmanager
def explaining(doing: str, binding: Any, hef: Path | None = None) -> Iterator[None]:
    """Raise as NpuError what HailoRT raises in the block [py: ExceptionWrapper]."""
    try:
        yield
    except NpuError:
        raise
    except Exception as error:  # HailoRT's classes differ with its version
        raise explain(error, doing, str(binding.__version__), hef) from None


@dataclass(frozen=True, slots=True)
class Readings:
    """Readings of the chip's sensors."""

    temperature_c: float | None = None
    """The hotter one of its two sensors."""
    power_w: float | None = None
    """None on boards without the sensor."""
    zone: int | None = None
    """GREEN, 1 (orange) or RED; None if unknown."""
    throttled: bool | None = None
    """True if the firmware has slowed the chip down, for heat or current (inferred)."""


def read(binding: Any, device_id: str) -> Readings:
    """Return the readings; those that a board or a version lacks are None.

    HailoRT allows a second, reading handle on a chip that is in use. Takes some ms, raises nothing.
    [py: Control.get_chip_temperature, power_measurement, _get_health_information]
    """
    opened = or_none(lambda: binding.Device(device_id))
    if opened is None:
        return Readings()
    with opened as device:
        control = device.control
        sensors = or_none(control.get_chip_temperature)
        power = or_none(control.power_measurement)
        health = or_none(getattr(control, "_get_health_information", None))
    return Readings(
        None if sensors is None else max(sensors.ts0_temperature, sensors.ts1_temperature),
        None if power is None else float(power),
        getattr(health, "current_temperature_zone", None),
        None if health is None else _is_throttled(health),
    )


def _is_throttled(health: Any) -> bool:
    """True if a clock was lowered; `temperature_throttling_active` alone says that it may be."""
    by_heat = health.temperature_throttling_active and health.current_temperature_zone != GREEN
    return bool(health.overcurrent_throttling_active or by_heat)


def or_none(reading: Callable[[], Any] | None) -> Any:
    """Return what `reading` does; None without it, or if it raises."""
    try:
        return reading() if reading else None
    except Exception:  # raw HailoRTStatusException, HailoRTException, or no such method
        return None
