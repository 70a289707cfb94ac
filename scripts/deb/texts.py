"""Writes the manual pages and the shells' completions from the command line and the settings.

python -m deb.texts SHARE    writes, below SHARE, roomscribe-texts/roomscribe.{1,toml.5},
        bash-completion/completions/roomscribe and zsh/vendor-completions/_roomscribe

The page of the commands is argparse-manpage's, the completions are shtab's (both of them in
Debian); the page of the settings is made here, since no tool knows them.
"""

import argparse
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import MISSING
from pathlib import Path

import shtab
from argparse_manpage.manpage import Manpage

from appliance import build_version
from appliance.cli import main as cli
from appliance.config import keys

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
The local log, for the daemon and root alone.
.TP
.I /var/lib/roomscribe-models/
The installed models.
"""
GROUP = r"\[[^][]*\]"
"""An optional argument in a usage line."""
STATUS = (
    (0, "done"),
    (1, "nothing found, a deletion was declined; of mute: not muted"),
    (2, "wrong usage"),
    (65, "a recording that cannot be read"),
    (69, "trouble with a device, or the daemon does not run"),
    (70, "an error that nobody foresaw"),
    (74, "trouble with the log or the broker, or output that cannot be written (a full disk)"),
    (75, "a cause that may pass: a disk that fails, too little memory; of run, no such model"),
    (78, "a mistake in the configuration or the model; systemd does not start the daemon again"),
    (130, "ended by Ctrl-C"),
)


def escaped(text: str) -> str:
    """Return text escaped for roff."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(
        "\\&" + line if line.startswith((".", "'")) else line for line in text.split("\n")
    )


def command_page() -> str:
    """Return roomscribe(1), without a date: builds are reproducible."""
    top = cli.parser()
    examples, top.epilog = str(top.epilog), None
    page = Manpage(top, format="single-commands-section")
    page.description = "writes down what is said in the room"
    page.source, page.manual, page.date = f"roomscribe {build_version()}", "User commands", ""
    lines = [re.split(" {2,}", line.strip(), maxsplit=1) for line in examples.split("\n")[1:-1]]
    page.add_section("EXAMPLES", "=", listed(lines))
    page.add_section("EXIT STATUS", "=", listed((str(number), text) for number, text in STATUS))
    page.add_section("FILES", "=", FILES.rstrip())
    page.add_section(
        "SEE ALSO", "=", ".BR roomscribe.toml (5),\n.BR systemctl (1),\n.BR journalctl (1)"
    )
    # a usage breaks between its arguments, not within them, and is not stretched
    text = re.sub(
        "^usage: .*", lambda usage: re.sub(GROUP, unbroken, usage[0]), str(page), flags=re.M
    )
    return text.replace("\n.SH NAME", "\n.ad l\n.nh\n.SH NAME", 1)


def unbroken(group: re.Match[str]) -> str:
    """Return the group with spaces at which roff does not break the line."""
    return group[0].replace(" ", "\\ ")


def listed(pairs: Iterable[Sequence[str]]) -> str:
    """Return a list of terms and their meanings in roff."""
    return "\n".join(f".TP\n.B {escaped(word)}\n{escaped(text)}" for word, text in pairs)


def file_page() -> str:
    """Return roomscribe.toml(5)."""
    lines = [f'.TH ROOMSCRIBE.TOML 5 "" "roomscribe {build_version()}" "File formats"']
    lines += [".SH NAME", "roomscribe.toml \\- configuration of roomscribe"]
    lines += [".SH SYNOPSIS", ".I /etc/roomscribe/roomscribe.toml", ".SH DESCRIPTION"]
    lines.append("Sections in brackets, a key and its value on each line, in TOML.")
    lines.append("All mistakes are reported together, each with its place and fix.")
    lines.append(".B systemctl reload roomscribe")
    lines.append("makes the daemon read the file again.")
    section = ""
    for name, entry in keys():
        if name != section:
            section = name
            lines.append(f".SH [{name}]")
        limits = entry.metadata
        notes = [f"Default: {shown({} if entry.default is MISSING else entry.default)}"]
        if limits["choices"]:
            notes.append("one of " + ", ".join(limits["choices"]))
        if limits["low"] is not None:
            notes.append(f"{limits['low']} to {limits['high']} {limits['unit']}".rstrip())
        sentence = f"{limits['description']} {'; '.join(notes)}."
        lines += [".TP", f".B {escaped(entry.name)}", escaped(sentence)]
    lines += [".SH SEE ALSO", ".BR roomscribe (1)"]
    return "\n".join(lines) + "\n"


def shown(value: object) -> str:
    """Return a default value in TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str(list(value))
    return f'"{value}"' if isinstance(value, str) else str(value)


def completion(shell: str) -> str:
    """Return the script with which `shell` completes commands, options, choices and files."""
    top = cli.parser()
    prepare(top)
    text = str(shtab.complete(top, shell))
    # files, too, where shtab has no answer, as in --config=FILE
    return text.replace("\ncomplete -o ", "\ncomplete -o default -o ")


def prepare(parser: argparse.ArgumentParser) -> None:
    """Mark arguments that are files or folders, and describe each command."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                below = action.choices[choice.dest]
                below.description = choice.help
                prepare(below)
        elif "FILE" in str(action.metavar):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif re.search("FOLDER|BUNDLE", str(action.metavar)):
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]


def main() -> int:
    """Write the two pages and the two completions."""
    os.environ["COLUMNS"] = "10000"  # a paragraph is a line: breaking it is left to man
    share = Path(sys.argv[1])
    texts = {
        "roomscribe-texts/roomscribe.1": command_page(),
        "roomscribe-texts/roomscribe.toml.5": file_page(),
        "bash-completion/completions/roomscribe": completion("bash"),
        "zsh/vendor-completions/_roomscribe": completion("zsh"),
    }
    for name, text in texts.items():
        target = share / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
