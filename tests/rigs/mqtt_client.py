"""The tests' MQTT client, and a subscriber made of it: the only users of paho outside the product.

tests/mqtt/test_client.py apart, which looks at paho itself.
"""

import json
import threading
from typing import Any, Self

from paho.mqtt.client import Client, MQTTMessage, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from rigs.waiting import PATIENCE_S, until

SESSION_S = 3600


class MqttClient:
    """A connection to a broker on this machine that comes back by itself; use with `with`.

    A subclass says what happens in `connected`, `disconnected` and `received`, in paho's thread.
    """

    def __init__(
        self,
        port: int,
        name: str,
        *,
        user: str = "",
        password: str = "",
        protocol: MQTTProtocolVersion = MQTTv5,
    ) -> None:
        self._port = port
        self._client = Client(CallbackAPIVersion.VERSION2, name, protocol=protocol)
        self._client.reconnect_delay_set(1, 1)
        if user:
            self._client.username_pw_set(user, password)
        self._client.on_connect = lambda *_: self.connected()
        self._client.on_disconnect = lambda *_: self.disconnected()
        self._client.on_message = lambda _client, _user, message: self.received(message)

    def connected(self) -> None:
        """The broker has taken the connection."""

    def disconnected(self) -> None:
        """The connection has ended."""

    def received(self, message: MQTTMessage) -> None:
        """A message has come."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Publishes at QoS 1, once there is a connection, and returns when the broker has it."""
        until(self._client.is_connected)
        self._client.publish(topic, payload, 1, retain).wait_for_publish(5)

    def subscribe(self, *topics: str) -> None:
        """Asks for topics at QoS 1."""
        self._client.subscribe([(topic, 1) for topic in topics])

    def __enter__(self) -> Self:
        self._client.connect_async("127.0.0.1", self._port)
        self._client.loop_start()
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()


class Subscriber(MqttClient):
    """Everything that a real broker delivers on `topics`, in order.

    Its session outlives the connection, as that of Home Assistant's history: nothing is missed.
    """

    def __init__(
        self,
        port: int,
        user: str = "",
        password: str = "",
        name: str = "listener",
        topics: tuple[str, ...] = ("roomscribe/#",),
    ) -> None:
        super().__init__(port, name, user=user, password=password)
        self.messages: list[MQTTMessage] = []
        self._topics, self._ready = topics, threading.Event()
        self._client.on_subscribe = lambda *_: self._ready.set()

    def connected(self) -> None:
        self.subscribe(*self._topics)

    def received(self, message: MQTTMessage) -> None:
        self.messages.append(message)

    def payloads(self, name: str, node: str = "kitchen") -> list[bytes]:
        """Payloads of one of the node's topics."""
        topic = f"roomscribe/{node}/{name}"
        return [bytes(message.payload) for message in list(self.messages) if message.topic == topic]

    def state(self) -> dict[str, Any]:
        """The state that the appliance told last."""
        state: dict[str, Any] = json.loads(self.payloads("state")[-1])
        return state

    def events(self) -> list[dict[str, Any]]:
        """The transcripts' events."""
        return [json.loads(payload) for payload in self.payloads("transcript")]

    def texts(self) -> list[str]:
        """The transcripts' texts."""
        return [event["text"] for event in self.events()]

    def __enter__(self) -> Self:
        """Returns when it is subscribed."""
        session = properties_of(PacketTypes.CONNECT)
        session.SessionExpiryInterval = SESSION_S
        self._client.connect("127.0.0.1", self._port, clean_start=False, properties=session)
        self._client.loop_start()
        assert self._ready.wait(PATIENCE_S)
        return self


def properties_of(packet: int) -> Properties:
    """Empty ones, for an MQTT packet of a type of paho's PacketTypes."""
    return Properties(packet)  # type: ignore[no-untyped-call]  # paho has no types there


def publish_once(port: int, topic: str, payload: bytes, *, retain: bool = False) -> None:
    """Publishes one message as somebody who comes for that alone."""
    with MqttClient(port, "") as client:
        client.publish(topic, payload, retain=retain)
