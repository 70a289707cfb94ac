"""`roomscribe mqtt watch` and `forget` on a real broker."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rigs import broker as rig_broker
from rigs.command import errors, roomscribe, start
from rigs.daemon import READY_WITHIN_S, daemon, log_of, write_config
from rigs.mqtt_client import Subscriber, publish_once
from rigs.needs import needs_broker
from rigs.publishing import STATE
from rigs.waiting import until

from appliance import config
from appliance.cli.mqtt import _present_node, line
from appliance.mqtt import events

AT = datetime(2026, 11, 21, 8, 14, 6, tzinfo=UTC)


@needs_broker
def test_forget_clears_the_retained_messages_of_one_appliance_only(tmp_path: Path) -> None:
    with rig_broker.Broker() as broker:
        there = write_config(tmp_path, broker.port)
        ours = ("homeassistant/device/kitchen/config", "roomscribe/kitchen/availability")
        for topic in (*ours, "roomscribe/kitchen/state", "roomscribe/kitchen/garbage/x"):
            publish_once(broker.port, topic, b"offline", retain=True)
        publish_once(broker.port, "roomscribe/hall/state", b"{}", retain=True)
        publish_once(broker.port, "homeassistant/device/hall/config", b"{}", retain=True)
        done = roomscribe("mqtt", "forget", "--config", there)
        cleared = done.stdout.splitlines()
        assert done.returncode == 0
        assert len(cleared) == 4
        assert cleared[0] == f"cleared {ours[0]}", "the entities go first"
        again = roomscribe("mqtt", "forget", "--config", there)
        assert (again.returncode, again.stdout) == (1, "")
        assert roomscribe("mqtt", "forget", "--node", "hall", "--config", there).returncode == 0


@needs_broker
def test_forget_leaves_an_appliance_alone_that_is_online(tmp_path: Path) -> None:
    with rig_broker.Broker() as broker:
        publish_once(broker.port, "roomscribe/kitchen/availability", b"online", retain=True)
        done = roomscribe("mqtt", "forget", "--config", write_config(tmp_path, broker.port))
    assert done.returncode == 74
    assert "kitchen is online" in errors(done)[0]


@needs_broker
def test_watch_and_forget_use_the_prefix_of_the_configuration(tmp_path: Path) -> None:
    with rig_broker.Broker() as broker, Subscriber(broker.port, topics=("homes/#",)) as other:
        there = write_config(tmp_path, broker.port)
        there.write_text(there.read_text().replace("[mqtt]", '[mqtt]\nprefix = "homes/2"'))
        publish_once(broker.port, "roomscribe/kitchen/state", b"{}", retain=True)
        publish_once(broker.port, "homes/2/kitchen/state", b"{}", retain=True)
        with start("mqtt", "watch", "--config", there, stdout=subprocess.PIPE) as watcher:
            assert watcher.stdout
            assert watcher.stdout.readline().startswith(b"watching homes/2/kitchen/#")
            assert watcher.stdout.readline().split()[1:3] == [b"kitchen", b"state"]
            watcher.terminate()
        done = roomscribe("mqtt", "forget", "--config", there)
        assert done.stdout == "cleared homes/2/kitchen/state\n"
        until(lambda: other.messages[-1].payload == b"")


def test_forget_takes_no_wildcard_for_a_node(tmp_path: Path) -> None:
    done = roomscribe("mqtt", "forget", "--node", "+", "--config", write_config(tmp_path, 1))
    assert done.returncode == 78


@needs_broker
def test_watch_shows_what_comes(tmp_path: Path) -> None:
    with rig_broker.Broker() as broker, Subscriber(broker.port) as other:
        there = write_config(tmp_path, broker.port)
        with start("mqtt", "watch", "--config", there, stdout=subprocess.PIPE) as watcher:
            assert watcher.stdout
            assert watcher.stdout.readline().startswith(b"watching roomscribe/kitchen/#")
            other.publish("roomscribe/hall/speech", b"ON")
            other.publish("roomscribe/kitchen/speech", b"OFF\x1b[2J")
            shown = watcher.stdout.readline().decode()
            watcher.terminate()
        until(lambda: other.payloads("speech"))
    assert shown.split()[1:3] == ["kitchen", "speech"]
    assert "\x1b" not in shown


def test_a_state_is_shown_for_people_and_garbage_as_it_is() -> None:
    told = json.dumps(events.state(STATE, 2)).encode()
    shown = line(AT, "kitchen/state", told, True)
    assert shown.startswith("08:14:06  kitchen      state")
    assert "running, Whisper tiny.en on cpu, Null Output, 2 unpublished (retained)" in shown
    for garbage in (b"[1]", b"{}", b'{"status": 1}', b"\xff\x00", b"[" * 5000):
        assert line(AT, "kitchen/state", garbage, False).isprintable()
    assert line(AT, "odd", b"x", False).isprintable()


def test_an_impossible_node_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    there = write_config(tmp_path)
    done = roomscribe("mqtt", "forget", "--node", "My Kitchen", "--config", there)
    assert done.returncode == 78
    assert errors(done)[0].endswith("found 'My Kitchen'; did you mean my_kitchen?")


def test_watch_follows_the_name_that_the_daemon_has(tmp_path: Path) -> None:
    there = write_config(tmp_path)
    settings = config.read(there).settings
    old = replace(settings, appliance=replace(settings.appliance, node="old"))
    assert _present_node(old) == "old"
    with daemon(there):
        until(lambda: "ready after" in log_of(there), READY_WITHIN_S)
        assert _present_node(old) == "kitchen"
