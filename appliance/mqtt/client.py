"""One connection to an MQTT broker, from the attempt to its end.

The only module that uses paho. Every attempt gets a new client, which never reconnects by itself:
so paho sends nothing again behind the outbox's back, and the pauses between attempts are ours.
paho's network thread only puts events and received messages into queues; the owner of the link
reads them in its own thread.
"""

import socket
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from paho.mqtt import MQTTException
from paho.mqtt.client import Client, MQTTMessageInfo, MQTTv5, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from appliance.config import MqttSettings
from appliance.mqtt import credentials, events, troubles
from appliance.records import OutgoingMessage
from appliance.system import explain_wrong_time

PACKET_BYTES = 65536
"""The broker is told not to send larger messages."""
RECEIVED_WAITING = 100
"""Received messages of one kind that wait to be handled; beyond this, the oldest are dropped."""
URGENT = "set"
"""Kind of the messages that are handled before all others: `mute/set`."""
CONNECT_S = 5.0
"""Longest wait until the broker's host accepts the connection."""
NO_BROKER = "what answers there is not an MQTT broker (a web server?)"
LARGEST_BYTES = 268_435_460
"""The protocol's limit of a packet (MQTT 5, 2.1.4)."""
FIRST_FAILURE = 128
"""Reason codes from here on are failures."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """What we expect of a broker."""

    speaks_5: bool = True
    """MQTT 5; else 3.1.1, without expiry, reasons of a PUBACK, and response topics."""
    retains: bool = True
    most_qos: int = 1

    def without(self, code: int) -> "Abilities | None":
        """Return what is left for a broker that refuses us with this CONNACK code; None: it means
        something else."""
        match code:
            case troubles.UNSUPPORTED if self.speaks_5:
                return replace(self, speaks_5=False)
            case troubles.NO_RETAIN if self.retains:
                return replace(self, retains=False)
            case troubles.NO_QOS if self.most_qos:
                return replace(self, most_qos=0)
        return None

    def losses(self) -> str:
        """Return what is lost with a broker that has only these; "" with FULL."""
        lost = {
            "it speaks MQTT 3.1.1: transcripts do not wait for a subscriber or expire there, and "
            "answers to command/expect have no topic of the client's choice": not self.speaks_5,
            "it retains nothing: who subscribes later sees no state before it changes": (
                not self.retains
            ),
            "it knows QoS 0 only: transcripts may be lost on the way": not self.most_qos,
        }
        return "; ".join(text for text, holds in lost.items() if holds)


FULL = Abilities()


@dataclass(frozen=True, slots=True)
class Connected:
    """The broker let us in."""

    largest_bytes: int
    """Longest packet that it accepts."""
    abilities: Abilities = FULL


@dataclass(frozen=True, slots=True)
class Refused:
    """The broker answered and refused (CONNACK with a reason code of MQTT 5)."""

    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Untrusted:
    """TLS failed: one side does not trust the other."""

    reason: str
    """What happened and what to do, on one line."""
    by_clock: bool = False
    """True if a wrong clock may be why."""


@dataclass(frozen=True, slots=True)
class Lost:
    """No connection could be made, or it has ended."""

    code: int
    """MQTT 5 reason code; 0 without one."""
    reason: str
    unanswered: bool = False
    """True if the broker accepted the connection and ended it without a CONNACK."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The PUBACK of a message of QoS 1, or the SUBACK of a subscription; code 16: no subscriber,
    from 128 on: refused."""

    message: int
    code: int
    reason: str
    subscription: bool = False


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message on a topic that we subscribe to; nothing in it may be trusted."""

    topic: str
    payload: bytes
    retained: bool
    """True if the broker had retained it before we subscribed."""
    response_topic: str = ""
    """Topic for the answer (MQTT 5); "" if the sender wants none."""
    correlation: bytes | None = None
    """Data that the answer must repeat (MQTT 5)."""


BrokerEvent = Connected | Refused | Untrusted | Lost | Acknowledged


class ReceivedQueue:
    """Received messages by their kind, the last level of their topic: a flood of one kind pushes
    no other message out. paho's thread puts them in, the link's owner takes them."""

    def __init__(self, most: int | None) -> None:
        """Keep `most` of each kind; None: all."""
        self._most = most
        self._kinds: dict[str, deque[tuple[int, ReceivedMessage]]] = {}
        self._count = 0

    def put(self, message: ReceivedMessage) -> None:
        """Add a message."""
        self._count += 1
        kind = message.topic.rpartition("/")[2]
        if kind not in self._kinds:
            self._kinds[kind] = deque(maxlen=self._most)
        self._kinds[kind].append((self._count, message))

    def take(self, *, urgent: bool = False) -> ReceivedMessage | None:
        """Remove and return the oldest message, of `URGENT` if there is one, or if only such a one
        is wanted; None without any."""
        kinds = self._kinds.copy()
        first = kinds.pop(URGENT, None)
        if first:
            return first.popleft()[1]
        waiting = [] if urgent else [kind for kind in kinds.values() if kind]
        return min(waiting, key=lambda kind: kind[0][0]).popleft()[1] if waiting else None

    def __len__(self) -> int:
        return sum(map(len, self._kinds.copy().values()))


class Mailbox:
    """paho's callbacks: put events and received messages into queues and set `wake`.

    It has no reference to its link: otherwise the client and its sockets would not be freed after a
    failed attempt.
    """

    def __init__(
        self,
        settings: MqttSettings,
        wake: threading.Event,
        *,
        bounded: bool,
        abilities: Abilities = FULL,
    ) -> None:
        """`bounded` applies PACKET_BYTES and RECEIVED_WAITING."""
        self._abilities = abilities
        self._settings = settings
        self._hint = credentials.tls_hint(settings)
        self._bounded = bounded
        self._met = False
        self.news: deque[BrokerEvent] = deque()
        self.received = ReceivedQueue(RECEIVED_WAITING if bounded else None)
        self.ended = threading.Event()
        self.dropped = False
        self._wake = wake

    def on_connect(
        self, client: Any, _data: Any, _flags: Any, reason: Any, properties: Any
    ) -> None:
        """Handle the CONNACK."""
        if self.dropped:  # dropped during the attempt; it must not stay open beside a new one
            client.disconnect()
        elif reason.is_failure:
            self._put_event(Refused(reason.value, str(reason)))
        else:
            self._met = True
            largest = getattr(properties, "MaximumPacketSize", LARGEST_BYTES)
            known = self._abilities
            retains = known.retains and getattr(properties, "RetainAvailable", 1) != 0
            most_qos = min(known.most_qos, getattr(properties, "MaximumQoS", 1))
            found = replace(known, retains=retains, most_qos=most_qos)
            self._put_event(Connected(largest, found))

    def on_connect_fail(self, _client: Any, _data: Any) -> None:
        """Handle a failed connection; paho passes the error only as the one being handled."""
        error = sys.exc_info()[1]
        if trouble := credentials.explain_tls_error(self._settings, error):
            self._put_event(Untrusted(trouble, bool(explain_wrong_time(error))))
        else:
            reason = str(getattr(error, "strerror", None) or error or "no connection")
            if self._settings.tls and isinstance(error, ConnectionResetError | TimeoutError):
                reason += "; is mqtt.port its TLS port?"
            self._put_event(Lost(0, reason))

    def on_disconnect(self, _client: Any, _data: Any, flags: Any, reason: Any, _: Any) -> None:
        """Handle the end, by the broker's DISCONNECT, by ours, or by the network."""
        self.ended.set()
        if flags.is_disconnect_packet_from_server:
            self._put_event(Lost(reason.value, str(reason)))
        elif reason == "Unspecified error":
            reason = f"the connection broke{'' if self._met else self._hint}"
            self._put_event(Lost(0, reason, unanswered=not self._met))
        elif reason in ("Protocol error", "Malformed packet") and not self._met:
            self._put_event(Lost(0, NO_BROKER))
        else:
            self._put_event(Lost(0, str(reason)))

    def on_failure(self, error: Exception) -> None:
        """Handle an error that ended paho's thread: in received data, or in the host's name."""
        self.ended.set()
        if not self._met and not isinstance(error, OSError | ValueError):
            self._put_event(Lost(0, NO_BROKER))
            return
        why = "its answer cannot be read" if self._met else "no connection"
        self._put_event(Lost(0, f"{why} ({type(error).__name__}: {str(error)[:80]!r})"))

    def on_publish(self, _client: Any, _data: Any, message: int, reason: Any, _: Any) -> None:
        """Handle a PUBACK, or a message of QoS 0 that was sent."""
        self._put_event(Acknowledged(message, reason.value, str(reason)))

    def on_subscribe(self, _client: Any, _data: Any, message: int, reasons: Any, _: Any) -> None:
        """Handle a SUBACK."""
        for reason in reasons:
            self._put_event(Acknowledged(message, reason.value, str(reason), subscription=True))

    def on_message(self, _client: Any, _data: Any, message: Any) -> None:
        """Handle a message on a subscribed topic."""
        if self._bounded and len(message.payload) > PACKET_BYTES:
            return
        properties = message.properties
        correlation = getattr(properties, "CorrelationData", None)
        response = getattr(properties, "ResponseTopic", "")
        payload, retained = bytes(message.payload), bool(message.retain)
        self.received.put(ReceivedMessage(message.topic, payload, retained, response, correlation))
        self._wake.set()

    def _put_event(self, news: BrokerEvent) -> None:
        self.news.append(news)
        self._wake.set()


class _PahoClient(Client):
    """A paho client that survives an unreadable message and reports the end of its thread."""

    def __init__(self, client_id: str, failed: Callable[[Exception], None], *, speaks_5: bool):
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=MQTTv5 if speaks_5 else MQTTv311,
            reconnect_on_failure=False,
        )
        self._failed = failed

    def loop_forever(self, timeout: float = 1.0, retry_first_connection: bool = False) -> Any:
        """Run the network loop, in the thread of loop_start."""
        try:
            return super().loop_forever(timeout, retry_first_connection)
        except Exception as error:
            self._failed(error)
            return MQTTErrorCode.MQTT_ERR_PROTOCOL

    def _handle_pubackcomp(self, cmd: Any) -> MQTTErrorCode:
        """Read a PUBACK. Mosquitto (2.0) answers a message beyond its message_size_limit with a
        code that MQTT 5 does not have there, so that paho would end the connection."""
        code = self._in_packet["packet"][2:3]
        if code and code[0] == troubles.TOO_LARGE:
            self._in_packet["packet"][2] = troubles.OTHER
        return super()._handle_pubackcomp(cmd)

    def _handle_publish(self) -> MQTTErrorCode:
        """Drop a message that paho cannot read.

        Otherwise every client that may publish could disconnect us: a response topic with U+FEFF is
        enough. It has QoS 0, so it needs no answer. With a paho that does not call this method, we
        connect again instead.
        """
        try:
            return super()._handle_publish()
        except (MQTTException, ValueError):
            return MQTTErrorCode.MQTT_ERR_SUCCESS


def _send_at_once(_client: Client, _data: Any, opened: Any) -> None:
    """Switch Nagle's algorithm off: a transcript behind another message waited 40 ms for TCP's
    delayed acknowledgement of that one."""
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


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
        password: str | None = None,
        abilities: Abilities = FULL,
    ) -> None:
        """Begin to connect in the background; `news` gets the result, and `wake` is set.
        `abilities` is what the broker is known to have.

        With a `node`, the connection is the appliance's: the broker publishes `offline` when it
        breaks (the last will), and received messages are limited. Without, it is a probe's.
        `password` takes the place of the configured one.

        Raises ConfigError if a file with the password or for TLS cannot be read.
        """
        if password is None:
            password = credentials.read_password(settings)
        secure = credentials.tls_context(settings)
        self._speaks_5 = abilities.speaks_5
        self._mailbox = box = Mailbox(settings, wake, bounded=bool(node), abilities=abilities)
        self.news, self.received = box.news, box.received
        """Events, the oldest first, and messages on subscribed topics; the owner removes them. The
        protocol limits the events: a few per connection, and one per message in flight."""
        self._client = _PahoClient(client_id, box.on_failure, speaks_5=self._speaks_5)
        self._last: MQTTMessageInfo | None = None  # published last; answers come in order
        self._client.connect_timeout = CONNECT_S
        if settings.username:
            self._client.username_pw_set(settings.username, password)
        if secure:
            self._client.tls_set_context(secure)
        limits = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        if node:
            will = settings.topic(node, events.AVAILABILITY)
            qos, retain = abilities.most_qos, abilities.retains
            self._client.will_set(will, events.OFFLINE, qos=qos, retain=retain)
            limits.MaximumPacketSize = PACKET_BYTES
        self._client.on_socket_open = _send_at_once
        self._client.on_connect, self._client.on_connect_fail = box.on_connect, box.on_connect_fail
        self._client.on_disconnect, self._client.on_publish = box.on_disconnect, box.on_publish
        self._client.on_subscribe, self._client.on_message = box.on_subscribe, box.on_message
        self._client.connect_async(
            settings.host, settings.port, keepalive_s, properties=limits if self._speaks_5 else None
        )
        self._client.loop_start()

    def subscribe(self, topic: str, *, retained: bool = False) -> int:
        """Subscribe to a topic and return the message's number, which Subscribed repeats.

        Only for an open connection. Retained messages are left out by default.

        Retained messages come all the same with MQTT 3.1.1.

        QoS is 0: Mosquitto (2.0) never finishes the delivery of a QoS 1 message that is longer than
        PACKET_BYTES, and after twenty of them sends nothing else. Our session ends with the
        connection, so QoS 1 would not deliver more.
        """
        if not self._speaks_5:
            return self._client.subscribe(topic, qos=0)[1] or 0
        handling = (
            SubscribeOptions.RETAIN_SEND_ON_SUBSCRIBE
            if retained
            else SubscribeOptions.RETAIN_DO_NOT_SEND
        )
        options = SubscribeOptions(qos=0, retainHandling=handling)
        _, message = self._client.subscribe(topic, options=options)
        return message or 0

    def publish(self, message: OutgoingMessage) -> int:
        """Send a message and return its number, which Acknowledged repeats if its QoS is 1.

        If the connection has just ended, the message is dropped, and `news` has Lost.
        """
        properties = None
        if self._speaks_5:
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            if message.expiry_s is not None:
                properties.MessageExpiryInterval = message.expiry_s
            if message.correlation is not None:
                properties.CorrelationData = message.correlation
        self._last = self._client.publish(
            message.topic, message.payload, message.qos, message.retain, properties
        )
        return self._last.mid

    def drop(self) -> None:
        """End the connection at once, without waiting for the network."""
        self._mailbox.dropped = True
        self._client.disconnect()

    def close(self, timeout_s: float) -> None:
        """End an open connection with a DISCONNECT, after all that was published and answered.

        Return when it was sent, at the latest after twice `timeout_s`. The broker does not publish
        the last will then; it would if an answer of its own met a connection that has ended.
        """
        if self._last:
            with suppress(ValueError, RuntimeError):  # it was not published
                self._last.wait_for_publish(timeout_s)
        self._client.disconnect()
        self._mailbox.ended.wait(timeout_s)
