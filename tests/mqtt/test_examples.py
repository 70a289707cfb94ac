"""The subscribers of examples/ print what an appliance publishes, as docs/mqtt.md shows it."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion
from rigs.broker import Broker
from rigs.needs import needs_broker, require

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
WITHIN_S = 30.0

pytestmark = needs_broker


def documented() -> dict[str, Any]:
    """The transcript that docs/mqtt.md shows."""
    text = (ROOT / "docs" / "mqtt.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- transcript -->\n```json\n(.*?)```", text, re.DOTALL)
    assert found, "docs/mqtt.md shows no transcript"
    event: dict[str, Any] = json.loads(found[1])
    return event


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def printed(command: list[str], broker: Broker, events: list[dict[str, Any]]) -> list[str]:
    """What the command prints of the events, which are published once it listens."""
    process = subprocess.Popen(
        [*command, broker.host, str(broker.port)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line.rstrip("\n"))

    reader = threading.Thread(target=read)
    reader.start()
    client = Client(CallbackAPIVersion.VERSION2)
    client.connect(broker.host, broker.port)
    client.loop_start()
    try:
        deadline_s = time.monotonic() + WITHIN_S
        while "SUBSCRIBE" not in broker.log():
            assert time.monotonic() < deadline_s, "the example does not subscribe"
            time.sleep(0.05)
        for event in events:
            topic = f"roomscribe/{event['node']}/transcript"
            client.publish(topic, json.dumps(event), qos=1).wait_for_publish(5)
        return [lines.get(timeout=WITHIN_S) for _ in events]
    finally:
        client.disconnect()
        client.loop_stop()
        os.killpg(process.pid, signal.SIGKILL)
        reader.join(30)
        with process:
            process.wait(30)


@pytest.mark.parametrize("name", ["subscriber.py", "subscriber.sh"])
def test_a_subscriber_prints_each_sentence_and_which_are_late(name: str, broker: Broker) -> None:
    if name.endswith(".sh"):
        require("mosquitto_sub", package="mosquitto-clients")
        require("jq")
    command = [sys.executable] if name.endswith(".py") else []
    plain = documented()
    late = plain | {"node": "study", "text": 'say "grüezi"', "late": True}
    lines = printed([*command, str(EXAMPLES / name)], broker, [plain, late])
    assert lines == ["kitchen: turn on the light", 'study: say "grüezi" (late)']
