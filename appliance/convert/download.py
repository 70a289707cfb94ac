"""Download files over HTTP(S): redirects, retries, resumed downloads; each file is verified.

A terminal shows a progress bar; elsewhere a line is written now and then.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO, TypeVar
from urllib.parse import urljoin, urlsplit

import requests
from tqdm import tqdm

from appliance import __version__
from appliance.convert.partial_file import (
    PartialFile,
    RemoteFile,
    RetryableError,
    UnreachableError,
    check,
    is_redirect,
    origin,
    read_total_size,
    reason,
    require_free_space,
)
from appliance.errors import ModelError

WORTH_A_LINE = 10_000_000
"""Bytes; smaller files are not reported without a terminal."""
MOST_REDIRECTS = 10
"""In a row."""
BLOCK = 1 << 14
"""Bytes read at once; an incomplete block is lost."""

T = TypeVar("T")


class ProgressDisplay(Protocol):
    """Shows one download after the other, in bytes."""

    def begin(self, name: str, done: int, total: int | None) -> None:
        """Start showing a download of `name` after `done` bytes; again after each break."""

    def advance(self, count: int) -> None:
        """Show that `count` more bytes have arrived."""

    def end(self) -> None:
        """Stop showing the download, complete or not."""

    def note(self, line: str) -> None:
        """Show a line."""


class Bar:
    """A moving bar on a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar: tqdm | None = None

    def begin(self, name: str, done: int, total: int | None) -> None:
        """Draw the bar of a file, or move it to `done`."""
        self.end()
        # tqdm would otherwise start a thread that redraws bars which stand still
        tqdm.monitor_interval = 0
        self._bar = tqdm(
            desc=name, initial=done, total=total, unit="B", unit_scale=True, file=self._stream
        )

    def advance(self, count: int) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(count)

    def end(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def note(self, line: str) -> None:
        """Write a line above the bar."""
        tqdm.write(line, file=self._stream)


class Lines:
    """A line when a large file begins and at each tenth of it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._name = ""
        self._done, self._total, self._reported = 0, 0, 0

    def begin(self, name: str, done: int, total: int | None) -> None:
        """Write the name and size of a large file."""
        self._name, self._done, self._total = name, done, total or 0
        self._reported = done
        if self._total >= WORTH_A_LINE:
            after = f", from {done / 1e6:.1f} MB on" if done else ""
            self.note(f"{name}: {self._total / 1e6:.1f} MB{after}")

    def advance(self, count: int) -> None:
        """Write a line for each tenth, or each 100 MB of a file of unknown length."""
        self._done += count
        step = self._total // 10 or 100_000_000
        if self._total and self._total < WORTH_A_LINE:
            return
        if self._done - self._reported >= step:
            self._reported = self._done
            share = f" ({self._done / self._total:.0%})" if self._total else ""
            self.note(f"{self._name}: {self._done / 1e6:.1f} MB{share}")

    def end(self) -> None:
        """Do nothing."""

    def note(self, line: str) -> None:
        """Write the line."""
        print(line, file=self._stream, flush=True)


def open_progress_display(stream: TextIO | None = None) -> ProgressDisplay:
    """Return a bar if `stream` (standard error) is a terminal with a size, else lines."""
    stream = stream or sys.stderr
    return Bar(stream) if stream.isatty() and _has_size(stream) else Lines(stream)


def _has_size(terminal: TextIO) -> bool:
    """Return False for a serial line or a container with 0 columns or rows."""
    return os.environ.get("COLUMNS") != "0" and 0 not in os.get_terminal_size(terminal.fileno())


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Timeouts, and pauses between attempts."""

    connect_s: float = 10.0
    read_s: float = 30.0
    """Longest pause within an answer."""
    pauses_s: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0)
    """Between attempts; they start again if a download has made progress."""
    longest_s: float = 310.0
    """Longest pause that a server may request (Retry-After, RateLimit). Hugging Face's hub counts
    requests in windows of 5 minutes."""
    sleep: Callable[[float], None] = time.sleep


class Downloader:
    """Fetches files from `home` (scheme and host), and from its redirects.

    Only home gets the token. Proxies and certificates are those of the environment
    (HTTPS_PROXY, NO_PROXY, REQUESTS_CA_BUNDLE); ~/.netrc is ignored.
    """

    def __init__(
        self,
        home: str,
        token: str = "",
        policy: RetryPolicy | None = None,
        progress: ProgressDisplay | None = None,
    ) -> None:
        self._home, self._token = origin(home), token
        self._policy = policy or RetryPolicy()
        self._progress = progress or open_progress_display()
        self._session = requests.Session()
        self._session.auth = lambda request: request
        self._session.headers.update(
            {"User-Agent": f"roomscribe/{__version__}", "Accept-Encoding": "identity"}
        )

    def read_headers(
        self, address: str, enough: Callable[[Mapping[str, str]], bool], attempts: int
    ) -> dict[str, str]:
        """Return the headers of a HEAD answer, names in lower case. Raises what `fetch` raises.

        A redirect is followed unless its headers are `enough`: a hub describes a file when it
        redirects to its content. The redirect's own ETag and length are left out.
        """

        def attempt() -> dict[str, str]:
            with self._send("HEAD", address, {}, enough) as answer:
                check(answer.status_code, answer.headers, address)
                headers = {name.lower(): value for name, value in answer.headers.items()}
                if answer.status_code != 200:
                    headers.pop("content-length", None)
                    headers.pop("etag", None)
                return headers

        return self._retry(address, attempt, attempts=attempts)

    def read(self, address: str, limit: int) -> bytes:
        """Return the first `limit` bytes of a small file. Raises what `fetch` raises."""

        def attempt() -> bytes:
            with self._send("GET", address, {}) as answer:
                check(answer.status_code, answer.headers, address)
                content = b""
                for block in _blocks(answer):
                    content += block
                    if len(content) >= limit:
                        break
                return content[:limit]

        return self._retry(address, attempt)

    def fetch(self, source: RemoteFile, destination: Path) -> str:
        """Download a file, resuming an earlier attempt, and return its SHA-256.

        Raises DownloadRefusedError, UnreachableError, and ModelError for a damaged file or a full
        disk.
        """
        with PartialFile(destination, source) as part:
            try:
                self._retry(
                    source.address,
                    lambda: self._receive(source, part, destination.name),
                    lambda: part.size,
                )
            finally:
                self._progress.end()
            return part.finish()

    def _receive(self, source: RemoteFile, part: PartialFile, name: str) -> None:
        """Try once to receive the missing rest of a part."""
        if part.complete:
            return
        with self._send("GET", source.address, part.request_headers()) as answer:
            total = _begin(answer, source, part)
            require_free_space(part.file.parent, (total or 0) - part.size, name)
            part.remember(answer.headers)
            self._progress.begin(name, part.size, total)
            most = source.limit if total is None else total
            for block in _blocks(answer):
                if part.size + len(block) > most:
                    part.discard()
                    raise ModelError(f"{source.address}: expected at most {most} bytes, found more")
                part.write(block)
                self._progress.advance(len(block))
            if total is not None and part.size < total:
                raise RetryableError("broken off")

    def _retry(
        self,
        address: str,
        attempt: Callable[[], T],
        reached: Callable[[], int] = int,
        attempts: int | None = None,
    ) -> T:
        """Return what `attempt` returns; retry after errors that may pass, with growing pauses."""
        pauses = self._policy.pauses_s[: None if attempts is None else attempts - 1]
        failed, furthest = 0, reached()
        while True:
            try:
                return attempt()
            except RetryableError as trouble:
                if reached() > furthest:
                    failed, furthest = 0, reached()
                failed += 1
                what = f"{trouble} at {furthest} bytes" if furthest else str(trouble)
                if trouble.wait_s > self._policy.longest_s:
                    raise UnreachableError(
                        f"{address}: {what}, and not before {trouble.wait_s:.0f} s"
                    ) from None
                if failed > len(pauses):
                    raise UnreachableError(f"{address}: {what}, {failed} times") from None
                pause = max(pauses[failed - 1], trouble.wait_s)
                file, host = address.rsplit("/", 1)[-1], origin(address)[1]
                self._progress.note(f"{file} from {host}: {what}; again in {pause:g} s")
                self._policy.sleep(pause)

    @contextmanager
    def _send(
        self,
        method: str,
        address: str,
        headers: dict[str, str],
        enough: Callable[[Mapping[str, str]], bool] = lambda _: False,
    ) -> Iterator[Any]:
        """Yield the answer after all redirects. Raises RetryableError, ModelError."""
        for _ in range(MOST_REDIRECTS):
            with self._request(method, address, headers) as answer:
                if not is_redirect(answer.status_code, answer.headers) or enough(answer.headers):
                    yield answer
                    return
                target = urljoin(address, answer.headers["Location"])
            if urlsplit(address).scheme == "https" and urlsplit(target).scheme != "https":
                raise ModelError(f"{address}: expected encrypted redirects, found one to {target}")
            address = target
        raise ModelError(f"{address}: expected at most {MOST_REDIRECTS} redirects in a row")

    def _request(self, method: str, address: str, headers: dict[str, str]) -> Any:
        """Return the answer to one request, with its body unread."""
        if self._token and origin(address) == self._home:
            headers = headers | {"Authorization": f"Bearer {self._token}"}
        try:
            return self._session.request(
                method,
                address,
                headers=headers,
                stream=True,
                allow_redirects=False,
                timeout=(self._policy.connect_s, self._policy.read_s),
            )
        except (requests.ConnectionError, requests.Timeout) as error:
            cause = reason(error)
            if "CERTIFICATE_VERIFY_FAILED" in cause:
                raise UnreachableError(
                    f"{address}: its certificate is not accepted: {cause}; check the clock of "
                    "this machine, and set REQUESTS_CA_BUNDLE for certificates of your own"
                ) from None
            raise RetryableError(cause) from error
        except (requests.RequestException, ValueError) as error:
            raise ModelError(f"{address}: expected an address to fetch from: {error}") from error


def _begin(answer: Any, source: RemoteFile, part: PartialFile) -> int | None:
    """Return the size that an answer announces; prepare the part for its body.

    Raises RetryableError, DownloadRefusedError, and ModelError for a size that cannot be right.
    """
    if answer.status_code == 416:
        part.restart()
        raise RetryableError("the server has no more of it than came before; from the start")
    check(answer.status_code, answer.headers, source.address)
    partial = answer.status_code == 206
    total = read_total_size(answer.headers, partial)
    if total is not None and source.size not in (None, total):
        raise ModelError(f"{source.address}: expected {source.size} bytes, found {total} announced")
    if (total or 0) > source.limit:
        raise ModelError(f"{source.address}: expected at most {source.limit} bytes, found {total}")
    if partial and not part.continued_by(answer.headers):
        part.restart()
        raise RetryableError("the server sent another part than asked for; from the start")
    if not partial and part.size:
        part.restart()
    return source.size if total is None else total


def _blocks(answer: Any) -> Iterator[bytes]:
    """Yield the blocks of the body. Raises RetryableError."""
    try:
        yield from answer.iter_content(BLOCK)
    except requests.RequestException as error:
        raise RetryableError(reason(error)) from error
