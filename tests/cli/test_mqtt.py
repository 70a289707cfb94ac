"""`roomscribe mqtt watch` and `forget` on a real broker."""

import subprocess
from pathlib import Path

from rigs import broker as rig_broker
from rigs.command import refusal, roomscribe, start
from rigs.daemon import write_config
from rigs.mqtt_client import Subscriber, publish_once
from rigs.needs import needs_broker
from rigs.waiting import until


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
    assert "kitchen is online" in refusal(done, 74)


@needs_broker
def test_watch_and_forget_use_the_prefix_of_the_configuration(tmp_path: Path) -> None:
    with rig_broker.Broker() as broker, Subscriber(broker.port, topics=("homes/#",)) as other:
        there = write_config(tmp_path, broker.port)
        there.write_text(there.read_text().replace("[mqtt]", '[mqtt]\nprefix = "homes/2"'))
        publish_once(broker.port, "roomscribe/kitchen/state", b"{}", retain=True)
        publish_once(broker.port, "homes/2/kitchen/state", b"{}", retain=True)
        with start("mqtt", "watch", "--config", there, stdout=subprocess.PIPE) as watcher:
            assert watcher.stdout
            assert watcher.stdout.readline().startswith(b"watching homes/2/+/#")
            assert watcher.stdout.readline().split()[1:] == [b"homes/2/kitchen/state", b"{}"]
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
            assert watcher.stdout.readline().startswith(b"watching roomscribe/+/#")
            other.publish("roomscribe/kitchen/speech", b"OFF\x1b[2J")
            shown = watcher.stdout.readline().decode()
            watcher.terminate()
        until(lambda: other.payloads("speech"))
    assert shown.split()[1:] == ["roomscribe/kitchen/speech", "OFF\\x1b[2J"]


def test_an_impossible_node_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    there = write_config(tmp_path)
    done = roomscribe("mqtt", "forget", "--node", "My Kitchen", "--config", there)
    assert refusal(done, 78).endswith("found 'My Kitchen'; did you mean my_kitchen?")
