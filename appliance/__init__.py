"""Hears sentences in a room and publishes their text to MQTT and a local log."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable

__version__ = "0.1.0"
HOMEPAGE = "https://example.org/roomscribe"
"""Where the project is found; stands for its address until it has a public one."""

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
"""PyPI's onnxruntime for Linux has telemetry since 1.29: it keeps a device id and a queue of events
in the user's cache folder and sends them to Microsoft. Only this variable, set before the import,
prevents it; `disable_telemetry_events()` does not (tried with 1.32). Every process of Roomscribe,
and each of its children, has it from here."""


def lazily(package: str, file: str) -> Callable[[str], object]:
    """Return a package's `__getattr__` (PEP 562), which imports a name's module at its first use.

    The names are those that `file`, the package's `__init__`, imports for type checkers. So
    importing a package costs nothing, and a command that needs no model starts without numpy.
    """
    modules: dict[str, str] = {}

    def find(name: str) -> object:
        if not modules:
            import ast  # with pathlib 1.3 MB, which the recorder does not need
            from pathlib import Path

            for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module:
                    modules.update({alias.name: node.module for alias in node.names})
        path = modules.get(name, "")
        if not path.startswith(package):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if path != package and hasattr(module := importlib.import_module(path), name):
            return getattr(module, name)
        return importlib.import_module(f"{path}.{name}")

    return find
