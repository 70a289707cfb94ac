"""The journal: no text unless asked for, levels kept, systemd told."""

import logging
import socket
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rigs.publishing import transcript

from appliance.config import JournalSettings
from appliance.daemon import systemd
from appliance.store.tables import StoredTranscript

STORED = StoredTranscript(7, transcript("a secret"), datetime(2026, 1, 1, tzinfo=UTC), "", 0.0)


@pytest.fixture
def logging_kept() -> Iterator[None]:
    """Puts the process's logging back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_text_reaches_the_journal_only_when_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    systemd.log_transcript(STORED, JournalSettings())
    systemd.log_transcript(STORED, JournalSettings(text=True))
    first, second = caplog.records
    assert first.getMessage() == "transcript 7: 3.4 s of speech, 540 ms after its end"
    assert "secret" not in repr(vars(first))
    assert second.getMessage().endswith(": a secret")
    assert vars(first)["ROOMSCRIBE_UTTERANCE_ID"] == STORED.transcript.utterance_id


@pytest.mark.usefixtures("logging_kept")
def test_the_journal_behind_standard_error_is_given_the_level(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", "1:2")
    monkeypatch.setitem(sys.modules, "systemd", None)
    monkeypatch.setitem(sys.modules, "systemd.journal", None)
    systemd.set_up(JournalSettings(level="warning"))
    logging.getLogger("appliance").info("not shown")
    logging.getLogger("appliance").warning("shown\nin two lines")
    assert capsys.readouterr().err == "<4>shown\n<4>in two lines\n"


def test_systemd_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not systemd.notify("READY=1")
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(address)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        assert systemd.notify("READY=1\nSTATUS=listening")
        assert listener.recv(100) == b"READY=1\nSTATUS=listening"
    monkeypatch.setenv("NOTIFY_SOCKET", address + "-gone")
    assert not systemd.notify("WATCHDOG=1")
