"""A Wyoming server over a transcriber, without a daemon; and clients of it: one that sends what it
likes, and the protocol's own library in the releases that Home Assistant came with."""

import json
import os
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, cast

import numpy as np
import pytest
from rigs.broker import is_open
from rigs.checkout import ROOT
from rigs.command import captured
from rigs.transcriber import FakeTranscriber
from rigs.waiting import PATIENCE_S, in_thread, until

from appliance.capture.recording import Recording
from appliance.config import Settings, WyomingSettings
from appliance.infer.request import Deliver, Pending, Request
from appliance.infer.transcriber import Transcriber
from appliance.records import SAMPLE_RATE, Samples, Transcription, Window
from appliance.system import Closing
from appliance.wyoming.protocol import Event, pack
from appliance.wyoming.request import Hooks, KnownTexts
from appliance.wyoming.satellite import VoiceSatellite
from appliance.wyoming.server import Timeouts, WyomingServer

RELEASES = ("1.5.4", "1.7.1", "1.10.2")
"""Of the protocol's library: of early 2025, of most of that year, and of Home Assistant 2026.11."""
LIBRARIES = ROOT / ".venv" / "wyoming"
"""scripts/setup.sh puts each of them into a folder of its own."""
AUDIO_16K: dict[str, Any] = {"rate": SAMPLE_RATE, "width": 2, "channels": 1}
TAIL_S = 0.7
"""Home Assistant stops a command after so much silence."""


def needs_library(release: str) -> pytest.MarkDecorator:
    missing = not (LIBRARIES / release / "wyoming").is_dir()
    reason = f"not installed: wyoming {release} (scripts/test installs it)"
    return pytest.mark.skipif(missing, reason=reason)


@dataclass(slots=True, eq=False)
class Asked(Pending):
    """A request that waits for its transcription."""

    request: Request
    deliver: Deliver


class Worker:
    """Transcribes windows one after the other, as the daemon does while its microphone is still."""

    def __init__(self, transcriber: Transcriber | FakeTranscriber, most: int = 16) -> None:
        self._transcriber, self._most = transcriber, most
        self._waiting: SimpleQueue[Asked | None] = SimpleQueue()
        self.asked: list[Asked] = []
        self.working = threading.Event()
        self.working.set()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def submit(self, request: Request, deliver: Deliver) -> Asked | None:
        """None when too many wait."""
        if self._waiting.qsize() >= self._most:
            return None
        asked = Asked(request, deliver)
        self.asked.append(asked)
        self._waiting.put(asked)
        return asked

    def _work(self) -> None:
        while asked := self._waiting.get():
            self.working.wait()
            if not asked.wanted:
                continue
            result: Transcription | Exception
            try:
                result = self._transcriber.transcribe(asked.request.window)
            except Exception as error:
                result = error
            asked.deliver(asked.request, result)

    def close(self) -> None:
        self.working.set()
        self._waiting.put(None)
        self._thread.join(PATIENCE_S)


@dataclass
class Running:
    """A server that listens."""

    server: WyomingServer
    worker: Worker
    port: int
    satellite_port: int
    counted: Counter[str]
    kept: list[tuple[Window, Transcription, float]] = field(default_factory=list)


@contextmanager
def running(
    transcriber: Transcriber | FakeTranscriber | None = None,
    *,
    keep: bool = False,
    most: int = 16,
    idle_s: float = 15.0,
    within_s: float = PATIENCE_S,
    languages: tuple[str, ...] = (),
    act_on: str = "",
    known: KnownTexts | None = None,
    satellite: VoiceSatellite | None = None,
    **keys: Any,
) -> Iterator[Running]:
    """A server with these keys of [wyoming], on a free port of this machine. It knows `languages`
    and acts on `act_on` in place of each text; `satellite` has a port of its own."""
    chosen = transcriber or FakeTranscriber()
    worker = Worker(chosen, most)
    keys = {"enabled": True, "listen": "127.0.0.1", "port": 0, "satellite_port": 0, **keys}
    settings = replace(Settings(), wyoming=WyomingSettings(**keys))
    counted, troubles = Counter[str](), list[str | None]()
    kept: list[tuple[Window, Transcription, float]] = []
    hooks = Hooks(
        lambda: cast("Any", chosen.bundle),
        chosen.gates,
        worker.submit,
        keep=(lambda *fields: kept.append(fields)) if keep else None,
        count=lambda name: counted.update([name]),
        report=lambda _, trouble: troubles.append(trouble),
        languages=lambda: languages,
        text_to_act_on=lambda _, result: act_on or result.text,
        known=known or KnownTexts(),
    )
    timeouts = Timeouts(idle_s, within_s)
    server = WyomingServer(settings, "kitchen", hooks, timeouts, satellite=satellite)
    with closing(worker), in_thread(lambda: server.run(lambda: None), server.stop):
        until(lambda: all(port.address for port in server.ports))
        ports = [int((port.address or "").rpartition(":")[2]) for port in server.ports]
        yield Running(server, worker, ports[0], ports[-1], counted, kept)


class Talk(Closing):
    """A connection that sends whatever it is told to."""

    def __init__(self, port: int, host: str = "127.0.0.1", source: str = "") -> None:
        """`source` is the address to connect from, if not the usual one."""
        chosen = (source, 0) if source else None
        self.socket = socket.create_connection(
            (host, port), timeout=PATIENCE_S, source_address=chosen
        )
        self._file: IO[bytes] = self.socket.makefile("rb")

    def send(self, kind: str, payload: bytes = b"", **data: Any) -> None:
        self.socket.sendall(pack(Event(kind, data, payload)))

    def sound(self, samples: Samples, chunk: int = 320, form: dict[str, Any] = AUDIO_16K) -> None:
        """The samples as audio-chunks of so many bytes."""
        sound = samples.astype("<i2").tobytes()
        events = [
            pack(Event("audio-chunk", form, sound[at : at + chunk]))
            for at in range(0, len(sound), chunk)
        ]
        self.socket.sendall(b"".join(events))

    def speak(self, samples: Samples, **keys: Any) -> None:
        """A whole request, as Home Assistant makes it."""
        self.send("transcribe", language="en")
        self.send("audio-start", **AUDIO_16K)
        self.sound(samples, **keys)
        self.send("audio-stop")

    def event(self) -> Event | None:
        """What comes next; None at the end. Raises OSError when it was cut."""
        line = self._file.readline()
        if not line:
            return None
        header = json.loads(line)
        data = self._file.read(header.get("data_length", 0)) or b"{}"
        fields = header.get("data", {}) | json.loads(data)
        return Event(header["type"], fields, self._file.read(header.get("payload_length", 0)))

    def events(self, until: str = "") -> list[Event]:
        """All that comes, until an event of that type, or the end."""
        found: list[Event] = []
        while (not found or found[-1].type != until) and (event := self.event()):
            found.append(event)
        return found

    def text(self) -> str:
        """The text of the next transcript; the error's code where it is an error."""
        last = self.events("transcript")[-1]
        return str(last.data["code" if last.type == "error" else "text"])

    def close(self) -> None:
        self._file.close()
        self.socket.close()


def sound_of(file: Path, before_s: float = 0.3, after_s: float = TAIL_S) -> Samples:
    """A recording between two stretches of faint noise."""
    with Recording(str(file), real_time=False) as recording:
        heard = np.concatenate([frame.samples for frame in recording.frames()])
    dice = np.random.default_rng(1)
    parts = [dice.normal(0, 3, int(length * SAMPLE_RATE)) for length in (before_s, after_s)]
    sound: Samples = np.concatenate((parts[0], heard, parts[1])).astype(np.int16)
    return sound


def say(release: str, port: int, sound: Path, *arguments: str) -> list[dict[str, Any]]:
    """What the protocol's own library is told, in a process of its own: `sound` is a WAV file."""
    command = sys.executable, "-W", "ignore", "-m", "rigs.wyoming_client", port, sound, *arguments
    environment = os.environ | {"PYTHONPATH": f"{LIBRARIES / release}:{ROOT / 'tests'}"}
    done = captured(*command, env=environment)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def wait_for_port(port: int) -> None:
    """Until somebody listens there."""
    until(lambda: is_open(port))
