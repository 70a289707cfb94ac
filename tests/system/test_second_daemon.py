"""A second daemon on the same log: refused, and the first one is not disturbed."""

import signal
from pathlib import Path

from rigs.broker import Broker
from rigs.command import errors, roomscribe
from rigs.daemon import in_silence, write_config
from rigs.mqtt_client import Subscriber
from rigs.needs import needs_broker
from rigs.waiting import PATIENCE_S, until

pytestmark = needs_broker


def test_a_second_daemon_ends_with_one_line_until_the_first_is_killed(tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    with Broker() as broker, Subscriber(broker.port) as heard:
        first = write_config(tmp_path, broker.port)
        (tmp_path / "link").symlink_to(tmp_path / "state")
        own = {"appliance": {"node": "hall"}, "store": {"path": str(tmp_path / "link")}}
        second = write_config(tmp_path / "second", broker.port, **own)
        with in_silence(first) as running:
            until(lambda: heard.payloads("availability") == [b"online"])
            done = roomscribe("run", "--config", second, "--recording", "-")
            (line,) = errors(done)
            assert done.returncode == 74
            assert "another process uses this log" in line
            assert "[store] path" in line
            assert heard.payloads("availability") == [b"online"], "the first was disturbed"
            assert not heard.payloads("availability", "hall")
            running.send_signal(signal.SIGKILL)
            running.wait(PATIENCE_S)
        with in_silence(second):
            until(lambda: heard.payloads("availability", "hall")[-1:] == [b"online"])
