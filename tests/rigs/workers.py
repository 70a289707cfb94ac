"""A worker of a fleet without a daemon: what it is given is transcribed by a test."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

from rigs.broker import Started
from rigs.fleet import Bus
from rigs.transcriber import HEARD
from rigs.waiting import until

from appliance.config import FleetSettings, GateSettings
from appliance.fleet.link import Link
from appliance.fleet.worker import BUSY_S, FleetWorker, OwnRoom
from appliance.infer.request import Deliver, Pending, Request
from appliance.infer.runtime import Model
from appliance.records import Transcription, Window


def says(text: str = HEARD.text) -> Callable[[Window], Transcription | Exception]:
    """Says the same of each window."""
    return lambda _: replace(HEARD, text=text)


class FakeWorker(Started):
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
        worker = FleetWorker(
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
        worker.start()

    def settle(self) -> None:
        """Waits until it answers who asks for workers."""
        with Bus(self.settings.server) as bus:
            until(lambda: self.node in bus.workers())

    def stop(self) -> None:
        """As a daemon that ends in order."""
        if self.link:
            self.link.close()
            self.link = None

    def _submit(self, request: Request, deliver: Deliver) -> Pending | None:
        if not self.free:
            return None
        self.windows.append(request.window)
        self.ahead.append(request.completeness)

        def transcribe() -> None:
            time.sleep(self.took_s)
            deliver(request, self.say(request.window))

        threading.Thread(target=transcribe, daemon=True).start()
        return Pending()
