"""Muted, for real: the daemon lets go of a PulseAudio microphone, however it is asked."""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from paho.mqtt.client import MQTTMessage
from rigs import broker as rig_broker
from rigs.checkout import SPEECH
from rigs.command import roomscribe
from rigs.daemon import end, in_silence, listening_house, log_of, write_config
from rigs.mqtt_client import Subscriber
from rigs.needs import needs_broker, needs_microphone
from rigs.waiting import PATIENCE_S, until

from appliance.daemon.mute import FILE_NAME, Position, write

FIRST = SPEECH / "00.flac"
OPENED_WITHIN_S = 4.0
"""It takes half a second on an idle machine; in silence the next state would come after five."""


def command(heard: Subscriber, payload: bytes) -> None:
    heard.publish("roomscribe/kitchen/mute/set", payload)


@needs_broker
@needs_microphone
def test_a_mute_by_mqtt_ends_the_sentence_closes_the_microphone_and_is_undone(
    tmp_path: Path,
) -> None:
    with listening_house(tmp_path) as (microphone, heard, running):
        assert microphone.listeners() == 1
        assert heard.payloads("mute") == [b"OFF"]
        speaker = microphone.play(FIRST)
        until(lambda: heard.payloads("speech")[-1:] == [b"ON"])
        time.sleep(0.3)
        command(heard, b"ON 30m")
        until(lambda: heard.payloads("mute")[-1] == b"ON")
        assert microphone.listeners() == 0
        until(lambda: heard.state()["status"] == "muted")
        left = datetime.fromisoformat(heard.state()["muted_until"]) - datetime.now(UTC)
        assert timedelta(minutes=29) < left <= timedelta(minutes=30)
        command(heard, b"ON")
        until(lambda: "muted_until" not in heard.state())
        assert microphone.listeners() == 0
        until(heard.events)
        until(lambda: heard.payloads("speech")[-1] == b"OFF")
        speaker.wait(PATIENCE_S)
        microphone.speak(FIRST)
        time.sleep(1)
        assert len(heard.events()) == 1, "heard something while muted"
        command(heard, b"OFF")
        until(lambda: heard.payloads("mute")[-1] == b"OFF")
        until(lambda: heard.payloads("microphone")[-1] == b"online", OPENED_WITHIN_S)
        assert microphone.listeners() == 1
        until(lambda: log_of(tmp_path / "roomscribe.toml").count("listening to ") == 2)
        assert heard.state()["microphone"] != "none"
        microphone.speak(FIRST)
        until(lambda: len(heard.events()) == 2)
        assert running.poll() is None
    assert "interrupted" in heard.events()[0]["flags"]
    assert heard.state()["status"] == "running"


@contextmanager
def quiet_house(folder: Path) -> Iterator[tuple[rig_broker.Broker, Subscriber, Path]]:
    """A broker, its subscriber, and the configuration of a daemon."""
    with rig_broker.Broker() as broker, Subscriber(broker.port) as heard:
        config = write_config(folder, broker.port)
        yield broker, heard, config


def last_parts(messages: list[MQTTMessage]) -> set[str]:
    """Of their topics."""
    return {message.topic.rpartition("/")[2] for message in messages}


@needs_broker
def test_a_mute_survives_a_restart_and_the_command_and_the_signal_undo_it(tmp_path: Path) -> None:
    with quiet_house(tmp_path) as (_, heard, config):
        with in_silence(config) as running:
            until(lambda: heard.payloads("microphone") == [b"online"])
            done = roomscribe("mute", "on", "tomorrow", "--config", config)
            assert done.stdout.endswith("06:00: the microphone is closed\n")
            until(lambda: heard.payloads("mute")[-1] == b"ON")
            muted_until = heard.state()["muted_until"]
            end(running)
        assert roomscribe("mute", "--config", config).returncode == 0
        before = len(heard.payloads("state"))
        with in_silence(config) as running:
            until(lambda: len(heard.payloads("state")) > before)
            told = [json.loads(state) for state in heard.payloads("state")[before:]]
            assert {(state["status"], state["muted_until"]) for state in told} == {
                ("muted", muted_until)
            }
            running.send_signal(signal.SIGUSR1)
            until(lambda: heard.payloads("microphone")[-1] == b"online")
            assert heard.payloads("mute")[-1] == b"OFF"
            running.send_signal(signal.SIGUSR1)
            until(lambda: heard.payloads("mute")[-1] == b"ON")
            done = roomscribe("mute", "off", "--config", config)
            assert done.stdout.startswith("not muted")
            until(lambda: heard.payloads("mute")[-1] == b"OFF")
            soon = Position(True, datetime.now(UTC) + timedelta(seconds=2))
            known = len(heard.payloads("mute"))
            write(tmp_path / "state" / FILE_NAME, soon)
            until(lambda: heard.payloads("mute")[known:] == [b"ON", b"OFF"])
            until(lambda: heard.state()["status"] == "running")
            assert running.poll() is None
    assert "unmuted by the clock" in log_of(config)


@needs_broker
@pytest.mark.parametrize("before_the_start", [True, False])
def test_what_is_retained_after_a_stop_says_muted(tmp_path: Path, before_the_start: bool) -> None:
    with quiet_house(tmp_path) as (broker, heard, config):
        if before_the_start:
            (tmp_path / "state").mkdir()
            roomscribe("mute", "on", "--config", config)
        with in_silence(config) as running:
            until(lambda: heard.payloads("availability") == [b"online"])
            command(heard, b"ON")
            until(lambda: heard.payloads("microphone")[-1:] == [b"offline"])
            until(lambda: heard.payloads("mute")[-1:] == [b"ON"])
            # all that a start tells, and our own command
            until(lambda: {"speech", "stats", "set"} <= last_parts(heard.messages))
            told = len(heard.messages)
            end(running)
        until(lambda: heard.payloads("availability")[-1] == b"offline")
        after = last_parts(heard.messages[told:])
        assert after <= {"availability", "state"}, "nothing else has changed"
        with Subscriber(broker.port, name="later") as later:
            until(
                lambda: (
                    {"availability", "state", "mute", "microphone"} <= last_parts(later.messages)
                )
            )
            assert later.payloads("mute") == [b"ON"]
            assert later.payloads("microphone") == [b"offline"]
            assert later.state()["status"] == "muted"
    assert "to be opened" not in log_of(config)
