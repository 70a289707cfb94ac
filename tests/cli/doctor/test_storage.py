"""The local log: whole, damaged, newer, absent; and beside a daemon that writes."""

import shutil
import sqlite3
from pathlib import Path

import pytest
from rigs.disks import DiskRig, overlay
from rigs.needs import needs_memory
from rigs.publishing import transcript

from appliance.cli.doctor import storage
from appliance.cli.doctor.outcome import Surroundings
from appliance.config import Settings, StoreSettings
from appliance.errors import StoreError
from appliance.store.folders import FILE_NAME
from appliance.store.store import Store
from appliance.store.tables import SCHEMA


def around(folder: Path) -> Surroundings:
    return Surroundings(Settings(store=StoreSettings(path=str(folder))))


def test_an_intact_log_passes_while_the_daemon_writes(tmp_path: Path) -> None:
    with Store.open(StoreSettings(path=str(tmp_path))) as store:
        for _ in range(3):
            store.append(transcript())
        store.move_cursor(1)
        before = (tmp_path / FILE_NAME).read_bytes()
        found = storage.log(around(tmp_path))
        assert found.status == "ok"
        assert "2 unpublished transcripts" in found.found
        assert (tmp_path / FILE_NAME).read_bytes() == before
        store.append(transcript())


def test_a_log_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert storage.log(around(tmp_path / "none")).status == "skipped"
    assert not (tmp_path / "none").exists()


def test_a_file_that_is_no_log_yet_is_not_made_one(tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    with sqlite3.connect(file) as empty:
        empty.execute("CREATE TABLE other (x)")
    empty.close()
    before = file.read_bytes()
    with pytest.raises(StoreError, match="no such table"):
        storage.log(around(tmp_path))
    assert file.read_bytes() == before


def test_a_damaged_page_is_found(tmp_path: Path) -> None:
    with Store.open(StoreSettings(path=str(tmp_path))) as store:
        for number in range(200):
            store.append(transcript(f"sentence {number} " * 20))
    file = tmp_path / FILE_NAME
    content = bytearray(file.read_bytes())
    page = content.index(b"sentence 100 ") // 4096 * 4096  # of rows; others are read at once
    content[page : page + 4096] = b"\xa5" * 4096
    file.write_bytes(content)
    found = storage.log(around(tmp_path))
    assert found.status == "failed"
    assert "is damaged" in found.found
    assert "sets the file aside" in found.fix


def test_another_kind_of_file_and_a_newer_log_fail(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"no database at all" * 100)
    with pytest.raises(StoreError, match="another kind of file"):
        storage.log(around(tmp_path))
    (tmp_path / FILE_NAME).unlink()
    with sqlite3.connect(tmp_path / FILE_NAME) as newer:
        newer.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match=f"expected schema {SCHEMA}, found 99"):
        storage.log(around(tmp_path))


@needs_memory
def test_a_read_only_disk_is_a_fault_and_a_log_in_memory_another(
    rig: DiskRig, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(memory))
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    settings = Settings(store=rig.settings)
    with Store.open(rig.settings) as store:
        store.append(transcript())
    assert storage.log(Surroundings(settings)).status == "ok"
    assert storage.disk(Surroundings(settings)).status == "failed", "it is a small disk"
    rig.read_only()
    assert "is read-only" in storage.disk(Surroundings(settings)).found
    with Store.open_with_fallback(settings, lambda _trouble: None) as store:
        store.append(transcript())
        found = storage.log(Surroundings(settings))
    assert found.status == "failed"
    assert "are in memory" in found.found


@pytest.mark.parametrize("hidden", [False, True])
def test_an_overlay_in_memory_is_a_fault(tmp_path: Path, hidden: bool) -> None:
    with overlay(tmp_path / "state", hidden=hidden) as folder:
        found = storage.disk(around(folder / "not" / "yet"))
    assert (found.status, "the next boot loses the log" in found.found) == ("failed", True)
    assert "raspi-config" in found.fix


def test_a_full_disk_is_a_fault(tmp_path: Path) -> None:
    assert storage.disk(around(tmp_path / "not" / "yet")).status == "ok"
    free_mb = shutil.disk_usage(tmp_path).free // 1_000_000
    found = storage.disk(around(tmp_path), least_free_mb=free_mb + 10_000)
    assert found.status == "failed"
    assert "MB free" in found.found
    assert f"at least {free_mb + 10_000}" in found.found
