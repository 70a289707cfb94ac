"""The log of transcripts: one SQLite file that heals by itself, and its fallback in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.store.folders import (
        MemoryFolder as MemoryFolder,
        remove_empty as remove_empty,
        runtime_folder as runtime_folder,
        runtime_folders as runtime_folders,
    )
    from appliance.store.repair import set_aside_files as set_aside_files
    from appliance.store.store import (
        Store as Store,
        delete_set_aside_files as delete_set_aside_files,
        inspect as inspect,
        open_fallback as open_fallback,
        read_newest as read_newest,
    )
    from appliance.store.tables import StoredTranscript as StoredTranscript, Wanted as Wanted

__getattr__ = lazily(__name__, __file__)
