"""Drives the real parts of the appliance at random: the microphone's side and people's (speech.py),
the broker's and the network's here. guarantees.py checks each step.
"""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from protocol.fakes import NOBODY
from protocol.speech import SpeechMachine

DELIVERED_WITHIN_S = 600.0
"""When faults end, everything is delivered within this time: a refused transcript waits for 300 s,
the broker may have refused us for 60 s, and a lost acknowledgement is noticed after 70 s."""
READS_S, LEAVES_S = 2.0, 1.5
"""Home Assistant has read after so long, and is gone so long after it said that it stops."""
STATUS = "homeassistant/status"
PAUSES_S = (0.1, 1.0, 3.0, 7.0, 40.0, 90.0, 301.0)


class DeliveryMachine(SpeechMachine):
    """Microphone to subscriber: what the broker, the network and the subscriber do."""

    # rules: broker and network

    @rule(seconds=st.sampled_from(PAUSES_S))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.house.tick(seconds)

    @precondition(lambda self: self.house.broker.wire)
    @rule()
    def broker_reads(self) -> None:
        """The broker reads what was published, up to a transcript."""
        self.house.broker.read()

    @precondition(lambda self: self.up and self._next_is_in_flight())
    @rule()
    def broker_refuses(self) -> None:
        """The broker refuses a transcript, and would take others."""
        broker = self.house.broker
        refused = broker.read(refuses=True)
        assert refused
        self.ledger.early.add(refused["id"])
        while broker.acks:
            broker.answer()
        self.house.tick()

    def _next_is_in_flight(self) -> bool:
        """Return True if the broker reads next the transcript that is not acknowledged."""
        sent = self.house.up.publisher.outbox.is_sent
        return next((sent(one.number) for one in self.house.broker.wire if one.event), False)

    @precondition(lambda self: self.house.broker.acks)
    @rule()
    def acknowledge(self) -> None:
        """Acknowledgements arrive, up to a transcript's."""
        self.house.broker.answer()
        self.house.tick()

    def _next_counts(self) -> bool:
        """Return True if the next acknowledgement of a transcript is that of its last attempt."""
        sent = self.house.up.publisher.outbox.is_sent
        return next((sent(ack[0]) for ack in self.house.broker.acks if ack[2]), False)

    @precondition(lambda self: self.house.broker.inbox)
    @rule()
    def subscriber_reads(self) -> None:
        """The subscriber gets a message."""
        self.receive()

    @precondition(lambda self: self.house.broker.link)
    @rule()
    def connection_breaks(self) -> None:
        """The connection breaks."""
        self.house.broker.break_connection()
        self.house.tick()

    @rule()
    def broker_stops_or_starts(self) -> None:
        """The broker goes away, or comes back with its sessions."""
        broker = self.house.broker
        broker.up = not broker.up
        if not broker.up:
            broker.break_connection()
        self.house.tick()

    @precondition(lambda self: self.up and self.house.broker.link and not self.house.broker.deaf)
    @precondition(lambda self: self.house.up.publisher.outbox.in_flight)
    @rule()
    def network_swallows(self) -> None:
        """The connection stays open, and nothing passes any more."""
        broker = self.house.broker
        broker.deaf = True
        broker.wire.clear()
        broker.acks.clear()

    @precondition(lambda self: self.up and self._next_counts())
    @precondition(lambda self: self.house.broker.acks and self.house.broker.acks[0][2])
    @precondition(lambda self: all(ack[1] != NOBODY for ack in [*self.house.broker.acks][:1]))
    @rule()
    def acknowledgement_is_lost(self) -> None:
        """An acknowledgement gets lost; the connection stays."""
        self.house.broker.acks.popleft()

    @precondition(lambda self: self.house.broker.inbox)
    @precondition(lambda self: not any(one["duplicate"] for one in self.house.broker.inbox))
    @rule()
    def broker_repeats(self) -> None:
        """The broker passes a message on twice."""
        self.house.broker.repeat()

    @precondition(lambda self: self.house.broker.subscribed and not self.house.broker.inbox)
    @rule()
    def subscriber_leaves(self) -> None:
        """Nobody subscribes any more."""
        self.house.broker.subscribed = False

    @precondition(lambda self: not self.house.broker.subscribed)
    @rule()
    def subscriber_returns(self) -> None:
        """The subscriber is back."""
        self.house.broker.subscribe()

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
        house.disk.refuses, house.broker.up = False, True
        self._subscribe_again()
        if not self.up:
            house.start()
        if self.ledger.muted:
            self.ledger.muted = False
            house.up.mute.set(False)
        while not self._is_delivered() and house.clock.now_s < begun_s + DELIVERED_WITHIN_S:
            house.up.backlog.withdraw_speculation()
            self.speculation = ""
            if not house.up.lease:
                before, names = len(house.discarded), [w.id for w in house.up.backlog._waiting]
                house.lease()
                self.ledger.without_text |= set(names[: len(house.discarded) - before])
            if house.up.lease:
                self.transcribe_leased()
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

    def _subscribe_again(self) -> None:
        self.house.broker.subscribe()

    def _left(self) -> dict[str, object]:
        up = self.house.up
        return {
            "spool": self.house.spooled() - {one.id for one in up.backlog._postponed},
            "depth": up.store.depth(),
            "missing": [one for one in self._alive() if one not in self.ledger.received],
        }

    def _is_delivered(self) -> bool:
        return self.up and not any(self._left().values())


class HomeAssistantMachine(DeliveryMachine):
    """The subscriber is Home Assistant, which loses what it has not read when it stops.

    It says so in time, and reads what is older than some seconds; what happens otherwise is not
    promised.
    """

    home_assistant = True

    @rule(seconds=st.sampled_from(PAUSES_S))
    def wait(self, seconds: float) -> None:
        """Time passes, in which Home Assistant reads."""
        while seconds > READS_S and self.house.broker.inbox:
            self.receive()
        self.house.tick(seconds)

    @precondition(lambda self: self.up and self.house.broker.subscribed)
    @precondition(lambda self: self.house.broker.link and not self.house.broker.deaf)
    @rule()
    def subscriber_leaves(self) -> None:
        """Home Assistant stops."""
        broker = self.house.broker
        broker.tell(STATUS, b"offline")
        broker.inbox.clear()
        broker.subscribed = False
        self.house.tick()
        self.house.tick(LEAVES_S)

    @precondition(lambda self: self.up and not self.house.broker.subscribed)
    @precondition(lambda self: self.house.broker.link and not self.house.broker.deaf)
    @rule()
    def subscriber_returns(self) -> None:
        """Home Assistant starts."""
        self.house.broker.subscribe()
        self.house.broker.tell(STATUS, b"online")
        self.house.tick()

    def _subscribe_again(self) -> None:
        if not self.house.broker.subscribed:
            self.house.broker.subscribe()
            self.house.broker.tell(STATUS, b"online")
