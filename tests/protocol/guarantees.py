"""Checks the guarantees of docs/promises.md after each step of the state machine (machine.py)."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant
from protocol.house import House, text_of

WINDOWS = 8
"""At most so many windows are heard."""
DEATHS = 3
"""After so many deaths of the process a window waits, to be tried once more."""


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
    deaths: Counter[str] = field(default_factory=Counter)
    """How often the process died in a row while it transcribed a window."""
    muted: bool = False
    early: set[str] = field(default_factory=set)
    """Received from a message that was under way when the subscriber came; refused, or doubtful."""
    received: dict[str, int] = field(default_factory=dict)
    """Number of each id that the subscriber has, in the order of their arrival."""


class Guarantees(RuleBasedStateMachine):
    """The appliance and what it did."""

    home_assistant = False

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.ledger = Ledger()
        self.house = House(self.patch, home_assistant=self.home_assistant)
        self.house.broker.on_publish = self.on_publish
        self.speculation: str = ""
        self.resumed = False
        """Speech goes on after a withdrawn speculation."""
        self.spare = 0
        self.ids: dict[str, int] = {}

    @invariant()
    def check(self) -> None:
        """Raise AssertionError if a guarantee does not hold now."""
        house, ledger = self.house, self.ledger
        if house.appliance is None:
            return
        assert house.up.mute.on == ledger.muted, "[mute] it has forgotten that it is muted"
        killing = [one for one, deaths in ledger.deaths.items() if deaths > DEATHS + 1]
        assert not killing, f"[owner] the windows {killing} kill the process again and again"
        rows = house.rows()
        before = {one for one in ledger.stored if one not in ledger.deleted | ledger.expired}
        for seq, transcript_id in rows:
            assert transcript_id not in ledger.deleted, f"[deletion] {transcript_id} is back"
            ledger.stored[transcript_id] = seq
        ids = [transcript_id for _, transcript_id in rows]
        assert len(set(ids)) == len(ids), "[once] the store has a window twice"
        assert before <= set(ids), f"[owner] {before - set(ids)} vanished from the store"
        numbers = [self.ids[one] for one in ids if one not in ledger.passed | ledger.early]
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
