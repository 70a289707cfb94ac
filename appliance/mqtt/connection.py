"""A connection to the broker that is kept: attempts, the delays between them, and its troubles."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from appliance.config import MqttSettings
from appliance.errors import BrokerError, ConfigError
from appliance.mqtt import credentials as tls, events, troubles
from appliance.mqtt.client import (
    FIRST_FAILURE,
    THERE_S,
    Acknowledged,
    Connected,
    Link,
    Lost,
    Message,
    Outgoing,
    Refused,
    Subscribed,
    Untrusted,
    is_there,
)
from appliance.mqtt.troubles import Troubles

log = logging.getLogger("roomscribe.mqtt")

SPREAD = (0.5, 1.0)
"""Every pause is cut at random to this share: all clients of a home lose the broker at the same
moment, and are not to come back at the same moment."""
STEADY_S = 10.0
"""A connection that stood this long ends a series of outages."""
BRIEF = 3
"""So many connections that broke soon, one after another, beside a broker that was there all the
time, are no outage: it throws us out."""


@dataclass(frozen=True, slots=True)
class Delays:
    """How long the publisher waits, in seconds."""

    outages_s: tuple[float, ...] = (1.0, 2.0, 4.0)
    """Longest pauses between attempts at a broker that is away; short, as what was said meanwhile
    waits for it: it is published within 5 s of the broker's return."""
    refusal_s: float = 60.0
    """Between attempts at a broker that says no: a wrong password does not heal by hammering."""
    attempt_s: float = 15.0
    """An attempt without an answer is given up after this: more than a slow resolver needs, and no
    longer than the shortest keep-alive with `answer_s`."""
    there_s: float = THERE_S
    """A broker that ended our connection is there when it takes another within this."""
    answer_s: float = 10.0
    """With the keep-alive on top: how long the broker may leave a message unacknowledged."""
    idle_answer_s: float = 10.0
    """The same for an idle connection."""
    store_s: float = 5.0
    """Pause after the store failed."""
    announce_s: tuple[float, float] = (1.0, 10.0)
    """After its birth message Home Assistant is sent everything again, at a random moment between
    these: all its devices receive that message at once."""
    leave_s: float = 1.0
    """Home Assistant's will that comes because the broker goes down is followed by the end of our
    connection within this."""
    subscribe_s: float = 5.0
    """After the broker's return Home Assistant has all its subscriptions within this, once it has
    the one to the announcements."""
    birth_s: float = 20.0
    """Home Assistant's birth message comes within this after the broker's return: it tries to
    connect every 10 s, and says so 6 to 9 s later (seen with 2024.12 and 2026.2)."""


DELAYS = Delays()


def client_id(settings: MqttSettings, node: str) -> str:
    """The configured client id, or one made from the node; the same at every start."""
    return settings.client_id or f"roomscribe-{node}"


def ping_s(settings: MqttSettings, delays: Delays = DELAYS) -> int:
    """How long the connection may be silent before paho asks whether the broker is there.

    paho gives an idle connection up after twice that: keepalive_s + idle_answer_s at most.
    """
    return min(settings.keepalive_s, int(settings.keepalive_s + delays.idle_answer_s) // 2)


class Connection:
    """One link at a time, and another one when it ends. Owned by one thread."""

    def __init__(
        self,
        settings: MqttSettings,
        node: str,
        wake: threading.Event,
        found: Troubles,
        *,
        listens_on: tuple[str, ...] = (),
        delays: Delays = DELAYS,
    ) -> None:
        """Connects nowhere yet; `listens_on` are whole topics.

        Raises ConfigError when a file of the password or of TLS cannot be read.
        """
        tls.password(settings)
        tls.context(settings)
        self._delays = delays
        self._client_id = client_id(settings, node)
        self._listens_on = listens_on
        self._unacknowledged: dict[int, tuple[str, float]] = {}
        """Topic and time of each message and subscription that the broker has not answered."""
        self._denials: dict[str, set[str]] = {}
        self.connected_s: float | None = None
        """Since when it stands, on time.monotonic()'s clock; None while it does not."""
        self._settings = settings
        self._node = node
        self._wake = wake
        self._troubles = found
        self._link: Link | None = None
        self._attempt_s = 0.0
        self._outages = self._brief = 0
        self._rival = ""
        """Why there seems to be another client with our id; it, too, comes back after refusal_s."""

    @property
    def trying(self) -> bool:
        """True while it stands or an attempt is under way."""
        return self._link is not None

    @property
    def due_s(self) -> float:
        """When `news` has something to do of its own accord, on time.monotonic()'s clock."""
        if self.connected_s is not None:
            return self._silent_s
        return self._attempt_s + (self._delays.attempt_s if self._link else 0.0)

    def news(self, now_s: float) -> Iterator[Connected | Acknowledged | Lost]:
        """What has happened since the last call, in order; tries to connect when it is time."""
        if self._link is None and now_s >= self._attempt_s:
            self._attempt(now_s)
        while self._link and self._link.news:
            item = self._link.news.popleft()
            match item:
                case Connected():
                    self._welcome(now_s)
                    yield item
                case Acknowledged(message, code, reason):
                    self._answered(self._pop_topic(message), code, reason)
                    yield item
                case Subscribed(message, code, reason):
                    topic = self._pop_topic(message)
                    if topic and code >= FIRST_FAILURE:
                        self._denied("listen on", topic, reason)
                case Refused(code, reason) if code not in troubles.PASSING:
                    why = troubles.refused(self._settings, self._client_id, code, reason)
                    yield self._part(now_s, self._delays.refusal_s, why)
                case Untrusted(reason):
                    yield self._part(now_s, self._delays.refusal_s, reason)
                case Lost(troubles.TAKEN_OVER, _):
                    self._rival = troubles.taken_over(self._client_id)
                    yield self._part(now_s, self._delays.refusal_s, self._rival)
                case Lost(_, reason) | Refused(_, reason):
                    yield self._give_up(now_s, reason)
        alone_s = self._delays.refusal_s + STEADY_S
        if self._rival and self.connected_s is not None and now_s > self.connected_s + alone_s:
            self._rival = ""
            self._troubles.clear(troubles.CLIENT_ID)
        if overdue := self._overdue(now_s):
            yield self._give_up(now_s, overdue)

    def received(self) -> Iterator[Message]:
        """What came on the topics listened on since the last call, in order."""
        while self._link and self._link.received:
            yield self._link.received.popleft()

    def _give_up(self, now_s: float, detail: str) -> Lost:
        """Treat the broker as away: drop the link and schedule the next attempt."""
        steady = self.connected_s is not None and now_s - self.connected_s > STEADY_S
        brief = self.connected_s is not None and not steady
        there = brief and is_there(self._settings, self._delays.there_s)
        self._brief = self._brief + 1 if there else 0
        if self._brief >= BRIEF:
            self._rival = troubles.thrown_out(self._client_id)
            return self._part(now_s, self._delays.refusal_s, self._rival)
        if steady:
            self._outages = 0
        pauses_s = self._delays.outages_s
        pause_s = pauses_s[min(self._outages, len(pauses_s) - 1)]
        self._outages += 1
        return self._part(now_s, pause_s, *troubles.away(self._settings, detail))

    def publish(
        self,
        name: str,
        payload: bytes,
        *,
        qos: int = 1,
        retain: bool = False,
        expiry_s: int | None = None,
    ) -> int:
        """Sends on one of the node's topics and returns the message's number.

        Raises BrokerError when no connection stands.
        """
        return self.send(Outgoing(events.topic(self._node, name), payload, qos, retain, expiry_s))

    def send(self, message: Outgoing) -> int:
        """Sends on any topic and returns the message's number. Raises BrokerError as above."""
        if self._link is None or self.connected_s is None:
            raise BrokerError(f"cannot publish {message.topic}: expected a connection, found none")
        number = self._link.publish(message)
        if message.qos:
            self._unacknowledged[number] = (message.topic, time.monotonic())
        return number

    def subscribe_retained(self, topic: str) -> None:
        """Listen on a topic, with what is retained there; a refusal is no trouble.

        Raises BrokerError when no connection stands.
        """
        if self._link is None or self.connected_s is None:
            raise BrokerError(f"cannot listen on {topic}: there is no connection to the broker")
        self._link.subscribe(topic, retained=True)

    def close(self) -> None:
        """Publishes offline and ends the connection; takes 0.3 s at most."""
        if self._link and self.connected_s is not None:
            self.publish(events.AVAILABILITY, events.OFFLINE, retain=True)
            self._link.close(timeout_s=0.3)
        elif self._link:
            self._link.drop()
        self._link = self.connected_s = None

    def _attempt(self, now_s: float) -> None:
        """Begins to connect, with the password as its file has it now."""
        self._attempt_s = now_s
        try:
            self._link = Link(
                self._settings,
                self._client_id,
                self._wake,
                keepalive_s=ping_s(self._settings, self._delays),
                node=self._node,
            )
        except ConfigError as error:
            self._part(now_s, self._delays.refusal_s, str(error))

    def _welcome(self, now_s: float) -> None:
        """The broker let us in: subscribes, then publishes online before anything else."""
        self.connected_s = now_s
        self._troubles.clear("listen on")
        if self._link:
            for topic in self._listens_on:
                self._unacknowledged[self._link.subscribe(topic)] = (topic, time.monotonic())
        self.publish(events.AVAILABILITY, events.ONLINE, retain=True)
        if self._rival:  # told at the broker, too, as long as the other is to be expected
            self._troubles.set(troubles.CLIENT_ID, self._rival)
        self._troubles.clear("broker")
        log.info("connected to the broker %s:%d", self._settings.host, self._settings.port)

    def _overdue(self, now_s: float) -> str:
        """Return what the broker has left unanswered for too long; empty if nothing."""
        attempting = self._link is not None and self.connected_s is None
        if attempting and now_s >= self._attempt_s + self._delays.attempt_s:
            return "no answer"
        return "messages stay unacknowledged" if now_s >= self._silent_s else ""

    @property
    def _silent_s(self) -> float:
        """When the broker has left the oldest message unacknowledged for too long.

        The oldest one counts, not the last answer: a connection can lose one message and answer
        all others.
        """
        oldest_s = min((sent_s for _, sent_s in self._unacknowledged.values()), default=math.inf)
        return oldest_s + self._settings.keepalive_s + self._delays.answer_s

    def _pop_topic(self, message: int) -> str:
        """Return the topic of the message that the broker answers; empty if it is not known."""
        topic, _ = self._unacknowledged.pop(message, ("", 0.0))
        return topic

    def _answered(self, topic: str, code: int, reason: str) -> None:
        """A PUBACK; one that refuses the topic is a trouble until the topic is taken again."""
        if code >= FIRST_FAILURE:
            self._denied("write to", topic, reason)
        elif topic in self._denials.get("write to", ()):
            self._denials["write to"].discard(topic)
            if not self._denials["write to"]:
                self._troubles.clear("write to")

    def _denied(self, doing: str, topic: str, reason: str) -> None:
        topics = self._denials.setdefault(doing, set())
        topics.add(topic)
        why = troubles.denied(self._settings, doing, reason)
        self._troubles.set(doing, why, f": {', '.join(sorted(topics))}")

    def _part(self, now_s: float, delay_s: float, reason: str, detail: str = "") -> Lost:
        """Gives the link up; the next attempt begins after `delay_s` at most."""
        if self._link:
            self._link.drop()
        self._link = self.connected_s = None
        self._unacknowledged.clear()
        self._denials.clear()
        self._attempt_s = now_s + delay_s * random.SystemRandom().uniform(*SPREAD)
        self._troubles.set("broker", reason, detail)
        return Lost(0, reason)
