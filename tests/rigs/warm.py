"""A Python process that has imported the commands and forks a child for each command.

Most commands take less time than the start of an interpreter and its imports. A child gets the
caller's arguments, environment and standard streams, and ends like any interpreter. It does not get
the caller's working directory (always ROOT), umask and limits.
"""

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

from rigs.checkout import ROOT, environment as environment_of
from rigs.waiting import PATIENCE_S

PRELOADED = (
    "appliance.__main__", "appliance.cli.main", "appliance.cli.doctor.main",
    "appliance.daemon.pipeline",
    "appliance.daemon.lifecycle", "appliance.lab", "appliance.mqtt.publisher",
    "appliance.convert.add", "appliance.convert.sources", "appliance.model.library",
    "appliance.store.store", "appliance.fleet.link", "appliance.infer.transcriber",
    "appliance.web.server", "appliance.wyoming.server",
    "numpy", "numpy.ma", "onnx", "requests", "soundfile", "soxr",
)  # fmt: skip
"""Without onnxruntime, whose import starts a thread: a fork has no threads."""
MESSAGE_BYTES = 200_000
"""Maximum size of a request: arguments and environment."""
STREAMS = (("stdin", "strict"), ("stdout", "strict"), ("stderr", "backslashreplace"))


class WarmPython:
    """The process. `run` is thread-safe."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rigs.warm", str(theirs.fileno())],
                cwd=ROOT,
                env=environment_of(OPENBLAS_NUM_THREADS="1"),
                pass_fds=[theirs.fileno()],
            )

    def run(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        files: Sequence[IO[bytes] | int],
        closed: Sequence[int],
        timeout_s: float,
    ) -> int:
        """Run `python -m appliance ARGUMENTS` and return its exit status, or the negative number of
        the signal that ended it.

        files: its standard streams; closed: the numbers of streams that it does not get.
        Raises TimeoutExpired after killing the child.
        """
        request = {"arguments": arguments, "environment": dict(environment), "closed": closed}
        numbers = [file if isinstance(file, int) else file.fileno() for file in files]
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs, self._lock:
                message = json.dumps(request).encode()
                socket.send_fds(self._line, [message], [*numbers, theirs.fileno()])
            pid = int(ours.recv(64))
            ours.settimeout(timeout_s)
            try:
                return int(ours.recv(64))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(list(arguments), timeout_s) from None

    def stop(self) -> None:
        """End the process."""
        self._line.close()
        self._process.wait(PATIENCE_S)


def serve(line: socket.socket) -> int | None:
    """Fork for each request; return the command's exit status in the child, None in the parent.

    The parent answers a request with the child's process id, and with its exit status at its end.
    """
    waiting = selectors.DefaultSelector()
    waiting.register(line, selectors.EVENT_READ)
    children: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for key, _events in waiting.select():
            if key.fileobj is not line:
                waiting.unregister(key.fd)
                pid, answer = children.pop(key.fd)
                os.close(key.fd)
                _send(answer, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                answer.close()
                continue
            message, numbers, _flags, _from = socket.recv_fds(line, MESSAGE_BYTES, 4)
            if not message:
                return None
            answer = socket.socket(fileno=numbers.pop())
            pid = os.fork()
            if not pid:
                for descriptor, (_pid, other) in children.items():
                    os.close(descriptor)
                    other.close()
                for resource in (answer, waiting, line):
                    resource.close()
                return _command(json.loads(message), numbers)
            for number in numbers:
                os.close(number)
            _send(answer, pid)
            descriptor = os.pidfd_open(pid)
            children[descriptor] = pid, answer
            waiting.register(descriptor, selectors.EVENT_READ)


def _send(answer: socket.socket, number: int) -> None:
    """Send a number to a caller, which may have given up."""
    try:
        answer.send(str(number).encode())
    except OSError:
        return


def _command(request: dict[str, Any], numbers: Sequence[int]) -> int:
    """Set the process up like a new `python -m appliance`, run the command, return its status."""
    for number, given in enumerate(numbers):
        os.dup2(given, number)
        os.close(given)
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    sys.argv = [str(ROOT / "appliance" / "__main__.py"), *request["arguments"]]
    sys.orig_argv = [sys.executable, "-m", "appliance", *request["arguments"]]
    encoding = os.environ.get("PYTHONIOENCODING", "utf-8")
    for number, (name, errors) in enumerate(STREAMS):
        stream = None
        if number in request["closed"]:
            os.close(number)
        else:
            mode = "w" if number else "r"
            stream = os.fdopen(number, mode, encoding=encoding, errors=errors, closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    return importlib.import_module("appliance.__main__").main()  # type: ignore[no-any-return]


if __name__ == "__main__":
    for name in PRELOADED:
        importlib.import_module(name)
    # a child that ends would have the collector visit, and so copy, all that was imported here
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as accepted:
        sys.exit(serve(accepted))
