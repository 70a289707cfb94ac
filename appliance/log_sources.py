"""The log for those who read it: its file, and behind it what the daemon keeps in memory while the
file's disk refuses."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace

from appliance import shelter
from appliance.config import Settings
from appliance.errors import PublishError
from appliance.publish.rows import StoredTranscript
from appliance.publish.search import Wanted
from appliance.publish.store import FILE_NAME, Store

PAGE = 500


@contextmanager
def in_memory(settings: Settings) -> Iterator[Store | None]:
    """What the daemon keeps in memory, None when it keeps nothing there or not for this user."""
    with ExitStack() as opened:
        found = None
        for place in shelter.places(settings):
            with suppress(OSError, PublishError):
                if (place / FILE_NAME).exists():
                    elsewhere = replace(settings.store, path=str(place))
                    found = opened.enter_context(Store.open(elsewhere, read_only=True))
                    break
        yield found


def shown(settings: Settings, wanted: Wanted, limit: int) -> Iterator[StoredTranscript]:
    """The newest `limit` (0: all) of those wanted, the oldest first; few in memory at a time.

    Raises PublishError when there is neither the file nor anything in memory.
    """
    with in_memory(settings) as kept:
        try:
            file = Store.open(settings.store, read_only=True)
        except PublishError as error:
            if kept is None:
                raise
            print(f"roomscribe: {error}; shown is what is kept in memory", file=sys.stderr)
            yield from pages(kept, wanted, limit)
            return
        with closing(file):
            last = file.highest()
            newest = newer(kept, wanted, last, limit) if kept else []
            left = limit - len(newest)
            if left > 0 or not limit:
                yield from pages(file, wanted, left if limit else 0)
            yield from newest


def pages(store: Store, wanted: Wanted, limit: int) -> Iterator[StoredTranscript]:
    """The newest `limit` (0: all) of those wanted, the oldest first; few in memory at a time."""
    after = 0
    if limit:
        newest = store.query(wanted.since, wanted.grep, limit, wanted.until)
        after = newest[0].seq - 1 if newest else 0
    return behind(store, wanted, after)


def behind(store: Store, wanted: Wanted, after: int) -> Iterator[StoredTranscript]:
    """Those wanted behind number `after`, in order."""
    while page := store.matching(wanted, after, PAGE):
        yield from page
        after = page[-1].seq


def newer(store: Store, wanted: Wanted, after: int, limit: int) -> list[StoredTranscript]:
    """The newest `limit` (0: all) of those wanted behind number `after`."""
    found = store.query(wanted.since, wanted.grep, limit or -1, wanted.until)
    return [stored for stored in found if stored.seq > after]
