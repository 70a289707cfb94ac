"""A model of how a sentence gets from the microphone to a subscriber.

The appliance keeps each window in its spool (memory that outlives the process), transcribes it or
has a worker do it, commits the transcript to the store, and publishes from the store with a cursor.
The model is these rules and nothing else: no sound, no text, no time. `Model.actions` yields what
may happen next, and `Model.faults_of` a bounded number of faults. `Rules` has one switch for each
rule: with any of them off, the search (search.py) must find a violation.
docs/promises.md says what the model leaves out. A timeout may happen here at any moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

DEATHS = 2
"""A window during whose transcription so many processes died is set aside (daemon/backlog.py)."""

Action = tuple[str, "State"]


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol; True is what the product does."""

    spool_before_queueing: bool = True
    withdraw_speculation_from_spool: bool = True
    spool_until_stored: bool = True
    find_spool_at_start: bool = True
    release_stored_at_start: bool = True
    set_aside_after_deaths: bool = True
    store_an_id_once: bool = True
    store_in_order: bool = True
    store_before_publishing: bool = True
    cursor_waits_for_acknowledgement: bool = True
    count_only_own_acknowledgements: bool = True
    rewind_at_new_connection: bool = True
    watch_oldest_in_flight: bool = True
    mark_sent_before_as_late: bool = True
    repeat_after_lost_sessions: bool = True
    repeat_in_order: bool = True
    retention_waits_for_cursor: bool = True
    read_store_when_publishing: bool = True
    match_answer_to_window: bool = True
    send_window_again: bool = True
    start_after_cursor: bool = True
    recall_recent_at_start: bool = True
    move_cursor_back: bool = True


class State(NamedTuple):
    """All that decides what may happen next. Ids begin at 1; a row's number is its index + 1."""

    # memory of the appliance's process
    up: bool = True
    ahead: int = 0
    """Speculation on the next window: 0 not yet, 1 it is in the spool, 2 withdrawn."""
    waiting: tuple[int, ...] = ()
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
    jumped: int = 0
    """1: the clock has jumped; 2: retention has looked since."""
    # network, broker, subscriber
    unheard: bool = False
    """The broker lost its sessions, and the appliance has not yet repeated what was recent."""
    wire: tuple[tuple[int, int, bool], ...] = ()
    """PUBLISH under way: number, id, late; number 0: no transcript."""
    acks: tuple[int, ...] = ()
    inbox: tuple[tuple[int, int, bool], ...] = ()
    received: tuple[int, ...] = ()
    """Ids that the subscriber has."""
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


@dataclass(frozen=True)
class Model:
    """The bounds of a search; without workers the appliance transcribes itself."""

    windows: int = 3
    workers: int = 0
    faults: int = 3
    rules: Rules = Rules()
    half: Half = Half.BOTH
    deadly: int = 0
    """A window that kills every process that transcribes it."""

    def first(self) -> State:
        """Return the state in which nothing has happened."""
        workers = ((0, False),) * self.workers
        return State(deaths=(0,) * self.windows, workers=workers, faults=self.faults)

    def actions(self, s: State) -> Iterator[Action]:
        """Yield what may happen without a fault, with the state after it. Raises ViolationError."""
        if not s.up:
            yield "the appliance starts", self._started(s)
        else:
            yield from self._hear(s)
            yield from self._transcribe(s)
            yield from self._store(s)
            if self.half is not Half.TO_STORE:
                yield from self._publish(s)
        if s.wire:
            (number, window, late), *rest = s.wire
            inbox = (*s.inbox, (number, window, late)) if number else s.inbox
            acks = (*s.acks, number)
            yield f"the broker gets {window}", s._replace(wire=tuple(rest), inbox=inbox, acks=acks)
        if s.inbox:
            yield self._received(s)
        yield from self._work(s)
        if s.refusing:
            yield "the disk accepts again", s._replace(refusing=False)
        if s.jumped == 1 and s.up and not s.inbox and not s.unheard:
            until = s.cursor if self.rules.retention_waits_for_cursor else len(s.rows)
            yield "retention deletes old rows", s._replace(jumped=2, expired=s.rows[:until])

    def _hear(self, s: State) -> Iterator[Action]:
        window = s.heard + 1
        if window > self.windows:
            return
        if self.half is Half.FROM_STORE:
            if not s.refusing:
                stored = s._replace(heard=window, rows=(*s.rows, window))
                yield f"transcript {window} is stored", stored
            return
        spooled = s.spool if s.ahead == 1 else (*s.spool, window)
        kept = spooled if self.rules.spool_before_queueing else s.spool
        queued = s._replace(heard=window, ahead=0, spool=kept, waiting=(*s.waiting, window))
        yield f"window {window} ends", queued
        if s.ahead == 0:
            yield f"window {window} is spooled ahead", s._replace(ahead=1, spool=spooled)
        if s.ahead == 1:
            withdrawn = self.rules.withdraw_speculation_from_spool
            kept = _without(s.spool, window) if withdrawn else s.spool
            yield f"speech goes on in window {window}", s._replace(ahead=2, spool=kept)

    def _transcribe(self, s: State) -> Iterator[Action]:
        if not s.lease:
            for window in s.waiting[:1]:
                leased = s._replace(waiting=s.waiting[1:], lease=window, sent=False)
                if s.deaths[window - 1] < DEATHS or not self.rules.set_aside_after_deaths:
                    yield f"window {window} is leased", leased
                else:
                    yield f"window {window} is set aside", _discard(leased)
            return
        window = s.lease
        if window == self.deadly:
            yield f"window {window} kills the appliance", self._stopped(s, crashed=True)
            return
        if not self.workers:
            yield f"window {window} is transcribed", self._transcribed(s)
            yield f"window {window} is discarded as no speech", _discard(s)
            return
        under_way = (*s.stream, *s.answers, *(one for one, _ in s.workers))
        if not s.sent or (window not in under_way and self.rules.send_window_again):
            yield f"window {window} is sent", s._replace(sent=True, stream=(*s.stream, window))
        for answer in set(s.answers):
            rest = s._replace(answers=_without(s.answers, answer))
            if answer == window:
                yield f"the text of {window} arrives", self._transcribed(rest)
            elif self.rules.match_answer_to_window:
                yield f"a late text of {answer} is ignored", rest
            else:
                raise ViolationError("own text", f"window {window} gets the text of {answer}")

    def _transcribed(self, s: State) -> State:
        window = s.lease
        spool = s.spool if self.rules.spool_until_stored else _without(s.spool, window)
        deaths = _with(s.deaths, window - 1, 0)
        return s._replace(lease=0, sent=False, spool=spool, deaths=deaths, texts=(*s.texts, window))

    def _store(self, s: State) -> Iterator[Action]:
        if s.committed:
            spool = _without(s.spool, s.committed)
            yield f"window {s.committed} is released", s._replace(committed=0, spool=spool)
        elif s.texts and not s.refusing:
            window = s.texts[0] if self.rules.store_in_order else s.texts[-1]
            if window in s.deleted:
                raise ViolationError("deletion", f"the deleted transcript {window} comes back")
            known = window in s.rows and self.rules.store_an_id_once
            rows = s.rows if known else (*s.rows, window)
            stored = s._replace(texts=_without(s.texts, window), rows=rows, committed=window)
            yield f"transcript {window} is stored", stored

    def _publish(self, s: State) -> Iterator[Action]:
        if not s.linked:
            yield "the appliance connects", self._connected(s)
            return
        number = s.reached + 1
        if number <= len(s.rows):
            window = s.rows[number - 1]
            gone = window in s.deleted or window in s.expired
            if gone and self.rules.read_store_when_publishing:
                passed = s._replace(reached=number, cursor=s.cursor if s.flight else number)
                yield f"deleted row {number} is passed over", passed
            elif window in s.deleted:
                raise ViolationError("deletion", f"the deleted transcript {window} is published")
            else:
                wire = s.wire if s.deaf else (*s.wire, (number, window, number <= s.stood))
                cursor = s.cursor if self.rules.cursor_waits_for_acknowledgement else number
                flight = (*s.flight, number)
                sent = s._replace(wire=wire, flight=flight, reached=number, cursor=cursor)
                yield f"transcript {window} is published", sent
        elif s.texts and not self.rules.store_before_publishing:
            raise ViolationError("stored first", f"transcript {s.texts[0]} is published unstored")
        if s.acks:
            number, *rest = s.acks
            after = self._acknowledged(s._replace(acks=tuple(rest)), number)
            yield f"the acknowledgement of row {number} arrives", after
        lost = s.flight and not s.acks and not any(number for number, _, _ in s.wire)
        if lost and self.rules.watch_oldest_in_flight:
            yield "no acknowledgement: the appliance hangs up", _unlinked(s)

    def _acknowledged(self, s: State, number: int) -> State:
        """Return the state after a PUBACK, of a transcript or (0) of another message."""
        if not number and not self.rules.count_only_own_acknowledgements:
            number = min(s.flight, default=0)
        flight = tuple(one for one in s.flight if one != number)
        recent = min(s.recent or number, number or s.recent)
        cursor = min(flight, default=s.reached + 1) - 1
        return s._replace(flight=flight, recent=recent, cursor=cursor)

    def _connected(self, s: State) -> State:
        """Return the state with a new connection: what is not safe at the broker is due again."""
        reached = s.reached
        if s.flight and self.rules.rewind_at_new_connection:
            reached = min(s.flight) - 1
        recent = s.recent
        if s.unheard and s.recent and self.rules.repeat_after_lost_sessions:
            again = s.recent - 1 if self.rules.repeat_in_order else max(s.recent - 1, reached - 1)
            reached, recent = min(reached, again), 0
        cursor = min(s.cursor, reached) if self.rules.move_cursor_back else s.cursor
        stood = len(s.rows) if self.rules.mark_sent_before_as_late else 0
        return s._replace(
            linked=True, reached=reached, flight=(), stood=stood, recent=recent, cursor=cursor,
            unheard=False,
        )  # fmt: skip

    def _received(self, s: State) -> Action:
        (number, window, late), *rest = s.inbox
        received = s.received
        if window in received and not late:
            raise ViolationError("once", f"the subscriber gets {window} twice, not marked late")
        if window not in received:
            later = [one for one in s.received if s.rows.index(one) >= number]
            if later:
                raise ViolationError("order", f"the subscriber gets {window} after {later[0]}")
            received = tuple(sorted((*s.received, window)))
        return f"the subscriber gets {window}", s._replace(inbox=tuple(rest), received=received)

    def _work(self, s: State) -> Iterator[Action]:
        for at, (window, answered) in enumerate(s.workers):
            if at and s.workers[at - 1] == (window, answered):
                continue  # the same as the worker before
            if window and answered:
                yield f"a worker confirms {window}", _assign(s, at, 0)
            elif window:
                answers = tuple(sorted((*s.answers, window)))
                after = _assign(s, at, window, answered=True)._replace(answers=answers)
                yield f"a worker answers {window}", after
            elif s.stream:
                first, *rest = s.stream
                after = _assign(s, at, first)._replace(stream=tuple(rest))
                yield f"a worker fetches {first}", after

    def faults_of(self, state: State) -> Iterator[Action]:
        """Yield every fault that may happen, with the state after it."""
        if state.faults:
            s = state._replace(faults=state.faults - 1)
            yield from self._process_faults(s)
            if self.half is not Half.TO_STORE:
                yield from self._broker_faults(s)
            if self.workers:
                yield from self._fleet_faults(s)

    def _process_faults(self, s: State) -> Iterator[Action]:
        if s.up:
            yield "the appliance crashes", self._stopped(s, crashed=True)
            yield "the appliance is restarted", self._stopped(s, crashed=False)
        if not s.refusing:
            yield "the disk refuses", s._replace(refusing=True)
        if not s.jumped and self.half is not Half.TO_STORE:
            yield "the clock jumps", s._replace(jumped=1)
        for window in s.rows:
            if window not in s.deleted and window != s.committed:
                yield f"somebody deletes {window}", s._replace(deleted=(*s.deleted, window))

    def _broker_faults(self, s: State) -> Iterator[Action]:
        yield "the broker restarts", _unlinked(s)
        if s.linked:
            yield "the connection to the broker breaks", _unlinked(s)
        if s.flight and not s.deaf:
            yield "the network swallows everything", s._replace(deaf=True, wire=(), acks=())
            if (0, 0, False) not in s.wire and 0 not in s.acks:
                yield "a state message is sent as well", s._replace(wire=((0, 0, False), *s.wire))
        if s.acks:
            yield "the network loses an acknowledgement", s._replace(acks=s.acks[1:])
        if s.inbox or s.acks:
            gone = _unlinked(s)._replace(inbox=(), unheard=True)
            yield "the broker restarts and loses its sessions", gone

    def _fleet_faults(self, s: State) -> Iterator[Action]:
        if s.stream or any(window for window, _ in s.workers):
            idle = self.first().workers
            yield "the fleet's server restarts", s._replace(stream=(), workers=idle)
        for answer in set(s.answers):
            yield f"the text of {answer} is lost", s._replace(answers=_without(s.answers, answer))
            double = tuple(sorted((*s.answers, answer)))
            yield f"the text of {answer} arrives twice", s._replace(answers=double)
        for at, (window, _) in enumerate(s.workers):
            if window and (not at or s.workers[at - 1] != s.workers[at]):
                after = _assign(s, at, 0)._replace(stream=(window, *s.stream))
                yield f"the worker of {window} dies", after

    def _stopped(self, s: State, *, crashed: bool) -> State:
        """Return the state without the process: its memory is gone."""
        deaths = s.deaths
        if s.lease and not self.workers:
            deaths = _with(deaths, s.lease - 1, (deaths[s.lease - 1] + 1) * crashed)
        recent = s.recent if self.rules.recall_recent_at_start else 0
        return _unlinked(s)._replace(
            up=False, ahead=0, waiting=(), lease=0, sent=False, texts=(), committed=0,
            deaths=deaths, reached=0, flight=(), stood=0, recent=recent,
        )  # fmt: skip

    def _started(self, s: State) -> State:
        stored = s.rows if self.rules.release_stored_at_start else ()
        s = s._replace(spool=tuple(one for one in s.spool if one not in stored))
        waiting = tuple(sorted(s.spool)) if self.rules.find_spool_at_start else ()
        reached = s.cursor if self.rules.start_after_cursor else len(s.rows)
        heard = max(s.heard, *waiting, 0)
        return s._replace(up=True, waiting=waiting, heard=heard, reached=reached)


def _discard(s: State) -> State:
    spool, discarded = _without(s.spool, s.lease), (*s.discarded, s.lease)
    return s._replace(lease=0, sent=False, spool=spool, discarded=discarded)


def _assign(s: State, at: int, window: int, *, answered: bool = False) -> State:
    """Return the state in which worker `at` has a window, or (0) none."""
    workers = (*s.workers[:at], (window, answered), *s.workers[at + 1 :])
    return s._replace(workers=tuple(sorted(workers)))


def _unlinked(s: State) -> State:
    """Return the state without a connection: what was under way on it is gone."""
    return s._replace(linked=False, deaf=False, wire=(), acks=())


def _without(values: tuple[int, ...], value: int) -> tuple[int, ...]:
    """Return the values without one that is equal to `value`."""
    at = values.index(value) if value in values else len(values)
    return values[:at] + values[at + 1 :]


def _with(values: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return (*values[:at], value, *values[at + 1 :])
