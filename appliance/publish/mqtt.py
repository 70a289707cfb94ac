"""One connection to an MQTT broker, from the attempt to its end.

paho is given a new client for every attempt and never reconnects by itself: nothing is left in its
memory to be sent again behind the outbox's back, and the delays between attempts are ours. Its
network thread only drops news into a queue; whoever owns the link reads them in its own thread.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from paho.mqtt import MQTTException
from paho.mqtt.client import Client, MQTTv5, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from appliance.config import MqttSettings
from appliance.publish import events
from appliance.publish.mailbox import Mailbox
from appliance.publish.messages import PACKET_BYTES, Message, News

CONNECT_S = 5.0
"""Longest wait for the broker's host to accept the connection."""
ANSWER_S = 10.0
"""With the keep-alive on top: how long the broker may leave a message unacknowledged."""
THERE_S = 0.15
"""A broker that is there takes a connection within this, and one that ends drops it."""


def client_id(settings: MqttSettings, node: str) -> str:
    """The configured client id, or one made from the node; the same at every start."""
    return settings.client_id or f"roomscribe-{node}"


def is_there(settings: MqttSettings) -> bool:
    """True when the broker takes a connection and waits for us to speak; takes 0.3 s at most.

    One that is going down closes it, or takes none.
    """
    try:
        with socket.create_connection((settings.host, settings.port), THERE_S) as probe:
            probe.settimeout(THERE_S)
            try:
                probe.recv(1)
            except TimeoutError:
                return True
    except OSError:
        pass
    return False


def ping_s(settings: MqttSettings) -> int:
    """How long the connection may be silent before paho asks whether the broker is there.

    paho gives an idle connection up after twice that: keepalive_s + ANSWER_S at most.
    """
    return min(settings.keepalive_s, int(settings.keepalive_s + ANSWER_S) // 2)


class _Client(Client):
    """paho's, which does not end the connection for a message, nor die unheard of what it reads."""

    def __init__(self, settings: MqttSettings, node: str, failed: Callable[[Exception], None]):
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id=client_id(settings, node),
            protocol=MQTTv5 if settings.protocol == "5" else MQTTv311,
            reconnect_on_failure=False,
        )
        self._failed = failed

    def loop_forever(self, timeout: float = 1.0, retry_first_connection: bool = False) -> Any:
        """What loop_start's thread runs."""
        try:
            return super().loop_forever(timeout, retry_first_connection)
        except Exception as error:
            self._failed(error)
            return MQTTErrorCode.MQTT_ERR_PROTOCOL

    def _handle_publish(self) -> MQTTErrorCode:
        """Drops a message that paho cannot read.

        Else anybody throws us out who may publish: a response topic with U+FEFF is enough. Of QoS
        0, it needs no answer. A paho that names this method otherwise connects anew, as before.
        """
        try:
            return super()._handle_publish()
        except (MQTTException, ValueError):
            return MQTTErrorCode.MQTT_ERR_SUCCESS


class Link:
    """An attempt to connect and, if it succeeds, the connection. Owned by one thread."""

    def __init__(
        self,
        settings: MqttSettings,
        node: str,
        password: str | None,
        secure: ssl.SSLContext | None,
        wake: threading.Event,
    ) -> None:
        """Begins to connect in the background; `news` tells how it went, after `wake` is set."""
        self._mailbox = Mailbox(settings, wake)
        self._old = settings.protocol != "5"
        self._client = _Client(settings, node, self._mailbox.on_failure)
        self._client.connect_timeout = CONNECT_S
        if settings.username:
            self._client.username_pw_set(settings.username, password)
        if secure:
            self._client.tls_set_context(secure)
        will = events.topic(node, events.AVAILABILITY)
        self._client.will_set(will, events.OFFLINE, qos=1, retain=True)
        self._client.on_connect = self._mailbox.on_connect
        self._client.on_connect_fail = self._mailbox.on_connect_fail
        self._client.on_disconnect = self._mailbox.on_disconnect
        self._client.on_publish = self._mailbox.on_publish
        self._client.on_subscribe = self._mailbox.on_subscribe
        self._client.on_message = self._mailbox.on_message
        limits = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        limits.MaximumPacketSize = PACKET_BYTES
        self._client.connect_async(
            settings.host,
            settings.port,
            ping_s(settings),
            properties=None if self._old else limits,
        )
        self._client.loop_start()

    @property
    def news(self) -> deque[News]:
        """What has happened, oldest first, for the owner to take out.

        Bounded by the protocol: a few on the connection, one for each message in flight.
        """
        return self._mailbox.news

    @property
    def received(self) -> deque[Message]:
        """What subscriptions brought, oldest first, for the owner to take out; bounded."""
        return self._mailbox.received

    def subscribe(self, topic: str) -> None:
        """Listens on a topic, without what is retained there; for a connection that stands.

        With QoS 0: Mosquitto (2.0) never ends the delivery of a message of QoS 1 that is longer
        than PACKET_BYTES, and after twenty of them nothing else would come. Our session ends with
        the connection, so that QoS 1 would bring no more.
        """
        if self._old:
            _, message = self._client.subscribe(topic, qos=0)
        else:
            options = SubscribeOptions(qos=0, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
            _, message = self._client.subscribe(topic, options=options)
        if message is not None:
            self._mailbox.asked[message] = topic

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int = 1,
        retain: bool = False,
        expiry_s: int | None = None,
        correlation: bytes | None = None,
    ) -> int:
        """Sends a message and returns its number, which Acknowledged repeats when qos is 1.

        The broker forgets it after `expiry_s`. On a connection that has just ended the message is
        dropped; Lost is among the news then.
        """
        if self._old:
            return self._client.publish(topic, payload, qos, retain).mid
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        if expiry_s is not None:
            properties.MessageExpiryInterval = expiry_s
        if correlation is not None:
            properties.CorrelationData = correlation
        return self._client.publish(topic, payload, qos, retain, properties).mid

    def drop(self) -> None:
        """Ends it at once; does not wait for the network."""
        self._mailbox.dropped = True
        self._client.disconnect()

    def close(self, timeout_s: float) -> None:
        """Ends a standing connection with a DISCONNECT, behind all that was published.

        Returns when it has left, at the latest after `timeout_s`. The broker then keeps the last
        will to itself.
        """
        self._client.disconnect()
        self._mailbox.ended.wait(timeout_s)
