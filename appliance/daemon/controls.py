"""The daemon's side of the control socket: its events, and its commands by topic (docs/control.md).

Everything runs in the control socket's thread, except the methods below "any thread".
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from appliance.control import ControlServer
from appliance.daemon.command_group import CommandGroup, bad_request, commands_of
from appliance.daemon.microphone_commands import LevelMeter, MicrophoneCommands
from appliance.daemon.mute import Mute
from appliance.daemon.mute_end import EXPECTED
from appliance.daemon.report import Reporter
from appliance.mqtt import Publisher, events, read_stats
from appliance.records import Correction, Discarded, Frame, HeardIn, Listener, Partial, Transcript
from appliance.store import Store
from appliance.system import Closing


class Controls(Listener, Closing):
    """What the control socket serves."""

    def __init__(
        self,
        store: Store,
        report: Reporter,
        publisher: Publisher | None,
        *,
        server: ControlServer,
        microphone: MicrophoneCommands,
        groups: Sequence[CommandGroup],
        names: tuple[str, str],
    ) -> None:
        """`groups`: the commands, except the microphone's, `state` and `stats`; `names`: the
        node's, and the same as people typed it."""
        (self._node, self._room), self._store, self._publisher = names, store, publisher
        self._report = report
        self._microphone, self._groups = microphone, (microphone, *groups)
        self._meter = LevelMeter()
        self._speaking = False
        self.server = server
        self.commands = commands_of(self)
        for group in self._groups:
            self.commands |= group.commands

    # any thread

    def on_transcript(self, transcript: Transcript) -> None:
        """Announce a new transcript in the store."""
        self.server.announce_transcript()

    def on_change(self) -> None:
        """Announce that the state has changed."""
        self.server.announce_state()

    def on_discarded(self, discarded: Discarded) -> None:
        """Send that speech gave no transcript."""
        now = events.timestamp(datetime.now(UTC))
        self.server.publish("discarded", {**events.discarded(discarded), "time": now})

    def on_speech(self, speaking: bool) -> None:
        """Send that someone starts or stops speaking."""
        self._speaking = speaking
        self.server.publish("speech", {"speaking": speaking})

    @property
    def wants_partials(self) -> bool:
        """True while a client subscribes to partial texts."""
        return "partial" in self.server.wanted

    def on_partial(self, partial: Partial) -> None:
        """Send the text so far of someone who speaks."""
        self.server.publish("partial", events.partial(partial))

    def on_correction(self, correction: Correction) -> None:
        """Send that a user has corrected a transcript."""
        self.server.publish("correction", events.correction(correction))

    def on_heard_in(self, heard: HeardIn) -> None:
        """Send which other rooms heard a sentence."""
        self.server.publish("heard_in", events.heard_in(heard))

    def on_frame(self, frame: Frame) -> None:
        """Take in the next frame, for a test of the microphone or its level. Capture's thread."""
        if not (self._microphone.is_recording or "level" in self.server.wanted):
            return
        if self._microphone.record(frame):
            self.server.wake()
        if level := self._meter.push(frame):
            self.server.publish("level", level)

    # the control socket's thread

    def state(self) -> dict[str, Any]:
        """Return the state as MQTT has it, and the appliance's names."""
        publisher = self._publisher
        state = events.state(
            self._report.state(),
            publisher.outbox.depth() if publisher else 0,
            publisher.reasons(waits=False) if publisher else (),
            publisher.reasons(waits=True) if publisher else (),
        )
        return {**state, "node": self._node, "room": self._room}

    def stats(self) -> dict[str, Any]:
        """Return the statistics as MQTT has them."""
        expired = self._publisher.outbox.expired if self._publisher else 0
        return read_stats(self._report.stats(), self._store, expired)

    _answer_state, _answer_stats = state, stats

    def speaking(self) -> bool:
        """Return True while someone speaks."""
        return self._speaking

    def transcripts(self, after: int, limit: int) -> list[dict[str, Any]]:
        """Return transcripts as MQTT has them; `published` is when they were stored."""
        found = self._store.read_after(after, limit)
        return [events.transcript(one, self._node, one.stored, late=False) for one in found]

    def highest(self) -> int:
        """Return the highest number of a transcript."""
        return self._store.highest()

    def poll(self) -> None:
        """Complete the late answers that are due."""
        for group in self._groups:
            group.poll()

    def close(self) -> None:
        """Give up what is under way."""
        for group in self._groups:
            group.close()


class MuteCommands(CommandGroup):
    """`mute`."""

    def __init__(self, mute: Mute) -> None:
        self._mute = mute

    def _answer_mute(self, on: Any, end: Any) -> dict[str, Any]:
        if not isinstance(on, bool):
            raise bad_request("on: expected true or false")
        if end is not None and not (end and isinstance(end, str)):
            raise bad_request(f"end: expected {EXPECTED}")
        try:
            self._mute.set(on, "the control socket", end or "")
        except ValueError as error:
            raise bad_request(f"end: {error}") from None
        until = self._mute.until
        return {"on": self._mute.on, **({"until": events.timestamp(until)} if until else {})}
