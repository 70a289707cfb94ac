"""The log of transcripts: one SQLite file that heals by itself, and its stand-in in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.store import files as files, folders as folders, repair as repair, store as store
    from appliance.store.folders import (
        FILE_NAME as FILE_NAME,
        MemoryFolder as MemoryFolder,
        leave_folder as leave_folder,
        lock_folder as lock_folder,
        log_runtime_folder as log_runtime_folder,
        runtime_folder as runtime_folder,
        store_folder as store_folder,
    )
    from appliance.store.standin import LastingDatabase as LastingDatabase
    from appliance.store.store import (
        SCHEMA as SCHEMA,
        Store as Store,
        behind as behind,
        in_memory as in_memory,
        inspect as inspect,
        open_stand_in as open_stand_in,
        read_newest as read_newest,
        shown as shown,
    )
    from appliance.store.tables import StoredTranscript as StoredTranscript, Wanted as Wanted

__getattr__ = lazily(__name__, __file__)
