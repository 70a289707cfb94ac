"""Real rooms on a real broker: log, publisher and house, without microphone and model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from rigs.publishing import STATE, transcript
from rigs.waiting import PATIENCE_S

from appliance.config import HomeAssistantSettings, MqttSettings, StoreSettings
from appliance.house import House
from appliance.mqtt import Announcement, Publisher, Sources, subscriptions
from appliance.records import HeardIn, Transcript, new_id
from appliance.store import Store


@dataclass
class Assist:
    """Home Assistant's Assist, which counts what it does."""

    node: str
    actions: list[tuple[str, str, float]] = field(default_factory=list)
    """Text, room and time."""

    def find_command(self, transcript: Transcript) -> str:
        """A text that begins with the address phrase."""
        phrase, _, command = transcript.text.partition("computer ")
        return command if not phrase else ""

    def hand_over(self, transcript: Transcript, text: str) -> None:
        """Do it."""
        self.actions.append((transcript.id, self.node, time.monotonic()))


class RealRoom:
    """A room; use with `with`."""

    def __init__(
        self,
        node: str,
        folder: Path,
        port: int,
        *,
        house: type[House] = House,
        **mqtt: Any,
    ) -> None:
        self.node = node
        self.heard_in: list[HeardIn] = []
        self.muted = False
        folder.mkdir(exist_ok=True)
        self.store = Store.open(StoreSettings(path=str(folder)))
        self.assist = Assist(node)
        self.house = house(
            node,
            prefix=mqtt.get("prefix", MqttSettings().prefix),
            report=self._report,
            muted=lambda: self.muted,
            wake=self._wake,
            assistant=self.assist,
        )
        self.publisher = Publisher(
            MqttSettings(host="127.0.0.1", port=port, **mqtt),
            node,
            self.store,
            Sources(lambda: STATE),
            announcement=Announcement(HomeAssistantSettings(enabled=False)),
            rooms=self.house,
            subscriptions=subscriptions(node, self, lambda *_: None, lambda _: None),
        )
        self._thread = threading.Thread(target=self.publisher.run, daemon=True)

    def _wake(self) -> None:
        self.publisher.on_change()

    def _report(self, heard: HeardIn) -> None:
        self.store.set_rooms(heard)
        self.heard_in.append(heard)

    def set(self, on: bool, who: str = "", end: str = "") -> None:
        """Mute it."""
        self.muted = on

    def begin(self) -> str:
        """Somebody begins to speak; the utterance's id."""
        utterance = new_id()
        self.house.on_begin(utterance)
        return utterance

    def end(
        self, utterance: str, text: str, *, ago_s: float = 0.5, report: bool = True, **fields: Any
    ) -> Transcript:
        """The text of what was spoken until so long ago, in the log, and reported."""
        now = datetime.now(UTC)
        end = now - timedelta(seconds=ago_s)
        spoken = transcript(
            text, id=new_id(), utterance_id=utterance, start=end - timedelta(seconds=1.5), end=end,
            **fields,
        )  # fmt: skip
        self.store.append(spoken)
        if report:
            self.report(spoken)
        return spoken

    def report(self, spoken: Transcript) -> None:
        """Tell publisher and house what the log has."""
        self.publisher.on_transcript(spoken)
        self.house.on_transcript(spoken)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.publisher.stop(0.5)
        self._thread.join(PATIENCE_S)
        self.store.close()


def later(delay_s: float, what: Callable[[], object]) -> None:
    """Do it in a thread of its own, then."""
    timer = threading.Timer(delay_s, what)
    timer.daemon = True
    timer.start()
