"""Two rooms as two daemons: what is said in one is transcribed by the other, whatever dies."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rigs.command import roomscribe
from rigs.daemon import daemon, hearing, log_of, transcripts, write_config
from rigs.fleet import Bus
from rigs.nats import NatsServer
from rigs.needs import needs_memory, needs_nats
from rigs.waiting import PATIENCE_S, holds, until
from rigs.windows import NO_FOLDER
from rigs.word_errors import same_words
from rigs.workers import FakeWorker, says

pytestmark = [needs_nats, needs_memory]


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer() as running:
        yield running


@pytest.fixture
def spool() -> Iterator[Path]:
    """A folder in memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def worker(folder: Path, server: NatsServer, node: str = "pi5") -> Path:
    """Configuration of a worker without a microphone."""
    folder.mkdir()
    return write_config(
        folder,
        appliance={"node": node},
        fleet={"role": "worker", "server": server.url},
        capture={"device": "none"},
        spool={"path": NO_FOLDER},
    )


def satellite(folder: Path, server: NatsServer, spool: Path, **fleet: Any) -> Path:
    folder.mkdir()
    return write_config(
        folder, fleet={"role": "satellite", "server": server.url, **fleet}, spool={"path": spool}
    )


def serves(server: NatsServer, number: int = 1) -> None:
    """Waits until so many workers do."""
    with Bus(server.url) as bus:
        until(lambda: len(bus.workers()) == number)


def test_what_a_satellite_hears_a_worker_transcribes_and_the_satellite_keeps(
    tmp_path: Path, server: NatsServer, spool: Path
) -> None:
    workers, satellites = (
        worker(tmp_path / "worker", server),
        satellite(tmp_path / "satellite", server, spool),
    )
    with daemon(workers) as other:
        serves(server)
        assert "serving, without a microphone with model tiny.en" in log_of(workers)
        with hearing(satellites) as (running, say):
            for name in ("00.flac", "02.flac"):
                say(name)
            until(lambda: len(transcripts(satellites)) == 2)
            running.terminate()
            assert running.wait(PATIENCE_S) == 0
        other.terminate()
        assert other.wait(PATIENCE_S) == 0
    first, second = transcripts(satellites)
    assert same_words(first["text"], "what is the weather like in chicago")
    assert same_words(second["text"], "how much power are we using")
    assert (first["model"], first["encoder"], first["node"]) == ("tiny.en", "cpu", "kitchen")
    assert transcripts(workers) == []
    assert "trouble" not in log_of(satellites).lower()


def test_what_is_said_while_server_and_workers_are_away_comes_in_order(
    tmp_path: Path, server: NatsServer, spool: Path
) -> None:
    satellites = satellite(tmp_path / "satellite", server, spool)
    server.kill()
    with hearing(satellites) as (_, say):
        say("00.flac")
        until(lambda: "no server" in log_of(satellites))
        server.start()
        say("01.flac")
        until(lambda: "no worker" in log_of(satellites))
        until(lambda: len(list(spool.glob("*.window"))) == 2)
        with FakeWorker(server.url) as first:
            first.say = says("first")
            until(lambda: not list(spool.glob("*.window")))
        before = log_of(satellites).count("no worker")
        say("00.flac")
        until(
            lambda: (
                log_of(satellites).count("no worker") + log_of(satellites).count("lost") > before
            )
        )
        with FakeWorker(server.url) as second:
            second.say = says("second")
            until(lambda: len(transcripts(satellites)) == 3)
    found = transcripts(satellites)
    assert [one["text"] for one in found] == ["first", "first", "second"]
    assert sorted(one["start"] for one in found) == [one["start"] for one in found]
    assert not list(spool.glob("*.window"))


def test_what_was_said_before_the_mute_stays_in_the_room_until_that_is_over(
    tmp_path: Path, server: NatsServer, spool: Path
) -> None:
    satellites = satellite(tmp_path / "satellite", server, spool)
    server.kill()
    with hearing(satellites) as (running, say):
        say("00.flac")
        until(lambda: len(list(spool.glob("*.window"))) == 1)
        assert roomscribe("mute", "on", "--config", satellites).returncode == 0
        server.start()
        with FakeWorker(server.url), Bus(server.url) as bus:
            bus.listen("roomscribe.window.>")
            until(lambda: log_of(satellites).count("connected to the fleet's server") == 1)
            assert not holds(lambda: bus.heard, 1.5)
            assert roomscribe("mute", "off", "--config", satellites).returncode == 0
            until(lambda: len(transcripts(satellites)) == 1)
            assert len(bus.heard) == 1
        running.terminate()
        assert running.wait(PATIENCE_S) == 0
