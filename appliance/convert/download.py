"""Download files over HTTP(S) with requests: retries, resumed downloads; each file is verified."""

import errno
import hashlib
import os
import time
from pathlib import Path
from typing import NamedTuple

import requests
from requests.exceptions import ChunkedEncodingError as BrokenOffError

from appliance.convert.progress import ProgressDisplay, StreamProgress
from appliance.errors import ModelError
from appliance.model import model_errors
from appliance.system import shorten

TIMEOUTS_S = (3.0, 30.0)
"""To connect to one of a server's addresses, of which there may be eight, and within an answer."""
NO_ROUTE = os.strerror(errno.EHOSTUNREACH)
PASSING = (408, 429, 500, 502, 503, 504)
"""Statuses that another attempt may change."""
ATTEMPTS, CONNECTIONS = 6, 2
"""Attempts at a file, and at reaching its server, but one of a silent one."""
BLOCK = 1 << 14
"""Bytes read at once; an incomplete block is lost."""
LARGEST = 16_000_000_000
"""Bytes; the largest Whisper has 6.2 GB as float32."""


class UnreachableError(ModelError):
    """The source of a download cannot be used now: no network, no answer, or not set up."""


class RefusalError(ModelError):
    """An answer that another attempt cannot change."""

    def __init__(self, address: str, answer: requests.Response) -> None:
        self.http_status, self.code = answer.status_code, answer.headers.get("X-Error-Code", "")
        self.answer = f"answer {self.http_status}{f' ({self.code})' if self.code else ''}"
        super().__init__(f"{address}: expected the file, found {self.answer}")


class RemoteFile(NamedTuple):
    """A file on a server, and what is known of it."""

    address: str
    size: int | None = None
    """Bytes."""
    checksum: str = ""
    """SHA-256, or in 40 digits a git blob's name: SHA-1 over b"blob SIZE\\0" and the content."""
    limit: int = LARGEST
    """Most bytes that are accepted if the size is not known."""

    def mistake(self, file: Path) -> str:
        """Return what is wrong with a copy of this file; "" if nothing is. Raises OSError."""
        size = file.stat().st_size
        if self.size not in (None, size):
            return f"expected {self.size} bytes, found {size}"
        git = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        digest = git if len(self.checksum) == 40 else hashlib.sha256()
        with file.open("rb") as stream:
            found = hashlib.file_digest(stream, lambda: digest).hexdigest()
        known = self.checksum or found
        return "" if found == known else f"expected the checksum {known}, found {found}"


class Downloader:
    """Fetches files. The token is sent to the address of a file, not where that redirects to.

    Proxies and certificates are the environment's (HTTPS_PROXY, NO_PROXY, REQUESTS_CA_BUNDLE).
    """

    def __init__(
        self, token: str = "", progress: ProgressDisplay | None = None, pause_s: float = 0.5
    ) -> None:
        self.progress, self._pause_s = progress or StreamProgress(), pause_s
        self._session = requests.Session()
        sent = {"Authorization": f"Bearer {token}"} if token else {}
        self._session.auth = lambda request: request.headers.update(sent) or request
        self._session.headers["Accept-Encoding"] = "identity"

    def fetch(self, source: RemoteFile, destination: Path) -> None:
        """Download and verify a file. With a checksum, NAME.part is resumed, and a whole one stays.

        Raises RefusalError and UnreachableError, which leave the part for the next run, and
        ModelError for a damaged file or a full disk; transcripts may need that disk more.
        """
        part = destination.with_name(f"{destination.name}.part")
        try:
            with model_errors(part):
                if source.checksum and destination.is_file() and not source.mistake(destination):
                    return
                destination.parent.mkdir(exist_ok=True)
                self._receive(source, part)
                if mistake := source.mistake(part):
                    raise ModelError(
                        f"{destination}: {mistake}; deleted; try again, and if it stays so, "
                        f"{source.address} is damaged or changed on its way here"
                    )
                part.rename(destination)
        except ModelError as error:
            if not isinstance(error, UnreachableError | RefusalError):
                part.unlink(missing_ok=True)
            raise

    def _receive(self, source: RemoteFile, part: Path) -> None:
        """Receive the missing rest of a part, over as many connections as that takes."""
        for attempt in range(1, ATTEMPTS + 1):
            begun = part.stat().st_size if source.checksum and part.is_file() else 0
            if begun and begun == source.size:
                return
            try:
                self._append(source, part, begun)
            except requests.RequestException as error:
                cause, pause_s = _innermost(error), self._pause_s * 2**attempt
                most = ATTEMPTS if isinstance(error, BrokenOffError) else CONNECTIONS
                if isinstance(error, requests.ConnectTimeout) or cause == NO_ROUTE:
                    most = 1  # it took seconds for each address
                if attempt >= most:
                    raise UnreachableError(f"{source.address}: {cause}") from error
                self.progress.note(f"{part.stem}: {cause}; again in {pause_s:g} s")
                time.sleep(pause_s)
            else:
                return

    def _append(self, source: RemoteFile, part: Path, begun: int) -> None:
        span = {"Range": f"bytes={begun}-"} if begun else {}
        with self._session.get(
            source.address, headers=span, stream=True, timeout=TIMEOUTS_S
        ) as answer:
            status, headers = answer.status_code, answer.headers
            rest = status == 206 and f" {begun}-" in headers.get("Content-Range", "")
            if status in PASSING:
                raise BrokenOffError(f"answer {status}")
            if status in (206, 416) and not rest:
                part.unlink()
                raise BrokenOffError("the server sent another part than requested")
            if status not in (200, 206):
                raise RefusalError(source.address, answer)
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


def _innermost(error: BaseException) -> str:
    while cause := error.__cause__ or error.__context__:
        error = cause
    return shorten(getattr(error, "strerror", None) or error, 200)
