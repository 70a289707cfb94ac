"""One repository of a hub of models: which files it has, at which commit, with which checksums.

The hub is Hugging Face's, or the one that HF_ENDPOINT names; HF_TOKEN is sent to it alone. A file
is at ENDPOINT/OWNER/NAME/resolve/REVISION/FILE; the answer to HEAD tells commit, size and checksum:
X-Linked-Etag is the SHA-256 of a large file, it or ETag the git blob name of a small one.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from appliance.errors import ModelError
from appliance.model.hub.answers import RefusedError, UnreachableError
from appliance.model.hub.fetch import Client, Patience
from appliance.model.hub.part import LARGEST, Source
from appliance.model.hub.progress import Progress

ENDPOINT = "https://huggingface.co"
NAMES = {
    name: f"openai/whisper-{name}"
    for name in ("tiny", "tiny.en", "base", "base.en", "small", "small.en")
}
"""Known names and their repositories."""
REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")
SMALL = 64_000_000
"""Bytes; no JSON file of a model is larger."""
FIRST_ATTEMPTS = 3
"""Whoever is offline wants to hear it soon."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a repository at one commit."""

    name: str
    commit: str
    source: Source


def repository_of(name: str) -> str:
    """The repository that a known name or a hub id means. Raises ModelError."""
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
        patience: Patience | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.name = name
        self._endpoint = (environment.get("HF_ENDPOINT", "").strip() or ENDPOINT).rstrip("/")
        self._token = environment.get("HF_TOKEN", "").strip()
        if not re.fullmatch(r"[!-~]*", self._token):
            raise ModelError("HF_TOKEN: expected letters, digits and signs without spaces")
        self._client = Client(self._endpoint, self._token, patience, progress)
        self._revision = ""

    def settle(self, revision: str, file: str) -> Entry:
        """The entry of a file that must be there; all later ones are of the same commit.

        Raises ModelError for an unknown repository or revision, a missing login and no answer.
        """
        if not REVISION.fullmatch(revision) or ".." in revision:
            raise ModelError(f"--revision: expected a branch, tag or commit, found {revision!r}")
        self._revision = revision
        entry = self.find(file)
        if entry is None:
            raise ModelError(
                f"{self._endpoint}/{self.name}: expected {file} at {revision}, found no such "
                f"file; check the id, or take one of {', '.join(NAMES)}"
            )
        self._revision = entry.commit
        return entry

    def find(self, file: str, limit: int = SMALL) -> Entry | None:
        """A file of the repository; None if it has none of that name. Raises ModelError."""
        address = self._address(file)
        try:
            told = self._client.look(address, _enough, FIRST_ATTEMPTS)
        except RefusedError as refused:
            if refused.status == 404 and refused.code in ("", "EntryNotFound"):
                return None
            raise self._explained(refused) from refused
        except UnreachableError as error:
            raise _advised(error) from error
        commit = told.get("x-repo-commit", "")
        if not re.fullmatch(r"[0-9a-f]{40}", commit):
            raise ModelError(
                f"{address}: expected a hub's answer with X-Repo-Commit, found none; check "
                "HF_ENDPOINT, and whether this network asks for a login in a browser"
            )
        large = told.get("x-linked-etag", "").removeprefix("W/").strip('"')
        small = large or told.get("etag", "").removeprefix("W/").strip('"')
        size = told.get("x-linked-size") or told.get("content-length") or ""
        if size.isdecimal() and int(size) > limit:
            raise ModelError(f"{address}: expected at most {limit} bytes, found {size}")
        return Entry(
            file,
            commit,
            Source(
                self._address(file, commit),
                size=int(size) if size.isdecimal() else None,
                sha256=large if re.fullmatch(r"[0-9a-f]{64}", large) else "",
                git_sha1=small if re.fullmatch(r"[0-9a-f]{40}", small) else "",
                limit=limit,
            ),
        )

    def present(self, files: Iterable[str], limit: int = LARGEST) -> list[Entry]:
        """The entries of those files that the repository has."""
        found = (self.find(file, limit) for file in files)
        return [entry for entry in found if entry is not None]

    def fetch(self, entry: Entry, destination: Path) -> str:
        """Puts a file in its place; its SHA-256. Raises ModelError."""
        try:
            return self._client.fetch(entry.source, destination)
        except RefusedError as refused:
            raise self._explained(refused) from refused
        except UnreachableError as error:
            raise _advised(error) from error

    def licence(self) -> str:
        """What the model's README says in its head; "" if it says nothing. Raises ModelError."""
        try:
            text = self._client.read(self._address("README.md"), 1 << 16).decode(errors="replace")
        except RefusedError:
            return ""
        except UnreachableError as error:
            raise _advised(error) from error
        head = re.match(r"---\s*\n(.*?)\n---", text, re.DOTALL)
        line = re.search(r"^license:[ \t]*([\w.+-]+)", head[1], re.MULTILINE) if head else None
        return line[1] if line else ""

    def _address(self, file: str, commit: str = "") -> str:
        revision = quote(commit or self._revision, safe="")
        return f"{self._endpoint}/{self.name}/resolve/{revision}/{quote(file)}"

    def _explained(self, refused: RefusedError) -> ModelError:
        """What a refusal means for the user."""
        page = f"{self._endpoint}/{self.name}"
        answer = f"answer {refused.status}{f' ({refused.code})' if refused.code else ''}"
        if refused.code == "RevisionNotFound":
            return ModelError(
                f"{page}: expected the branch, tag or commit {self._revision!r}, found none; "
                "check --revision"
            )
        if refused.code == "GatedRepo" or refused.status == 403:
            return ModelError(
                f"{page}: {answer}: it needs a login; accept its licence at {page} and set "
                "HF_TOKEN to a token of yours that may read it"
            )
        if refused.status == 401 and self._token and refused.code != "RepoNotFound":
            return ModelError(
                f"{page}: {answer}: HF_TOKEN is not accepted; make a new token at "
                f"{self._endpoint}/settings/tokens, or unset HF_TOKEN for public models"
            )
        # the hub answers 401 for a repository that does not exist, too, unless one is logged in
        if refused.status in (401, 404):
            login = "" if self._token else ", or it needs a login: then set HF_TOKEN"
            return ModelError(
                f"{page}: {answer}: there is no such repository{login}; check the id, or take one "
                f"of {', '.join(NAMES)}"
            )
        return refused


def _enough(headers: Mapping[str, str]) -> bool:
    """Whether a redirect tells all that the hub knows of a file."""
    elsewhere = bool(urlsplit(headers["Location"]).netloc)
    return "X-Repo-Commit" in headers and ("X-Linked-Etag" in headers or elsewhere)


def _advised(error: UnreachableError) -> ModelError:
    return ModelError(
        f"{error}; check the network and HF_ENDPOINT, then run the same command again to go on; or "
        "give a folder with the checkpoint in place of its name"
    )
