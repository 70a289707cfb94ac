"""The real parts of the appliance in one thread, between a fake clock, broker and disk.

Everything between the segmenter and the socket is the product's: backlog, spool, task transcriber,
store with its fallback, publisher. A life of the process is an `Appliance`; a crash copies the
files as they are at that moment, possibly with a torn last write, for the next life.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from protocol.disks import Disk, Files, read_files, torn_files, write_files
from protocol.fakes import TICK_S, Broker, Clock, FakeDatetime, FakeLink
from rigs.core import make_core, make_works
from rigs.publishing import STATE
from rigs.transcriber import HEARD, FakeTranscriber

from appliance.config import HomeAssistantSettings, Settings, SpoolSettings, StoreSettings
from appliance.daemon.backlog import Lease
from appliance.errors import BrokerError, StoreError
from appliance.infer import Encoded, Request
from appliance.mqtt import connection, presence
from appliance.mqtt.connection import DELAYS
from appliance.mqtt.publisher import Publisher
from appliance.records import Discarded, Listener, Transcript, Window
from appliance.store import Store, Wanted, files, folders, runtime_folder, tables
from appliance.store.folders import FILE_NAME

CLOCKED = (
    "mqtt.outbox", "mqtt.connection", "mqtt.publisher", "daemon.backlog",
    "daemon.transcription", "daemon.transcripts", "daemon.monitors", "daemon.health",
    "store.database", "store.fallback", "store.store", "store.repair", "records", "system",
    "daemon.mute",
)  # fmt: skip
DATED = ("mqtt.outbox", "mqtt.live_topics", "daemon.transcripts", "store.tables", "store.repair")
BOOTED = ("store.tables",)
RETENTION_DAYS = 30


class CrashError(BaseException):
    """The process dies here."""


class Writer(FakeTranscriber):
    """Its text names the window, so that a text in the wrong place is found."""

    silent = False
    """Whether the next text is empty."""

    def begin(
        self, request: Request, should_continue: Callable[[], bool] = lambda: True
    ) -> Encoded:
        self.answer = replace(HEARD, text="" if self.silent else text_of(request.window.id))
        return super().begin(request)


def text_of(transcript_id: str) -> str:
    """Return the text that the window of that id has."""
    return f"text of {transcript_id}"


class Appliance:
    """One life of the process."""

    def __init__(self, house: House) -> None:
        settings = house.settings
        self.writer = Writer()
        self.store = Store.open_with_fallback(settings, lambda _: None)
        core = make_core(settings, self.writer, self.store, house)
        self.health, self.backlog, self.transcriber = core.health, core.backlog, make_works(core)
        self.publisher = Publisher(
            settings,
            "kitchen",
            self.store,
            lambda: STATE,
            delays=replace(DELAYS, expiry_s=1e9),
        )
        self.mute = core.mute
        self.lease: Lease | None = None


class House(Listener):
    """The appliance and what outlives its process; notes what it reports."""

    def __init__(self, patch: pytest.MonkeyPatch, *, home_assistant: bool = False) -> None:
        memory = Path("/dev/shm")
        self._folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
        self.clock, self.broker, self.disk, self.files = Clock(), Broker(), Disk(), Files()
        self._install(patch)
        self._life = 0
        self._home_assistant = home_assistant
        self.discarded: list[str] = []
        """Utterances that were reported as discarded."""
        self.reported: list[str] = []
        """Ids of the transcripts that were reported as stored."""
        self.appliance: Appliance | None = None
        self._before_commit: tuple[dict[Path, bytes], Path] | None = None
        self._on_disk: dict[Path, bytes] | None = None
        """What is on a disk that lies; None while it does not."""
        self.start()
        self.up.store.expire(self.now())  # as the first pause of a real one does

    def _install(self, patch: pytest.MonkeyPatch) -> None:
        FakeDatetime.clock, FakeLink.broker = self.clock, self.broker
        for name in CLOCKED:
            patch.setattr(sys.modules[f"appliance.{name}"], "time", self.clock)
        for name in DATED:
            patch.setattr(sys.modules[f"appliance.{name}"], "datetime", FakeDatetime)
        for name in BOOTED:
            patch.setattr(sys.modules[f"appliance.{name}"], "boot_id", self.clock.boot)
        for module in (connection, presence):  # the same pauses in each run
            patch.setattr(module, "random", SimpleNamespace(SystemRandom=lambda: Random(0)))
        patch.setattr(connection, "BrokerLink", FakeLink)
        patch.setattr(tables, "transaction", self.disk.transaction)
        patch.setattr(files, "probe", self.disk.check_room)
        patch.setattr(os, "fsync", self.files.fsync)
        patch.setenv("RUNTIME_DIRECTORY", str(self._folder / "run"))
        patch.setattr(folders, "is_in_memory", lambda _: True)

    # folders and lives

    @property
    def state(self) -> Path:
        return self._folder / f"state{self._life}"

    @property
    def spool(self) -> Path:
        return self._folder / f"spool{self._life}"

    @property
    def settings(self) -> Settings:
        plain = Settings()
        return replace(
            plain,
            store=StoreSettings(path=str(self.state), retention_days=RETENTION_DAYS),
            spool=SpoolSettings(path=str(self.spool)),
            homeassistant=HomeAssistantSettings(enabled=self._home_assistant),
        )

    def start(self) -> None:
        """Start the process."""
        self.appliance = Appliance(self)

    @property
    def up(self) -> Appliance:
        """The running process."""
        assert self.appliance is not None
        return self.appliance

    def lie(self) -> None:
        """Let the disk report from now on that it has written what it has not."""
        self.files.lies, self._on_disk = True, read_files(self.state)

    @property
    def in_memory_only(self) -> bool:
        """True while a power cut loses transcripts: they are in the fallback, or the disk lies."""
        fallback = self.appliance and self.uses_fallback
        left = (runtime_folder(self.settings) / "log" / FILE_NAME).exists()
        return bool(fallback or left or self._on_disk is not None)

    def stop(self, *, tear: float | None = None, power: bool = False) -> None:
        """Let the process die now.

        With `tear`, only this share of the last commit's bytes is in the files. With `power`, what
        is in memory only is gone, too.
        """
        state, spool = read_files(self.state), read_files(self.spool)
        fallback = read_files(runtime_folder(self.settings) / "log")
        if tear is not None and self._before_commit:
            state = torn_files(self._before_commit[0], state, tear)
        if power:
            log = self._on_disk if self._on_disk is not None else state
            state = self.files.after_a_cut(self.state)
            state |= {name: data for name, data in log.items() if name.name.startswith(FILE_NAME)}
            self.files.lies, self._on_disk = False, None
        folder, old = self.state, self.appliance
        self.appliance = None
        if old:
            _close(old)
        self._life += 1
        write_files(self.state, state)
        self.files.move(folder, self.state)
        if power:
            self.clock.boots += 1
        else:
            write_files(self.spool, spool)
            write_files(runtime_folder(self.settings) / "log", fallback)
        self.broker.break_connection()

    def leave(self) -> None:
        """Stop the process in order."""
        up = self.up
        if up.lease:
            up.lease.keep_for_next_start()
        up.backlog.complete(0)
        up.backlog.close()
        up.publisher.connection.close()
        up.store.close()
        self.appliance = None
        self.broker.break_connection()

    def close(self) -> None:
        if self.appliance:
            _close(self.appliance)
        shutil.rmtree(self._folder, ignore_errors=True)

    # what happens

    def on_discarded(self, discarded: Discarded) -> None:
        self.discarded.append(discarded.utterance_id)

    def on_transcript(self, transcript: Transcript) -> None:
        self.reported.append(transcript.id)

    def tick(self, seconds: float = TICK_S) -> None:
        """Let time pass, and the publisher do what is due."""
        self.clock.advance(seconds)
        if self.appliance:
            self.step()

    def step(self) -> None:
        """Let the publisher do what is due, as Publisher.run does."""
        up = self.up
        with suppress(BrokerError, StoreError):
            up.publisher._step(self.clock.now_s)
        self.clock.advance(TICK_S)

    def window(self, name: str) -> Window:
        """Return a window with that id."""
        now_s = self.clock.now_s
        return Window(
            utterance_id=f"utterance {name}",
            index=1,
            last=True,
            samples=np.full(160, 7, np.int16),
            start_s=now_s - 1.0,
            speech_end_s=now_s,
            voiced_s=0.9,
            id=name,
        )

    def lease(self) -> None:
        """Lease the oldest window; the backlog sets it aside if it has killed too often."""
        self.up.lease = self.up.backlog.take_window(0.0)

    def transcribe(self, *, crash: str = "", speech: bool = True) -> None:
        """Transcribe the leased window, and store the text.

        `crash` ends the process after the transaction ("committed") or within it ("torn").
        """
        up = self.up
        lease, up.lease = up.lease, None
        assert lease is not None
        work = up.transcriber.leased(lease)
        up.writer.silent = not speech
        up.transcriber.encode(work)
        with self.crashing(crash):
            up.transcriber.decode(work)

    @contextmanager
    def crashing(self, crash: str) -> Iterator[None]:
        """End the process at the next `append` if `crash` says so."""
        store, append = self.up.store, self.up.store.append

        def dying(transcript: Transcript) -> None:
            self._before_commit = (read_files(self.state), self.state)
            append(transcript)
            raise CrashError

        if crash:
            store.append = dying  # type: ignore[method-assign, assignment]
        try:
            yield
        except CrashError:
            self.stop(tear=float(crash.partition(" ")[2]) if crash.startswith("torn") else None)
            self._before_commit = None

    def delete(self, transcript_id: str) -> None:
        """Delete a transcript, as a person does."""
        self.up.store.delete(Wanted(ids=[transcript_id]))

    @property
    def uses_fallback(self) -> bool:
        """True while the log is in memory."""
        return bool(getattr(self.up.store._database, "uses_fallback", False))

    def current(self) -> dict[str, int]:
        """Ids and numbers in the open log."""
        return {one.transcript.id: one.seq for one in self.up.store.read_after(0, 10_000)}

    def rows(self) -> list[tuple[int, str]]:
        """Numbers and ids in the log, the file that refuses included."""
        found = self.current()
        if self.uses_fallback and (self.state / FILE_NAME).exists():
            with Store.open(self.settings.store, read_only=True) as file:
                known = {one.transcript.id: one.seq for one in file.read_after(0, 10_000)}
            found = known | found
        return sorted((seq, one) for one, seq in found.items())

    def now(self) -> datetime:
        """Return the wall clock's time."""
        return FakeDatetime.now(UTC)

    def spooled(self) -> set[str]:
        """Ids of the windows in the spool's folder."""
        if not self.spool.is_dir():
            return set()
        return {path.name[9:35] for path in self.spool.glob("*.window")}


def _close(old: Appliance) -> None:
    """Release what a dead process would not hold: locks and connections."""
    with suppress(Exception):
        old.backlog._spool.close()
    database = old.store._database
    current = getattr(database, "_current", database)
    with suppress(sqlite3.Error):
        current.close()
    memory = getattr(database, "_memory", None)
    if memory:
        memory._let_go()
