"""A store that is deleted, replaced, locked or made read-only heals by itself."""

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from rigs.disks import mounted
from rigs.publishing import transcript
from rigs.stores import checked

from appliance.config import MqttSettings, Settings, StoreSettings
from appliance.errors import StoreError
from appliance.store.database import AccessMode, Database
from appliance.store.folders import FILE_NAME
from appliance.store.store import Store


def test_a_deleted_file_is_begun_again_with_what_the_broker_waits_for(
    settings: StoreSettings, caplog: pytest.LogCaptureFixture
) -> None:
    with Store.open(settings) as store:
        assert store.cursor() == 0
        for number in range(1, 9):
            store.append(transcript(f"sentence {number} "))
        store.move_cursor(5)
        for file in store.path.parent.iterdir():
            file.unlink()
        assert store.append(transcript("sentence 9 ")).seq == 9
        assert checked(store) == [6, 7, 8, 9]
        assert (store.cursor(), store.depth()) == (5, 4)
        assert store.append(transcript("sentence 10 ")).seq == 10
    with Store.open(settings) as store:
        assert checked(store) == [6, 7, 8, 9, 10]
    assert [line for line in caplog.messages if "deleted while it was open" in line] == [
        f"{store.path} was deleted while it was open. The log continues with number 9; "
        "3 unpublished transcripts were carried over"
    ]


def test_a_deleted_file_stays_deleted_where_there_is_no_broker(settings: StoreSettings) -> None:
    alone = Settings(store=settings, mqtt=MqttSettings(enabled=False))
    with Store.open_with_fallback(alone, lambda _trouble: None) as store:
        store.append(transcript("sentence 1 "))
        store.path.unlink()
        store.append(transcript("sentence 2 "))
        assert [one.seq for one in store.read_after(0)] == [2]
    assert b"sentence 1" not in store.path.read_bytes()


def test_the_deleted_folder_is_made_again(settings: StoreSettings) -> None:
    with Store.open(settings) as store:
        store.cursor()
        store.append(transcript("sentence 1 "))
        shutil.rmtree(settings.path)
        assert store.append(transcript("sentence 2 ")).seq == 2
        assert checked(store) == [1, 2]
        assert Path(settings.path).stat().st_mode & 0o777 == 0o700


def test_a_replaced_file_is_gone_on_with_and_numbers_are_not_given_twice(
    settings: StoreSettings, tmp_path: Path
) -> None:
    other = replace(settings, path=str(tmp_path / "other"))
    with Store.open(other) as elsewhere:
        for number in range(1, 4):
            elsewhere.append(transcript(f"sentence {number} "))
        elsewhere.move_cursor(3)
    with Store.open(settings) as store:
        store.cursor()
        for number in range(1, 3):
            store.append(transcript(f"here {number}"))
        (tmp_path / "other" / FILE_NAME).rename(store.path)
        assert store.append(transcript("here 3")).seq == 6
        assert [(one.seq, one.transcript.text.strip()) for one in store.read_after(2)] == [
            (3, "sentence 3"),
            (4, "here 1"),
            (5, "here 2"),
            (6, "here 3"),
        ]
        assert store.depth() == 3
    with Store.open(settings) as store:
        assert len(store.read_after(0)) == 6


def test_the_numbers_go_on_when_the_new_file_cannot_be_made_at_once(tmp_path: Path) -> None:
    with (
        mounted(tmp_path / "disk", "1m") as disk,
        Store.open(StoreSettings(path=str(disk / "state"))) as store,
    ):
        store.cursor()
        store.append(transcript("sentence 1 "))
        shutil.rmtree(disk / "state")
        (disk / "state").touch()
        with pytest.raises(StoreError, match="folder and file that this user may write"):
            store.append(transcript("sentence 2 "))
        (disk / "state").unlink()
        assert store.append(transcript("sentence 2 ")).seq == 2
        assert checked(store) == [1, 2]


def test_a_lock_held_for_too_long_refuses_and_heals(settings: StoreSettings) -> None:
    path = Path(settings.path) / FILE_NAME
    with Store(Database(path, AccessMode.OWNER, busy_s=0.1), settings) as store:
        store.append(transcript("sentence 1 "))
        with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError, match=r"locked by another program .*; end that"):
                store.append(transcript("sentence 2 "))
            assert len(store.read_after(0)) == 1
        assert store.append(transcript("sentence 2 ")).seq == 2
        assert checked(store) == [1, 2]
