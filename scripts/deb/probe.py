"""Tries what must be impossible in a unit's sandbox; scripts/test-deb runs it there.

python probe.py            in the daemon's
python probe.py models     in that of the process that adds a model for the page

Prints a line for everything that is possible, and `PROBE: all closed` when nothing is.
"""

import contextlib
import ctypes
import mmap
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

open_doors: list[str] = []
CLOSED_FOLDERS = ("/etc", "/usr/lib/roomscribe", "/var/lib", "/var/log", "/opt", "/boot", "/srv")
SECRETS = (
    "/home/somebody/file", "/root/.bashrc", "/etc/shadow", "/etc/credstore/roomscribe.probe",
    "/dev/kmsg", "/dev/mem",
)  # fmt: skip
ORDERS = (
    ("systemctl", "--no-ask-password", "stop", "victim.service"),
    ("systemd-run", "--no-ask-password", "touch", "/etc/probe-escaped"),
)
"""Requests that systemd obeys only for root."""
MODELS = Path("/var/lib/roomscribe-models")


@contextlib.contextmanager
def refused(what: str) -> Iterator[None]:
    """Record `what` as possible unless the block raises OSError."""
    try:
        yield
    except OSError:
        return
    open_doors.append(what)


def try_files(*closed: str) -> None:
    """Try to write to other folders and to read secrets."""
    for path in (*CLOSED_FOLDERS, *closed):
        with refused(f"writing to {path}"):
            (Path(path) / "probe").write_text("x")
    for path in SECRETS:
        with refused(f"reading {path}"):
            Path(path).read_bytes()


def try_memory() -> None:
    """Try to get memory that is writable and executable."""
    with refused("memory that is writable and executable"):
        mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page = mmap.mmap(-1, 4096)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    protect = ctypes.CDLL(None).mprotect
    if protect(ctypes.c_void_p(address), 4096, mmap.PROT_READ | mmap.PROT_EXEC) == 0:
        open_doors.append("making written memory executable")


def try_kernel(own: Path) -> None:
    """Try namespaces, raw sockets and root's rights; `own` is the writable folder."""
    libc = ctypes.CDLL(None, use_errno=True)
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
        os.mknod(own / "node", 0o020600, os.makedev(1, 3))
    with refused("the priority of real time"):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    for line in Path("/proc/self/status").read_text().splitlines():
        name, value = line.split(":", 1)
        if name in ("CapEff", "CapPrm", "CapBnd", "CapAmb") and int(value, 16):
            open_doors.append(f"capabilities: {line}")


def try_others() -> None:
    """Try to see other processes and to command systemd."""
    others = {path.name for path in Path("/proc").iterdir() if path.name.isdigit()}
    others.discard(str(os.getpid()))
    if others:
        open_doors.append(f"seeing the processes {sorted(others)}")
    for order in ORDERS:
        if subprocess.run(order, stdin=subprocess.DEVNULL, check=False).returncode == 0:
            open_doors.append(" ".join(order))


def main() -> int:
    """Try everything and return 1 if anything is possible."""
    adding = sys.argv[1:] == ["models"]
    own = MODELS if adding else Path(os.environ["STATE_DIRECTORY"])
    try_files(*(("/run", "/var/lib/roomscribe") if adding else ["/run", str(MODELS)]))
    try_memory()
    try_kernel(own)
    try_others()
    if os.getuid() == 0:
        open_doors.append("it is root")
    # what must be possible raises where it is not
    for folder in (own, own / ".work", own / "tiny") if adding else (own,):
        (folder / "probe").write_text("x")
        (folder / "probe").unlink()
    if not adding:
        word = (Path(os.environ["CREDENTIALS_DIRECTORY"]) / "roomscribe.probe").read_text()
        if word != "word\n":
            open_doors.append("the credential is missing")
    for door in open_doors:
        print(f"PROBE: possible: {door}")
    print("PROBE: all closed" if not open_doors else "PROBE: open")
    return bool(open_doors)


if __name__ == "__main__":
    sys.exit(main())
