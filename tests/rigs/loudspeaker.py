"""A loudspeaker without hardware: a player's process that keeps what it is given in a file."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rigs.waiting import in_thread

from appliance.capture import PlayedSound, Recorder
from appliance.config import SpeakerSettings
from appliance.speaker import Ending, Kind, Loudspeaker, SpokenSound

PROGRAM = """
import json, os, struct, sys, time
from appliance.capture.portaudio import LENGTH, Message
def tell(kind, data, end_s=0.0):
    os.write(1, Message(kind, data, end_s).pack())
def say(**words):
    tell(0, json.dumps(words).encode())
say(started=True)
read = sys.stdin.buffer.read
for line in sys.stdin.buffer:
    request = json.loads(line)
    if request["device"] == "missing":
        say(error="no loudspeaker found")
        continue
    rate_hz = request["rate_hz"] if request["device"] != "48 kHz" else 48000
    say(opened={"name": "a fake", "rate_hz": rate_hz, "channels": 1})
    end_s = time.monotonic()
    while size := LENGTH.unpack(read(LENGTH.size))[0]:
        data = read(size)
        if request["device"] == "vanishes":
            say(lost="it was unplugged")
            os._exit(0)
        end_s = max(end_s, time.monotonic()) + size / 2 / rate_hz
        time.sleep(max(0.0, end_s - 0.1 - time.monotonic()))  # as a device with 0.1 s of buffer
        with open(sys.argv[1], "ab") as output:
            output.write(data)
        tell(1, data, end_s)
    say(ended=True)
"""


class Player:
    """A loudspeaker with the fake device, in a thread of its own."""

    def __init__(self, file: Path, **settings: Any) -> None:
        self.file, self.problems = file, list[str | None]()
        self.recorder = Recorder([sys.executable, "-c", PROGRAM, str(file)])
        chosen = SpeakerSettings(**{"enabled": True, "volume": 100} | settings)
        self.played = PlayedSound()
        self.speaker = Loudspeaker(
            chosen, complain=self.problems.append, played=self.played, recorder=self.recorder
        )
        self.endings: dict[SpokenSound, Ending] = {}

    @property
    def sound(self) -> bytes:
        """All that the device has taken."""
        return self.file.read_bytes() if self.file.exists() else b""

    def say(self, pcm: bytes, rate_hz: int = 16_000, kind: Kind = Kind.ANSWER) -> SpokenSound:
        """Begin a whole sound."""
        sound = self.speaker.begin(
            rate_hz, 1, kind, lambda ending: self.endings.__setitem__(sound, ending)
        )
        assert sound.write(pcm)
        sound.end()
        return sound


@contextmanager
def playing(file: Path, **settings: Any) -> Iterator[Player]:
    """Run a loudspeaker; `device` may be "missing", "vanishes" or "48 kHz"."""
    player = Player(file, **settings)
    with in_thread(lambda: player.speaker.run(lambda: None), player.speaker.stop):
        yield player
