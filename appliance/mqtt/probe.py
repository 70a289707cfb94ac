"""One short connection to the broker, for the doctor and `roomscribe mqtt`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Self

from paho.mqtt.client import Client, MQTTMessage, MQTTv5, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion

from appliance.config import MqttSettings
from appliance.errors import PublishError
from appliance.mqtt import tls, tls as credentials, troubles

CONNECT_S = 5.0
ANSWER_S = 3.0

REFUSED = 128
"""MQTT 5: reason codes from this on are failures."""


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
