"""One short connection to the broker, for the doctor and `roomscribe mqtt`."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from typing import Self

from appliance.config import MqttSettings
from appliance.errors import BrokerError
from appliance.mqtt import troubles
from appliance.mqtt.client import (
    CONNECT_S,
    FIRST_FAILURE,
    Acknowledged,
    BrokerLink,
    Connected,
    Lost,
    OutgoingMessage,
    ReceivedMessage,
    Refused,
    Subscribed,
    Untrusted,
)
from appliance.mqtt.outbox import NOBODY_SUBSCRIBES

ANSWER_S = 3.0
"""Longest wait for an answer of a broker that let us in."""


class BrokerProbe:
    """A connection with an id that is never the daemon's, and without a last will.

    Nothing that it does is told to the daemon's subscribers. Owned by one thread.
    """

    def __init__(self, settings: MqttSettings, node: str, connect_s: float = CONNECT_S) -> None:
        """Connects. Raises BrokerError, and ConfigError for a file of password or TLS."""
        self.ended = ""
        """Why the connection ended; empty while it stands."""
        self._settings = settings
        self._client_id = f"roomscribe-{node}-doctor-{secrets.token_hex(3)}"
        self._connected = False
        self._answers: dict[int, int] = {}
        self._wake = threading.Event()
        self._link = BrokerLink(settings, self._client_id, self._wake, keepalive_s=30)
        try:
            self._wait(lambda: self._connected, connect_s)
        except BaseException:
            self._link.drop()
            raise

    def subscribe(self, topics: Iterable[str]) -> list[str]:
        """Listens on topics, with what is retained there; those that the broker refuses.

        Raises BrokerError.
        """
        asked = {self._link.subscribe(topic, retained=True): topic for topic in topics}
        self._wait(lambda: self._answers.keys() >= asked.keys())
        return [asked[number] for number in asked if self._answers[number] >= FIRST_FAILURE]

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> int:
        """Sends a message of QoS 1; the broker's reason code if it refuses it, else 0.

        Raises BrokerError.
        """
        number = self._link.publish(OutgoingMessage(topic, payload, retain=retain))
        self._wait(lambda: number in self._answers)
        code = self._answers[number]
        return code if code >= FIRST_FAILURE else 0

    def reaches(self, topic: str) -> bool:
        """True when somebody subscribes to `topic`, or the broker does not say: an empty message
        goes there. Raises BrokerError."""
        number = self._link.publish(OutgoingMessage(topic, b""))
        self._wait(lambda: number in self._answers)
        return self._answers[number] != NOBODY_SUBSCRIBES

    def receive(self, within_s: float = ANSWER_S, count: float = math.inf) -> list[ReceivedMessage]:
        """Messages on the topics listened on: all that come within the time, or once `count` have.

        Returns early when the connection ends. Raises BrokerError.
        """
        self._until(lambda: len(self._link.received) >= count, within_s)
        return [self._link.received.popleft() for _ in range(len(self._link.received))]

    def _until(self, condition: Callable[[], bool], within_s: float) -> bool:
        """Reads news until `condition` holds; False when it does not within the time."""
        deadline_s = time.monotonic() + within_s
        while True:
            self._read()
            left_s = deadline_s - time.monotonic()
            if condition() or self.ended or left_s <= 0:
                return condition()
            self._wake.wait(left_s)
            self._wake.clear()

    def _wait(self, condition: Callable[[], bool], within_s: float = ANSWER_S) -> None:
        """Raises BrokerError when `condition` does not hold within the time."""
        if self._until(condition, within_s):
            return
        where = f"{self._settings.host}:{self._settings.port}"
        detail = " ".join(self.ended.split()) or f"no answer within {within_s:g} s"
        raise BrokerError(
            f"broker {where} does not answer ({detail}); check that it runs there (`systemctl "
            "status mosquitto`), that mqtt.host and mqtt.port are right, and that no firewall is "
            "in the way"
        )

    def _read(self) -> None:
        while self._link.news:
            match self._link.news.popleft():
                case Connected():
                    self._connected = True
                case Refused(code, reason) if code not in troubles.PASSING:
                    raise BrokerError(
                        troubles.refused(self._settings, self._client_id, code, reason),
                        kind=BrokerError.LOGIN if troubles.is_login(code) else "",
                    )
                case Untrusted(reason):
                    raise BrokerError(reason, kind=BrokerError.TLS)
                case Refused(_, reason) | Lost(_, reason):
                    self.ended = self.ended or reason
                case Subscribed(number, code, _) | Acknowledged(number, code, _):
                    self._answers[number] = code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close(0.3)
