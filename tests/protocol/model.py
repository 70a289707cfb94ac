"""A model of how a sentence gets from the microphone to a subscriber.

The appliance keeps each window in its spool (memory that outlives the process), transcribes it or
has a worker do it, commits the transcript to the store, and publishes from the store with a cursor.
The model is these rules and nothing else: no sound, no text, no time. `Model.actions` yields what
may happen next, and `Model.faults_of` a bounded number of faults (faults.py). docs/promises.md says
what the model leaves out. A timeout may happen here at any moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from protocol.faults import broker_faults, fleet_faults, house_faults, process_faults, start, stop
from protocol.state import (
    DEATHS,
    EARLY,
    LATE,
    OLD,
    Action,
    Half,
    State,
    ViolationError,
    assign,
    unlinked,
    with_cursor,
    with_value,
    without,
)


@dataclass(frozen=True)
class Model:
    """The bounds of a search; without workers the appliance transcribes itself."""

    windows: int = 3
    workers: int = 0
    faults: int = 3
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
            yield "the appliance starts", start(s)
        else:
            yield from self._hear(s)
            yield from self._transcribe(s)
            yield from self._store(s)
            if self.half is not Half.TO_STORE:
                yield from self._publish(s)
        if s.wire:
            yield f"the broker gets {s.wire[0][1]}", _at_broker(s)
        if s.inbox:
            yield self._received(s)
        if s.away:
            wire = tuple((n, window, marks | EARLY) for n, window, marks in s.wire if n)
            others = tuple(one for one in s.wire if not one[0])
            yield "the subscriber returns", s._replace(away=False, wire=(*others, *wire))
        if s.muted:
            yield "somebody unmutes", s._replace(muted=False)
        yield from self._work(s)
        if s.refusing:
            yield "the disk accepts again", s._replace(refusing=False)
        if s.jumped == 1 and s.up and not s.inbox and not s.unheard:
            yield "retention deletes old rows", s._replace(jumped=2, expired=s.rows[: s.cursor])

    def _hear(self, s: State) -> Iterator[Action]:
        window = s.heard + 1
        if window > self.windows:
            return
        if self.half is Half.FROM_STORE:
            if not s.refusing:
                stored = s._replace(heard=window, rows=(*s.rows, window))
                yield f"transcript {window} is stored", stored
            return
        if not s.ahead and s.muted:
            return
        spooled = s.spool if s.ahead == 1 else (*s.spool, window)
        queued = s._replace(heard=window, ahead=0, spool=spooled, waiting=(*s.waiting, window))
        yield f"window {window} ends", queued
        if s.ahead == 0:
            yield f"window {window} is spooled ahead", s._replace(ahead=1, spool=spooled)
        if s.ahead == 1:
            withdrawn = s._replace(ahead=2, spool=without(s.spool, window))
            yield f"speech goes on in window {window}", withdrawn

    def _transcribe(self, s: State) -> Iterator[Action]:
        if not s.lease:
            for window in s.waiting[:1]:
                leased = s._replace(waiting=s.waiting[1:], lease=window, sent=False)
                deaths = s.deaths[window - 1]
                if deaths < DEATHS or (deaths == DEATHS and s.works):
                    yield f"window {window} is leased", leased
                elif deaths == DEATHS:
                    late = tuple(sorted({*s.unordered, window}))
                    doubtful = (*s.doubtful, window)
                    after = leased._replace(lease=0, doubtful=doubtful, unordered=late)
                    yield f"window {window} is doubtful", after
                else:
                    yield f"window {window} is set aside", _discard(leased)
            return
        window = s.lease
        if window == self.deadly:
            killed = stop(s, crashed=True, counts=True)
            yield f"window {window} kills the appliance", killed
        elif self.workers:
            yield from self._await_answer(s, window)
        else:
            yield f"window {window} is transcribed", self._transcribed(s)
            yield f"window {window} is discarded as no speech", _discard(s)

    def _await_answer(self, s: State, window: int) -> Iterator[Action]:
        under_way = (*s.stream, *s.answers, *(one for one, _ in s.workers))
        if (not s.sent or window not in under_way) and not s.muted:
            yield f"window {window} is sent", s._replace(sent=True, stream=(*s.stream, window))
        for answer in set(s.answers):
            rest = s._replace(answers=without(s.answers, answer))
            if answer == window:
                yield f"the text of {window} arrives", self._transcribed(rest)
            else:
                yield f"a late text of {answer} is ignored", rest

    def _transcribed(self, s: State) -> State:
        window = s.lease
        deaths = with_value(s.deaths, window - 1, 0)
        waiting = (*s.doubtful, *s.waiting)
        return s._replace(
            lease=0, sent=False, deaths=deaths, texts=(*s.texts, window),
            waiting=waiting, doubtful=(), works=not self.workers,
        )  # fmt: skip

    def _store(self, s: State) -> Iterator[Action]:
        if s.committed:
            spool = without(s.spool, s.committed)
            yield f"window {s.committed} is released", s._replace(committed=0, spool=spool)
        elif s.texts and not s.refusing:
            window = s.texts[0]
            if window in s.deleted:
                raise ViolationError("deletion", f"the deleted transcript {window} comes back")
            rows = s.rows if window in s.rows else (*s.rows, window)
            stored = s._replace(texts=without(s.texts, window), rows=rows, committed=window)
            yield f"transcript {window} is stored", stored

    def _publish(self, s: State) -> Iterator[Action]:
        if not s.linked:
            yield "the appliance connects", self._connected(s)
            return
        if s.unheard:
            yield "what was published lately is due again", self._repeated(s)
        number = s.reached + 1
        if not s.unheard and not s.flight and number <= len(s.rows):
            window = s.rows[number - 1]
            if window in s.deleted or window in s.expired:
                yield (
                    f"deleted row {number} is passed over",
                    with_cursor(s._replace(reached=number)),
                )
            else:
                marks = LATE * (number <= s.stood)
                wire = s.wire if s.deaf else (*s.wire, (number, window, marks))
                sent = s._replace(wire=wire, flight=(number,), reached=number)
                yield f"transcript {window} is published", sent
        for number in () if s.unheard or s.flight else s.refused[:1]:
            window, wire = s.rows[number - 1], s.wire
            if window in s.deleted or window in s.expired:
                left = without(s.refused, number)
                yield f"deleted row {number} is passed over", with_cursor(s._replace(refused=left))
            else:
                wire = wire if s.deaf else (*wire, (number, window, LATE))
                again = s._replace(wire=wire, flight=(number,))
                yield f"transcript {window} is published again", again
        if s.acks:
            number, *rest = s.acks
            after = self._acknowledged(s._replace(acks=tuple(rest)), number)
            yield f"the acknowledgement of row {number} arrives", after
        lost = s.flight and not s.acks and not any(n and not marks & OLD for n, _, marks in s.wire)
        if lost:
            yield "no acknowledgement: the appliance hangs up", unlinked(s)

    def _acknowledged(self, s: State, number: int) -> State:
        """Return the state after a PUBACK, of a transcript or (0) of another message.

        A negative number: nobody subscribes.
        """
        if number < 0:
            if -number not in s.flight:
                return s
            reached = s.reached if -number in s.refused else -number - 1
            return _superseded(s)._replace(reached=reached, flight=())
        flight = tuple(one for one in s.flight if one != number)
        recent = min(s.recent or number, number or s.recent)
        refused = without(s.refused, number)
        return with_cursor(s._replace(flight=flight, recent=recent, refused=refused))

    def _connected(self, s: State) -> State:
        """Return the state with a new connection: what is not safe at the broker is due again."""
        reached = min((one - 1 for one in s.flight if one not in s.refused), default=s.reached)
        recent = s.recent
        if s.unheard and s.recent:
            reached, recent = min(reached, s.recent - 1), 0
        return s._replace(
            linked=True, reached=reached, flight=(), stood=self._late_below(s), recent=recent,
            cursor=min(s.cursor, reached), unheard=False, refused=_up_to(reached, s.refused),
        )  # fmt: skip

    def _late_below(self, s: State) -> int:
        """Return the last row that counts as late on a new connection: all that are stored."""
        return len(s.rows)

    def _repeated(self, s: State) -> State:
        """Return the state in which all that was acknowledged lately, and what is in flight, is due
        again on the same connection, marked late."""
        again = min((s.recent or s.reached + 1, *s.flight)) - 1
        reached = min(s.reached, again)
        return _superseded(s)._replace(
            reached=reached, flight=(), stood=max(s.stood, s.reached), recent=0,
            cursor=min(s.cursor, reached), unheard=False, refused=_up_to(reached, s.refused),
        )  # fmt: skip

    def _received(self, s: State) -> Action:
        (number, window, marks), *rest = s.inbox
        received = s.received
        if window not in s.rows:
            raise ViolationError("once", f"the subscriber gets {window} under an unknown id")
        if window in (*received, *s.early) and not marks & LATE:
            raise ViolationError("once", f"the subscriber gets {window} twice, not marked late")
        if marks & EARLY and window not in received:
            early = tuple(sorted({*s.early, window}))
            return f"the subscriber gets {window}", s._replace(inbox=tuple(rest), early=early)
        if window not in received:
            later = [one for one in s.received if s.rows.index(one) >= number]
            if later and window not in (*s.early, *s.unordered):
                raise ViolationError("order", f"the subscriber gets {window} after {later[0]}")
            received = tuple(sorted((*s.received, window)))
        return f"the subscriber gets {window}", s._replace(inbox=tuple(rest), received=received)

    def _work(self, s: State) -> Iterator[Action]:
        for at, (window, answered) in enumerate(s.workers):
            if at and s.workers[at - 1] == (window, answered):
                continue  # the same as the worker before
            if window and answered:
                yield f"a worker confirms {window}", assign(s, at, 0)
            elif window:
                answers = tuple(sorted((*s.answers, window)))
                after = assign(s, at, window, answered=True)._replace(answers=answers)
                yield f"a worker answers {window}", after
            elif s.stream:
                first, *rest = s.stream
                after = assign(s, at, first)._replace(stream=tuple(rest))
                yield f"a worker fetches {first}", after

        if s.stream:
            dropped = s._replace(stream=s.stream[1:])
            yield f"the fleet's server drops {s.stream[0]}, which waited too long", dropped

    def faults_of(self, state: State) -> Iterator[Action]:
        """Yield every fault that may happen, with the state after it."""
        if not state.faults:
            return
        s = state._replace(faults=state.faults - 1)
        yield from process_faults(s, local=not self.workers)
        yield from house_faults(s, hears=self.half is not Half.FROM_STORE)
        if self.half is not Half.TO_STORE:
            if not s.jumped:
                yield "the clock jumps", s._replace(jumped=1)
            yield from broker_faults(s)
        if self.workers:
            yield from fleet_faults(s, self.first().workers)


def _at_broker(s: State) -> State:
    """Return the state after the broker has read the next message."""
    (number, window, marks), *rest = s.wire
    inbox = s.inbox if s.away or not number else (*s.inbox, (number, window, marks & ~OLD))
    acks = s.acks if marks & OLD else (*s.acks, -number if s.away else number)
    return s._replace(wire=tuple(rest), inbox=inbox, acks=acks)


def _up_to(reached: int, refused: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(one for one in refused if one <= reached)


def _superseded(s: State) -> State:
    """Return the state in which no acknowledgement of what was sent so far counts."""
    wire = tuple((n, window, marks | OLD if n else 0) for n, window, marks in s.wire)
    return s._replace(wire=wire, acks=tuple(one for one in s.acks if not one))


def _discard(s: State) -> State:
    spool, discarded = without(s.spool, s.lease), (*s.discarded, s.lease)
    return s._replace(lease=0, sent=False, spool=spool, discarded=discarded)
