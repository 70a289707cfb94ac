"""`roomscribe log` while the daemon keeps what it hears in memory."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from rigs.command import following
from rigs.daemon import write_config
from rigs.disks import IMPATIENT, mounted, remount
from rigs.needs import needs_memory
from rigs.publishing import transcript

from appliance.cli import main
from appliance.config import Settings, StoreSettings
from appliance.errors import StoreError
from appliance.store.fallback import DatabaseWithFallback, fallback_folders
from appliance.store.folders import FILE_NAME
from appliance.store.store import Store

pytestmark = needs_memory


@pytest.fixture
def disk(tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(memory))
    with mounted(tmp_path / "disk", "2m") as found:
        yield found
        remount(found, "rw")


def daemon(disk: Path) -> Store:
    settings = Settings(store=StoreSettings(path=str(disk)))
    return Store.open_with_fallback(settings, lambda _trouble: None, IMPATIENT)


def test_follow_shows_what_is_kept_in_memory_and_nothing_twice(disk: Path) -> None:
    with daemon(disk) as before:
        before.append(transcript("one"))
    remount(disk, "ro")
    with (
        daemon(disk) as store,
        following(write_config(disk.parent, store={"path": disk})) as (process, line),
    ):
        assert line() == "one"
        store.append(transcript("two"))
        assert line() == "two"
        remount(disk, "rw")
        store.poll()
        assert isinstance(store._database, DatabaseWithFallback)
        assert not store._database.uses_fallback
        store.append(transcript("three"))
        assert line() == "three"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_the_newest_of_both_are_shown_in_order_and_without_the_file_those_in_memory(
    disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(disk.parent, store={"path": disk})

    def shown(*arguments: str) -> list[str]:
        assert main.main(["log", "--config", str(config), *arguments]) == 0
        return [line.split("%  ")[1] for line in capsys.readouterr().out.splitlines()]

    with daemon(disk) as before:
        for text in ("one", "two"):
            before.append(transcript(text))
    remount(disk, "ro")
    with daemon(disk) as store:
        for text in ("three", "four"):
            store.append(transcript(text))
        assert shown() == ["one", "two", "three", "four"]
        assert shown("--limit", "3") == ["two", "three", "four"]
        assert shown("--limit", "1") == ["four"]
        assert shown("--grep", "o", "--limit", "0") == ["one", "two", "four"]
        remount(disk, "rw")
        (disk / FILE_NAME).unlink()
        remount(disk, "ro")
        assert main.main(["log", "--config", str(config)]) == 0
        assert "kept in memory" in capsys.readouterr().err


def test_two_daemons_never_share_what_is_kept_in_memory(disk: Path) -> None:
    remount(disk, "ro")
    with daemon(disk) as store:
        store.append(transcript("one"))
        with pytest.raises(StoreError, match="Read-only"):
            daemon(disk)
        remount(disk, "rw")
        with daemon(disk) as other:
            assert other.read_after(0) == [], "it belongs to the other"
    settings = Settings(store=StoreSettings(path=str(disk)))
    assert not fallback_folders(settings)[0].exists()
