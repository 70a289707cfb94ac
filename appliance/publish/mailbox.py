"""What paho's network thread drops for the owner of the link: news and received messages."""

from __future__ import annotations

import sys
import threading
from collections import deque
from typing import Any

from appliance.config import MqttSettings
from appliance.publish import tls
from appliance.publish.messages import (
    PACKET_BYTES,
    Acknowledged,
    Connected,
    Lost,
    Message,
    News,
    Refused,
    SubscriptionRefused,
    Untrusted,
)

RECEIVED_WAITING = 100
"""Messages received and not looked at yet; beyond it the oldest are dropped."""


class Mailbox:
    """What paho's network thread has to tell, and who is to be woken for it.

    It does not know its link: a client that referred to its owner would not be freed, with its
    sockets, when the attempt has failed.
    """

    def __init__(self, settings: MqttSettings, wake: threading.Event) -> None:
        self._settings = settings
        self._hint = tls.hint(settings)
        self._met = False
        self.news: deque[News] = deque()
        self.received: deque[Message] = deque(maxlen=RECEIVED_WAITING)
        self.asked: dict[int, str] = {}
        self.ended = threading.Event()
        self.dropped = False
        self._wake = wake

    def on_connect(
        self, client: Any, userdata: Any, flags: Any, reason: Any, properties: Any
    ) -> None:
        """The broker's CONNACK."""
        if self.dropped:  # while the attempt was under way; it must not live on beside a new one
            client.disconnect()
        elif reason.is_failure:
            self._tell(Refused(reason.value, str(reason)))
        else:
            self._met = True
            self._tell(Connected(getattr(properties, "ReceiveMaximum", 65535)))

    def on_connect_fail(self, client: Any, userdata: Any) -> None:
        """No connection: paho calls this while it handles the error, and says no more about it."""
        error = sys.exc_info()[1]
        if complaint := tls.complaint(self._settings, error):
            self._tell(Untrusted(complaint))
        else:
            self._tell(Lost(0, str(error or "no connection")))

    def on_disconnect(
        self, client: Any, userdata: Any, flags: Any, reason: Any, properties: Any
    ) -> None:
        """The end, by the broker's DISCONNECT, by ours, or by the network."""
        self.ended.set()
        if flags.is_disconnect_packet_from_server:
            self._tell(Lost(reason.value, str(reason)))
        elif reason == "Unspecified error":
            self._tell(Lost(0, f"the connection broke{'' if self._met else self._hint}"))
        else:
            self._tell(Lost(0, str(reason)))

    def on_failure(self, error: Exception) -> None:
        """paho's thread has died: of what the broker sent, or of a host name that is none."""
        self.ended.set()
        why = "what it says cannot be read" if self._met else "no connection"
        self._tell(Lost(0, f"{why} ({type(error).__name__}: {str(error)[:80]!r})"))

    def on_publish(
        self, client: Any, userdata: Any, message: int, reason: Any, properties: Any
    ) -> None:
        """A PUBACK, or a message of QoS 0 that has left."""
        self._tell(Acknowledged(message, reason.value, str(reason)))

    def on_subscribe(
        self, client: Any, userdata: Any, message: int, reasons: Any, properties: Any
    ) -> None:
        """A SUBACK."""
        topic = self.asked.get(message or 0, "")
        for reason in reasons:
            if reason.is_failure:
                self._tell(SubscriptionRefused(topic, str(reason)))

    def on_message(self, client: Any, userdata: Any, message: Any) -> None:
        """What a subscription brought."""
        if len(message.payload) > PACKET_BYTES:
            return
        properties = message.properties
        correlation = getattr(properties, "CorrelationData", None)
        response = getattr(properties, "ResponseTopic", "")
        payload, retained = bytes(message.payload), bool(message.retain)
        self.received.append(Message(message.topic, payload, retained, response, correlation))
        self._wake.set()

    def _tell(self, news: News) -> None:
        self.news.append(news)
        self._wake.set()
