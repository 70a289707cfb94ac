"""The state of the protocol's model, and how it is changed."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

DEATHS = 3
"""A window with which so many processes died waits until another one is transcribed, and is set
aside after one more (daemon/backlog.py)."""

LATE, OLD, EARLY = 1, 2, 4
"""Marks of a message: late, or repeated by the broker; sent before a later attempt, whose
acknowledgement alone counts; under way when the subscriber came back, so it may be the first that
it gets (docs/promises.md)."""

Action = tuple[str, "State"]
Message = tuple[int, int, int]
"""A PUBLISH: number, id, marks; number 0: no transcript."""


class State(NamedTuple):
    """All that decides what may happen next. Ids begin at 1; a row's number is its index + 1."""

    # memory of the appliance's process
    up: bool = True
    ahead: int = 0
    """Speculation on the next window: 0 not yet, 1 it is in the spool, 2 withdrawn."""
    waiting: tuple[int, ...] = ()
    doubtful: tuple[int, ...] = ()
    works: bool = False
    """A window was transcribed, so doubtful ones may be, too."""
    lease: int = 0
    sent: bool = False
    """The leased window was sent to the fleet's server."""
    texts: tuple[int, ...] = ()
    """Transcribed, not yet stored."""
    committed: int = 0
    """Stored, and not yet released from the spool."""
    linked: bool = False
    deaf: bool = False
    """The connection stands, and nothing passes any more."""
    reached: int = 0
    flight: tuple[int, ...] = ()
    stood: int = 0
    """Rows up to this number were stored before the connection, or were sent before: late."""
    recent: int = 0
    """The first row that was acknowledged lately; 0: none."""
    refused: tuple[int, ...] = ()
    """Rows that the broker refused, and that are due again later."""
    # what outlives the process
    heard: int = 0
    spool: tuple[int, ...] = ()
    deaths: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    discarded: tuple[int, ...] = ()
    deleted: tuple[int, ...] = ()
    expired: tuple[int, ...] = ()
    cursor: int = 0
    refusing: bool = False
    cut: tuple[int, ...] = ()
    """Windows that were in memory only when the power failed."""
    muted: bool = False
    jumped: int = 0
    """1: the clock has jumped; 2: retention has looked since."""
    # network, broker, subscriber
    unheard: bool = False
    """The subscriber lost what it had not read, and the appliance has not yet repeated what was
    recent."""
    wire: tuple[Message, ...] = ()
    """Under way to the broker."""
    acks: tuple[int, ...] = ()
    """Numbers; negative: nobody subscribes."""
    away: bool = False
    """Nobody subscribes."""
    inbox: tuple[Message, ...] = ()
    received: tuple[int, ...] = ()
    """Ids that the subscriber has."""
    early: tuple[int, ...] = ()
    """Ids that it has only from a message that was EARLY."""
    unordered: tuple[int, ...] = ()
    """Ids that the broker refused, or that were doubtful, which may come after later ones."""
    # the fleet
    stream: tuple[int, ...] = ()
    workers: tuple[tuple[int, bool], ...] = ()
    """Each worker's window (0: none) and whether it answered; sorted, since workers are alike."""
    answers: tuple[int, ...] = ()
    faults: int = 0


class ViolationError(Exception):
    """A guarantee does not hold: its name and how."""


class Half(Enum):
    """What is searched. The halves share only the store, so each allows a wider search."""

    BOTH = "from the microphone to the subscriber"
    TO_STORE = "from the microphone to the store"
    FROM_STORE = "from the store to the subscriber"


def without(values: tuple[int, ...], value: int) -> tuple[int, ...]:
    """Return the values without one that is equal to `value`."""
    at = values.index(value) if value in values else len(values)
    return values[:at] + values[at + 1 :]


def with_value(values: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    """Return the values with another one at `at`."""
    return (*values[:at], value, *values[at + 1 :])


def unlinked(s: State) -> State:
    """Return the state without a connection: what was under way on it is gone."""
    return s._replace(linked=False, deaf=False, wire=(), acks=())


def with_cursor(s: State) -> State:
    """Return the state whose cursor is before the first row that the broker does not have."""
    return s._replace(cursor=min((*s.flight, *s.refused), default=s.reached + 1) - 1)


def assign(s: State, at: int, window: int, *, answered: bool = False) -> State:
    """Return the state in which worker `at` has a window, or (0) none."""
    workers = (*s.workers[:at], (window, answered), *s.workers[at + 1 :])
    return s._replace(workers=tuple(sorted(workers)))
