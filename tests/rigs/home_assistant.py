"""A Home Assistant of the tests: subscribes late, believes the discovery message, runs automations.

What it does was seen with the real one: after a connection it subscribes only seconds later, then
says `online`; an event that comes while its entity is unavailable runs nothing; when it stops it
reads nothing any more for seconds, and only then says `offline`.
"""

import json
import threading
from typing import Any

from paho.mqtt.client import MQTTMessage, MQTTv311
from rigs.mqtt_client import MqttClient

STATUS = "homeassistant/status"
DISCOVERY = "homeassistant/device/kitchen/config"
STATE_KEYS = ("state_topic", "json_attributes_topic")


class HomeAssistant(MqttClient):
    """Comes back by itself after the broker does."""

    def __init__(
        self, port: int, *, subscribes_after_s: float = 0.0, birth_after_s: float = 0.1
    ) -> None:
        super().__init__(port, "house", protocol=MQTTv311)
        self._client.will_set(STATUS, b"offline")
        self.components: dict[str, Any] = {}
        self.discoveries = 0
        self.values: dict[str, bytes] = {}
        """What came last on each topic."""
        self.events: list[dict[str, Any]] = []
        """Every transcript that came while its entity was available."""
        self.missed: list[dict[str, Any]] = []
        """Those that came while it was not."""
        self.order: list[str] = []
        """The topics in the order of their messages."""
        self.subscribes_after_s, self._birth_after_s = subscribes_after_s, birth_after_s
        self._reads = True
        self._connection = 0
        self._availability: list[dict[str, str]] = []

    def is_available(self, component: str = "transcript") -> bool:
        """True when all the component's availability topics say so."""
        wanted = self.components.get(component, {}).get("availability") or self._availability
        return bool(wanted) and all(
            self.values.get(e["topic"]) == e.get("payload_available", "online").encode()
            for e in wanted
        )

    @property
    def fired(self) -> list[str]:
        """The ids for which the automation of the blueprint runs."""
        return [event["id"] for event in self.events if not event["late"]]

    def stop_reading(self) -> None:
        """It is told to end: its subscriptions stay, and the broker acknowledges for it."""
        self._reads = False

    def leave(self) -> None:
        """Says offline, as it does before it restarts."""
        self._client.publish(STATUS, b"offline", qos=1).wait_for_publish(2)
        self._client.disconnect()

    def come_back(self) -> None:
        """After `leave`."""
        self._client.loop_stop()
        self._reads = True
        self._client.reconnect()
        self._client.loop_start()

    def command(self, component: str, payload: bytes) -> None:
        """Somebody turns a switch."""
        self._client.publish(self.components[component]["command_topic"], payload, qos=1)

    def __exit__(self, *_: object) -> None:
        self._connection = -1
        super().__exit__()

    def connected(self) -> None:
        self._connection += 1
        self._later(self.subscribes_after_s, self._subscribe)

    def disconnected(self) -> None:
        self.values.clear()

    def _later(self, delay_s: float, what: Any) -> None:
        """Does `what` then, if the connection is still the same."""
        mine = self._connection

        def act() -> None:
            if self._connection == mine:
                what()

        timer = threading.Timer(delay_s, act)
        timer.daemon = True
        timer.start()

    def _subscribe(self) -> None:
        self.subscribe(DISCOVERY)
        self._subscribe_to_entities()
        self._later(self._birth_after_s, self._be_born)

    def _be_born(self) -> None:
        self._client.publish(STATUS, b"online")

    def _subscribe_to_entities(self) -> None:
        topics = {e["topic"] for e in self._availability}
        for component in self.components.values():
            topics |= {component[key] for key in STATE_KEYS if key in component}
            topics |= {e["topic"] for e in component.get("availability", ())}
        if topics:
            self.subscribe(*sorted(topics))

    def received(self, message: MQTTMessage) -> None:
        if not self._reads:
            return
        self.order.append(message.topic)
        self.values[message.topic] = bytes(message.payload)
        if message.topic == DISCOVERY:
            found = json.loads(message.payload)
            self.discoveries += 1
            known = set(self.components)
            self.components = {n: c for n, c in found["components"].items() if len(c) > 1}
            self._availability = found["availability"]
            if set(self.components) != known:
                self._subscribe_to_entities()
        elif message.topic.endswith("/transcript") and not message.retain:
            event = json.loads(message.payload)
            (self.events if self.is_available() else self.missed).append(event)
