"""The outbox: its order, its cursor while the store refuses, and what it takes for late."""

import time

import pytest
from rigs.broker import Broker
from rigs.mqtt_client import Subscriber
from rigs.needs import needs_broker
from rigs.publishing import running, transcript
from rigs.stores import connection_of
from rigs.waiting import until

from appliance.config import StoreSettings
from appliance.errors import StoreError
from appliance.mqtt.connection import Delays
from appliance.mqtt.outbox import Outbox
from appliance.store.store import Store


def say(store: Store, *numbers: int) -> None:
    for number in numbers:
        store.append(transcript(str(number)))


def due(outbox: Outbox, limit: int = 20) -> list[str]:
    """Takes what is due, and the broker acknowledges all but the last of `limit`."""
    found: list[str] = []
    while stored := outbox.next_due():
        outbox.mark_sent(stored.seq, stored.seq)
        assert outbox.is_sent(stored.seq) and outbox.next_due() is None
        found.append(stored.transcript.text)
        if len(found) == limit:
            break
        outbox.mark_acknowledged(0.0)
    return found


def test_what_was_sent_and_not_acknowledged_is_due_again(store: Store) -> None:
    say(store, *range(3))
    outbox = Outbox(store, 3600)
    assert due(outbox, 2) == ["0", "1"]
    outbox.rewind()
    outbox.save_cursor()
    assert store.cursor() == 1
    assert due(outbox) == ["1", "2"]
    assert not outbox.is_repeated(2)


def test_without_a_connection_what_is_too_old_is_passed_over(store: Store) -> None:
    say(store, 0, 1)
    outbox = Outbox(store, 0.2)
    time.sleep(0.2)
    say(store, 2)
    outbox.next_due()
    outbox.save_cursor()
    assert (outbox.expired, store.cursor()) == (2, 2)
    assert due(Outbox(store, 3600)) == ["2"]


def test_a_deleted_transcript_leaves_a_gap_that_counts_for_nothing(store: Store) -> None:
    say(store, *range(6))
    connection_of(store).execute("DELETE FROM transcripts WHERE seq IN (2, 3)")
    outbox = Outbox(store, 3600)
    assert due(outbox) == ["0", "3", "4", "5"]


def test_what_was_acknowledged_since_then_or_just_sent_is_repeated_in_order(store: Store) -> None:
    say(store, *range(6))
    outbox = Outbox(store, 3600)
    for seq in (1, 2, 3, 4):
        outbox.mark_sent(seq, seq)
        if seq < 4:
            outbox.mark_acknowledged(float(seq))
    outbox.save_cursor()
    assert store.cursor() == 3
    outbox.resend_since(2.0)
    outbox.save_cursor()
    assert (store.cursor(), outbox.in_flight) == (1, 0)
    assert not outbox.is_sent(4), "what was in flight counts no more"
    assert due(outbox) == ["1", "2", "3", "4", "5"]
    assert [seq for seq in range(1, 7) if outbox.is_repeated(seq)] == [1, 2, 3, 4]
    outbox.save_cursor()
    assert store.cursor() == 6


def test_what_was_acknowledged_shortly_before_a_restart_can_be_repeated(store: Store) -> None:
    say(store, *range(4))
    outbox = Outbox(store, 3600)
    due(outbox, 4)
    outbox.save_cursor()
    connection_of(store).execute("UPDATE transcripts SET boot_s = boot_s - 60 WHERE seq = 1")
    after = Outbox(store, 3600)
    assert due(after, 1) == ["3"]
    after.resend_since(time.monotonic() - 30.0)
    assert due(after) == ["1", "2", "3"]
    assert [seq for seq in range(1, 5) if after.is_repeated(seq)] == [1, 2, 3, 4]


class RefusingStore(Store):
    """A store that can be read and, while it `refuses`, not written."""

    def __init__(self, store: Store) -> None:
        super().__init__(store._database, StoreSettings())
        self.refuses = True

    def move_cursor(self, seq: int, *, back: bool = False) -> None:
        if self.refuses:
            raise StoreError("the disk is full; free some space")
        super().move_cursor(seq, back=back)


def test_a_cursor_that_is_written_later_sends_nothing_again(store: Store) -> None:
    say(store, *range(4))
    refusing = RefusingStore(store)
    outbox = Outbox(refusing, 3600)
    assert due(outbox, 3) == ["0", "1", "2"]
    for _ in range(3):
        with pytest.raises(StoreError):
            outbox.save_cursor()
        assert store.cursor() == 0
    outbox.rewind()
    assert due(outbox, 2) == ["2", "3"]
    refusing.refuses = False
    outbox.save_cursor()
    assert store.cursor() == 3


@needs_broker
@pytest.mark.parametrize(("latency_ms", "late"), [(29_000.0, False), (31_000.0, True)])
def test_speech_that_ended_long_before_publication_is_late(
    store: Store, latency_ms: float, late: bool
) -> None:
    with (
        Broker() as broker,
        Subscriber(broker.port) as subscriber,
        running(broker.settings, store) as publisher,
    ):
        until(lambda: publisher.connection.is_connected)
        store.append(transcript("a", latency_ms=latency_ms))
        publisher.on_change()
        until(subscriber.events)
        assert [event["late"] for event in subscriber.events()] == [late]


@needs_broker
def test_a_store_that_refuses_the_cursor_for_a_while_sends_nothing_twice(store: Store) -> None:
    say(store, *range(30))
    refusing = RefusingStore(store)
    with (
        Broker() as broker,
        Subscriber(broker.port) as subscriber,
        running(broker.settings, refusing, delays=Delays(store_s=0.1)) as publisher,
    ):
        until(lambda: len(subscriber.events()) >= 30)
        until(lambda: "the disk is full" in "".join(publisher.reasons()))
        assert store.depth() == 30
        refusing.refuses = False
        until(lambda: store.depth() == 0)
        until(lambda: not publisher.reasons())
        assert subscriber.texts() == [str(number) for number in range(30)]
