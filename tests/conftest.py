"""Shared by all tests: fixtures, the model, and the summaries below pytest's."""

import contextlib
import gc
import io
import logging
import os
import signal
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from rigs.command import stop_warm_python

pytest_plugins = ["rigs.selection", "rigs.models", "rigs.disks", "rigs.hailo", "rigs.systemd"]

# a shell's background job ignores Ctrl-C, and so would the programs that the tests interrupt
signal.signal(signal.SIGINT, signal.default_int_handler)
# the tests use the built-in model, whichever one this user has chosen
os.environ["ROOMSCRIBE_MODELS"] = str(Path(tempfile.gettempdir()) / "roomscribe-tests-no-models")


@pytest.fixture(scope="session", autouse=True)
def warm_python() -> Iterator[None]:
    """End the process behind `rigs.command.roomscribe` before coverage joins its files."""
    yield
    stop_warm_python()


@pytest.fixture(autouse=True)
def handlers_of_one_test() -> Iterator[None]:
    """Undo the logging setup of commands that a test runs in this process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = [handler for handler in root.handlers if handler in handlers]
    root.setLevel(level)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect the tests without looking for garbage, nor later for garbage among them.

    There are thousands of tests, and each process has all of them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Delete coverage files that a killed process left unfinished, before `--cov` joins all."""
    result = yield
    a_worker = hasattr(session.config, "workerinput")  # of pytest-xdist, while others still write
    if session.config.getoption("--cov", default=None) and not a_worker:
        for file in session.config.rootpath.glob(".coverage.*"):
            if not is_whole(file):
                file.unlink()
    return result


def is_whole(file: Path) -> bool:
    """Return whether a database has all its pages and the last table that coverage makes."""
    with contextlib.closing(sqlite3.connect(file)) as connection:
        try:
            connection.execute("SELECT 1 FROM tracer")
            found: tuple[str] = connection.execute("PRAGMA integrity_check").fetchone()
        except sqlite3.DatabaseError:
            return False
        return found == ("ok",)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the coverage of lab/ and the skipped tests by reason."""
    if terminalreporter.config.getoption("--cov", default=None):
        show_coverage_of_lab(terminalreporter)
    show_skipped(terminalreporter)


def show_skipped(reporter: pytest.TerminalReporter) -> None:
    """Print how many tests were skipped for each reason, which names what to install."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in reporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    )
    if reasons:
        reporter.write_sep("=", "skipped tests by reason")
    for reason, count in reasons.most_common():
        reporter.write_line(f"{count:4} {reason}")


def show_coverage_of_lab(reporter: pytest.TerminalReporter) -> None:
    """Print the coverage of lab/, which the daemon never runs and the table of `--cov` omits."""
    from coverage import Coverage
    from coverage.exceptions import NoDataError

    coverage = Coverage()
    coverage.load()
    try:
        share = coverage.report(include=["appliance/lab/*"], omit=[], file=io.StringIO())
    except NoDataError:  # none of lab/ was measured
        return
    reporter.write_line(f"appliance/lab/, which is not in this table: {share:.1f} %")
