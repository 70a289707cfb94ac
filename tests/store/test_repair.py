"""A damaged store heals by itself, keeps what can be read, and its numbers go on."""

import logging
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from rigs.publishing import transcript
from rigs.stores import checked, connection_of

from appliance.config import StoreSettings
from appliance.errors import StoreError
from appliance.store import repair
from appliance.store.folders import FILE_NAME
from appliance.store.store import Store
from appliance.store.tables import Wanted

PAGE = 4096


def filled(settings: StoreSettings, count: int = 200) -> Path:
    """A closed file with `count` transcripts, of which the broker has 50."""
    with Store.open(settings) as store:
        for number in range(1, count + 1):
            store.append(transcript(f"sentence {number} " + "lamp " * 60))
        store.move_cursor(50)
        return store.path


def spoil(path: Path, *pages: int) -> None:
    """Overwrites pages (the first is 1) with nonsense."""
    with path.open("r+b") as file:
        for page in pages:
            file.seek((page - 1) * PAGE)
            file.write(b"\xa5" * PAGE)


def table_pages(path: Path, table: str) -> list[int]:
    """The numbers of a table's pages, the root first."""
    with closing(sqlite3.connect(path)) as connection:
        sql = "SELECT pageno FROM dbstat WHERE name = ? ORDER BY path"
        return [int(page) for (page,) in connection.execute(sql, (table,))]


def test_transcripts_before_the_first_and_after_the_last_damaged_page_are_kept(
    settings: StoreSettings, caplog: pytest.LogCaptureFixture
) -> None:
    path = filled(settings)
    leaves = table_pages(path, "transcripts")[1:]
    spoil(path, leaves[3], leaves[4])
    with caplog.at_level(logging.ERROR), Store.open(settings) as store:
        kept = checked(store)
        assert 200 - 2 * 12 <= len(kept) < 200
        assert {1, 200} <= set(kept)
        assert (store.cursor(), store.append(transcript("sentence 201 ")).seq) == (50, 201)
        assert [one.seq for one in store.query(Wanted(grep=("sentence 201",)))] == [201]
    (line,) = caplog.messages
    (aside,) = repair.set_aside_files(path)
    assert str(path) in line
    assert aside.name in line
    assert f"{len(kept)} transcripts were saved" in line
    assert "\n" not in line
    assert aside.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("table", ["outbox", "sqlite_sequence", "transcripts_by_end",
                                   "sqlite_autoindex_transcripts_1", "search_data"])  # fmt: skip
def test_damage_beside_the_transcripts_costs_none(settings: StoreSettings, table: str) -> None:
    path = filled(settings)
    spoil(path, *table_pages(path, table))
    with Store.open(settings) as store:
        assert checked(store) == list(range(1, 201))
        assert store.cursor() == (0 if table == "outbox" else 50)
        assert store.append(transcript("sentence")).seq >= 201


@pytest.mark.parametrize("seed", range(9))
def test_whatever_is_damaged_the_daemon_starts_and_no_number_is_given_twice(
    settings: StoreSettings, seed: int
) -> None:
    dice = random.Random(seed)
    path = filled(settings, 60)
    content = bytearray(path.read_bytes())
    match seed % 3:
        case 0:
            for _ in range(200):
                content[dice.randrange(100, len(content))] = dice.randrange(256)
        case 1:
            content = content[: dice.randrange(100, len(content))]
        case 2:
            begin = dice.randrange(len(content) // PAGE) * PAGE
            content[begin : begin + 5 * PAGE] = bytes(5 * PAGE)
    path.write_bytes(content)
    with Store.open(settings) as store:
        assert store.append(transcript("sentence after")).seq > 60
        connection = connection_of(store)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_another_kind_of_file_is_set_aside_untouched(settings: StoreSettings) -> None:
    path = Path(settings.path) / FILE_NAME
    path.parent.mkdir()
    path.write_bytes(b"shopping list: " * 1000)
    with Store.open(settings) as store:
        assert store.append(transcript()).seq > 1_000_000
        assert len(store.read_after(0)) == 1
    (aside,) = repair.set_aside_files(path)
    assert aside.read_bytes() == b"shopping list: " * 1000


def test_a_field_that_cannot_be_read_costs_only_its_transcript(settings: StoreSettings) -> None:
    path = filled(settings)
    with Store.open(settings) as store:
        with closing(sqlite3.connect(path)) as other:
            other.execute("""UPDATE transcripts SET "end" = 'no time' WHERE seq = 70""")
            other.commit()
        assert [one.seq for one in store.read_after(68, 2)] == [69, 71]
        assert len(repair.set_aside_files(path)) == 1


def test_damage_that_appears_while_running_heals_within_the_call(
    settings: StoreSettings, caplog: pytest.LogCaptureFixture
) -> None:
    path = filled(settings)
    leaves = table_pages(path, "transcripts")
    with Store.open(settings) as store:
        spoil(path, leaves[5], *table_pages(path, "search_data")[:1])
        connection = connection_of(store)
        connection.execute("PRAGMA shrink_memory")  # what is cached would hide the damage
        appended = store.append(transcript("sentence 201 "))
        assert appended.seq == 201
        kept = checked(store)
        assert kept[-1] == 201
        assert len(kept) >= 188
        assert store.cursor() == 50
    assert len(repair.set_aside_files(path)) == 1
    assert len([line for line in caplog.messages if "is damaged" in line]) == 1


def test_a_reader_of_a_damaged_file_says_who_heals_it_and_touches_nothing(
    settings: StoreSettings,
) -> None:
    path = filled(settings)
    spoil(path, *table_pages(path, "transcripts"))
    before = path.read_bytes()
    for options in ({"read_only": True}, {"beside_daemon": True}):
        with pytest.raises(StoreError, match=r"damaged.*the daemon sets it aside"):
            Store.open(settings, **options).query()
    assert path.read_bytes() == before


@pytest.mark.parametrize("crash_at", [1, 2, 3])
def test_a_crash_in_the_middle_of_healing_loses_nothing_that_was_saved(
    settings: StoreSettings, monkeypatch: pytest.MonkeyPatch, crash_at: int
) -> None:
    """The process ends at the first, second... rename."""
    path = filled(settings)
    spoil(path, *table_pages(path, "outbox"))
    renames = 0
    rename = Path.rename

    class PowerCutError(Exception):
        pass

    def counting(self: Path, target: Path) -> Path:
        nonlocal renames
        renames += 1
        if renames == crash_at:
            raise PowerCutError
        return rename(self, target)

    (path.parent / f"{FILE_NAME}-wal").touch()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", counting)
        with pytest.raises(PowerCutError):
            Store.open(settings)
    with Store.open(settings) as store:
        assert checked(store) == list(range(1, 201))
        assert store.append(transcript("sentence")).seq >= 201
    names = {file.name.partition("-")[0] for file in path.parent.iterdir()}
    assert names == {FILE_NAME, f"{FILE_NAME}.damaged"}
