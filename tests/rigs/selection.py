"""`pytest --selected`: the tests that start no other program, and one file of each kind that does.

A file's kinds are the rigs below that it imports, itself or through other rigs.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

RIGS = Path(__file__).parent
STARTERS = frozenset(
    {"avahi", "broker", "browser", "daemon", "microphone", "nats", "page", "terminal"}
)
"""Rigs that start a server, a browser or a daemon."""
ASKING = frozenset({"needs"})
"""Rigs that import starters only to ask whether their program is installed."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--selected`."""
    parser.addoption(
        "--selected",
        action="store_true",
        help="leave out the tests that start programs, but for one file of each kind",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects what `--selected` leaves out."""
    if not config.getoption("--selected"):
        return
    counts = Counter(item.path for item in items)
    kept = choose_files({path: kinds_of(path) for path in counts}, counts)
    out = [item for item in items if item.path not in kept]
    items[:] = [item for item in items if item.path in kept]
    config.hook.pytest_deselected(items=out)


def choose_files(kinds: dict[Path, frozenset[str]], counts: Counter[Path]) -> set[Path]:
    """Return the files without a kind, and for each kind the file with the fewest other kinds.

    kinds: what each file starts. counts: its number of tests, which decides between equals.
    """
    chosen = {path for path, found in kinds.items() if not found}
    for kind in sorted(set().union(*kinds.values())):
        having = [path for path, found in kinds.items() if kind in found]
        chosen.add(min(having, key=lambda path: (len(kinds[path]), counts[path], str(path))))
    return chosen


@cache
def kinds_of(path: Path) -> frozenset[str]:
    """Return the names of the starting rigs that the file at `path` imports, also indirectly."""
    found = set(imported_rigs(ast.parse(path.read_bytes())))
    files = [RIGS / f"{name}.py" for name in found - ASKING - STARTERS]
    return frozenset(found & STARTERS).union(*(kinds_of(file) for file in files if file.is_file()))


def imported_rigs(tree: ast.AST) -> Iterable[str]:
    """Yield the first name below `rigs` of every import in `tree`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "rigs":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rigs."):
            yield (node.module or "").split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("rigs."))
