"""The control socket: every reader is bounded, and none of them costs the others anything."""

import json
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rigs.feed import Feed, serving
from rigs.waiting import PATIENCE_S, holds, until

from appliance.control.client import ControlClient
from appliance.control.server import ControlLimits, ControlServer
from appliance.errors import DaemonError
from appliance.system import Closing

TIGHT = ControlLimits(connections=2, unsent_bytes=1 << 18, replayed=100)


@pytest.fixture
def feed() -> Feed:
    return Feed()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "control"


@pytest.fixture
def server(path: Path, feed: Feed) -> Iterator[ControlServer]:
    with serving(path, feed, TIGHT) as running:
        yield running


class Raw(Closing):
    """A connection that sends what it likes."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(10)
        self._socket.connect(str(path))
        self._file = self._socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def line(self) -> Any:
        return json.loads(self._file.readline() or b'"the end"')

    def end(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def refusal(client: ControlClient, command: str, **arguments: Any) -> dict[str, object]:
    with pytest.raises(DaemonError) as caught:
        client.call(command, **arguments)
    return dict(caught.value.answer)


def test_a_command_is_answered_under_its_id_and_others_are_refused(
    server: ControlServer, path: Path
) -> None:
    with ControlClient([path]) as client:
        assert client.call("echo", on=True) == {"got": {"on": True}}
        assert refusal(client, "nonsense") == {
            "id": 2,
            "ok": False,
            "code": "bad_request",
            "error": "unknown command; expected one of subscribe, echo, refuse, fail, break, long, "
            "later",
        }
        assert refusal(client, "refuse")["mistakes"] == ["a"]
        assert refusal(client, "fail")["error"] == "the disk is full"
        assert refusal(client, "long")["code"] == "unavailable"
        assert client.call("echo") == {"got": {}}


def test_a_fault_in_a_command_ends_neither_server_nor_connection(
    server: ControlServer, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ControlClient([path]) as client:
        assert refusal(client, "break")["error"] == "division by zero"
        assert client.call("echo") == {"got": {}}
    assert "a command of the control socket failed: division by zero" in caplog.text


@pytest.mark.parametrize(
    "line",
    [
        b"x", b"[]", b"1", b"null", b'{"id": 1}', b'{"id": 1, "command": 2}', b"\xff\xfe",
        b'{"id": [], "command": "echo"}', b'{"id": 1.5, "command": "echo"}', b"[" * 60_000,
        b'{"id": true, "command": "echo"}', b'{"id": 1, "command": "echo", "x": NaN}',
        b'{"id": "' + b"x" * 65 + b'", "command": "echo"}', b'{"a":' * 9_000,
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused(server: ControlServer, path: Path, line: bytes) -> None:
    with Raw(path) as raw:
        raw.send(line + b"\n")
        answer = raw.line()
        assert (answer["ok"], answer["code"]) == (False, "bad_request")
        raw.send(b'{"id": "a", "command": "echo"}\n')
        assert raw.line() == {"id": "a", "ok": True, "result": {"got": {}}}


def test_a_line_without_an_end_ends_the_connection(server: ControlServer, path: Path) -> None:
    with Raw(path) as raw:
        raw.send(b"x" * 65_536)
        assert raw.line()["error"] == "expected at most 65536 bytes a line, found more"
        assert raw.line() == "the end"


def test_who_sends_no_more_is_answered_first(server: ControlServer, path: Path) -> None:
    with Raw(path) as raw:
        raw.send(b'{"id": 1, "command": "echo"}\n' * 12 + b'{"id"')
        raw.end()
        assert [raw.line()["id"] for _ in range(12)] == [1] * 12
        assert raw.line() == "the end"


def test_one_reader_too_many_is_told_so(server: ControlServer, path: Path) -> None:
    with ControlClient([path]) as one, ControlClient([path]) as two:
        assert one.call("echo") == two.call("echo")
        with Raw(path) as three:
            answer = three.line()
            assert (answer["code"], answer["id"]) == ("too_many", None)
            assert three.line() == "the end"
        with (
            ControlClient([path]) as three,
            pytest.raises(DaemonError, match="at most 2 connections"),
        ):
            three.call("echo")
        one.close()
        until(lambda: len(server._clients) == 1)
        with ControlClient([path]) as again:
            assert again.call("echo") == two.call("echo")


@pytest.mark.parametrize("limits", [{"silent_s": 0.0}, {"silent_s": 99.0, "stalled_s": 0.0}])
def test_a_silent_client_makes_room_and_one_that_does_not_read_goes(
    path: Path, feed: Feed, limits: dict[str, float]
) -> None:
    with serving(path, feed, ControlLimits(connections=1, **limits)) as server, Raw(path) as raw:  # type: ignore[arg-type]
        until(lambda: len(server._clients) == 1)
        if "stalled_s" in limits:
            raw.send(b'{"id": 1, "command": "subscribe", "events": ["level"]}\n')
            until(lambda: server.wanted)
            for _ in range(100):
                server.publish("level", {"text": "x" * 5000})
            until(lambda: not server._clients)
        with ControlClient([path]) as client:
            assert client.call("echo") == {"got": {}}


def test_a_subscriber_hears_what_it_asked_for_and_nothing_else(
    server: ControlServer, path: Path, feed: Feed
) -> None:
    with ControlClient([path]) as client:
        assert server.wanted == frozenset()
        feed.numbers = [7]
        assert client.subscribe("transcript", "level") == {
            "events": ["level", "transcript"],
            "seq": 7,
        }
        assert server.wanted == {"level", "transcript"}
        server.publish("speech", {"speaking": True})
        server.publish("level", {"rms_db": -30.0})
        assert client.next_event(5) == ("level", {"rms_db": -30.0})
        feed.numbers = [7, 8, 9]
        server.announce_transcript()
        assert [(client.next_event(5) or ("", {}))[1]["seq"] for _ in range(2)] == [8, 9]
        client.subscribe()
    until(lambda: server.wanted == frozenset())


def test_a_client_that_names_its_last_transcript_gets_only_newer_ones(
    server: ControlServer, path: Path, feed: Feed
) -> None:
    feed.numbers = list(range(1, 301))
    with ControlClient([path]) as client:
        client.subscribe("transcript", after=220)
        feed.numbers += [301, 302]
        server.announce_transcript()
        told = [(client.next_event(5) or ("", {}))[1]["seq"] for _ in range(82)]
        assert told == list(range(221, 303))
        client.subscribe("transcript", after=5)
        told = [(client.next_event(5) or ("", {}))[1]["seq"] for _ in range(100)]
        assert told == list(range(203, 303)), "only so many, the newest"
        assert client.next_event(0.2) is None


def test_a_log_that_was_begun_anew_is_told_from_its_beginning(
    server: ControlServer, path: Path, feed: Feed
) -> None:
    feed.numbers = [50]
    with ControlClient([path]) as client:
        client.subscribe("transcript", after=50)
        feed.numbers = [1]
        server.announce_transcript()
        assert (client.next_event(5) or ("", {}))[1]["seq"] == 1


def test_the_state_is_told_at_once_and_when_it_is_another(
    server: ControlServer, path: Path, feed: Feed
) -> None:
    with ControlClient([path]) as client:
        client.subscribe("state", "stats")
        assert {(client.next_event(5) or ("", {}))[0] for _ in range(2)} == {"state", "stats"}
        feed.asked = 5  # its age is no news
        server.announce_state()
        assert client.next_event(0.2) is None
        feed.status = "muted"
        server.announce_state()
        assert client.next_event(5) == ("state", {"status": "muted", "uptime_s": 5})


def test_who_does_not_read_is_dropped_and_costs_the_others_nothing(
    server: ControlServer, path: Path, feed: Feed
) -> None:
    with ControlClient([path]) as slow, ControlClient([path]) as good:
        for client in (slow, good):
            client.subscribe("level")
        told = 0

        def tell() -> bool:
            nonlocal told
            server.publish("level", {"number": told, "text": "x" * 5000})
            told += 1
            assert (good.next_event(5) or ("", {}))[1]["number"] == told - 1
            return len(server._clients) == 1

        assert holds(tell, PATIENCE_S, every_s=0.001)
        with pytest.raises(DaemonError, match="closed the connection"):
            while slow.next_event(5):
                pass
        assert good.call("echo") == {"got": {}}


def test_transcripts_wait_in_the_log_for_a_slow_reader_and_come_when_it_reads(
    server: ControlServer, path: Path, feed: Feed
) -> None:
    with ControlClient([path]) as slow:
        slow.subscribe("transcript", after=0)
        for number in range(1, 5001):
            feed.numbers.append(number)
        server.announce_transcript()
        until(lambda: [one for one in server._clients if one.seq])
        told = [(slow.next_event(5) or ("", {}))[1]["seq"] for _ in range(5000)]
        assert told == list(range(1, 5001))


def test_an_answer_may_come_later_and_the_connection_is_of_use_meanwhile(
    server: ControlServer, path: Path, feed: Feed
) -> None:
    with Raw(path) as raw, Raw(path) as gone:
        gone.send(b'{"id": 9, "command": "later"}\n')
        raw.send(b'{"id": 1, "command": "later"}\n{"id": 2, "command": "echo"}\n')
        assert raw.line()["id"] == 2
        until(lambda: server._unanswered == 2)
        gone.close()
        feed.later.set_result({"said": "now"})
        assert raw.line() == {"id": 1, "ok": True, "result": {"said": "now"}}


def test_the_socket_is_for_user_and_group_and_replaces_an_old_one(path: Path, feed: Feed) -> None:
    left = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    left.bind(str(path))
    left.close()
    with serving(path, feed):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with ControlClient([path]) as client:
            assert client.call("echo") == {"got": {}}
    assert not path.exists()


def test_a_socket_that_another_has_put_in_its_place_is_left_alone(path: Path, feed: Feed) -> None:
    with serving(path, feed):
        path.unlink()
        path.write_text("another's")
    assert path.read_text() == "another's"


def test_a_folder_that_is_not_there_is_an_error_that_leaves_nothing_open(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        ControlServer(tmp_path / "none" / "control")
