"""What an HTTP answer says: its place, its size, its ETag, and how a failure is to be taken."""

from __future__ import annotations

import http.client
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from appliance.errors import ModelError

REDIRECTS = {301, 302, 303, 307, 308}
PASSING = {408, 425, 429}
"""Answers below 500 that may be another one later."""


class RefusedError(ModelError):
    """An answer that another attempt will not change."""

    def __init__(self, address: str, status: int, code: str) -> None:
        super().__init__(
            f"{address}: expected the file, found answer {status}{f' ({code})' if code else ''}"
        )
        self.status, self.code = status, code


class UnreachableError(ModelError):
    """No answer, or none that helps, after all attempts."""


class PassingError(Exception):
    """Trouble that may pass: what happened, and the pause in seconds that the server asks for."""

    def __init__(self, what: str, wait_s: float = 0.0) -> None:
        super().__init__(what)
        self.wait_s = wait_s


def check(status: int, headers: Mapping[str, str], address: str) -> None:
    """Raises PassingError or RefusedError unless an answer is a good one, or a redirect."""
    if status >= 500 or status in PASSING:
        raise PassingError(f"answer {status}", retry_after(headers.get("Retry-After", "")))
    if status not in {200, 206} and not is_redirect(status, headers):
        raise RefusedError(address, status, headers.get("X-Error-Code", ""))
    if (encoding := headers.get("Content-Encoding", "identity")) != "identity":
        raise ModelError(f"{address}: expected the file as it is, found it encoded as {encoding}")


def is_redirect(status: int, headers: Mapping[str, str]) -> bool:
    """Whether an answer names another place."""
    return status in REDIRECTS and "Location" in headers


def total_size(headers: Mapping[str, str], partial: bool) -> int | None:
    """The whole file's size as an answer announces it."""
    if partial:
        return content_range(headers)[1]
    length = headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None


def strong_etag(headers: Mapping[str, str]) -> str:
    """The ETag that stands for these very bytes; "" without one (RFC 9110, 8.8.3)."""
    etag = headers.get("ETag", "")
    return etag if etag.startswith('"') else ""


def content_range(headers: Mapping[str, str]) -> tuple[int, int | None]:
    """First byte and total size of a partial answer; (-1, None) if it does not say."""
    told_range = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", headers.get("Content-Range", ""))
    if told_range is None:
        return -1, None
    return int(told_range[1]), None if told_range[2] == "*" else int(told_range[2])


def origin(address: str) -> tuple[str, str, int]:
    """Scheme, host and port. Raises ModelError for anything but http and https."""
    try:
        parts = urlsplit(address)
        port = {"http": 80, "https": 443}[parts.scheme]
        port = port if parts.port is None else parts.port
    except (ValueError, KeyError):
        port = 0
    if not port or not parts.hostname:
        raise ModelError(f"{address!r}: expected an address such as https://example.org")
    return parts.scheme, parts.hostname, port


def retry_after(value: str) -> float:
    """Seconds, from a number or a date; 0 when it is neither."""
    if value.strip().isdecimal():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return 0.0


def reason(error: BaseException) -> str:
    """The innermost cause that a failed request names."""
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
