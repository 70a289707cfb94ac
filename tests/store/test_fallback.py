"""The log goes on in memory while its disk refuses, and all of it is in the file afterwards.

What was heard in memory meets the file again: nothing is forgotten, and nothing comes back.
"""

import os
from pathlib import Path

import pytest
from rigs.disks import DiskRig, deliver, fill, tell
from rigs.needs import needs_memory
from rigs.publishing import transcript
from rigs.stores import connection_of

from appliance.config import StoreSettings
from appliance.errors import StoreError
from appliance.mqtt.outbox import Outbox
from appliance.store import database as database_module
from appliance.store.fallback import DatabaseWithFallback
from appliance.store.folders import FILE_NAME
from appliance.store.store import Store
from appliance.store.tables import Wanted

pytestmark = needs_memory


def test_a_read_only_disk_gets_everything_from_the_fallback_later(rig: DiskRig) -> None:
    with rig.log() as (store, _):
        for text in ("one", "two", "three"):
            store.append(transcript(text))
        store.move_cursor(1)
    rig.read_only()
    with rig.log() as (store, database):
        assert database.uses_fallback
        assert "cannot be written" in (rig.told[0] or "")
        four = store.append(transcript("four"))
        assert four.seq > 1_700_000_000, "above all numbers of the file"
        assert deliver(store) == ["four"]
        store.correct(four.transcript.id, "for")
        database.poll()
        assert database.uses_fallback
        rig.read_only(False)
        database.poll()
        assert not database.uses_fallback
        assert rig.told[1:] == [None]
        assert deliver(store) == ["two", "three"]
        store.append(transcript("five"))
        corrections = [one.transcript.correction for one in store.read_after(0)]
        assert corrections == [None, "for", None, None, None]
    assert sorted(numbers := rig.numbers(), key=lambda text: numbers[text]) == [
        "one", "four", "two", "three", "five",
    ]  # fmt: skip
    assert not rig.memory.path.exists()


@pytest.mark.parametrize("after_delete", [False, True])
def test_a_crash_between_appending_and_deleting_stores_nothing_twice(
    rig: DiskRig, after_delete: bool
) -> None:
    rig.read_only()
    with rig.log() as (store, _):
        store.append(transcript("one"))
        store.append(transcript("two"))
    rig.read_only(False)
    obstacle = rig.memory.path / f"{FILE_NAME}.damaged-20261101T000000Z"
    if not after_delete:
        obstacle.mkdir()  # what cannot be deleted as a file
    with rig.log() as (store, _):
        assert deliver(store) == ["one", "two"]
        store.append(transcript("three"))
    assert (rig.memory.path / FILE_NAME).exists() is not after_delete
    if not after_delete:
        obstacle.rmdir()
    with rig.log() as (store, _):
        assert deliver(store) == ["three"]
    assert list(rig.numbers()) == ["one", "two", "three"]


def test_a_full_disk_with_a_little_room_is_not_tried_again_and_again(rig: DiskRig) -> None:
    with rig.log() as (store, _):
        store.append(transcript("one"))
    fill(rig.disk)
    os.truncate(rig.disk / "filler", (rig.disk / "filler").stat().st_size - 100_000)
    with rig.log() as (store, database):
        assert database.uses_fallback
        database.poll()
        assert database.uses_fallback
    assert not (rig.disk / "state" / f"{FILE_NAME}.probe").exists()


def test_another_layout_and_a_path_open_no_fallback_and_a_lock_does(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = DiskRig(tmp_path, memory)
    with rig.log() as (store, database):
        connection = database._current.connection
        assert connection is not None
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="another version"), rig.log():
        pass
    (tmp_path / "state" / FILE_NAME).unlink()
    monkeypatch.setattr(database_module, "BUSY_S", 0.1)
    with rig.log() as (store, database):
        with Store.open(rig.settings, beside_daemon=True) as other:
            held = connection_of(other)
            held.execute("BEGIN IMMEDIATE")
            store.append(transcript("one"))
            assert database.uses_fallback
            assert "locked by another" in (rig.told.pop(0) or "")
            database.poll()
            assert database.uses_fallback
            held.execute("ROLLBACK")
        database.poll()
        assert not database.uses_fallback
        assert rig.told.pop() is None
    assert rig.numbers() == {"one": 1}
    rig.settings = StoreSettings(path=str(tmp_path / "file"))
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StoreError, match="file"):
        DatabaseWithFallback(tmp_path / "file" / FILE_NAME, rig.memory, rig.told.append)
    assert not rig.told


def test_without_memory_the_daemon_ends_as_it_must(rig: DiskRig) -> None:
    def nowhere() -> None:
        raise OSError(13, "no memory")

    rig.memory.take = nowhere  # type: ignore[method-assign]
    rig.read_only()
    with pytest.raises(StoreError, match="Read-only"), rig.log():
        pass


def test_what_no_broker_has_survives_damage_that_takes_its_pages(tmp_path: Path) -> None:
    settings = StoreSettings(path=str(tmp_path))
    with Store.open(settings) as store:
        assert store.cursor() == 0
        stored = [store.append(transcript(f"sentence {number}")) for number in range(1, 7)]
        store.move_cursor(2)
        store.delete(Wanted(ids=(stored[4].transcript.id,)))
        with Store.open(settings, beside_daemon=True) as other:  # what the daemon read is old now
            other.correct(stored[0].transcript.id, "another")
            other._database.vacuum()
        size = store.path.stat().st_size
        store.path.write_bytes(bytes([0xA5]) * size)
        (tmp_path / f"{FILE_NAME}-wal").write_bytes(b"")
        store.append(transcript("sentence 7"))
        assert store.read_after(2)[:3] == [stored[2], stored[3], stored[5]]
        assert [one.seq for one in store.read_after(2)] == [3, 4, 6, 7]


def test_what_somebody_deleted_meanwhile_does_not_come_back(rig: DiskRig) -> None:
    with rig.log() as (store, _):
        store.append(transcript("one"))
        store.append(transcript("two"))
        deliver(store)
    rig.read_only()
    with rig.log() as (store, database):
        store.append(transcript("three"))
        rig.read_only(False)
        with Store.open(rig.settings, beside_daemon=True) as guest:
            guest.delete(Wanted(None, None, ()))
        database.poll()
    assert list(rig.numbers()) == ["three"]


def test_a_new_card_gets_what_no_broker_has(rig: DiskRig) -> None:
    with rig.log() as (store, database):
        store.append(transcript("one"))
        deliver(store)
        store.append(transcript("two"))
        fill(rig.disk)
        store.append(transcript("three " + "lamp " * 20_000))
        for file in (rig.disk / "filler", *(rig.disk / "state").iterdir()):
            file.unlink()
        database.poll()
        assert [text[:5] for text in deliver(store)] == ["two", "three"]
    assert list(rig.numbers().values()) == [2, 3]


@pytest.mark.parametrize("meanwhile", [[], ["four"]])
def test_a_log_that_could_not_be_read_is_published_once_after_its_return(
    rig: DiskRig, meanwhile: list[str]
) -> None:
    with rig.log() as (store, _):
        for text in ("one", "two", "three"):
            store.append(transcript(text))
        store.move_cursor(2)
    file = rig.disk / "state" / FILE_NAME
    hidden = file.rename(file.with_name("hidden"))
    rig.read_only()
    with rig.log() as (store, database):
        publisher = Outbox(store, 1e9)
        assert tell(publisher) == []
        for text in meanwhile:
            store.append(transcript(text))
        assert tell(publisher) == meanwhile
        rig.read_only(False)
        hidden.rename(file)
        database.poll()
        assert not database.uses_fallback
        assert tell(publisher) == ["three"]
        store.append(transcript("five"))
        assert tell(publisher) == ["five"]
    with rig.log() as (store, _):
        assert tell(Outbox(store, 1e9)) == []
    numbers = rig.numbers()
    assert sorted(numbers, key=lambda text: numbers[text]) == [
        *("one", "two", *meanwhile, "three", "five")
    ]
