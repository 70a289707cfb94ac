"""ONNX Runtime sessions: the only module that uses onnxruntime."""

import ctypes
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance.errors import ModelError, passes
from appliance.infer.runtime import lacking_runtime
from appliance.system import lacks_vnni, one_line

MALLOPT = {"M_TRIM_THRESHOLD": (-1, 128 << 10), "M_ARENA_MAX": (-8, 1)}
"""Parameters of glibc's mallopt(3): (number in malloc.h, value). A window briefly needs arrays of
some megabytes. With glibc's adaptive defaults, 7 MB of them would stay with the process."""


_LIBC = ctypes.CDLL(None)
with suppress(AttributeError):  # a C library without mallopt
    for _parameter, _value in MALLOPT.values():  # before other threads start
        _LIBC.mallopt(_parameter, _value)


def trim_memory() -> None:
    """Return the holes in malloc's heap: 2 to 4 MB after graphs are loaded."""
    with suppress(AttributeError):
        _LIBC.malloc_trim(0)


@contextmanager
def _quiet() -> Iterator[None]:
    """Discard what C++ writes to standard error."""
    sys.stderr.flush()
    original = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as null:
            os.dup2(null.fileno(), 2)
        yield
    finally:
        os.dup2(original, 2)
        os.close(original)


_COPY = (
    b'\x08\x08:7\n\x10\n\x01a\x12\x01b"\x08Identity\x12\x01gZ\x0f\n\x01a\x12\n\n\x08\x08\x01\x12\x04\n\x02'
    b"\x08\x01b\x0f\n\x01b\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\x11"
)
"""An ONNX graph that copies one number."""

if _lacking := lacking_runtime():
    raise ModelError(_lacking)
with _quiet():
    # Debian's onnxruntime 1.21 and its onnx share a table of operators, and each fills it. The
    # second one prints "Schema error" 567 times; loading a graph here makes that happen now.
    try:
        import onnxruntime
    except ImportError as error:
        why = f"onnxruntime cannot be used: {one_line(error)}; install it again"
        raise ModelError(why) from error

    _alone = onnxruntime.SessionOptions()
    _alone.intra_op_num_threads = 1
    onnxruntime.InferenceSession(_COPY, _alone, providers=["CPUExecutionProvider"])

_FAILURES: tuple[type[Exception], ...] = (
    *(RuntimeError, ValueError),
    *(
        found
        for found in vars(onnxruntime.capi.onnxruntime_pybind11_state).values()
        if isinstance(found, type) and issubclass(found, Exception)
    ),
)
"""Errors of onnxruntime. They have no common base and vary with its version; with bound arrays it
raises RuntimeError, and for feeds of other names ValueError."""


@contextmanager
def _running(file: Path) -> Iterator[None]:
    """Turn errors of running a graph into ModelError."""
    try:
        yield
    except _FAILURES as error:
        raise ModelError(f"{file}: running the graph failed: {one_line(error)}") from _cause(error)


class Session:
    """A loaded graph. For one thread at a time."""

    def __init__(self, file: Path, threads: int, *, arena: bool = True) -> None:
        """Load `file` with `threads` CPU threads (0: one for each core the process may use).

        Without `arena`, memory is freed between runs: 30 MB less with onnxruntime 1.21, and as fast
        for small tensors. Raises ModelError if the graph cannot be loaded.
        """
        self._file = file
        try:
            self._session = onnxruntime.InferenceSession(
                str(file), _options(threads, arena), providers=["CPUExecutionProvider"]
            )
        except _FAILURES as error:
            cause = _cause(error)
            fix = "build or install the bundle again"
            if passes(cause):
                fix = "free some memory, choose a smaller model, or check the disk"
            raise ModelError(
                f"{file}: expected a graph that onnxruntime {onnxruntime.__version__} loads, "
                f"found: {one_line(error)}; {fix}"
            ) from cause

    def run(self, feeds: Mapping[str, NDArray[np.generic]]) -> list[NDArray[np.float32]]:
        """Return the outputs in the graph's order. Raises ModelError on failure, also for tensors
        that the graph does not take."""
        with _running(self._file):
            results: list[NDArray[np.float32]] = self._session.run(None, dict(feeds))
        return results

    def bind(
        self, feeds: Mapping[str, NDArray[np.generic]], results: Mapping[str, NDArray[np.generic]]
    ) -> Callable[[], None]:
        """Return a run that reads and writes these C-contiguous arrays each time, without copies.

        If the graph's operators allow it, an array may be both a feed and a result. Raises
        ModelError for arrays that the graph does not take, as the run does if it fails.
        """
        binding = self._session.io_binding()
        with _running(self._file):
            for name, array in feeds.items():
                binding.bind_input(name, *_location_of(array))
            for name, array in results.items():
                binding.bind_output(name, *_location_of(array))

        def run(*_arrays: object) -> None:
            with _running(self._file):
                self._session.run_with_iobinding(binding)

        # onnxruntime has only the arrays' addresses: they must live as long as the binding
        return functools.partial(run, *feeds.values(), *results.values())


def _cause(error: Exception) -> Exception:
    """Return the MemoryError or OSError behind an error of onnxruntime, else `error`. Only its text
    (1.17 to 1.23) shows them, not its class."""
    text = str(error)
    if "bad_alloc" in text or "ailed to allocate memory" in text:
        return MemoryError(text)
    if number := re.search(r"system error number (\d+)", text):
        return OSError(int(number[1]), text)
    return error


def _location_of(
    array: NDArray[np.generic],
) -> tuple[str, int, type[np.generic], tuple[int, ...], int]:
    if not array.flags.c_contiguous:
        raise ValueError(f"the array is not C-contiguous: strides {array.strides}")
    return "cpu", 0, array.dtype.type, array.shape, array.ctypes.data


def _options(
    threads: int, arena: bool, *, saturating: bool | None = None
) -> onnxruntime.SessionOptions:
    """Return session options for an always-on daemon: no busy waiting, no pinned threads.

    On x86 without VNNI (before about 2020, and many virtual machines) products of unsigned and
    signed 8-bit numbers saturate (None: if this processor is one): logits are off by 17 % instead
    of 5 %. There weights are made unsigned when the graph is loaded. onnxruntime would do it on
    x86 with VNNI, too, where it takes half as long again. If an 8-bit matrix has no zero point,
    version 1.21 then writes past the end of its node's inputs.
    """
    saturating = lacks_vnni() if saturating is None else saturating
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or len(os.sched_getaffinity(0))
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.enable_cpu_mem_arena = arena
    options.enable_mem_pattern = False  # would add 1 MB to the arena, and is not faster
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.x64quantprecision", "1" if saturating else "0")
    return options
