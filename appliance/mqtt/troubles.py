"""Problems between store and broker: each is logged once, with what to do."""

import logging
from collections.abc import Iterable

from appliance.config import MqttSettings

log = logging.getLogger("roomscribe.mqtt")

TAKEN_OVER = 142
"""Reason code of a DISCONNECT: another client came with our client id."""
PASSING = (136, 137, 151, 159)
"""CONNACK codes that pass by themselves: unavailable, busy, quota, connections too frequent."""
OTHER, TOO_LARGE = 131, 149
"""Reason codes: implementation specific; a packet that is longer than the receiver accepts."""
UNSUPPORTED, _BAD_CLIENT_ID, _BAD_PASSWORD, _NOT_AUTHORIZED = 132, 133, 134, 135
NO_RETAIN, NO_QOS = 154, 155
"""CONNACK codes: the broker does not retain our last will, or has only QoS 0."""
REFUSES_ALL = (_NOT_AUTHORIZED, 144, 151)
"""PUBACK codes that the next transcript would get, too: no right, no such topic, quota. The others
concern one transcript."""
TRANSCRIPTS = "refused transcripts"
"""The broker refuses single transcripts."""

WAITS = NOBODY, HOME_ASSISTANT = "nobody subscribes", "home assistant"
"""Transcripts wait for a subscriber. This ends by itself and does not degrade the state."""
CLIENT_ID = "client id"
"""Another client uses our client id, or did so a moment ago."""
HOME_ASSISTANT_OFFLINE = "Home Assistant is offline; transcripts wait 10 minutes for it"
LACKING = "abilities"
"""The broker lacks something that we can do without. This does not degrade the state."""
_LONGER = "let it accept longer packets (Mosquitto: max_packet_size, message_size_limit)"
OWN_NODE = "give each appliance its own appliance.node"
TAKEN = f"another client uses the client id {{!r}}: the broker ended our connection; {OWN_NODE}"
THROWN_OUT = (
    "the broker ends every connection soon: probably another client uses the client id {!r}; "
    f"{OWN_NODE}"
)
"""The second of a broker that says nothing, as Mosquitto 2.0."""
OFFLINE = "broker {}:{} is offline; transcripts wait in the log until it is back"
NO_SUBSCRIBER = "nobody subscribes to {}; transcripts wait in the log for it"
HOME_ASSISTANT_RETURNS = (
    "the connection to the broker, or Home Assistant, has just come back; transcripts wait some "
    "seconds until Home Assistant has certainly subscribed"
)


class Troubles:
    """The present problems by the part that has them, or by the topic of a refused command; logs
    when one begins and ends."""

    def __init__(self) -> None:
        self._present: dict[str, tuple[str, str]] = {}

    def set(self, part: str, reason: str, detail: str = "") -> None:
        """Set the problem of `part`, which is logged only if `reason` is new; "": clear it."""
        if not reason:
            self.clear(part)
            return
        known, _ = self._present.get(part, ("", ""))
        self._present[part] = (reason, detail)
        if known != reason:
            log.warning("%s%s", reason, detail)

    def clear(self, part: str) -> None:
        """Remove the problem of `part`."""
        if self._present.pop(part, None):
            log.info("%s: works again", part)

    def reasons(self, *, waits: bool | None = None) -> tuple[str, ...]:
        """Return what is wrong and what to do, a sentence each; problems before WAITS. Any thread.

        With `waits`, only those that do not degrade the state (True): WAITS, and refused commands;
        or only the others (False).
        """
        if waits is None:
            return (*self.reasons(waits=False), *self.reasons(waits=True))
        present = list(self._present.items())
        found = (f"{why}{more}" for part, (why, more) in present if waits is _is_mild(part))
        return tuple(dict.fromkeys(found))


def _is_mild(part: str) -> bool:
    return part in (*WAITS, LACKING) or "/" in part


def is_login(code: int) -> bool:
    """Return True for the CONNACK code of a wrong or missing user name or password."""
    return code in (_BAD_PASSWORD, _NOT_AUTHORIZED)


def refused(settings: MqttSettings, client_id: str, code: int, reason: str) -> str:
    """Return the reason for a broker that refused us; `code` and `reason` are its CONNACK's."""
    user = f"user {settings.username!r}" if settings.username else "a client without mqtt.username"
    if is_login(code):
        found = user
        fix = (
            "make mqtt.username and the password (mqtt.password_file, or the credential "
            "roomscribe.mqtt-password) those that the broker knows"
        )
    elif code == UNSUPPORTED:
        found, fix = "MQTT 5 and 3.1.1", "use a broker such as Mosquitto"
    elif code == _BAD_CLIENT_ID:
        found, fix = f"client id {client_id!r}", "set another appliance.node"
    else:
        found, fix = user, "see the broker's log"
    return f"broker {settings.host}:{settings.port} refuses {found} ({reason}); {fix}"


def denied(settings: MqttSettings, doing: str, code: int, reason: str) -> str:
    """Return the reason if the broker refuses topics with this code; `doing` is "write to" or
    "listen on"."""
    user = repr(settings.username) if settings.username else "clients without a user name"
    fixes = {
        _NOT_AUTHORIZED: f"allow {user} to in its access list",
        OTHER: f"see its log, or {_LONGER}",
        TOO_LARGE: _LONGER,
    }
    return (
        f"broker {settings.host}:{settings.port} does not let us {doing} some topics ({reason}); "
        + fixes.get(code, "see its log")
    )


def refused_alone(settings: MqttSettings, refused: Iterable[int], reason: str) -> str:
    """Return the reason if the broker refuses these transcripts and takes others."""
    numbers = ", ".join(map(str, sorted(refused)))
    return (
        f"broker {settings.host}:{settings.port} refuses transcript {numbers} "
        f"({reason}); later ones are published, and it is tried again for an hour; see the "
        f"broker's log, or {_LONGER}"
    )
