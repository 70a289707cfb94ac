"""The census of the code's structure: how many modules, how large, who imports whom.

    scripts/check --census [FOLDER]

FOLDER is another checkout, also one of the layout before appliance/ had eight rooms. A folder below
appliance/ is a room, and so is each module right in appliance/. An import counts wherever it stands
in a module, and through a door for the module that defines the name.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from rigs.checkout import ROOT

WAY = """
capture/portaudio capture/recorder capture/microphone capture/frames daemon/capture_supervisor
capture/voice capture/endpoint capture/segmenter daemon/pipeline daemon/backlog daemon/spool
daemon/transcription infer/transcriber infer/mel infer/encoder infer/sessions infer/network
infer/decoder infer/tokenizer infer/joining infer/gates records
store/store store/database store/tables mqtt/publisher mqtt/outbox mqtt/events mqtt/connection
mqtt/client
"""
"""Modules whose code sound and text run through, from PortAudio to paho, with the CPU's encoder and
without trouble: read off the calls."""
WAY_BEFORE = """
capture/messages capture/portaudio capture/recorder capture/microphone capture/levels
capture/resample capture/frames capture/source ears
capture/voice capture/floor capture/ending capture/cutting capture/segmenter pipeline stage backlog
spool spool_file spool_folder
scribe infer/transcriber infer/mel infer/encoder infer/cpu infer/sessions infer/network
infer/embedding infer/decoder infer/guards infer/presets infer/tokenizer infer/joining infer/phrases
infer/verdict records
publish/store publish/database publish/connecting publish/schema publish/rows publish/search
publish/publisher publish/delivery publish/outbox publish/live publish/events publish/messages
publish/connection publish/mailbox publish/mqtt
"""
"""The same in the layout with publish/."""
PROGRAMS = ("", ".py", ".sh")
"""How their names end."""


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

    def only_once(self) -> list[str]:
        """Modules with a single importer."""
        importers = [target for _, target in self.imports]
        return sorted(module for module in self.modules if importers.count(module) == 1)

    def across(self) -> set[tuple[str, str]]:
        """Imports between modules of different rooms."""
        return {(a, b) for a, b in self.imports if room(a) != room(b)}

    def lines(self, folder: str) -> int:
        """Of Python and shell programs in a folder."""
        files = [file for file in (self.root / folder).rglob("*") if file.suffix in PROGRAMS]
        return sum(
            file.read_bytes().count(b"\n") for file in files if file.is_file() and is_ours(file)
        )

    def entries(self, folder: str) -> int:
        """Files and folders right in a folder."""
        return sum(is_ours(one) for one in (self.root / folder).iterdir())

    def report(self) -> Iterator[tuple[str, object]]:
        """What is counted, and the figure."""
        size = {name: len(file.read_text().splitlines()) for name, file in self.modules.items()}
        largest = max(size, key=lambda name: size[name])
        across, once = self.across(), self.only_once()
        before = (self.package / "publish").is_dir()
        way = (WAY_BEFORE if before else WAY).split()
        if missing := set(way) - set(self.modules):
            raise SystemExit(f"census: on a window's way are no modules {sorted(missing)}")
        arrows = {(room(a), room(b)) for a, b in across}
        yield "modules in appliance/", len(self.modules)
        yield "rooms", len({room(module) for module in self.modules})
        yield "modules with a single importer", f"{len(once)}: {' '.join(once)}"
        yield "lines of a module, median", round(statistics.median(size.values()))
        yield "lines of the largest", f"{size[largest]}: {largest}"
        yield "imports between rooms: room -> room", len(arrows)
        yield "imports between rooms: module -> module", len(across)
        yield "modules on a window's way to the broker", len(way)
        for folder in ("appliance", "scripts"):
            yield f"entries at the top of {folder}/", self.entries(folder)
        for folder in ("appliance", "tests", "scripts"):
            yield f"lines of {folder}/", self.lines(folder)


def statements(source: str) -> Iterator[ast.AST]:
    """Yield all statements of a source, also those inside others: ten times as fast as ast.walk."""
    found: list[ast.AST] = [ast.parse(source)]
    while found:
        node = found.pop()
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, name, ())
            found += inner if isinstance(inner, list) else ()


def room(module: str) -> str:
    """A module's folder; itself where that is appliance/."""
    return module.rpartition("/")[0] or module


def is_ours(file: Path) -> bool:
    """False for what a run leaves behind."""
    return "__pycache__" not in file.parts and not file.name.startswith(".")


if __name__ == "__main__":
    for what, found in Census(Path(sys.argv[1]) if sys.argv[1:] else ROOT).report():
        print(f"{what:42} {found}")
