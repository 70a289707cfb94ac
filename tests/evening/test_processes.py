from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from evening_run.processes import Clock, cpu_s, usage
from rigs.waiting import until

BUSY = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ntime.sleep(60)"
PARENT = (
    "import subprocess, sys, threading, time\n"
    "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    f"child = subprocess.Popen([sys.executable, '-c', {BUSY!r}])\n"
    "time.sleep(60)"
)


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            process.stdout.readline()  # the child has had its half second of CPU
            yield process
        finally:
            subprocess.run(["pkill", "-P", str(process.pid)], check=False)
            process.kill()


def test_children_count_with_their_process(parent: subprocess.Popen[bytes]) -> None:
    found = usage(parent.pid)
    assert found.threads == 3
    assert 5 < found.uss_mb <= found.pss_mb < 100
    assert found.descriptors >= 6
    assert cpu_s(parent.pid) >= 0.5


def test_what_has_ended_has_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert cpu_s(process.pid) == 0
    with pytest.raises(OSError, match="No such"):
        usage(process.pid)


def test_the_clock_goes_on_with_the_next_process(parent: subprocess.Popen[bytes]) -> None:
    clock = Clock()
    try:
        begun_s = time.monotonic()
        time.sleep(0.3)  # it has looked at none before
        clock.pid = parent.pid
        until(lambda: clock.used_s(begun_s - 60, time.monotonic()) >= 0.5)
        clock.pid = os.getpid()
        before_s = cpu_s(os.getpid())
        time.sleep(0.5)
        assert clock.used_s(begun_s - 60, time.monotonic()) >= 0.5 + before_s
    finally:
        clock.stop()
