"""`pytest --selected`: the tests that start no server, browser or daemon."""

import ast
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
        "--selected", action="store_true", help="leave out the tests that start other programs"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects what `--selected` leaves out."""
    if config.getoption("--selected"):
        config.hook.pytest_deselected(items=[item for item in items if is_starter(item.path)])
        items[:] = [item for item in items if not is_starter(item.path)]


@cache
def is_starter(path: Path) -> bool:
    """Return whether a file imports a rig of STARTERS, also through other rigs."""
    found = set(imported_rigs(ast.parse(path.read_bytes())))
    files = [RIGS / f"{name}.py" for name in found - ASKING - STARTERS]
    return bool(found & STARTERS) or any(is_starter(file) for file in files if file.is_file())


def imported_rigs(tree: ast.AST) -> Iterable[str]:
    """Yield the first name below `rigs` of every import in `tree`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "rigs":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rigs."):
            yield (node.module or "").split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("rigs."))
