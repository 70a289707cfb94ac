"""Download files over HTTP(S) with requests: retries, resumed downloads; each file is verified."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import requests
from requests.adapters import HTTPAdapter, Retry
from requests.exceptions import ChunkedEncodingError

from appliance import __version__
from appliance.convert.progress import ProgressDisplay, StreamProgress
from appliance.errors import ModelError
from appliance.model import model_errors, sha256
from appliance.system import shorten, sync_folder

TIMEOUTS_S = (5.0, 30.0)
"""To connect, and within an answer."""
PASSING = (408, 429, 500, 502, 503, 504)
"""Statuses that another attempt may change."""
ATTEMPTS, CONNECTIONS = 6, 2
"""Attempts at a file without progress, and at reaching its server."""
BLOCK = 1 << 14
"""Bytes read at once; an incomplete block is lost."""
LARGEST = 16_000_000_000
"""Bytes; the largest Whisper has 6.2 GB as float32."""


class UnreachableError(ModelError):
    """The source of a download cannot be used now: no network, no answer, or not set up."""


class DownloadRefusedError(ModelError):
    """An answer that another attempt cannot change."""

    def __init__(self, address: str, answer: Any) -> None:
        self.http_status, self.code = answer.status_code, answer.headers.get("X-Error-Code", "")
        self.answer = f"answer {self.http_status}{f' ({self.code})' if self.code else ''}"
        super().__init__(f"{address}: expected the file, found {self.answer}")


class RemoteFile(NamedTuple):
    """A file on a server, and its known properties."""

    address: str
    size: int | None = None
    """Bytes."""
    sha256: str = ""
    git_sha1: str = ""
    """Of the git blob: SHA-1 over b"blob SIZE\\0" and the content."""
    limit: int = LARGEST
    """Most bytes that are accepted if the size is not known."""

    def mistake(self, file: Path) -> str:
        """Return what is wrong with a copy of this file; "" if nothing is. Raises OSError."""
        size, wanted, found = file.stat().st_size, self.sha256 or self.git_sha1, ""
        if self.size not in (None, size):
            return f"expected {self.size} bytes, found {size}"
        if self.sha256:
            found = sha256(file)
        elif self.git_sha1:
            git = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
            with file.open("rb") as stream:
                found = hashlib.file_digest(stream, lambda: git).hexdigest()
        return "" if found == wanted else f"expected the checksum {wanted}, found {found}"


class Downloader:
    """Fetches files. The token is sent to the address of a file, not where that redirects to.

    Proxies and certificates are those of the environment (HTTPS_PROXY, NO_PROXY,
    REQUESTS_CA_BUNDLE).
    """

    def __init__(
        self, token: str = "", progress: ProgressDisplay | None = None, pause_s: float = 0.5
    ) -> None:
        self.progress, self._pause_s = progress or StreamProgress(), pause_s
        retries = Retry(
            total=ATTEMPTS - 1, connect=CONNECTIONS - 1, read=CONNECTIONS - 1,
            backoff_factor=pause_s, status_forcelist=PASSING, raise_on_status=False,
        )  # fmt: skip
        logging.getLogger("urllib3").setLevel(logging.ERROR)  # it warns of each retry
        self._session = requests.Session()
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(max_retries=retries))
        sent = {"Authorization": f"Bearer {token}"} if token else {}
        self._session.auth = lambda request: request.headers.update(sent) or request
        agent = f"roomscribe/{__version__}"
        self._session.headers.update({"User-Agent": agent, "Accept-Encoding": "identity"})

    def fetch(self, source: RemoteFile, destination: Path) -> None:
        """Download a file and verify it. Of one with a checksum, NAME.part is resumed.

        Raises DownloadRefusedError and UnreachableError, which leave the part for the next run, and
        ModelError for a damaged file or a full disk; transcripts may need that disk more.
        """
        part = destination.with_name(f"{destination.name}.part")
        try:
            with model_errors(part):
                self._receive(source, part)
                if mistake := source.mistake(part):
                    raise ModelError(
                        f"{destination}: {mistake}; deleted; try again, and if it stays so, "
                        f"{source.address} is damaged or changed on its way here"
                    )
                part.rename(destination)
                sync_folder(destination.parent)
        except ModelError as error:
            if not isinstance(error, UnreachableError | DownloadRefusedError):
                part.unlink(missing_ok=True)
            raise
        finally:
            self.progress.end()

    def _receive(self, source: RemoteFile, part: Path) -> None:
        """Receive the missing rest of a part, over as many connections as that takes."""
        failed = furthest = 0
        while True:
            if not (source.sha256 or source.git_sha1):
                part.unlink(missing_ok=True)  # nothing to know it by
            if (begun := _size(part)) and begun == source.size:
                return
            try:
                self._append(source, part, begun)
            except (requests.RequestException, ValueError) as error:
                failed = 1 if _size(part) > furthest else failed + 1
                furthest = max(furthest, _size(part))
                if not isinstance(error, ChunkedEncodingError) or failed == ATTEMPTS:
                    raise UnreachableError(f"{source.address}: {_reason(error)}") from error
                pause_s, trouble = (
                    self._pause_s * 2**failed,
                    f"{_reason(error)} at {furthest} bytes",
                )
                self.progress.note(f"{part.stem}: {trouble}; again in {pause_s:g} s")
                time.sleep(pause_s)
            else:
                return

    def _append(self, source: RemoteFile, part: Path, begun: int) -> None:
        """Receive a file's bytes behind the first `begun`, over one connection."""
        span = {"Range": f"bytes={begun}-"} if begun else {}
        with self._session.get(
            source.address, headers=span, stream=True, timeout=TIMEOUTS_S
        ) as answer:
            status, headers = answer.status_code, answer.headers
            if status in PASSING:
                raise UnreachableError(f"{source.address}: answer {status}, {ATTEMPTS} times")
            rest = status == 206 and f" {begun}-" in headers.get("Content-Range", "")
            if status in (206, 416) and not rest:
                part.unlink()
                raise ChunkedEncodingError("the server sent another part than requested")
            if status not in (200, 206):
                raise DownloadRefusedError(source.address, answer)
            begun = begun if rest else 0
            length, most = headers.get("Content-Length", ""), source.size or source.limit
            total = source.size or (begun + int(length) if length.isdecimal() else None)
            self.progress.begin(part.stem, begun, total)
            with part.open("ab" if rest else "wb") as stream:
                for block in answer.iter_content(BLOCK):
                    if stream.tell() + len(block) > most:
                        raise ModelError(f"{source.address}: expected {most} bytes, found more")
                    stream.write(block)
                    self.progress.advance(len(block))
                os.fsync(stream.fileno())


def is_reachable(address: str, within_s: float) -> bool:
    """Return True if a server, or the proxy that leads to it, answers."""
    try:
        requests.head(address, timeout=within_s)
    except (requests.RequestException, ValueError):
        return False
    return True


def _size(part: Path) -> int:
    return part.stat().st_size if part.is_file() else 0


def _reason(error: BaseException) -> str:
    """Return the innermost cause of a failed request."""
    inner: BaseException | None = error
    while inner is not None:
        error = inner
        causes = (getattr(error, "reason", None), *error.args, error.__cause__, error.__context__)
        inner = next((each for each in causes if isinstance(each, BaseException)), None)
    return shorten(getattr(error, "strerror", None) or error, 200)
