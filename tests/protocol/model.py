"""A model of how a sentence gets from the microphone to a subscriber.

The appliance keeps each window in its spool (memory that outlives the process), transcribes it or
has a worker do it, commits the transcript to the store, and publishes from the store with a cursor.
The model is these rules and nothing else: no sound, no text, no time. `Model.actions` yields what
may happen next, and `Model.faults_of` a bounded number of faults (faults.py). `Rules` (state.py)
has one switch for each rule: with any of them off, the search (search.py) must find a violation.
docs/promises.md says what the model leaves out. A timeout may happen here at any moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from protocol.faults import broker_faults, fleet_faults, house_faults, process_faults, start, stop
from protocol.state import (
    DEATHS,
    EARLY,
    LATE,
    OLD,
    Action,
    Half,
    Rules,
    State,
    ViolationError,
    assign,
    unlinked,
    with_value,
    without,
)


@dataclass(frozen=True)
class Model:
    """The bounds of a search; without workers the appliance transcribes itself."""

    windows: int = 3
    workers: int = 0
    faults: int = 3
    rules: Rules = field(default_factory=Rules)
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
            yield "the appliance starts", start(s, self.rules)
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
            yield "somebody unmutes", s._replace(muted=False, forgotten=False)
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
        if not s.ahead and s.muted:
            if s.forgotten or not self.rules.hear_nothing_while_muted:
                raise ViolationError("mute", f"window {window} is heard while it is muted")
            return
        spooled = s.spool if s.ahead == 1 else (*s.spool, window)
        kept = spooled if self.rules.spool_before_queueing else s.spool
        queued = s._replace(heard=window, ahead=0, spool=kept, waiting=(*s.waiting, window))
        yield f"window {window} ends", queued
        if s.ahead == 0:
            yield f"window {window} is spooled ahead", s._replace(ahead=1, spool=spooled)
        if s.ahead == 1:
            withdrawn = self.rules.withdraw_speculation_from_spool
            kept = without(s.spool, window) if withdrawn else s.spool
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
            killed = stop(s, self.rules, crashed=True, counts=True)
            yield f"window {window} kills the appliance", killed
        elif self.workers:
            yield from self._await_answer(s, window)
        else:
            yield f"window {window} is transcribed", self._transcribed(s)
            yield f"window {window} is discarded as no speech", _discard(s)

    def _await_answer(self, s: State, window: int) -> Iterator[Action]:
        under_way = (*s.stream, *s.answers, *(one for one, _ in s.workers))
        lost = window not in under_way and self.rules.send_window_again
        silent = s.muted and not s.forgotten and self.rules.send_nothing_while_muted
        if (not s.sent or lost) and not silent:
            if s.muted:
                raise ViolationError("mute", f"the sound of {window} leaves while it is muted")
            yield f"window {window} is sent", s._replace(sent=True, stream=(*s.stream, window))
        for answer in set(s.answers):
            rest = s._replace(answers=without(s.answers, answer))
            if answer == window:
                yield f"the text of {window} arrives", self._transcribed(rest)
            elif self.rules.match_answer_to_window:
                yield f"a late text of {answer} is ignored", rest
            else:
                raise ViolationError("own text", f"window {window} gets the text of {answer}")

    def _transcribed(self, s: State) -> State:
        window = s.lease
        spool = s.spool if self.rules.spool_until_stored else without(s.spool, window)
        deaths = with_value(s.deaths, window - 1, 0)
        return s._replace(lease=0, sent=False, spool=spool, deaths=deaths, texts=(*s.texts, window))

    def _store(self, s: State) -> Iterator[Action]:
        if s.committed:
            spool = without(s.spool, s.committed)
            yield f"window {s.committed} is released", s._replace(committed=0, spool=spool)
        elif s.texts and not s.refusing:
            window = s.texts[0] if self.rules.store_in_order else s.texts[-1]
            if window in s.deleted:
                raise ViolationError("deletion", f"the deleted transcript {window} comes back")
            known = window in s.rows and self.rules.store_an_id_once
            rows = s.rows if known else (*s.rows, window)
            stored = s._replace(texts=without(s.texts, window), rows=rows, committed=window)
            yield f"transcript {window} is stored", stored

    def _publish(self, s: State) -> Iterator[Action]:
        if not s.linked:
            yield "the appliance connects", self._connected(s)
            return
        repeats = s.unheard and self.rules.repeat_after_lost_sessions
        if repeats:
            yield "what was published lately is due again", self._repeated(s)
        number = s.reached + 1
        if repeats and self.rules.hold_until_repeated:
            pass
        elif number <= len(s.rows):
            window = s.rows[number - 1]
            gone = window in s.deleted or window in s.expired
            if gone and self.rules.read_store_when_publishing:
                passed = s._replace(reached=number, cursor=s.cursor if s.flight else number)
                yield f"deleted row {number} is passed over", passed
            elif window in s.deleted:
                raise ViolationError("deletion", f"the deleted transcript {window} is published")
            else:
                late = number <= s.stood
                name = window + 100 * (late and not self.rules.keep_id_when_sent_again)
                marks = LATE * late | EARLY * any(one < 0 for one in s.acks)
                wire = s.wire if s.deaf else (*s.wire, (number, name, marks))
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
        lost = s.flight and not s.acks and not any(n and not marks & OLD for n, _, marks in s.wire)
        if lost and self.rules.watch_oldest_in_flight:
            yield "no acknowledgement: the appliance hangs up", unlinked(s)

    def _acknowledged(self, s: State, number: int) -> State:
        """Return the state after a PUBACK, of a transcript or (0) of another message.

        A negative number: nobody subscribes.
        """
        if number < 0 and self.rules.hold_without_subscriber:
            if -number not in s.flight:
                return s
            last = max(s.flight)
            stood = max(s.stood, last if last > -number else -number - 1)
            if not self.rules.mark_perhaps_received_as_late:
                stood = s.stood
            return _superseded(s)._replace(reached=min(s.flight) - 1, flight=(), stood=stood)
        number = abs(number)
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

    def _repeated(self, s: State) -> State:
        """Return the state in which all that was acknowledged lately, and what is in flight, is due
        again on the same connection, marked late."""
        again = min((s.recent or s.reached + 1, *s.flight)) - 1
        reached = min(s.reached, again) if self.rules.repeat_in_order else s.reached
        cursor = min(s.cursor, reached) if self.rules.move_cursor_back else s.cursor
        stood = max(s.stood, s.reached) if self.rules.mark_sent_before_as_late else s.stood
        return _superseded(s)._replace(
            reached=reached, flight=(), stood=stood, recent=0, cursor=cursor, unheard=False
        )

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
            if later and window not in s.early:
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
        yield from process_faults(s, self.rules, local=not self.workers)
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


def _superseded(s: State) -> State:
    """Return the state in which no acknowledgement of what was sent so far counts."""
    wire = tuple((n, window, marks | OLD if n else 0) for n, window, marks in s.wire)
    return s._replace(wire=wire, acks=tuple(one for one in s.acks if not one))


def _discard(s: State) -> State:
    spool, discarded = without(s.spool, s.lease), (*s.discarded, s.lease)
    return s._replace(lease=0, sent=False, spool=spool, discarded=discarded)
