"""The servers that transcribe for us and for the house are asked what they are, and a sentence."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
from rigs.stt_server import SpeechServer, says
from rigs.wyoming import running

from appliance.cli.doctor import wyoming as house
from appliance.cli.doctor.daemon import DaemonProcess
from appliance.cli.doctor.main import look
from appliance.cli.doctor.model import TEXT
from appliance.cli.doctor.outcome import Check, Surroundings
from appliance.config import Settings, TranscriberSettings, WyomingSettings
from appliance.infer.opening import open_transcriber
from appliance.model.bundle import Bundle

DAEMON = DaemonProcess(os.getpid(), "roomscribe", service=False)


def around(**keys: Any) -> Surroundings:
    """[wyoming] with `keys`, and a daemon that runs."""
    return Surroundings(Settings(wyoming=WyomingSettings(enabled=True, **keys)), daemon=DAEMON)


def served(server: SpeechServer) -> Surroundings:
    chosen = TranscriberSettings(backend="wyoming", host="127.0.0.1", port=server.port)
    return Surroundings(Settings(transcriber=chosen))


def test_without_a_server_there_is_nothing_to_ask() -> None:
    for check in (house.REMOTE_CHECK, *house.CHECKS):
        assert check.look(Surroundings(Settings())).status == "skipped"


def test_the_remote_server_is_tried_with_a_sentence() -> None:
    with SpeechServer(says("What is the weather like in Chicago?")) as server:
        found = look(house.REMOTE_CHECK, served(server))
        assert found.status == "ok", found.found
        assert "large (en, de)" in found.found
        assert "word for word: 'What is the weather like in Chicago?'" in found.found
        server.answer = says("")
        assert look(house.REMOTE_CHECK, served(server)).status == "failed"


def test_an_unreachable_server_fails_with_a_fix() -> None:
    found = look(house.REMOTE_CHECK, served(SpeechServer()))
    assert found.status == "failed"
    assert "refused" in found.found
    assert "[transcriber] host" in found.fix


def test_the_own_server_is_tried_with_a_sentence(built_in: Bundle) -> None:
    with open_transcriber(Settings(), bundle=built_in) as brain, running(brain) as server:
        found = look(house.CHECKS[0], around(listen="127.0.0.1", port=server.port))
    assert found.status == "ok", found.found
    assert f"word for word: '{TEXT}" in found.found.lower()


def test_a_text_below_the_confidence_for_clients_is_no_fault_of_the_own_server(
    built_in: Bundle,
) -> None:
    with (
        open_transcriber(Settings(), bundle=built_in) as brain,
        running(brain, confidence=1.0) as server,
    ):
        found = look(house.CHECKS[0], around(listen="127.0.0.1", port=server.port))
    assert found.status == "ok", found.found
    assert "below the confidence" in found.found


def test_a_closed_port_fails_and_a_missing_daemon_is_skipped() -> None:
    port = SpeechServer().port
    for check in house.CHECKS:
        there = around(port=port, allow=("0.0.0.0/0",))
        found = look(check, there)
        assert found.status == "failed"
        assert "journalctl" in found.fix
        assert look(check, replace(there, daemon=None)).status == "skipped"


@pytest.mark.parametrize("check", house.CHECKS)
def test_a_server_that_does_not_allow_this_machine_is_skipped(check: Check) -> None:
    assert "wyoming.allow" in check.look(around(allow=("203.0.113.7",))).found
