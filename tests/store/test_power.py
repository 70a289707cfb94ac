"""Power cuts at many moments: what was promised is there. More: scripts/measure torture power."""

import subprocess
import sys

import pytest
from rigs.checkout import ROOT, environment
from rigs.needs import program
from rigs.waiting import PATIENCE_S


def torture(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "resilience.power", "--cuts", "60", "--transcripts", "50"]
    done = subprocess.run(
        [*command, *arguments], check=False, capture_output=True, text=True, timeout=PATIENCE_S,
        cwd=ROOT, env=environment(),
    )  # fmt: skip
    if "skipped" in done.stdout:
        pytest.skip(done.stdout.strip())
    return done


@program("strace")
def test_after_a_power_cut_everything_promised_is_there_in_a_whole_file() -> None:
    done = torture()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "60 among" in done.stdout


@program("strace")
def test_the_cuts_find_the_losses_of_a_store_that_does_not_sync() -> None:
    done = torture("--without-sync")
    assert done.returncode == 1
    assert "is lost" in done.stderr
