"""What was heard in memory meets the file again: nothing is forgotten, and nothing comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_folder import memory, needs_memory
from publishing import transcript
from stand_in_house import House, deliver, house, impatient, refuses, tell

from appliance.mqtt.outbox import Outbox
from appliance.store import files, standin
from appliance.store.folders import FILE_NAME
from appliance.store.store import Store
from appliance.store.tables import Wanted

__all__ = ["house", "impatient", "memory"]
pytestmark = needs_memory


def test_what_could_not_be_read_of_the_file_is_told_after_the_merge(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    with house.log() as (store, _):
        for text in ("one", "two", "three"):
            store.append(transcript(text))
        assert store.cursor() == 0
        store.move_cursor(1)
    house.read_only()
    with monkeypatch.context() as patch:
        patch.setattr(files, "copy", lambda *_: refuses(Path()))
        with house.log() as (store, _):
            assert store.append(transcript("four")).seq > 1_700_000_000
            assert deliver(store) == ["four"]
    house.read_only(False)
    with house.log() as (store, _):
        assert deliver(store) == ["two", "three"]
        assert deliver(store) == []
    assert set(house.numbers()) == {"one", "two", "three", "four"}


def test_more_than_is_taken_over_is_told_after_the_merge_under_a_running_publisher(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standin, "TAKEN", 2)
    with house.log() as (store, _):
        for text in ("one", "two", "three", "four"):
            store.append(transcript(text))
    house.read_only()
    with house.log() as (store, lasting):
        outbox = Outbox(store, 1e9)
        sent = []
        for stored in outbox.due(10):
            sent.append(stored.transcript.text)
            outbox.sent(len(sent), stored.seq)
        house.read_only(False)
        lasting.look_after()
        assert sent == ["three", "four"]
        assert outbox.acknowledged(1)
        assert outbox.acknowledged(2)
        outbox.commit()
        for stored in outbox.due(10):
            sent.append(stored.transcript.text)
            outbox.sent(len(sent), stored.seq)
        assert sent == ["three", "four", "one", "two"]


def test_what_somebody_deleted_meanwhile_does_not_come_back(house: House) -> None:
    with house.log() as (store, _):
        store.append(transcript("one"))
        store.append(transcript("two"))
        deliver(store)
    house.read_only()
    with house.log() as (store, lasting):
        store.append(transcript("three"))
        house.read_only(False)
        with Store.open(house.settings, beside_daemon=True) as guest:
            guest.delete(Wanted(None, None, ()))
        lasting.look_after()
    assert house.numbers() == {"three": 3}


def test_a_new_card_gets_what_no_broker_has(house: House) -> None:
    with house.log() as (store, _):
        store.append(transcript("one"))
        deliver(store)
        store.append(transcript("two"))
    house.read_only()
    with house.log() as (store, lasting):
        store.append(transcript("three"))
        house.read_only(False)
        for file in (house.disk / "state").iterdir():
            file.unlink()
        lasting.look_after()
        assert deliver(store) == ["two", "three"]
    assert house.numbers() == {"two": 2, "three": 3}


@pytest.mark.parametrize("meanwhile", [[], ["four"]])
def test_a_log_that_could_not_be_read_is_told_once_when_it_is_back(
    house: House, meanwhile: list[str]
) -> None:
    with house.log() as (store, _):
        for text in ("one", "two", "three"):
            store.append(transcript(text))
        store.move_cursor(2)
    file = house.disk / "state" / FILE_NAME
    hidden = file.rename(file.with_name("hidden"))
    house.read_only()
    with house.log() as (store, lasting):
        publisher = Outbox(store, 1e9)
        assert tell(publisher) == []
        for text in meanwhile:
            store.append(transcript(text))
        assert tell(publisher) == meanwhile
        house.read_only(False)
        hidden.rename(file)
        lasting.look_after()
        assert not lasting.standing_in
        assert tell(publisher) == ["three"]
        store.append(transcript("five"))
        assert tell(publisher) == ["five"]
    with house.log() as (store, _):
        assert tell(Outbox(store, 1e9)) == []
    numbers = house.numbers()
    assert sorted(numbers, key=lambda text: numbers[text]) == [
        *("one", "two", *meanwhile, "three", "five")
    ]
