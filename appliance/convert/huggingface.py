"""Download a Whisper checkpoint by name or hub id, and verify each file.

The hub is Hugging Face's, or the one that HF_ENDPOINT names. ENDPOINT/api/models/OWNER/NAME lists
the files of one commit: for a large file its SHA-256, for a small one the name of its git blob.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from appliance.convert import download, shapes
from appliance.convert.checkpoint import ADAPTER_FILE, explain_missing
from appliance.convert.ctranslate2 import MODEL_FILE
from appliance.convert.decoding import TOKEN_LISTS
from appliance.convert.known import NAMES
from appliance.errors import ModelError
from appliance.model import JSON_LIMIT, model_errors, read_json

ENDPOINT = "https://huggingface.co"
_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
REPOSITORY = re.compile(rf"(?!.*(?:\.\.|--)){_WORD}/{_WORD}")
SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
ONNX = ("onnx/encoder_model.onnx", "onnx/decoder_model.onnx")
SMALL = (shapes.VOCAB_FILE, shapes.ADDED_FILE, shapes.TOKENIZER_FILE, shapes.GENERATION_FILE)
LOGIN = "set HF_TOKEN or run `hf auth login`"
Files = Mapping[str, download.RemoteFile]
Check = Callable[[Path], object]


class Origin(NamedTuple):
    """A checkpoint's folder, its source and licence, and a remark for the user."""

    folder: Path
    source: str
    licence: str
    remark: str


def fetch_checkpoint(
    name: str, revision: str, folder: Path, client: download.Downloader, check: Check
) -> Origin:
    """Fetch the files of a checkpoint at one commit into an existing folder.

    `check` is called with the folder before large files are fetched; what it raises ends this.
    Raises ModelError: unknown, not a Whisper, only as a pickle, no network, no room, damaged.
    """
    repository = NAMES.get(name, name)
    if not REPOSITORY.fullmatch(repository):
        raise ModelError(
            f"model {name!r}: expected {', '.join(NAMES)}, a hub id such as openai/whisper-tiny, "
            "or a folder that exists"
        )
    try:
        files, commit, licence = _list_files(repository, revision, folder, client)
        _fetch([shapes.CONFIG_FILE, ADAPTER_FILE], files, folder, client)
        weights = _weights(repository, files, folder)
        _fetch([*SMALL, *TOKEN_LISTS], files, folder, client)
        if weights != [MODEL_FILE]:
            check(folder)
        _fetch(weights, files, folder, client)
        if weights == [MODEL_FILE]:  # it alone has the sizes
            check(folder)
    except download.DownloadRefusedError as refused:
        kind = download.UnreachableError if name in NAMES else ModelError  # others may have it
        raise kind(_explain(refused, repository, revision)) from refused
    source = f"{repository}@{commit}"
    return Origin(folder, source, licence, f"fetched {source}: every file is as the hub has it")


def _list_files(
    repository: str, revision: str, folder: Path, client: download.Downloader
) -> tuple[Files, str, str]:
    """Return the files of a revision by name, its commit and its licence."""
    address = f"{endpoint()}/api/models/{repository}/revision/{quote(revision, safe='')}?blobs=true"
    listing = folder / "listing.json"
    client.fetch(download.RemoteFile(address, limit=JSON_LIMIT), listing)
    try:
        values, files = read_json(listing), {}
        for each in values["siblings"]:
            large = each.get("lfs") or {}
            files[each["rfilename"]] = download.RemoteFile(
                f"{endpoint()}/{repository}/resolve/{values['sha']}/{quote(each['rfilename'])}",
                size=int(each["size"]),
                sha256=str(large.get("sha256", "")),
                git_sha1="" if large else str(each["blobId"]),
            )
        licence = (values.get("cardData") or {}).get("license") or ""
        return files, str(values["sha"]), str(licence)
    except (ModelError, KeyError, TypeError, ValueError, AttributeError):
        raise download.UnreachableError(
            f"{address}: expected a hub's list of files, found something else; check HF_ENDPOINT, "
            "and whether this network asks for a login in a browser"
        ) from None
    finally:
        listing.unlink()


def _weights(repository: str, files: Files, folder: Path) -> list[str]:
    """Return the files with the weights: one, several with their index, or ONNX graphs."""
    found = explain_missing(folder, {*files}, repository)
    config = {} if found else read_json(folder / shapes.CONFIG_FILE)
    if config and MODEL_FILE not in files and config.get("model_type") != shapes.MODEL_TYPE:
        found = f"model_type {config.get('model_type')!r}"
    if found:
        raise ModelError(f"{repository}: expected a Whisper, found {found}")
    shards = [shapes.INDEX_FILE, *filter(SHARD.fullmatch, files)]
    for needed in ([shapes.WEIGHTS_FILE], shards, [*ONNX]):
        if files.keys() >= set(needed):
            return [*needed, *(f"{name}_data" for name in needed)]
    return [MODEL_FILE]


def _fetch(names: list[str], files: Files, folder: Path, client: download.Downloader) -> None:
    """Fetch those of the files that the repository has and that are not there yet."""
    for name in names:
        target = folder / name
        with model_errors(target):
            target.parent.mkdir(exist_ok=True)
            if name not in files or (target.is_file() and not files[name].mistake(target)):
                continue
        client.fetch(files[name], target)


def _explain(refused: download.DownloadRefusedError, repository: str, revision: str) -> str:
    """Return what the hub's refusal means for the user."""
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
    return (os.environ.get("HF_ENDPOINT", "").strip() or ENDPOINT).rstrip("/")


def hub_is_reachable(within_s: float = 2.0) -> bool:
    """Return True if the hub, or the proxy that leads to it, answers."""
    return download.is_reachable(endpoint(), within_s)


def find_token() -> tuple[str, str]:
    """Return the user's token for the hub and its source; ("", "") without one.

    It is in HF_TOKEN, or where `hf auth login` puts it; under sudo, in the home of the user.
    """
    if token := os.environ.get("HF_TOKEN", "").strip():
        return token, "HF_TOKEN"
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{cache}/huggingface"
    files = [os.environ.get("HF_TOKEN_PATH") or f"{home}/token"]
    with suppress(KeyError):
        files.append(pwd.getpwnam(os.environ["SUDO_USER"]).pw_dir + "/.cache/huggingface/token")
    for file in files:
        with suppress(OSError):
            if token := Path(file).expanduser().read_text("utf-8", "replace").strip():
                return token, file
    return "", ""
