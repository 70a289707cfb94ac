"""Read the files of a model: JSON tables of bounded size, checksums, and their errors."""

import errno
import hashlib
import json
import stat
from pathlib import Path
from typing import Any

from appliance.errors import ModelError

JSON_LIMIT = 64_000_000
"""Bytes; the largest one of a Whisper, its tokenizer's, has four million."""


def sha256(file: Path) -> str:
    """Return a file's SHA-256, hexadecimal. Raises OSError."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def unreadable(file: Path, error: OSError) -> ModelError:
    """Return the error for a file that cannot be read."""
    return ModelError(f"{file}: expected a readable file, found: {error.strerror or error}")


def require_regular(file: Path) -> None:
    """Raises OSError for a pipe, a device or a socket: reading it might never end."""
    mode = file.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        found = "a pipe" if stat.S_ISFIFO(mode) else "a device or socket"
        raise OSError(errno.EINVAL, found, str(file))


def read_bounded(file: Path) -> bytes:
    """Return the content of a table of a model. Raises ModelError."""
    try:
        require_regular(file)
        if file.stat().st_size > JSON_LIMIT:
            raise ModelError(f"{file}: expected at most {JSON_LIMIT} bytes of JSON, found more")
        return file.read_bytes()
    except OSError as error:
        raise unreadable(file, error) from error


def read_json(file: Path) -> dict[str, Any]:
    """Return the JSON table in a file. Raises ModelError."""
    content = read_bounded(file)
    try:
        values = json.loads(content)
    except RecursionError:
        raise ModelError(f"{file}: expected JSON, found it nested too deep") from None
    except ValueError as error:
        raise ModelError(f"{file}: expected JSON, found: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{file}: expected a JSON table, found {type(values).__name__}")
    return values
