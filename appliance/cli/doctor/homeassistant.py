"""Check Home Assistant's websocket: login, names of the home, Assist."""

from __future__ import annotations

from appliance.cli.doctor.daemon import is_hidden
from appliance.cli.doctor.outcome import Check, Outcome, Surroundings, failed, ok, skipped
from appliance.config import node_name, room_name

ADMIN = "create the token as an administrator of Home Assistant (profile, Security)"


def names(around: Surroundings) -> Outcome:
    """Check that Home Assistant sends the names of the home."""
    if why := _nothing_to_ask(around):
        return skipped(why)
    from appliance.homeassistant import probe_home

    home = around.settings.homeassistant
    around.doing(f"asking {home.url}")
    found = probe_home(home, node_name(around.settings))
    if found.refusal:
        return failed(f"{found.where} refuses to send the names: {found.refusal}", ADMIN)
    return ok(f"{found.where}: {found.names}")


def assist(around: Surroundings) -> Outcome:
    """Check that Assist takes sentences from this appliance."""
    if not around.settings.assist.phrase:
        return skipped("assist.phrase is not set")
    if why := _nothing_to_ask(around):
        return skipped(why)
    from appliance.homeassistant import probe_home

    around.doing(f"asking {around.settings.homeassistant.url}")
    node = node_name(around.settings)
    found = probe_home(around.settings.homeassistant, node)
    room = room_name(node, around.settings.homeassistant.area)
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
    return ok(f"pipeline {found.pipeline!r}; device Roomscribe {room} in area {found.area}")


def _nothing_to_ask(around: Surroundings) -> str:
    """Return why Home Assistant is not asked; empty if it is."""
    home = around.settings.homeassistant
    if not home.url:
        return "homeassistant.url is not set"
    from appliance.homeassistant import TOKEN_CREDENTIAL

    if is_hidden(home.token_file, TOKEN_CREDENTIAL, around.daemon):
        return "this user cannot read Home Assistant's token: run `sudo roomscribe doctor`"
    return ""


NAMES = "names of the home"
NEEDS = ("[homeassistant]", "[appliance]")
CHECKS = (
    Check(NAMES, names, "check homeassistant.url", within_s=60, needs=NEEDS),
    Check(
        "Assist",
        assist,
        "check [assist] in the configuration",
        within_s=60,
        needs=(*NEEDS, "[assist]", NAMES),
    ),
)
