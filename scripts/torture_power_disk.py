"""A disk that forgets: what may lie on it after a power cut, from the trace of a program's writes.

The model: what was written to a file before its last fsync is there. Of later writes and
truncations any subset is there, in order; the last of them may be torn at a sector. A name that was
made, changed or deleted is safe with an fsync of its folder; of later changes of names any first
part is there. That is what POSIX lets a disk do, and more than most do.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

CALLS = (
    "openat,pwrite64,write,ftruncate,fsync,fdatasync,unlink,unlinkat,rename,renameat,renameat2,"
    "pwritev,writev,fallocate"
)
_OF_NAMES = {"openat", "unlink", "unlinkat", "rename", "renameat", "renameat2"}
_SECTOR = 512
_CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+)")
_FD = re.compile(r"(\d+)<((?:\\x[0-9a-f]{2})*)>(\(deleted\))?")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


@dataclass(slots=True)
class Change:
    """One change of a file's content: `data` at `offset`, or its length where `data` is None."""

    offset: int
    data: bytes | None

    def apply(self, content: bytearray) -> None:
        """Does it to `content`."""
        if self.data is None:
            del content[self.offset :]
            content.extend(bytes(self.offset - len(content)))
            return
        content.extend(bytes(max(0, self.offset - len(content))))
        content[self.offset : self.offset + len(self.data)] = self.data

    def torn(self, dice: random.Random) -> Change:
        """Some of its sectors, from the front."""
        if self.data is None:
            return self
        return Change(self.offset, self.data[: dice.randrange(0, len(self.data) + 1, _SECTOR)])


@dataclass(slots=True, eq=False)
class File:
    """A file whatever its name: what is safe, and what is not."""

    safe: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)

    def sync(self) -> None:
        """Makes all of it safe."""
        for change in self.pending:
            change.apply(self.safe)
        self.pending.clear()

    def after_a_cut(self, dice: random.Random) -> bytes:
        """What may be left of it."""
        content = bytearray(self.safe)
        share = dice.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        kept = [change for change in self.pending if dice.random() < share]
        if kept and dice.random() < 0.7:
            kept[-1] = kept[-1].torn(dice)
        for change in kept:
            change.apply(content)
        return bytes(content)


@dataclass(frozen=True, slots=True)
class Event:
    """One call: what it did, to which name, with what."""

    call: str
    """make, write, truncate, sync, sync_folder, delete, rename or said."""
    name: str = ""
    other: str = ""
    offset: int = 0
    data: bytes = b""


class Disk:
    """A folder as the program sees it, and what would be left of it."""

    def __init__(self, files: dict[str, bytes]) -> None:
        """Begins with `files`, all of them safe."""
        self._names = {name: File(bytearray(content)) for name, content in files.items()}
        self._safe_names = dict(self._names)
        self._later: list[dict[str, File]] = []

    def happen(self, event: Event) -> None:
        """Lets it happen."""
        match event.call:
            case "write":
                self._names[event.name].pending.append(Change(event.offset, event.data))
            case "truncate":
                self._names[event.name].pending.append(Change(event.offset, None))
            case "sync":
                self._names[event.name].sync()
            case "make":
                self._name({**self._names, event.name: File()})
            case "delete":
                self._name({name: file for name, file in self._names.items() if name != event.name})
            case "rename":
                names = dict(self._names)
                names[event.other] = names.pop(event.name)
                self._name(names)
            case "sync_folder":
                self._safe_names = dict(self._names)
                self._later = []

    def after_a_cut(self, dice: random.Random) -> dict[str, bytes]:
        """What may be left: each file's name and content."""
        names = dice.choice([self._safe_names, *self._later])
        return {name: file.after_a_cut(dice) for name, file in names.items()}

    def _name(self, names: dict[str, File]) -> None:
        self._names = names
        self._later.append(names)


def events(trace: Path, folder: Path, there: set[str]) -> Iterator[Event]:
    """What strace (-y -xx) saw happen in `folder`, which held the files `there`, and was said."""
    names = set(there)
    with trace.open(encoding="ascii", errors="replace") as lines:
        for line in lines:
            found = _CALL.match(line)
            if not found or int(found[3]) < 0:
                continue
            event = _event(found[1], found[2], folder, names)
            if event is None or (event.call == "make" and event.name in names):
                continue
            names -= {event.name} if event.call in {"delete", "rename"} else set()
            names |= {event.name} if event.call == "make" else set()
            names |= {event.other} if event.call == "rename" else set()
            yield event


def _event(call: str, arguments: str, folder: Path, names: set[str]) -> Event | None:
    """The event of one call that succeeded; None for what is no concern of the folder's."""
    texts = [_plain(text) for text in _STRING.findall(arguments)]
    if call == "write" and arguments.startswith("1<"):
        return Event("said", data=texts[0])
    if call in _OF_NAMES:
        return _of_names(call, arguments, [_inside(text, folder) for text in texts], names)
    opened = _FD.match(arguments)
    if not opened or opened[3]:
        return None
    path = _plain(opened[2])
    name = _inside(path, folder)
    if path == bytes(folder):
        return Event("sync_folder")
    return _of_content(call, arguments, name, texts) if name and name[-4:] != "-shm" else None


def _of_names(call: str, arguments: str, inside: list[str], names: set[str]) -> Event | None:
    """A call that is given names."""
    if call == "openat":
        return Event("make", inside[0]) if inside[0] and "O_CREAT" in arguments else None
    if inside[0] not in names:
        return None
    return Event("delete", inside[0]) if len(inside) == 1 else Event("rename", inside[0], inside[1])


def _of_content(call: str, arguments: str, name: str, texts: list[bytes]) -> Event:
    """A call that is given an open file."""
    if call in {"fsync", "fdatasync"}:
        return Event("sync", name)
    at = arguments.rpartition(",")[2]
    if call == "ftruncate":
        return Event("truncate", name, offset=int(at))
    if call == "pwrite64":
        return Event("write", name, offset=int(at), data=texts[0])
    raise ValueError(f"{call} on {name}: a way of writing that this model does not know")


def _plain(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def _inside(path: bytes, folder: Path) -> str:
    """The name of a file right in `folder`; empty for any other."""
    found = Path(path.decode("utf-8", "replace"))
    return found.name if found.parent == folder else ""
