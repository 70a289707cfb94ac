"""A model of how several rooms that heard one sentence decide which of them acts.

Each room publishes a claim. The best one publishes that it acts, and acts once that message has
come back from the broker before any other of its kind. A room that waits for a better one takes
over after a deadline (appliance/house/arbiter.py). A timeout may happen at any moment here.
On the texts of some rooms nothing may act: what these publish does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeVar

from protocol.state import ViolationError

Value = TypeVar("Value")
GUARANTEES = {
    "one room": "of several connected rooms that heard a sentence, at most one acts on it",
    "some room": "one of them acts, unless it dies after it has published that it acts",
}
"""The wording of each guarantee, as in docs/promises.md."""


class Room(IntEnum):
    """State of a room. A smaller number of a room means a better claim."""

    HEARS = 0
    WAITS = 1
    ACTING = 2
    ACTED = 3
    DEFERRED = 4
    DEAD = 5


@dataclass(frozen=True)
class ClaimRules:
    """The rules of the protocol; True is what the product does."""

    claim_has_deadline: bool = True
    act_waits_for_its_return: bool = True
    first_act_counts: bool = True
    idle_act_counts_for_nothing: bool = True


class House(NamedTuple):
    """All that decides what may happen next. A message is a room's number; acts are negative."""

    rooms: tuple[Room, ...]
    outgoing: tuple[tuple[int, ...], ...]
    topic: tuple[int, ...] = ()
    """All messages, in the broker's order."""
    read: tuple[int, ...] = ()
    """How many of them each room has read."""
    known: tuple[frozenset[int], ...] = ()
    """Whose claims each room knows."""
    faults: int = 0


@dataclass(frozen=True)
class ClaimModel:
    """The bounds of a search."""

    rooms: int = 3
    faults: int = 2
    rules: ClaimRules = ClaimRules()
    idle: int = 0
    """Rooms, those with the worst claims, on whose texts nothing may act."""

    def first(self) -> House:
        """Return the state in which all rooms have heard the sentence."""
        none = ((),) * self.rooms
        known = (frozenset[int](),) * self.rooms
        return House((Room.HEARS,) * self.rooms, none, (), (0,) * self.rooms, known, self.faults)

    def actions(self, s: House) -> Iterator[tuple[str, House]]:
        """Yield what may happen without a fault. Raises ViolationError."""
        for at, room in enumerate(s.rooms):
            number = at + 1
            if room is Room.HEARS:
                yield f"room {number} claims", _send(_enter(s, at, Room.WAITS), at, number)
            best = all(number < other for other in s.known[at])
            if room is Room.WAITS and (best or self.rules.claim_has_deadline):
                after = Room.ACTING if self.rules.act_waits_for_its_return else Room.ACTED
                acting = _send(_enter(s, at, after), at, -number)
                yield f"room {number} publishes that it acts", acting
            if s.outgoing[at]:
                message, *rest = s.outgoing[at]
                outgoing = _put(s.outgoing, at, tuple(rest))
                taken = s._replace(topic=(*s.topic, message), outgoing=outgoing)
                yield f"the broker gets {_name(message)}", taken
            if room is not Room.DEAD and s.read[at] < len(s.topic):
                message = s.topic[s.read[at]]
                yield f"room {number} gets {_name(message)}", self._received(s, at, message)

    def _received(self, s: House, at: int, message: int) -> House:
        s, room = s._replace(read=_put(s.read, at, s.read[at] + 1)), s.rooms[at]
        if message > 0:
            if message == at + 1:
                return s
            return s._replace(known=_put(s.known, at, s.known[at] | {message}))
        if -message == at + 1:
            return _enter(s, at, Room.ACTED) if room is Room.ACTING else s
        open_states = {Room.HEARS, Room.WAITS}
        if self.rules.first_act_counts:
            open_states.add(Room.ACTING)
        if self._may_act(at + 1) and not self._may_act(-message):
            open_states -= set(Room) if self.rules.idle_act_counts_for_nothing else set()
        elif not self._may_act(at + 1) and self._may_act(-message):
            open_states.add(Room.ACTED)
        return _enter(s, at, Room.DEFERRED) if room in open_states else s

    def faults_of(self, s: House) -> Iterator[tuple[str, House]]:
        """Yield every fault: a room dies, and what it had not sent is lost."""
        for at, room in enumerate(s.rooms):
            if s.faults and room is not Room.DEAD:
                dead = _enter(s, at, Room.DEAD)._replace(outgoing=_put(s.outgoing, at, ()))
                yield f"room {at + 1} dies", dead._replace(faults=s.faults - 1)

    def check(self, s: House, *, ended: bool) -> None:
        """Raise ViolationError if a guarantee does not hold; `ended`: only faults can happen."""
        able = [one for one in range(1, self.rooms + 1) if self._may_act(one)]
        acted = [one for one in able if s.rooms[one - 1] is Room.ACTED]
        if len(acted) > 1:
            raise ViolationError("one room", f"the rooms {acted} act on the same sentence")
        published = any(-message in able for message in s.topic)
        alive = any(s.rooms[one - 1] is not Room.DEAD for one in able)
        if ended and alive and not acted and not published:
            raise ViolationError("some room", "no room acts on the sentence")

    def _may_act(self, number: int) -> bool:
        """Return True if something may act on the text of the room with this number."""
        return number <= self.rooms - self.idle


def _send(s: House, at: int, message: int) -> House:
    return s._replace(outgoing=_put(s.outgoing, at, (*s.outgoing[at], message)))


def _enter(s: House, at: int, room: Room) -> House:
    return s._replace(rooms=_put(s.rooms, at, room))


def _put(values: tuple[Value, ...], at: int, value: Value) -> tuple[Value, ...]:
    return (*values[:at], value, *values[at + 1 :])


def _name(message: int) -> str:
    return f"the claim of room {message}" if message > 0 else f"that room {-message} acts"
