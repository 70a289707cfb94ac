"""Files of expected sentences."""

import json
from pathlib import Path

from appliance.infer.sentences import WordNetwork, read_phrases


def written(folder: Path, text: str) -> Path:
    """Return a file with the text."""
    file = folder / "phrases.toml"
    file.write_text(text, encoding="utf-8")
    return file


def network(folder: Path, *templates: str, slots: str = "") -> WordNetwork:
    """Return the network of sentences that are all called `all`."""
    table = f"{slots}\n[phrases]\nall = {json.dumps(templates)}\n"
    return read_phrases(written(folder, table))
