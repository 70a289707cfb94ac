"""docs/commands.md is made from the command line; blocks and links of all pages are right.

PYTHONPATH=.:tests:scripts python tests/cli/test_docs.py --write     writes the page anew
"""

import argparse
import ast
import errno
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from deb.texts import STATUS
from rigs import documented

from appliance.config import parse

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "commands.md"
WRITE = f"PYTHONPATH=.:tests:scripts python {Path(__file__).relative_to(ROOT)} --write"
HEAD = """\
# Commands

`roomscribe COMMAND --help` and `man roomscribe` show a command's arguments, `man roomscribe.toml`
the settings. Inside a checkout the command is `.venv/bin/roomscribe`.

| command | what it does |
|---|---|
"""
EXIT_STATUS = """\
## Exit status

| status | meaning |
|---|---|
"""
LAST = "\n`doctor` ends with the number of checks that failed, 63 at most.\n"


def page() -> str:
    """Return the page: the commands in the order of --help, and the exit statuses."""
    from appliance.cli.main import parser

    rows = [f"| `{command.prog}` | {_cell(text)} |" for command, text in _named(parser())]
    statuses = "".join(f"| {number} | {text} |\n" for number, text in STATUS)
    return "\n".join([HEAD + "\n".join(rows), "", EXIT_STATUS + statuses + LAST])


def _below(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the direct subcommands by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _named(parser: argparse.ArgumentParser) -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """Yield every command without subcommands, with its line in --help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            lines = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, one in action.choices.items():
                if _below(one):
                    yield from _named(one)
                else:
                    yield one, lines.get(name, "")


def _cell(text: str) -> str:
    """Return text escaped for a cell of a Markdown table."""
    return re.sub(r"([|<>*_])", r"\\\1", " ".join(text.split()))


def test_the_page_of_commands_is_what_argparse_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), f"run {WRITE}"


def test_every_page_of_docs_is_in_the_index_and_every_link_leads_somewhere() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for file in sorted((ROOT / "docs").glob("*.md")):
        assert file.name == "README.md" or f"]({file.name})" in index, f"{file.name} is not listed"
    for file in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        text = file.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if "://" not in target:
                assert (file.parent / target).exists(), f"{file.name}: {target}"


def strings(source: str) -> Iterator[str]:
    """Yield each string of a Python source, with the expressions of an f-string in braces."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value)
                if isinstance(part, ast.Constant)
                else f"{{{ast.unparse(part.value)}}}"
                for part in node.values
                if isinstance(part, ast.Constant | ast.FormattedValue)
            )


def test_messages_that_troubleshooting_quotes_are_those_of_the_code() -> None:
    files = (ROOT / "appliance").rglob("*.py")
    known = "\n".join(text for file in files for text in strings(file.read_text("utf-8")))
    known += "\n".join(map(os.strerror, errno.errorcode))
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    for cell in re.findall(r"(?m)^\| (.*?) \|", text.partition("## What happens")[0]):
        for quoted in re.findall(r"`([^`]+ [^`]+)`", cell):
            assert quoted in known, f"docs/troubleshooting.md: no message has {quoted!r}"


def test_every_command_of_a_page_is_one_that_roomscribe_knows() -> None:
    from appliance.cli.main import parser

    steps = [step for file in documented.page_files() for step in documented.steps_of(file)]
    lines = [step.text for step in steps if step.kind == documented.COMMANDS]
    found = [
        line[match.end() :]
        for line in lines
        for match in re.finditer(r"(?m)(?:^|sudo |[|;&] *)roomscribe(?= [a-z-])", line)
    ]
    assert len(found) > 50
    for command in found:
        parser().parse_args(shlex.split(re.split(r"[|<>;&]|$", command, flags=re.M)[0]))


def test_the_settings_that_a_page_shows_are_valid_together() -> None:
    for file in documented.page_files():
        config = (ROOT / "config" / "roomscribe.toml").read_text(encoding="utf-8")
        for step in documented.steps_of(file):
            if step.kind == documented.SETTINGS and not documented.target_of(step):
                config = documented.with_settings(config, step.text)
                parse(config, str(step))


def test_every_file_in_the_table_of_contributing_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("| If you change")[2].partition("\n\n")[0]
    named = 0
    for cell in re.split(r"[|\n]", table):
        folder = ROOT
        for path in re.findall(r"`([\w./-]+)[^`]*`", cell):
            if "/" not in path and not path.endswith(".py"):
                continue
            found = [
                base / path for base in (folder, ROOT, ROOT / "appliance") if (base / path).exists()
            ]
            assert found, f"CONTRIBUTING.md: {path} does not exist"
            folder = found[0] if found[0].is_dir() else found[0].parent
            named += 1
    assert named > 50


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(f"usage: {WRITE}")
    PAGE.write_text(page(), encoding="utf-8")
