"""Our server for the house is tried with a sentence."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
from rigs.wyoming import free_port, running

from appliance.cli.doctor import wyoming as house
from appliance.cli.doctor.daemon import DaemonProcess
from appliance.cli.doctor.main import look
from appliance.cli.doctor.model import TEXT
from appliance.cli.doctor.outcome import Check, Surroundings
from appliance.config import Settings, WyomingSettings
from appliance.infer.opening import open_transcriber
from appliance.model.bundle import Bundle

DAEMON = DaemonProcess(os.getpid(), "roomscribe", service=False)


def around(**keys: Any) -> Surroundings:
    """[wyoming] with `keys`, and a daemon that runs."""
    return Surroundings(Settings(wyoming=WyomingSettings(enabled=True, **keys)), daemon=DAEMON)


def test_without_a_server_there_is_nothing_to_try() -> None:
    for check in house.CHECKS:
        assert check.look(Surroundings(Settings())).status == "skipped"


def test_the_own_server_is_tried_with_a_sentence(built_in: Bundle) -> None:
    with open_transcriber(Settings(), bundle=built_in) as brain, running(brain) as server:
        found = look(house.CHECKS[0], around(listen="127.0.0.1", port=server.port))
    assert found.status == "ok", found.found
    assert f"word for word: '{TEXT}" in found.found.lower()


def test_a_closed_port_fails_and_a_missing_daemon_is_skipped() -> None:
    port = free_port()
    for check in house.CHECKS:
        there = around(port=port, allow=("0.0.0.0/0",))
        found = look(check, there)
        assert found.status == "failed"
        assert "journalctl" in found.fix
        assert look(check, replace(there, daemon=None)).status == "skipped"


@pytest.mark.parametrize("check", house.CHECKS)
def test_a_server_that_does_not_allow_this_machine_is_skipped(check: Check) -> None:
    assert "wyoming.allow" in check.look(around(allow=("203.0.113.7",))).found
