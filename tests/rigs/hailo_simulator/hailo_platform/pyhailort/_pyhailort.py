"""What is C++ in the real package: the chip and who has it, HEFs, jobs, statuses."""

from __future__ import annotations

import ctypes
import enum
import fcntl
import hashlib
import json
import os
import queue
import threading
import time
import weakref
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

DEFAULTS: dict[str, Any] = {
    "version": "4.23.0",
    "driver": "4.23.0",
    "firmware": "",
    "chip": "HAILO8",
    "latency_ms": 31.0,
    "import_error": "",
    "busy": False,
    "dead": False,
    "service": True,
    "service_version": "",
    "refuse_status": 0,
    "fail_jobs": [],
    "fail_status": 8,
    "hang_jobs": [],
    "hang_s": 3.0,
    "ignore_abort": False,
    "close_s": 10.0,
    "round_int8": False,
    "noise_db": 0.0,
    "nan_jobs": [],
    "deaf": False,
    "temperature_c": 51.5,
    "power_w": 1.6,
    "zone": 0,
    "health": True,
    "remember": True,
    "patience": 1,
    "hold_s": 0.0,
    "crash": False,
}
FOLDER = Path(os.environ["HAILO_SIMULATOR"])
NODE = "dev/hailo0"
LOCK = "owner.lock"
DEVICE_ID = "0001:01:00.0"

STATUS_NAMES = {
    2: "HAILO_INVALID_ARGUMENT",
    3: "HAILO_OUT_OF_HOST_MEMORY",
    4: "HAILO_TIMEOUT",
    6: "HAILO_INVALID_OPERATION",
    7: "HAILO_NOT_IMPLEMENTED",
    8: "HAILO_INTERNAL_FAILURE",
    13: "HAILO_OPEN_FILE_FAILURE",
    15: "HAILO_UNSUPPORTED_CONTROL_PROTOCOL_VERSION",
    16: "HAILO_UNSUPPORTED_FW_VERSION",
    18: "HAILO_FW_CONTROL_FAILURE",
    26: "HAILO_INVALID_HEF",
    36: "HAILO_DRIVER_OPERATION_FAILED",
    47: "HAILO_OUT_OF_DESCRIPTORS",
    61: "HAILO_NOT_FOUND",
    62: "HAILO_COMMUNICATION_CLOSED",
    63: "HAILO_STREAM_ABORT",
    69: "HAILO_NETWORK_GROUP_NOT_ACTIVATED",
    73: "HAILO_DEVICE_IN_USE",
    74: "HAILO_OUT_OF_PHYSICAL_DEVICES",
    76: "HAILO_INVALID_DRIVER_VERSION",
    77: "HAILO_RPC_FAILED",
    78: "HAILO_INVALID_SERVICE_VERSION",
    81: "HAILO_RESOURCE_EXHAUSTED",
    82: "HAILO_QUEUE_IS_FULL",
    87: "HAILO_DRIVER_TIMEOUT",
    89: "HAILO_CONNECTION_REFUSED",
    91: "HAILO_HEF_FILE_CORRUPTED",
    92: "HAILO_HEF_NOT_SUPPORTED",
    93: "HAILO_HEF_NOT_COMPATIBLE_WITH_DEVICE",
    96: "HAILO_DEVICE_NOT_CONNECTED",
    98: "HAILO_LIBUSB_FAILURE",
}
RUNS = {"HAILO8": {"HAILO8", "HAILO8L"}, "HAILO8L": {"HAILO8L"}, "HAILO10H": {"HAILO10H"}}
"""Which HEFs a chip takes."""
QUEUE_SIZE = 4
ABORT, TIMEOUT, OPERATION = 63, 4, 6


def _note(name: str, line: object) -> None:
    """Add a line to a file that every process with this chip shares. violations: what the real
    library would not have noticed, and the user would have suffered from. history: of each job its
    status, and the seconds that the chip had it."""
    with (FOLDER / name).open("a") as file:
        file.write(f"{line}\n")


class HailoRTStatusException(Exception):  # noqa: N818
    """Its only argument is the status, as a text. No HailoRTException."""


class SchedulingAlgorithm(enum.IntEnum):
    NONE = 0
    ROUND_ROBIN = 1


class FormatType(enum.IntEnum):
    AUTO = 0
    UINT8 = 1
    UINT16 = 2
    FLOAT32 = 3


BYTES = {FormatType.AUTO: 1, FormatType.UINT8: 1, FormatType.UINT16: 2, FormatType.FLOAT32: 4}

_known: tuple[int, dict[str, Any]] = (-1, {})


def setting(name: str) -> Any:
    """A setting, read again whenever the file has changed."""
    global _known  # noqa: PLW0603
    file = FOLDER / "control.json"
    stamp = file.stat().st_mtime_ns if file.exists() else 0
    if stamp != _known[0]:
        _known = (stamp, json.loads(file.read_text()) if stamp else {})
    return _known[1].get(name, DEFAULTS[name])


def hold() -> None:
    """Take `hold_s` with the interpreter's lock held, as pybind11 without a guard does."""
    ctypes.PyDLL(None).usleep(int(1e6 * setting("hold_s")))


def version() -> tuple[int, int]:
    major, minor, *_ = setting("version").split(".")
    return int(major), int(minor)


def fail(status: int) -> None:
    raise HailoRTStatusException(str(status))


def get_status_message(status: int) -> str:
    if status == 36 and version() < (4, 20):
        return "HAILO_DRIVER_FAIL"
    if status == 81 and version() < (5, 4):
        return "HAILO_OUT_OF_HOST_CMA_MEMORY"
    if status == 98 and version() < (5, 4):
        return ""
    return STATUS_NAMES.get(status, "")


def scan() -> list[str]:
    return [DEVICE_ID] if (FOLDER / NODE).exists() else []


def open_node() -> int:
    """The node's descriptor, after what the driver is asked first."""
    if not scan():
        fail(74)
    if setting("driver") != setting("version"):
        fail(76)
    return os.open(FOLDER / NODE, os.O_RDONLY)


class Lease:
    """The right to use the chip: one at a time, in all processes; ends with its last reference."""

    def __init__(self, *, shared: bool) -> None:
        self._files: list[int] = []
        self._files.append(open_node())
        if shared:
            return
        lock = os.open(FOLDER / LOCK, os.O_RDWR | os.O_CREAT)
        self._files.append(lock)
        try:
            if setting("busy"):
                raise BlockingIOError
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fail(74)

    def __del__(self) -> None:
        for file in self._files:
            os.close(file)


class VDeviceParams:
    __slots__ = ("_algorithm", "_group", "_service")

    def __init__(self) -> None:
        self._algorithm, self._group, self._service = 0, "UNIQUE", False
        if version() >= (5, 0):
            self._algorithm = SchedulingAlgorithm.ROUND_ROBIN

    @property
    def scheduling_algorithm(self) -> int:
        return int(self._algorithm)

    @scheduling_algorithm.setter
    def scheduling_algorithm(self, value: SchedulingAlgorithm) -> None:
        self._algorithm = _typed(value, SchedulingAlgorithm)

    @property
    def group_id(self) -> str:
        return self._group

    @group_id.setter
    def group_id(self, value: str) -> None:
        self._group = _typed(value, str)

    @property
    def multi_process_service(self) -> bool:
        return self._service

    @multi_process_service.setter
    def multi_process_service(self, value: bool) -> None:
        self._service = _typed(value, bool)


def _typed(value: Any, wanted: type) -> Any:
    if not isinstance(value, wanted):
        raise TypeError("incompatible function arguments")
    return value


class VDevice:
    def __init__(self, params: VDeviceParams) -> None:
        alone = setting("chip") == "HAILO10H"
        if params.multi_process_service:
            if alone and setting("version") != "5.0.0":
                fail(OPERATION)  # validate_params: such a chip is shared without a service
            if not setting("service"):
                fail(77)
            if setting("service_version") not in ("", setting("version")):
                fail(78)
        shared = (params.multi_process_service or alone) and params.group_id == "SHARED"
        self.lease: Lease | None = Lease(shared=shared)
        if setting("dead"):
            fail(87)
        self.scheduled = params.scheduling_algorithm == SchedulingAlgorithm.ROUND_ROBIN

    def release(self) -> None:
        self.lease = None

    def create_infer_model_from_file(self, path: str, name: str) -> InferModel:
        _typed(path, str), _typed(name, str)
        return InferModel(self, path)


@dataclass
class Edge:
    name: str
    shape: list[int]
    tensor: str
    format_type: FormatType = FormatType.AUTO

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * BYTES[self.format_type]


class InferModel:
    def __init__(self, device: VDevice, path: str) -> None:
        self.lease, self.scheduled = device.lease, device.scheduled
        self.path = Path(path)
        about = read_hef(self.path)
        self.chip, self.graph = about["chip"], self.path.with_name(about["graph"])
        self.inputs = [Edge(*edge) for edge in about["inputs"]]
        self.outputs = [Edge(*edge) for edge in about["outputs"]]

    def configure(self) -> Configured:
        if self.lease is None:
            fail(OPERATION)
        if setting("refuse_status"):
            fail(setting("refuse_status"))
        if self.chip not in RUNS[setting("chip")]:
            fail(93 if version() > (4, 20) else 26)
        return Configured(self)


def read_hef(path: Path) -> dict[str, Any]:
    """What a HEF of these tests (hef_files.py) says."""
    old = version() <= (4, 20)
    try:
        content = path.read_bytes()
    except OSError:
        fail(13)
    if content[:4] != b"\x01HEF":
        fail(26 if old else 92)
    if zlib.crc32(content[8:]) != int.from_bytes(content[4:8], "big"):
        fail(26 if old else 91)
    about: dict[str, Any] = json.loads(content[8:])
    return about


Buffers = dict[str, "np.ndarray | None"]


@dataclass
class Job:
    number: int
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    before: str
    callback: Any
    done: threading.Event = field(default_factory=threading.Event)
    answered: threading.Event = field(default_factory=threading.Event)
    status: int = 0

    def wait(self, timeout_s: float) -> None:
        """Twice the timeout, at worst; says nothing of how the job ended. `patience` makes it
        longer, for a processor that is too busy to play the chip."""
        timeout_s *= setting("patience")
        if not self.done.wait(timeout_s) or not self.answered.wait(timeout_s):
            fail(TIMEOUT)


_jobs = 0
_chip = threading.Lock()
"""Held by the job that the chip works on: the scheduler gives it to one network at a time."""


class Configured:
    """A worker runs its jobs one after another."""

    def __init__(self, model: InferModel) -> None:
        self.lease, self.scheduled = model.lease, model.scheduled
        self.inputs, self.outputs = model.inputs, model.outputs
        self._queue: queue.Queue[Job | None] = queue.Queue()
        stop, gone = threading.Event(), threading.Event()
        worker = threading.Thread(
            target=_work, args=(self._queue, stop, gone, Network(model)), daemon=True
        )
        worker.start()
        self._end = weakref.finalize(self, _end, self._queue, stop, gone, worker)

    def shutdown(self) -> None:
        self._end()

    def ready(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s * setting("patience")
        while self._queue.unfinished_tasks >= QUEUE_SIZE:
            if time.monotonic() > deadline:
                fail(TIMEOUT)
            time.sleep(0.001)

    def run(self, inputs: Buffers, outputs: Buffers, callback: Any) -> Job:
        global _jobs  # noqa: PLW0603
        if not self.scheduled:
            fail(69)  # and nobody activates it
        if self._queue.unfinished_tasks >= QUEUE_SIZE:
            fail(82)
        sources = _checked(self.inputs, inputs)
        targets = _checked(self.outputs, outputs)
        if self._queue.unfinished_tasks:
            _note("violations", "a job was started while the buffers' last one was running")
        _jobs += 1
        job = Job(_jobs, sources, targets, _digest(sources), callback)
        self._queue.put(job)
        return job


def _checked(edges: list[Edge], buffers: Buffers) -> dict[str, np.ndarray]:
    """The buffers, of which nothing is looked at but how many bytes they have."""
    found = {}
    for edge in edges:
        array = buffers.get(edge.name)
        if array is None or array.nbytes != edge.nbytes:
            fail(OPERATION)
        assert array is not None
        found[edge.name] = array
    return found


def _digest(arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha1()
    for name in sorted(arrays):
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()


def _end(
    jobs: queue.Queue[Job | None],
    stop: threading.Event,
    gone: threading.Event,
    worker: threading.Thread,
) -> None:
    """What the destructor does: gives running jobs up and waits for their callbacks, for 10 s where
    the chip takes no notice (WAIT_FOR_ASYNC_IN_DTOR_TIMEOUT)."""
    stop.set()
    jobs.put(None)
    if worker is threading.current_thread():
        _note("violations", "the last reference died in the callback's thread: the process ends")
        return
    worker.join(setting("close_s"))
    gone.set()
    worker.join()


def _work(
    jobs: queue.Queue[Job | None], stop: threading.Event, gone: threading.Event, network: Network
) -> None:
    while (job := jobs.get()) is not None:
        begun = time.perf_counter()
        while not (has_chip := _chip.acquire(timeout=0.01)) and not stop.is_set():
            pass
        if has_chip:
            begun = time.perf_counter()
            job.status = _run(job, stop, gone, network)
            _chip.release()
        else:
            job.status = ABORT
        _note("history", f"{job.status} {time.perf_counter() - begun}")
        job.done.set()
        jobs.task_done()
        try:
            job.callback(job.status)
        except BaseException as error:
            _note("violations", f"the callback raised {error!r}: the process ends")
        job.answered.set()
        job.callback = None
        del job


def _run(job: Job, stop: threading.Event, gone: threading.Event, network: Network) -> int:
    """Computes what the chip would; the status. A failed job leaves garbage that looks real."""
    begun = time.perf_counter()
    status = setting("fail_status") if _is_told(job.number, "fail_jobs") else 0
    if setting("dead") or not scan():
        status = ABORT
    results = None if status else network.compute(job)
    if results and setting("deaf"):  # nearly the states of silence, whatever was said
        network.first = network.first or results
        results = {name: network.first[name] + 1e-3 * results[name] for name in results}
    pause_s = setting("latency_ms") / 1000
    if _is_told(job.number, "hang_jobs"):
        pause_s = setting("hang_s")
    abort = gone if setting("ignore_abort") else stop
    if abort.wait(max(0.0, pause_s - (time.perf_counter() - begun))):
        status = ABORT
    if _digest(job.inputs) != job.before:
        _note("violations", "the input was changed while its job was running")
    rng = np.random.Generator(np.random.PCG64(job.number))
    for name, target in job.outputs.items():
        if status or results is None:
            target.reshape(-1).view(np.float32)[:] = rng.random(target.nbytes // 4)
        else:
            target.reshape(-1).view(np.uint8)[:] = results[name].reshape(-1).view(np.uint8)
        if _is_told(job.number, "nan_jobs"):
            target.reshape(-1).view(np.float32)[7::16] = np.nan
    return status


def _is_told(number: int, name: str) -> bool:
    told = setting(name)
    return told == "all" or number in told


_sessions: dict[Path, Any] = {}
_results: dict[tuple[Path, str, bool, float], dict[str, np.ndarray]] = {}
"""Of inputs met before, if they are remembered: of those a job takes its latency and nothing else.
"""


class Network:
    """What a HEF computes: a graph of the bundle's own, on the bytes as they lie."""

    def __init__(self, model: InferModel) -> None:
        self._graph = model.graph
        self._inputs = {edge.name: edge.tensor for edge in model.inputs}
        self._outputs = {edge.name: edge.tensor for edge in model.outputs}
        self.first: dict[str, np.ndarray] | None = None
        """States of the zeros that each network is opened with."""

    def compute(self, job: Job) -> dict[str, np.ndarray]:
        """The arrays of the outputs, by the names of the edges."""
        rounded, noise_db = bool(setting("round_int8")), float(setting("noise_db"))
        key = (self._graph, job.before, rounded, noise_db)
        if key not in _results:
            session = self._session()
            shapes = {
                tensor.name: [size if isinstance(size, int) else -1 for size in tensor.shape]
                for tensor in session.get_inputs()
            }
            feeds = {}
            for edge, tensor in self._inputs.items():
                values = np.frombuffer(job.inputs[edge].tobytes(), np.float32)
                sizes = [size if isinstance(size, int) else -1 for size in shapes[tensor]]
                feeds[tensor] = values.reshape(sizes)
            if rounded:
                feeds = {name: _round(values, 8) for name, values in feeds.items()}
            results = session.run(list(self._outputs.values()), feeds)
            if noise_db and "states" in self._outputs.values():  # measured on encoders alone
                rng = np.random.Generator(np.random.PCG64(int(job.before, 16)))
                results = [_round(_with_noise(rng, each, noise_db), 16) for each in results]
            if rounded:
                results = [_round(each, 8) for each in results]
            found = dict(zip(self._outputs, results, strict=True))
            if not setting("remember"):
                return found
            _results[key] = found
        return _results[key]

    def _session(self) -> Any:
        import onnxruntime

        if self._graph not in _sessions:
            options = onnxruntime.SessionOptions()
            # exact 8-bit products on every processor, as the product has them
            options.add_session_config_entry("session.x64quantprecision", "1")
            options.intra_op_num_threads = 2
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
            _sessions[self._graph] = onnxruntime.InferenceSession(
                str(self._graph), options, providers=["CPUExecutionProvider"]
            )
        return _sessions[self._graph]


def _round(values: np.ndarray, bits: int) -> np.ndarray:
    """Through 2^bits steps between smallest and largest, as an edge of the chip has them."""
    low, high = float(values.min()), float(values.max())
    step = (high - low) / (2**bits - 1) or 1.0
    return (np.round((values - low) / step) * step + low).astype(np.float32)


def _with_noise(rng: np.random.Generator, values: np.ndarray, noise_db: float) -> np.ndarray:
    """What is lost inside the chip: noise in each channel (the last axis), so far below its own
    spread. Others measured 15 dB with whisper-tiny on a Hailo-8L (ktomanek's
    huggingface_whisper_to_hailo_conversion: mean difference 0.189, standard deviation 1.365)."""
    spread = values.std(axis=tuple(range(values.ndim - 1)), dtype=np.float64)
    return values + rng.normal(0, 1, values.shape) * spread * 10 ** (-noise_db / 20)
