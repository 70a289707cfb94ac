"""What is said in a folder's recordings: a list with a line of column names, separated by tabs."""

from __future__ import annotations

import csv
from pathlib import Path

from appliance.errors import ConfigError

LISTS = ("MANIFEST.tsv", "transcripts.tsv")
FILE_COLUMNS, TEXT_COLUMNS = ("file", "path"), ("text", "transcript")


def listed_texts(folder: Path) -> dict[str, str] | None:
    """Texts by the names of their files in the folder, those without a text left out.

    None where there is no list. Raises ConfigError for one without the columns.
    """
    found = next((folder / name for name in LISTS if (folder / name).is_file()), None)
    if found is None:
        return None
    with found.open(encoding="utf-8", newline="") as stream:
        rows = csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE, escapechar="\\")
        columns = rows.fieldnames or ()
        file = next((name for name in FILE_COLUMNS if name in columns), None)
        text = next((name for name in TEXT_COLUMNS if name in columns), None)
        if file is None or text is None:
            raise ConfigError(
                f"{found}: expected the columns file and text, found {', '.join(columns)}"
            )
        return {row[file]: row[text] for row in rows if row[text]}
