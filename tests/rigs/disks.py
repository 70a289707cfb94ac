"""A small disk that may be full or refuse, a folder in memory, and the daemon's log on them."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from appliance.config import StoreSettings
from appliance.mqtt.outbox import Outbox
from appliance.store.fallback import DatabaseWithFallback
from appliance.store.folders import FILE_NAME, SHARED_MEMORY, MemoryFolder
from appliance.store.store import Store


@contextmanager
def _mounted(what: str, disk: Path, *options: str, needs: str = "CAP_SYS_ADMIN") -> Iterator[Path]:
    """`mount` with these options on the folder `disk`; skips the test where it is not permitted."""
    if os.geteuid():
        from rigs.needs import NOT_ROOT  # every test loads this plugin, and few need that

        pytest.skip(NOT_ROOT.format(f"mounting {what}"))
    done = subprocess.run(["mount", *options, str(disk)], check=False, capture_output=True)
    if done.returncode:
        pytest.skip(f"not permitted: mounting {what} (needs {needs})")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@contextmanager
def mounted(disk: Path, size: str) -> Iterator[Path]:
    """A disk of `size` (400k, 1m) on the new folder `disk`; skips the test where none can be."""
    disk.mkdir()
    options = "-t", "tmpfs", "-o", f"size={size}", "roomscribe-test"
    with _mounted("a small disk", disk, *options):
        yield disk


@contextmanager
def overlay(disk: Path, *, hidden: bool) -> Iterator[Path]:
    """The new folder `disk` on an overlay whose upper layer is in memory, as raspi-config makes
    it; `hidden`: where its mount cannot be seen. Skips the test where none can be."""
    with mounted(disk.with_name("memory"), "64m") as memory, ExitStack() as stack:
        folders = [disk.with_name("lower"), memory / "upper", memory / "work", disk]
        for folder in folders:
            folder.mkdir()
        layers = "lowerdir={},upperdir={},workdir={}".format(*folders)
        options = "-t", "overlay", "-o", layers, "roomscribe-test"
        stack.enter_context(_mounted("an overlay", disk, *options))
        if hidden:
            stack.enter_context(_mounted("a cover", memory, "-t", "tmpfs", "roomscribe-test"))
        yield disk


@contextmanager
def image(file: Path, size: str) -> Iterator[Path]:
    """A disk with ext4 whose blocks lie in `file`; skips the test where none can be mounted."""
    from rigs.needs import require  # every test loads this plugin, and few need that

    require("mkfs.ext4", package="e2fsprogs")
    disk = file.with_name(f"{file.name}-mounted")
    disk.mkdir()
    subprocess.run(["truncate", "-s", size, str(file)], check=True)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(file)], check=True)
    needs = "CAP_SYS_ADMIN and a loop device"
    with _mounted("a disk image", disk, "-o", "loop", str(file), needs=needs):
        yield disk


def remount(disk: Path, how: str) -> None:
    """From now on a mounted disk refuses to be written to (ro), or no longer (rw)."""
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)


@pytest.fixture
def memory() -> Iterator[Path]:
    """An empty folder in memory, gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="roomscribe-test-", dir=SHARED_MEMORY))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


IMPATIENT = 0.0
"""A disk that refuses is tried again at once."""


class Folder(MemoryFolder):
    """A folder in memory without a lock, which a process that was killed has not given back."""

    def take(self) -> None:
        self.path.mkdir(exist_ok=True)

    def leave(self) -> None:
        if not any(self.path.iterdir()):
            self.path.rmdir()


class DiskRig:
    """A disk, a folder in memory, and the daemon's log on them."""

    def __init__(self, disk: Path, memory: Path) -> None:
        self.disk, self.memory = disk, Folder(memory / "log")
        self.settings = StoreSettings(path=str(disk / "state"))
        self.told: list[str | None] = []

    def read_only(self, on: bool = True) -> None:
        remount(self.disk, "ro" if on else "rw")

    @contextmanager
    def log(self, try_every_s: float = IMPATIENT) -> Iterator[tuple[Store, DatabaseWithFallback]]:
        path = self.disk / "state" / FILE_NAME
        database = DatabaseWithFallback(path, self.memory, self.told.append, try_every_s)
        with Store(database, self.settings) as store:
            yield store, database

    def numbers(self) -> dict[str, int]:
        """What the file holds: numbers by text."""
        with Store.open(self.settings, read_only=True) as store:
            return {one.transcript.text: one.seq for one in store.read_after(0, 10_000)}


@pytest.fixture
def rig(tmp_path: Path, memory: Path) -> Iterator[DiskRig]:
    with mounted(tmp_path / "disk", "2m") as disk:
        found = DiskRig(disk, memory)
        yield found
        found.read_only(False)


def deliver(store: Store) -> list[str]:
    """What a publisher tells the broker now, and the broker has."""
    return tell(Outbox(store, 1e9))


def tell(outbox: Outbox) -> list[str]:
    """What a publisher that goes on tells the broker, which has all of it then."""
    texts = []
    while stored := outbox.next_due():
        outbox.mark_sent(0, stored.seq)
        outbox.mark_acknowledged(0.0)
        texts.append(stored.transcript.text)
    outbox.save_cursor()
    return texts


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
