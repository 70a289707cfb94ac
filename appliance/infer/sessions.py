"""ONNX Runtime sessions: the one place that knows onnxruntime."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance.errors import ModelError, passes
from appliance.infer.runtime import lacking_runtime
from appliance.system import one_line

MALLOPT = {"M_TRIM_THRESHOLD": (-1, 128 << 10), "M_ARENA_MAX": (-8, 1)}
"""Parameters of glibc's mallopt(3), their numbers in malloc.h and the values set here. A window
needs arrays of some megabytes for a moment. With glibc's defaults, which adapt to the largest array
freed, their memory stays with the process: 7 MB."""


def _return_freed_memory() -> None:
    """Have malloc return freed memory to the system; before other threads start."""
    libc = ctypes.CDLL(None)
    with suppress(AttributeError):  # a C library without mallopt
        for parameter, value in MALLOPT.values():
            libc.mallopt(parameter, value)


@contextmanager
def _quiet() -> Iterator[None]:
    """Points file descriptor 2 at /dev/null, for what is said from C++."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


_COPY = (
    b'\x08\x08:7\n\x10\n\x01a\x12\x01b"\x08Identity\x12\x01gZ\x0f\n\x01a\x12\n\n\x08\x08\x01\x12\x04\n\x02'
    b"\x08\x01b\x0f\n\x01b\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\x11"
)
"""A graph that copies one number."""

_return_freed_memory()
with _quiet():
    # Debian's onnxruntime 1.21 and its onnx share a table of operators, which each of them fills.
    # The second to do so says 567 times "Schema error": here, and from now on neither does.
    try:
        import onnxruntime as onnxruntime  # noqa: PLC0414 - the lab has it from here
    except ImportError as error:
        raise ModelError(
            lacking_runtime() or f"onnxruntime cannot be used: {one_line(error)}; install it again"
        ) from error

    _alone = onnxruntime.SessionOptions()
    _alone.intra_op_num_threads = 1
    onnxruntime.InferenceSession(_COPY, _alone, providers=["CPUExecutionProvider"])

Shape = tuple[int | None, ...]
"""Sizes of a tensor; None where the size may vary."""

_FAILURES: tuple[type[Exception], ...] = (
    RuntimeError,
    *(
        found
        for found in vars(onnxruntime.capi.onnxruntime_pybind11_state).values()
        if isinstance(found, type) and issubclass(found, Exception)
    ),
)
"""What onnxruntime raises; its classes have no base of their own and come and go with versions, and
with bound arrays it raises RuntimeError."""


class Session:
    """A loaded graph whose inputs and outputs were checked. Used from one thread at a time."""

    def __init__(
        self,
        file: Path,
        threads: int,
        inputs: Mapping[str, Shape],
        outputs: Mapping[str, Shape],
        *,
        arena: bool = True,
        precise: bool = True,
    ) -> None:
        """Loads `file` with `threads` CPU threads (0: one for each core the process may use).

        Without `arena` memory is given back between uses: 30 MB less with onnxruntime 1.21, for a
        graph of small tensors as fast. Without `precise` INT8 products may saturate, see _options.
        Raises ModelError when the graph cannot be loaded or its tensors are not as given.
        """
        self._file = file
        try:
            self._session = onnxruntime.InferenceSession(
                str(file), _options(threads, arena, precise), providers=["CPUExecutionProvider"]
            )
        except _FAILURES as error:
            cause = _cause(error)
            fix = "build or install the bundle again"
            if passes(cause):
                fix = "free some memory, take a smaller model, or look at the disk"
            raise ModelError(
                f"{file}: expected a graph that onnxruntime {onnxruntime.__version__} loads, "
                f"found: {one_line(error)}; {fix}"
            ) from cause
        _check_tensors(file, "input", inputs, self._session.get_inputs())
        _check_tensors(file, "output", outputs, self._session.get_outputs())
        self._outputs = list(outputs)

    def run(self, feeds: Mapping[str, NDArray[np.generic]]) -> list[NDArray[np.float32]]:
        """The outputs, in the order given at construction. Raises ModelError when the run fails."""
        try:
            results: list[NDArray[np.float32]] = self._session.run(self._outputs, dict(feeds))
        except _FAILURES as error:
            raise ModelError(
                f"{self._file}: running the graph failed: {one_line(error)}"
            ) from _cause(error)
        return results

    def bind(
        self, feeds: Mapping[str, NDArray[np.generic]], results: Mapping[str, NDArray[np.generic]]
    ) -> Bound:
        """A run whose arrays, C-contiguous, are always these; see Bound."""
        return Bound(self._file, self._session, feeds, results)


class Bound:
    """A run that reads and writes the same arrays each time, in place and without a copy.

    An array may be fed and a result at once, where the graph's operators allow that.
    """

    def __init__(
        self,
        file: Path,
        session: onnxruntime.InferenceSession,
        feeds: Mapping[str, NDArray[np.generic]],
        results: Mapping[str, NDArray[np.generic]],
    ) -> None:
        self._file, self._session = file, session
        self._kept = (*feeds.values(), *results.values())
        """onnxruntime knows their addresses alone: they must live as long as the binding."""
        self._binding = session.io_binding()
        for name, array in feeds.items():
            self._binding.bind_input(name, *_place(array))
        for name, array in results.items():
            self._binding.bind_output(name, *_place(array))

    def run(self) -> None:
        """Reads the feeds, fills the results. Raises ModelError when the run fails."""
        try:
            self._session.run_with_iobinding(self._binding)
        except _FAILURES as error:
            raise ModelError(
                f"{self._file}: running the graph failed: {one_line(error)}"
            ) from _cause(error)


def version() -> str:
    """onnxruntime's."""
    return str(onnxruntime.__version__)


def _cause(error: Exception) -> Exception:
    """What onnxruntime met, as Python raises it: too little memory, or what the system said of a
    file; else `error`. Its classes do not tell, its text does (1.17 to 1.23)."""
    text = str(error)
    if "bad_alloc" in text or "ailed to allocate memory" in text:
        return MemoryError(text)
    if number := re.search(r"system error number (\d+)", text):
        return OSError(int(number[1]), text)
    return error


def _place(array: NDArray[np.generic]) -> tuple[str, int, type[np.generic], Shape, int]:
    """Where an array lies, as onnxruntime's binding wants it."""
    if not array.flags.c_contiguous:
        raise ValueError(f"expected a C-contiguous array, found strides {array.strides}")
    return "cpu", 0, array.dtype.type, array.shape, array.ctypes.data


def _options(threads: int, arena: bool, precise: bool) -> onnxruntime.SessionOptions:
    """Session options of an always-on daemon: no busy waiting, no pinning of threads to cores.

    On x86 without VNNI (before about 2020, and many virtual machines) products of unsigned with
    signed 8-bit numbers saturate: logits are off by 17 % in place of 5 %. `precise` makes weights
    unsigned there when the graph is loaded; elsewhere it changes nothing. Where an 8-bit matrix has
    no zero point, onnxruntime 1.21 writes behind the end of its node's inputs then.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or len(os.sched_getaffinity(0))
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.enable_cpu_mem_arena = arena
    options.enable_mem_pattern = False  # its blocks come on top of the arena's: 1 MB, not faster
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.x64quantprecision", "1" if precise else "0")
    return options


def _check_tensors(
    file: Path, role: str, wanted: Mapping[str, Shape], present: Sequence[onnxruntime.NodeArg]
) -> None:
    """Raises ModelError at the first tensor of `wanted` that is absent or has another shape."""
    found = {
        tensor.name: tuple(size if isinstance(size, int) else None for size in tensor.shape)
        for tensor in present
    }
    for name, shape in wanted.items():
        if found.get(name) != shape:
            raise ModelError(
                f"{file}: {role} {name}: expected shape {_show(shape)}, "
                f"found {_show(found[name]) if name in found else 'none of that name'}; "
                "build or install the bundle again"
            )
    if surplus := sorted(found.keys() - wanted.keys()):
        raise ModelError(
            f"{file}: expected no {role} but {', '.join(wanted)}, found {', '.join(surplus)}; "
            "build or install the bundle again"
        )


def _show(shape: Shape) -> str:
    return "(" + ", ".join("any" if size is None else str(size) for size in shape) + ")"
