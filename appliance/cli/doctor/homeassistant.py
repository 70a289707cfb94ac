"""Home Assistant's websocket: it lets us in, gives the names of the home, and has an Assist."""

from __future__ import annotations

from appliance.cli.doctor.daemon import token_is_hidden
from appliance.cli.doctor.outcome import Check, Outcome, Surroundings, failed, ok, skipped
from appliance.config import node_name

ADMIN = "make the token as an administrator of Home Assistant (profile, Security)"


def names(around: Surroundings) -> Outcome:
    """How many names came."""
    if why := _nothing_to_ask(around):
        return skipped(why)
    from appliance.homeassistant import probe

    home = around.settings.homeassistant
    around.doing(f"asking {home.url}")
    found = probe(home, node_name(around.settings))
    if found.refusal:
        return failed(f"{found.where}: the names are refused: {found.refusal}", ADMIN)
    return ok(f"{found.where}: {found.names}")


def assist(around: Surroundings) -> Outcome:
    """Sentences can be handed over."""
    if not around.settings.assist.phrase:
        return skipped("assist.phrase is empty")
    if why := _nothing_to_ask(around):
        return skipped(why)
    from appliance.homeassistant import probe

    around.doing(f"asking {around.settings.homeassistant.url}")
    node = node_name(around.settings)
    found = probe(around.settings.homeassistant, node)
    if not found.pipeline:
        return failed("there is no Assist pipeline", "Home Assistant, Settings, Voice assistants")
    if not found.device:
        return failed(
            f"pipeline {found.pipeline!r}; Roomscribe {node} is not among its devices",
            "the daemon announces it over MQTT: see homeassistant.enabled, and that Home Assistant "
            "uses the same broker",
        )
    if not found.area:
        return failed(
            f"pipeline {found.pipeline!r}; Roomscribe {node} is in no area: Assist does not know "
            'which light "the light" is',
            "choose an area in Home Assistant: Settings, Devices & services, Devices, "
            f"Roomscribe {node}, the pencil, Area",
        )
    return ok(
        f"pipeline {found.pipeline!r}; Roomscribe {node} is among its devices, in {found.area}"
    )


def _nothing_to_ask(around: Surroundings) -> str:
    """Why; empty when there is."""
    home = around.settings.homeassistant
    if not home.url:
        return "homeassistant.url is empty"
    if token_is_hidden(home, around.daemon):
        return "Home Assistant's token is not for this user: sudo roomscribe doctor"
    return ""


NAMES = "names of the home"
NEEDS = ("[homeassistant]", "[appliance]")
CHECKS = (
    Check(NAMES, names, "see homeassistant.url", within_s=60, needs=NEEDS),
    Check("Assist", assist, "see [assist]", within_s=60, needs=(*NEEDS, "[assist]", NAMES)),
)
