"""What is deleted is gone: from the tables, the index, free pages and the -wal file."""

import os
import random
import sqlite3
import string
import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rigs.disks import image
from rigs.publishing import transcript
from rigs.stores import connection_of

from appliance.config import MqttSettings, Settings, StoreSettings
from appliance.store import files, repair
from appliance.store.folders import FILE_NAME
from appliance.store.store import Store
from appliance.store.tables import Wanted

NOW = datetime(2026, 11, 21, tzinfo=UTC)


@pytest.fixture
def settings(tmp_path: Path) -> StoreSettings:
    return StoreSettings(path=str(tmp_path))


def texts(store: Store) -> list[str]:
    return [stored.transcript.text for stored in store.read_after(0, 10_000)]


def on_disk(store: Store) -> bytes:
    """All that lies in the folder; the -shm file is an index of pages and holds no text."""
    return b"".join(path.read_bytes() for path in sorted(store.path.parent.iterdir()))


def indexed(store: Store) -> set[str]:
    """Every three letters that the index has."""
    connection = connection_of(store)
    connection.execute("CREATE VIRTUAL TABLE temp.terms USING fts5vocab(main, search, row)")
    found = {str(term) for (term,) in connection.execute("SELECT term FROM temp.terms")}
    connection.execute("DROP TABLE temp.terms")
    return found


def test_old_transcripts_go_and_their_words_leave_the_file(settings: StoreSettings) -> None:
    with Store.open(replace(settings, retention_days=7)) as store:
        store.append(transcript("xylophone", end=NOW - timedelta(days=8)))
        store.move_cursor(1)
        kept = store.append(transcript("kept", end=NOW - timedelta(days=6)))
        assert b"xylophone" in on_disk(store)
        assert store.expire(NOW) == 1
        assert texts(store) == ["kept"]
        assert b"xylophone" not in on_disk(store)
        assert indexed(store) == {"kep", "ept"}
        assert store.append(transcript()).seq == kept.seq + 1


@pytest.mark.parametrize("seed", range(4))
def test_of_many_words_deleted_at_random_not_one_stays_anywhere(
    settings: StoreSettings, seed: int
) -> None:
    """Long and short texts, so that pages overflow, split and join; three rounds of deleting."""
    dice = random.Random(seed)
    words: dict[str, int] = {}
    with Store.open(settings) as store:
        for _ in range(3):
            for _ in range(120):
                word = "".join(dice.choices(string.ascii_lowercase, k=12))
                filling = " ".join(["lamp"] * dice.choice([1, 5, 40, 900]))
                words[word] = store.append(transcript(f"{filling} {word} {filling}")).seq
            for word in dice.sample(sorted(words), len(words) // 2):
                assert store.delete(Wanted(grep=(word,))).gone
                del words[word]
                assert word.encode() not in on_disk(store)
        everything = on_disk(store)
        assert all(word.encode() in everything for word in words)
        grams = {word[at : at + 3] for word in words for at in range(10)}
        foreign = {gram for gram in indexed(store) - grams if not set(gram) & set(" lamp")}
        assert foreign == set()
        connection = connection_of(store)
        connection.execute("INSERT INTO search (search, rank) VALUES ('integrity-check', 1)")
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_retention_of_0_keeps_everything(settings: StoreSettings) -> None:
    unlimited = replace(settings, retention_days=0, retention_mb=0)
    with Store.open(unlimited) as store:
        store.append(transcript(end=datetime(1990, 1, 1, tzinfo=UTC)))
        assert store.expire(datetime.now(UTC)) == 0


def test_beyond_the_configured_size_the_oldest_go_and_pages_are_reused(
    settings: StoreSettings,
) -> None:
    with Store.open(replace(settings, retention_days=0, retention_mb=1)) as store:
        sizes = []
        for number in range(4):
            for _ in range(80):
                store.append(transcript(f"round {number} " + "lamp " * 3000))
            assert store.expire(NOW) > 0
            sizes.append(store.path.stat().st_size)
            newest = [text.split(" lamp")[0] for text in texts(store)]
            assert newest == [f"round {number}"] * len(newest)
            assert 45 <= len(newest) < 80
        assert sizes[3] == sizes[2] == sizes[1] < 3_000_000


def test_a_reader_in_the_way_only_delays_the_last_of_a_word(
    settings: StoreSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(settings) as store:
        store.append(transcript("xylophone", end=NOW - timedelta(days=40)))
        store.move_cursor(1)
        store.append(transcript("kept", end=NOW))
        with closing(sqlite3.connect(store.path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM transcripts").fetchone()
            assert store.expire(NOW) == 1
            assert b"xylophone" in on_disk(store)
            store.append(transcript("while the reader reads", end=NOW))
        store.append(transcript("too soon to try again", end=NOW))
        assert b"xylophone" in on_disk(store)
        clock = time.monotonic() + 61
        monkeypatch.setattr(time, "monotonic", lambda: clock)
        store.append(transcript("a minute later", end=NOW))
        assert b"xylophone" not in on_disk(store)


def test_what_may_still_be_published_is_not_deleted_by_age(settings: StoreSettings) -> None:
    alone = Settings(store=settings, mqtt=MqttSettings(enabled=False))
    with Store.open(settings) as store:
        for text in ("published", "unpublished"):
            store.append(transcript(text, end=NOW))
        store.move_cursor(1)
        later = NOW + timedelta(days=400)
        assert store.expire(later) == 1
        assert texts(store) == ["unpublished"]
    with Store.open_with_fallback(alone, lambda _trouble: None) as store:
        assert store.expire(later) == 1


def test_what_a_killed_daemon_had_deleted_leaves_the_wal_file_at_the_next_start(
    settings: StoreSettings, tmp_path: Path
) -> None:
    """The files are taken between the deletion's commit and the emptying of the -wal file."""
    with Store.open(settings) as store:
        store.append(transcript("xylophone"))
        connection = connection_of(store)
        connection.execute("DELETE FROM transcripts")
        connection.execute("INSERT INTO search (search) VALUES ('optimize')")
        left = tmp_path / "left"
        left.mkdir()
        for ending in ("", "-wal"):
            name = FILE_NAME + ending
            (left / name).write_bytes((tmp_path / name).read_bytes())
    assert b"xylophone" in (left / f"{FILE_NAME}-wal").read_bytes()
    with Store.open(replace(settings, path=str(left))) as store:
        assert b"xylophone" not in on_disk(store)


@pytest.mark.parametrize("number", [7, 300])
def test_deleted_words_are_not_in_free_blocks_of_the_file_system(
    tmp_path: Path, number: int
) -> None:
    """Also where much goes at once, so that the file and its -wal file become shorter."""
    with image(tmp_path / "image", "24M") as disk:
        with Store.open(StoreSettings(path=str(disk / "state"))) as store:
            for count in range(number):
                store.append(transcript(f"xylophone {count}"))
            os.sync()
            store.append(transcript("kept"))
            assert store.delete(Wanted(grep=("xylophone",))).gone
            assert texts(store) == ["kept"]
        os.sync()
        assert b"kept" in (tmp_path / "image").read_bytes()
    assert b"xylophone" not in (tmp_path / "image").read_bytes()


def test_a_crash_while_the_wal_file_is_overwritten_leaves_a_whole_log(
    settings: StoreSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is on the disk after each write: the header is gone first."""
    left: list[Path] = []
    overwrite = files.overwrite

    def remembering(path: Path, upto: int | None = None) -> None:
        overwrite(path, upto)
        left.append(folder := tmp_path / f"left{len(left)}")
        folder.mkdir()
        for ending in ("", "-wal"):
            name = FILE_NAME + ending
            (folder / name).write_bytes((tmp_path / name).read_bytes())

    with Store.open(settings) as store:
        for word in ("one", "two", "three"):
            store.append(transcript(word))
        monkeypatch.setattr(files, "overwrite", remembering)
        store.delete(Wanted(grep=("two",)))
    monkeypatch.undo()
    assert len(left) >= 4
    for folder in left:
        with Store.open(replace(settings, path=str(folder))) as store:
            assert texts(store) == ["one", "three"]


def test_a_link_in_the_folder_is_not_overwritten(tmp_path: Path) -> None:
    """root deletes in a folder that is the daemon's."""
    precious = tmp_path / "precious"
    precious.write_text("kept", encoding="utf-8")
    (tmp_path / "link").symlink_to(precious)
    (tmp_path / "hard").hardlink_to(precious)
    for name in ("link", "hard"):
        with pytest.raises(OSError, match=r"link|plain file"):
            files.overwrite(tmp_path / name)
        files.delete(tmp_path / name)
    assert precious.read_text(encoding="utf-8") == "kept"


def test_set_aside_files_go_by_age_and_number_and_with_a_deletion(
    settings: StoreSettings, tmp_path: Path
) -> None:
    path = tmp_path / FILE_NAME
    names = [f"{FILE_NAME}.damaged-202611{day:02d}T000000Z" for day in (1, 17, 18, 19, 20)]
    for name in names:
        (tmp_path / name).touch()
        (tmp_path / f"{name}-wal").touch()
    assert repair.prune(path, 7, NOW) == 2
    assert [file.name for file in repair.set_aside_files(path)] == names[:1:-1]
    assert repair.prune(path, 2, NOW) == 1
    assert repair.prune(path, 0, NOW + timedelta(days=900)) == 0
    with Store.open(settings) as store:
        store.append(transcript("one of two"))
        store.delete(Wanted(grep=("one",)))
    assert sorted(file.name for file in tmp_path.iterdir()) == [FILE_NAME]
