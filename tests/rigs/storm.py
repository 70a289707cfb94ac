"""A broker that is restarted at random while somebody speaks.

python tests/rigs/storm.py [--restarts 20] [--utterances 200] [--bystander] [--seed 0]
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from rigs.broker import Broker
from rigs.home_assistant import Bystander, HomeAssistant
from rigs.mqtt_client import Subscriber
from rigs.publishing import running, transcript
from rigs.waiting import until

from appliance.config import MqttSettings, StoreSettings
from appliance.mqtt.connection import DELAYS, Delays
from appliance.store.store import Store


@dataclass
class Outcome:
    """What a storm left."""

    said: list[str] = field(default_factory=list)
    heard: list[dict[str, Any]] = field(default_factory=list)
    stopped: list[float] = field(default_factory=list)
    started: list[float] = field(default_factory=list)
    missed: int = 0
    """Events that came while their entity was unavailable."""

    redelivered: int = 0
    """Messages that the broker itself gave to a kept session twice; published once by us."""

    @property
    def lost(self) -> int:
        return len(set(self.said) - {event["id"] for event in self.heard})

    @property
    def doubled(self) -> int:
        return len(self.heard) - len({event["id"] for event in self.heard})

    @property
    def in_order(self) -> bool:
        first = list(dict.fromkeys(event["id"] for event in self.heard))
        return first == [said for said in self.said if said in set(first)]

    def doubled_for_nothing(self) -> int:
        """Those sent a second time though no connection had ended in between."""
        count = 0
        sent: dict[str, float] = {}
        for event in self.heard:
            now_s = datetime.fromisoformat(event["published"]).timestamp()
            before_s = sent.get(event["id"])
            outages = zip(self.stopped, self.started, strict=True)
            if before_s is not None and not any(
                before_s <= start and stop <= now_s for stop, start in outages
            ):
                count += 1
            sent[event["id"]] = now_s
        return count

    def runs_of_an_automation(self) -> Counter[str]:
        """How often the automation of the blueprint would run, by id."""
        return Counter(event["id"] for event in self.heard if not event["late"])

    def back_after_s(self) -> list[float]:
        """From each of the broker's returns to the first event published after it."""
        moments = [datetime.fromisoformat(e["published"]).timestamp() for e in self.heard]
        after = []
        for start, end in zip(self.started, [*self.stopped[1:], float("inf")], strict=False):
            first = min((m for m in moments if start <= m < end), default=None)
            if first is not None:
                after.append(first - start)
        return after


def is_ready(house: HomeAssistant) -> bool:
    """It knows the entities, and they are available."""
    return house.discoveries >= 2 and house.is_available()


def storm(
    folder: Path,
    *,
    restarts: int,
    utterances: int,
    house: bool,
    bystander: bool = False,
    seconds: float = 4.0,
    subscribes_after_s: float = 1.0,
    seed: int = 0,
    delays: Delays = DELAYS,
) -> Outcome:
    """Says `utterances` at random moments while the broker restarts; waits until all were told."""
    chance = random.Random(seed)
    outcome = Outcome()
    over = threading.Event()
    with (
        Broker(persistent=not house) as broker,
        Store.open(StoreSettings(path=str(folder))) as store,
        running(
            MqttSettings(host=broker.host, port=broker.port), store, delays=delays
        ) as publisher,
        HomeAssistant(broker.port, subscribes_after_s=subscribes_after_s, birth_after_s=0.5)
        if house
        else Subscriber(broker.port) as listener,
    ):
        other = Bystander(broker.port, "bystander") if bystander else None
        if other:
            other.__enter__()
        if isinstance(listener, HomeAssistant):
            until(partial(is_ready, listener), 30)
        else:
            until(lambda: publisher.status().connected)

        def speak() -> None:
            pause_s = restarts * (seconds + 1) / utterances
            for number in range(utterances):
                stored = store.append(transcript(f"sentence {number}"))
                outcome.said.append(stored.transcript.id)
                publisher.notify()
                time.sleep(chance.uniform(0, 2 * pause_s))
            over.set()

        speaker = threading.Thread(target=speak)
        speaker.start()
        for _ in range(restarts):
            time.sleep(chance.uniform(0.2, 2 * seconds))
            outcome.stopped.append(time.time())
            broker.stop()
            time.sleep(chance.uniform(0, 1.5))
            broker.start()
            outcome.started.append(time.time())
        speaker.join()
        until(lambda: store.depth() == 0, 90)
        time.sleep(1.0)
        if other:
            other.__exit__()
        events = heard(listener)
        outcome.heard = list({(e["id"], e["published"]): e for e in events}.values())
        outcome.redelivered = len(events) - len(outcome.heard)
        outcome.missed = len(getattr(listener, "missed", ()))
    return outcome


def heard(listener: Subscriber | HomeAssistant) -> list[dict[str, Any]]:
    """The events, in order."""
    return list(listener.events) if isinstance(listener, HomeAssistant) else listener.events()
