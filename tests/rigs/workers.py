"""A worker of a fleet without a daemon: what it is given is transcribed by a test."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Self, cast

from rigs.fleet import Bus
from rigs.transcriber import HEARD
from rigs.waiting import until

from appliance.config import FleetSettings, GateSettings
from appliance.fleet.link import Link
from appliance.fleet.worker import BUSY_S, FleetWorker, OwnRoom
from appliance.infer.runtime import Model
from appliance.records import Transcription, Window


@dataclass
class FakeRequest:
    """A window on its way to being text."""

    wanted: bool = True


def says(text: str = HEARD.text) -> Callable[[Window], Transcription | Exception]:
    """Says the same of each window."""
    return lambda _: replace(HEARD, text=text)


class FakeWorker:
    """Use with `with`; `say` makes the texts, in a thread for each window."""

    def __init__(self, server: str = "", node: str = "pi5", model: str = "fake") -> None:
        self.settings = FleetSettings(role="worker", server=server)
        self.node = node
        self.say: Callable[[Window], Transcription | Exception] = says()
        self.took_s = 0.0
        self.waiting = 0
        """Windows of its own room."""
        self.busy_s = BUSY_S
        self.free = True
        """False: it takes no more requests."""
        self.windows: list[Window] = []
        self.ahead: list[bool] = []
        self.counts: Counter[str] = Counter()
        self.troubles: list[str | None] = []
        self.gates = GateSettings(low_confidence=0.3)
        self.model = SimpleNamespace(name=model, language="en", languages=("en",), window_s=10.0)
        self.link: Link | None = None

    def start(self) -> None:
        """Connects, for ever."""
        self.link = Link(self.settings, self.node)
        FleetWorker(
            self.link,
            OwnRoom(
                model=lambda: cast("Model", self.model),
                submit=self._submit,
                count_waiting=lambda: self.waiting,
                count=lambda name: self.counts.update([name]),
                report_trouble=self.troubles.append,
            ),
            self.gates,
            self.busy_s,
        )
        self.link.start()

    def settle(self) -> None:
        """Waits until it answers who asks for workers."""
        with Bus(self.settings.server) as bus:
            until(lambda: self.node in bus.workers())

    def stop(self) -> None:
        """As a daemon that ends in order."""
        if self.link:
            self.link.close()
            self.link = None

    def _submit(
        self, window: Window, ahead: bool, answer: Callable[[Transcription | Exception], None]
    ) -> FakeRequest | None:
        if not self.free:
            return None
        self.windows.append(window)
        self.ahead.append(ahead)

        def transcribe() -> None:
            time.sleep(self.took_s)
            answer(self.say(window))

        threading.Thread(target=transcribe, daemon=True).start()
        return FakeRequest()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
