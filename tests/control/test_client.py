"""A reader of the control socket: what it says when there is no daemon, or one that is strange."""

import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rigs.command import OBEYING_MODES
from rigs.feed import Feed, serving
from rigs.needs import unless
from rigs.waiting import PATIENCE_S

from appliance.control.client import ControlClient
from appliance.errors import DaemonError


def test_without_a_daemon_it_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(DaemonError, match="is not running: start it"):
        ControlClient([tmp_path / "control"])


def test_the_first_that_is_there_is_asked(tmp_path: Path) -> None:
    places = [tmp_path / "first", tmp_path / "second"]
    with serving(places[1], Feed()), ControlClient(places) as client:
        assert client.call("echo") == {"got": {}}


@unless("root: it may open any socket (run the tests as another user)" if OBEYING_MODES else "")
def test_a_user_who_may_not_is_told_whose_it_is(tmp_path: Path) -> None:
    with serving(tmp_path / "control", Feed()):
        (tmp_path / "control").chmod(0)
        with pytest.raises(DaemonError, match="use sudo, or join its group"):
            ControlClient([tmp_path / "control"])


def test_an_event_between_question_and_answer_is_kept(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "control", Feed()) as server,
        ControlClient([tmp_path / "control"]) as client,
    ):
        client.subscribe("level")
        server.publish("level", {"number": 1})
        assert client.call("echo") == {"got": {}}
        assert client.next_event(5) == ("level", {"number": 1})
        assert client.next_event(0.0) is None


@pytest.mark.parametrize("said", [b"x\n", b"[]\n", b"[" * 3000 + b"\n", b"\xff\n"])
def test_what_is_no_answer_is_an_error(tmp_path: Path, said: bytes) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(tmp_path / "control"))
    listener.listen(1)

    def answer() -> None:
        opened, _ = listener.accept()
        opened.recv(4096)
        opened.sendall(said)
        opened.close()

    thread = threading.Thread(target=answer)
    thread.start()
    with (
        ControlClient([tmp_path / "control"]) as client,
        pytest.raises(DaemonError, match="the daemon does not answer"),
    ):
        client.call("state")
    thread.join(PATIENCE_S)
    listener.close()


def test_it_imports_no_numbers_and_no_database() -> None:
    program = (
        "import sys; before = set(sys.modules)  # a measurement of coverage has some of them\n"
        "from appliance.control import ControlClient\n"
        "print({'numpy', 'sqlite3'} & (set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
