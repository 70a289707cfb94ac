"""The models folder: a bundle is made in a staging folder beside the others and moved in whole.

models/tiny/                 a bundle
models/in-use                name of the chosen one
models/.work/tiny.lock       held while tiny is being added or removed
models/.work/tiny/           what `add` fetched and built so far; kept when it is interrupted,
                             so that a broken download goes on where it was
"""

from __future__ import annotations

import ctypes
import errno
import io
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import ConfigError, ModelError
from appliance.model.bundle import CHOICE, MANIFEST, PACKAGED, models_folder
from appliance.system import lock, sync_folder, write_whole

AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Of renameat2(2)."""
_SUDO = "run it with sudo, or name another folder in ROOMSCRIBE_MODELS"
_ROOM = "make room on that disk; nothing was changed"
CURES = {
    errno.EACCES: _SUDO,
    errno.EPERM: _SUDO,
    errno.EINVAL: "remove the old model first: this file system cannot swap folders",
    errno.EROFS: "make the file system writable, or name another in ROOMSCRIBE_MODELS",
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
}
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


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


@contextmanager
def work_on(name: str) -> Iterator[StagingFolder]:
    """Holds the model's lock; what an interrupted `add` left in its staging folder is still there.

    Raises ConfigError for a bad name, ModelError when the models folder cannot be written or
    another command works on the same model. The draft is deleted in the end in any case.
    """
    models = models_folder()
    work = models / ".work"
    place = StagingFolder(check_name(name), models, work / name)
    with _lock(work / f"{name}.lock", place):
        with model_errors(models):
            shutil.rmtree(place.draft, ignore_errors=True)
            place.folder.mkdir(exist_ok=True)
        try:
            yield place
        finally:
            shutil.rmtree(place.draft, ignore_errors=True)
            if place.folder.is_dir() and not any(place.folder.iterdir()):
                place.folder.rmdir()


def _lock(file: Path, place: StagingFolder) -> io.FileIO:
    """The model's lock, with this process's number in it. Raises ModelError when it is held."""
    with model_errors(place.models):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            held = lock(file, mode=0o666)
        except BlockingIOError:
            owner = file.read_text(errors="replace").strip() or "unknown"
            raise ModelError(
                f"model {place.name}: another `roomscribe model` command (process {owner}) is "
                "working on it; wait until it is done"
            ) from None
        held.truncate()
        held.write(f"{os.getpid()}\n".encode())
    return held


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
    """Deletes an installed bundle. Raises ModelError when there is none of that name."""
    with work_on(name) as place:
        if not (place.bundle / MANIFEST).is_file():
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


def choose(name: str) -> None:
    """Makes `name` the model in use where the configuration names none. Raises ModelError."""
    file = models_folder() / CHOICE
    with model_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, f"{name}\n")


@contextmanager
def model_errors(target: Path) -> Iterator[None]:
    """Turns an OSError about `target` into a ModelError of one line with its cure."""
    try:
        yield
    except OSError as error:
        cure = CURES.get(error.errno or 0, "see to that file and try again")
        raise ModelError(
            f"{error.filename or target}: expected room and leave to write a model, found: "
            f"{error.strerror or error}; {cure}"
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
