"""The steps of the machine (machine.py) of an appliance that transcribes itself."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from protocol.guarantees import WINDOWS
from protocol.speech import SpeechMachine


class LocalMachine(SpeechMachine):
    """Speculation and transcription in this process."""

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
