"""Measure the time from `mute/set` to the closed microphone, and to its acknowledgement.

    scripts/measure mute [TIMES]

A private Mosquitto, a private PulseAudio microphone and the daemon, 20 times on and off. Closed is
when the daemon releases its lock, which it does after the device; acknowledged is when the retained
`mute` reaches a subscriber.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rigs import broker as rig_broker, microphone as rig_microphone
from rigs.daemon import daemon, write_config
from rigs.mqtt_client import Subscriber
from rigs.waiting import holds

from appliance.daemon import mute

TARGET_MS = 300.0


def main() -> int:
    """Print the figures; 1 when the target is missed."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory() as name, rig_broker.Broker() as broker:
        folder = Path(name)
        config = write_config(folder, broker.port)
        with (
            rig_microphone.PulseMicrophone(folder / "microphone") as microphone,
            daemon(config, environment=microphone.environment) as running,
        ):
            closed_ms, acknowledged_ms = measure(broker.port, folder / "state", times)
            running.terminate()
            running.wait(10)
    for what, taken in (("closed", closed_ms), ("acknowledged", acknowledged_ms)):
        middle, longest = statistics.median(taken), max(taken)
        print(f"mute/set to {what}: median {middle:.0f} ms, longest {longest:.0f} ms of {times}")
    return int(max(closed_ms) > TARGET_MS)


def measure(port: int, state: Path, times: int) -> tuple[list[float], list[float]]:
    """Milliseconds to closed, and to acknowledged, each time that it is muted."""
    closed_ms, acknowledged_ms = [], []
    with Subscriber(port, name="measure", topics=("roomscribe/kitchen/mute",)) as subscriber:
        for _ in range(times):
            soon(lambda: mute.is_listening(state), 60)
            time.sleep(0.5)
            subscriber.messages.clear()
            begun_s = time.monotonic()
            subscriber.publish("roomscribe/kitchen/mute/set", b"ON")
            soon(lambda: not mute.is_listening(state), 5)
            closed_ms.append((time.monotonic() - begun_s) * 1000)
            soon(lambda: b"ON" in subscriber.payloads("mute"), 5)
            acknowledged_ms.append((subscriber.messages[-1].timestamp - begun_s) * 1000)
            subscriber.publish("roomscribe/kitchen/mute/set", b"OFF")
    return closed_ms, acknowledged_ms


def soon(condition: Callable[[], object], within_s: float) -> None:
    """Wait until `condition` holds, to a millisecond; TimeoutError when it does not."""
    if not holds(condition, within_s, every_s=0.001):
        raise TimeoutError("what was waited for did not happen")


if __name__ == "__main__":
    sys.exit(main())
