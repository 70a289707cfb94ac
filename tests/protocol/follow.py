"""Compares the real parts of the appliance with the model, and checks the guarantees.

`Follower` keeps every state in which the model may be after the steps so far. If none of them looks
like the appliance, the code does what the protocol does not allow. The guarantees of
docs/promises.md are checked at every step, too, without the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant
from protocol.house import House, text_of
from protocol.model import Model
from protocol.state import LATE, State, ViolationError

PUBLISHING = re.compile(
    r"the appliance connects|transcript \d+ is published|deleted row|no acknowledgement"
    r"|the connection to the broker breaks"
)
"""What the publisher may do whenever it runs."""
STORING = re.compile(r"transcript \d+ is stored|window \d+ is released")
NOTHING = re.compile(r"(?!)")
STORE_AND_PUBLISH = re.compile(f"{STORING.pattern}|{PUBLISHING.pattern}|the disk accepts again")
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
    passed: set[str] = field(default_factory=set)
    """In the file when a process began without it: what the broker did not have then is appended
    again."""
    muted: bool = False
    early: set[str] = field(default_factory=set)
    """Received from a message that was under way when the subscriber came; refused, or doubtful."""
    received: dict[str, int] = field(default_factory=dict)
    """Number of each id that the subscriber has, in the order of their arrival."""


class Follower(RuleBasedStateMachine):
    """The appliance, what it did, and the states of the model that look like it."""

    workers = 0
    home_assistant = False

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.ledger = Ledger()
        self.house = House(
            self.patch, remote=bool(self.workers), home_assistant=self.home_assistant
        )
        self.house.broker.on_publish = self.on_publish
        self.model = Model(windows=WINDOWS, workers=self.workers)
        self.states: set[State] = {self.model.first()}
        """States of the model that look like the appliance; empty once a fault happened that the
        model does not have."""
        self.speculation: str = ""
        self.resumed = False
        """Speech goes on after a withdrawn speculation."""
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
            assert taken, f"[model] it does not know this step now: {step}\n{_show(states)}"
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
        sent = house.appliance.publisher._outbox._sent if house.appliance else None
        seen: dict[str, Any] = {
            "spool": sorted(number(one) for one in house.spooled()),
            "wire": [number(one["id"]) for one in house.broker.transcripts_on_wire()],
            # of what was sent before a later attempt, no acknowledgement counts
            "acks": [number(ack[2]) for ack in house.broker.acks if ack[:1] == (sent or ())[:1]],
            "inbox": [number(one["id"]) for one in house.broker.inbox],
            "received": sorted(number(one) for one in self.ledger.received),
            "up": house.appliance is not None,
        }
        if up := house.appliance:
            outbox = up.publisher._outbox
            seen |= {
                "lease": number(up.lease.window.id) if up.lease else 0,
                "waiting": [number(one.id) for one in up.backlog._waiting],
                "texts": [],
                "rows": [number(one) for _, one in house.rows()],
                "linked": up.publisher._connection.is_connected,
                "flight": [*(outbox._sent or ())[1:]],
                "cursor": up.store._number("SELECT cursor FROM outbox"),
            }
        return seen | self.observe_fleet()

    def observe_fleet(self) -> dict[str, Any]:
        """Return what can be seen of the fleet, in the model's terms."""
        return {}

    def view_of_fleet(self, s: State) -> dict[str, Any]:
        """Return the same of the model's state."""
        return {}

    def _fits(self, s: State) -> bool:
        """Return True if the model's state looks like the appliance."""
        seen = self._seen
        gone = {*s.deleted, *s.expired}
        lates = [bool(marks & LATE) for _, _, marks in (*s.wire, *s.inbox)]
        if any(mine and not theirs for mine, theirs in zip(lates, self._lates, strict=False)):
            return False
        view: dict[str, Any] = {
            "spool": sorted(s.spool),
            "wire": [window for _, window, _ in s.wire],
            "acks": [s.rows[abs(n) - 1] for n in s.acks],
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
        view |= self.view_of_fleet(s)
        return not s.committed and all(view[name] == value for name, value in seen.items())

    @property
    def _seen(self) -> dict[str, Any]:
        if self._seen_at != self.house.clock.now_s:
            self._seen_at, self._last_seen = self.house.clock.now_s, self._observe()
            broker = self.house.broker
            self._lates = [
                one["late"] or one.get("duplicate", False)
                for one in (*broker.transcripts_on_wire(), *broker.inbox)
            ]
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
        assert house.up.mute.on == ledger.muted, "[mute] it has forgotten that it is muted"
        rows = house.rows()
        before = {one for one in ledger.stored if one not in ledger.deleted | ledger.expired}
        for seq, transcript_id in rows:
            assert transcript_id not in ledger.deleted, f"[deletion] {transcript_id} is back"
            ledger.stored[transcript_id] = seq
        ids = [transcript_id for _, transcript_id in rows]
        assert len(set(ids)) == len(ids), "[once] the store has a window twice"
        assert before <= set(ids), f"[owner] {before - set(ids)} vanished from the store"
        numbers = [self._number(one) for one in ids if one not in ledger.passed | ledger.early]
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
        assert transcript in self.ids, f"[once] {transcript} is nobody's id"
        assert transcript not in self.ledger.deleted, f"[deletion] {transcript} is published"
        stored = [one for _, one in self.house.rows()]
        assert transcript in stored, f"[stored first] {transcript} is published and not stored"

    def receive(self) -> None:
        """Let the subscriber get a message."""
        event = self.house.broker.inbox.popleft()
        transcript, seq = event["id"], event["seq"]
        received = self.ledger.received
        if transcript in received:
            marked = event["late"] or event["duplicate"]
            assert marked, f"[once] {transcript} comes twice and is not marked late"
            same = received[transcript] == seq or transcript in self.ledger.passed
            assert same, f"[once] {transcript} comes with another number"
            return
        early = self.ledger.early | ({transcript} if event["early"] else set())
        later = [one for one, number in received.items() if number > seq and one not in early]
        assert not later or transcript in early, f"[order] {transcript} comes after {later[0]}"
        self.ledger.early = early
        received[transcript] = seq


def _show(states: Iterable[State]) -> str:
    plain = State()
    lines = []
    for one in list(states)[:4]:
        changed = {k: v for k, v in one._asdict().items() if v != plain._asdict()[k]}
        lines.append(str(changed))
    return "\n".join(lines)
