"""One connection to an MQTT broker, from the attempt to its end.

The only module that knows paho. It is given a new client for every attempt and never reconnects by
itself: nothing is left in its memory to be sent again behind the outbox's back, and the delays
between attempts are ours. Its network thread only puts news and received messages into queues;
whoever owns the link reads them in its own thread.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paho.mqtt import MQTTException
from paho.mqtt.client import Client, MQTTv5, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from appliance.config import MqttSettings
from appliance.mqtt import credentials, events

PACKET_BYTES = 65536
"""The broker is told to keep larger messages to itself."""
RECEIVED_WAITING = 100
"""Messages received and not looked at yet; beyond it the oldest are dropped."""
CONNECT_S = 5.0
"""Longest wait for the broker's host to accept the connection."""
PROBE_S = 0.15
"""A broker that is there takes a connection within this, and one that ends drops it."""
FIRST_FAILURE = 128
"""Reason codes from here on say no."""


@dataclass(frozen=True, slots=True)
class Connected:
    """The broker let us in."""

    receive_maximum: int
    """How many unacknowledged messages it takes."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The broker answered and refused (CONNACK with a reason code of MQTT 5)."""

    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Untrusted:
    """No encryption came about: the broker, or we, are not who the other side wants."""

    reason: str
    """One whole line with its fix."""


@dataclass(frozen=True, slots=True)
class Lost:
    """No connection came about, or the one that stood has ended."""

    code: int
    """MQTT 5 reason code; 0 when there is none."""
    reason: str


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A message of QoS 1 has its PUBACK; 16 means that nobody subscribes, from 128 on refused."""

    message: int
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The SUBACK of a subscription; codes from 128 on refuse it."""

    message: int
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """What somebody published on a topic that we listen on; nothing in it is to be trusted."""

    topic: str
    payload: bytes
    retained: bool
    """True for what the broker had kept when we subscribed."""
    response_topic: str = ""
    """Where the sender wants the answer (MQTT 5); empty when it wants none."""
    correlation: bytes | None = None
    """What the answer repeats (MQTT 5)."""


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message to publish."""

    topic: str
    """Of an answer, checked by whoever made it: no wildcard, none of our own topics."""
    payload: bytes
    qos: int = 1
    retain: bool = False
    expiry_s: int | None = None
    """The broker forgets it after this (MQTT 5)."""
    correlation: bytes | None = None


BrokerEvent = Connected | Refused | Untrusted | Lost | Acknowledged | Subscribed


def matches(pattern: str, topic: str) -> bool:
    """True when a subscription to `pattern`, in which + stands for one level, brings `topic`."""
    levels, found = pattern.split("/"), topic.split("/")
    return len(levels) == len(found) and all(
        level in ("+", there) for level, there in zip(levels, found, strict=True)
    )


class Mailbox:
    """paho's callbacks: put news and received messages into queues and set `wake`.

    It does not know its link: a client that referred to its owner would not be freed, with its
    sockets, when the attempt has failed.
    """

    def __init__(self, settings: MqttSettings, wake: threading.Event, *, bounded: bool) -> None:
        """`bounded` keeps to PACKET_BYTES and RECEIVED_WAITING."""
        self._settings = settings
        self._hint = credentials.tls_hint(settings)
        self._bounded = bounded
        self._met = False
        self.news: deque[BrokerEvent] = deque()
        self.received: deque[ReceivedMessage] = deque(maxlen=RECEIVED_WAITING if bounded else None)
        self.ended = threading.Event()
        self.dropped = False
        self._wake = wake

    def on_connect(
        self, client: Any, _data: Any, _flags: Any, reason: Any, properties: Any
    ) -> None:
        """The broker's CONNACK."""
        if self.dropped:  # while the attempt was under way; it must not live on beside a new one
            client.disconnect()
        elif reason.is_failure:
            self._put_event(Refused(reason.value, str(reason)))
        else:
            self._met = True
            self._put_event(Connected(getattr(properties, "ReceiveMaximum", 65535)))

    def on_connect_fail(self, _client: Any, _data: Any) -> None:
        """No connection: paho calls this while it handles the error, and says no more about it."""
        error = sys.exc_info()[1]
        if trouble := credentials.explain_tls_error(self._settings, error):
            self._put_event(Untrusted(trouble))
        else:
            reason = getattr(error, "strerror", None) or error  # without the number of an OSError
            self._put_event(Lost(0, str(reason or "no connection")))

    def on_disconnect(self, _client: Any, _data: Any, flags: Any, reason: Any, _: Any) -> None:
        """The end, by the broker's DISCONNECT, by ours, or by the network."""
        self.ended.set()
        if flags.is_disconnect_packet_from_server:
            self._put_event(Lost(reason.value, str(reason)))
        elif reason == "Unspecified error":
            self._put_event(Lost(0, f"the connection broke{'' if self._met else self._hint}"))
        else:
            self._put_event(Lost(0, str(reason)))

    def on_failure(self, error: Exception) -> None:
        """paho's thread has ended with an error: of what the broker sent, or of the host's name."""
        self.ended.set()
        why = "what it says cannot be read" if self._met else "no connection"
        self._put_event(Lost(0, f"{why} ({type(error).__name__}: {str(error)[:80]!r})"))

    def on_publish(self, _client: Any, _data: Any, message: int, reason: Any, _: Any) -> None:
        """A PUBACK, or a message of QoS 0 that has left."""
        self._put_event(Acknowledged(message, reason.value, str(reason)))

    def on_subscribe(self, _client: Any, _data: Any, message: int, reasons: Any, _: Any) -> None:
        """A SUBACK."""
        for reason in reasons:
            self._put_event(Subscribed(message, reason.value, str(reason)))

    def on_message(self, _client: Any, _data: Any, message: Any) -> None:
        """A message on a subscribed topic."""
        if self._bounded and len(message.payload) > PACKET_BYTES:
            return
        properties = message.properties
        correlation = getattr(properties, "CorrelationData", None)
        response = getattr(properties, "ResponseTopic", "")
        payload, retained = bytes(message.payload), bool(message.retain)
        self.received.append(
            ReceivedMessage(message.topic, payload, retained, response, correlation)
        )
        self._wake.set()

    def _put_event(self, news: BrokerEvent) -> None:
        self.news.append(news)
        self._wake.set()


def accepts_connections(settings: MqttSettings, within_s: float = PROBE_S) -> bool:
    """True when the broker takes a connection and waits for us to speak; takes 0.3 s at most.

    One that is going down closes it, or takes none.
    """
    try:
        with socket.create_connection((settings.host, settings.port), within_s) as probe:
            probe.settimeout(within_s)
            try:
                probe.recv(1)
            except TimeoutError:
                return True
    except OSError:
        pass
    return False


class _PahoClient(Client):
    """paho's, which neither ends the connection for a message nor its thread without a word."""

    def __init__(self, settings: MqttSettings, client_id: str, failed: Callable[[Exception], None]):
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
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


class BrokerLink:
    """An attempt to connect and, if it succeeds, the connection. Owned by one thread."""

    def __init__(
        self,
        settings: MqttSettings,
        client_id: str,
        wake: threading.Event,
        *,
        keepalive_s: int,
        node: str = "",
    ) -> None:
        """Begins to connect in the background; `news` tells how it went, after `wake` is set.

        With a `node`, the connection is the appliance's: the broker says offline when it breaks
        (its last will), and what is received is bounded. Without, it is a probe's.

        Raises ConfigError when a file of the password or of TLS cannot be read.
        """
        password, secure = credentials.read_password(settings), credentials.tls_context(settings)
        self._mailbox = box = Mailbox(settings, wake, bounded=bool(node))
        self.news, self.received = box.news, box.received
        """What has happened, and messages on subscribed topics, oldest first, for the owner to take
        out. News are bounded by the protocol: a few on the connection, one a message in flight."""
        self._old = settings.protocol != "5"
        self._client = _PahoClient(settings, client_id, box.on_failure)
        self._client.connect_timeout = CONNECT_S
        if settings.username:
            self._client.username_pw_set(settings.username, password)
        if secure:
            self._client.tls_set_context(secure)
        limits = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        if node:
            will = events.topic(node, events.AVAILABILITY)
            self._client.will_set(will, events.OFFLINE, qos=1, retain=True)
            limits.MaximumPacketSize = PACKET_BYTES
        self._client.on_connect, self._client.on_connect_fail = box.on_connect, box.on_connect_fail
        self._client.on_disconnect, self._client.on_publish = box.on_disconnect, box.on_publish
        self._client.on_subscribe, self._client.on_message = box.on_subscribe, box.on_message
        more = None if self._old else limits
        self._client.connect_async(settings.host, settings.port, keepalive_s, properties=more)
        self._client.loop_start()

    def subscribe(self, topic: str, *, retained: bool = False) -> int:
        """Listens on a topic; the message's number, which Subscribed repeats.

        By default without what is retained there (MQTT 5). For a connection that stands.

        With QoS 0: Mosquitto (2.0) never ends the delivery of a message of QoS 1 that is longer
        than PACKET_BYTES, and after twenty of them nothing else would come. Our session ends with
        the connection, so that QoS 1 would bring no more.
        """
        if self._old:
            _, message = self._client.subscribe(topic, qos=0)
        else:
            handling = (
                SubscribeOptions.RETAIN_SEND_ON_SUBSCRIBE
                if retained
                else SubscribeOptions.RETAIN_DO_NOT_SEND
            )
            options = SubscribeOptions(qos=0, retainHandling=handling)
            _, message = self._client.subscribe(topic, options=options)
        return message or 0

    def publish(self, message: OutgoingMessage) -> int:
        """Sends it and returns its number, which Acknowledged repeats when its QoS is 1.

        On a connection that has just ended it is dropped; Lost is among the news then.
        """
        properties = None if self._old else Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        if properties and message.expiry_s is not None:
            properties.MessageExpiryInterval = message.expiry_s
        if properties and message.correlation is not None:
            properties.CorrelationData = message.correlation
        return self._client.publish(
            message.topic, message.payload, message.qos, message.retain, properties
        ).mid

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
