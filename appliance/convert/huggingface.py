"""Download a Whisper checkpoint by name or hub id, and verify each file.

The hub is Hugging Face's, or the one that HF_ENDPOINT names; a token is sent to it alone. A file
is at ENDPOINT/OWNER/NAME/resolve/REVISION/FILE; HEAD answers with commit, size and checksum:
X-Linked-Etag is the SHA-256 of a large file, it or ETag the git blob name of a small one.

The folder is kept between runs: complete files are not fetched again, others are resumed.
"""

from __future__ import annotations

import difflib
import json
import os
import pwd
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from appliance.convert.download import Downloader, ProgressDisplay, RetryPolicy
from appliance.convert.partial_file import (
    LARGEST,
    DownloadRefusedError,
    RemoteFile,
    UnreachableError,
    git_sha1,
    require_free_space,
)
from appliance.convert.shapes import (
    ADDED_FILE,
    CONFIG_FILE,
    GENERATION_FILE,
    INDEX_FILE,
    MODEL_TYPE,
    TOKENIZER_FILE,
    VOCAB_FILE,
    WEIGHTS_FILE,
)
from appliance.convert.tensors import INDEX_KEY
from appliance.errors import ModelError
from appliance.model import JSON_LIMIT, model_errors, read_json, sha256
from appliance.system import write_whole

ENDPOINT = "https://huggingface.co"
NAMES = {
    name: f"openai/whisper-{name}"
    for name in ("tiny", "tiny.en", "base", "base.en", "small", "small.en")
}
"""Known names and their repositories."""
REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")
TOKEN_LENGTH = 1000
"""Most characters; the hub's own have 37."""
_LOGIN = "set HF_TOKEN or run `hf auth login`"
FIRST_ATTEMPTS = 3
"""Attempts to find a file; without a network the user soon gets the error."""
SMALL = (VOCAB_FILE, ADDED_FILE, TOKENIZER_FILE, GENERATION_FILE)
ONNX = ("onnx/encoder_model.onnx", "onnx/decoder_model.onnx")
ONNX_DATA = tuple(f"{name}_data" for name in ONNX)
"""Weights of a graph that are too large for its own file."""
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
FOREIGN = ("adapter_config.json", "model.bin", "ggml-base.bin", "openvino_encoder_model.xml")
"""Files that identify a repository of another program."""
SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\.safetensors")
RECORD = "fetched.json"
"""Records what was fetched into a folder: repository, commit, and SHA-256 of each file."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a repository at one commit."""

    name: str
    commit: str
    source: RemoteFile


def repository_of(name: str) -> str:
    """Return the repository of a known name or a hub id. Raises ModelError."""
    if name in NAMES:
        return NAMES[name]
    if REPOSITORY.fullmatch(name) and not re.search(r"\.\.|--|[.-](/|$)", name):
        return name
    close = difflib.get_close_matches(name, NAMES, 1)
    raise ModelError(
        f"model {name!r}: expected {', '.join(NAMES)}, a hub id such as openai/whisper-tiny, or a "
        f"folder that exists{f'; did you mean {close[0]}?' if close else ''}"
    )


class Repository:
    """Finds and fetches files of OWNER/NAME; from `settle` on, those of one commit."""

    def __init__(
        self,
        name: str,
        environment: Mapping[str, str] = os.environ,
        *,
        policy: RetryPolicy | None = None,
        progress: ProgressDisplay | None = None,
    ) -> None:
        self.name = name
        self._endpoint = (environment.get("HF_ENDPOINT", "").strip() or ENDPOINT).rstrip("/")
        self._token, self._token_from = find_token(environment)
        if not re.fullmatch(r"[!-~]*", self._token):
            raise ModelError(
                f"{self._token_from}: expected letters, digits and signs without spaces"
            )
        self._client = Downloader(self._endpoint, self._token, policy, progress)
        self._revision = ""

    def settle(self, revision: str, file: str) -> Entry:
        """Return the entry of a file that must exist; all later ones are of the same commit.

        Raises ModelError for an unknown repository or revision, a missing login and no answer.
        """
        if not REVISION.fullmatch(revision) or ".." in revision:
            raise ModelError(f"--revision: expected a branch, tag or commit, found {revision!r}")
        self._revision = revision
        entry = self.find(file)
        if entry is None:
            found = self.foreign({}) or (
                f"no such file; check the id, or take one of {', '.join(NAMES)}"
            )
            raise ModelError(
                f"{self._endpoint}/{self.name}: expected {file} at {revision}, found {found}"
            )
        self._revision = entry.commit
        return entry

    def find(self, file: str, limit: int = JSON_LIMIT) -> Entry | None:
        """Return a file of the repository, or None. Raises ModelError."""
        address = self._address(file)
        try:
            headers = self._client.read_headers(address, _enough, FIRST_ATTEMPTS)
        except DownloadRefusedError as refused:
            if refused.http_status == 404 and refused.code in ("", "EntryNotFound"):
                return None
            raise self._explained(refused) from refused
        except UnreachableError as error:
            raise _advised(error) from error
        commit = headers.get("x-repo-commit", "")
        if not re.fullmatch(r"[0-9a-f]{40}", commit):
            raise ModelError(
                f"{address}: expected a hub's answer with X-Repo-Commit, found none; check "
                "HF_ENDPOINT, and whether this network asks for a login in a browser"
            )
        large = headers.get("x-linked-etag", "").removeprefix("W/").strip('"')
        small = large or headers.get("etag", "").removeprefix("W/").strip('"')
        size = headers.get("x-linked-size") or headers.get("content-length") or ""
        if size.isdecimal() and int(size) > limit:
            raise ModelError(f"{address}: expected at most {limit} bytes, found {size}")
        return Entry(
            file,
            commit,
            RemoteFile(
                self._address(file, commit),
                size=int(size) if size.isdecimal() else None,
                sha256=large if re.fullmatch(r"[0-9a-f]{64}", large) else "",
                git_sha1=small if re.fullmatch(r"[0-9a-f]{40}", small) else "",
                limit=limit,
            ),
        )

    def present(self, files: Iterable[str], limit: int = LARGEST) -> list[Entry]:
        """Return the entries of the files that the repository has."""
        found = (self.find(file, limit) for file in files)
        return [entry for entry in found if entry is not None]

    def foreign(self, config: Mapping[str, Any]) -> str:
        """Return what a repository of another program is, with the fix; "" if unknown. Raises
        ModelError."""
        from appliance.convert.checkpoint import foreign

        names = () if config.get("model_type") == MODEL_TYPE else FOREIGN
        return foreign({entry.name for entry in self.present(names)}, config, self.name)

    def fetch(self, entry: Entry, destination: Path) -> str:
        """Move a file to its path and return its SHA-256. Raises ModelError."""
        try:
            return self._client.fetch(entry.source, destination)
        except DownloadRefusedError as refused:
            raise self._explained(refused) from refused
        except UnreachableError as error:
            raise _advised(error) from error

    def licence(self) -> str:
        """Return the licence in the README's head; "" if there is none. Raises ModelError."""
        try:
            text = self._client.read(self._address("README.md"), 1 << 16).decode(errors="replace")
        except DownloadRefusedError:
            return ""
        except UnreachableError as error:
            raise _advised(error) from error
        head = re.match(r"---\s*\n(.*?)\n---", text, re.DOTALL)
        line = re.search(r"^license:[ \t]*([\w.+-]+)", head[1], re.MULTILINE) if head else None
        return line[1] if line else ""

    def _address(self, file: str, commit: str = "") -> str:
        revision = quote(commit or self._revision, safe="")
        return f"{self._endpoint}/{self.name}/resolve/{revision}/{quote(file)}"

    def _explained(self, refused: DownloadRefusedError) -> ModelError:
        """Return what a refusal means for the user."""
        page = f"{self._endpoint}/{self.name}"
        answer = refused.answer
        if refused.code == "RevisionNotFound":
            return ModelError(
                f"{page}: expected the branch, tag or commit {self._revision!r}, found none; "
                "check --revision"
            )
        if "disabled" in refused.message:
            return ModelError(f"{page}: {answer}: the hub has closed it; take another model")
        if refused.code == "GatedRepo" or refused.http_status == 403:
            found = f" (found: {self._token_from})" if self._token else ""
            return ModelError(
                f"{page}: {answer}: it needs a login; accept its licence at {page} and {_LOGIN} "
                f"with a token of yours that may read it{found}"
            )
        if refused.http_status == 401 and self._token and refused.code != "RepoNotFound":
            return ModelError(
                f"{page}: {answer}: the token in {self._token_from} is not accepted; make a new "
                f"one at {self._endpoint}/settings/tokens, or do without for public models (unset "
                "HF_TOKEN, `hf auth logout`)"
            )
        # the hub answers 401 for a repository that does not exist, too, unless one is logged in
        if refused.http_status in (401, 404):
            login = "" if self._token else f", or it needs a login: then {_LOGIN}"
            return ModelError(
                f"{page}: {answer}: there is no such repository{login}; check the id, or take one "
                f"of {', '.join(NAMES)}"
            )
        return refused


def find_token(
    environment: Mapping[str, str],
    home_of: Callable[[str], str] = lambda user: pwd.getpwnam(user).pw_dir,
) -> tuple[str, str]:
    """Return the user's token for the hub and its source; ("", "") without one.

    It is in HF_TOKEN, or where `hf auth login` puts it: HF_TOKEN_PATH, or the file token in HF_HOME
    or ~/.cache/huggingface. Under sudo, which changes the environment, the user's own file counts
    where root has none, if it may be read. `home_of` knows a user's home.
    """
    if token := environment.get("HF_TOKEN", "").strip():
        return token, "HF_TOKEN"
    cache = environment.get("XDG_CACHE_HOME") or environment.get("HOME", "") + "/.cache"
    home = environment.get("HF_HOME") or f"{cache}/huggingface"
    files = [Path(environment.get("HF_TOKEN_PATH") or f"{home}/token")]
    with suppress(KeyError):
        files.append(Path(home_of(environment["SUDO_USER"]), ".cache/huggingface/token"))
    for file in files:
        with (
            suppress(OSError),
            file.expanduser().open(encoding="utf-8", errors="replace") as stream,
        ):
            if token := stream.read(TOKEN_LENGTH).strip():
                return token, str(file)
    return "", ""


def _enough(headers: Mapping[str, str]) -> bool:
    """Return True if a redirect has everything that the hub knows of a file."""
    elsewhere = bool(urlsplit(headers["Location"]).netloc)
    return "X-Repo-Commit" in headers and ("X-Linked-Etag" in headers or elsewhere)


def _advised(error: UnreachableError) -> ModelError:
    return ModelError(
        f"{error}; check the network and HF_ENDPOINT, then run the same command again to go on; or "
        "give a folder with the checkpoint in place of its name"
    )


def hub_is_reachable(environment: Mapping[str, str] = os.environ, within_s: float = 2.0) -> bool:
    """Return True if the hub, or the proxy that leads to it, takes a connection."""
    endpoint = urlsplit(environment.get("HF_ENDPOINT", "").strip() or ENDPOINT)
    scheme = endpoint.scheme or "https"
    proxy = environment.get(f"{scheme}_proxy") or environment.get(f"{scheme.upper()}_PROXY")
    server = urlsplit(proxy) if proxy and "://" in proxy else endpoint
    try:
        port = server.port or (443 if server.scheme == "https" else 80)
        with socket.create_connection((server.hostname or "", port), within_s):
            return True
    except (OSError, ValueError):
        return False


@dataclass(frozen=True, slots=True)
class Origin:
    """Source of a checkpoint."""

    repository: str
    revision: str
    """Commit."""
    files: dict[str, str] = field(default_factory=dict)
    """SHA-256 by name."""
    licence: str = ""
    """As the repository's README names it, such as apache-2.0."""


def fetch_checkpoint(
    name: str,
    revision: str,
    folder: Path,
    *,
    progress: ProgressDisplay | None = None,
    policy: RetryPolicy | None = None,
    environment: Mapping[str, str] = os.environ,
    check: Callable[[Path], object] = lambda _: None,
) -> Origin:
    """Fetch the files of a checkpoint at one commit into an existing folder.

    `check` is called with the folder before the weights are fetched; what it raises ends this.
    Raises ModelError: unknown, not a Whisper, only as a pickle, no network, no room, damaged.
    """
    repository = Repository(repository_of(name), environment, policy=policy, progress=progress)
    config = repository.settle(revision, CONFIG_FILE)
    fetched = _FetchFolder(folder, repository, config.commit)
    fetched.put([config])
    values = read_json(folder / CONFIG_FILE)
    if found := repository.foreign(values):
        raise ModelError(f"{repository.name}: expected a checkpoint, found {found}")
    if (kind := values.get("model_type")) != MODEL_TYPE:
        raise ModelError(f"{repository.name}: expected a Whisper (model_type), found {kind!r}")
    small = repository.present((VOCAB_FILE, GENERATION_FILE))
    whole = any(entry.name == VOCAB_FILE for entry in small)
    small += repository.present((ADDED_FILE if whole else TOKENIZER_FILE,))
    if not {VOCAB_FILE, TOKENIZER_FILE} & {entry.name for entry in small}:
        raise ModelError(
            f"{repository.name}: expected {VOCAB_FILE} or {TOKENIZER_FILE}, found neither; fetch "
            "it into a folder by hand, the tokenizer of the model that it was trained from beside "
            "it, and give that folder"
        )
    fetched.put(small)
    weights = _weights(repository, fetched)
    fetched.clear_but([config, *small, *weights])
    check(folder)
    fetched.put(weights)
    return Origin(repository.name, config.commit, fetched.files, repository.licence())


def _weights(repository: Repository, fetched: _FetchFolder) -> list[Entry]:
    """The files that hold the weights: one, several with their index, or ONNX graphs."""
    if whole := repository.find(WEIGHTS_FILE, LARGEST):
        return [whole]
    if index := repository.find(INDEX_FILE):
        fetched.put([index])
        names = _shards(fetched.folder / INDEX_FILE)
        shards = repository.present(names)
        if len(shards) < len(names):
            missing = sorted(set(names) - {shard.name for shard in shards})
            raise ModelError(f"{repository.name}: expected {missing[0]}, which {INDEX_FILE} names")
        return [index, *shards]
    graphs = repository.present(ONNX)
    if len(graphs) == len(ONNX):
        return [*graphs, *repository.present(ONNX_DATA)]
    if pickles := repository.present(PICKLES):
        raise ModelError(
            f"{repository.name}: expected {WEIGHTS_FILE}, found only {pickles[0].name}, a pickle: "
            "loading one runs whatever code is in it; on another machine, load it with "
            "transformers, save_pretrained(FOLDER, safe_serialization=True), and give that folder"
        )
    raise ModelError(
        f"{repository.name}: expected {WEIGHTS_FILE}, {INDEX_FILE} or {' and '.join(ONNX)}, "
        "found none"
    )


def _shards(index: Path) -> list[str]:
    """The files among which an index shares out the weights."""
    shares = read_json(index).get(INDEX_KEY)
    names = set(shares.values()) if isinstance(shares, dict) else set[Any]()
    bad = [name for name in names if not isinstance(name, str) or not SHARD.fullmatch(name)]
    if bad or not 1 <= len(names) <= 100:
        raise ModelError(
            f"{index}: expected weight_map with the names of 1 to 100 safetensors files beside it, "
            f"found {bad[0] if bad else len(names)!r}"
        )
    return sorted(names)


class _FetchFolder:
    """The folder, and the record in it of what is whole and verified."""

    def __init__(self, folder: Path, repository: Repository, commit: str) -> None:
        self.folder, self._repository, self._commit = folder, repository, commit
        self.files: dict[str, str] = {}
        commit_before, self._known = self._recorded()
        self._trusted = self._known if commit_before == commit else {}
        self._note()

    def put(self, entries: list[Entry]) -> None:
        """Fetch those of the files that are not there yet. Raises ModelError."""
        missing = [entry for entry in entries if not self._has(entry)]
        sizes = [(entry.source.size or 0) - self._begun(entry) for entry in missing]
        require_free_space(self.folder, sum(sizes), self._repository.name)
        for entry in missing:
            path = self.folder / entry.name
            with model_errors(path):
                path.parent.mkdir(exist_ok=True)
            self.files[entry.name] = self._repository.fetch(entry, path)
            self._note()

    def clear_but(self, entries: list[Entry]) -> None:
        """Delete what an earlier run fetched and this one does not want. Raises ModelError."""
        wanted = {entry.name for entry in entries}
        for name in {*self._known, *SMALL, WEIGHTS_FILE, INDEX_FILE, *ONNX, *ONNX_DATA} - wanted:
            with model_errors(self.folder):
                for suffix in ("", ".part", ".part.json"):
                    (self.folder / f"{name}{suffix}").unlink(missing_ok=True)

    def _has(self, entry: Entry) -> bool:
        """Return True if the file has the hub's checksum, or, without one, that of its download."""
        path, source = self.folder / entry.name, entry.source
        with model_errors(path):
            if not path.is_file() or source.size not in (None, path.stat().st_size):
                return False
            digest = sha256(path)
            same = digest == (source.sha256 or self._trusted.get(entry.name))
            if source.git_sha1:
                same = git_sha1(path) == source.git_sha1
        if same:
            self.files[entry.name] = digest
        return same

    def _begun(self, entry: Entry) -> int:
        """Return the bytes that an earlier run left of a file."""
        part = self.folder / f"{entry.name}.part"
        return part.stat().st_size if part.is_file() else 0

    def _recorded(self) -> tuple[str, dict[str, str]]:
        """Return the commit of an earlier run, and the SHA-256 of its files by name.

        Raises ModelError for a folder with a checkpoint that no such run has put there.
        """
        record = self.folder / RECORD
        if not record.is_file():
            own = [
                name
                for name in (CONFIG_FILE, WEIGHTS_FILE, INDEX_FILE)
                if (self.folder / name).exists()
            ]
            if own:
                raise ModelError(
                    f"{self.folder}: expected an empty folder, or one filled by this command, "
                    f"found {own[0]} in it; name another folder"
                )
            return "", {}
        values = read_json(record)
        files = values.get("files")
        if not isinstance(files, dict):
            raise ModelError(f"{record}: expected a table of files; delete it and its folder")
        digests = {str(name): str(digest) for name, digest in files.items()}
        return str(values.get("revision")), digests

    def _note(self) -> None:
        """Write the record of all files that may be in the folder."""
        record = self.folder / RECORD
        values = {
            "repository": self._repository.name,
            "revision": self._commit,
            "files": self._known | self.files,
        }
        with model_errors(record):
            write_whole(record, json.dumps(values, indent=1) + "\n")
