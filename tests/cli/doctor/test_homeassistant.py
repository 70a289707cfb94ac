"""Home Assistant's websocket is asked for names and for its Assist."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rigs.home_websocket import DEVICE, TOKEN, Hub

from appliance.cli.doctor import homeassistant as home
from appliance.cli.doctor.daemon import DaemonProcess, is_hidden, with_token
from appliance.cli.doctor.main import look
from appliance.cli.doctor.outcome import Surroundings
from appliance.config import ApplianceSettings, AssistSettings, HomeAssistantSettings, Settings
from appliance.homeassistant.client import TOKEN_CREDENTIAL

(CHECK,) = home.CHECKS


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as running:
        yield running


@pytest.fixture
def around(hub: Hub, tmp_path: Path) -> Surroundings:
    (tmp_path / "token").write_text(TOKEN, encoding="utf-8")
    chosen = HomeAssistantSettings(url=hub.url, token_file=str(tmp_path / "token"))
    node = ApplianceSettings(node="kitchen")
    return Surroundings(
        Settings(appliance=node, homeassistant=chosen, assist=AssistSettings(phrase="computer"))
    )


def test_without_an_address_there_is_nothing_to_ask() -> None:
    assert CHECK.look(Surroundings(Settings())).found == "homeassistant.url is not set"


def test_it_reports_the_number_of_words_and_the_assist_pipeline(around: Surroundings) -> None:
    found = look(CHECK, around)
    assert found.status == "ok", found.found
    names = "version 2025.1.4: 7 names of 2 exposed entities and their places"
    assert f"{names}; pipeline 'Home Assistant'; device Roomscribe kitchen in area Kitchen" in (
        found.found
    )
    without = replace(around.settings, assist=AssistSettings())
    assert look(CHECK, replace(around, settings=without)).found.endswith(names)


def test_what_is_missing_fails_with_a_fix(hub: Hub, around: Surroundings) -> None:
    hub.devices = []
    assert "Home Assistant has no device Roomscribe" in look(CHECK, around).found
    error = '{"code": "unauthorized", "message": "Unauthorized"}'
    refusal = f'{{"id": $ID, "type": "result", "success": false, "error": {error}}}'
    hub.raw = {"assist_pipeline/pipeline/list": refusal}
    assert look(CHECK, around).found == "Home Assistant has no Assist pipeline"
    hub.raw["config/area_registry/list"] = refusal
    found = look(CHECK, around)
    assert found.status == "failed"
    assert "config/area_registry/list: Unauthorized" in found.found
    assert "administrator" in found.fix


@pytest.mark.parametrize("area", [{"area_id": None}, {}])
def test_assist_is_not_approved_of_for_a_device_without_an_area(
    hub: Hub, around: Surroundings, area: dict[str, None]
) -> None:
    hub.devices = [{key: value for key, value in DEVICE.items() if key != "area_id"} | area]
    found = look(CHECK, around)
    assert found.status == "failed"
    assert "has no area" in found.found
    assert "Devices, Roomscribe kitchen" in found.fix


def test_an_area_with_a_refused_name_is_shown_by_its_id(hub: Hub, around: Surroundings) -> None:
    hub.devices = [DEVICE | {"area_id": "attic_2"}]
    assert look(CHECK, around).found.endswith("in area attic_2")


def test_a_refused_token_and_a_wrong_address_fail_without_printing_the_token(
    hub: Hub, around: Surroundings
) -> None:
    hub.token = "another"
    found = look(CHECK, around)
    assert found.status == "failed"
    assert "refuses the token" in found.found
    assert TOKEN not in found.found + found.fix
    hub.stop()
    found = look(CHECK, around)
    assert "cannot be reached: Connection refused" in found.found
    assert "homeassistant.url" in found.fix


def test_the_token_is_found_at_systemd_and_hidden_if_it_is_not_ours(
    tmp_path: Path,
) -> None:
    plain, encrypted = tmp_path / "plain", tmp_path / "encrypted"
    plain.mkdir()
    chosen = HomeAssistantSettings(url="http://ha:8123")
    assert with_token(chosen, plain, encrypted) == chosen
    assert not is_hidden("", TOKEN_CREDENTIAL, None, (plain, encrypted))
    (plain / TOKEN_CREDENTIAL).write_text(TOKEN, encoding="utf-8")
    assert with_token(chosen, plain, encrypted).token_file == str(plain / TOKEN_CREDENTIAL)
    own = replace(chosen, token_file="/elsewhere")
    assert with_token(own, plain, encrypted) == own
    assert with_token(HomeAssistantSettings(), plain, encrypted) == HomeAssistantSettings()
    service = DaemonProcess(os.getpid(), "roomscribe", service=True)
    assert is_hidden("", TOKEN_CREDENTIAL, service, (plain,)) == (os.geteuid() != 0)
