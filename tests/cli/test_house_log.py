"""`roomscribe log --house`: what all rooms on a real broker heard."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rigs.broker import Broker
from rigs.daemon import write_config
from rigs.mqtt_client import publish_once
from rigs.needs import needs_broker
from rigs.publishing import transcript
from rigs.rooms import RealRoom
from rigs.waiting import until

from appliance.cli import main
from appliance.config import HistorySettings, StoreSettings
from appliance.store import Store

NOW = datetime.now(UTC)


def log(config: Path, *arguments: str) -> int:
    return main.main(["log", "--config", str(config), "--house", *arguments])


@needs_broker
def test_the_sentences_of_all_rooms_come_in_order_and_silent_rooms_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        Broker() as broker,
        RealRoom("hall", tmp_path / "hall", broker.port, history=HistorySettings(True, 2)) as hall,
    ):
        config = write_config(tmp_path, broker.port)
        with Store.open(StoreSettings(path=str(tmp_path / "state"))) as own:
            for minutes, text in ((9, "first"), (3, "fourth")):
                end = NOW - timedelta(minutes=minutes)
                own.append(transcript(text, end=end, heard_also=("hall",) if minutes == 3 else ()))
        for minutes, text in ((8, "second"), (7, "third \x1b[1m"), (1, "fifth")):
            hall.store.append(transcript(text, end=NOW - timedelta(minutes=minutes)))
        until(lambda: hall.publisher.status().connected)
        assert log(config) == 0
        shown = capsys.readouterr()
        rows = [line.split("  ", 1)[1] for line in shown.out.splitlines()]
        assert [row.split()[:2] for row in rows] == [
            ["kitchen", "first"], ["hall", "second"], ["hall", "third"], ["kitchen", "fourth"],
            ["hall", "fifth"],
        ]  # fmt: skip
        assert rows[3].endswith("fourth  (also heard in hall)") and "\x1b" not in rows[2]
        assert shown.err == ""
        assert main.main(["log", "--config", str(config)]) == 0
        assert capsys.readouterr().out.endswith("fourth  (also heard in hall)\n")
        publish_once(broker.port, "roomscribe/office/availability", b"online", retain=True)
        assert log(config, "--grep", "FI", "--limit", "2", "--json") == 0
        shown = capsys.readouterr()
        assert [json.loads(line)["text"] for line in shown.out.splitlines()] == ["first", "fifth"]
        assert shown.err.endswith("office: no answer. Set history.enabled = true there.\n")


def test_without_mqtt_there_are_no_other_rooms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert log(write_config(tmp_path)) > 0
    assert "mqtt.enabled is false" in capsys.readouterr().err
