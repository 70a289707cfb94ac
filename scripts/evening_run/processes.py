"""Measure processes: memory, threads, file descriptors, CPU time."""

import os
import re
import threading
from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process and its children have."""

    uss_mb: float
    """Memory that nobody shares."""
    pss_mb: float
    """The same, and a fair part of what is shared."""
    threads: int
    descriptors: int


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat (proc(5)) from the state on. Raises OSError."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(")")[2].split()


def family(pid: int) -> list[int]:
    """Return the process and its descendants."""
    found = [pid]
    for one in found:
        with suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                found += map(int, (task / "children").read_text("ascii").split())
    return found


def usage(pid: int) -> Usage:
    """Return what the process and its children have. Raises OSError when it has ended."""
    uss_mb = pss_mb = 0.0
    threads = descriptors = 0
    for one in family(pid):
        folder = Path(f"/proc/{one}")
        try:
            rollup = (folder / "smaps_rollup").read_text("ascii")
            uss_mb += sum(map(int, re.findall(r"Private_\w+:\s+(\d+)", rollup))) / 1024
            pss_mb += sum(map(int, re.findall(r"^Pss:\s+(\d+)", rollup, re.MULTILINE))) / 1024
            threads += sum(1 for _ in (folder / "task").iterdir())
            descriptors += sum(1 for _ in (folder / "fd").iterdir())
        except OSError:
            if one == pid:
                raise
    return Usage(round(uss_mb, 1), round(pss_mb, 1), threads, descriptors)


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process, its children and those that ended; 0 when it has ended."""
    total = 0
    for one in family(pid):
        with suppress(OSError):
            fields = stat_fields(one)
            own, waited_for = fields[11:13], fields[13:15]
            total += sum(map(int, own + (waited_for if one == pid else [])))
    return total * TICK_S


class Clock:
    """Writes down what CPU time a process took, over restarts; a thread of its own."""

    def __init__(self) -> None:
        self.pid = 0
        """The process; 0: none now."""
        self._times: list[float] = []
        self._used: list[float] = []
        self._before, self._last, self._of = 0.0, 0.0, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._over.set()
        self._thread.join(5)

    def used_s(self, begin_s: float, end_s: float) -> float:
        """Return the CPU time used between two moments of time.monotonic()."""
        return self._at(end_s) - self._at(begin_s)

    def _at(self, moment_s: float) -> float:
        at = bisect_left(self._times, moment_s)
        if not 0 < at < len(self._times):
            return self._used[min(at, len(self._used) - 1)] if self._used else 0.0
        begin_s, end_s = self._times[at - 1], self._times[at]
        share = (moment_s - begin_s) / (end_s - begin_s)
        return self._used[at - 1] + share * (self._used[at] - self._used[at - 1])

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            pid = self.pid
            now = cpu_s(pid) if pid else 0.0
            if pid != self._of or now < self._last:
                self._before += self._last
                self._of, self._last = pid, 0.0
            self._last = max(self._last, now)
            self._used.append(self._before + self._last)
            self._times.append(monotonic())
