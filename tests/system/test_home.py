"""The daemon in a home that has a Home Assistant: names, sentences for Assist, and its answers."""

import json
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rigs import broker as rig_broker
from rigs.daemon import daemon, end, in_silence, log_of, write_config
from rigs.home_websocket import DEVICE, TOKEN, Hub
from rigs.mqtt_client import Subscriber
from rigs.needs import needs_broker
from rigs.recordings import sentences
from rigs.transcriber import HEARD, FakeTranscriber
from rigs.waiting import PATIENCE_S, until

from appliance import config
from appliance.config import CaptureSettings
from appliance.daemon.assembly import Factories, build
from appliance.daemon.pipeline import Pipeline
from appliance.homeassistant.names import NAMES_FILE

SENTENCE = sentences()[3]


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as running:
        yield running


def written(folder: Path, hub: Hub, port: int = 0, phrase: str = "", **more: Any) -> Path:
    """A configuration for that home."""
    token = folder / "token"
    token.write_text(TOKEN, encoding="utf-8")
    home = {"url": hub.url, "token_file": token}
    return write_config(folder, port, homeassistant=home, assist={"phrase": phrase}, **more)


@needs_broker
def test_a_sentence_to_assist_is_stored_then_handed_over_and_answered(
    hub: Hub, tmp_path: Path
) -> None:
    model: Any = FakeTranscriber()
    model.answer = replace(HEARD, text="Computer, turn on the light", confidence=0.9)
    with rig_broker.Broker() as broker, Subscriber(broker.port) as heard:
        settings = config.load(written(tmp_path, hub, broker.port, "computer"))
        recording = CaptureSettings(recording=str(SENTENCE.file))
        pipeline = Pipeline(
            build(replace(settings, capture=recording), Factories(transcriber=lambda *_: model))
        )
        pipeline.start()
        try:
            hub.wait_for("config/floor_registry/list")
            pipeline.ended.wait(PATIENCE_S)
            until(lambda: heard.payloads("assist/reply"))
        finally:
            pipeline.stop()
        pipeline.check()
        (event,) = heard.events()
        (reply,) = [json.loads(one) for one in heard.payloads("assist/reply")]
    assert reply["id"] == event["id"]
    assert (reply["status"], reply["speech"]) == ("action_done", "Turned on the light")
    (run,) = hub.runs
    assert run["device_id"] == DEVICE["id"]
    assert run["input"] == {"text": "turn on the light"}


@needs_broker
def test_a_daemon_keeps_names_and_hands_nothing_unsure_over(hub: Hub, tmp_path: Path) -> None:
    first = SENTENCE.text.split()[0]
    with rig_broker.Broker() as broker, Subscriber(broker.port) as heard:
        path = written(tmp_path, hub, broker.port, first, gates={"low_confidence": 1.0})
        with daemon(path, "--recording", SENTENCE.file) as running:
            until(heard.events)
            assert running.wait(PATIENCE_S) == 0
        assert heard.payloads("assist/reply") == []
    assert hub.runs == []
    names = tmp_path / "state" / NAMES_FILE
    assert stat.S_IMODE(names.stat().st_mode) == 0o600
    assert "Ceiling lamp" in names.read_text(encoding="utf-8")
    log = log_of(path)
    assert "a sentence for Assist is not handed over: low_confidence" in log
    assert "7 names of 2 exposed entities" in log
    assert TOKEN not in log


@needs_broker
def test_a_home_assistant_that_is_away_is_only_a_reason(hub: Hub, tmp_path: Path) -> None:
    hub.stop()
    with rig_broker.Broker() as broker, Subscriber(broker.port) as heard:
        path = written(tmp_path, hub, broker.port)
        with in_silence(path) as running:

            def reasons() -> str:
                return "; ".join(heard.state()["reasons"]) if heard.payloads("state") else ""

            until(lambda: "cannot be reached: Connection refused" in reasons())
            assert heard.state()["status"] == "running"
            hub.start()
            until(lambda: not reasons())
            hub.silent = {"config/device_registry/list"}
            hub.change()
            end(running)
