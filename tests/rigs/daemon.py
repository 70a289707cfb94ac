"""The daemon as systemd starts it: its configuration, its process, and a house around it."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from rigs import broker as rig_broker, microphone as rig_microphone
from rigs.checkout import TESTS, require_model
from rigs.command import PROGRAM, roomscribe, start
from rigs.mqtt_client import Subscriber
from rigs.waiting import PATIENCE_S, until

from appliance.capture.recording import Recording


def write_config(folder: Path, port: int = 0, **sections: Mapping[str, Any]) -> Path:
    """`roomscribe.toml` in `folder`: node kitchen, the log in its `state`, the broker on `port`.

    Without a port MQTT is off. `sections` go before these and are added to them.
    """
    written: dict[str, dict[str, Any]] = {
        "appliance": {"node": "kitchen"},
        "mqtt": {"host": "127.0.0.1", "port": port} if port else {"enabled": False},
        "store": {"path": folder / "state"},
    }
    for name, keys in sections.items():
        written[name] = written.get(name, {}) | dict(keys)
    lines: list[str] = []
    for name, keys in written.items():
        lines.append(f"[{name}]")
        lines += [
            f"{key} = {json.dumps(value, ensure_ascii=False, default=str)}"
            for key, value in keys.items()
        ]
    config = folder / "roomscribe.toml"
    config.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return config


@contextmanager
def daemon(
    config: Path,
    *arguments: str | Path,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    environment: Mapping[str, str] | None = None,
    program: Sequence[str] = PROGRAM,
) -> Iterator[subprocess.Popen[bytes]]:
    """A running `roomscribe run`, killed at the end. `log_of(config)` is what it wrote."""
    if program == PROGRAM:
        require_model()
    with (config.parent / "log").open("ab") as log:
        running = start(
            "run", "--config", config, *arguments,
            stdin=stdin, stderr=log, environment=environment, program=program,
        )  # fmt: skip
    try:
        yield running
    finally:
        running.kill()
        running.wait(PATIENCE_S)
        if running.stdin:
            running.stdin.close()


@contextmanager
def hearing(config: Path) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[str], None]]]:
    """A daemon that hears what it is given, and a way to say a sentence of tests/speech."""
    with daemon(config, "--recording", "-", stdin=subprocess.PIPE) as running:
        pipe = running.stdin
        assert pipe

        def say(name: str) -> None:
            with Recording(str(TESTS / "speech" / name), real_time=False) as recording:
                sound = np.concatenate([frame.samples for frame in recording.frames()])
            pause = np.zeros(16_000, np.int16)
            pipe.write(np.concatenate([pause, sound, pause]).tobytes())
            pipe.flush()

        yield running, say


@contextmanager
def in_silence(
    config: Path, *, program: Sequence[str] = PROGRAM
) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon whose microphone delivers nothing but silence."""
    with (
        Path("/dev/zero").open("rb") as silence,
        daemon(config, "--recording", "-", stdin=silence, program=program) as running,
    ):
        yield running


def end(running: subprocess.Popen[bytes]) -> None:
    """Stop a daemon as systemd does, in order."""
    running.terminate()
    assert running.wait(PATIENCE_S) == 0


def transcripts(config: Path) -> list[dict[str, Any]]:
    """What the log has, the oldest first, as `roomscribe log --json` prints it."""
    done = roomscribe("log", "--json", "--config", config)
    return [json.loads(line) for line in done.stdout.splitlines()]


def log_of(config: Path) -> str:
    """What the daemons with this configuration wrote so far."""
    return (config.parent / "log").read_text(encoding="utf-8")


@contextmanager
def listening_house(
    folder: Path,
) -> Iterator[tuple[rig_microphone.PulseMicrophone, Subscriber, subprocess.Popen[bytes]]]:
    """A daemon that listens to a private microphone, and a subscriber of its private broker."""
    microphone = rig_microphone.PulseMicrophone(folder / "microphone")
    with rig_broker.Broker() as broker, microphone, Subscriber(broker.port) as heard:
        config = write_config(folder, broker.port)
        with daemon(config, environment=microphone.environment) as running:
            until(lambda: heard.payloads("availability") == [b"online"])
            time.sleep(1)
            yield microphone, heard, running
