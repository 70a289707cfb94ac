"""The broker: reachable, lets us in, brings our own message back; what is retained there.

A client of its own for each check, with an id that is never the daemon's and without a last will:
nothing that it does is told to the daemon's subscribers.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable
from pathlib import Path

from appliance.config import MqttSettings, Settings, node_name
from appliance.doctor.outcome import Outcome, Surroundings, failed, ok, skipped
from appliance.mqtt import events
from appliance.mqtt import tls as credentials
from appliance.mqtt.probe import ANSWER_S, REFUSED, Probe

LATE_S = 0.5
"""Retained messages come at once behind the SUBACK; so long is waited for them all the same."""

BIRTH = "homeassistant/status"


def reachable(around: Surroundings) -> Outcome:
    """The broker is there and lets us in."""
    mqtt = around.settings.mqtt
    if not mqtt.enabled:
        return skipped("mqtt.enabled is false")
    if why := _unreadable_password(mqtt):
        return skipped(why)
    around.doing(f"connecting to the broker {mqtt.host}:{mqtt.port}")
    begun_s = time.monotonic()
    with Probe(mqtt, node_name(around.settings)):
        took_ms = 1000 * (time.monotonic() - begun_s)
    who = f"user {mqtt.username!r}" if mqtt.username else "without a user name"
    return ok(f"{mqtt.host}:{mqtt.port} lets us in {who}, {took_ms:.0f} ms")


def round_trip(around: Surroundings) -> Outcome:
    """A message on a topic of our own comes back."""
    mqtt, node = around.settings.mqtt, node_name(around.settings)
    if why := _no_broker(around):
        return skipped(why)
    topic = events.topic(node, f"doctor/{secrets.token_hex(4)}")
    cure = _allow(mqtt, node)
    around.doing("waiting for the broker")
    with Probe(mqtt, node) as probe:
        if probe.subscribe([topic])[0] >= REFUSED:
            return failed(f"the broker refuses to let us read {topic}", cure)
        begun_s = time.monotonic()
        code = probe.publish(topic, b"doctor")
        if code >= REFUSED:
            return failed(f"the broker refuses to let us write {topic} (reason code {code})", cure)
        if not probe.until(lambda: bool(probe.heard.messages), ANSWER_S):
            return failed(f"what we write to {topic} does not come back", cure)
        took_ms = 1000 * (time.monotonic() - begun_s)
    return ok(f"a message came back after {took_ms:.1f} ms")


def home_assistant(around: Surroundings) -> Outcome:
    """What Home Assistant left at its birth topic; for information."""
    if why := _no_broker(around):
        return skipped(why)
    around.doing("waiting for the broker")
    told = _retained(around.settings, [BIRTH]).get(BIRTH)
    if told is None:
        return skipped(f"nothing retained at {BIRTH}, which is usual; nothing to conclude from it")
    if told == "online":
        return ok(f"{BIRTH} says online")
    return skipped(f"{BIRTH} says {told!r}: Home Assistant is down or restarting")


def retained(settings: Settings, names: Iterable[str], within_s: float) -> dict[str, str]:
    """What is retained on these topics of the node. Raises PublishError and ConfigError."""
    topics = {events.topic(node_name(settings), name): name for name in names}
    found = _retained(settings, topics, within_s)
    return {topics[topic]: payload for topic, payload in found.items()}


def _retained(
    settings: Settings, topics: Iterable[str], within_s: float = LATE_S
) -> dict[str, str]:
    topics = list(topics)
    with Probe(settings.mqtt, node_name(settings)) as probe:
        probe.subscribe(topics)
        probe.until(lambda: len(probe.heard.messages) == len(topics), min(within_s, LATE_S))
        return {
            message.topic: message.payload.decode(errors="replace")
            for message in probe.heard.messages
        }


def _no_broker(around: Surroundings) -> str:
    """Why there is nothing to ask; empty when there is."""
    if not around.settings.mqtt.enabled:
        return "mqtt.enabled is false"
    return _unreadable_password(around.settings.mqtt)


def _unreadable_password(mqtt: MqttSettings) -> str:
    """Why the daemon's password is not to be had by this user; empty when it is or none is used."""
    if not mqtt.username or os.geteuid() == 0:
        return ""
    file = Path(mqtt.password_file).expanduser()
    if mqtt.password_file:
        hidden = file.exists() and not os.access(file, os.R_OK)
    else:
        hidden = credentials.password(mqtt) is None
    return "the broker's password is not for this user: sudo roomscribe doctor" if hidden else ""


def _allow(mqtt: MqttSettings, node: str) -> str:
    who = repr(mqtt.username) if mqtt.username else "clients without a user name"
    return f"allow {who} to read and write roomscribe/{node}/# in the broker's access list"
