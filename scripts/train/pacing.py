"""The training log and what falls due as training time passes."""

from __future__ import annotations

import time
from pathlib import Path


class Log:
    """Lines with the time, to a file and standard output; silent on all processes but the first."""

    def __init__(self, path: Path, process: int) -> None:
        self._file = path.open("a", buffering=1) if process == 0 else None

    def __call__(self, line: str) -> None:
        """Writes `line`."""
        if self._file:
            stamped = f"{time.strftime('%H:%M:%S')} {line}"
            self._file.write(stamped + "\n")
            print(stamped, flush=True)


class Clock:
    """Says when something is due again; `spent_s` counts training time over all resumes."""

    def __init__(self, every_s: float, spent_s: float) -> None:
        self._every_s = every_s
        self._next_s = spent_s + every_s

    def due(self, spent_s: float) -> bool:
        """Whether the time has come; then the next time is set."""
        if spent_s < self._next_s:
            return False
        self._next_s = spent_s + self._every_s
        return True
