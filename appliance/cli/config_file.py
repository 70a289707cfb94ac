"""The configuration file: set keys in it and leave its comments, order and mode as they are."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from appliance.system import write_whole


def edited(text: str, changes: Mapping[str, Any]) -> str:
    """Return the TOML `text` with these keys (section.key) set, and everything else as it was.

    A key goes where the file shows it commented out, else to the end of its section.
    """
    import tomlkit

    for name, value in changes.items():
        section, _, key = name.partition(".")
        shown = json.dumps(value, ensure_ascii=False)
        document = tomlkit.parse(text)
        table = document.get(section)
        if table is not None and key in table:
            table[key] = value
            text = tomlkit.dumps(document)
            continue
        body = re.search(rf"(?ms)^\[{section}\][^\n]*\n(.*?)(?=^\s*\[|\Z)", text)
        line = body and re.search(rf"(?m)^#\s?{key}\s*=.*$", body[1])
        if body and line:
            at = body.start(1) + line.start()
            tried = text[:at] + f"{key} = {shown}" + text[body.start(1) + line.end() :]
            if _sets(tried, section, key, value):
                text = tried
                continue
        if table is None:
            document[section] = table = tomlkit.table()
        table[key] = value
        text = tomlkit.dumps(document)
    return text


def _sets(text: str, section: str, key: str, value: Any) -> bool:
    """Return True if `text` is TOML that sets the key to `value`."""
    with suppress(ValueError):
        return bool(tomllib.loads(text).get(section, {}).get(key) == value)
    return False


def replace_whole(file: Path, text: str) -> None:
    """Write the file whole, with the owner and mode that it had. Raises OSError."""
    real = Path(os.path.realpath(file))
    if not real.exists():
        write_whole(real, text, 0o644)
        return
    found = real.stat()
    write_whole(real, text, found.st_mode & 0o7777)
    with suppress(PermissionError):
        os.chown(real, found.st_uid, found.st_gid)
