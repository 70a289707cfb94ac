"""The published weights of Whisper tiny.en, where this machine has them.

scripts/setup.sh keeps them in the user's cache; $ROOMSCRIBE_MODEL_SOURCES may name their folder.
"""

import os
from pathlib import Path

from appliance.convert.ctranslate2 import MODEL_FILE

BYTES = 75_537_502
"""Of model.bin."""


def find_weights() -> Path | None:
    """Return the folder of CTranslate2's with the weights; None if there is none."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folders = list((cache / "roomscribe" / "weights").glob("*"))
    for named in filter(None, os.environ.get("ROOMSCRIBE_MODEL_SOURCES", "").split(os.pathsep)):
        folders += [Path(named) / "tiny.en", Path(named)]
    return next((folder for folder in folders if _is_whole(folder)), None)


def _is_whole(folder: Path) -> bool:
    file = folder / MODEL_FILE
    return file.is_file() and file.stat().st_size == BYTES
