"""One or two faults for each guarantee, put into the real code: the state machine finds them.

Each function breaks one rule with `patch`, which takes it back afterwards.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime
from typing import Any

import pytest

from appliance import system
from appliance.daemon.mute import Mute
from appliance.daemon.spool import Spool
from appliance.fleet import satellite
from appliance.mqtt import events
from appliance.mqtt.outbox import Outbox
from appliance.store import retention
from appliance.store.store import Store
from appliance.store.tables import StoredTranscript

Patch = pytest.MonkeyPatch


def move_cursor_before_the_acknowledgement(patch: Patch) -> None:
    def save(self: Outbox) -> None:
        self._store.move_cursor(self._sent[1] if self._sent else self._reached)

    patch.setattr(Outbox, "save_cursor", save)


def never_mark_as_late(patch: Patch) -> None:
    plain = events.transcript

    def never(stored: StoredTranscript, node: str, now: datetime, _late: bool) -> object:
        return plain(stored, node, now, False)

    patch.setattr(events, "transcript", never)


def publish_the_newest_first(patch: Patch) -> None:
    sent = set[int]()

    def newest(self: Outbox, _now_s: float) -> StoredTranscript | None:
        due = [one for one in self._store.read_after(self._reached) if one.seq not in sent]
        return due[-1] if due and not self._sent else None

    def acknowledge(self: Outbox, _now_s: float) -> bool:
        assert self._sent
        sent.add(self._sent[1])
        self._sent = None
        return True

    patch.setattr(Outbox, "next_due", newest)
    patch.setattr(Outbox, "mark_acknowledged", acknowledge)


def forget_what_is_refused(patch: Patch) -> None:
    patch.setattr(Outbox, "set_aside", lambda self, _: self.mark_acknowledged(0.0))


def publish_from_a_cache(patch: Patch) -> None:
    read = Store.read_after
    cache: dict[int, StoredTranscript] = {}

    def cached(self: Store, seq: int, limit: int = 100) -> list[StoredTranscript]:
        found = read(self, seq, limit)
        if limit > 100:  # the test's
            return found
        cache.update((one.seq, one) for one in found)
        return sorted((one for one in cache.values() if one.seq > seq), key=lambda one: one.seq)[
            :limit
        ]

    patch.setattr(Store, "read_after", cached)


def do_not_spool(patch: Patch) -> None:
    patch.setattr(Spool, "put", lambda *_: False)


def leave_the_spool_at_the_start(patch: Patch) -> None:
    patch.setattr(Spool, "_recover", lambda *_: None)


def forget_the_deaths(patch: Patch) -> None:
    patch.setattr(Spool, "begin", lambda *_: None)


def retain_by_the_wall_clock(patch: Patch) -> None:
    expire = retention.expire
    patch.setattr(retention, "expire", lambda *values, **_: expire(*values, published=False))


def forget_the_mute(patch: Patch) -> None:
    patch.setattr(Mute, "_save", lambda *_: None)


def do_not_sync_the_folder(patch: Patch) -> None:
    patch.setattr(system, "sync_folder", lambda _: None)


def take_any_answer(patch: Patch) -> None:
    """The satellite takes any answer for that of the window that it waits for."""

    class Answers(OrderedDict[str, Any]):
        def pop(self, _id: str, default: Any = None) -> Any:
            return self.popitem()[1] if self else default

    patch.setattr(satellite, "OrderedDict", Answers)
