"""How long it takes from `mute/set` to the microphone being closed, and to that being told.

    scripts/measure mute [TIMES]

A private Mosquitto, a private PulseAudio microphone and the daemon, 20 times on and off. Closed is
when the daemon releases its lock, which it does after the device; told is when the retained
`mute` reaches a subscriber.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from rigs import broker as rig_broker, microphone as rig_microphone

from appliance.daemon import mute

TARGET_MS = 300.0


def main() -> int:
    """Prints the figures; 1 when the target is missed."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory() as name, rig_broker.Broker() as broker:
        folder = Path(name)
        config = folder / "roomscribe.toml"
        config.write_text(
            f'[appliance]\nnode = "kitchen"\n[mqtt]\nhost = "127.0.0.1"\nport = {broker.port}\n'
            f'[store]\npath = "{folder / "state"}"\n',
            encoding="utf-8",
        )
        with rig_microphone.PulseMicrophone(folder / "microphone") as microphone:
            daemon = subprocess.Popen(
                [sys.executable, "-m", "appliance", "run", "--config", str(config)],
                env=microphone.environment,
                stderr=subprocess.DEVNULL,
            )
            try:
                closed_ms, told_ms = measure(broker.port, folder / "state", times)
            finally:
                daemon.terminate()
                daemon.wait(10)
    for what, taken in (("closed", closed_ms), ("told", told_ms)):
        middle, longest = statistics.median(taken), max(taken)
        print(f"mute/set to {what}: median {middle:.0f} ms, longest {longest:.0f} ms of {times}")
    return int(max(closed_ms) > TARGET_MS)


def measure(port: int, state: Path, times: int) -> tuple[list[float], list[float]]:
    """Milliseconds to closed, and to told, each time that it is muted."""
    told: dict[bytes, float] = {}
    client = Client(CallbackAPIVersion.VERSION2, "measure", protocol=MQTTv5)
    client.on_message = lambda _c, _u, message: told.update(
        {bytes(message.payload): time.monotonic()}
    )
    client.on_connect = lambda c, *_: c.subscribe("roomscribe/kitchen/mute", qos=1)
    client.connect("127.0.0.1", port)
    client.loop_start()
    closed_ms, told_ms = [], []
    for _ in range(times):
        wait(lambda: mute.is_listening(state), 60)
        time.sleep(0.5)
        told.clear()
        begun_s = time.monotonic()
        client.publish("roomscribe/kitchen/mute/set", b"ON", qos=1)
        wait(lambda: not mute.is_listening(state), 5)
        closed_ms.append((time.monotonic() - begun_s) * 1000)
        wait(lambda: b"ON" in told, 5)
        told_ms.append((told[b"ON"] - begun_s) * 1000)
        client.publish("roomscribe/kitchen/mute/set", b"OFF", qos=1)
    client.disconnect()
    client.loop_stop()
    return closed_ms, told_ms


def wait(condition: object, within_s: float) -> None:
    """Until `condition` holds; TimeoutError when it does not."""
    deadline_s = time.monotonic() + within_s
    assert callable(condition)
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError("what was waited for did not happen")
        time.sleep(0.001)


if __name__ == "__main__":
    sys.exit(main())
