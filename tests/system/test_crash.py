"""Windows over the death of the daemon: `roomscribe run`, for real, killed while it transcribes."""

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile
from rigs.checkout import SPEECH
from rigs.command import PROGRAM
from rigs.daemon import daemon, end, in_silence, log_of, write_config
from rigs.needs import needs_memory
from rigs.waiting import PATIENCE_S, until
from rigs.windows import a_window
from rigs.word_errors import same_words

from appliance.config import Settings, SpoolSettings, StoreSettings
from appliance.daemon.health import Health
from appliance.daemon.spool import Spool
from appliance.errors import StoreError
from appliance.records import Window
from appliance.store.store import Store

pytestmark = needs_memory


class House:
    """A configuration, its store and its spool."""

    def __init__(self, folder: Path, memory: Path) -> None:
        self.spool = memory / "spool"
        self.folder = folder
        self.state = folder / "state"
        self.config = write_config(folder, spool={"path": self.spool})

    def hears(self, number: int) -> list[Window]:
        """Puts so many spoken windows into the spool, as a process would that dies then."""
        windows = []
        with Spool.open(Settings(spool=SpoolSettings(path=str(self.spool))), Health()) as spool:
            for index in range(number):
                sound, _ = soundfile.read(SPEECH / f"{index:02}.flac", dtype="int16")
                windows.append(a_window(f"utterance {index}", 1.0, samples=sound))
                assert spool.put(windows[-1])
        return windows

    def poison(self) -> Window:
        """Puts a window into the spool that kills what transcribes it."""
        with Spool.open(Settings(spool=SpoolSettings(path=str(self.spool))), Health()) as spool:
            window = a_window("poison", 2.0)
            assert spool.put(window)
        return window

    def stored(self) -> list[str]:
        """Ids in the log, in its order."""
        try:
            with Store.open(StoreSettings(path=str(self.state)), read_only=True) as store:
                return [row.transcript.id for row in store.query()]
        except StoreError:
            return []

    def waiting(self) -> int:
        return len(list(self.spool.glob("*.window")))

    @contextmanager
    def daemon(self, *program: str) -> Iterator[subprocess.Popen[bytes]]:
        """`roomscribe run` in silence."""
        with in_silence(self.config, program=program or PROGRAM) as running:
            yield running

    @property
    def log(self) -> str:
        return log_of(self.config)


@pytest.fixture
def house(tmp_path: Path, memory: Path) -> House:
    return House(tmp_path, memory)


def test_what_a_killed_daemon_had_heard_is_transcribed_once_and_in_order(house: House) -> None:
    heard = [window.id for window in house.hears(8)]
    kills = 0

    def more_than(done: int) -> bool:
        return len(house.stored()) > done

    while house.waiting() > 4:
        done = len(house.stored())
        with house.daemon() as running:
            until(partial(more_than, done))
            running.send_signal(signal.SIGKILL)
            kills += 1
    with house.daemon() as running:
        until(lambda: house.waiting() == 0)
        end(running)
    assert kills >= 1
    assert house.stored() == heard
    assert not list(house.spool.glob("*")), "nothing of the sound is left"


def test_killed_between_guess_and_early_end_a_sentence_is_told_once(house: House) -> None:
    sound, rate = soundfile.read(SPEECH / "00.flac", dtype="int16")
    quiet = np.random.default_rng(1).integers(-3, 4, rate).astype(np.int16)
    ends = np.flatnonzero(np.abs(sound.astype(int)) > 500)[-1] + 1
    spoken = np.concatenate((quiet, sound[:ends], quiet[: int(0.4 * rate)]))
    with daemon(house.config, "--recording", "-", stdin=subprocess.PIPE) as running:
        assert running.stdin
        running.stdin.write(spoken.tobytes())
        running.stdin.flush()
        until(lambda: house.waiting() == 1 or house.stored() != [])
        running.send_signal(signal.SIGKILL)
        running.wait(PATIENCE_S)
    with house.daemon():
        until(lambda: house.waiting() == 0)
    with Store.open(StoreSettings(path=str(house.state)), read_only=True) as store:
        [row] = store.read_after(0)
    assert same_words(row.transcript.text, "what is the weather like in chicago")


PROGRAM_WITH = """
import functools, sys
from appliance.cli import main, run
from appliance.daemon.assembly import Factories, build
from appliance.daemon.pipeline import Pipeline
from rigs import transcriber

def pipeline(settings):
    return Pipeline(build(settings, Factories(transcriber=transcriber.{name})))

sys.exit(main.main(command=functools.partial(run.run, pipeline=pipeline)))
"""


def test_a_window_that_kills_each_time_is_set_aside_and_said(house: House) -> None:
    before, poison, after = house.hears(1), house.poison(), house.hears(3)
    program = ("-c", PROGRAM_WITH.format(name="open_deadly"))
    for _ in range(4):
        with house.daemon(*program) as running:
            assert running.wait(PATIENCE_S) == -signal.SIGKILL
    with house.daemon(*program) as running:
        until(lambda: house.waiting() == 0)
        assert running.poll() is None
    assert house.stored() == [window.id for window in (*before, *after)]
    assert poison.id not in house.stored()
    assert house.log.count("is set aside: 4 processes ended") == 1


def test_what_there_is_no_time_for_at_a_stop_is_taken_up_by_the_next_start(house: House) -> None:
    heard = [window.id for window in house.hears(9)]
    with house.daemon("-c", PROGRAM_WITH.format(name="open_slow")) as running:
        until(lambda: "listening to" in house.log)
        end(running)
    assert "windows are left to the next start" in house.log
    assert "untranscribed" not in house.log, "nothing is lost, and nothing of that is said"
    assert len(house.stored()) < 9
    with house.daemon():
        until(lambda: house.waiting() == 0)
    assert house.stored() == heard


def test_a_reload_hands_what_waits_to_the_new_pipeline(house: House) -> None:
    with house.daemon() as running:
        until(lambda: "listening to" in house.log)
        text = house.config.read_text(encoding="utf-8")
        house.config.write_text(text + "[voice]\nopen_score = 0.6\n", encoding="utf-8")
        running.send_signal(signal.SIGHUP)
        until(lambda: house.log.count("listening to") == 2)
        assert "no spool" not in house.log
        time.sleep(0.2)
        end(running)
