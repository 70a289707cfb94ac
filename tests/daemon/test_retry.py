"""A window that met too many deaths: transcribed apart, tried here, left, or set aside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import soundfile
from rigs.checkout import SPEECH
from rigs.needs import needs_memory
from rigs.windows import a_window

from appliance.config import ModelSettings, Settings, SpoolSettings
from appliance.daemon.backlog import DEATHS_IN_PROCESS, Backlog
from appliance.daemon.health import Health
from appliance.daemon.retry import HOPELESS, transcribe_apart
from appliance.daemon.spool import Spool, write_attempts
from appliance.records import Discarded, Transcription

pytestmark = needs_memory


class Rig:
    """A backlog with one spoken window that was there when so many processes died."""

    def __init__(self, memory: Path, deaths: int = DEATHS_IN_PROCESS) -> None:
        self.settings = Settings(spool=SpoolSettings(path=str(memory)))
        sound, _ = soundfile.read(SPEECH / "00.flac", dtype="int16")
        with Spool.open(self.settings, Health()) as spool:
            assert spool.put(a_window(samples=sound))
        self.file = next(memory.glob("*.window"))
        write_attempts(self.file, deaths)
        self.discarded: list[str] = []
        self.backlog = Backlog(self.settings, Health(), self._discard)
        lease = self.backlog.take_window(0)
        assert lease
        assert not lease.in_process
        self.lease = lease

    def retry(
        self, settings: Settings | None = None, *, should_continue: bool = True
    ) -> Transcription | None:
        settings = settings or self.settings
        return transcribe_apart(self.lease, lambda: should_continue, settings=settings)

    def _discard(self, discarded: Discarded) -> None:
        self.discarded.append(discarded.reason)


@pytest.fixture
def rig(memory: Path) -> Iterator[Rig]:
    one = Rig(memory)
    yield one
    one.backlog.close()


def no_model(settings: Settings) -> Settings:
    return replace(settings, model=ModelSettings(bundle="nowhere"))


def test_it_is_transcribed_in_a_process_of_its_own(rig: Rig) -> None:
    transcription = rig.retry()
    assert transcription
    assert transcription.text
    assert not rig.lease.in_process
    assert rig.file.exists(), "it waits for the store"


def test_what_there_is_no_time_for_is_left_to_the_next_start(rig: Rig) -> None:
    assert rig.retry(should_continue=False) is None
    assert rig.file.exists()
    assert rig.discarded == []


@pytest.mark.parametrize("deaths", [DEATHS_IN_PROCESS, HOPELESS])
def test_without_a_process_of_its_own_it_is_tried_here_unless_it_is_hopeless(
    memory: Path, deaths: int, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(memory, deaths)
    assert rig.retry(no_model(rig.settings)) is None
    assert "no process of its own: MissingModelError: " in caplog.text
    rig.backlog.close()
    if deaths == HOPELESS:
        assert rig.discarded == ["set_aside"]
        assert not rig.file.exists()
    else:
        assert rig.lease.in_process
        with Spool.open(rig.settings, Health()) as spool:
            assert [kept.attempts for kept in spool.windows()] == [deaths + 1]
