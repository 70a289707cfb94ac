"""Measure what broker restarts cost and how soon events arrive, with a real Mosquitto.

    scripts/measure mqtt [--restarts 20] [--utterances 200] [--seconds 4] [--house] [--bystander]

With --house a Home Assistant comes back seconds after the broker, as the real one does; with
--bystander somebody else subscribes, too, and hides from the broker's answers that it is away.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from rigs.broker import Broker
from rigs.home_assistant import DISCOVERY, HomeAssistant
from rigs.mqtt_client import Subscriber
from rigs.publishing import running
from rigs.storm import Outcome, storm
from rigs.waiting import until

from appliance.config import MqttSettings, StoreSettings
from appliance.store.store import Store

TURNS = 100
"""How often the voice begins and ends."""


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--utterances", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--house", action="store_true")
    parser.add_argument("--bystander", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure_discovery(Path(folder) / "discovery")
        measure_speech(Path(folder) / "speech")
        show(given.restarts, storm(Path(folder) / "storm", **vars(given)))


def measure_discovery(folder: Path) -> None:
    """Messages, bytes and time until a house that is there has every entity and its state."""
    with (
        Broker() as broker,
        HomeAssistant(broker.port) as house,
        Store.open(StoreSettings(path=str(folder))) as store,
    ):
        time.sleep(1.0)
        begun_s = time.monotonic()
        with running(MqttSettings(host=broker.host, port=broker.port), store):
            while not house.discoveries:
                time.sleep(0.0005)
            found_s = time.monotonic()
            telling = {"roomscribe/kitchen/" + name for name in ("availability", "state", "mute")}
            while not telling <= set(house.values):
                time.sleep(0.0005)
            all_s = time.monotonic()
            size = len(house.values[DISCOVERY])
            count = len(house.components)
    print(
        f"discovery: 1 message, {size} bytes, {count} entities, "
        f"{1000 * (found_s - begun_s):.0f} ms after the start; "
        f"{1000 * (all_s - found_s):.1f} ms later they have their states"
    )


def measure_speech(folder: Path) -> None:
    """From the voice to the subscriber."""
    took = []
    with (
        Broker() as broker,
        Subscriber(broker.port) as heard,
        Store.open(StoreSettings(path=str(folder))) as store,
        running(MqttSettings(host=broker.host, port=broker.port), store) as publisher,
    ):
        until(lambda: heard.payloads("speech"))
        for turn in range(TURNS):
            count = len(heard.payloads("speech"))
            begun_s = time.monotonic()
            publisher.on_speech(turn % 2 == 0)
            while len(heard.payloads("speech")) == count:
                time.sleep(0.0005)
            took.append(1000 * (time.monotonic() - begun_s))
            time.sleep(0.02)
    print(
        f"speech: median {statistics.median(took):.1f} ms, longest {max(took):.1f} ms "
        f"from the detector's word to the subscriber ({TURNS} turns)"
    )


def show(restarts: int, outcome: Outcome) -> None:
    """What the restarts cost."""
    after, runs = outcome.back_after_s(), outcome.runs_of_an_automation()
    print(
        f"{restarts} restarts, {len(outcome.said)} said: lost {outcome.lost}, "
        f"to an unavailable entity {outcome.missed}, doubled {outcome.doubled}, "
        f"without a lost connection {outcome.doubled_for_nothing()}, "
        f"given twice by the broker {outcome.redelivered}, in order: {outcome.in_order}; "
        f"an automation runs for {len(runs)}, for {sum(n > 1 for n in runs.values())} of them twice"
    )
    if after:
        print(
            f"from the broker's return to the first event: median {statistics.median(after):.2f} s,"
            f" longest {max(after):.2f} s ({len(after)} returns)"
        )


if __name__ == "__main__":
    main()
