"""The log of transcripts: one SQLite file that heals by itself, and its fallback in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.store.folders import (
        FILE_NAME,
        MemoryFolder,
        lost_at_boot,
        remove_empty,
        runtime_folder,
        runtime_folders,
    )
    from appliance.store.store import Deleted, Store, open_fallback, read_newest
    from appliance.store.tables import StoredTranscript, Wanted

__getattr__ = lazily(__name__, __file__)
