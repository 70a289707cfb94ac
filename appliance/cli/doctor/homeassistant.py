"""Check Home Assistant's websocket: login, names of the home, Assist."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.cli.doctor.daemon import is_hidden
from appliance.cli.doctor.outcome import Check, Outcome, Surroundings, failed, ok, skipped
from appliance.config import node_name, room_name

if TYPE_CHECKING:
    from appliance.homeassistant import ProbeResult

ADMIN = "create the token as an administrator of Home Assistant (profile, Security)"


def home_assistant(around: Surroundings) -> Outcome:
    """Check that Home Assistant sends the names of the home, and that Assist takes sentences."""
    home, node = around.settings.homeassistant, node_name(around.settings)
    if not home.url:
        wyoming, phrase = around.settings.wyoming, around.settings.assist.phrase
        if wyoming.satellite and phrase:
            return ok(f"sentences go to Assist as sound (satellite, port {wyoming.satellite_port})")
        return skipped("homeassistant.url is not set")
    from appliance.homeassistant import TOKEN_CREDENTIAL, probe_home

    if is_hidden(home.token_file, TOKEN_CREDENTIAL, around.daemon):
        return skipped("this user cannot read Home Assistant's token: run `sudo roomscribe doctor`")
    around.doing(f"asking {home.url}")
    found, room = probe_home(home, node), room_name(node, home.area)
    if found.refusal:
        return failed(f"{found.where} refuses to send the names: {found.refusal}", ADMIN)
    line = f"{found.where}: {found.names}"
    return judge_assist(found, room, line) if around.settings.assist.phrase else ok(line)


def judge_assist(found: ProbeResult, room: str, line: str) -> Outcome:
    """Return the outcome for Assist; `line` is what was right before."""
    if not found.pipeline:
        return failed(
            "Home Assistant has no Assist pipeline",
            "add one in Home Assistant: Settings, Voice assistants",
        )
    if not found.device:
        return failed(
            f"pipeline {found.pipeline!r}; Home Assistant has no device Roomscribe {room}",
            "set homeassistant.enabled = true, and check that Home Assistant uses the same broker",
        )
    if not found.area:
        return failed(
            f"pipeline {found.pipeline!r}; Roomscribe {room} has no area, so Assist does not know "
            'which light "the light" means',
            "choose an area in Home Assistant: Settings, Devices & services, Devices, "
            f"Roomscribe {room}, the pencil, Area",
        )
    return ok(f"{line}; pipeline {found.pipeline!r}; device Roomscribe {room} in area {found.area}")


CHECKS = (
    Check(
        "Home Assistant",
        home_assistant,
        "check homeassistant.url",
        within_s=60,
        needs=("[homeassistant]", "[appliance]", "[assist]", "[wyoming]"),
    ),
)
