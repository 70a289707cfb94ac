"""Every text that a user can see, one a line: file:line, kind, text.

    scripts/check --messages [PATTERN]

PATTERN is a regular expression that the line must match. From Python: errors, log lines, output,
help texts, and other strings of two words or more (kind `text`: the doctor's findings, reasons in
`state`); from web/labels.py every string; from the page's scripts every string with a letter.
Expressions inside a text are shown in braces.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from rigs.checkout import ROOT

LOG_LEVELS = ("debug", "info", "warning", "error", "exception", "critical")
KINDS = {"print": "output", "say": "output", "report": "output", "usage_error": "usage"}
HELP = ("help", "description", "epilog", "title")
NOT_WORDS = re.compile(r"\s*(SELECT|INSERT|CREATE|UPDATE|DELETE|PRAGMA|ALTER|DROP|WITH|FROM)\b")
"""Begins SQL."""
WORDS = re.compile(r"(\{\}|[A-Za-z']{2,})[,;:.)]? (.* )?[(`]?(\{\}|[a-z]{2,})")
SCRIPT_TEXT = re.compile(r'"(?:[^"\\\n]|\\.)*"|`(?:[^`\\]|\\.)*`')
SCRIPT_COMMENT = re.compile(r"(?ms)(?<![:\w])//[^\n]*$|/\*.*?\*/")


def messages(file: Path) -> Iterator[tuple[int, str, str]]:
    """Line, kind and text of each message in a Python or JavaScript file."""
    source = file.read_text(encoding="utf-8")
    if file.suffix == ".js":
        code = SCRIPT_COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), source)
        for found in SCRIPT_TEXT.finditer(code):
            if re.search(r"[A-Z][a-z]|[a-z] [a-z]", found[0]):
                line = code.count("\n", 0, found.start()) + 1
                yield line, "page", " ".join(found[0][1:-1].split())
    elif file.name == "labels.py":
        for line, _, text in texts(ast.parse(source), "page", 1):
            if not re.fullmatch(r"[a-z_]+(\.[a-z_]+)*", text):
                yield line, "page", text
    else:
        yield from texts(ast.parse(source), "text", 2)


def texts(node: ast.AST, kind: str, least: int) -> Iterator[tuple[int, str, str]]:
    """The strings below `node` of at least so many words, without docstrings and SQL."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.Constant | ast.JoinedStr):
        text = shown(node)
        words = WORDS.search(re.sub(r"\{[^}]*\}", "{}", text)) if least > 1 else text
        if words and not NOT_WORDS.match(text):
            yield node.lineno, kind, text
    if isinstance(node, ast.Call):
        kind = kind_of(node) or kind
    elif isinstance(node, ast.keyword) and node.arg in HELP:
        kind = "help"
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.JoinedStr) and isinstance(child, ast.Constant)):
            yield from texts(child, kind, least)


def kind_of(call: ast.Call) -> str:
    """What a call does with its texts; empty if unknown."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name.endswith("Error"):
        return "error"
    if isinstance(function, ast.Attribute) and name in LOG_LEVELS:
        return f"log {name}"
    return KINDS.get(name, "")


def shown(node: ast.Constant | ast.JoinedStr) -> str:
    """The text on one line, with its expressions in braces; empty for another constant."""
    if isinstance(node, ast.Constant):
        return " ".join(node.value.split()) if isinstance(node.value, str) else ""
    parts = (
        part.value if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
        for part in node.values
        if isinstance(part, ast.Constant | ast.FormattedValue)
    )
    return " ".join("".join(map(str, parts)).split())


def main(pattern: str = "") -> None:
    """Print them."""
    for file in sorted((ROOT / "appliance").rglob("*")):
        if file.suffix in (".py", ".js"):
            for line, kind, text in messages(file):
                entry = f"{file.relative_to(ROOT)}:{line}: {kind}: {text}"
                if re.search(pattern, entry):
                    print(entry)


if __name__ == "__main__":
    main(*sys.argv[1:2])
