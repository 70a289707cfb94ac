"""Hears sentences in a room and publishes their text to MQTT and a local log."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import cache

__version__ = "0.2.0"
HOMEPAGE = "https://example.org/roomscribe"
"""The project's address; a placeholder until scripts/address or a release writes it."""

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
"""PyPI's onnxruntime for Linux has telemetry since 1.29: it keeps a device id and a queue of events
in the user's cache folder and sends them to Microsoft. Only this variable, set before the import,
prevents it; `disable_telemetry_events()` does not (tried with 1.32). Every process of Roomscribe,
and each of its children, has it from here."""


@cache
def build_version() -> str:
    """Return the version with the commit and its date (UTC): `0.2.0~git20261128.1810.dd303b5a`.

    A release, whose commit has the tag, and a wheel have the plain version. A package has a file,
    which scripts/build-deb writes; in a checkout git is asked.
    """
    import subprocess
    from contextlib import suppress
    from pathlib import Path

    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        command = ("git", "-C", str(here.parent), *arguments)
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=10,
            env=os.environ | {"TZ": "UTC0"},
        )  # fmt: skip
        return done.stdout.strip()

    with suppress(OSError):
        return (here / "build.txt").read_text(encoding="ascii").strip()
    with suppress(OSError, subprocess.SubprocessError):
        if (here.parent / ".git").exists():
            date = "--date=format-local:%Y%m%d.%H%M"
            commit = git("log", "-1", date, "--abbrev=8", "--format=%cd.%h")
            changed = "+changed" if git("status", "--porcelain", "--untracked-files=no") else ""
            if changed or f"v{__version__}" not in git("tag", "--points-at", "HEAD").split():
                return f"{__version__}~git{commit}{changed}"
    return __version__


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
