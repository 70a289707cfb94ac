"""Read the texts of a folder's recordings: a tab-separated list with column names."""

import csv
from pathlib import Path
from typing import Any, NamedTuple

from appliance.errors import ConfigError
from appliance.system import one_line

LISTS = ("MANIFEST.tsv", "transcripts.tsv")
SHIPPED = Path(__file__).resolve().parent / "speech"
"""Sentences of synthetic voices that come with the package."""
FILE_COLUMNS, TEXT_COLUMNS = ("file", "path"), ("text", "transcript")


class Listed(NamedTuple):
    """What a list says of a recording."""

    text: str
    speaker: str
    """ "" if it does not say."""


def read_list(folder: Path) -> dict[str, Listed] | None:
    """Recordings by the names of their files in the folder, those without a text left out.

    None where there is no list. Raises ConfigError for one without the columns.
    """
    listed = next((folder / name for name in LISTS if (folder / name).is_file()), None)
    if listed is None:
        return None
    found = {}
    for row in read_rows(listed):
        file = next((name for name in FILE_COLUMNS if name in row), None)
        text = next((name for name in TEXT_COLUMNS if name in row), None)
        if file is None or text is None:
            raise ConfigError(
                f"{listed}: expected the columns file and text, found {', '.join(map(str, row))}"
            )
        if row[text]:
            found[row[file]] = Listed(row[text], row.get("speaker") or "")
    return found


def read_rows(file: Path) -> list[dict[str, str]]:
    """The rows of a list by the names of their columns. A backslash takes the sign behind it as it
    is; quotation marks are signs like others. Raises ConfigError."""
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            form: Any = {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "escapechar": "\\"}
            return list(csv.DictReader(stream, **form))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = getattr(error, "strerror", None) or one_line(error)
        raise ConfigError(f"{file}: cannot be read: {why}. Write it as UTF-8.") from error
