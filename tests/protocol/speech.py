"""The steps of the machine (machine.py) from the microphone to the store: speech, the process, the
disk, and what people do.
"""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from protocol.guarantees import WINDOWS, Guarantees


class SpeechMachine(Guarantees):
    """From the microphone to the store."""

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

    @precondition(lambda self: self.up and len(self.ledger.heard) < WINDOWS and self.hears)
    @rule()
    def hear(self) -> None:
        """A window ends."""
        number = len(self.ledger.heard) + 1
        name = self.speculation or self._new_id(number)
        self.house.up.backlog.push(self.house.window(name))
        self.speculation, self.resumed = "", False
        self.ledger.heard.append(name)
        self.house.tick()

    @property
    def hears(self) -> bool:
        """True unless it is muted; what somebody is saying is heard to its end."""
        return not self.house.up.mute.on or bool(self.speculation) or self.resumed

    @precondition(lambda self: self.up and not self.leased and bool(self.house.up.backlog))
    @rule()
    def lease(self) -> None:
        """The oldest window is leased."""
        before = len(self.house.discarded)
        oldest = self.house.up.backlog._waiting[0].id
        self.house.lease()
        if len(self.house.discarded) > before:
            self.ledger.without_text.add(oldest)
        self.ledger.early |= {one.id for one in self.house.up.backlog._postponed}
        self.house.tick()

    def transcribe_leased(self) -> None:
        """Transcribe the leased window."""
        self.house.transcribe()

    @precondition(lambda self: self.up and not self.speculation and not self.resumed)
    @precondition(lambda self: len(self.ledger.heard) < WINDOWS and self.hears)
    @rule()
    def speculate(self) -> None:
        """A window may end here: it is spooled and transcribed ahead."""
        house = self.house
        self.speculation = self._new_id(len(self.ledger.heard) + 1)
        house.up.backlog.speculate(house.window(self.speculation), house.up.transcriber.speculation)
        if work := house.up.backlog.take_speculation():
            house.up.writer.silent = False
            house.up.transcriber.encode(work)
            house.up.transcriber.decode(work)
        house.tick()

    @precondition(lambda self: self.up and self.speculation)
    @rule()
    def go_on_speaking(self) -> None:
        """Speech resumes."""
        self.house.up.backlog.withdraw_speculation()
        self.speculation, self.resumed = "", True
        self.house.tick()

    @precondition(lambda self: self.leased)
    @rule(speech=st.booleans())
    def transcribe(self, speech: bool) -> None:
        """The leased window gets its text, or none."""
        lease = self.house.up.lease
        assert lease is not None
        ahead = lease.speculation is not None
        self.house.transcribe(speech=speech)
        self.house.tick()
        if not (speech or ahead):
            self.ledger.without_text.add(lease.window.id)

    @precondition(lambda self: self.leased and not self.house.disk.refuses)
    @rule(tear=st.none() | st.floats(0, 1))
    def crash_while_storing(self, tear: float | None) -> None:
        """The process dies within the commit, or right after it."""
        self.house.transcribe(crash="committed" if tear is None else f"torn {tear}")
        assert not self.up
        self._after_crash()
        self._start()

    # rules: faults of the process and the disk

    @rule()
    @precondition(lambda self: self.up)
    def crash(self) -> None:
        """The process is killed."""
        if lease := self.house.up.lease:
            self.ledger.deaths[lease.window.id] += 1
        self.house.stop()
        self._after_crash()
        self._start()

    @rule()
    @precondition(lambda self: self.up)
    def restart(self) -> None:
        """The process is restarted in order, or reads its configuration again."""
        if lease := self.house.up.lease:
            del self.ledger.deaths[lease.window.id]
        self.house.leave()
        self._after_crash()
        self._start()

    @rule()
    @precondition(lambda self: self.up)
    def power_fails(self) -> None:
        """The power fails: what is in memory only is gone."""
        house, ledger = self.house, self.ledger
        loses = house.in_memory_only
        house.stop(power=True)
        self.speculation, self.resumed = "", False
        kept = {*ledger.stored, *ledger.deleted, *ledger.without_text}
        ledger.cut |= {*ledger.heard} - kept
        house.start()
        self._note_passed()
        if loses:
            self._count_losses()
        house.clock.advance(0.001)

    def _count_losses(self) -> None:
        """Take over what the machine lost with its power."""
        ledger, ids = self.ledger, {one for _, one in self.house.rows()}
        lost = {*ledger.stored} - ledger.deleted - ledger.expired - ids
        ledger.cut |= lost
        ledger.deleted -= ids
        ledger.expired -= ids
        for one in lost:
            ledger.stored.pop(one)
            ledger.received.pop(one, None)
        inbox = self.house.broker.inbox
        left = [one for one in inbox if one["id"] not in lost]
        inbox.clear()
        inbox.extend(left)
        ledger.muted = self.house.up.mute.on

    @rule()
    @precondition(lambda self: self.up and not self.house.files.lies)
    def disk_lies(self) -> None:
        """The disk reports from now on that it has written what it has not."""
        self.house.lie()

    @precondition(lambda self: self.up and not self.ledger.muted)
    @rule()
    def mute(self) -> None:
        """Somebody mutes the microphone."""
        self.ledger.muted = True
        self.house.up.mute.set(True)
        self.house.tick()

    @precondition(lambda self: self.up and self.ledger.muted)
    @rule()
    def unmute(self) -> None:
        """Somebody unmutes it."""
        self.ledger.muted = False
        self.house.up.mute.set(False)
        self.house.tick()

    def _after_crash(self) -> None:
        if self.speculation and self.speculation in self.house.spooled():
            self.ledger.heard.append(self.speculation)  # the next process takes it for a window
        self.speculation, self.resumed = "", False

    def _start(self) -> None:
        self.house.start()
        self._note_passed()

    def _note_passed(self) -> None:
        """Note what the process does not know if it began without the file."""
        if self.house.disk.refuses:
            self.ledger.passed |= {*self.ledger.stored}

    @precondition(lambda self: self.up and not self.house.disk.refuses)
    @rule(late=st.booleans())
    def disk_refuses(self, late: bool) -> None:
        """The disk is full, seen at the beginning of a transaction or at its end."""
        self.house.disk.refuses, self.house.disk.refuses_late = True, late

    @precondition(lambda self: self.house.disk.refuses)
    @rule()
    def disk_accepts(self) -> None:
        """The disk accepts writes again."""
        self.house.disk.refuses = False
        self.house.tick()

    @precondition(lambda self: self.up and not self.house.disk.refuses and self.house.current())
    @rule(which=st.integers(0, WINDOWS))
    def delete(self, which: int) -> None:
        """Somebody deletes a transcript."""
        alive = [*self.house.current()]
        chosen = alive[which % len(alive)]
        self.ledger.deleted.add(chosen)
        self.house.delete(chosen)
        self.house.tick()

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
        house.tick()

    def _alive(self) -> list[str]:
        return [one for _, one in self.house.rows()]
