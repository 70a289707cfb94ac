"""Drives the real parts of the appliance at random, and compares each step with the model.

`DeliveryMachine` keeps every state in which the model may be after the steps so far. If none of
them looks like the appliance, the code does what the protocol does not allow. The guarantees of
docs/promises.md are checked at every step, too, without the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from protocol.house import House, text_of
from protocol.model import Model, State, ViolationError

PUBLISHING = re.compile(
    r"the appliance connects|transcript \d+ is published|deleted row|no acknowledgement"
    r"|the connection to the broker breaks"
)
"""What the publisher may do whenever it runs."""
STORING = re.compile(r"transcript \d+ is stored|window \d+ is released")
DELIVERED_WITHIN_S = 300.0
"""When faults end, everything is delivered within this time: the broker may have refused us for
60 s, and a lost acknowledgement is noticed after 70 s."""
PAUSES_S = (0.1, 1.0, 3.0, 7.0, 40.0, 90.0)
WINDOWS = 8


@dataclass
class Ledger:
    """What happened outside the appliance, for the guarantees."""

    heard: list[str] = field(default_factory=list)
    """Ids of the windows that have ended."""
    without_text: set[str] = field(default_factory=set)
    stored: dict[str, int] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    expired: set[str] = field(default_factory=set)
    cut: set[str] = field(default_factory=set)
    """Windows that were only in memory when the power was cut."""
    received: dict[str, int] = field(default_factory=dict)
    """Number of each id that the subscriber has, in the order of their arrival."""


class DeliveryMachine(RuleBasedStateMachine):
    """Microphone to subscriber, without workers."""

    home_assistant = False

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.ledger = Ledger()
        self.house = House(self.patch, home_assistant=self.home_assistant)
        self.house.broker.on_publish = self.on_publish
        self.model = Model(windows=WINDOWS)
        self.states: set[State] = {self.model.first()}
        """States of the model that look like the appliance; empty once a fault happened that the
        model does not have."""
        self.speculation: str = ""
        self.spare = 0
        self.ids: dict[str, int] = {}

    # the model

    def follow(self, *steps: str, free: re.Pattern[str] = PUBLISHING) -> None:
        """Let the model take each of `steps` (regular expressions), then any of `free`."""
        if not self.states:
            return
        states = self.states
        for step in steps:
            pattern = re.compile(step)
            taken = {after for one in states for after in self._take(one, pattern)}
            assert taken, f"the model does not know this step now: {step}\n{_show(states)}"
            states = taken
        states = self._close(states, free)
        self.states = {one for one in states if self._fits(one)}
        if not self.states:
            seen = self._observe()
            raise AssertionError(f"[model] {steps}: the appliance is {seen}, not\n{_show(states)}")

    def _take(self, state: State, pattern: re.Pattern[str]) -> Iterator[State]:
        for actions in (self.model.actions, self.model.faults_of):
            try:
                for name, after in actions(state):
                    if pattern.fullmatch(name) or pattern.match(name):
                        yield after._replace(faults=3)
            except ViolationError:
                continue

    def _close(self, states: set[State], free: re.Pattern[str]) -> set[State]:
        found, new = set(states), list(states)
        while new:
            for after in self._take(new.pop(), free):
                if after not in found:
                    found.add(after)
                    new.append(after)
        return found

    def _observe(self) -> dict[str, Any]:
        """Return what can be seen of the appliance, in the model's terms."""
        house, number = self.house, self._number
        seen: dict[str, Any] = {
            "spool": sorted(number(one) for one in house.spooled()),
            "wire": [number(one["id"]) for one in house.broker.transcripts_on_wire()],
            "acks": [number(ack[2]) for ack in house.broker.acks if ack[2]],
            "inbox": [number(one["id"]) for one in house.broker.inbox],
            "received": sorted(number(one) for one in self.ledger.received),
            "up": house.appliance is not None,
        }
        if up := house.appliance:
            outbox = up.publisher._outbox
            seen |= {
                "lease": number(up.lease.window.id) if up.lease else 0,
                "waiting": [number(one.id) for one in up.backlog._waiting],
                "texts": [number(one) for one in up.unstored],
                "rows": [number(one) for _, one in house.rows()],
                "linked": up.publisher._connection.is_connected,
                "flight": sorted(outbox._in_flight.values()),
                "cursor": up.store._number("SELECT cursor FROM outbox"),
            }
        return seen

    def _fits(self, s: State) -> bool:
        """Return True if the model's state looks like the appliance."""
        seen = self._seen
        gone = {*s.deleted, *s.expired}
        lates = [late for _, _, late in (*s.wire, *s.inbox)]
        if any(mine and not theirs for mine, theirs in zip(lates, self._lates, strict=False)):
            return False
        view: dict[str, Any] = {
            "spool": sorted(s.spool),
            "wire": [window for _, window, _ in s.wire],
            "acks": [s.rows[n - 1] for n in s.acks],
            "inbox": [window for _, window, _ in s.inbox],
            "received": sorted(s.received),
            "up": s.up,
            "lease": s.lease,
            "waiting": list(s.waiting),
            "texts": list(s.texts),
            "rows": [one for one in s.rows if one not in gone],
            "linked": s.linked,
            "flight": sorted(s.flight),
            "cursor": s.cursor,
        }
        if self.house.disk.refuses and seen.get("cursor", 0) < s.cursor:
            view["cursor"] = seen.get("cursor", 0)  # the disk did not take it
        return not s.committed and all(view[name] == value for name, value in seen.items())

    @property
    def _seen(self) -> dict[str, Any]:
        if self._seen_at != self.house.clock.now_s:
            self._seen_at, self._last_seen = self.house.clock.now_s, self._observe()
            broker = self.house.broker
            self._lates = [one["late"] for one in (*broker.transcripts_on_wire(), *broker.inbox)]
        return self._last_seen

    _seen_at, _last_seen, _lates = -1.0, dict[str, Any](), list[bool]()

    def _number(self, transcript_id: str) -> int:
        return self.ids[transcript_id]

    # the guarantees

    @invariant()
    def check(self) -> None:
        """Raise AssertionError if a guarantee does not hold now."""
        house, ledger = self.house, self.ledger
        if house.appliance is None:
            return
        rows = house.rows()
        before = {one for one in ledger.stored if one not in ledger.deleted | ledger.expired}
        for seq, transcript_id in rows:
            assert transcript_id not in ledger.deleted, f"[deletion] {transcript_id} is back"
            ledger.stored[transcript_id] = seq
        ids = [transcript_id for _, transcript_id in rows]
        assert len(set(ids)) == len(ids), "[once] the store has a window twice"
        assert before <= set(ids), f"[owner] {before - set(ids)} vanished from the store"
        numbers = [self._number(one) for one in ids]
        assert numbers == sorted(numbers), f"[order] the store has {numbers}"
        safe = {
            *ledger.stored,
            *ledger.deleted,
            *ledger.without_text,
            *ledger.cut,
            *house.spooled(),
        }
        lost = [one for one in ledger.heard if one not in safe]
        assert not lost, f"[owner] nothing has the windows {lost} any more"
        for one in house.up.store.read_after(0, 10_000):
            right = one.transcript.text == text_of(one.transcript.id)
            assert right, f"[own text] {one.transcript.id} has: {one.transcript.text}"

    def on_publish(self, event: dict[str, Any]) -> None:
        """Check a transcript at the moment when it is published."""
        transcript = event["id"]
        assert transcript not in self.ledger.deleted, f"[deletion] {transcript} is published"
        stored = [one for _, one in self.house.rows()]
        assert transcript in stored, f"[stored first] {transcript} is published and not stored"

    def receive(self) -> None:
        """Let the subscriber get a message."""
        event = self.house.broker.inbox.popleft()
        transcript, seq = event["id"], event["seq"]
        received = self.ledger.received
        if transcript in received:
            assert event["late"], f"[once] {transcript} comes twice and is not marked late"
            assert received[transcript] == seq, f"[once] {transcript} comes with another number"
            return
        later = [one for one, number in received.items() if number > seq]
        assert not later, f"[order] {transcript} comes after {later[0]}"
        received[transcript] = seq

    # rules: speech

    def _new_id(self, number: int) -> str:
        self.spare += 1
        name = f"{number:02d}{self.spare:024d}"
        self.ids[name] = number
        return name

    @property
    def up(self) -> bool:
        return self.house.appliance is not None

    @property
    def leased(self) -> bool:
        return self.up and self.house.up.lease is not None

    @precondition(lambda self: self.up and len(self.ledger.heard) < WINDOWS)
    @rule()
    def hear(self) -> None:
        """A window ends."""
        number = len(self.ledger.heard) + 1
        name = self.speculation or self._new_id(number)
        self.house.up.backlog.push(self.house.window(name))
        self.speculation = ""
        self.ledger.heard.append(name)
        self.house.tick()
        self.follow(f"window {number} ends")

    @precondition(
        lambda self: self.up and not self.speculation and len(self.ledger.heard) < WINDOWS
    )
    @rule()
    def speculate(self) -> None:
        """A window may end here: it is spooled and transcribed ahead."""
        house, number = self.house, len(self.ledger.heard) + 1
        if not all(one.ahead == 0 for one in self.states):
            return
        self.speculation = self._new_id(number)
        house.up.backlog.speculate(house.window(self.speculation), house.up.transcriber.speculation)
        if task := house.up.backlog.take_speculation():
            house.up.writer.silent = False
            house.up.transcriber.encode(task)
            house.up.transcriber.decode(task)
            house.up.backlog.end_speculation(task)
        house.tick()
        self.follow(f"window {number} is spooled ahead")

    @precondition(lambda self: self.up and self.speculation)
    @rule()
    def go_on_speaking(self) -> None:
        """Speech resumes."""
        number = len(self.ledger.heard) + 1
        self.house.up.backlog.withdraw_speculation()
        self.speculation = ""
        self.house.tick()
        self.follow(f"speech goes on in window {number}")

    @precondition(lambda self: self.up and not self.leased and bool(self.house.up.backlog))
    @rule()
    def lease(self) -> None:
        """The oldest window is leased."""
        before = len(self.house.discarded)
        oldest = self.house.up.backlog._waiting[0].id
        self.house.lease()
        if len(self.house.discarded) > before:
            self.ledger.without_text.add(oldest)
        self.house.tick()
        self.follow(r"window \d+ is (leased|set aside)")

    @precondition(lambda self: self.leased)
    @rule(speech=st.booleans())
    def transcribe(self, speech: bool) -> None:
        """The leased window gets its text, or none."""
        lease = self.house.up.lease
        assert lease is not None
        ahead = lease.speculation is not None
        self.house.transcribe(speech=speech)
        self.house.tick()
        if speech or ahead:
            self.follow(r"window \d+ is transcribed", free=_STORE_AND_PUBLISH)
        else:
            self.ledger.without_text.add(lease.window.id)
            self.follow(r"window \d+ is discarded")

    @precondition(lambda self: self.up and self.house.up.unstored)
    @rule()
    def flush(self) -> None:
        """The texts that wait are stored, if the disk lets them."""
        self.house.flush()
        self.house.tick()
        self.follow(free=_STORE_AND_PUBLISH)

    # rules: faults of the process and the disk

    @precondition(lambda self: self.leased and not self.house.disk.refuses)
    @rule(tear=st.none() | st.floats(0, 1))
    def crash_while_storing(self, tear: float | None) -> None:
        """The process dies within the commit, or right after it."""
        self.house.transcribe(crash="committed" if tear is None else f"torn {tear}")
        assert not self.up
        self._after_crash()
        for step in (r"window \d+ is transcribed", "the appliance crashes"):
            self._step_blindly(step, first=STORING if step[0] == "t" else None)
        self._start()

    @rule()
    @precondition(lambda self: self.up)
    def crash(self) -> None:
        """The process is killed."""
        self.house.stop()
        self._after_crash()
        self._step_blindly("the appliance crashes")
        self._start()

    @rule()
    @precondition(lambda self: self.up)
    def restart(self) -> None:
        """The process is restarted in order."""
        self.house.leave()
        self._after_crash()
        self._step_blindly("the appliance is restarted")
        self._start()

    def _after_crash(self) -> None:
        if self.speculation and self.speculation in self.house.spooled():
            self.ledger.heard.append(self.speculation)  # the next process takes it for a window
        self.speculation = ""

    def _step_blindly(self, step: str, first: re.Pattern[str] | None = None) -> None:
        """Let the model step; what fits is decided later."""
        states = self._close(self.states, first) if first else self.states
        after = {new for one in states for new in self._take(one, re.compile(step))}
        assert after or not states, f"the model does not know this step now: {step}"
        self.states = after

    def _start(self) -> None:
        self.house.start()
        cursor = self.house.up.store._number("SELECT cursor FROM outbox")
        if self.house.disk.refuses:
            self.states = {one._replace(cursor=min(cursor, one.cursor)) for one in self.states}
        self.house.clock.advance(0.001)
        self.follow("the appliance starts", free=_NOTHING)

    @precondition(lambda self: self.up and not self.house.disk.refuses)
    @rule(late=st.booleans())
    def disk_refuses(self, late: bool) -> None:
        """The disk is full, seen at the beginning of a transaction or at its end."""
        self.house.disk.refuses, self.house.disk.refuses_late = True, late
        self.house.clock.advance(0.001)
        self.follow("the disk refuses")

    @precondition(lambda self: self.house.disk.refuses)
    @rule()
    def disk_accepts(self) -> None:
        """The disk accepts writes again."""
        self.house.disk.refuses = False
        self.house.tick()
        # with the fallback in use, the model's disk accepts already
        self.states = {one._replace(refusing=False) for one in self.states}
        self.follow()

    @precondition(lambda self: self.up and not self.house.disk.refuses and self._alive())
    @rule(which=st.integers(0, WINDOWS))
    def delete(self, which: int) -> None:
        """Somebody deletes a transcript."""
        alive = self._alive()
        chosen = alive[which % len(alive)]
        self.ledger.deleted.add(chosen)
        self.house.delete(chosen)
        self.house.tick()
        self.follow(f"somebody deletes {self._number(chosen)}")

    @precondition(lambda self: self.up and not self.house.disk.refuses)
    @precondition(lambda self: not self.house.broker.inbox)
    @rule(old=st.booleans())
    def retention_after_a_jump(self, old: bool) -> None:
        """The clock jumps by a year, perhaps after a month, and the retention runs."""
        house = self.house
        if old:
            house.clock.advance(31 * 86_400.0)
        house.clock.wall_s += 400 * 86_400.0
        cursor = house.up.store._number("SELECT cursor FROM outbox")
        before = {one: seq for seq, one in house.rows()}
        house.up.store.expire(house.now())
        gone = set(before) - {one for _, one in house.rows()}
        lost = [one for one in gone if before[one] > cursor]
        assert not lost, f"[retention] {lost} were deleted unpublished"
        self.ledger.expired |= gone
        self.states = {one._replace(jumped=0) for one in self.states}
        if gone:
            self._step_blindly("the clock jumps")
            self._step_blindly("retention deletes old rows")
        house.tick()
        self.follow()

    def _alive(self) -> list[str]:
        return [one for _, one in self.house.rows()]

    # rules: broker and network

    @rule(seconds=st.sampled_from(PAUSES_S))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.house.tick(seconds)
        self.follow()

    @precondition(lambda self: self.house.broker.wire)
    @rule()
    def broker_reads(self) -> None:
        """The broker reads what was published, up to a transcript."""
        event = self.house.broker.read()
        self.house.clock.advance(0.001)
        if event:
            self.follow("the broker gets", free=_NOTHING)

    @precondition(lambda self: self.house.broker.acks)
    @rule()
    def acknowledge(self) -> None:
        """Acknowledgements arrive, up to a transcript's."""
        transcript = self.house.broker.answer()
        self.house.tick()
        self.follow(*(["the acknowledgement of row"] if transcript else []))

    @precondition(lambda self: self.house.broker.inbox)
    @rule()
    def subscriber_reads(self) -> None:
        """The subscriber gets a message."""
        self.receive()
        self.house.clock.advance(0.001)
        self.follow("the subscriber gets", free=_NOTHING)

    @precondition(lambda self: self.house.broker.link)
    @rule()
    def connection_breaks(self) -> None:
        """The connection breaks."""
        self.house.broker.break_connection()
        self.house.tick()
        self.follow("the (connection to the broker breaks|broker restarts)")

    @rule()
    def broker_stops_or_starts(self) -> None:
        """The broker goes away, or comes back with its sessions."""
        broker = self.house.broker
        broker.up = not broker.up
        if not broker.up:
            broker.break_connection()
        self.house.tick()
        self.follow("the broker restarts$")

    @precondition(lambda self: self.up and self.house.broker.link and not self.house.broker.deaf)
    @precondition(lambda self: self.house.up.publisher._outbox.has_in_flight)
    @rule()
    def network_swallows(self) -> None:
        """The connection stays open, and nothing passes any more."""
        broker = self.house.broker
        broker.deaf = True
        broker.wire.clear()
        broker.acks.clear()
        self.house.clock.advance(0.001)
        self.follow("the network swallows")

    @precondition(lambda self: self.house.broker.acks and self.house.broker.acks[0][2])
    @rule()
    def acknowledgement_is_lost(self) -> None:
        """An acknowledgement gets lost; the connection stays."""
        self.house.broker.acks.popleft()
        self.house.clock.advance(0.001)
        self.follow("the network loses an acknowledgement", free=_NOTHING)

    # the end

    def teardown(self) -> None:
        """After the last fault everything is delivered in time."""
        try:
            self._recover()
        finally:
            self.close()

    def close(self) -> None:
        """Delete the files, and take the fakes back."""
        self.house.close()
        self.patch.undo()

    def _recover(self) -> None:
        house, begun_s = self.house, self.house.clock.now_s
        house.disk.refuses, house.broker.up, house.broker.subscribed = False, True, True
        if not self.up:
            house.start()
        while not self._is_delivered() and house.clock.now_s < begun_s + DELIVERED_WITHIN_S:
            house.up.backlog.withdraw_speculation()
            self.speculation = ""
            if not house.up.lease:
                before, names = len(house.discarded), [w.id for w in house.up.backlog._waiting]
                house.lease()
                self.ledger.without_text |= set(names[: len(house.discarded) - before])
            if house.up.lease:
                house.transcribe()
            house.flush()
            while house.broker.wire:
                house.broker.read()
            while house.broker.acks and house.broker.link:
                house.broker.answer()
            while house.broker.inbox:
                self.receive()
            self.check()
            house.tick(0.5)
            house.up.store.poll()
        missing = [one for one in self._alive() if one not in self.ledger.received]
        assert not missing, f"[once] the subscriber never gets {missing}"
        assert self._is_delivered(), f"[delivery] after {DELIVERED_WITHIN_S:.0f} s: {self._left()}"
        self.check()

    def _left(self) -> dict[str, object]:
        up = self.house.up
        return {
            "spool": self.house.spooled(),
            "unstored": up.unstored,
            "depth": up.store.depth(),
            "missing": [one for one in self._alive() if one not in self.ledger.received],
        }

    def _is_delivered(self) -> bool:
        return self.up and not any(self._left().values())


_NOTHING = re.compile(r"(?!)")
_STORE_AND_PUBLISH = re.compile(f"{STORING.pattern}|{PUBLISHING.pattern}|the disk accepts again")


def _show(states: Iterable[State]) -> str:
    plain = State()
    lines = []
    for one in list(states)[:4]:
        changed = {k: v for k, v in one._asdict().items() if v != plain._asdict()[k]}
        lines.append(str(changed))
    return "\n".join(lines)
