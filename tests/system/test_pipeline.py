"""The whole path, for real: a PulseAudio microphone, the daemon, Mosquitto, a subscriber."""

import json
from functools import partial
from pathlib import Path

from rigs import broker as rig_broker
from rigs.checkout import SPEECH
from rigs.command import roomscribe
from rigs.daemon import end, listening_house, write_config
from rigs.mqtt_client import Subscriber
from rigs.needs import needs_broker, needs_microphone
from rigs.waiting import until

FIRST = SPEECH / "00.flac"
SECOND = SPEECH / "02.flac"


@needs_broker
@needs_microphone
def test_sentences_spoken_into_the_microphone_reach_a_subscriber(tmp_path: Path) -> None:
    with listening_house(tmp_path) as (microphone, heard, running):

        def has_heard(number: int) -> bool:
            return len(heard.events()) == number

        for number, file in enumerate((FIRST, SECOND), start=1):
            microphone.speak(file)
            until(partial(has_heard, number))
        state = heard.state()
        end(running)
        until(lambda: heard.payloads("availability")[-1] == b"offline")
        events = heard.events()
    assert [event["seq"] for event in events] == [1, 2]
    assert all(event["text"] for event in events)
    assert all(not event["late"] and event["latency_ms"] > 0 for event in events)
    assert events[0]["end"] < events[1]["start"]
    assert state["status"] == "running"
    assert state["model"] == "tiny.en"
    assert "rooms" not in state and not heard.payloads("claim")
    speech = heard.payloads("speech")
    assert speech[-4:] == [b"ON", b"OFF", b"ON", b"OFF"]
    logged = roomscribe(
        "log", "--json", "--config", tmp_path / "roomscribe.toml"
    ).stdout.splitlines()
    assert [json.loads(line)["id"] for line in logged] == [event["id"] for event in events]


@needs_broker
def test_a_recording_in_place_of_the_microphone_ends_the_daemon_with_it(tmp_path: Path) -> None:
    with rig_broker.Broker() as broker, Subscriber(broker.port) as heard:
        config = write_config(tmp_path, broker.port)
        done = roomscribe("run", "--config", config, "--recording", FIRST)
        assert done.returncode == 0
        until(lambda: len(heard.events()) == 1)
        until(lambda: heard.payloads("availability")[-1] == b"offline")
