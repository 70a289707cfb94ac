"""Runs one test of ours against the package with one text of one module replaced.

    run([Change("appliance.infer.hailo.npu", "old", "new", "tests/...::test_...")], folder)

A process imports the heavy libraries once and forks for each change: the child imports `appliance`
afresh, with the changed source in place of the module's, and runs pytest on the one test.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest
from rigs.checkout import ROOT, environment

PRELOADED = (
    "numpy", "onnx", "onnxruntime", "safetensors.numpy", "soundfile", "soxr", "hypothesis",
    "paho.mqtt.client", "sqlite3", "tomllib", "xxhash",
)  # fmt: skip
WITHIN_S = 30.0
"""A child that takes longer is killed, and has no failures to tell."""


@dataclass(frozen=True, slots=True)
class Change:
    """A module, a text that stands in it once, the text in its place, and the test to be run."""

    module: str
    old: str
    new: str
    test: str


def run(changes: Sequence[Change], folder: Path) -> list[list[str]]:
    """What failed of each change's test, as `Class: message`; nothing where the test passed.

    `folder` takes what the tests write. The processes are not measured: of lines that run with a
    fault the coverage says nothing, and the same tests run on the package as it is.
    """
    unwanted = ("COVERAGE", "PYTHONDONTWRITEBYTECODE")  # the tests are compiled once, not by each
    kept = {name: value for name, value in environment().items() if not name.startswith(unwanted)}
    asked = json.dumps([asdict(change) for change in changes])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "rigs.mutants", str(folder)],
        cwd=ROOT,
        env=kept,
        input=asked,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[list[str]] = json.loads(done.stdout)
    return found


class ChangedSource(SourceFileLoader):
    """Loads a module with its text replaced."""

    def __init__(self, change: Change, file: str) -> None:
        super().__init__(change.module, file)
        self._change = change

    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_text(encoding="utf-8")
        found = source.count(self._change.old)
        if found != 1:
            raise SystemExit(f"{fullname}: {found} times {self._change.old!r}")
        changed = source.replace(self._change.old, self._change.new)
        return compile(changed, str(self.path), "exec")


class Finder(MetaPathFinder):
    """Finds the changed module before its real source is found."""

    def __init__(self, change: Change) -> None:
        self._change = change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._change.module:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec and spec.origin:
            spec.loader = ChangedSource(self._change, spec.origin)
        return spec


class Failures:
    """Collects what fails, as a plugin of pytest."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def pytest_exception_interact(self, call: pytest.CallInfo[Any]) -> None:
        assert call.excinfo
        said = " ".join(str(call.excinfo.value).split())
        self.found.append(f"{call.excinfo.typename}: {said}")


def child(change: Change, folder: Path, answer: int) -> None:
    """Runs the test and writes what failed; does not return."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    failures = Failures()
    try:
        if change.old:
            sys.meta_path.insert(0, Finder(change))
        # what was imported before the fork cannot be rewritten, and need not be
        options = ["-q", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        options += ["-p", "no:cacheprovider", f"--basetemp={folder}", change.test]
        status = pytest.main(options, plugins=[failures])
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            failures.found.append(f"pytest: {status!r}")
    except BaseException as error:
        failures.found.append(f"{type(error).__name__}: {error}")
    os.write(answer, json.dumps(failures.found).encode()[:60_000])
    os._exit(0)


def main() -> None:
    """Answers the changes on standard input."""
    changes = [Change(**one) for one in json.load(sys.stdin)]
    folder = Path(sys.argv[1])
    for name in PRELOADED:
        importlib.import_module(name)
    gc.freeze()  # else each child's collections walk all of that
    found = []
    for number, change in enumerate(changes):
        answer, given = os.pipe()
        process = os.fork()
        if not process:
            child(change, folder / str(number), given)
        os.close(given)
        found.append(json.loads(_read(answer, process) or b'["nothing within the time"]'))
        os.close(answer)
        os.waitpid(process, 0)
    print(json.dumps(found))


def _read(answer: int, process: int) -> bytes:
    """What a child writes until its end or its time's."""
    deadline_s = time.monotonic() + WITHIN_S
    os.set_blocking(answer, False)
    while time.monotonic() < deadline_s:
        try:
            return os.read(answer, 1 << 16)
        except BlockingIOError:
            time.sleep(0.005)
    os.kill(process, signal.SIGKILL)
    return b""


if __name__ == "__main__":
    main()
