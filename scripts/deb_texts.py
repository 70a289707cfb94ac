#!/usr/bin/env python3
"""Writes the manual pages and the bash completion from the command line and the settings.

deb_texts.py SHARE    writes SHARE/roomscribe-texts/roomscribe.{1,toml.5} and
                      SHARE/bash-completion/completions/roomscribe
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from appliance import __version__, cli  # noqa: E402
from appliance.config import keys  # noqa: E402

FILES = """\
.TP
.I /etc/roomscribe/roomscribe.toml
The configuration; see
.BR roomscribe.toml (5).
.TP
.I /etc/credstore/roomscribe.mqtt-password
The password of the user that mqtt.username names, readable for root alone.
.TP
.I /var/lib/roomscribe/
The local log and the installed models.
"""
STATUS = (
    (0, "done"),
    (1, "nothing found"),
    (2, "wrong usage"),
    (65, "a recording that cannot be read"),
    (69, "device trouble"),
    (74, "trouble with the local log"),
    (78, "a mistake in the configuration or the model; systemd does not start the daemon again"),
)


def escaped(text: str) -> str:
    """Plain text as roff prints it unchanged."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(
        "\\&" + line if line.startswith((".", "'")) else line for line in text.split("\n")
    )


def head(name: str, section: int, title: str, about: str) -> Iterator[str]:
    """The page's first lines; no date, so that equal sources give equal pages."""
    yield f'.TH {name.upper()} {section} "" "roomscribe {__version__}" "{title}"'
    yield ".SH NAME"
    yield f"{escaped(name)} \\- {about}"


def commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers right below `parser`, by their names."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Every command that does something, in the order of --help."""
    below = commands(parser)
    if not below:
        yield parser
    for one in below.values():
        yield from leaves(one)


def options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """(how it is written, what it does) of every argument but --help."""
    form = parser._get_formatter()
    for action in parser._actions:
        if isinstance(action, (argparse._HelpAction, argparse._SubParsersAction)):
            continue
        if not action.help or action.help == argparse.SUPPRESS:
            continue
        yield form._format_action_invocation(action), form._expand_help(action)


def command_page() -> str:
    """roomscribe(1)"""
    top = cli.parser()
    lines = [*head("roomscribe", 1, "User commands", "writes down what is said in the room")]
    lines += [".SH SYNOPSIS", ".B roomscribe", ".I COMMAND", "[...]", ".SH DESCRIPTION"]
    lines.append(escaped(str(top.description)))
    lines.append(".SH COMMANDS")
    for one in leaves(top):
        lines += [".SS " + escaped(one.prog), escaped(one.description or one.prog)]
        for written, meaning in options(one):
            lines += [".TP", f".B {escaped(written)}", escaped(" ".join(meaning.split()))]
    lines.append(".SH EXIT STATUS")
    for number, meaning in STATUS:
        lines += [".TP", f".B {number}", escaped(meaning)]
    lines += [".SH FILES", FILES.rstrip()]
    lines += [
        ".SH SEE ALSO",
        ".BR roomscribe.toml (5),",
        ".BR systemctl (1),",
        ".BR journalctl (1)",
    ]
    return "\n".join(lines) + "\n"


def file_page() -> str:
    """roomscribe.toml(5)"""
    lines = [*head("roomscribe.toml", 5, "File formats", "configuration of roomscribe")]
    lines += [".SH SYNOPSIS", ".I /etc/roomscribe/roomscribe.toml", ".SH DESCRIPTION"]
    lines.append("Sections in brackets, a key and its value on each line, in TOML.")
    lines.append("All mistakes are reported together, each with its place and cure.")
    lines.append(".B systemctl reload roomscribe")
    lines.append("makes the daemon read the file again.")
    section = ""
    for name, entry in keys():
        if name != section:
            section = name
            lines.append(f".SH [{name}]")
        limits = entry.metadata
        notes = [f"Default: {shown(entry.default)}"]
        if limits["choices"]:
            notes.append("one of " + ", ".join(limits["choices"]))
        if limits["low"] is not None:
            notes.append(f"{limits['low']} to {limits['high']} {limits['unit']}".rstrip())
        sentence = f"{limits['sentence']} {'; '.join(notes)}."
        lines += [".TP", f".B {escaped(entry.name)}", escaped(sentence)]
    lines += [".SH SEE ALSO", ".BR roomscribe (1)"]
    return "\n".join(lines) + "\n"


def shown(value: object) -> str:
    """A default as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def completion() -> str:
    """bash's completion: command words, then options or files."""
    cases = []

    def add(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> None:
        below = commands(parser)
        flags = [flag for action in parser._actions for flag in action.option_strings]
        offered = " ".join(sorted([*below, *flags]))
        cases.append(f"        '{' '.join(words)}') offered='{offered}' ;;")
        for name, one in below.items():
            add(one, (*words, name))

    add(cli.parser(), ())
    listed = "\n".join(cases)
    return f"""\
# bash completion for roomscribe
_roomscribe() {{
    local cur prev words cword offered='' path='' word
    _init_completion || return
    for word in "${{words[@]:1:cword-1}}"; do
        case $word in -*) break ;; esac
        case "$path$word" in
{chr(10).join(f"            '{' '.join(one)}') path='{' '.join(one)} ' ;;" for one in paths())}
        esac
    done
    case "${{path% }}" in
{listed}
    esac
    case $prev in --config|--recording) _filedir; return ;; esac
    mapfile -t COMPREPLY < <(compgen -W "$offered" -- "$cur")
    [ ${{#COMPREPLY[@]}} -gt 0 ] || _filedir
}}
complete -F _roomscribe roomscribe
"""


def paths() -> list[tuple[str, ...]]:
    """Every sequence of command words."""
    found: list[tuple[str, ...]] = []

    def walk(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> None:
        for name, one in commands(parser).items():
            found.append((*words, name))
            walk(one, (*words, name))

    walk(cli.parser(), ())
    return found


def main() -> int:
    """Writes all three."""
    share = Path(sys.argv[1])
    texts = {
        "roomscribe-texts/roomscribe.1": command_page(),
        "roomscribe-texts/roomscribe.toml.5": file_page(),
        "bash-completion/completions/roomscribe": completion(),
    }
    for name, text in texts.items():
        target = share / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
