"""A Whisper checkpoint by name or hub id -> a folder with its files, each verified.

The folder is kept between runs: what is whole is not fetched again, what is broken goes on.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from appliance.errors import ModelError
from appliance.model.hub.fetch import Patience
from appliance.model.hub.part import LARGEST, git_sha1, require_room, sha256
from appliance.model.hub.progress import Progress
from appliance.model.hub.repository import NAMES, Entry, Repository, repository_of
from appliance.model.library import told
from appliance.model.weights.config_file import read_json

__all__ = ["NAMES", "Origin", "fetch_checkpoint", "repository_of"]

CONFIG, VOCABULARY, WEIGHTS = "config.json", "vocab.json", "model.safetensors"
OPTIONAL = ("generation_config.json", "added_tokens.json")
INDEX = "model.safetensors.index.json"
ONNX = ("onnx/encoder_model.onnx", "onnx/decoder_model.onnx")
ONNX_DATA = tuple(f"{name}_data" for name in ONNX)
"""Weights of a graph, where they are too many for its own file."""
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\.safetensors")
RECORD = "fetched.json"
"""Says of a folder what was fetched into it: repository, commit, and SHA-256 of each file."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a checkpoint comes from."""

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
    progress: Progress | None = None,
    patience: Patience | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Origin:
    """Fetches what a checkpoint consists of, as it is at one commit, into an existing folder.

    Raises ModelError: unknown, not a Whisper, only as a pickle, no network, no room, damaged.
    """
    repository = Repository(repository_of(name), environment, patience=patience, progress=progress)
    config = repository.settle(revision, CONFIG)
    shelf = _Shelf(folder, repository, config.commit)
    shelf.put([config])
    kind = read_json(folder / CONFIG).get("model_type")
    if kind != "whisper":
        raise ModelError(f"{repository.name}: expected a Whisper (model_type), found {kind!r}")
    vocabulary = repository.find(VOCABULARY)
    if vocabulary is None:
        raise ModelError(
            f"{repository.name}: expected {VOCABULARY}, found none (tokenizer.json alone is not "
            "read); save its slow tokenizer with transformers and give the folder in place of it"
        )
    small = [vocabulary, *repository.present(OPTIONAL)]
    shelf.put(small)
    weights = _weights(repository, shelf)
    shelf.clear_but([config, *small, *weights])
    shelf.put(weights)
    return Origin(repository.name, config.commit, shelf.files, repository.licence())


def _weights(repository: Repository, shelf: _Shelf) -> list[Entry]:
    """The files that hold the weights: one, several with their index, or ONNX graphs."""
    if whole := repository.find(WEIGHTS, LARGEST):
        return [whole]
    if index := repository.find(INDEX):
        shelf.put([index])
        names = _shards(shelf.folder / INDEX)
        shards = repository.present(names)
        if len(shards) < len(names):
            missing = sorted(set(names) - {shard.name for shard in shards})
            raise ModelError(f"{repository.name}: expected {missing[0]}, which {INDEX} names")
        return [index, *shards]
    graphs = repository.present(ONNX)
    if len(graphs) == len(ONNX):
        return [*graphs, *repository.present(ONNX_DATA)]
    if pickles := repository.present(PICKLES):
        raise ModelError(
            f"{repository.name}: expected {WEIGHTS}, found only {pickles[0].name}, a pickle: "
            "loading one runs whatever code is in it; on another machine, load it with "
            "transformers, save_pretrained(FOLDER, safe_serialization=True), and give that folder"
        )
    raise ModelError(
        f"{repository.name}: expected {WEIGHTS}, {INDEX} or {' and '.join(ONNX)}, found none"
    )


def _shards(index: Path) -> list[str]:
    """The files among which an index shares out the weights."""
    shares = read_json(index).get("weight_map")
    names = set(shares.values()) if isinstance(shares, dict) else set[Any]()
    bad = [name for name in names if not isinstance(name, str) or not SHARD.fullmatch(name)]
    if bad or not 1 <= len(names) <= 100:
        raise ModelError(
            f"{index}: expected weight_map with the names of 1 to 100 safetensors files beside it, "
            f"found {bad[0] if bad else len(names)!r}"
        )
    return sorted(names)


class _Shelf:
    """The folder, and the record in it of what is whole and verified."""

    def __init__(self, folder: Path, repository: Repository, commit: str) -> None:
        self.folder, self._repository, self._commit = folder, repository, commit
        self.files: dict[str, str] = {}
        commit_before, self._known = self._recorded()
        self._trusted = self._known if commit_before == commit else {}
        self._note()

    def put(self, entries: list[Entry]) -> None:
        """Fetches those of the files that are not there yet. Raises ModelError."""
        missing = [entry for entry in entries if not self._has(entry)]
        sizes = [(entry.source.size or 0) - self._begun(entry) for entry in missing]
        require_room(self.folder, sum(sizes), self._repository.name)
        for entry in missing:
            place = self.folder / entry.name
            with told(place):
                place.parent.mkdir(exist_ok=True)
            self.files[entry.name] = self._repository.fetch(entry, place)
            self._note()

    def clear_but(self, entries: list[Entry]) -> None:
        """Deletes what an earlier run fetched and this one does not want. Raises ModelError."""
        wanted = {entry.name for entry in entries}
        for name in {*self._known, *OPTIONAL, WEIGHTS, INDEX, *ONNX, *ONNX_DATA} - wanted:
            with told(self.folder):
                for suffix in ("", ".part", ".part.json"):
                    (self.folder / f"{name}{suffix}").unlink(missing_ok=True)

    def _has(self, entry: Entry) -> bool:
        """Whether the file is there and is what the hub says, or said when it told no checksum."""
        place, source = self.folder / entry.name, entry.source
        with told(place):
            if not place.is_file() or source.size not in (None, place.stat().st_size):
                return False
            digest = sha256(place)
            same = digest == (source.sha256 or self._trusted.get(entry.name))
            if source.git_sha1:
                same = git_sha1(place) == source.git_sha1
        if same:
            self.files[entry.name] = digest
        return same

    def _begun(self, entry: Entry) -> int:
        """Bytes that an earlier run left of a file."""
        part = self.folder / f"{entry.name}.part"
        return part.stat().st_size if part.is_file() else 0

    def _recorded(self) -> tuple[str, dict[str, str]]:
        """The commit of an earlier run, and SHA-256 by name of what was fetched by then.

        Raises ModelError for a folder that somebody else has put a checkpoint into.
        """
        record = self.folder / RECORD
        if not record.is_file():
            own = [name for name in (CONFIG, WEIGHTS, INDEX) if (self.folder / name).exists()]
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
        """Writes the record anew, with all that may be in the folder."""
        record = self.folder / RECORD
        draft = self.folder / f"{RECORD}.new"
        values = {
            "repository": self._repository.name,
            "revision": self._commit,
            "files": self._known | self.files,
        }
        with told(record):
            draft.write_text(json.dumps(values, indent=1) + "\n", "utf-8")
            draft.rename(record)
