"""Compare what was spoken with the transcripts.

`compare` counts sentences that were lost, doubled, out of order or wrong; `stored` and `spooled`
read what a daemon left behind without touching it.
"""

import difflib
import shutil
import sqlite3
import struct
import tempfile
import zlib
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

NEAR = 50
"""A sentence lost here and found so many places away is out of order; beyond it is two faults."""
_SPOOL_FRONT = struct.Struct("<6sBBII")


@dataclass
class Verdict:
    """How often each promise was broken; all zero is whole."""

    lost: int = 0
    doubled: int = 0
    out_of_order: int = 0
    wrong: int = 0

    @property
    def broken(self) -> bool:
        """True when a promise was not kept."""
        return any(getattr(self, entry.name) for entry in fields(self))

    def __str__(self) -> str:
        return (
            f"lost {self.lost}, doubled {self.doubled}, out of order {self.out_of_order}, "
            f"wrong texts {self.wrong}"
        )


def compare(spoken: Sequence[Hashable], heard: Sequence[Hashable]) -> Verdict:
    """Faults that turn what was said into what was heard; none if they are equal."""
    lost: list[tuple[int, Hashable]] = []
    doubled: list[tuple[int, Hashable]] = []
    wrong = moved = 0
    steps = difflib.SequenceMatcher(None, spoken, heard, autojunk=False).get_opcodes()
    for kind, begin, end, other_begin, other_end in steps:
        if kind == "equal":
            continue
        both = min(end - begin, other_end - other_begin)
        wrong += both
        lost += enumerate(spoken[begin + both : end], begin + both)
        doubled += enumerate(heard[other_begin + both : other_end], begin + both)
    for place, what in list(lost):
        at = next((one for one in doubled if one[1] == what and abs(one[0] - place) < NEAR), None)
        if at:
            lost.remove((place, what))
            doubled.remove(at)
            moved += 1
    return Verdict(len(lost), len(doubled), moved, wrong)


def first_times(ids: Iterable[str]) -> list[str]:
    """Each id once, where it came first; a message that came again counts for nothing."""
    return list(dict.fromkeys(ids))


class Sentences:
    """Which sentence a text is, where each has the texts that a run without faults gave it."""

    def __init__(self, texts: dict[int, set[str]]) -> None:
        """Raise ValueError when two sentences share a text: they could not be told apart."""
        self.names: dict[str, int] = {}
        for number, variants in texts.items():
            for text in variants:
                if self.names.setdefault(text, number) != number:
                    raise ValueError(f"sentences {self.names[text]} and {number} read the same")

    def of(self, texts: Iterable[str]) -> list[int]:
        """Numbers of the sentences; -1 for a text that none of them gave."""
        return [self.names.get(text, -1) for text in texts]


def stored(state: Path) -> list[tuple[int, str, str]]:
    """Number, id and text of what a store holds, in order; from a copy: the store is untouched."""
    with tempfile.TemporaryDirectory(dir=state.parent) as folder:
        for suffix in ("", "-wal"):
            file = state / f"roomscribe.db{suffix}"
            if file.exists():
                shutil.copyfile(file, Path(folder) / file.name)
        copy = Path(folder) / "roomscribe.db"
        if not copy.exists() or not copy.stat().st_size:
            return []
        connection = sqlite3.connect(copy)
        try:
            return connection.execute(
                "SELECT seq, id, text FROM transcripts ORDER BY seq"
            ).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []
            raise
        finally:
            connection.close()


@dataclass(frozen=True)
class Waiting:
    """A window that waits in a spool."""

    id: str
    attempts: int
    """How often a process died while it transcribed it, this one included."""


def spooled(spool: Path) -> list[Waiting]:
    """What waits in a spool, in order; a file that was written whole and not renamed, too."""
    found = []
    for path in sorted(spool.glob("*.window*")):
        try:
            data = path.read_bytes()
        except FileNotFoundError:  # done with in this moment
            continue
        if len(data) < _SPOOL_FRONT.size:
            continue
        _, _, attempts, _, checksum = _SPOOL_FRONT.unpack_from(data)
        if zlib.crc32(data[_SPOOL_FRONT.size :]) == checksum:
            found.append(Waiting(path.name.split(".")[0].rsplit("-", 1)[1], attempts))
    return found
