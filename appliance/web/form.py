"""Reads a multipart form that lies in memory, without a copy of its file (RFC 7578)."""

import mmap
import os
from email.message import Message
from email.parser import BytesHeaderParser

HEAD_BYTES = 4096
"""Longest head of a part."""
PARTS_AT_MOST, FIELD_BYTES = 100, 64 << 10
"""Most parts, and the longest text of a field: their work must not hold up other requests."""


class ApiError(Exception):
    """A refused request: the HTTP status, the field that is wrong, and a code for programs."""

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


def read_form(descriptor: int, content_type: str) -> dict[str, list[str]]:
    """Return the texts of a form by their fields, without the `[]` of a list; the memory behind
    `descriptor` then holds the bytes of its field `file` alone. Raises ApiError."""
    described = Message()
    described["Content-Type"] = content_type
    boundary = described.get_boundary()
    if described.get_content_type() != "multipart/form-data" or not boundary:
        raise ApiError(415, "Expected multipart/form-data.")
    fields: dict[str, list[str]] = {}
    found = b""
    begin = size = 0
    if os.fstat(descriptor).st_size:
        with mmap.mmap(descriptor, 0) as body:
            for name, start, end in _parts(body, b"--" + boundary.encode()):
                if name == "file":
                    begin, size, found = start, end - start, b"file"
                elif end - start > FIELD_BYTES:
                    message = f"Expected at most {FIELD_BYTES >> 10} kB in a field, found more."
                    raise ApiError(413, message, name)
                else:
                    text = body[start:end].decode("utf-8", "replace")
                    fields.setdefault(name.removesuffix("[]"), []).append(text)
            body.move(0, begin, size)
    if not found:
        raise ApiError(400, "Expected a sound file in the field `file`.", "file")
    os.truncate(descriptor, size)
    return fields


def _parts(body: mmap.mmap, delimiter: bytes) -> list[tuple[str, int, int]]:
    """Return the name of each part, and where its content begins and ends. Raises ApiError."""
    found = []
    at = body.find(delimiter)
    while body[at + len(delimiter) : at + len(delimiter) + 2] != b"--":
        head = at + len(delimiter) + 2
        start = body.find(b"\r\n\r\n", head, head + HEAD_BYTES) + 4
        end = body.find(b"\r\n" + delimiter, start)
        if at < 0 or start < 4 or end < 0:
            raise ApiError(400, "The form cannot be read.")
        parsed = BytesHeaderParser().parsebytes(body[head:start])
        name = parsed.get_param("name", header="content-disposition")
        found.append((str(name), start, end))
        if len(found) > PARTS_AT_MOST:
            raise ApiError(400, f"Expected at most {PARTS_AT_MOST} parts in the form, found more.")
        at = end + 2
    return found
