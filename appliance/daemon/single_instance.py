"""The single-instance lock: one process at a time owns the log.

Two daemons would publish every sentence twice. Another appliance with the same client id is noticed
at the broker (mqtt/connection).

A daemon that hangs for good must not keep the log until a reboot: one that does not answer is
killed. If it sleeps in the kernel and lives on, the log is taken over, and still has one writer: a
thread with SIGKILL pending never returns to its program (signal(7)), so it begins no other write,
and until the end of one that it is in, SQLite's own lock on the file is the old daemon's.
"""

import errno
import hashlib
import logging
import os
import re
import signal
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from select import select

from appliance.errors import StoreError
from appliance.system import BackgroundTask

log = logging.getLogger("roomscribe.daemon")

NAMES = ("", ".1", ".2", ".3")
"""Ends of the lock's name: the next one is taken beside a daemon that cannot be killed."""
ANSWER_WITHIN_S = 30.0
"""A machine that swaps may need long for an answer."""
KILL_WITHIN_S = 5.0
CREDENTIALS = struct.Struct("3i")
"""Process, user and group, of SO_PEERCRED (unix(7))."""


@contextmanager
def lock_instance(folder: Path, answer_within_s: float = ANSWER_WITHIN_S) -> Iterator[None]:
    """Own the log in `folder` until the process ends in any way. Raises StoreError, after
    `answer_within_s` and some seconds if another process owns it.

    This holds for all users of the machine (of the network namespace): the lock is an abstract Unix
    socket (unix(7)), which needs no file, permission or disk, and leaves nothing behind. If the
    system allows no such socket, there is no lock.
    """
    digest = hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()[:32]
    names = [f"\0roomscribe/{digest}{end}" for end in NAMES]
    with socket.socket(socket.AF_UNIX) as held:
        try:
            _acquire(held, names, answer_within_s)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise StoreError(
                    f"{folder}: another process uses this log: stop it (`systemctl stop "
                    "roomscribe`), or give this one its own [store] path"
                ) from None
            log.warning("cannot see whether another daemon runs: %s", error.strerror)
        answering = BackgroundTask(lambda: _answer(held), "lock")
        try:
            yield
        finally:
            with suppress(OSError):  # without a lock
                held.shutdown(socket.SHUT_RDWR)
            answering.join()  # it has the socket, and so the name, while it waits


def _acquire(held: socket.socket, names: Sequence[str], answer_within_s: float) -> None:
    """Bind the first name that no process has. Raises OSError (EADDRINUSE) if one lives that has a
    name."""
    dying = {name for name in names if not _free(name, answer_within_s)}
    for name in names:
        if name not in dying:
            held.bind(name)
            held.listen()
            # of two that start at once, none may have missed the other
            if all(_holder(other) is None for other in {*names} - dying - {name}):
                return
            break
    raise OSError(errno.EADDRINUSE, "no name is left")


def _answer(held: socket.socket) -> None:
    """Answer each process that asks whether this one lives, until the socket is shut down."""
    with suppress(OSError):
        while True:
            held.accept()[0].close()


def _holder(name: str, answer_within_s: float = 0.0) -> int | None:
    """Return the id of the process that has a name and does not answer in time; None if nobody has
    it. Raises OSError (EADDRINUSE) if it answers, or its id is unknown here."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(1.0)
        try:
            asking.connect(name)
            data = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
            pid: int = CREDENTIALS.unpack(data)[0]
            has_answered = bool(answer_within_s and select([asking], [], [], answer_within_s)[0])
        except ConnectionRefusedError:
            return None
        except (TimeoutError, BlockingIOError):  # too many ask
            pid, has_answered = 0, False
    if has_answered or pid <= 0:
        raise OSError(errno.EADDRINUSE, "it lives")
    return pid


def _free(name: str, answer_within_s: float) -> bool:
    """Return True if nobody has a lock, at the latest after its holder was killed, and False if
    that sleeps in the kernel. Raises OSError (EADDRINUSE) if another process lives with it."""
    pid = _holder(name, answer_within_s)
    if pid is None:
        return True
    log.error("process %d has the log and does not answer: it is killed", pid)
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)
    deadline_s = time.monotonic() + KILL_WITHIN_S
    while time.monotonic() < deadline_s:
        if _holder(name) is None:
            return True
        time.sleep(0.5)  # each look adds to those that wait for an answer, 128 at most
    if not _is_dying(pid):
        raise OSError(errno.EADDRINUSE, "it cannot be killed")
    log.error("process %d hangs in the kernel: its log is taken over; restart the machine", pid)
    return False


def _is_dying(pid: int) -> bool:
    """Return True if no thread of a process ever runs its program again: SIGKILL is pending for
    each (proc(5), status), or it has ended."""
    texts = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            texts.append((task / "status").read_text(encoding="utf-8", errors="replace"))
    bit = 1 << signal.SIGKILL - 1
    pending = [
        any(int(mask, 16) & bit for mask in re.findall(r"^(?:Sig|Shd)Pnd:\s+(\w+)$", text, re.M))
        or bool(re.search(r"^State:\s+[ZX]", text, re.M))
        for text in texts
    ]
    return bool(pending) and all(pending)
