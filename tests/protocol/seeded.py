"""Faults that are put into the real code, to show that the state machine finds each of them.

Each function breaks one rule of the protocol with `patch`, which takes it back afterwards.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from appliance import system
from appliance.config import StoreSettings
from appliance.daemon.backlog import Backlog, Lease
from appliance.daemon.mute import Mute
from appliance.daemon.spool import Spool
from appliance.daemon.transcription import TaskTranscriber
from appliance.errors import StoreError
from appliance.fleet import messages, satellite
from appliance.fleet.satellite import Satellite
from appliance.fleet.worker import FleetWorker
from appliance.mqtt import events
from appliance.mqtt.connection import BrokerConnection
from appliance.mqtt.outbox import Delivery, Outbox
from appliance.mqtt.publisher import HomeAssistantPresence
from appliance.store import retention, tables
from appliance.store.database import Database
from appliance.store.fallback import DatabaseWithFallback
from appliance.store.store import Store
from appliance.store.tables import StoredTranscript

Patch = pytest.MonkeyPatch


def move_cursor_before_the_acknowledgement(patch: Patch) -> None:
    def save(self: Outbox) -> None:
        self._store.move_cursor(self._reached)

    patch.setattr(Outbox, "save_cursor", save)


def count_qos_0_as_acknowledgement(patch: Patch) -> None:
    mark = Outbox.mark_acknowledged

    def counting(self: Outbox, message: int, now_s: float) -> bool:
        if message not in self._in_flight and self._in_flight:
            message = min(self._in_flight)
        return mark(self, message, now_s)

    patch.setattr(Outbox, "mark_acknowledged", counting)


def forget_what_was_in_flight(patch: Patch) -> None:
    def lose(self: Delivery) -> None:
        self._outbox._in_flight.clear()

    patch.setattr(Delivery, "on_lost", lose)


def wait_for_ever_for_an_acknowledgement(patch: Patch) -> None:
    patch.setattr(BrokerConnection, "_find_timeout", lambda *_: "")


def never_mark_as_late(patch: Patch) -> None:
    plain = events.transcript

    def never(stored: StoredTranscript, node: str, now: datetime, _late: bool) -> object:
        return plain(stored, node, now, False)

    patch.setattr(events, "transcript", never)


def start_after_the_newest_row(patch: Patch) -> None:
    begin = Outbox.__init__

    def starting(self: Outbox, store: Store, *given: Any) -> None:
        begin(self, store, *given)
        self._reached = store.highest()

    patch.setattr(Outbox, "__init__", starting)


def publish_the_newest_first(patch: Patch) -> None:
    def page(self: Outbox, limit: int) -> Iterator[StoredTranscript]:
        yield from reversed(self._store.read_after(self._reached, limit - len(self._in_flight)))

    patch.setattr(Outbox, "iter_due", page)


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


def unspool_when_transcribed(patch: Patch) -> None:
    def mark(self: Lease) -> None:
        self._backlog._spool.delete(self.window.id)

    patch.setattr(Lease, "mark_transcribed", mark)


def keep_the_lease_of_a_dead_process(patch: Patch) -> None:
    """The next process takes a window that was begun for one that is still leased."""
    begin = Backlog.__init__

    def keeping(self: Backlog, *given: Any, **more: Any) -> None:
        begin(self, *given, **more)
        for one in [one for one in self._waiting if one.deaths]:
            self._waiting.remove(one)

    patch.setattr(Backlog, "__init__", keeping)


def forget_the_deaths(patch: Patch) -> None:
    patch.setattr(Spool, "begin", lambda *_: None)


def count_the_deaths_of_the_innocent(patch: Patch) -> None:
    patch.setattr(Spool, "mark_survived", lambda *_: None)


def leave_a_withdrawn_speculation(patch: Patch) -> None:
    def withdraw(self: Backlog, unless_id: str = "") -> None:
        task = self._speculation
        if task and task.window.id != unless_id:
            self._speculation, task.wanted = None, False

    patch.setattr(Backlog, "withdraw_speculation", withdraw)


def end_the_lease_before_the_commit(patch: Patch) -> None:
    flush = TaskTranscriber.flush

    def early(self: TaskTranscriber) -> int:
        for lease, _ in self._waiting:
            if lease:
                lease.finish()
        return flush(self)

    patch.setattr(TaskTranscriber, "flush", early)


def store_the_newest_first(patch: Patch) -> None:
    flush = TaskTranscriber.flush

    def backwards(self: TaskTranscriber) -> int:
        self._waiting.reverse()
        return flush(self)

    patch.setattr(TaskTranscriber, "flush", backwards)


def retain_by_the_wall_clock(patch: Patch) -> None:
    def expire(connection: Any, settings: StoreSettings, now: Any) -> retention.Expired:
        earliest = now.timestamp() - settings.retention_days * retention.DAY_S
        count = tables.forget(connection, "CAST(strftime('%s', \"end\") AS REAL) < ?", (earliest,))
        return retention.Expired(count, False)

    patch.setattr(retention, "expire", expire)


def drop_the_fallback(patch: Patch) -> None:
    def drop(self: DatabaseWithFallback, fallback: Database, _real: Database) -> None:
        from appliance.store import files

        fallback.close()
        files.delete(self._fallback_path)
        self._leave_folder()

    patch.setattr(DatabaseWithFallback, "_merge_back", drop)


def ignore_that_the_store_refuses(patch: Patch) -> None:
    append = Store.append

    def pretending(self: Store, transcript: Any) -> Any:
        with suppress(StoreError):
            return append(self, transcript)
        return StoredTranscript(self.highest() + 1, transcript, transcript.end, "", 0.0)

    patch.setattr(Store, "append", pretending)


def forget_the_mute(patch: Patch) -> None:
    patch.setattr(Mute, "_save", lambda *_: None)


def do_not_sync_the_folder(patch: Patch) -> None:
    patch.setattr(system, "sync_folder", lambda _: None)


def empty_the_spool_at_a_stop(patch: Patch) -> None:
    close = Backlog.close

    def closing(self: Backlog) -> None:
        for kept in self._spool.windows():
            self._spool.delete(kept.id)
        close(self)

    patch.setattr(Backlog, "close", closing)


def count_nobody_as_subscriber(patch: Patch) -> None:
    patch.setattr(
        Outbox, "mark_unsubscribed", lambda self, number: not self.mark_acknowledged(number, 0.0)
    )


def repeat_unmarked_after_nobody(patch: Patch) -> None:
    def forgetful(self: Outbox, message: int) -> bool:
        if message not in self._in_flight:
            return False
        self.rewind()
        return True

    patch.setattr(Outbox, "mark_unsubscribed", forgetful)


def publish_under_a_new_id(patch: Patch) -> None:
    plain, published = events.transcript, set[str]()

    def renamed(stored: StoredTranscript, *given: Any) -> dict[str, Any]:
        event = plain(stored, *given)
        again = stored.transcript.id in published
        published.add(stored.transcript.id)
        return event | {"id": f"{event['id']}-again"} if again else event

    patch.setattr(events, "transcript", renamed)


def take_any_answer(patch: Patch) -> None:
    """The satellite takes an answer for that of the window that it waits for."""
    read = messages.read_answer

    def waited_for(data: bytes, ratio: Any) -> Any:
        found = read(data, ratio)
        frame = sys._getframe(1).f_locals["self"]
        return replace(found, id=next(iter(frame._awaited), found.id))

    patch.setattr(satellite, "read_answer", waited_for)


def confirm_before_answering(patch: Patch) -> None:
    answer = FleetWorker._answer

    async def early(self: FleetWorker, message: Any) -> Any:
        await message.ack()
        return await answer(self, message)

    patch.setattr(FleetWorker, "_answer", early)


def never_send_again(patch: Patch) -> None:
    patch.setattr(satellite.Attempt, "is_queued", lambda self, _: self.number > 0)


def send_while_muted(patch: Patch) -> None:
    send = Satellite._send

    async def sending(self: Satellite, *given: Any) -> bool:
        self.muted = lambda: False
        return await send(self, *given)

    patch.setattr(Satellite, "_send", sending)


def forget_what_home_assistant_had_not_read(patch: Patch) -> None:
    patch.setattr(HomeAssistantPresence, "pop_unheard_s", lambda *_: None)


HOME_FAULTS: tuple[Callable[[Patch], None], ...] = (forget_what_home_assistant_had_not_read,)
FLEET_FAULTS: tuple[Callable[[Patch], None], ...] = (
    take_any_answer,
    confirm_before_answering,
    never_send_again,
    send_while_muted,
)
FAULTS: tuple[Callable[[Patch], None], ...] = (
    move_cursor_before_the_acknowledgement,
    count_qos_0_as_acknowledgement,
    forget_what_was_in_flight,
    wait_for_ever_for_an_acknowledgement,
    never_mark_as_late,
    start_after_the_newest_row,
    publish_the_newest_first,
    publish_from_a_cache,
    do_not_spool,
    leave_the_spool_at_the_start,
    unspool_when_transcribed,
    keep_the_lease_of_a_dead_process,
    forget_the_deaths,
    count_the_deaths_of_the_innocent,
    leave_a_withdrawn_speculation,
    end_the_lease_before_the_commit,
    store_the_newest_first,
    retain_by_the_wall_clock,
    drop_the_fallback,
    ignore_that_the_store_refuses,
    forget_the_mute,
    do_not_sync_the_folder,
    empty_the_spool_at_a_stop,
    count_nobody_as_subscriber,
    repeat_unmarked_after_nobody,
    publish_under_a_new_id,
)
