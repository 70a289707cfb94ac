"""`roomscribe run`, for real, on a disk that refuses: heard, told, and in the log once it may."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import numpy as np
import soundfile
from rigs import broker as rig_broker
from rigs.checkout import SPEECH
from rigs.command import roomscribe
from rigs.daemon import daemon, log_of, write_config
from rigs.disks import mounted, remount
from rigs.mqtt_client import Subscriber
from rigs.needs import needs_broker, needs_memory
from rigs.waiting import until

WITHIN_S = 90.0
PAUSE = bytes(2 * 16000)

pytestmark = [needs_memory, needs_broker]


class Hearing:
    """A daemon that hears a pipe."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def say(self, number: int) -> None:
        """A sentence and silence behind it, as it would be spoken."""
        sound, rate = soundfile.read(SPEECH / f"{number:02}.flac", dtype="int16")
        assert rate == 16000
        self.silence()
        self._feed(np.asarray(sound).tobytes() + PAUSE + PAUSE)

    def silence(self) -> None:
        self._feed(PAUSE)

    def _feed(self, pcm: bytes) -> None:
        assert self.process.stdin is not None
        for begin in range(0, len(pcm), 3200):
            self.process.stdin.write(pcm[begin : begin + 3200])
            self.process.stdin.flush()
            time.sleep(0.1)


def logged(config: Path) -> list[tuple[int, str]]:
    """Number and id of what `roomscribe log` shows."""
    done = roomscribe("log", "--json", "--config", config)
    return [(line["seq"], line["id"]) for line in map(json.loads, done.stdout.splitlines())]


def test_a_sentence_heard_on_a_read_only_disk_is_told_and_in_the_log_later(tmp_path: Path) -> None:
    with (
        mounted(tmp_path / "disk", "4m") as disk,
        rig_broker.Broker() as broker,
        Subscriber(broker.port) as heard,
    ):
        config = write_config(tmp_path, broker.port, store={"path": disk / "state"})
        first = roomscribe("run", "--config", config, "--recording", SPEECH / "00.flac")
        assert first.returncode == 0
        until(lambda: len(heard.events()) == 1, WITHIN_S)
        remount(disk, "ro")

        with daemon(config, "--recording", "-", stdin=subprocess.PIPE) as process:
            hearing = Hearing(process)
            hearing.say(1)
            until(lambda: len(heard.events()) == 2, WITHIN_S)
            until(lambda: "kept in memory only" in str(heard.state()["reasons"]))
            assert [seq for seq, _ in logged(config)] == [1, 2]
        # killed; the next one still finds the disk read-only
        with daemon(config, "--recording", "-", stdin=subprocess.PIPE) as process:
            hearing = Hearing(process)
            hearing.say(2)
            until(lambda: len(heard.events()) == 3, WITHIN_S)
            remount(disk, "rw")
            hearing.silence()
            until(lambda: heard.state()["status"] == "running", WITHIN_S)
            hearing.say(3)
            until(lambda: len(heard.events()) == 4, WITHIN_S)
        events = [(event["seq"], event["id"]) for event in heard.events()]
        assert [seq for seq, _ in events] == [1, 2, 3, 4]
        assert logged(config) == events
        assert "transcripts that were kept in memory" in log_of(config)
        assert [path.name for path in disk.iterdir()] == ["state"]
