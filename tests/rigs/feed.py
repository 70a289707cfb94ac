"""What a control socket tells, without an appliance."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rigs.waiting import in_thread

from appliance.control import server as control
from appliance.control.server import LIMITS, Command, ControlError, ControlLimits, ControlServer
from appliance.errors import StoreError


class Feed:
    """A log of numbers, and a few commands."""

    def __init__(self) -> None:
        self.commands: Mapping[str, Command] = {
            "echo": lambda request: {"got": dict(request)},
            "refuse": self._refuse,
            "fail": self._fail,
            "break": self._break,
            "long": lambda _: {"text": "x" * 70_000},
            "later": lambda _: self.later,
        }
        self.later: Future[Mapping[str, Any]] = Future()
        self.numbers: list[int] = []
        self.status = "running"
        self.trouble: Exception | None = None
        self.asked = 0

    def state(self) -> dict[str, Any]:
        return {"status": self.status, "uptime_s": self.asked}

    def stats(self) -> dict[str, Any]:
        return {"transcripts": len(self.numbers)}

    def speaking(self) -> bool:
        return False

    def transcripts(self, after: int, limit: int) -> list[dict[str, Any]]:
        self.asked += 1
        found = [{"seq": number, "text": "x" * 100} for number in self.numbers if number > after]
        return found[:limit]

    def highest(self) -> int:
        if self.trouble:
            raise self.trouble
        return max(self.numbers, default=0)

    def poll(self) -> None:
        pass

    def _refuse(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        raise ControlError("refused", "not today", mistakes=["a"])

    def _fail(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        raise StoreError("the disk is full")

    def _break(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        return {"broken": 1 / 0}


@contextmanager
def serving(
    path: Path, feed: control.Feed, limits: ControlLimits = LIMITS
) -> Iterator[ControlServer]:
    """A server in a thread of its own; what ends it fails the test."""
    with (
        ControlServer(path, limits, idle_s=0.05) as server,
        in_thread(lambda: server.run(feed), server.stop),
    ):
        yield server
