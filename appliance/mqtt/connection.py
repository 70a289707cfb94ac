"""The connection to the broker: attempts, the pauses between them, and problems on the way."""

import enum
import logging
import math
import random
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from appliance.config import MqttSettings
from appliance.errors import BrokerError, ConfigError
from appliance.mqtt import credentials, events, troubles
from appliance.mqtt.client import (
    FIRST_FAILURE,
    FULL,
    Acknowledged,
    BrokerLink,
    Connected,
    Lost,
    ReceivedMessage,
    Refused,
    Untrusted,
)
from appliance.mqtt.troubles import Troubles
from appliance.records import OutgoingMessage

log = logging.getLogger("roomscribe.mqtt")

SPREAD = (0.5, 1.0)
"""Each pause is multiplied by a random number in this range, so that the clients of a home, which
all lose the broker at the same moment, do not all return at the same moment."""
STEADY_S = 10.0
"""A connection that lasted this long ends a series of outages."""
PACKET_HEAD_BYTES = 64
"""Of a PUBLISH besides topic and payload: lengths, number and our properties."""
SHORT_CONNECTIONS = 3
"""After so many short connections in a row, without a failed attempt between them, we assume that
the broker disconnects us on purpose."""


@dataclass(frozen=True, slots=True)
class Delays:
    """Timing of the publisher, in seconds."""

    outages_s: tuple[float, ...] = (1.0, 2.0, 4.0)
    """Longest pauses between attempts while the broker is offline. They are short, so that waiting
    transcripts are published within 5 s of the broker's return."""
    refusal_s: float = 60.0
    """Pause after the broker refused us: a wrong password does not become right by trying often."""
    attempt_s: float = 15.0
    """Longest attempt: more than a slow resolver needs."""
    ping_s: int = 20
    """Seconds of silence before paho asks whether the broker is online. It gives up an idle
    connection after twice that."""
    answer_s: float = 40.0
    """Longest time for which a message may stay unacknowledged."""
    expiry_s: float = 3600.0
    """The broker drops an undelivered transcript after this time, and we do not publish it."""
    again_s: float = 300.0
    """Until a transcript is sent again that the broker refused, and others not."""
    hold_s: float = 600.0
    """Longest time that transcripts wait for a Home Assistant that was online before."""
    store_s: float = 5.0
    """Pause after the store failed."""
    announce_s: tuple[float, float] = (1.0, 10.0)
    """Range of the random delay between Home Assistant's birth message and our announcement: all
    devices get that message at once."""
    leave_s: float = 1.0
    """If the broker stops, our connection ends within this time after Home Assistant's will."""
    subscribe_s: float = 5.0
    """After the broker's return, Home Assistant has all its subscriptions within this time of the
    one to the announcements."""
    birth_s: float = 20.0
    """Home Assistant's birth message comes within this time of the broker's return: it tries to
    connect every 10 s and publishes it 6 to 9 s later (seen with 2024.12 and 2026.2)."""


DELAYS = Delays()


class ConnectionState(enum.Enum):
    """State of the connection to the broker."""

    WAITING = "waiting"
    """No link. The next attempt begins when its pause is over."""
    CONNECTING = "connecting"
    """An attempt is under way."""
    CONNECTED = "connected"
    """The broker let us in."""


def client_id(settings: MqttSettings, node: str) -> str:
    """Return the MQTT client id, which is the same at every start."""
    return f"{settings.prefix.replace('/', '-')}-{node}"


class BrokerConnection:
    """One link at a time, and a new one when it ends. Owned by one thread."""

    def __init__(
        self,
        settings: MqttSettings,
        node: str,
        *,
        topics: Iterable[str] = (),
        delays: Delays = DELAYS,
    ) -> None:
        """Check the credentials; `poll` makes the first attempt. `topics` are subscribed to.

        Raises ConfigError if a file with the password or for TLS cannot be read.
        """
        credentials.read_password(settings)
        credentials.tls_context(settings)
        self.settings, self.node, self.delays = settings, node, delays
        self.wake, self.troubles = threading.Event(), Troubles()
        """`wake` is set whenever `poll` or `take_messages` have something."""
        self._client_id, self._topics = client_id(settings, node), tuple(topics)
        self.state = ConnectionState.WAITING
        self.connected_s = 0.0
        """When CONNECTED began, on time.monotonic()'s clock."""
        self._link: BrokerLink | None = None
        """Set while CONNECTING or CONNECTED."""
        self._attempt_s = 0.0
        """WAITING: when the next attempt begins. CONNECTING: when this one began."""
        self._outages = 0
        """Failures since the last steady connection; they choose the pause."""
        self._short_connections = 0
        self._id_conflict = ""
        """Why another client seems to use our id; it, too, returns after refusal_s."""
        self._unacknowledged: dict[int, tuple[str, float]] = {}
        """Topic and time of each message and subscription that the broker has not answered."""
        self._abilities = FULL
        """What the broker has, as far as we know since the last connection."""
        self._guessed = self._confirmed = False
        """Version 3.1.1 is supposed, because 5 was not answered; and 5 was tried once more when
        3.1.1 was: a broker that starts, or a proxy before it, leaves clients unanswered, too."""
        self._largest_bytes, self._left_out = 0, 0
        """Longest packet that the broker accepts, and how many longer ones were not sent."""
        self._denials: dict[str, set[str]] = {}
        """Topics that the broker refuses, by what we wanted to do."""

    @property
    def is_open(self) -> bool:
        """True while there is a connection or an attempt."""
        return self._link is not None

    @property
    def is_connected(self) -> bool:
        """True while messages can be published."""
        return self.state is ConnectionState.CONNECTED

    @property
    def due_s(self) -> float:
        """When `poll` has to be called even if nothing arrives, on time.monotonic()'s clock."""
        match self.state:
            case ConnectionState.CONNECTED:
                # The oldest one counts, not the last answer: a connection can lose one message and
                # answer all others.
                sent_s = (sent_s for _, sent_s in self._unacknowledged.values())
                return min(sent_s, default=math.inf) + self.delays.answer_s
            case ConnectionState.CONNECTING:
                return self._attempt_s + self.delays.attempt_s
            case ConnectionState.WAITING:
                return self._attempt_s

    def poll(self, now_s: float) -> Iterator[Connected | Acknowledged | Lost]:
        """Yield what happened since the last call, in order; begin an attempt when it is due."""
        if self.state is ConnectionState.WAITING and now_s >= self._attempt_s:
            self._begin_attempt(now_s)
        while self._link and self._link.news:
            item = self._link.news.popleft()
            match item:
                case Connected() if self._guessed and not self._confirmed:
                    self._confirmed, self._abilities = True, FULL
                    yield self._end_link(now_s, 0.0, "MQTT 5 is tried again")
                case Connected(largest_bytes, abilities):
                    self._largest_bytes, self._abilities = largest_bytes, abilities
                    self._on_connected(now_s)
                    yield item
                case Acknowledged(message, code, reason, subscription):
                    topic, _ = self._unacknowledged.pop(message, ("", 0.0))
                    if not subscription:
                        self._on_puback(topic, code, reason)
                        yield item
                    elif topic and code >= FIRST_FAILURE:
                        self._report_denied("listen on", topic, code, reason)
                case Refused() | Untrusted() | Lost():
                    yield self._on_failure(now_s, item)
        undisturbed_s = self.delays.refusal_s + STEADY_S
        if self._id_conflict and self.is_connected and now_s > self.connected_s + undisturbed_s:
            self._id_conflict = ""
            self.troubles.clear(troubles.CLIENT_ID)
        if self.is_connected and now_s >= self.due_s:
            yield self._on_outage(now_s, "messages stay unacknowledged")
        elif self.state is ConnectionState.CONNECTING and now_s >= self.due_s:
            self._swap_version()
            yield self._on_outage(now_s, "no answer")

    def _on_failure(self, now_s: float, item: Refused | Untrusted | Lost) -> Lost:
        """Treat the end of the link, and schedule the next attempt."""
        refusal_s = self.delays.refusal_s
        match item:
            case Refused(code, reason) if less := self._abilities.without(code):
                self._abilities = less
                return self._end_link(now_s, 0.0, reason)
            case Refused(code, reason) if code not in troubles.PASSING:
                why = troubles.refused(self.settings, self._client_id, code, reason)
                return self._disconnect(now_s, refusal_s, why)
            case Untrusted(reason, by_clock):
                return self._disconnect(now_s, self._pause_s() if by_clock else refusal_s, reason)
            case Lost(troubles.TAKEN_OVER, _):
                self._id_conflict = troubles.TAKEN.format(self._client_id)
                return self._disconnect(now_s, refusal_s, self._id_conflict, code=item.code)
            case Lost(unanswered=True):
                self._swap_version()
        return self._on_outage(now_s, item.reason)

    def _swap_version(self) -> None:
        """Try the other version next: a broker of MQTT 3.1.1 may leave a client of 5 unanswered."""
        self._guessed = self._abilities.speaks_5
        self._confirmed = self._confirmed and self._guessed
        self._abilities = replace(FULL, speaks_5=not self._guessed)

    def take_messages(self, *, urgent: bool = False) -> Iterator[ReceivedMessage]:
        """Yield the messages received on subscribed topics since the last call: mutes first, then
        in order; with `urgent` only mutes."""
        while self._link and (message := self._link.received.take(urgent=urgent)):
            yield message

    def publish(
        self,
        name: str,
        payload: bytes,
        *,
        qos: int = 1,
        retain: bool = False,
        expiry_s: int | None = None,
    ) -> int:
        """Send on one of the node's topics and return the message's number.

        Raises BrokerError without a connection.
        """
        topic = self.settings.topic(self.node, name)
        return self.send(OutgoingMessage(topic, payload, qos, retain, expiry_s))

    def send(self, message: OutgoingMessage) -> int:
        """Send on any topic and return the message's number; a message that is too long for the
        broker counts as refused by it. Raises BrokerError as above."""
        link = self._connected_link(f"publish {message.topic}")
        qos = min(message.qos, self._abilities.most_qos)
        message = replace(message, qos=qos, retain=message.retain and self._abilities.retains)
        size = len(message.topic) + len(message.payload) + PACKET_HEAD_BYTES
        if size > self._largest_bytes:  # the broker would end the connection
            self._left_out += 1
            number, reason = -self._left_out, f"{size} bytes, at most {self._largest_bytes}"
            link.news.append(Acknowledged(number, troubles.TOO_LARGE, reason))
            self.wake.set()
        else:
            number = link.publish(message)
        if message.qos or number < 0:
            self._unacknowledged[number] = (message.topic, time.monotonic())
        return number

    def subscribe_retained(self, topic: str) -> None:
        """Subscribe to a topic and its retained message; a refusal is not reported.

        Raises BrokerError without a connection.
        """
        self._connected_link(f"listen on {topic}").subscribe(topic, retained=True)

    def close(self) -> None:
        """Publish `offline` and end the connection for good; takes at most 0.6 s."""
        if self._link and self.is_connected:
            self.publish(events.AVAILABILITY, events.OFFLINE, retain=True)
            self._link.close(timeout_s=0.3)
        elif self._link:
            self._link.drop()
        self._link, self.state = None, ConnectionState.WAITING

    def _connected_link(self, doing: str) -> BrokerLink:
        if self._link is None or not self.is_connected:
            raise BrokerError(f"cannot {doing}: there is no connection to the broker")
        return self._link

    def _begin_attempt(self, now_s: float) -> None:
        """Begin to connect; the password is read from its file again."""
        self._attempt_s = now_s
        try:
            self._link = BrokerLink(
                self.settings,
                self._client_id,
                self.wake,
                keepalive_s=self.delays.ping_s,
                node=self.node,
                abilities=self._abilities,
            )
            self.state = ConnectionState.CONNECTING
        except ConfigError as error:
            self._disconnect(now_s, self.delays.refusal_s, str(error))

    def _on_connected(self, now_s: float) -> None:
        """Subscribe, then publish `online` before anything else."""
        self.state, self.connected_s = ConnectionState.CONNECTED, now_s
        self._guessed = self._confirmed = False
        self.troubles.clear("listen on")
        if self._link:
            for topic in self._topics:
                self._unacknowledged[self._link.subscribe(topic)] = (topic, time.monotonic())
        self.publish(events.AVAILABILITY, events.ONLINE, retain=True)
        # the broker's subscribers see it until the conflict is over
        self.troubles.set(troubles.CLIENT_ID, self._id_conflict)
        self.troubles.clear("broker")
        where, lost = f"{self.settings.host}:{self.settings.port}", self._abilities.losses()
        self.troubles.set(troubles.LACKING, lost and f"broker {where} can do less: {lost}")
        log.info("connected to the broker %s", where)

    def _on_outage(self, now_s: float, detail: str) -> Lost:
        """Treat the broker as offline: end the link and schedule the next attempt.

        A broker that ends several short connections in a row is online and disconnects us, most
        likely because another client uses our id. Attempts follow each other slowly then.
        """
        if self.is_connected:  # the next one may be another broker
            self._abilities = FULL
        steady = self.is_connected and now_s - self.connected_s > STEADY_S
        short = self.is_connected and not steady
        self._short_connections = self._short_connections + 1 if short else 0
        if self._short_connections >= SHORT_CONNECTIONS:
            self._id_conflict = troubles.THROWN_OUT.format(self._client_id)
            pause_s, code = self.delays.refusal_s, troubles.TAKEN_OVER
            return self._disconnect(now_s, pause_s, self._id_conflict, code=code)
        if steady:
            self._outages = 0
        why = troubles.OFFLINE.format(self.settings.host, self.settings.port)
        return self._disconnect(now_s, self._pause_s(), why, f": {detail}")

    def _pause_s(self) -> float:
        """Return the longest pause before the next attempt, longer after each failure."""
        pauses_s = self.delays.outages_s
        self._outages += 1
        return pauses_s[min(self._outages, len(pauses_s)) - 1]

    def _on_puback(self, topic: str, code: int, reason: str) -> None:
        """Report a topic that the broker refuses, until it accepts the topic again. Of transcripts,
        the outbox reports those that are refused alone."""
        is_transcript = topic == self.settings.topic(self.node, events.TRANSCRIPT)
        if code >= FIRST_FAILURE and is_transcript and code not in troubles.REFUSES_ALL:
            return
        if code >= FIRST_FAILURE:
            self._report_denied("write to", topic, code, reason)
        elif topic in self._denials.get("write to", ()):
            self._denials["write to"].discard(topic)
            if not self._denials["write to"]:
                self.troubles.clear("write to")

    def _report_denied(self, doing: str, topic: str, code: int, reason: str) -> None:
        topics = self._denials.setdefault(doing, set())
        topics.add(topic)
        why = troubles.denied(self.settings, doing, code, reason)
        self.troubles.set(doing, why, f": {', '.join(sorted(topics))}")

    def _disconnect(
        self, now_s: float, delay_s: float, reason: str, detail: str = "", *, code: int = 0
    ) -> Lost:
        """Drop the link for a reason that is reported."""
        self.troubles.set("broker", reason, detail)
        return self._end_link(now_s, delay_s, reason, code=code)

    def _end_link(self, now_s: float, delay_s: float, reason: str, *, code: int = 0) -> Lost:
        """Drop the link; the next attempt begins after at most `delay_s`."""
        if self._link:
            self._link.drop()
        self._link, self.state = None, ConnectionState.WAITING
        self._unacknowledged.clear()
        self._denials.clear()
        self._attempt_s = now_s + delay_s * random.SystemRandom().uniform(*SPREAD)
        return Lost(code, reason)
