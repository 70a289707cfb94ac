"""The models folder: a bundle is made in a staging folder beside the others and moved in whole.

models/tiny/                 a bundle
models/in-use                name of the chosen one
models/.work/tiny.lock       there and held while tiny is being added or removed
models/.work/tiny/           what `add` fetched and built so far
models/.work/tiny/checkpoint the download; once weights have begun to come it outlives an
                             interrupted `add`, so that it goes on where it was
"""

from __future__ import annotations

import ctypes
import errno
import io
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import ConfigError, ModelError
from appliance.model.bundle import CHOICE, HEF_FILE, INSTALLED, MANIFEST, PACKAGED, models_folder
from appliance.model.files import read_json
from appliance.system import lock, sync_folder, write_whole

AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Of renameat2(2)."""
_SUDO = "run it with sudo, or name another folder in ROOMSCRIBE_MODELS"
_ROOM = "make room on that disk; nothing was changed"
FIXES = {
    errno.EACCES: _SUDO,
    errno.EPERM: _SUDO,
    errno.EINVAL: "remove the old model first: this file system cannot swap folders",
    errno.EROFS: "make the file system writable, or name another in ROOMSCRIBE_MODELS",
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
}
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
LOOK_S = 1.0
"""A lock that is held for longer belongs to a command that works on the model, not to one that only
looks whether somebody does."""


@dataclass(frozen=True, slots=True)
class Published:
    """What one of OpenAI's models takes, with int8 weights (docs/real-model.md)."""

    download_mb: int
    """Of its safetensors at the hub."""
    disk_mb: int
    memory_gb: float
    """To build and to verify it."""


_TINY, _BASE, _SMALL = (
    Published(151, 80, 0.28),
    Published(290, 150, 0.36),
    Published(967, 326, 0.46),
)
PUBLISHED = {
    "tiny": _TINY,
    "tiny.en": _TINY,
    "base": _BASE,
    "base.en": _BASE,
    "small": _SMALL,
    "small.en": _SMALL,
}
"""The models that setup and the page offer; those called .en know English alone."""


@dataclass(frozen=True, slots=True)
class StagingFolder:
    """Where one model is put together; `folder` is on the same file system as the models."""

    name: str
    models: Path
    folder: Path

    @property
    def checkpoint(self) -> Path:
        """Folder for downloads."""
        return self.folder / "checkpoint"

    @property
    def draft(self) -> Path:
        """Folder in which the bundle is built."""
        return self.folder / "bundle"

    @property
    def bundle(self) -> Path:
        """Where the finished bundle belongs."""
        return self.models / self.name


def check_name(name: str) -> str:
    """The name, if a bundle may be called so. Raises ConfigError."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"model name: expected small letters, digits, '.', '_' and '-' (at most 64), "
            f"found {name!r}; give another with --name"
        )
    if (PACKAGED / name).exists():
        raise ConfigError(f"model name: {name!r} is the built-in model's; give another with --name")
    return name


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What an `add` that is running, or was interrupted, has in the models folder."""

    size: int
    """Bytes."""
    process: str
    """Number of the process that works on it; "" if none does."""


@contextmanager
def work_on(name: str) -> Iterator[StagingFolder]:
    """Holds the model's lock; what an interrupted `add` has downloaded is still there.

    Raises ConfigError for a bad name, ModelError when the models folder cannot be written or
    another command works on the same model. In the end all but a begun download is deleted.
    """
    place = _place(check_name(name))
    file = _lock_file(place)
    with _lock(file, place):
        with model_errors(place.models):
            _tidy(place)
            place.folder.mkdir(exist_ok=True)
        try:
            yield place
        finally:
            _tidy(place)
            with suppress(OSError):
                file.unlink()


def unfinished() -> dict[str, Unfinished]:
    """What is being added, and the downloads of interrupted commands, by the model's name."""
    found = {}
    for name in _started():
        place = _place(name)
        if process := _worker(place):
            found[name] = Unfinished(_size(place.folder), process)
        elif size := begun(place):
            found[name] = Unfinished(size, "")
    return found


def begun(place: StagingFolder) -> int:
    """Size in bytes of a download that is worth going on with; 0 where no weights have come."""
    weights = (
        file
        for file in place.checkpoint.rglob("*")
        if not file.name.removesuffix(".part").endswith(".json")
    )
    return _size(place.checkpoint) if any(map(_bytes, weights)) else 0


def clear_abandoned() -> None:
    """Deletes what killed commands left, but for downloads that have begun; as far as this user
    may, and without a word."""
    for name in _started():
        place = _place(name)
        file = _lock_file(place)
        with suppress(OSError), lock(file, mode=0o666):
            _tidy(place)
            file.unlink()


def drop_download(name: str) -> bool:
    """Deletes the download of an interrupted `add`; whether there was one. Raises ModelError."""
    if name not in unfinished():
        return False
    with work_on(name) as place, model_errors(place.folder):
        shutil.rmtree(place.folder)
    return True


def _place(name: str) -> StagingFolder:
    models = models_folder()
    return StagingFolder(name, models, models / ".work" / name)


def _lock_file(place: StagingFolder) -> Path:
    return place.folder.with_name(f"{place.name}.lock")


def _started() -> list[str]:
    """Names of the models that somebody has begun to work on; none if this user may not look."""
    try:
        entries = list((models_folder() / ".work").iterdir())
    except OSError:
        return []
    names = {each.name.removesuffix(".lock") for each in entries}
    return sorted(name for name in names if NAME.fullmatch(name))


def _worker(place: StagingFolder) -> str:
    """Number of the process that works on a model; "" if none does."""
    file = _lock_file(place)
    try:
        lock(file, shared=True, flags=os.O_RDONLY).close()
    except BlockingIOError:
        return _owner(file)
    except OSError:
        pass
    return ""


def _owner(file: Path) -> str:
    """What a lock's file says of its holder."""
    with suppress(OSError):
        return file.read_text(errors="replace").strip() or "unknown"
    return "unknown"


def _tidy(place: StagingFolder) -> None:
    """Deletes all but a download that has begun."""
    if place.folder.is_dir():
        for each in list(place.folder.iterdir()):
            if each != place.checkpoint or not begun(place):
                shutil.rmtree(each, ignore_errors=True)
        with suppress(OSError):
            place.folder.rmdir()


def _size(folder: Path) -> int:
    """Bytes of the files in a folder and below it."""
    return sum(map(_bytes, folder.rglob("*")))


def _bytes(file: Path) -> int:
    """A file's size; 0 of anything else, and of one that has vanished."""
    try:
        found = file.lstat()
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _lock(file: Path, place: StagingFolder) -> io.FileIO:
    """The model's lock, with this process's number in it. Raises ModelError when it is held."""
    until_s = time.monotonic() + LOOK_S
    with model_errors(place.models):
        _written()
        file.parent.mkdir(exist_ok=True)
        while True:
            try:
                held = lock(file, mode=0o666)
                break
            except BlockingIOError:
                if time.monotonic() > until_s:
                    raise ModelError(
                        f"model {place.name}: another `roomscribe model` command (process "
                        f"{_owner(file)}) is working on it; wait until it is done"
                    ) from None
                time.sleep(LOOK_S / 20)
        held.truncate()
        held.write(f"{os.getpid()}\n".encode())
    return held


def _written() -> Path:
    """The models folder, made where it is missing; the installed one, with what this process puts
    into it, is for every user to read, whatever root's umask says. Raises OSError."""
    models = models_folder()
    if models == INSTALLED:
        os.umask(0o022)
    if not models.is_dir():
        models.mkdir(parents=True)
    return models


def install(place: StagingFolder) -> None:
    """Moves the finished draft to its place; a bundle that is there is replaced.

    Whoever has the old one loaded keeps it until it is closed. Raises ModelError; then the old one
    is where it was.
    """
    with model_errors(place.bundle):
        if place.bundle.exists():
            _exchange(place.draft, place.bundle)
        else:
            place.draft.rename(place.bundle)
        sync_folder(place.models)
        shutil.rmtree(place.folder, ignore_errors=True)


def remove(name: str) -> None:
    """Deletes an installed bundle and a download of that name. Raises ModelError for neither."""
    with work_on(name) as place:
        if not (place.bundle / MANIFEST).is_file():
            if begun(place):
                shutil.rmtree(place.folder)
                return
            raise ModelError(
                f"model {name!r}: expected it in {place.models}, found there: "
                f"{', '.join(installed()) or 'none'}"
            )
        with model_errors(place.bundle):
            # out of sight at once: half a bundle is never seen under its name
            gone = place.folder / "removed"
            shutil.rmtree(gone, ignore_errors=True)
            place.bundle.rename(gone)
            shutil.rmtree(place.folder)


def installed() -> list[str]:
    """Names of the bundles in the models folder."""
    return sorted(file.parent.name for file in models_folder().glob(f"[!.]*/{MANIFEST}"))


def overview(folder: Path) -> tuple[int, str, bool]:
    """Size in bytes of an installed bundle, what its manifest says that it is, and whether it has
    an encoder for the NPU. Nothing of it is verified. Raises ModelError."""
    manifest = read_json(folder / MANIFEST)
    about = manifest.get("source") or manifest.get("description")
    with model_errors(folder):
        return _size(folder), str(about or ""), (folder / HEF_FILE).exists()


def choose(name: str) -> None:
    """Makes `name` the model in use where the configuration names none. Raises ModelError."""
    file = models_folder() / CHOICE
    with model_errors(file):
        _written()
        write_whole(file, f"{name}\n")


@contextmanager
def model_errors(target: Path) -> Iterator[None]:
    """Turns an OSError about `target` into a ModelError of one line with its fix."""
    try:
        yield
    except OSError as error:
        fix = FIXES.get(error.errno or 0, "see to that file and try again")
        raise ModelError(
            f"{error.filename or target}: expected room and leave to write a model, found: "
            f"{error.strerror or error}; {fix}"
        ) from error


def _exchange(one: Path, other: Path) -> None:
    """Swaps two folders in one step, so that each name has a whole folder at any time.

    renameat2(2) with RENAME_EXCHANGE: Linux 3.15, glibc 2.28; ext4, btrfs, xfs, f2fs, tmpfs and
    overlayfs have it. Elsewhere OSError: the bundle is to be removed first.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(AT_FDCWD, bytes(one), AT_FDCWD, bytes(other), RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(other))


@contextmanager
def drafted(out: Path, what: str) -> Iterator[Path]:
    """An empty folder that becomes `out` when the block ends well; one that is there is replaced.

    When it ends otherwise nothing is left of the draft, and `out` is as it was. Raises ModelError
    for an OSError in the block, too; it says that `what` was being written.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch:
            draft = Path(scratch) / "new"
            draft.mkdir()
            yield draft
            if out.exists():
                out.rename(Path(scratch) / "old")
            draft.rename(out)
    except OSError as error:
        raise ModelError(
            f"{out}: expected room and leave to write {what}, found: {error.strerror or error}"
        ) from error
