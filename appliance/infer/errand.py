"""What may take long or for ever, apart from the thread that wants it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Errand(threading.Thread):
    """Something that may take long or for ever, done in a thread that the process's end does not
    wait for. Once it has ended, `outcome` is what came of it, or `error` what it raised."""

    def __init__(self, work: Callable[[], Any], name: str = "NPU") -> None:
        super().__init__(name=name, daemon=True)
        self.outcome: Any = None
        self.error: Exception | None = None
        self._work = work
        self.start()

    def run(self) -> None:
        """Thread's body."""
        try:
            self.outcome = self._work()
        except Exception as error:
            self.error = error
