"""The broker: reachable, lets us in, brings our own message back; what is retained there.

A client of its own for each check, with an id that is never the daemon's and without a last will:
nothing that it does is told to the daemon's subscribers.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from paho.mqtt.client import Client, MQTTMessage, MQTTv5, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion

from appliance.config import MqttSettings, Settings, node_name
from appliance.doctor.outcome import Outcome, Surroundings, failed, ok, skipped
from appliance.errors import PublishError
from appliance.publish import credentials, events, tls, troubles

CONNECT_S = 5.0
ANSWER_S = 3.0
LATE_S = 0.5
"""Retained messages come at once behind the SUBACK; so long is waited for them all the same."""
REFUSED = 128
"""MQTT 5: reason codes from this on are failures."""
BIRTH = "homeassistant/status"


@dataclass(slots=True)
class _Heard:
    """What paho's callbacks have told so far."""

    connect: tuple[int, str] | None = None
    subscribed: list[int] | None = None
    acknowledged: dict[int, int] = field(default_factory=dict)
    messages: list[MQTTMessage] = field(default_factory=list)
    trouble: str = ""


class Probe:
    """One short connection. No thread: `until` does the network's work."""

    def __init__(self, settings: MqttSettings, node: str) -> None:
        """Connects. Raises PublishError, and ConfigError for a file of password or TLS."""
        self._settings = settings
        self.heard = heard = _Heard()
        identity = f"roomscribe-{node}-doctor-{secrets.token_hex(3)}"
        protocol = MQTTv5 if settings.protocol == "5" else MQTTv311
        self._client = client = Client(CallbackAPIVersion.VERSION2, identity, protocol=protocol)
        client.connect_timeout = CONNECT_S
        if settings.username:
            client.username_pw_set(settings.username, credentials.password(settings))
        if secure := tls.context(settings):
            client.tls_set_context(secure)

        def connected(_c: Client, _u: Any, _f: Any, reason: Any, _p: Any) -> None:
            heard.connect = (reason.value, str(reason))

        def subscribed(_c: Client, _u: Any, _m: int, reasons: Any, _p: Any) -> None:
            heard.subscribed = [reason.value for reason in reasons]

        def acknowledged(_c: Client, _u: Any, number: int, reason: Any, _p: Any) -> None:
            heard.acknowledged[number] = reason.value

        def ended(_c: Client, _u: Any, _f: Any, reason: Any, _p: Any) -> None:
            heard.trouble = str(reason)

        client.on_connect, client.on_subscribe = connected, subscribed
        client.on_publish, client.on_disconnect = acknowledged, ended
        client.on_message = lambda _c, _u, message: heard.messages.append(message)
        try:
            client.connect(settings.host, settings.port, keepalive=30)
        except (OSError, ValueError) as error:
            if complaint := tls.complaint(settings, error):
                raise PublishError(complaint) from error
            raise self._away(str(error)) from error
        if not self.until(lambda: heard.connect is not None, CONNECT_S):
            raise self._away(heard.trouble or f"no answer within {CONNECT_S:g} s")
        code, reason = heard.connect or (0, "")
        if code in troubles.PASSING:
            raise self._away(reason)
        if code >= REFUSED:
            raise PublishError(troubles.refused(settings, identity, code, reason))

    def until(self, condition: Callable[[], bool], within_s: float) -> bool:
        """Talks to the broker until `condition` holds; False when it does not within the time."""
        deadline_s = time.monotonic() + within_s
        while not condition():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or self._client.loop(min(left_s, 0.1)):
                return condition()
        return True

    def subscribe(self, topics: Iterable[str]) -> list[int]:
        """The broker's codes for the topics, in order. Raises PublishError."""
        self.heard.subscribed = None
        self._client.subscribe([(topic, 1) for topic in topics])
        if not self.until(lambda: self.heard.subscribed is not None, ANSWER_S):
            raise self._away(self.heard.trouble or f"no answer within {ANSWER_S:g} s")
        return self.heard.subscribed or []

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> int:
        """The broker's code for a message of QoS 1. Raises PublishError."""
        number = self._client.publish(topic, payload, qos=1, retain=retain).mid
        if not self.until(lambda: number in self.heard.acknowledged, ANSWER_S):
            raise self._away(self.heard.trouble or f"no answer within {ANSWER_S:g} s")
        return self.heard.acknowledged[number]

    def _away(self, detail: str) -> PublishError:
        where = f"{self._settings.host}:{self._settings.port}"
        return PublishError(
            f"broker {where} does not answer ({' '.join(detail.split())}); see that it runs there "
            "(`systemctl status mosquitto`), that mqtt.host and mqtt.port are its own, and that "
            "nothing keeps this machine from it"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()


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
