"""One daemon at a time owns the log, also beside one that hangs for good."""

import contextlib
import ctypes
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rigs.checkout import environment
from rigs.needs import needs_root, unless
from rigs.waiting import until

from appliance.daemon.single_instance import lock_instance
from appliance.errors import StoreError

OWNER = """
import os.path, sys, time
from pathlib import Path
from appliance.daemon.single_instance import lock_instance
with lock_instance(Path(sys.argv[1])):
    print("owns it", flush=True)
    while True:
        os.path.exists(sys.argv[-1])
        time.sleep(0.05)
"""
ASK_WITHIN_S = 1.0


@contextlib.contextmanager
def owner(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that owns the log in `folder`, and then looks at a file."""
    command = [sys.executable, "-c", OWNER, str(folder), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout and process.stdout.readline() == "owns it\n"
        try:
            yield process
        finally:
            process.kill()


def status(process: subprocess.Popen[str]) -> str:
    return Path(f"/proc/{process.pid}/status").read_text()


def is_refused(folder: Path) -> bool:
    try:
        with lock_instance(folder, ASK_WITHIN_S):
            return False
    except StoreError as error:
        return "another process uses this log" in str(error)


def test_a_log_has_one_owner_until_that_ends(tmp_path: Path) -> None:
    with owner(tmp_path) as other:
        assert is_refused(tmp_path) and other.poll() is None
        with lock_instance(tmp_path / "another"):
            pass
    for _ in range(50):
        with lock_instance(tmp_path):
            pass
    with lock_instance(tmp_path):
        assert is_refused(tmp_path)


def test_an_owner_that_does_not_answer_is_killed(tmp_path: Path) -> None:
    with owner(tmp_path) as other:
        other.send_signal(signal.SIGSTOP)
        until(lambda: "(stopped)" in status(other))
        with lock_instance(tmp_path, ASK_WITHIN_S):
            assert other.wait(20) == -signal.SIGKILL
            assert is_refused(tmp_path)


INIT, LOOKUP, NOT_IMPLEMENTED = 26, 1, -38
"""Of FUSE's protocol (linux/fuse.h)."""


@contextlib.contextmanager
def sleeper(folder: Path) -> Iterator[int]:
    """A file system whose files are looked up for ever: no signal ends a process that does. Its
    descriptor; closing it lets all go."""
    libc, device = ctypes.CDLL(None, use_errno=True), os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"fuse", os.fsencode(folder), b"fuse", 0, options):
        pytest.skip(f"no FUSE: {os.strerror(ctypes.get_errno())}")
    try:
        yield device
    finally:
        with contextlib.suppress(OSError):
            os.close(device)
        libc.umount2(os.fsencode(folder), 2)


def answer_until_lookup(device: int) -> None:
    """Answer the kernel until it looks up a file."""
    while True:
        request = os.read(device, 1 << 17)
        _, code, unique = struct.unpack_from("=IIQ", request)
        if code == LOOKUP:
            return
        about = struct.pack("=IIIIHHIIHHI28x", 7, 31, 0, 0, 12, 9, 4096, 1, 0, 0, 0)
        status, data = (0, about) if code == INIT else (NOT_IMPLEMENTED, b"")
        os.write(device, struct.pack("=IiQ", 16 + len(data), status, unique) + data)


@needs_root("mount a file system")
@unless("" if Path("/dev/fuse").exists() else "needs /dev/fuse")
def test_the_log_of_an_owner_that_cannot_be_killed_is_taken_over(tmp_path: Path) -> None:
    log, mounted = tmp_path / "log", tmp_path / "mounted"
    log.mkdir()
    mounted.mkdir()
    with owner(log, str(mounted / "file")) as stuck, sleeper(mounted) as device:
        answer_until_lookup(device)
        assert is_refused(log), "one of its threads hangs, and another answers"
        stuck.kill()

        until(lambda: "(disk sleep)" in status(stuck))
        with lock_instance(log, ASK_WITHIN_S):
            assert "(disk sleep)" in status(stuck) and is_refused(log)
            os.close(device)
            assert stuck.wait(20) == -signal.SIGKILL
            assert is_refused(log), "the old name is free, and the log is not"
