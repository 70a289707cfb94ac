"""The recorder's process, and the programs that it starts, end with their parent."""

from __future__ import annotations

import ctypes
import signal

PR_SET_PDEATHSIG = 1
"""Of prctl(2). The program setpriv would need capset, which the unit forbids."""
_LIBC = ctypes.CDLL(None)


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends; also between fork and exec."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
