"""What one process of the machine may do: claimed without a file, free however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.daemon.single_instance import OwnedError, acquire

CLAIMS = """
import sys
from appliance.daemon.single_instance import acquire
held = acquire(sys.argv[1])
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
            with pytest.raises(OwnedError, match=rf"{sys.executable} .*process {other.pid}\)"):
                acquire(name)
        acquire(name + " other").close()
        other.kill()
        other.wait()
        with acquire(name), pytest.raises(OwnedError, match="this very process"):
            acquire(name)
    acquire(name).close()


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
    with acquire(f"test {tmp_path}"):
        if counts:
            with pytest.raises(OwnedError):
                acquire(f"test {tmp_path}", tmp_path)
        else:
            acquire(f"test {tmp_path}", tmp_path).close()
