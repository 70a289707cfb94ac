"""scripts/deb/root.sh: of two scripts that use the same Debian roots, the second waits."""

from __future__ import annotations

import subprocess
from pathlib import Path

from rigs.checkout import ROOT

TAKE_TURN = ". scripts/deb/root.sh; take_turn test; echo mine; read -r line"


def start_script(cache: Path) -> subprocess.Popen[str]:
    """Return a running script that takes the turn, prints a line, and ends when it reads one."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        ["bash", "-euc", TAKE_TURN, "scripts/some-test"],
        stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "ROOMSCRIBE_BUILD_CACHE": str(cache)},
    )  # fmt: skip


def test_the_second_script_names_the_first_and_waits_until_it_has_ended(tmp_path: Path) -> None:
    with start_script(tmp_path) as first:
        assert first.stdout and first.stdout.readline() == "mine\n"
        with start_script(tmp_path) as second:
            assert second.stderr and second.stdout
            line = second.stderr.readline()
            assert line.startswith(f"some-test waits for some-test (process {first.pid} in {ROOT}")
            first.communicate("end\n")
            assert second.stdout.readline() == "mine\n"
            assert second.communicate("end\n") == ("", "")
