"""A command on a terminal of its own, as a person drives it."""

import contextlib
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from rigs.checkout import ROOT, environment as environment_of
from rigs.command import PROGRAM
from rigs.waiting import PATIENCE_S


class Terminal:
    """A running `roomscribe ARGUMENTS`; use with `with`."""

    def __init__(
        self, *arguments: str | Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._master, slave = pty.openpty()
        self.shown = ""
        """All that it has shown so far, without colours and movements of the cursor."""
        self.raw = ""
        """The same with them."""
        self._seen = 0
        # who runs the tests in the background of a script has set SIGINT aside for all of them
        command = ["setsid", "--ctty", "env", "--default-signal=INT", sys.executable, *PROGRAM]
        self.process = subprocess.Popen(
            [*command, *map(str, arguments)],
            stdin=slave, stdout=slave, stderr=slave, cwd=ROOT,
            env=environment_of(**{"TERM": "xterm", "COLUMNS": "120", **dict(environment or {})}),
        )  # fmt: skip
        os.close(slave)

    def until(self, text: str, within_s: float = PATIENCE_S) -> str:
        """Waits until `text` is shown, behind what was waited for before; what came up to it."""
        deadline_s = time.monotonic() + within_s
        while (at := self.shown.find(text, self._seen)) < 0:
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, f"{text!r} is not shown in {within_s:g} s, but:\n{self.shown}"
            assert self._read(left_s), f"it ended before {text!r} was shown, behind:\n{self.shown}"
        found = self.shown[self._seen : at + len(text)]
        self._seen = at + len(text)
        return found

    def enter(self, text: str = "") -> None:
        """Types a line."""
        os.write(self._master, f"{text}\n".encode())

    def answer(self, question: str, text: str = "") -> None:
        """Waits for a question and types a line."""
        self.until(question)
        self.enter(text)

    def press(self, letter: str) -> None:
        """Types a letter, or Ctrl-C as \\x03."""
        os.write(self._master, letter.encode())

    def interrupt(self, within_s: float = PATIENCE_S) -> int:
        """Presses Ctrl-C until it ends, as a person does; the exit status. One that comes just
        before Python begins to wait for a line is seen with the next key alone."""
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            self.press("\x03")
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.wait(5.0)
        return self.wait(1.0)

    def wait(self, within_s: float = PATIENCE_S) -> int:
        """Reads to the end; the exit status."""
        deadline_s = time.monotonic() + within_s
        while self._read(max(0.0, deadline_s - time.monotonic())):
            pass
        return self.process.wait(max(0.1, deadline_s - time.monotonic()))

    def _read(self, within_s: float) -> bool:
        """Takes what is there; False at the end, or when nothing came."""
        if not select.select([self._master], [], [], within_s)[0]:
            return False
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # all ends of the terminal are closed
            return False
        text = data.decode("utf-8", "replace").replace("\r\n", "\n")
        self.raw += text
        self.shown += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        with contextlib.suppress(OSError):
            os.close(self._master)
