"""`roomscribe log` while the daemon keeps what it hears in memory."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from rigs.command import following
from rigs.daemon import write_config
from rigs.disks import IMPATIENT, deliver, mounted, remount
from rigs.needs import needs_memory
from rigs.publishing import transcript
from rigs.waiting import PATIENCE_S

from appliance.cli import main
from appliance.config import Settings, StoreSettings
from appliance.errors import StoreError
from appliance.store.fallback import DatabaseWithFallback, fallback_folders
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
        deliver(before)
    remount(disk, "ro")
    with (
        daemon(disk) as store,
        following(write_config(disk.parent, store={"path": disk})) as (process, line),
    ):
        store.append(transcript("two"))
        assert line() == "two"
        remount(disk, "rw")
        store.poll()
        assert isinstance(store._database, DatabaseWithFallback)
        assert not store._database.uses_fallback
        store.append(transcript("three"))
        assert line() == "three"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr is not None
        assert b"kept in memory" in process.stderr.read()


def test_only_what_is_kept_in_memory_is_shown(
    disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(disk.parent, store={"path": disk})
    with daemon(disk) as before:
        before.append(transcript("one"))
    remount(disk, "ro")
    with daemon(disk) as store:
        for text in ("two", "three"):
            store.append(transcript(text))
        assert main.main(["log", "--config", str(config)]) == 0
    output, error = capsys.readouterr()
    assert [line.split("%  ")[1] for line in output.splitlines()] == ["two", "three"]
    assert "kept in memory" in error


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
