"""One short connection to the broker, for the doctor and `roomscribe mqtt`."""

import math
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from appliance.config import MqttSettings
from appliance.errors import BrokerError
from appliance.mqtt import troubles
from appliance.mqtt.client import (
    CONNECT_S,
    FIRST_FAILURE,
    FULL,
    Abilities,
    Acknowledged,
    BrokerLink,
    Connected,
    Lost,
    ReceivedMessage,
    Refused,
    Untrusted,
)
from appliance.mqtt.outbox import NOBODY_SUBSCRIBES
from appliance.records import OutgoingMessage
from appliance.system import Closing

ANSWER_S = 3.0
"""Longest wait for an answer of a broker that let us in."""


class BrokerProbe(Closing):
    """A connection with a client id of its own and without a last will. Owned by one thread.

    The daemon's subscribers do not notice it.
    """

    def __init__(
        self,
        settings: MqttSettings,
        node: str,
        connect_s: float = CONNECT_S,
        *,
        password: str | None = None,
    ) -> None:
        """Connect, with `password` in place of the configured one. Raises BrokerError, and
        ConfigError for a file with the password or for TLS."""
        self.ended = ""
        """Why the connection ended; "" while it is open."""
        self._settings = settings
        self._client_id = f"roomscribe-{node}-doctor-{secrets.token_hex(3)}"
        self._connected = False
        self._answers: dict[int, int] = {}
        self._wake = threading.Event()
        self._password = password
        self._connect(FULL)
        try:
            try:
                self._wait(lambda: self._connected, connect_s)
            except BrokerError as error:
                if error.kind or not self._abilities.speaks_5:
                    raise
                self._link.drop()  # a broker of MQTT 3 may not answer at all
                self.ended = ""
                self._connect(replace(FULL, speaks_5=False))
                if not self._until(lambda: self._connected, connect_s):
                    raise
        except BaseException:
            self._link.drop()
            raise

    def _connect(self, abilities: Abilities) -> None:
        """Begin to connect to a broker that has these abilities."""
        self._abilities = abilities
        self._link = BrokerLink(
            self._settings, self._client_id, self._wake, keepalive_s=30, password=self._password,
            abilities=abilities,
        )  # fmt: skip

    def subscribe(self, topics: Iterable[str]) -> list[str]:
        """Subscribe to topics and their retained messages; return those that the broker refuses.

        Raises BrokerError.
        """
        requested = {self._link.subscribe(topic, retained=True): topic for topic in topics}
        self._wait(lambda: self._answers.keys() >= requested.keys())
        return [requested[number] for number in requested if self._answers[number] >= FIRST_FAILURE]

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> int:
        """Send a message of QoS 1; return the broker's reason code if it refuses it, else 0.

        Raises BrokerError.
        """
        qos = self._abilities.most_qos
        retain = retain and self._abilities.retains
        code = self._send(OutgoingMessage(topic, payload, qos, retain=retain))
        return code if code >= FIRST_FAILURE else 0

    def reaches(self, topic: str) -> bool:
        """Send an empty message to `topic`; return False if the broker says that nobody subscribes.

        Raises BrokerError.
        """
        message = OutgoingMessage(topic, b"", self._abilities.most_qos)
        return self._send(message) != NOBODY_SUBSCRIBES

    def _send(self, message: OutgoingMessage) -> int:
        number = self._link.publish(message)
        self._wait(lambda: number in self._answers)
        return self._answers[number]

    def receive(self, within_s: float = ANSWER_S, count: float = math.inf) -> list[ReceivedMessage]:
        """Return the messages on subscribed topics that arrive in time, or the first `count`.

        Returns early if the connection ends. Raises BrokerError.
        """
        self._until(lambda: len(self._link.received) >= count, within_s)
        return list(iter(self._link.received.take, None))

    def _until(self, condition: Callable[[], bool], within_s: float) -> bool:
        """Handle events until `condition` is true; return False if it is not in time."""
        deadline_s = time.monotonic() + within_s
        while True:
            self._read()
            left_s = deadline_s - time.monotonic()
            if condition() or self.ended or left_s <= 0:
                return condition()
            self._wake.wait(left_s)
            self._wake.clear()

    def _wait(self, condition: Callable[[], bool], within_s: float = ANSWER_S) -> None:
        """Wait for `condition`. Raises BrokerError if it is not true in time."""
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
                case Connected(abilities=abilities):
                    self._connected, self._abilities = True, abilities
                case Refused(code, _) if less := self._abilities.without(code):
                    self._link.drop()
                    self._connect(less)
                case Refused(code, reason) if code not in troubles.PASSING:
                    raise BrokerError(
                        troubles.refused(self._settings, self._client_id, code, reason),
                        kind=BrokerError.LOGIN if troubles.is_login(code) else "",
                    )
                case Untrusted(reason):
                    raise BrokerError(reason, kind=BrokerError.TLS)
                case Refused(_, reason) | Lost(_, reason):
                    self.ended = self.ended or reason
                case Acknowledged(number, code):
                    self._answers[number] = code

    def close(self) -> None:
        """End the connection."""
        self._link.close(0.3)
