"""Run by the container test in the daemon's own sandbox: tries what must not be possible.

Prints a line for everything that is possible, and `PROBE: all closed` when nothing is.
"""

import contextlib
import ctypes
import mmap
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

open_doors: list[str] = []


@contextlib.contextmanager
def refused(what: str) -> Iterator[None]:
    """Notes `what` unless the block raises OSError."""
    try:
        yield
    except OSError:
        return
    open_doors.append(what)


def main() -> int:
    """Tries everything; 1 when something is possible."""
    for path in ("/etc", "/usr/lib/roomscribe", "/var/lib", "/var/log", "/opt", "/boot", "/srv"):
        with refused(f"writing to {path}"):
            (Path(path) / "probe").write_text("x")
    for path in ("/home/somebody/file", "/root/.bashrc", "/etc/shadow", "/dev/kmsg", "/dev/mem"):
        with refused(f"reading {path}"):
            Path(path).read_bytes()
    with refused("memory that is writable and executable"):
        mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    page = mmap.mmap(-1, 4096)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    if libc.mprotect(ctypes.c_void_p(address), 4096, mmap.PROT_READ | mmap.PROT_EXEC) == 0:
        open_doors.append("making written memory executable")
    for name, flag in (("user", 0x10000000), ("mount", 0x00020000), ("network", 0x40000000)):
        if libc.unshare(flag) == 0:
            open_doors.append(f"a {name} namespace of its own")
    for family in (socket.AF_PACKET, socket.AF_NETLINK, socket.AF_BLUETOOTH):
        with refused(f"a socket of family {family}"):
            socket.socket(family, socket.SOCK_RAW if family != socket.AF_BLUETOOTH else 1).close()
    with refused("becoming root"):
        os.setuid(0)
    with refused("setting the host name"):
        socket.sethostname("probe")
    with refused("a device node"):
        os.mknod(Path(os.environ["STATE_DIRECTORY"]) / "node", 0o020600, os.makedev(1, 3))
    with refused("the priority of real time"):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    for line in Path("/proc/self/status").read_text().splitlines():
        name, value = line.split(":", 1)
        if name in ("CapEff", "CapPrm", "CapBnd", "CapAmb") and int(value, 16):
            open_doors.append(f"capabilities: {line}")
    others = {one.name for one in Path("/proc").iterdir() if one.name.isdigit()} - {
        str(os.getpid())
    }
    if others:
        open_doors.append(f"seeing the processes {sorted(others)}")
    if (Path(os.environ["CREDENTIALS_DIRECTORY"]) / "roomscribe.probe").read_text() != "word\n":
        open_doors.append("the credential is not there")
    probe = Path(os.environ["STATE_DIRECTORY"]) / "probe"
    probe.write_text("x")
    probe.unlink()
    for door in open_doors:
        print(f"PROBE: possible: {door}")
    print("PROBE: all closed" if not open_doors else "PROBE: open")
    return bool(open_doors)


if __name__ == "__main__":
    sys.exit(main())
