"""Windows over the death of the daemon: `roomscribe run`, for real, killed while it transcribes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import soundfile
from commands import ROOT, SPEECH
from memory_folder import a_window, memory, needs_memory
from publishing import until

from appliance.errors import PublishError
from appliance.health import Health
from appliance.publish.store import Store
from appliance.records import Window
from appliance.settings import Settings, SpoolSettings, StoreSettings
from appliance.spool import Spool

__all__ = ["memory"]

pytestmark = needs_memory

WITHIN_S = 60.0


class House:
    """A configuration, its store and its spool."""

    def __init__(self, folder: Path, memory: Path) -> None:
        self.spool = memory / "spool"
        self.folder = folder
        self.state = folder / "state"
        self.config = folder / "roomscribe.toml"
        self.config.write_text(
            f'[mqtt]\nenabled = false\n[store]\npath = "{self.state}"\n'
            f'[spool]\npath = "{self.spool}"\n',
            encoding="utf-8",
        )

    def hears(self, number: int) -> list[Window]:
        """Puts so many spoken windows into the spool, as a process would that dies then."""
        windows = []
        with Spool.open(Settings(spool=SpoolSettings(path=str(self.spool))), Health()) as spool:
            for index in range(number):
                sound, _ = soundfile.read(SPEECH / f"{index:02}.flac", dtype="int16")
                windows.append(a_window(f"utterance {index}", 1.0, samples=sound))
                assert spool.put(windows[-1])
        return windows

    def stored(self) -> list[str]:
        """Ids in the log, in its order."""
        try:
            with Store.open(StoreSettings(path=str(self.state)), read_only=True) as store:
                return [row.transcript.id for row in store.query()]
        except PublishError:
            return []

    def waiting(self) -> int:
        return len(list(self.spool.glob("*.window")))

    @contextmanager
    def daemon(self, *program: str) -> Iterator[subprocess.Popen[bytes]]:
        """`roomscribe run` in silence; its log is added to the file `log`."""
        command = program or ("-m", "appliance")
        with Path("/dev/zero").open("rb") as silence, (self.folder / "log").open("ab") as log:
            running = subprocess.Popen(
                [sys.executable, *command, "run", "--config", self.config, "--recording", "-"],
                stdin=silence,
                stderr=log,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
            )
        try:
            yield running
        finally:
            running.kill()
            running.wait(10)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8")


@pytest.fixture
def house(tmp_path: Path, memory: Path) -> House:
    return House(tmp_path, memory)


def test_what_a_killed_daemon_had_heard_is_transcribed_once_and_in_order(house: House) -> None:
    heard = [window.id for window in house.hears(12)]
    kills = 0
    while house.waiting() > 6:
        done = len(house.stored())
        with house.daemon() as running:
            until(lambda done=done: len(house.stored()) > done, WITHIN_S)
            running.send_signal(signal.SIGKILL)
            kills += 1
    with house.daemon() as running:
        until(lambda: house.waiting() == 0, WITHIN_S)
        running.send_signal(signal.SIGTERM)
        assert running.wait(20) == 0
    assert kills >= 1
    assert house.stored() == heard
    assert not list(house.spool.glob("*")), "nothing of the sound is left"


def test_a_reload_hands_what_waits_to_the_new_pipeline(house: House) -> None:
    with house.daemon() as running:
        until(lambda: "listening to" in house.log, WITHIN_S)
        text = house.config.read_text(encoding="utf-8")
        house.config.write_text(text + "[voice]\nwebrtc_mode = 3\n", encoding="utf-8")
        running.send_signal(signal.SIGHUP)
        until(lambda: house.log.count("listening to") == 2, WITHIN_S)
        assert "no spool" not in house.log
        time.sleep(0.2)
        running.send_signal(signal.SIGTERM)
        assert running.wait(20) == 0
