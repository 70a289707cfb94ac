"""What one process of the machine may do: claimed without a file, free however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.daemon.single_instance import ClaimedError, claim

CLAIMS = """
import sys
from appliance.daemon.single_instance import claim
held = claim(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def test_a_claim_is_one_processs_and_names_it_until_that_ends_however(tmp_path: Path) -> None:
    name = f"test {tmp_path}"
    command = [sys.executable, "-c", CLAIMS, name]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout
        assert other.stdout.readline() == "held\n"
        for _ in range(3):
            with pytest.raises(ClaimedError, match=rf"{sys.executable} .*process {other.pid}\)"):
                claim(name)
        claim(name + " other").close()
        other.kill()
        other.wait()
        with claim(name), pytest.raises(ClaimedError, match="this very process"):
            claim(name)
    claim(name).close()


@pytest.mark.parametrize(
    ("status", "counts"),
    [
        ("State:\tD (disk sleep)\nSigPnd:\t0000000000000100\n", False),
        ("State:\tD (disk sleep)\nSigPnd:\t0\nShdPnd:\t0000000000000100\n", False),
        ("State:\tZ (zombie)\nSigPnd:\t0000000000000000\n", False),
        ("State:\tT (stopped)\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000004000\n", True),
        ("", True),
    ],
)
def test_a_killed_process_that_hangs_in_the_kernel_keeps_nobody_out(
    tmp_path: Path, status: str, counts: bool
) -> None:
    process = tmp_path / str(os.getpid())
    process.mkdir()
    (process / "status").write_text(status)
    with claim(f"test {tmp_path}"):
        if counts:
            with pytest.raises(ClaimedError):
                claim(f"test {tmp_path}", tmp_path)
        else:
            claim(f"test {tmp_path}", tmp_path).close()
