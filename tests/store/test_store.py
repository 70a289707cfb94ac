"""The store's promises: committed before told, all or nothing, clear words about trouble."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rigs.checkout import TESTS
from rigs.publishing import transcript
from rigs.stores import connection_of

from appliance.config import StoreSettings, store_folder
from appliance.errors import StoreError
from appliance.store.store import Store


@pytest.fixture
def store(settings: StoreSettings) -> Iterator[Store]:
    with Store.open(settings) as opened:
        yield opened


def texts(store: Store) -> list[str]:
    return [stored.transcript.text for stored in store.read_after(0)]


def test_the_same_id_is_stored_once(store: Store) -> None:
    heard = transcript()
    assert store.append(heard) == store.append(heard)
    assert len(store.read_after(0)) == 1


def test_what_append_returned_survives_kill_9(settings: StoreSettings) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from rigs.publishing import transcript\n"
        "from appliance.store.store import Store\n"
        "from appliance.config import StoreSettings\n"
        "store = Store.open(StoreSettings(path=sys.argv[2]))\n"
        "while True: print(store.append(transcript()).seq, flush=True)\n"
    )
    command = [sys.executable, "-c", program, str(TESTS), settings.path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=TESTS.parent) as process:
        assert process.stdout is not None
        for _ in range(5):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        told = 5 + len(process.stdout.read().split(b"\n")) - 1
    with Store.open(settings) as again:
        assert [stored.seq for stored in again.read_after(0)][:told] == list(range(1, told + 1))


def test_the_latencies_are_those_of_what_was_heard_here(store: Store) -> None:
    for number, source in enumerate(("microphone", "wyoming", "microphone")):
        said = transcript(source=source, latency_ms=float(number))
        store.append(said)
    assert store.read_latencies(said.end, 10) == [2.0, 0.0]
    assert store.read_latencies(said.end, 1) == [2.0]
    assert store.read_latencies(said.end + timedelta(seconds=1), 10) == []


def test_the_latencies_are_found_without_reading_the_whole_log(store: Store) -> None:
    connection, statements = connection_of(store), list[str]()
    connection.set_trace_callback(statements.append)
    store.read_latencies(datetime.now(UTC), 1000)
    connection.set_trace_callback(None)
    plan = connection.execute(f"EXPLAIN QUERY PLAN {statements[-1]}").fetchall()
    assert "SEARCH transcripts USING INDEX transcripts_by_end" in plan[0][3]


def test_the_cursor_is_stored_and_moves_back_only_on_request(settings: StoreSettings) -> None:
    with Store.open(settings) as store:
        for _ in range(3):
            store.append(transcript())
        assert (store.cursor(), store.depth()) == (0, 3)
        store.move_cursor(2)
        store.move_cursor(1)
    with Store.open(settings) as store:
        assert (store.cursor(), store.depth()) == (2, 1)
        assert [stored.seq for stored in store.read_after(store.cursor())] == [3]
        store.move_cursor(1, back=True)
        store.move_cursor(2, back=True)
    with Store.open(settings) as store:
        assert store.cursor() == 1


def test_another_process_reads_beside_the_daemon(settings: StoreSettings, store: Store) -> None:
    store.append(transcript("first"))
    with Store.open(settings, read_only=True) as reader:
        assert texts(reader) == ["first"]
        store.append(transcript("second"))
        assert texts(reader) == ["first", "second"]
        with pytest.raises(StoreError, match="read-only"):
            reader.append(transcript())


def test_threads_share_one_store(store: Store) -> None:
    def append_some() -> None:
        for _ in range(15):
            store.append(transcript())
            store.move_cursor(store.cursor() + 1)

    threads = [threading.Thread(target=append_some) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [stored.seq for stored in store.read_after(0)] == list(range(1, 61))


def test_age_does_not_follow_a_step_of_the_clock(store: Store) -> None:
    stored = store.append(transcript())
    stepped = replace(stored, stored=stored.stored - timedelta(days=40))
    assert stepped.age_s() < 5
    assert replace(stepped, boot="another run").age_s() > 39 * 86400


def test_nobody_else_may_read_the_folder_and_file(settings: StoreSettings, store: Store) -> None:
    store.append(transcript())
    assert Path(settings.path).stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in store.path.parent.iterdir()} == {0o600}


def test_the_folder_is_systemds_when_none_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/roomscribe:/var/lib/other")
    assert store_folder(StoreSettings()) == Path("/var/lib/roomscribe")
    monkeypatch.delenv("STATE_DIRECTORY")
    monkeypatch.setenv("HOME", "/home/ada")
    assert store_folder(StoreSettings()) == Path("/home/ada/.local/state/roomscribe")


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"found: .*; give this user the folder, or set"):
        Store.open(StoreSettings(path=str(tmp_path / "file" / "state")))


def test_reading_a_log_that_is_not_there_says_where_it_was_expected(
    settings: StoreSettings,
) -> None:
    with pytest.raises(StoreError, match=r"there is no log; .*`roomscribe run`"):
        Store.open(settings, read_only=True)
    assert not Path(settings.path).exists()
