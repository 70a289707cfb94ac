"""The whole path, for real: a PulseAudio microphone, the daemon, Mosquitto, a subscriber."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rigs import broker as rig_broker, microphone as rig_microphone
from rigs.command import SPEECH, errors, roomscribe, start
from rigs.mqtt_client import Subscriber
from rigs.waiting import until

READY_WITHIN_S = 30.0

needs_broker = pytest.mark.skipif(bool(rig_broker.missing()), reason=rig_broker.missing() or "")
needs_microphone = pytest.mark.skipif(
    bool(rig_microphone.missing_packages()), reason="no PulseAudio to make a microphone of"
)
FIRST = SPEECH / "00.flac"
SECOND = SPEECH / "01.flac"


def write_config(folder: Path, port: int, extra: str = "") -> Path:
    config = folder / "roomscribe.toml"
    config.write_text(
        f'[appliance]\nnode = "kitchen"\n[mqtt]\nhost = "127.0.0.1"\nport = {port}\n'
        f'[store]\npath = "{folder / "state"}"\n{extra}',
        encoding="utf-8",
    )
    return config


@contextmanager
def daemon(*arguments: str | Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    running = start("run", *arguments, **environment)
    try:
        yield running
    finally:
        running.kill()
        running.wait(10)


def state_of(heard: Subscriber) -> dict[str, Any]:
    """The state that the appliance told last."""
    state: dict[str, Any] = json.loads(heard.payloads("state")[-1])
    return state


@contextmanager
def listening_house(
    folder: Path,
) -> Iterator[tuple[rig_microphone.PulseMicrophone, Subscriber, subprocess.Popen[str]]]:
    """A daemon that hears a private microphone, and a subscriber of its private broker."""
    microphone = rig_microphone.PulseMicrophone(folder / "microphone")
    with rig_broker.Broker() as broker, microphone, Subscriber(broker.port) as heard:
        config = write_config(folder, broker.port)
        with daemon("--config", config, **microphone.environment) as running:
            until(lambda: heard.payloads("availability") == [b"online"], READY_WITHIN_S)
            time.sleep(1)
            yield microphone, heard, running


@needs_broker
@needs_microphone
def test_sentences_spoken_into_the_microphone_reach_a_subscriber(tmp_path: Path) -> None:
    with listening_house(tmp_path) as (microphone, heard, running):

        def has_heard(number: int) -> bool:
            return len(heard.events()) == number

        for number, file in enumerate((FIRST, SECOND), start=1):
            microphone.speak(file)
            until(partial(has_heard, number), 15)
        state = state_of(heard)
        running.send_signal(signal.SIGTERM)
        assert running.wait(5) == 0
        until(lambda: heard.payloads("availability")[-1] == b"offline")
        events = heard.events()
    assert [event["seq"] for event in events] == [1, 2]
    assert all(event["text"] and "demo_model" in event["flags"] for event in events)
    assert all(not event["late"] and event["latency_ms"] > 0 for event in events)
    assert events[0]["end"] < events[1]["start"]
    assert state["status"] == "running"
    assert state["model"] == "home-en"
    speech = heard.payloads("speech")
    assert speech[-4:] == [b"ON", b"OFF", b"ON", b"OFF"]
    logged = roomscribe(
        "log", "--json", "--config", tmp_path / "roomscribe.toml"
    ).stdout.splitlines()
    assert [json.loads(line)["id"] for line in logged] == [event["id"] for event in events]


@needs_broker
@needs_microphone
def test_a_sentence_in_progress_is_published_when_the_daemon_is_stopped(tmp_path: Path) -> None:
    with listening_house(tmp_path) as (microphone, heard, running):
        microphone.speak(FIRST)
        assert not heard.events(), "stopped too late to show anything"
        begun_s = time.monotonic()
        running.send_signal(signal.SIGTERM)
        assert running.wait(5) == 0
        assert time.monotonic() - begun_s < 5
        assert len(heard.events()) == 1


@needs_broker
@needs_microphone
def test_a_microphone_that_was_lost_is_opened_again_when_it_is_back(tmp_path: Path) -> None:
    with listening_house(tmp_path) as (microphone, heard, running):
        until(lambda: heard.payloads("microphone") == [b"online"], READY_WITHIN_S)
        microphone.stop()
        until(lambda: heard.payloads("microphone")[-1] == b"offline")
        until(lambda: state_of(heard)["status"] != "running")
        degraded = state_of(heard)
        microphone.start()
        until(lambda: heard.payloads("microphone")[-1] == b"online", 10)
        microphone.speak(FIRST)
        until(heard.events, 10)
        assert running.poll() is None
    assert degraded["status"] == "degraded"
    assert "still plugged in" in degraded["reasons"][0]


@needs_broker
@needs_microphone
def test_a_microphone_that_comes_after_the_start_is_used(tmp_path: Path) -> None:
    microphone = rig_microphone.PulseMicrophone(tmp_path / "microphone")
    with rig_broker.Broker() as broker, microphone, Subscriber(broker.port) as heard:
        microphone.stop()
        config = write_config(tmp_path, broker.port)
        with daemon("--config", config, **microphone.environment) as running:
            until(lambda: heard.payloads("microphone") == [b"offline"], READY_WITHIN_S)
            until(lambda: state_of(heard)["status"] == "degraded")
            microphone.start()
            until(lambda: heard.payloads("microphone")[-1] == b"online", 10)
            microphone.speak(FIRST)
            until(heard.events, 10)
            assert running.poll() is None


@needs_broker
def test_a_recording_in_place_of_the_microphone_ends_the_daemon_with_it(tmp_path: Path) -> None:
    with rig_broker.Broker() as broker, Subscriber(broker.port) as heard:
        config = write_config(tmp_path, broker.port)
        done = roomscribe("run", "--config", config, "--recording", FIRST)
        assert done.returncode == 0
        until(lambda: len(heard.events()) == 1)
    assert heard.payloads("availability")[-1] == b"offline"


@needs_broker
def test_what_was_heard_without_a_broker_arrives_late_and_once(tmp_path: Path) -> None:
    with rig_broker.Broker(start=False) as broker:
        config = write_config(tmp_path, broker.port)
        alone = roomscribe("run", "--config", config, "--recording", FIRST)
        assert alone.returncode == 0
        assert "is away" in alone.stderr
        broker.start()
        with Subscriber(broker.port) as heard:
            roomscribe("run", "--config", config, "--recording", SECOND)
            until(lambda: len(heard.events()) == 2)
    assert [event["late"] for event in heard.events()] == [True, False]
    assert len({event["id"] for event in heard.events()}) == 2


@needs_broker
def test_a_wrong_broker_password_is_one_line_with_its_cure_and_stops_nothing(
    tmp_path: Path,
) -> None:
    secret = tmp_path / "password"
    secret.write_text("wrong-horse", encoding="utf-8")
    with rig_broker.Broker(users={"house": "right-horse"}) as broker:
        login = f'[mqtt]\nusername = "house"\npassword_file = "{secret}"\n'
        config = write_config(tmp_path, broker.port)
        config.write_text(
            config.read_text(encoding="utf-8").replace("[mqtt]\n", login), encoding="utf-8"
        )
        done = roomscribe("run", "--config", config, "--recording", FIRST)
    assert done.returncode == 0
    told = [line for line in done.stderr.splitlines() if "password" in line]
    assert len(told) == 1
    assert "wrong-horse" not in done.stderr
    assert len(roomscribe("log", "--config", config).stdout.splitlines()) == 1


def test_a_missing_password_file_is_a_configuration_error(tmp_path: Path) -> None:
    config = write_config(tmp_path, 1, "")
    text = config.read_text(encoding="utf-8").replace(
        "[mqtt]\n", '[mqtt]\nusername = "house"\npassword_file = "/no/such/file"\n'
    )
    config.write_text(text, encoding="utf-8")
    done = roomscribe("run", "--config", config, "--recording", FIRST)
    assert done.returncode == 78
    assert len(errors(done)) == 1
    assert "/no/such/file" in errors(done)[0]


def test_the_text_reaches_the_journal_only_if_configured(tmp_path: Path) -> None:
    config = tmp_path / "roomscribe.toml"
    base = f'[store]\npath = "{tmp_path / "state"}"\n[mqtt]\nenabled = false\n'
    config.write_text(base, encoding="utf-8")
    silent = roomscribe("run", "--config", config, "--recording", FIRST)
    text = roomscribe("log", "--config", config).stdout.split("%", 1)[1].strip()
    assert "transcript 1" in silent.stderr
    assert text not in silent.stderr
    config.write_text(base + "[journal]\ntext = true\n", encoding="utf-8")
    assert text in roomscribe("run", "--config", config, "--recording", FIRST).stderr
