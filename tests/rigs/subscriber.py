"""What an MQTT subscriber of its own, `mosquitto_sub`, hears of an appliance, and how fast."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime

from rigs import broker as rig_broker


@dataclass(frozen=True)
class Heard:
    """A message as the subscriber got it, `at_s` Unix time."""

    at_s: float
    topic: str
    payload: str


def subscribe(broker: rig_broker.Broker, node: str, stack: ExitStack) -> queue.Queue[Heard]:
    """Everything that the appliance publishes, as a subscriber of its own hears it."""
    command = ["mosquitto_sub", "-h", broker.host, "-p", str(broker.port), "-q", "1"]
    command += ["-V", "mqttv5", "-t", f"roomscribe/{node}/#", "-F", "%U\t%t\t%p"]
    subscriber = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    stack.callback(subscriber.terminate)
    heard: queue.Queue[Heard] = queue.Queue()

    def read() -> None:
        assert subscriber.stdout is not None
        for line in subscriber.stdout:
            at, topic, payload = line.rstrip("\n").split("\t", 2)
            heard.put(Heard(float(at), topic.rsplit("/", 1)[1], payload))

    threading.Thread(target=read, daemon=True).start()
    return heard


def wait_for(heard: queue.Queue[Heard], topic: str, within_s: float) -> Heard:
    """The next message of a topic; TimeoutError when none comes."""
    deadline_s = time.monotonic() + within_s
    while (left_s := deadline_s - time.monotonic()) > 0:
        try:
            message = heard.get(timeout=left_s)
        except queue.Empty:
            break
        if message.topic == topic:
            return message
    raise TimeoutError(f"nothing on {topic} within {within_s:g} s")


def latency_ms(message: Heard) -> float:
    """From the end of speech, as the voice detector found it, to the subscriber."""
    event = json.loads(message.payload)
    return (message.at_s - datetime.fromisoformat(event["end"]).timestamp()) * 1000


def real_time_factor(events: list[Heard]) -> float:
    """Seconds of encoder and decoder for each second of the windows heard."""
    parsed = [json.loads(message.payload) for message in events]
    computed_ms = sum(event["encode_ms"] + event["decode_ms"] for event in parsed)
    return float(computed_ms / 1000 / sum(event["duration_s"] for event in parsed))
