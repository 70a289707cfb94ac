"""docs/commands.md is made from the command line; blocks and links of all pages are right.

    PYTHONPATH=.:tests:scripts python tests/cli/test_docs.py --write     writes the page anew

The page is made from the parser's actions, because the layout of print_help depends on the version
of Python.
"""

from __future__ import annotations

import argparse
import ast
import errno
import os
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from deb import checks_docs, documented

from appliance.config import parse

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "commands.md"
WRITE = f"PYTHONPATH=.:tests:scripts python {Path(__file__).relative_to(ROOT)} --write"
WIDTH = 80
HEAD = f"""\
# Commands

Made from the command line itself: change the help texts there, then run
`{WRITE}`. `-h` (`--help`), which every command takes, is left out.
After an installation `man roomscribe` and `man roomscribe.toml` say the same.
Inside a checkout the command is `.venv/bin/roomscribe`.
"""
EXIT_STATUS = """\
## Exit status

| status | meaning |
|---|---|
| 0 | done |
| 1 | nothing found, a deletion was declined; of `mute`: not muted |
| 2 | wrong usage |
| 65 | a recording that cannot be read |
| 69 | trouble with a device |
| 70 | an error that nobody foresaw |
| 74 | trouble with the log or the broker, or output that cannot be written (a full disk) |
| 75 | a cause that may pass: a disk that fails, too little memory; of `run`, no such model |
| 78 | a mistake in the configuration or the model; systemd does not start the daemon again |
| 129, 130, 143 | ended by SIGHUP (of `model`), Ctrl-C, SIGTERM (of `model`) |

`doctor` ends with the number of checks that failed, 63 at most.
"""


def page() -> str:
    """Return the page: head, one section per command in the order of --help, exit statuses."""
    from appliance.cli.main import parser

    top = parser()
    sections = [HEAD, _what_there_is(top)]
    sections += [_section(one) for one in _all_below(top)]
    return "\n".join([*sections, EXIT_STATUS])


def _what_there_is(top: argparse.ArgumentParser) -> str:
    """Return the description of `roomscribe` and the list of commands."""
    lines = [*_about(top), "| command | what it does |", "|---|---|"]
    for one, help_text in _named(top):
        lines.append(f"| [`{one.prog}`](#{one.prog.replace(' ', '-')}) | {_cell(help_text)} |")
    return "\n".join([*lines, ""])


def _about(one: argparse.ArgumentParser) -> list[str]:
    """Return description, usage and examples."""
    lines = []
    if one.description:
        lines += [textwrap.fill(" ".join(one.description.split()), 100), ""]
    lines += ["```text", _usage(one), "```", ""]
    return lines + (["```text", one.epilog.strip(), "```", ""] if one.epilog else [])


def _section(one: argparse.ArgumentParser) -> str:
    """Return the section of a command: description, usage and a table of arguments."""
    rows = [
        f"| `{_written(action).replace('|', chr(92) + '|')}` | {_cell(_meaning(one, action))} |"
        for action in _arguments(one)
    ]
    table = ["| argument | meaning |", "|---|---|", *rows, ""] if rows else []
    return "\n".join([f"## {one.prog}", "", *_about(one), *table])


def _below(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the direct subcommands by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _all_below(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield all commands, each followed by its subcommands, in the order of --help."""
    for one in _below(parser).values():
        yield one
        yield from _all_below(one)


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


def _arguments(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return all arguments except --help and the list of commands."""
    hidden = (argparse._HelpAction, argparse._SubParsersAction)
    return [action for action in parser._actions if not isinstance(action, hidden)]


def _usage(parser: argparse.ArgumentParser) -> str:
    """Return the usage, at most WIDTH columns wide."""
    parts, done = [parser.prog], set[int]()
    for action in sorted(_arguments(parser), key=lambda one: not one.option_strings):
        if id(action) in done:
            continue
        group = next(
            (one for one in parser._mutually_exclusive_groups if action in one._group_actions),
            None,
        )
        together = group._group_actions if group else [action]
        done.update(map(id, together))
        text = " | ".join(map(_written, together))
        must = group.required if group else action.required or not action.option_strings
        parts.append(text if must else f"[{text}]")
    if _below(parser):
        parts.append("COMMAND ...")
    lines = [""]
    for part in parts:
        if lines[-1] and len(lines[-1]) + 1 + len(part) > WIDTH:
            lines.append(" " * len(parser.prog))
        lines[-1] += f" {part}" if lines[-1] else part
    return "\n".join(lines)


def _written(action: argparse.Action) -> str:
    """Return an argument as in a usage: `--limit N`, `FILE [FILE ...]`."""
    value = _value(action)
    if action.option_strings:
        return " ".join(filter(None, (", ".join(action.option_strings), value)))
    return value


def _value(action: argparse.Action) -> str:
    """Return the placeholder of the value; "" for a switch."""
    if action.nargs == 0:
        return ""
    name = str(action.metavar or "")
    if not name and action.choices is not None:
        name = "{" + ",".join(map(str, action.choices)) + "}"
    name = name or (action.dest.upper() if action.option_strings else action.dest)
    forms = {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} [{name} ...]"}
    return forms.get(str(action.nargs), name)


def _meaning(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Return the help text with argparse's placeholders filled in."""
    return (action.help or "") % {**vars(action), "prog": parser.prog}


def _cell(text: str) -> str:
    """Return text escaped for a cell of a Markdown table."""
    return re.sub(r"([|<>*_])", r"\\\1", " ".join(text.split()))


def test_the_page_of_commands_is_what_argparse_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), f"run {WRITE}"


def test_the_page_does_not_depend_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    narrow = page()
    monkeypatch.setenv("COLUMNS", "200")
    assert page() == narrow


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


def test_every_block_of_a_page_is_commands_settings_or_output() -> None:
    """scripts/test-deb runs these commands, but for those that deb.checks_docs lists."""
    steps = [step for file in documented.page_files() for step in documented.steps_of(file)]
    commands = [step.text for step in steps if step.kind == documented.COMMANDS]
    assert len(commands) > 100
    assert not checks_docs.unused_patterns(commands)


def test_the_settings_that_a_page_shows_are_valid_together() -> None:
    for file in documented.page_files():
        config = (ROOT / "config" / "roomscribe.toml").read_text(encoding="utf-8")
        for step in documented.steps_of(file):
            if step.kind == documented.SETTINGS and not documented.target_of(step):
                config = documented.with_settings(config, step.text)
                parse(config, str(step))


def test_commands_are_read_without_comments_and_joined_over_lines(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Text.\n\n    first  # a comment\n\n```sh\n# a comment\nsecond |\n  third \\\n"
        "  fourth\nfifth\n```\n\n```toml\n# /etc/file\nkey = 1\n```\n\n```text\nsixth\n```\n",
        encoding="utf-8",
    )
    steps = documented.steps_of(page)
    assert [(step.line, step.text) for step in steps[:3]] == [
        (3, "first"),
        (7, "second |\n  third \\\n  fourth"),
        (10, "fifth"),
    ]
    assert documented.target_of(steps[3]) == "/etc/file"
    page.write_text("```\nseventh\n```\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no language"):
        documented.steps_of(page)


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
