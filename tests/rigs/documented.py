"""What README.md and the pages of docs/ tell a reader to type, and to write into a file.

A block is indented by four columns, or fenced. Indented and ```sh: commands, one per line unless a
line ends with a backslash or a pipe. ```toml: settings for roomscribe.toml, or the content of the
file whose path is the comment on its first line. ```text, json and yaml: shown, not typed.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rigs.checkout import ROOT

COMMANDS, SETTINGS = "sh", "toml"
SHOWN = frozenset({"text", "json", "yaml", "python", "nginx"})
FENCE = "```"
INDENTED = "    "


@dataclass(frozen=True)
class Step:
    """A command, or the content of a file (kind SETTINGS), at a line of a page."""

    page: str
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text.splitlines()[0]}"


def page_files() -> list[Path]:
    """Return README.md and the pages of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def steps_of(file: Path) -> list[Step]:
    """Return the steps of a page. Raises ValueError for a block whose language is unknown."""
    steps = []
    for line, language, lines in blocks_of(file.read_text(encoding="utf-8")):
        if language == COMMANDS:
            steps += [
                Step(file.name, line + above, COMMANDS, command)
                for above, command in commands_of(lines)
            ]
        elif language == SETTINGS:
            steps.append(Step(file.name, line, SETTINGS, "\n".join(lines)))
        elif language not in SHOWN:
            raise ValueError(
                f"{file.name}:{line - 1}: a block in {language or 'no language'!r}: "
                f"expected {COMMANDS}, {SETTINGS}, {', '.join(sorted(SHOWN))}"
            )
    return steps


def blocks_of(text: str) -> Iterator[tuple[int, str, list[str]]]:
    """Yield each block of a page: the number of its first line, its language, its lines."""
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        if lines[number].startswith(FENCE):
            end = lines.index(FENCE, number + 1)
            yield number + 2, lines[number].removeprefix(FENCE), lines[number + 1 : end]
            number = end + 1
        elif lines[number].startswith(INDENTED):
            end = number
            while end < len(lines) and lines[end].startswith(INDENTED):
                end += 1
            yield number + 1, COMMANDS, [line[4:] for line in lines[number:end]]
            number = end
        else:
            number += 1


def commands_of(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield each command without its comment, and how many lines of its block are above it."""
    kept: list[str] = []
    for above, line in enumerate(lines):
        code = re.sub(r"(^|\s+)# .*", "", line).rstrip()
        if not kept and not code:
            continue
        kept.append(code)
        if not code.endswith(("\\", "|")):
            yield above + 1 - len(kept), "\n".join(kept)
            kept = []


def target_of(step: Step) -> str:
    """Return the path of the file that a SETTINGS step is; "" for a part of roomscribe.toml."""
    found = re.match(r"# (/\S+)$", step.text.splitlines()[0])
    return found[1] if found else ""


def with_settings(config: str, settings: str) -> str:
    """Return a configuration file with each line of `settings` written below its table's header."""
    lines = config.splitlines()
    where = len(lines)
    for line in settings.splitlines():
        if line.startswith("["):
            if line not in lines:
                lines.append(line)
            where = lines.index(line) + 1
        else:
            lines.insert(where, line)
            where += 1
    return "\n".join([*lines, ""])
