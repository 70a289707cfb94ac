"""Cut the power at random moments of the store's life and look for losses.

A child process stores transcripts (after an update from the first layout), moves the cursor,
deletes, checkpoints and restarts, while strace writes down every write and every fsync. Each cut is
one of the states that a disk may be left in, opened by Store.open, which must find every transcript
whose `append` had returned, unchanged, in a file that is whole.

The disk's model: what was written to a file before its last fsync is there. Of later writes and
truncations any subset is there, in order; the last of them may be torn at a sector. A name that was
made, changed or deleted is safe with an fsync of its folder; of later changes of names any first
part is there. That is what POSIX lets a disk do, and more than most do.

Prints one line of figures; exit status 1 with any loss, 0 also when strace cannot be used.

    python -m resilience.power [--cuts 300] [--transcripts 200] [--seed 0]
"""

from __future__ import annotations

import argparse
import logging
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from resilience.power_child import OLD, make_old_file, sentence
from rigs.stores import connection_of

from appliance.config import StoreSettings
from appliance.errors import StoreError
from appliance.store import repair
from appliance.store.folders import FILE_NAME
from appliance.store.store import Store

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
        """Make all of it safe."""
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
        """Begin with `files`, all of them safe."""
        self._names = {name: File(bytearray(content)) for name, content in files.items()}
        self._safe_names = dict(self._names)
        self._later: list[dict[str, File]] = []

    def happen(self, event: Event) -> None:
        """Let it happen."""
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


def main() -> int:
    """Parse the command line; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cuts", type=int, default=300, help="how many (default 300)")
    parser.add_argument("--transcripts", type=int, default=200, help="how many (default 200)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without-sync", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    shared = "/dev/shm" if Path("/dev/shm").is_dir() else None
    logging.disable()
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        return torture(options, Path(folder))


def torture(options: argparse.Namespace, place: Path) -> int:
    """Run the child once, and cut its disk's power many times."""
    state = place / "state"
    state.mkdir(mode=0o700)
    make_old_file(state / FILE_NAME)
    begun_with = {file.name: file.read_bytes() for file in state.iterdir()}
    trace = place / "trace"
    command = [
        *("strace", "-y", "-xx", "-s", "10000000", "-o", str(trace), "-e", f"trace={CALLS}"),
        *(sys.executable, "-m", "resilience.power_child", str(state), str(options.transcripts)),
        *(["--without-sync"] if options.without_sync else []),
    ]
    if not shutil.which("strace"):
        print("power cuts: skipped, strace is not installed")
        return 0
    child = subprocess.run(command, check=False, capture_output=True, text=True)
    if "ptrace" in child.stderr or "PTRACE" in child.stderr:
        print(f"power cuts: skipped, {child.stderr.splitlines()[0]}")
        return 0
    if child.returncode:
        print(child.stderr, file=sys.stderr)
        return 1
    happened = list(events(trace, state, set(begun_with)))
    return report(options, happened, cut_and_look(options, happened, begun_with, place))


def report(options: argparse.Namespace, happened: list[Event], losses: list[str]) -> int:
    """Print the figures, and the first losses; the exit status."""
    calls = [event.call for event in happened]
    for loss in losses[:5]:
        print(loss, file=sys.stderr)
    print(
        f"power cuts: {options.cuts} among {calls.count('write')} writes and {calls.count('sync')} "
        f"fsyncs of {options.transcripts} transcripts (seed {options.seed}): "
        f"{len(losses)} with a loss or damage"
    )
    return 1 if losses else 0


@dataclass(slots=True)
class Promise:
    """What was promised before a cut."""

    stored: set[int] = field(default_factory=lambda: set(range(1, OLD + 1)))
    perhaps: set[int] = field(default_factory=set)
    """Their deletion was begun."""
    cursor: int = 0
    last: int = OLD

    def note(self, line: str) -> None:
        """Take note of what the child says."""
        word, number = line.split()
        match word:
            case "stored":
                self.last = int(number)
                self.stored.add(self.last)
            case "cursor":
                self.cursor = int(number)
            case "deleting":
                self.perhaps |= {int(number)}
            case "keeping":
                self.perhaps |= {each for each in self.stored if each < int(number)}
            case "deleted" | "kept":
                self.stored -= self.perhaps
                self.perhaps = set()


def cut_and_look(
    options: argparse.Namespace, happened: list[Event], begun_with: dict[str, bytes], place: Path
) -> list[str]:
    """What was lost, one line a cut."""
    dice = random.Random(options.seed)
    first = next(index for index, event in enumerate(happened) if event.call == "said")
    # a tenth of the cuts fall into the update from the first layout
    cuts = sorted(
        dice.randrange(first) if number % 10 == 0 else dice.randrange(len(happened))
        for number in range(options.cuts)
    )
    disk, promise, losses = Disk(begun_with), Promise(), list[str]()
    for index, event in enumerate(happened):
        while cuts and cuts[0] == index:
            cuts.pop(0)
            loss = look(disk.after_a_cut(dice), promise, dice, place / "cut")
            if loss:
                losses.append(f"cut before call {index} of {len(happened)}: {loss}")
        disk.happen(event)
        if event.call == "said":
            promise.note(event.data.decode())
    return losses


def look(files: dict[str, bytes], promise: Promise, dice: random.Random, folder: Path) -> str:
    """What is missing or damaged in what a cut left; empty when all is well."""
    folder.mkdir()
    try:
        for name, content in files.items():
            (folder / name).write_bytes(content)
        if dice.random() < 0.5:  # never synced: it may hold anything
            (folder / f"{FILE_NAME}-shm").write_bytes(dice.randbytes(32768))
        with Store.open(StoreSettings(path=str(folder), retention_days=0)) as store:
            return next(compare(store, promise), "")
    except (StoreError, sqlite3.DatabaseError) as error:
        return str(error)
    finally:
        shutil.rmtree(folder)


def compare(store: Store, promise: Promise) -> Iterator[str]:
    """What of the promise does not hold."""
    connection = connection_of(store)
    if repair.set_aside_files(store.path):
        yield "the file was damaged and set aside"
    answer = connection.execute("PRAGMA integrity_check").fetchone()[0]
    if answer != "ok":
        yield str(answer)
    connection.execute("INSERT INTO search (search, rank) VALUES ('integrity-check', 1)")
    there = {stored.seq: stored.transcript for stored in store.read_after(0, 1_000_000)}
    # the next one may be stored, and one deletion done, before anyone could say so
    for number in promise.stored - promise.perhaps - there.keys():
        yield f"transcript {number} is lost"
    for number in there.keys() - promise.stored - {promise.last + 1}:
        yield f"transcript {number} is there and was deleted or never stored"
    for number, found in there.items():
        if (found.text, found.id) != (sentence(number).text, f"{number:026d}"):
            yield f"transcript {number} is not what it was"
    if store.cursor() < promise.cursor:
        yield f"the cursor is at {store.cursor()}, was promised at {promise.cursor}"
    last = max([promise.last, *there])
    if store.append(sentence(last + 100_000)).seq <= last:
        yield f"a number up to {last} was given again"


if __name__ == "__main__":
    sys.exit(main())
