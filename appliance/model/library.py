"""The models folder. A bundle is built in a staging folder and then renamed into it.

models/tiny/                 a bundle
models/in-use                name of the chosen model
models/.work/tiny.lock       held while tiny is being added or removed
models/.work/tiny/           what `add` has downloaded and built so far
models/.work/tiny/checkpoint the download; once weights have come, it stays after an
                             interrupted `add`, and the next one continues it
"""

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
"""A lock that is held for longer belongs to a command that works on the model; one that only checks
the lock holds it for a moment."""


@dataclass(frozen=True, slots=True)
class Published:
    """Size of one of OpenAI's models with int8 weights: tiny and base measured, small computed from
    its parameters (docs/real-model.md)."""

    download_mb: int
    """Of its safetensors at the hub."""
    disk_mb: int
    memory_gb: float
    """That `model add` demands, by its parameters."""


_SIZES = {
    "tiny": Published(151, 40, 0.30),
    "base": Published(290, 75, 0.34),
    "small": Published(967, 246, 0.54),
}
PUBLISHED = {f"{name}{kind}": size for name, size in _SIZES.items() for kind in ("", ".en")}
"""The models that setup and the page offer; those called .en know English only."""


def title_of(name: str) -> str:
    """Return the name for people of a model that only its name is known of."""
    return f"Whisper {name}" if name in PUBLISHED else name


@dataclass(frozen=True, slots=True)
class StagingFolder:
    """Folder in which one model is built, on the same file system as the models."""

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
        """Where the bundle is installed."""
        return self.models / self.name


def check_name(name: str) -> str:
    """Return the name if a bundle may have it. Raises ConfigError."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"model name: expected small letters, digits, '.', '_' and '-' (at most 64), "
            f"found {name!r}; give another with --name"
        )
    if name == CHOICE:
        raise ConfigError(f"model name: {name!r} is a file's; give another with --name")
    if (PACKAGED / name).exists():
        raise ConfigError(f"model name: {name!r} is the built-in model's; give another with --name")
    return name


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A running or interrupted `add`."""

    size: int
    """Bytes."""
    process: str
    """Id of the process that works on it; "" if it was interrupted."""


@contextmanager
def work_on(name: str) -> Iterator[StagingFolder]:
    """Hold the model's lock; the folder still has what an interrupted `add` downloaded.

    At the end everything but an incomplete download is deleted. Raises ConfigError for a bad name,
    and ModelError if the models folder cannot be written or another command works on the model.
    """
    staging = _staging(check_name(name))
    file = _lock_file(staging)
    with _lock(file, staging):
        with model_errors(staging.models):
            _tidy(staging)
            staging.folder.mkdir(exist_ok=True)
        try:
            yield staging
        finally:
            _tidy(staging)
            with suppress(OSError):
                file.unlink()


def unfinished() -> dict[str, Unfinished]:
    """Return running and interrupted `add` commands, by model name."""
    found = {}
    for name in _started():
        staging = _staging(name)
        if process := _worker(staging):
            found[name] = Unfinished(folder_bytes(staging.folder), process)
        elif size := downloaded_bytes(staging):
            found[name] = Unfinished(size, "")
    return found


def downloaded_bytes(staging: StagingFolder) -> int:
    """Return the size of a download that is worth continuing; 0 if no weights have come."""
    weights = (
        file
        for file in staging.checkpoint.rglob("*")
        if not file.name.removesuffix(".part").endswith(".json")
    )
    return folder_bytes(staging.checkpoint) if any(map(_bytes, weights)) else 0


def clear_abandoned() -> None:
    """Delete what killed commands left, except incomplete downloads, as far as this user may.
    Raises nothing."""
    for name in _started():
        staging = _staging(name)
        file = _lock_file(staging)
        with suppress(OSError), lock(file, mode=0o666):
            _tidy(staging)
            file.unlink()


def drop_download(name: str) -> bool:
    """Delete the download of an interrupted `add`; True if there was one. Raises ModelError."""
    if name not in unfinished():
        return False
    with work_on(name) as staging, model_errors(staging.folder):
        shutil.rmtree(staging.folder)
    return True


def _staging(name: str) -> StagingFolder:
    models = models_folder()
    return StagingFolder(name, models, models / ".work" / name)


def _lock_file(staging: StagingFolder) -> Path:
    return staging.folder.with_name(f"{staging.name}.lock")


def _started() -> list[str]:
    """Names of models with a running or interrupted `add`; none if this user may not look."""
    try:
        entries = list((models_folder() / ".work").iterdir())
    except OSError:
        return []
    names = {each.name.removesuffix(".lock") for each in entries}
    return sorted(name for name in names if NAME.fullmatch(name))


def _worker(staging: StagingFolder) -> str:
    """Id of the process that works on a model; "" if none does."""
    file = _lock_file(staging)
    try:
        lock(file, shared=True, flags=os.O_RDONLY).close()
    except BlockingIOError:
        return _owner(file)
    except OSError:
        pass
    return ""


def _owner(file: Path) -> str:
    with suppress(OSError):
        return file.read_text(errors="replace").strip() or "unknown"
    return "unknown"


def _tidy(staging: StagingFolder) -> None:
    """Delete everything but an incomplete download."""
    if staging.folder.is_dir():
        for each in list(staging.folder.iterdir()):
            if each != staging.checkpoint or not downloaded_bytes(staging):
                shutil.rmtree(each, ignore_errors=True)
        with suppress(OSError):
            staging.folder.rmdir()


def folder_bytes(folder: Path) -> int:
    """Return the size of all files in a folder."""
    return sum(map(_bytes, folder.rglob("*")))


def _bytes(file: Path) -> int:
    """A file's size; 0 for anything else, and for a file that has vanished."""
    try:
        found = file.lstat()
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _lock(file: Path, staging: StagingFolder) -> io.FileIO:
    """The model's lock, with this process's id in it. Raises ModelError if it is held."""
    until_s = time.monotonic() + LOOK_S
    with model_errors(staging.models):
        _ensure_models_folder()
        file.parent.mkdir(exist_ok=True)
        while True:
            try:
                held = lock(file, mode=0o666)
                break
            except BlockingIOError:
                if time.monotonic() > until_s:
                    raise ModelError(
                        f"model {staging.name}: another `roomscribe model` command (process "
                        f"{_owner(file)}) is working on it; wait until it is done"
                    ) from None
                time.sleep(LOOK_S / 20)
        held.truncate()
        held.write(f"{os.getpid()}\n".encode())
    return held


def _ensure_models_folder() -> None:
    """Create the models folder if it is missing. Every user may read INSTALLED and what this
    process writes there, whatever root's umask is. Raises OSError."""
    models = models_folder()
    if models == INSTALLED:
        os.umask(0o022)
    models.mkdir(parents=True, exist_ok=True)


def install(staging: StagingFolder) -> None:
    """Move the draft into the models folder, replacing a bundle of that name.

    A process that has loaded the old one keeps it until it closes it. Raises ModelError; then the
    old one is still installed.
    """
    with model_errors(staging.bundle):
        if staging.bundle.exists():
            _exchange(staging.draft, staging.bundle)
        else:
            staging.draft.rename(staging.bundle)
        sync_folder(staging.models)
        shutil.rmtree(staging.folder, ignore_errors=True)


def remove(name: str) -> None:
    """Delete an installed bundle, or a download of that name. Raises ModelError if there is
    none."""
    with work_on(name) as staging:
        if not (staging.bundle / MANIFEST).is_file():
            if downloaded_bytes(staging):
                shutil.rmtree(staging.folder)
                return
            raise ModelError(
                f"model {name!r} is not installed in {staging.models}; installed are: "
                f"{', '.join(installed()) or 'none'}"
            )
        with model_errors(staging.bundle):
            # renamed first: nobody sees half a bundle under its name
            gone = staging.folder / "removed"
            shutil.rmtree(gone, ignore_errors=True)
            staging.bundle.rename(gone)
            shutil.rmtree(staging.folder)


def installed() -> list[str]:
    """Return the names of the bundles in the models folder."""
    return sorted(file.parent.name for file in models_folder().glob(f"[!.]*/{MANIFEST}"))


@dataclass(frozen=True, slots=True)
class Overview:
    """What an installed bundle says of itself."""

    title: str
    """Its name for people."""
    source: str
    size: int
    """Bytes."""
    npu: bool
    """True if it has an encoder for the NPU."""
    language: str
    """The one that it was added with."""
    languages: tuple[str, ...]
    """All that it knows."""


def overview(folder: Path) -> Overview:
    """Return what a bundle says of itself. Verifies nothing. Raises ModelError."""
    manifest = read_json(folder / MANIFEST)
    with model_errors(folder):
        return Overview(
            title=str(manifest.get("description") or f"Whisper ({folder.name})"),
            source=str(manifest.get("source", "")),
            size=folder_bytes(folder),
            npu=(folder / HEF_FILE).exists(),
            language=str(manifest.get("language", "")),
            languages=tuple(map(str, manifest.get("languages", []))),
        )


def choose(name: str) -> None:
    """Make `name` the model in use unless the configuration names one. Raises ModelError."""
    file = models_folder() / CHOICE
    with model_errors(file):
        _ensure_models_folder()
        write_whole(file, f"{name}\n")


@contextmanager
def model_errors(target: Path) -> Iterator[None]:
    """Turn an OSError about `target` into a ModelError of one line with its fix."""
    try:
        yield
    except OSError as error:
        fix = FIXES.get(error.errno or 0, "see to that file and try again")
        raise ModelError(
            f"{error.filename or target}: the model cannot be written: "
            f"{error.strerror or error}; {fix}"
        ) from error


def _exchange(folder: Path, other: Path) -> None:
    """Swap two folders atomically.

    renameat2(2) with RENAME_EXCHANGE: Linux 3.15, glibc 2.28; on ext4, btrfs, xfs, f2fs, tmpfs and
    overlayfs. Elsewhere OSError: the old bundle must be removed first.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(AT_FDCWD, bytes(folder), AT_FDCWD, bytes(other), RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(other))


@contextmanager
def drafted(out: Path, what: str) -> Iterator[Path]:
    """Yield an empty folder that becomes `out`, replacing it, if the block ends without an error.

    After an error the draft is deleted and `out` is as before. An OSError, also in the block,
    becomes a ModelError about writing `what`.
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
        raise ModelError(f"{out}: {what} cannot be written: {error.strerror or error}") from error
