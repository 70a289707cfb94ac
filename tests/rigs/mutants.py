"""Runs one test of ours against the package with one text of one module replaced.

    run([Change("appliance.infer.hailo.npu", "old", "new", "tests/...::test_...")], folder)

A process imports the heavy libraries once and forks for each change: the child imports `appliance`
afresh, with the changed source in place of the module's, and runs pytest on the test. Tests of the
same change share a child, and all children share the bundles that the first of them build.
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
"""A child that takes longer for each of its tests is killed, and has no failures to tell."""


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
    kept["ROOMSCRIBE_TEST_BUNDLES"] = str(folder / "bundles")
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
    """Collects the failures of each test, as a plugin of pytest."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.found: dict[str, list[str]] = {test: [] for test in tests}

    def add(self, failure: str, test: str = "") -> None:
        """Add a failure to a test; to every test if it is none of theirs alone."""
        for each in [test] if test in self.found else self.found:
            self.found[each].append(failure)

    def pytest_exception_interact(
        self, node: pytest.Item | pytest.Collector, call: pytest.CallInfo[Any]
    ) -> None:
        assert call.excinfo
        said = " ".join(str(call.excinfo.value).split())
        self.add(f"{call.excinfo.typename}: {said}", node.nodeid)


def child(changes: Sequence[Change], folder: Path, answer: int) -> None:
    """Run the tests of one change and write the failures of each; does not return."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    tests = [change.test for change in changes]
    failures = Failures(tests)
    try:
        if changes[0].old:
            sys.meta_path.insert(0, Finder(changes[0]))
            os.environ["ROOMSCRIBE_TEST_PATIENCE_S"] = "6"  # a condition is meant to fail
        # what was imported before the fork cannot be rewritten, and need not be
        options = ["-q", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        options += ["-p", "no:cacheprovider", f"--basetemp={folder}", *tests]
        status = pytest.main(options, plugins=[failures])
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            failures.add(f"pytest: {status!r}")
    except BaseException as error:
        failures.add(f"{type(error).__name__}: {error}")
    os.write(answer, json.dumps(list(failures.found.values())).encode()[:60_000])
    os._exit(0)


def main() -> None:
    """Answers the changes on standard input."""
    changes = [Change(**one) for one in json.load(sys.stdin)]
    folder = Path(sys.argv[1])
    for name in PRELOADED:
        importlib.import_module(name)
    gc.freeze()  # else each child's collections walk all of that
    groups: dict[tuple[str, str, str], dict[str, Change]] = {}
    for change in changes:
        group = groups.setdefault((change.module, change.old, change.new), {})
        group[change.test] = change
    found: dict[Change, list[str]] = {}
    # what is not changed goes first: it builds the bundles
    for number, group in enumerate(sorted(groups.values(), key=_is_changed)):
        answer, given = os.pipe()
        process = os.fork()
        if not process:
            child([*group.values()], folder / str(number), given)
        os.close(given)
        written = _read(answer, process, WITHIN_S * len(group))
        failures = json.loads(written) if written else [["nothing within the time"]] * len(group)
        found |= zip(group.values(), failures, strict=True)
        os.close(answer)
        os.waitpid(process, 0)
    print(json.dumps([found[change] for change in changes]))


def _is_changed(group: dict[str, Change]) -> bool:
    return any(change.old for change in group.values())


def _read(answer: int, process: int, within_s: float) -> bytes:
    """What a child writes until its end or its time's."""
    deadline_s = time.monotonic() + within_s
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
