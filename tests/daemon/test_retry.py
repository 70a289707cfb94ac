"""A window that met too many deaths: transcribed apart, tried here, left, or set aside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import soundfile
from rigs.checkout import SPEECH
from rigs.needs import needs_memory
from rigs.windows import a_window

from appliance.config import ModelSettings, Settings, SpoolSettings
from appliance.daemon.backlog import DEATHS, Backlog, Lease
from appliance.daemon.health import Health
from appliance.daemon.retry import HOPELESS, retry
from appliance.daemon.spool import Spool, note
from appliance.daemon.transcription import EncodedWindow
from appliance.records import Discarded, Transcription

pytestmark = needs_memory


class Rig:
    """A backlog with one spoken window that was there when so many processes died."""

    def __init__(self, memory: Path, deaths: int = DEATHS) -> None:
        self.settings = Settings(spool=SpoolSettings(path=str(memory)))
        sound, _ = soundfile.read(SPEECH / "00.flac", dtype="int16")
        with Spool.open(self.settings, Health()) as spool:
            assert spool.put(a_window(samples=sound))
        self.file = next(memory.glob("*.window"))
        note(self.file, deaths)
        self.discarded: list[str] = []
        self.backlog = Backlog(self.settings, Health(), self._discard)
        lease = self.backlog.take(0)
        assert lease
        assert not lease.here
        self.lease = lease

    def retry(
        self, settings: Settings | None = None, *, goes_on: bool = True
    ) -> EncodedWindow | None:
        return retry(self.lease, settings or self.settings, encoded_here, lambda: goes_on)

    def _discard(self, discarded: Discarded) -> None:
        self.discarded.append(discarded.reason)


def encoded_here(lease: Lease) -> EncodedWindow:
    return EncodedWindow(lease, 0.0, RuntimeError("here"))


def no_model(settings: Settings) -> Settings:
    return replace(settings, model=ModelSettings(bundle="nowhere"))


def test_it_is_transcribed_in_a_process_of_its_own(memory: Path) -> None:
    rig = Rig(memory)
    encoded = rig.retry()
    assert encoded
    assert isinstance(encoded.result, Transcription)
    assert encoded.result.text
    assert encoded.lease is rig.lease
    assert rig.file.exists(), "it waits for the store"


def test_what_there_is_no_time_for_is_left_to_the_next_start(memory: Path) -> None:
    rig = Rig(memory)
    assert rig.retry(goes_on=False) is None
    assert rig.file.exists()
    assert rig.discarded == []


@pytest.mark.parametrize("deaths", [DEATHS, HOPELESS])
def test_without_a_process_of_its_own_it_is_tried_here_unless_it_is_hopeless(
    memory: Path, deaths: int, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(memory, deaths)
    encoded = rig.retry(no_model(rig.settings))
    assert "no process of its own: MissingModelError: " in caplog.text
    if deaths == HOPELESS:
        assert encoded is None
        assert rig.discarded == ["set_aside"]
        assert not rig.file.exists()
    else:
        assert encoded
        assert rig.lease.here
        rig.backlog.close()
        with Spool.open(rig.settings, Health()) as spool:
            assert [kept.attempts for kept in spool.left()] == [deaths + 1]
