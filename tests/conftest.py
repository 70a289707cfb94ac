"""What all tests share: the rigs' fixtures, the model they run with, and what coverage prints."""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path

import pytest

pytest_plugins = ["rigs.models", "rigs.disks", "rigs.hailo", "rigs.systemd"]

# whatever model this machine's user has chosen, the tests run with the built-in one
os.environ["ROOMSCRIBE_MODELS"] = str(Path(tempfile.gettempdir()) / "roomscribe-tests-no-models")


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Below the table of `--cov`: lab/, which the appliance itself never runs and it leaves out."""
    if not terminalreporter.config.getoption("--cov", default=None):
        return
    from coverage import Coverage

    coverage = Coverage()
    coverage.load()
    share = coverage.report(include=["appliance/lab/*"], omit=[], file=io.StringIO())
    terminalreporter.write_line(f"appliance/lab/, which is not in this table: {share:.1f} %")
