"""Daemons as satellites and workers, and what came of what was said in each room, for the
trials and figures of fleets."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Self

from resilience.accounts import Sentences, Verdict, compare, first_times, stored
from resilience.rig import Daemon, Place, Spoken, reference_texts, sentences
from rigs.broker import Broker
from rigs.fleet import Bus
from rigs.mqtt_client import Subscriber
from rigs.waiting import holds

from appliance import config
from appliance.control import SOCKET_NAME, ControlClient
from appliance.store import runtime_folders

READY_S = 60.0
"""Until a daemon is listening, or serves, on a busy machine."""
SLOW = ("-m", "resilience.fleet_child")
"""A daemon that transcribes as slowly as its environment says."""


class Room:
    """A daemon in a folder of its own; use with `with`. It may be killed and started again."""

    def __init__(
        self,
        house: House,
        node: str,
        role: str,
        servers: Sequence[str],
        *,
        environment: dict[str, str] | None = None,
        **sections: dict[str, Any],
    ) -> None:
        """`sections` go over those that a trial needs."""
        self.node, self.house = node, house
        self.place = Place()
        self.daemon: Daemon | None = None
        self._fast, self._environment = role == "satellite", environment or {}
        fleet = {"role": role, "server": [*servers]} | sections.pop("fleet", {})
        self.place.configure(house.broker.port, appliance={"node": node}, fleet=fleet, **sections)

    def start(self) -> None:
        """Starts its daemon, and does not wait."""
        self.daemon = Daemon(
            self.place, fast=self._fast, program=() if self._fast else SLOW, **self._environment
        )

    def stop(self) -> int:
        """Ends its daemon with the sound; its exit status."""
        if not self.daemon:
            raise RuntimeError(f"{self.node} does not run")
        with self.daemon as ending:
            status = ending.end_of_sound()
        self.daemon = None
        return status

    def kill(self) -> None:
        """kill -9."""
        if self.daemon:
            self.daemon.kill()
            self.daemon.close()
        self.daemon = None

    def log(self) -> str:
        """What its daemons wrote."""
        return self.place.log.read_text(encoding="utf-8", errors="replace")

    def counters(self) -> dict[str, Any]:
        """Its statistics now."""
        return self._ask("stats")

    def state(self) -> dict[str, Any]:
        """Its state now."""
        return self._ask("state")

    def _ask(self, command: str) -> dict[str, Any]:
        """What it answers on its control socket. Raises DaemonError."""
        folders = runtime_folders(config.load(self.place.config))
        with ControlClient([folder / SOCKET_NAME for folder in folders]) as client:
            found: dict[str, Any] = client.call(command)
            return found

    def __enter__(self) -> Self:
        self.place.__enter__()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.place.__exit__()


class Satellite(Room):
    """A room that is spoken in."""

    def __init__(self, house: House, node: str, servers: Sequence[str], **more: Any) -> None:
        super().__init__(house, node, "satellite", servers, **more)
        self.said: list[int] = []
        """Numbers of the sentences that were spoken to their end."""
        self._turn: list[Spoken] = []
        self._chance = random.Random(f"{house.seed} {node}")
        self._rest = b""
        self._speaking: Spoken | None = None

    def speak(self, on: Callable[[], bool], most: int = 1_000_000) -> None:
        """Speaks sentence after sentence, at most so many, while `on`; the last one to its end."""
        said = 0
        while self.daemon and said < most and (self._rest or on()):
            if not self._rest:
                if not self._turn:
                    self._turn = self._chance.sample(self.house.usable, len(self.house.usable))
                self._speaking = self._turn.pop()
                self._rest = self._speaking.pcm
            self._rest = self.daemon.feed(self._rest, 0.05)
            if not self._rest and self._speaking:
                self.said.append(self._speaking.number)
                said += 1

    def heard_s(self) -> list[float]:
        """When (time.monotonic()) the broker had each of its transcripts."""
        topic = f"roomscribe/{self.node}/transcript"
        return [one.timestamp for one in list(self.house.heard.messages) if one.topic == topic]

    def waiting(self) -> int:
        """Sentences that are neither in its store nor told."""
        return len(self.said) - len(set(self.ids()))

    def ids(self) -> list[str]:
        """Ids of the transcripts that were told, in order."""
        return [json.loads(one)["id"] for one in self.house.heard.payloads("transcript", self.node)]

    def texts(self) -> list[str]:
        """Texts of the transcripts that were told, in order."""
        told = self.house.heard.payloads("transcript", self.node)
        return [json.loads(one)["text"] for one in told]

    def verdict(self) -> Verdict:
        """What its store has, and what was told, against what was said."""
        rows = stored(self.place.state)
        found = compare(self.said, self.house.known.of(text for _, _, text in rows))
        if first_times(self.ids()) != [one for _, one, _ in rows]:
            found.wrong += 1
        return found


class House:
    """A broker, what everybody said on it, and the sentences that are spoken; use with `with`."""

    def __init__(self, seed: int, count: int) -> None:
        """`count` of the sentences of tests/speech are used."""
        texts = reference_texts(count)
        self.seed = seed
        self.known = Sentences(texts)
        self.usable = [one for one in sentences() if one.number in texts]
        self._opened = ExitStack()

    def satellites(self, number: int, servers: Sequence[str], **more: Any) -> list[Satellite]:
        """So many satellites, started."""
        return [self.satellite(f"satellite{one}", servers, **more) for one in range(1, number + 1)]

    def satellite(self, node: str, servers: Sequence[str], **more: Any) -> Satellite:
        """A satellite, started; `more` are `environment` and sections of its configuration."""
        return self._opened.enter_context(Satellite(self, node, servers, **more))

    def worker(self, node: str, servers: Sequence[str], **more: Any) -> Room:
        """A worker, started; `more` may have `least_ms` and `early`, as SLOW has them."""
        environment = {
            "ROOMSCRIBE_TORTURE_LEAST_MS": str(more.pop("least_ms", 0)),
        }
        sections = {"capture": {"device": "none"}, "model": {"bundle": "tiny.en"}} | more
        room = Room(self, node, "worker", servers, environment=environment, **sections)
        return self._opened.enter_context(room)

    def serving(self, bus: Bus, *workers: Room, within_s: float = 0.3) -> bool:
        """Waits until these workers answer, each time within so long."""
        wanted = {one.node for one in workers}
        return holds(lambda: wanted <= set(bus.workers(within_s)), READY_S)

    def __enter__(self) -> Self:
        self.broker = self._opened.enter_context(Broker())
        self.heard = self._opened.enter_context(Subscriber(self.broker.port))
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()


class Speaking:
    """All satellites are spoken in at once, from `with` to its end."""

    def __init__(
        self, satellites: Sequence[Satellite], most: int = 1_000_000, ends_within_s: float = 60.0
    ) -> None:
        """`most` sentences each; the last one is taken `ends_within_s`."""
        self._ends_within_s, self._over = ends_within_s, threading.Event()
        self.trouble = ""
        self._threads = [
            threading.Thread(target=self._speak, args=(one, most), daemon=True)
            for one in satellites
        ]

    def _speak(self, satellite: Satellite, most: int) -> None:
        try:
            satellite.speak(lambda: not self._over.is_set(), most)
        except OSError as error:
            self.trouble = f"{satellite.node} ended by itself: {error!r}"

    def wait(self, within_s: float) -> bool:
        """Until all that is to be said is said."""
        until_s = time.monotonic() + within_s
        for one in self._threads:
            one.join(max(0.0, until_s - time.monotonic()))
        return not any(one.is_alive() for one in self._threads)

    def __enter__(self) -> Self:
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if not self.wait(self._ends_within_s):
            self.trouble = self.trouble or "a satellite takes no sound any more"


def all_told(satellites: Sequence[Satellite], within_s: float = 60.0) -> bool:
    """Waits until every sentence that was said was told."""
    return holds(lambda: not any(one.waiting() > 0 for one in satellites), within_s, 0.1)


def judge(satellites: Sequence[Satellite]) -> tuple[Verdict, int]:
    """The faults of all satellites together, and how many sentences there were."""
    total = Verdict()
    for one in satellites:
        found = one.verdict()
        total.lost += found.lost
        total.doubled += found.doubled
        total.out_of_order += found.out_of_order
        total.wrong += found.wrong
    return total, sum(len(one.said) for one in satellites)
