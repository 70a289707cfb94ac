"""Windows that are not transcribed yet, in memory that outlives the process: nothing that was
spoken to its end is lost with it.

One file a window in a folder in memory, for this user alone: written before the window is queued,
deleted when its transcript is in the store or it was discarded. What a process leaves behind, the
next one finds. Without such a folder everything goes on, and windows are in the process alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from appliance.config import Settings
from appliance.health import Health
from appliance.records import Window
from appliance.spool_file import Moment, pack
from appliance.store import folders
from appliance.store.folders import BESIDE, NAME

log = logging.getLogger("roomscribe")

DEATHS = 2
"""A window that was being transcribed when so many processes died is tried apart."""
IN_WORK = 3
"""So many windows are with the encoder and the decoder at most."""


@dataclass(slots=True)
class Kept:
    """A window in the spool, without its samples."""

    path: Path
    id: str
    utterance_id: str
    duration_s: float
    size: int
    attempts: int
    begun: bool = False
    """True from the moment when its transcription is begun."""


class Spool:
    """The open folder, or none. Any thread may call any method; none of them raises."""

    def __init__(self, folder: Path | None, lock: int, health: Health) -> None:
        """Takes over the descriptor `lock`; use Spool.open."""
        self.folder = folder
        """None when windows are kept in the process alone."""
        self._descriptor, self._health = lock, health
        self._lock = threading.Lock()
        self._kept: dict[str, Kept] = {}
        self._number = 0

    @classmethod
    def open(cls, settings: Settings, health: Health) -> Spool:
        """The spool that the configuration asks for, with what was left in it; none with one line
        in the log where it cannot be. Where it is turned off, what was left is deleted."""
        folder = folders.place(settings)
        try:
            if not settings.spool.enabled:
                folders.empty(folder)
                return cls(None, -1, health)
            folders.make(folder)
            spool = cls(folder, folders.lock(folder), health)
            spool._find(folder)
            return spool
        except OSError as error:
            reason = error.strerror or str(error)
            log.warning("%s: no spool: %s: a crash loses the windows that wait", folder, reason)
            return cls(None, -1, health)

    def left(self) -> list[Kept]:
        """The windows in it, in the order in which they were heard."""
        with self._lock:
            return list(self._kept.values())

    @property
    def size(self) -> int:
        """Bytes in it."""
        with self._lock:
            return sum(kept.size for kept in self._kept.values())

    def put(self, window: Window) -> bool:
        """Keeps a window; False when it is kept in the process alone."""
        if self.folder is None:
            return False
        data = pack(window, Moment.now())
        with self._lock:
            self._number += 1
            path = self.folder / f"{self._number:08}-{window.id}.window"
        try:
            self._write(path, data)
        except OSError as error:
            trouble = f"{self.folder}: cannot keep windows over a crash: {error.strerror}"
            if self._health.trouble("spool", trouble):
                log.warning("%s", trouble)
            return False
        self._health.trouble("spool", None)
        with self._lock:
            self._kept[window.id] = Kept(
                path, window.id, window.utterance_id, window.duration_s, len(data), 0
            )
        return True

    def load(self, window_id: str) -> Window | None:
        """The window with its samples; None, with a line in the log, when it is not there."""
        with self._lock:
            kept = self._kept.get(window_id)
        if kept is None:
            return None
        try:
            return folders.read(kept.path, Moment.now()).window
        except (OSError, ValueError) as error:
            self._damaged(kept.path, error)
            return None

    def begin(self, window_id: str) -> None:
        """Notes in the file that its transcription is begun, in case the process does not live to
        end it."""
        with self._lock:
            kept = self._kept.get(window_id)
            if kept is None:
                return
            kept.attempts = min(255, kept.attempts + 1)
            kept.begun = True
            folders.note(kept.path, kept.attempts)

    def survived(self, window_id: str) -> None:
        """Notes that its transcription has ended; it waits for the store alone."""
        with self._lock:
            kept = self._kept.get(window_id)
            if kept is not None:
                kept.attempts = 0
                folders.note(kept.path, kept.attempts)

    def done(self, window_id: str) -> None:
        """Deletes it: it is in the store, or was discarded."""
        with self._lock:
            kept = self._kept.pop(window_id, None)
        if kept is not None:
            with contextlib.suppress(OSError):
                kept.path.unlink()

    def release(self) -> bool:
        """Deletes the oldest that is transcribed and waits for the store; False without one."""
        with self._lock:
            begun = [kept.id for kept in self._kept.values() if kept.begun]
        if len(begun) <= IN_WORK:
            return False
        self.done(begun[0])
        return True

    def close(self) -> None:
        """Leaves what is in it to the next one."""
        with self._lock:
            self._kept.clear()
            folder, self.folder = self.folder, None
        if folder is not None:
            folders.leave(folder, self._descriptor)

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _find(self, folder: Path) -> None:
        """Takes up what was left in the folder; deletes what cannot be used. Raises OSError."""
        now = Moment.now()
        for path in sorted(folder.iterdir()):
            name = NAME.fullmatch(path.name.removesuffix(BESIDE))
            if name is None:
                continue
            try:
                found = folders.read(path, now)
                if found.window.id != name[2]:
                    raise ValueError(f"expected the window of its name, found {found.window.id}")
                if path.name.endswith(BESIDE):
                    path = path.replace(path.with_name(name[0]))  # noqa: PLW2901
            except (OSError, ValueError) as error:
                self._damaged(path, error)
                continue
            window = found.window
            self._number = max(self._number, int(name[1]))
            self._kept[window.id] = Kept(
                path,
                window.id,
                window.utterance_id,
                window.duration_s,
                path.stat().st_size,
                found.attempts,
            )

    def _write(self, path: Path, data: bytes) -> None:
        """Writes a file; makes the folder again when it is gone. Raises OSError."""
        try:
            folders.write(path, data)
        except FileNotFoundError:
            folders.make(path.parent)
            before, self._descriptor = self._descriptor, folders.lock(path.parent)
            os.close(before)
            folders.write(path, data)

    def _damaged(self, path: Path, error: Exception) -> None:
        """Deletes a file that cannot be used."""
        with contextlib.suppress(OSError):
            path.unlink()
        if not path.name.endswith(BESIDE):
            log.error("%s: deleted: %s", path, getattr(error, "strerror", None) or error)
            self._health.count("spool_damaged")
