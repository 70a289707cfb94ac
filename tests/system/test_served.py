"""The daemon whose speech a server in the house transcribes: what is said while that is away is
written down when it is back, in order, however often the daemon was stopped or killed meanwhile."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rigs.daemon import hearing, log_of, transcripts, write_config
from rigs.stt_server import SpeechServer, says
from rigs.waiting import until

from appliance.daemon.spool import ATTEMPTS_AT

WITHIN_S = 30.0


@pytest.fixture
def spool() -> Iterator[Path]:
    """A folder in memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def server() -> SpeechServer:
    """Numbers what it hears: silence apart."""
    found = SpeechServer()
    spoken: list[bytes] = []

    def answer(connection: Any, sound: bytes) -> None:
        if any(sound) and sound not in spoken:
            spoken.append(sound)
        says(f"sentence {spoken.index(sound) + 1}" if any(sound) else "")(connection, sound)

    found.answer = answer
    return found


def configure(folder: Path, spool: Path, server: SpeechServer, **more: Any) -> Path:
    return write_config(
        folder,
        transcriber={
            "backend": "wyoming",
            "host": "127.0.0.1",
            "port": server.port,
            "fallback": False,
            **more,
        },
        spool={"path": spool},
        segmenter={"speculate": False},
    )


def spooled(spool: Path) -> list[Path]:
    return sorted(spool.glob("*.window"))


def wait_for_spooled(spool: Path, number: int) -> None:
    until(lambda: len(spooled(spool)) == number, WITHIN_S)


def test_what_is_said_while_the_server_is_away_is_written_down_in_order_when_it_is_back(
    tmp_path: Path, spool: Path, server: SpeechServer
) -> None:
    config = configure(tmp_path, spool, server)
    with hearing(config) as (running, say):
        say("00.flac")
        wait_for_spooled(spool, 1)
        running.terminate()
        assert running.wait(30) == 0
    for number in (2, 3):  # killed twice: a window that did that would be tried apart
        with hearing(config) as (running, say):
            say(f"0{number}.flac")
            wait_for_spooled(spool, number)
            until(lambda: "speech waits to be transcribed" in log_of(config), WITHIN_S)
            running.send_signal(signal.SIGKILL)
            running.wait(30)
    assert {path.read_bytes()[ATTEMPTS_AT] for path in spooled(spool)} == {0}
    with server, hearing(config) as (running, _):
        until(lambda: not spooled(spool), WITHIN_S)
        running.terminate()
        assert running.wait(30) == 0
    found = transcripts(config)
    assert [one["text"] for one in found] == [f"sentence {number}" for number in (1, 2, 3)]
    assert {(one["encoder"], one["model"]) for one in found} == {("wyoming", "large")}
    assert {one["confidence"] for one in found} == {None}
    assert "set aside" not in log_of(config)
