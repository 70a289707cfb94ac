"""Measurements of a fit that is under way: a file of numbers, so that the next one continues.

The file lies in the bundle's folder, only its owner can read it, and it has neither sound nor text.
Its first line identifies what is measured; a file of anything else is started again.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from appliance.errors import ModelError
from appliance.model import library
from appliance.system import lock

FILE = ".fit"


class Measurements:
    """The results so far, by their keys. One thread; one process at a time has the file."""

    def __init__(self, folder: Path, identity: object) -> None:
        """`identity`: what the results depend on, as JSON. Raises ModelError."""
        self._path = folder / FILE
        with library.model_errors(folder):
            try:
                self._file: io.FileIO = lock(self._path)
            except BlockingIOError:
                raise ModelError(
                    f"{folder}: another `roomscribe model fit` is working on this model; wait "
                    "until it is done"
                ) from None
        try:
            self._found = self._read(json.dumps(identity))
        except BaseException:
            self._file.close()
            raise

    def _read(self, identity: str) -> dict[str, Any]:
        first, *lines = self._file.readall().decode(errors="replace").split("\n")
        found: dict[str, Any] = {}
        if first != identity:
            self._file.seek(0)
            self._file.truncate()
            self._file.write(f"{identity}\n".encode())
            return found
        for line in lines:
            with suppress(ValueError, TypeError):  # the last one may be incomplete
                key, value = json.loads(line)
                found[key] = value
        if lines[-1]:
            self._file.write(b"\n")
        return found

    def __contains__(self, key: str) -> bool:
        return key in self._found

    def take(self, key: str, measure: Callable[[], Any]) -> Any:
        """Return the value of a key, measured now unless it is known. Raises ModelError."""
        if key not in self._found:
            self._found[key] = json.loads(json.dumps(measure()))
            with library.model_errors(self._path):
                self._file.write(f"{json.dumps([key, self._found[key]])}\n".encode())
        return self._found[key]

    def discard(self) -> None:
        """Delete the file: the fit is done."""
        with suppress(OSError):
            self._path.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if os.fstat(self._file.fileno()).st_size == 0:
            self.discard()
        self._file.close()
