"""An unfinished download on the disk, and the HTTP headers that describe it.

It grows as NAME.part beside its destination, is verified, then renamed. NAME.part.json identifies
the file, so that another one never continues it.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from appliance.errors import ModelError
from appliance.model import model_errors
from appliance.system import lock, shorten, sync_folder

REDIRECTS = {301, 302, 303, 307, 308}
PASSING = {408, 425, 429}
"""Statuses below 500 that may change."""
LARGEST = 16_000_000_000
"""Bytes; the largest Whisper has 6.2 GB as float32."""
MESSAGE_LENGTH = 200
"""Characters of a server's message that are shown."""
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class DownloadRefusedError(ModelError):
    """An answer that another attempt cannot change."""

    def __init__(self, address: str, status: int, code: str, message: str = "") -> None:
        self.http_status, self.code, self.message = status, code, message
        super().__init__(f"{address}: expected the file, found {self.answer}")

    @property
    def answer(self) -> str:
        """Status, with code and message, if any."""
        why = ": ".join(each for each in (self.code, self.message) if each)
        return f"answer {self.http_status}{f' ({why})' if why else ''}"


class UnreachableError(ModelError):
    """No usable answer after all attempts."""


class RetryableError(Exception):
    """An error that may pass, and the pause in seconds that the server requests."""

    def __init__(self, what: str, wait_s: float = 0.0) -> None:
        super().__init__(what)
        self.wait_s = wait_s


def check(status: int, headers: Mapping[str, str], address: str) -> None:
    """Raise RetryableError or RefusedError unless an answer is a good one, or a redirect."""
    if status >= 500 or status in PASSING:
        wait_s = parse_retry_after(headers.get("Retry-After", ""))
        raise RetryableError(
            f"answer {status}", max(wait_s, parse_rate_limit(headers.get("RateLimit", "")))
        )
    if status not in {200, 206} and not is_redirect(status, headers):
        message = shorten(headers.get("X-Error-Message", ""), MESSAGE_LENGTH)
        raise DownloadRefusedError(address, status, headers.get("X-Error-Code", ""), message)
    if (encoding := headers.get("Content-Encoding", "identity")) != "identity":
        raise ModelError(f"{address}: expected the file as it is, found it encoded as {encoding}")


def is_redirect(status: int, headers: Mapping[str, str]) -> bool:
    """Return True if an answer names another address."""
    return status in REDIRECTS and "Location" in headers


def read_total_size(headers: Mapping[str, str], partial: bool) -> int | None:
    """Return the size of the whole file that an answer announces."""
    if partial:
        return parse_content_range(headers)[1]
    length = headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None


def read_strong_etag(headers: Mapping[str, str]) -> str:
    """Return the strong ETag; "" without one (RFC 9110, 8.8.3)."""
    etag = headers.get("ETag", "")
    return etag if etag.startswith('"') else ""


def parse_content_range(headers: Mapping[str, str]) -> tuple[int, int | None]:
    """Return first byte and total size of a partial answer; (-1, None) if unknown."""
    span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", headers.get("Content-Range", ""))
    if span is None:
        return -1, None
    return int(span[1]), None if span[2] == "*" else int(span[2])


def origin(address: str) -> tuple[str, str, int]:
    """Return scheme, host and port. Raises ModelError for anything but http and https."""
    try:
        parts = urlsplit(address)
        port = {"http": 80, "https": 443}[parts.scheme]
        port = port if parts.port is None else parts.port
    except (ValueError, KeyError):
        port = 0
    if not port or not parts.hostname:
        raise ModelError(f"{address!r}: expected an address such as https://example.org")
    return parts.scheme, parts.hostname, port


def parse_retry_after(value: str) -> float:
    """Return seconds, from a number or a date; 0 for anything else."""
    if value.strip().isdecimal():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return 0.0


def parse_rate_limit(value: str) -> float:
    """Return the seconds until a server answers again by its RateLimit header, else 0.

    Such as `"api";r=0;t=55`: no request is left for the next 55 s
    (draft-ietf-httpapi-ratelimit-headers-09, 4). One second more, for they are rounded.
    """
    wait_s = 0.0
    for policy in value.split(","):
        found = dict(re.findall(r";\s*([rt])\s*=\s*(\d{1,9})", policy))
        if found.get("r") == "0" and "t" in found:
            wait_s = max(wait_s, float(found["t"]) + 1)
    return wait_s


def reason(error: BaseException) -> str:
    """Return the innermost cause of a failed request."""
    for _ in range(10):
        inner = getattr(error, "reason", None)
        if not isinstance(inner, BaseException):
            inner = next((each for each in error.args if isinstance(each, BaseException)), None)
        if inner is None:
            break
        error = inner
    if isinstance(error, http.client.IncompleteRead):
        return "broken off"
    deeper = error.__cause__ or error.__context__
    if isinstance(deeper, OSError) and deeper.strerror:
        error = deeper
    return str(getattr(error, "strerror", None) or error).split("\n")[0]


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file on a server, and its known properties."""

    address: str
    size: int | None = None
    """Bytes."""
    sha256: str = ""
    git_sha1: str = ""
    """Of the git blob: SHA-1 over b"blob SIZE\\0" and the content."""
    magic: bytes = b""
    """First bytes of the file."""
    limit: int = LARGEST
    """Most bytes that are accepted, whatever the announced size."""

    @property
    def identity(self) -> str:
        """A text that differs for different files, as far as can be known."""
        return self.sha256 or self.git_sha1 or self.address


class PartialFile:
    """The received part of a file. Use it in `with`, which locks it."""

    def __init__(self, destination: Path, source: RemoteFile) -> None:
        self._destination, self._source = destination, source
        self.file = destination.with_name(f"{destination.name}.part")
        self._record = destination.with_name(f"{destination.name}.part.json")
        self._etag, self.size = "", 0
        self._hash = hashlib.sha256()

    def __enter__(self) -> Self:
        with model_errors(self.file):
            try:
                self._stream = lock(self.file, mode=0o666)
            except BlockingIOError:
                raise ModelError(
                    f"{self.file}: another process is fetching this file; wait until it is done"
                ) from None
            try:
                self._resume()
            except BaseException:
                self._stream.close()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        if not self.size:
            self.discard()
        self._stream.close()

    def _resume(self) -> None:
        """Go on with what an earlier run left, if it is of the same file."""
        try:
            record = json.loads(self._record.read_bytes())
            identity, etag = str(record["identity"]), str(record["etag"])
        except (OSError, ValueError, KeyError, TypeError):
            identity, etag = "", ""
        left = os.fstat(self._stream.fileno()).st_size
        if identity != self._source.identity or left > (self._source.size or self._source.limit):
            self.restart()
            return
        self._etag = etag
        while block := self._stream.read(1 << 20):
            self._hash.update(block)
        self.size = left

    @property
    def complete(self) -> bool:
        """True if all has arrived; False while the size is unknown."""
        return self.size == self._source.size

    def request_headers(self) -> dict[str, str]:
        """Return headers that request the rest, if the file has not changed."""
        if self.size and not (self._etag or self._source.sha256 or self._source.git_sha1):
            self.restart()
        if not self.size:
            return {}
        wanted = {"Range": f"bytes={self.size}-"}
        return wanted | ({"If-Range": self._etag} if self._etag else {})

    def continued_by(self, headers: Mapping[str, str]) -> bool:
        """Return True if the body of a 206 answer is the rest of this part."""
        etag = read_strong_etag(headers)
        return parse_content_range(headers)[0] == self.size and (
            not etag or not self._etag or etag == self._etag
        )

    def remember(self, headers: Mapping[str, str]) -> None:
        """Record the file of the following bytes. Raises ModelError."""
        self._etag = read_strong_etag(headers) or self._etag
        with model_errors(self._record):
            self._record.write_text(
                json.dumps({"identity": self._source.identity, "etag": self._etag}) + "\n", "utf-8"
            )

    def write(self, block: bytes) -> None:
        """Append. Raises ModelError; if the disk is full, the part is deleted first.

        The transcripts may be on the same disk, and need the space more.
        """
        try:
            rest = memoryview(block)
            while rest:
                rest = rest[self._stream.write(rest) :]
        except OSError as error:
            if error.errno in FULL:
                self.discard()
            with model_errors(self.file):
                raise
        self._hash.update(block)
        self.size += len(block)

    def restart(self) -> None:
        """Forget what has come so far."""
        with model_errors(self.file):
            self._record.unlink(missing_ok=True)
            self._stream.seek(0)
            self._stream.truncate()
        self._hash = hashlib.sha256()
        self._etag, self.size = "", 0

    def discard(self) -> None:
        """Delete the part."""
        self._record.unlink(missing_ok=True)
        self.file.unlink(missing_ok=True)

    def finish(self) -> str:
        """Verify the file, move it to its path and return its SHA-256. Raises ModelError."""
        with model_errors(self.file):
            os.fsync(self._stream.fileno())
            if trouble := self._trouble():
                self.discard()
                raise ModelError(
                    f"{self._destination}: {trouble}; deleted; try again, and if it stays so, "
                    f"{self._source.address} is damaged or changed on its way here"
                )
            self.file.rename(self._destination)
            self._record.unlink(missing_ok=True)
            sync_folder(self._destination.parent)
        return self._hash.hexdigest()

    def _trouble(self) -> str:
        """Return what is wrong with the file; "" if nothing is."""
        source, found = self._source, self._hash.hexdigest()
        if source.size is not None and self.size != source.size:
            return f"expected {source.size} bytes, found {self.size}"
        if source.sha256 and source.sha256 != found:
            return f"expected SHA-256 {source.sha256}, found {found}"
        if source.git_sha1 and source.git_sha1 != (found := git_sha1(self.file)):
            return f"expected git blob {source.git_sha1}, found {found}"
        with self.file.open("rb") as stream:
            begin = stream.read(len(source.magic))
        if begin != source.magic:
            return f"expected a file that begins with {source.magic!r}, found {begin!r}"
        return ""


def git_sha1(file: Path) -> str:
    """Return git's name of a file's content."""
    digest = hashlib.sha1(b"blob %d\0" % file.stat().st_size, usedforsecurity=False)
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: digest).hexdigest()


def require_free_space(folder: Path, needed: int, what: str) -> None:
    """Raise ModelError unless `needed` bytes fit on the disk of `folder`."""
    with model_errors(folder):
        free = shutil.disk_usage(folder).free
    if needed > free:
        raise ModelError(
            f"{folder}: expected {needed / 1e6:.1f} MB of free space for {what}, found "
            f"{free / 1e6:.1f} MB; make room on that disk, or name another folder"
        )
