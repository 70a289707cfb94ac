"""bundle.json, read strictly: every value has its type and range, every mistake names its key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from appliance.errors import ModelError

SCHEMA = 2
"""Version of the bundle format that this program reads."""


class Manifest:
    """One table of bundle.json; `key` is where it stands ("" at the top, "tokens.")."""

    def __init__(self, file: Path, values: dict[str, Any], cure: str, key: str = "") -> None:
        self._file, self._values, self._cure, self._key = file, values, cure, key

    @classmethod
    def read(cls, file: Path, cure: str) -> Manifest:
        """The manifest in `file`. Raises ModelError when it is not a JSON table of this SCHEMA."""
        try:
            values = json.loads(file.read_bytes())
        except OSError as error:
            raise ModelError(
                f"{file}: expected a readable file, found: {error.strerror}; {cure}"
            ) from error
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{file}: expected JSON, found: {error}; {cure}") from error
        if not isinstance(values, dict):
            raise ModelError(
                f"{file}: expected a JSON table, found {type(values).__name__}; {cure}"
            )
        manifest = cls(file, values, cure)
        if values.get("schema") != SCHEMA:
            raise manifest.fault("schema", str(SCHEMA), repr(values.get("schema", "nothing")))
        return manifest

    def fault(self, key: str, expected: str, found: object) -> ModelError:
        """The error to raise for a wrong value."""
        where = f"{self._file}: {_shown(f'{self._key}{key}')}"
        return ModelError(f"{where}: expected {expected}, found {_shown(found)}; {self._cure}")

    def keys(self) -> list[str]:
        """Names in this table."""
        return list(self._values)

    def text(self, key: str) -> str:
        """A string."""
        value = self._value(key, "a text")
        if not isinstance(value, str):
            raise self.fault(key, "a text", repr(value))
        return value

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        """One of a few strings."""
        value = self._value(key, f"one of {', '.join(choices)}")
        if value not in choices:
            raise self.fault(key, f"one of {', '.join(choices)}", repr(value))
        return str(value)

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self._value(key, "true or false")
        if not isinstance(value, bool):
            raise self.fault(key, "true or false", repr(value))
        return value

    def whole(self, key: str, low: int, high: int | None = None) -> int:
        """A whole number of at least `low` and, if given, at most `high`."""
        limits = f"a whole number from {low}" + ("" if high is None else f" to {high}")
        value = self._value(key, limits)
        if not _is_whole(value, low, high):
            raise self.fault(key, limits, repr(value))
        return int(value)

    def whole_or_none(self, key: str, low: int, high: int) -> int | None:
        """A whole number, or None where the table says null."""
        return (
            None
            if self._value(key, "a whole number or null") is None
            else self.whole(key, low, high)
        )

    def number(self, key: str, low: float, high: float) -> float:
        """A number from `low` to `high`."""
        limits = f"a number from {low:g} to {high:g}"
        value = self._value(key, limits)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not low <= value <= high
        ):
            raise self.fault(key, limits, repr(value))
        return float(value)

    def ids(self, key: str, below: int) -> tuple[int, ...]:
        """A list of token ids, each less than `below`."""
        limits = f"a list of token ids less than {below}"
        values = self._value(key, limits)
        if not isinstance(values, list):
            raise self.fault(key, limits, repr(values))
        for value in values:
            if not _is_whole(value, 0, below - 1):
                raise self.fault(key, limits, repr(value))
        return tuple(values)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings, at least one."""
        values = self._value(key, "a list of texts")
        if (
            not values
            or not isinstance(values, list)
            or not all(isinstance(v, str) for v in values)
        ):
            raise self.fault(key, "a list of texts", repr(values))
        return tuple(values)

    def table(self, key: str) -> Manifest:
        """The table inside."""
        value = self._value(key, "a table")
        if not isinstance(value, dict):
            raise self.fault(key, "a table", repr(value))
        return Manifest(self._file, value, self._cure, f"{self._key}{key}.")

    def _value(self, key: str, expected: str) -> Any:
        if key not in self._values:
            raise self.fault(key, expected, "nothing")
        return self._values[key]


def _shown(found: object) -> str:
    """`found` on one line, cut short."""
    text = str(found) if str(found).isprintable() else repr(found)
    return text if len(text) <= 80 else text[:77] + "..."


def _is_whole(value: object, low: int, high: int | None) -> bool:
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return low <= value and (high is None or value <= high)
