"""The daemon's log, which goes on in memory while the disk of its file refuses.

A card that became read-only, a full disk, a folder that is not there: what is heard is kept in a
second file, in a folder in memory, and told from there; as soon as the disk can be written again,
that file is put into the log and deleted. A crash between leaves it to the next start.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from appliance.errors import PublishError
from appliance.publish import merging, recovery, store_files
from appliance.publish.database import Access, Database, Work
from appliance.publish.salvage import Known
from appliance.publish.store_errors import UnwritableError, plain_errors
from appliance.publish.store_files import beside

log = logging.getLogger("roomscribe")
T = TypeVar("T")

REFUSES_S = 10.0
"""A file that refuses for so long is stood in for."""
TRY_EVERY_S = 10.0
"""So often it is tried whether it can be written again."""
_TRY_AT_LEAST_EVERY_S = 600.0
_SOON_S = 60.0
"""One that refuses again so soon after it could be written is tried half as often."""


class Shelter(Protocol):
    """A folder in memory that outlives the process."""

    path: Path

    def take(self) -> None:
        """Makes the folder, for this process alone. Raises OSError."""

    def leave(self) -> None:
        """Gives it back; it is gone when it is empty."""


class LastingDatabase:
    """A Database that is now the file, now its stand-in. Any thread may call any method."""

    def __init__(self, path: Path, shelter: Shelter, tell: Callable[[str | None], object]) -> None:
        """Opens the file, with what a stand-in has kept for it, or a stand-in.

        `tell` is given what is wrong while one is used, None when it is well again. Raises
        PublishError for a file that another try does not open, and where there is no memory.
        """
        self.path = path
        self._shelter, self._tell = shelter, tell
        self._lock = threading.RLock()
        self._awaited = False
        self._sheltered = False
        self._refusing: dict[str, float] = {}
        """What is refused, and since when."""
        self._back_s = -_SOON_S
        self._every_s, self._try_s = TRY_EVERY_S, 0.0
        try:
            self._present = self._opened(None)
        except UnwritableError as error:
            self._present = self._standing(error, Known())

    @property
    def known(self) -> Known:
        """How far the numbers and the broker have come."""
        return self._present.known

    @property
    def awaited(self) -> bool:
        """True when somebody tells a broker."""
        return self._awaited

    @awaited.setter
    def awaited(self, value: bool) -> None:
        with self._lock:
            self._awaited = self._present.awaited = value

    @property
    def standing_in(self) -> bool:
        """True while what is heard is kept in memory only."""
        return self._present.path != self.path

    def read(self, doing: str, work: Work[T]) -> T:
        """What `work` makes of the file."""
        with self._lock:
            return self._present.read(doing, work)

    def write(self, doing: str, work: Work[T]) -> T:
        """What `work` returns, once what it did is safe; goes on in memory where that is refused
        for too long."""
        with self._lock:
            try:
                result = self._present.write(doing, work)
            except UnwritableError as error:
                since_s = self._refusing.setdefault(doing, time.monotonic())
                if self.standing_in or time.monotonic() - since_s < REFUSES_S:
                    raise
                standing = self._standing(error, self._present.known)
                self._present.close()
                self._present = standing
                result = standing.write(doing, work)
            self._refusing.pop(doing, None)
            return result

    def scrub(self, wait_s: float = 0.0) -> bool:
        """Empties the -wal file of what was deleted; False when a reader is in the way."""
        with self._lock:
            return self._present.scrub(wait_s)

    def is_current(self) -> bool:
        """True while the file that is open is the one of its name."""
        return self._present.is_current()

    def look_after(self) -> None:
        """Goes back to the file once it can be written again. Seldom does anything; raises
        nothing."""
        with self._lock:
            if self.standing_in and time.monotonic() >= self._try_s:
                self._go_back()

    def close(self) -> None:
        """Closes it for good; the stand-in stays for the next start if it must."""
        with self._lock:
            if self.standing_in:
                self._go_back()
            if self.standing_in:
                log.error("%s: left to the next start, while this machine is on", self._place)
            self._present.close()
            self._leave()

    @property
    def _place(self) -> Path:
        return self._shelter.path / self.path.name

    def _take(self) -> bool:
        """True when the shelter is ours; another daemon's stand-in is its own affair."""
        try:
            if not self._sheltered:
                self._shelter.take()
        except OSError as error:
            log.warning("%s: no log in memory: %s", self._shelter.path, error.strerror or error)
            return False
        self._sheltered = True
        return True

    def _leave(self) -> None:
        if self._sheltered:
            self._sheltered = False
            self._shelter.leave()

    def _standing(self, why: UnwritableError, known: Known) -> Database:
        """A file in memory to go on in. Raises `why` where that cannot be."""
        if not self._take():
            raise why
        found = merging.look(self.path, beside(self._place, ".copy"))
        if known.highest and not found.last:
            found.highest = found.cursor = 0  # what we have given ourselves is known better
        try:
            standing = Database(self._place, Access.OWNER)
            standing.known.untold = known.untold
            standing.known.raise_to(known.highest, known.cursor)
            standing.write(
                "begin a log in memory",
                lambda connection: merging.take_over(connection, found, standing.known),
            )
        except PublishError as error:
            log.warning("no log in memory: %s", error)
            self._leave()
            raise why from error
        standing.awaited = self._awaited
        self._refusing.clear()
        now_s = time.monotonic()
        soon = now_s - self._back_s < _SOON_S
        self._every_s = min(self._every_s * 2, _TRY_AT_LEAST_EVERY_S) if soon else TRY_EVERY_S
        self._try_s = now_s + self._every_s
        trouble = (
            f"{self.path} cannot be written: {why.found}: what is heard is kept in memory only, "
            f"and lost with the power, until it can be; {why.cure}"
        )
        log.error("%s", trouble)
        self._tell(trouble)
        return standing

    def _opened(self, standing: Database | None) -> Database:
        """The file, if it can be written, with all that its stand-in has. Raises PublishError."""
        with plain_errors(self.path, "open the log"):
            store_files.make_folder(self.path)
            store_files.probe(self.path)
        real = Database(self.path, Access.OWNER)
        try:
            if standing:
                self._put_back(standing, real)
            elif self._place.exists() and self._take():
                self._put_back(Database(self._place, Access.OWNER), real)
        except BaseException:
            real.close()
            raise
        return real

    def _put_back(self, standing: Database, real: Database) -> None:
        """Puts the stand-in into the file, then deletes it. Raises PublishError."""
        told = standing.known.highest if self._awaited else 0
        count = standing.read(
            "read the log in memory",
            lambda source: real.write(
                "store what was kept in memory",
                lambda target: merging.merge(target, source, real.known, told),
            ),
        )
        standing.close()
        try:
            recovery.delete_asides(self._place)
            store_files.delete(self._place)
        except OSError as error:
            log.warning("%s: %s: it is put into the log again", self._place, error.strerror)
        self._leave()
        log.info("%s: %d transcripts that were kept in memory are in it now", self.path, count)

    def _go_back(self) -> None:
        try:
            real = self._opened(self._present)
        except PublishError:
            self._try_s = time.monotonic() + self._every_s
            return
        real.awaited = self._awaited
        self._present, self._back_s = real, time.monotonic()
        self._tell(None)
