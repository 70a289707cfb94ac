"""The control socket of a running daemon, as its readers see it; through kill -9, too."""

import json
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
import soundfile
from rigs.broker import Broker
from rigs.checkout import ROOT, TESTS
from rigs.command import following
from rigs.daemon import daemon, in_silence, log_of, write_config
from rigs.disks import overlay
from rigs.mqtt_client import Subscriber
from rigs.needs import module, needs_broker
from rigs.waiting import PATIENCE_S, until

from appliance import config as configuration
from appliance.control.client import ControlClient
from appliance.errors import DaemonError
from appliance.store.folders import runtime_folders

jsonschema = module("jsonschema")
SCHEMA = json.loads((ROOT / "config" / "schemas" / "control" / "line.json").read_text("utf-8"))
SENTENCE = TESTS / "speech" / "00.flac"


def check(line: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(line)


def place_of(config: Path) -> Path:
    return runtime_folders(configuration.load(config))[0] / "control"


def hear(client: ControlClient, event: str, within_s: float = PATIENCE_S) -> dict[str, Any]:
    """The data of the next `event`."""
    while found := client.next_event(within_s):
        check({"event": found[0], "data": found[1]})
        if found[0] == event:
            return found[1]
    raise AssertionError(f"no {event} came")


def test_what_is_said_is_heard_over_the_socket_and_the_daemon_obeys(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    sound, _ = soundfile.read(SENTENCE, dtype="int16")
    place = place_of(config)
    with daemon(config, "--recording", "-", stdin=-1) as running:
        assert running.stdin
        running.stdin.write(bytes(32_000 * 3))
        running.stdin.flush()
        until(lambda: "ready after" in log_of(config))
        with ControlClient([place]) as client, following(config) as (_, line):
            client.subscribe("transcript", "speech", "level", "state", "stats", "discarded")
            assert hear(client, "state")["status"] == "running"
            running.stdin.write(sound.tobytes() + bytes(32_000 * 2))
            running.stdin.flush()
            while not hear(client, "speech")["speaking"]:
                pass
            assert hear(client, "level")["rms_db"] is None or hear(client, "level")["peak_db"] < 0
            told = hear(client, "transcript")
            assert (told["seq"], told["text"]) == (1, line().strip())
            assert client.call("history", query="weather")["transcripts"] == [told]
            changed = client.call("configure", set={"segmenter.hang_over_ms": 900})["changed"]
            assert changed["segmenter.hang_over_ms"]["value"] == 900
            with pytest.raises(DaemonError, match="closed the connection"):
                while client.next_event(20):
                    pass
        until(lambda: "the configuration has changed" in log_of(config))
    assert configuration.load(config).segmenter.hang_over_ms == 900


def test_a_log_that_the_next_boot_loses_is_in_the_reasons(tmp_path: Path) -> None:
    with overlay(tmp_path / "disk", hidden=False) as disk:
        config = write_config(tmp_path, store={"path": disk})
        with in_silence(config):
            until(lambda: "ready after" in log_of(config))
            with ControlClient([place_of(config)]) as client:
                client.subscribe("state")
                state = hear(client, "state")
    assert state["status"] == "running"
    assert [f"{disk} is on an overlay in memory" in reason for reason in state["reasons"]] == [True]


@needs_broker
def test_a_broker_chosen_over_the_socket_is_used_also_after_a_restart(tmp_path: Path) -> None:
    users = {"ear": "open sesame", "watch": "secret"}
    config = write_config(tmp_path)
    with (
        Broker(users=users) as broker,
        Subscriber(broker.port, user="watch", password="secret") as heard,
    ):
        chosen: dict[str, Any] = {"host": broker.host, "port": broker.port, "username": "ear"}
        with in_silence(config):
            until(lambda: "ready after" in log_of(config))
            with ControlClient([place_of(config)]) as client:
                wrong = client.call("broker", **chosen, password="not that")["mistakes"]
                assert "refuses user 'ear'" in wrong["mqtt.password"]
                told = client.call("broker", **chosen, password="open sesame")
                assert "mqtt.enabled" in told["changed"]
            until(lambda: heard.payloads("availability", "kitchen") == [b"online"])
        heard.messages.clear()
        with in_silence(config):
            until(lambda: b"online" in heard.payloads("availability", "kitchen"))
    assert "open sesame" not in log_of(config)


def test_a_killed_daemon_leaves_a_socket_that_the_next_one_replaces(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    place = place_of(config)
    with in_silence(config) as first:
        until(lambda: "ready after" in log_of(config))
        with ControlClient([place]) as client:
            assert client.call("state")["model"] == "tiny.en"
        first.send_signal(signal.SIGKILL)
        first.wait(PATIENCE_S)
    assert place.is_socket()
    with pytest.raises(DaemonError, match="is not running"):
        ControlClient([place])
    before = log_of(config).count("ready after")
    with in_silence(config) as again:
        until(lambda: log_of(config).count("ready after") > before)
        idle = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(3)]
        for one in idle:
            one.connect(str(place))
        with ControlClient([place]) as client:
            client.subscribe("level", "transcript")
            assert client.next_event(10)
            again.terminate()
            assert again.wait(PATIENCE_S) == 0
            with pytest.raises(DaemonError, match="closed the connection"):
                while client.next_event(5):
                    pass
        for one in idle:
            one.close()
    assert not place.exists()


def test_the_examples_of_the_documentation_are_as_the_schema_says() -> None:
    text = (ROOT / "docs" / "control.md").read_text("utf-8")
    for name in SCHEMA["oneOf"][0]["properties"]["command"]["enum"]:
        assert f"`{name}`" in text
    for name in SCHEMA["$defs"]["event"]["enum"]:
        assert f"| `{name}` |" in text
    check({"id": 1, "command": "history", "query": "light"})
    for wrong in ({"id": 1}, {"event": "level", "data": {}}, {"id": [], "command": "state"}):
        with pytest.raises(jsonschema.ValidationError):
            check(wrong)
