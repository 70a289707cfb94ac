"""What a connection to the broker has to tell: how it goes, and what came on subscribed topics."""

from __future__ import annotations

from dataclasses import dataclass

PACKET_BYTES = 65536
"""The broker is told to keep larger messages to itself."""


@dataclass(frozen=True, slots=True)
class Connected:
    """The broker let us in."""

    receive_maximum: int
    """How many unacknowledged messages it takes."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The broker answered and said no (CONNACK with a reason code of MQTT 5)."""

    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Untrusted:
    """No encryption came about: the broker, or we, are not who the other side wants."""

    reason: str
    """One whole line with its cure."""


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
class SubscriptionRefused:
    """The broker does not let us listen on a topic (SUBACK from 128 on)."""

    topic: str
    reason: str


@dataclass(frozen=True, slots=True)
class Message:
    """What somebody published on a topic that we listen on; nothing in it is to be trusted."""

    topic: str
    payload: bytes
    """At most PACKET_BYTES."""
    retained: bool
    """True for what lay at the broker when we subscribed."""
    response_topic: str = ""
    """Where the sender wants the answer (MQTT 5); empty when it wants none."""
    correlation: bytes | None = None
    """What the answer repeats (MQTT 5)."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer to a message, published with QoS 1."""

    topic: str
    """Checked by whoever made the reply: no wildcard, none of our own topics."""
    payload: bytes
    correlation: bytes | None = None


News = Connected | Refused | Untrusted | Lost | Acknowledged | SubscriptionRefused


def matches(pattern: str, topic: str) -> bool:
    """True when a subscription to `pattern`, in which + stands for one level, brings `topic`."""
    levels, found = pattern.split("/"), topic.split("/")
    return len(levels) == len(found) and all(
        level in ("+", there) for level, there in zip(levels, found, strict=True)
    )
