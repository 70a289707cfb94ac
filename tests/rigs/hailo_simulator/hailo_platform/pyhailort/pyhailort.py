"""What is Python in the real package: classes around _pyhailort, and its exceptions."""

from __future__ import annotations

import gc
import os
from collections import deque
from datetime import timedelta
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
from hailo_platform.pyhailort import _pyhailort
from hailo_platform.pyhailort._pyhailort import FormatType

__all__ = ["HEF", "Device", "FormatType", "HailoRTException", "HailoSchedulingAlgorithm", "VDevice"]

HailoSchedulingAlgorithm = _pyhailort.SchedulingAlgorithm


class HailoRTException(Exception):  # noqa: N818
    pass


class HailoRTTimeout(HailoRTException):
    pass


class HailoRTStreamAborted(HailoRTException):
    pass


class HailoRTInvalidOperationException(HailoRTException):
    pass


class HailoRTInvalidArgumentException(HailoRTException):
    pass


class HailoRTNotFoundException(HailoRTException):
    pass


class HailoRTInvalidHEFException(HailoRTException):
    pass


class HailoRTHEFNotCompatibleWithDevice(HailoRTException):
    pass


class HailoRTDriverOperationFailedException(HailoRTException):
    pass


class HailoRTPCIeDriverException(HailoRTException):
    pass


class HailoRTNetworkGroupNotActivatedException(HailoRTException):
    pass


class HailoCommunicationClosedException(HailoRTException):
    pass


CLASSES = {
    "HAILO_TIMEOUT": HailoRTTimeout,
    "HAILO_STREAM_ABORT": HailoRTStreamAborted,
    "HAILO_INVALID_OPERATION": HailoRTInvalidOperationException,
    "HAILO_INVALID_ARGUMENT": HailoRTInvalidArgumentException,
    "HAILO_NOT_FOUND": HailoRTNotFoundException,
    "HAILO_INVALID_HEF": HailoRTInvalidHEFException,
    "HAILO_HEF_NOT_COMPATIBLE_WITH_DEVICE": HailoRTHEFNotCompatibleWithDevice,
    "HAILO_DRIVER_OPERATION_FAILED": HailoRTDriverOperationFailedException,
    "HAILO_DRIVER_FAIL": HailoRTPCIeDriverException,
    "HAILO_COMMUNICATION_CLOSED": HailoCommunicationClosedException,
    "HAILO_NETWORK_GROUP_NOT_ACTIVATED": HailoRTNetworkGroupNotActivatedException,
}


class ExceptionWrapper:
    """Turns raw statuses into exceptions whose cause is the raw one."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        if kind is _pyhailort.HailoRTStatusException:
            raise self.create_exception_from_status(int(value.args[0])) from value

    @staticmethod
    def create_exception_from_status(status: int) -> HailoRTException:
        name = _pyhailort.get_status_message(status)
        if name in CLASSES:
            return CLASSES[name](f"{name.removeprefix('HAILO_').lower()}. See hailort.log")
        return HailoRTException(f"libhailort failed with error: {status} ({name})")


class DeviceArchitectureTypes(IntEnum):
    HAILO8_A0 = 0
    HAILO8 = 1
    HAILO8L = 2
    HAILO15H = 3
    HAILO15L = 4
    HAILO15M = 5
    HAILO10H = 6

    def __str__(self) -> str:
        return self.name


class BoardInformation:
    def __init__(self) -> None:
        firmware = _pyhailort.setting("firmware") or _pyhailort.setting("version")
        self.firmware_version = f"{firmware} (release,app)"
        self.device_architecture = DeviceArchitectureTypes[_pyhailort.setting("chip")]


class Control:
    def identify(self) -> BoardInformation:
        _pyhailort.hold()
        return BoardInformation()

    def get_chip_temperature(self) -> Any:
        _pyhailort.hold()
        value = _pyhailort.setting("temperature_c")
        return SimpleNamespace(ts0_temperature=value, ts1_temperature=value - 1, sample_count=1)

    def power_measurement(self) -> float:
        with ExceptionWrapper():
            if _pyhailort.setting("power_w") is None:
                _pyhailort.fail(18)
        return float(_pyhailort.setting("power_w"))

    def _get_health_information(self) -> Any:
        with ExceptionWrapper():
            if not _pyhailort.setting("health"):
                _pyhailort.fail(18)
        return SimpleNamespace(
            overcurrent_throttling_active=False,
            temperature_throttling_active=True,
            current_temperature_zone=_pyhailort.setting("zone"),
        )


class Device:
    """For looking at a chip, also while somebody else uses it. Raises raw statuses."""

    def __init__(self, device_id: str | None = None) -> None:
        gc.collect()
        self._file = -1
        if device_id is None and not _pyhailort.scan():
            raise HailoRTException("HailoRT device not found in the system")
        self._file = _pyhailort.open_node()
        self.control = Control()

    @classmethod
    def scan(cls) -> list[str]:
        found: list[str] = _pyhailort.scan()
        return found

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> Literal[False]:
        self.release()
        return False

    def __del__(self) -> None:
        self.release()

    def release(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class HEF:
    """A HEF without a device."""

    def __init__(self, hef_source: str) -> None:
        with ExceptionWrapper():
            _pyhailort._typed(hef_source, str)
            self._about = _pyhailort.read_hef(Path(hef_source))

    def get_sorted_output_names(self, network_group_name: str | None = None) -> list[str]:
        """In the order that the compiler wrote down."""
        return list(self._about["order"])


class InferStream:
    def __init__(self, edge: _pyhailort.Edge) -> None:
        self._edge = edge

    @property
    def name(self) -> str:
        name: str = self._edge.name
        return name

    @property
    def shape(self) -> list[int]:
        return list(self._edge.shape)

    def set_format_type(self, type: FormatType) -> None:
        self._edge.format_type = _pyhailort._typed(type, FormatType)


class InferModel:
    def __init__(self, inner: _pyhailort.InferModel) -> None:
        self._inner = inner

    def set_batch_size(self, batch_size: int) -> None:
        _pyhailort._typed(batch_size, int)

    @property
    def inputs(self) -> list[InferStream]:
        return [InferStream(edge) for edge in self._inner.inputs]

    @property
    def outputs(self) -> list[InferStream]:
        return [InferStream(edge) for edge in self._inner.outputs]

    def input(self, name: str = "") -> InferStream:
        return InferStream(_pick(self._inner.inputs, name))

    def output(self, name: str = "") -> InferStream:
        return InferStream(_pick(self._inner.outputs, name))

    def configure(self) -> ConfiguredInferModel:
        with ExceptionWrapper():
            return ConfiguredInferModel(self._inner.configure(), self)


def _pick(edges: list[_pyhailort.Edge], name: str) -> _pyhailort.Edge:
    """The edge of that name; no name will do where there is one alone."""
    found = [edge for edge in edges if name in ("", edge.name)]
    with ExceptionWrapper():
        if len(found) != 1:
            _pyhailort.fail(61 if name else 6)
    return found[0]


class BoundStream:
    def __init__(self) -> None:
        self.inner: np.ndarray | None = None
        """What the C++ part has."""

    def set_buffer(self, buffer: np.ndarray) -> None:
        if not buffer.flags.c_contiguous:
            raise HailoRTException("Buffer must be C_CONTIGUOUS")
        if not buffer.flags.writeable:
            raise ValueError("array is not writeable")
        self.inner = buffer


class Bindings:
    def __init__(self, model: InferModel) -> None:
        self._edges = model._inner.inputs, model._inner.outputs
        self._inputs = {edge.name: BoundStream() for edge in self._edges[0]}
        self._outputs = {edge.name: BoundStream() for edge in self._edges[1]}

    def input(self, name: str = "") -> BoundStream:
        return self._inputs[_pick(self._edges[0], name).name]

    def output(self, name: str = "") -> BoundStream:
        return self._outputs[_pick(self._edges[1], name).name]

    def _buffers(self) -> tuple[_pyhailort.Buffers, _pyhailort.Buffers]:
        bound = self._inputs, self._outputs
        inputs, outputs = ({name: s.inner for name, s in side.items()} for side in bound)
        return inputs, outputs


class AsyncInferCompletionInfo:
    def __init__(self, exception: HailoRTException | None) -> None:
        self._exception = exception

    @property
    def exception(self) -> HailoRTException | None:
        return self._exception


class AsyncInferJob:
    def __init__(self, inner: _pyhailort.Job) -> None:
        self._inner = inner

    def wait(self, timeout_ms: int) -> None:
        with ExceptionWrapper():
            self._inner.wait(timedelta(milliseconds=timeout_ms).total_seconds())


class ConfiguredInferModel:
    def __init__(self, inner: _pyhailort.Configured, model: InferModel) -> None:
        self._inner: _pyhailort.Configured | None = inner
        self._infer_model = model
        self._buffer_guards: deque[Any] = deque()

    def __enter__(self) -> ConfiguredInferModel:
        return self

    def __exit__(self, *_: object) -> None:
        self._inner = None

    def create_bindings(self) -> Bindings:
        return Bindings(self._infer_model)

    def wait_for_async_ready(self, timeout_ms: int = 1000, frames_count: int = 1) -> None:
        assert self._inner
        with ExceptionWrapper():
            self._inner.ready(timeout_ms / 1000)

    def run_async(self, bindings: list[Bindings], callback: Any = None) -> AsyncInferJob:
        assert self._inner
        bound = bindings[0]._buffers()
        self._buffer_guards.append(bound)

        def finish(status: int) -> None:
            error = ExceptionWrapper.create_exception_from_status(status) if status else None
            if callback:
                callback(completion_info=AsyncInferCompletionInfo(error))
            self._buffer_guards.popleft()

        with ExceptionWrapper():
            return AsyncInferJob(self._inner.run(*bound, finish))

    def shutdown(self) -> None:
        assert self._inner
        self._inner.shutdown()


class VDevice:
    def __init__(self, params: Any = None) -> None:
        gc.collect()
        self._inner: _pyhailort.VDevice | None = None
        self._creation_pid = os.getpid()
        if params is None:
            params = VDevice.create_params()
        with ExceptionWrapper():
            self._inner = _pyhailort.VDevice(params)

    @staticmethod
    def create_params() -> _pyhailort.VDeviceParams:
        return _pyhailort.VDeviceParams()

    def __enter__(self) -> VDevice:
        return self

    def __exit__(self, *_: object) -> Literal[False]:
        self.release()
        return False

    def __del__(self) -> None:
        self.release()

    def release(self) -> None:
        if self._inner is not None:
            self._inner.release()
            self._inner = None

    def create_infer_model(self, hef_source: Any, name: str = "") -> InferModel:
        if os.getpid() != self._creation_pid:
            raise HailoRTException("InferModel can be created only from the process of VDevice")
        assert self._inner
        with ExceptionWrapper():
            return InferModel(self._inner.create_infer_model_from_file(hef_source, name))
