"""A dialog on the terminal: lines, questions, and a display that is redrawn."""

from __future__ import annotations

import errno
import getpass
import os
import select
import sys
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from appliance.errors import ConfigError
from appliance.system import shorten

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

WARNING = "yellow"
BACK = "back"
"""An answer that returns to the question before."""


class BackError(Exception):
    """The user answered BACK."""


def open_console() -> Console:
    """Return a console that raises BrokenPipeError when nobody reads it any more.

    Rich's own ends the command with status 1.
    """
    from rich.console import Console

    class Terminal(Console):
        """See `open_console`."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    return Terminal(highlight=False)


class Dialog:
    """Asks the user. If it is not `interactive`, every answer is the default."""

    def __init__(self, console: Console, *, interactive: bool) -> None:
        self._console = console
        self.interactive = interactive
        self.questions = 0
        """Questions that were asked."""

    def say(self, line: str, style: str = "") -> None:
        """Print a line; on a terminal it wraps between words."""
        self._print(line, style=style)

    def _print(self, text: str, *, style: str = "", end: str = "\n") -> None:
        soft = not self._console.is_terminal
        self._console.print(text, style=style, markup=False, end=end, soft_wrap=soft)

    def report(self, problem: Exception) -> None:
        """Print an error as a sentence of its own."""
        text = str(problem).replace("\n", "; ")
        begin = text[:1] if "://" in text.split(" ", 1)[0] else text[:1].upper()
        self.say(f"{begin}{text[1:]}.", WARNING)

    def ask(self, question: str, default: str) -> str:
        """Return the answer, or `default` if it is empty or nobody is asked."""
        if not self.interactive:
            return default
        return self.read(f"{question} [{default}] " if default else f"{question} ") or default

    def read(self, prompt: str) -> str:
        """Return a line, without spaces at its ends.

        Raises ConfigError at the end of input, and BackError for BACK.
        """
        self.questions += 1
        self._print(prompt, end="")
        try:
            return check_back(input().strip())
        except EOFError:
            raise ConfigError("the terminal was closed; nothing was changed") from None

    def read_secret(self, prompt: str) -> str:
        """Return a line that is not shown. Raises ConfigError at the end of input."""
        try:
            return getpass.getpass(prompt)
        except EOFError:
            raise ConfigError("the terminal was closed; nothing was changed") from None

    def confirm(self, question: str) -> bool:
        """Return True for yes or an empty answer, False for no; ask again after any other."""
        while True:
            answer = self.ask(question, "yes").casefold()
            if answer in ("y", "yes", "n", "no"):
                return answer.startswith("y")
            self.say("Please answer yes or no. Press Ctrl-C to cancel; nothing is changed then.")

    def choose(
        self,
        question: str,
        names: Sequence[str],
        default: str,
        accepts: Callable[[str], bool] = lambda _: False,
    ) -> str:
        """Return one of `names`, given by its number or by a part of its name, or another answer
        that `accepts` approves."""
        while True:
            answer = self.ask(question, default)
            if answer.isdigit() and 0 < int(answer) <= len(names):
                return names[int(answer) - 1]
            if answer in names or accepts(answer):
                return answer
            parts = [name for name in names if answer.casefold() in name.casefold()]
            if len(parts) == 1:
                return parts[0]
            self.say(f"{shorten(answer)} is not in the list. Enter a number or a name from above.")

    def show_choices(self, rows: Sequence[tuple[str, str]]) -> None:
        """Print numbered names with what they are."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, show_header=False)
        for number, (name, text) in enumerate(rows, 1):
            table.add_row(f"{number:3}", Text(name, no_wrap=True), Text(text))
        self._console.print(table)

    @contextmanager
    def display(self, show: Callable[[], RenderableType]) -> Iterator[Callable[[], None]]:
        """Show something that changes; the function that it yields draws it again.

        Keys are not echoed meanwhile: an Enter would move what was drawn.
        """
        from rich.live import Live

        with _echo_off(), Live(show(), console=self._console, auto_refresh=False) as live:
            yield lambda: live.update(show(), refresh=True)


def check_back(answer: str) -> str:
    """Return the answer. Raises BackError for BACK."""
    if answer.casefold() == BACK:
        raise BackError
    return answer


def is_entered(within_s: float) -> bool:
    """Return True if a line was entered within the time. Raises BackError for BACK."""
    if not select.select([sys.stdin], [], [], within_s)[0]:
        return False
    check_back(sys.stdin.readline().strip())
    return True


@contextmanager
def _echo_off() -> Iterator[None]:
    """Switch off the terminal's echo inside the block."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    silent = [*before]
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        with suppress(termios.error):
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
