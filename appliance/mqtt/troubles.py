"""What is wrong between store and broker, in plain words, said once."""

from __future__ import annotations

import logging

from appliance.config import MqttSettings

log = logging.getLogger(__name__)

TAKEN_OVER = 142
"""Reason code of a DISCONNECT: another client came with our client id."""
PASSING = (136, 137, 151, 159)
"""CONNACK codes that pass by themselves: unavailable, busy, quota, connections too frequent."""
_UNSUPPORTED, _BAD_CLIENT_ID, _BAD_PASSWORD, _NOT_AUTHORIZED = 132, 133, 134, 135


NOBODY, AWAY = "nobody subscribes", "home assistant"
"""Topics of the troubles that are no faults: transcripts wait for somebody."""
HOME_ASSISTANT_AWAY = "Home Assistant is away; transcripts wait for it (homeassistant.hold_s)"


class Troubles:
    """The present troubles by topic; each is logged when it comes and when it goes."""

    def __init__(self) -> None:
        self._present: dict[str, tuple[str, str]] = {}

    def set(self, topic: str, reason: str, detail: str = "") -> None:
        """`topic` suffers from `reason`; the same one with another `detail` is no news."""
        known, _ = self._present.get(topic, ("", ""))
        self._present[topic] = (reason, detail)
        if known != reason:
            log.warning("%s%s", reason, detail)

    def clear(self, topic: str) -> None:
        """`topic` is well."""
        if self._present.pop(topic, None):
            log.info("%s: well again", topic)

    def reasons(self) -> tuple[str, ...]:
        """All of them, for people. Any thread."""
        return (*self.faults(), *self.waits())

    def faults(self) -> tuple[str, ...]:
        """What somebody has to put right. Any thread."""
        return self._told(waits=False)

    def waits(self) -> tuple[str, ...]:
        """Whom transcripts wait for, which heals by itself. Any thread."""
        return self._told(waits=True)

    def _told(self, *, waits: bool) -> tuple[str, ...]:
        return tuple(
            f"{reason}{detail}"
            for topic, (reason, detail) in list(self._present.items())
            if (topic in (NOBODY, AWAY)) == waits
        )


def away(settings: MqttSettings, detail: str) -> tuple[str, str]:
    """The broker does not answer, or the connection broke: reason and detail."""
    where = f"{settings.host}:{settings.port}"
    return (f"broker {where} is away; transcripts wait in the log until it is back", f": {detail}")


def refused(settings: MqttSettings, client_id: str, code: int, reason: str) -> str:
    """The broker answered and let us not in; `code` and `reason` are those of its CONNACK."""
    user = f"user {settings.username!r}" if settings.username else "a client without mqtt.username"
    if code in (_BAD_PASSWORD, _NOT_AUTHORIZED):
        found = user
        cure = (
            "make mqtt.username and the password (mqtt.password_file, or the credential "
            "roomscribe.mqtt-password) those that the broker knows"
        )
    elif code == _UNSUPPORTED:
        found, cure = "MQTT 5", "use a broker that speaks it, such as Mosquitto 1.6 or later"
    elif code == _BAD_CLIENT_ID:
        found, cure = f"client id {client_id!r}", "set another mqtt.client_id"
    else:
        found, cure = user, "see the broker's log"
    return f"broker {settings.host}:{settings.port} refuses {found} ({reason}); {cure}"


def taken_over(client_id: str) -> str:
    """Another client came with our id."""
    return (
        f"another client uses the client id {client_id!r}: the broker ended our connection; "
        "give each appliance its own appliance.node or mqtt.client_id"
    )


def thrown_out(client_id: str) -> str:
    """The broker ends one connection after another and says not why; Mosquitto 2.0 does so."""
    return (
        "the broker ends every connection soon: probably another client uses the client id "
        f"{client_id!r}; give each appliance its own appliance.node or mqtt.client_id"
    )


def denied(settings: MqttSettings, doing: str, reason: str) -> str:
    """The broker lets us not `doing` ("write to", "listen on") some topics."""
    user = repr(settings.username) if settings.username else "clients without a user name"
    return (
        f"broker {settings.host}:{settings.port} does not let us {doing} some topics ({reason}); "
        f"allow {user} to in its access list"
    )


def outbox_full(limit: int) -> str:
    """More transcripts wait than may."""
    return (
        f"more than {limit} transcripts waited for the broker (mqtt.outbox_limit); the oldest are "
        "passed over: they are in the log and are not told"
    )


def nobody_subscribes(node: str) -> str:
    """The broker has nobody to give transcripts to (PUBACK 16)."""
    return f"nobody subscribes to roomscribe/{node}/transcript; transcripts wait in the log for it"
