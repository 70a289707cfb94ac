"""A dialog on the terminal: lines and questions."""

import getpass
import select
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from appliance.cli.terminal import YELLOW, coloured
from appliance.errors import ConfigError
from appliance.system import shorten

BACK = "back"
"""An answer that returns to the question before."""


_WHOLE_WORDS: Mapping[str, Any] = {"break_long_words": False, "break_on_hyphens": False}


class BackError(Exception):
    """The user answered BACK."""


class Dialog:
    """Asks the user. If it is not `interactive`, every answer is the default."""

    def __init__(self, *, interactive: bool) -> None:
        self.interactive = interactive
        self.question_count = 0
        """How many questions were asked."""

    def say(self, line: str, colour: str = "") -> None:
        """Print a text, on a terminal in `colour` and broken between words."""
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        for part in line.split("\n"):
            pieces = textwrap.wrap(part, width, **_WHOLE_WORDS) if 0 < width < len(part) else [part]
            for piece in pieces:
                print(coloured(piece, colour) if colour else piece, flush=True)

    def report(self, problem: Exception) -> None:
        """Print an error as a sentence of its own."""
        text = str(problem).replace("\n", "; ")
        begin = text[:1] if "://" in text.split(" ", 1)[0] else text[:1].upper()
        self.say(f"{begin}{text[1:]}.", YELLOW)

    def ask(self, question: str, default: str) -> str:
        """Return the answer, or `default` if it is empty or nobody is asked."""
        if not self.interactive:
            return default
        return self.read(f"{question} [{default}] " if default else f"{question} ") or default

    def read(self, prompt: str) -> str:
        """Return a line, without spaces at its ends.

        Raises ConfigError at the end of input, and BackError for BACK.
        """
        self.question_count += 1
        return _check_back(_until_closed(input, prompt).strip())

    def read_secret(self, prompt: str) -> str:
        """Return a line that is not shown. Raises ConfigError at the end of input."""
        return _until_closed(getpass.getpass, prompt)

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


def _until_closed(read: Callable[[str], str], prompt: str) -> str:
    try:
        return read(prompt)
    except EOFError:
        raise ConfigError("the terminal was closed; nothing was changed") from None


def _check_back(answer: str) -> str:
    if answer.casefold() == BACK:
        raise BackError
    return answer


def is_entered(within_s: float) -> bool:
    """Return True if a line was entered within the time. Raises BackError for BACK."""
    if not select.select([sys.stdin], [], [], within_s)[0]:
        return False
    _check_back(sys.stdin.readline().strip())
    return True
