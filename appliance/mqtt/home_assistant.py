"""Home Assistant's discovery: one message for the device and all its entities.

Pure functions. The form is Home Assistant's MQTT device discovery. Home Assistant refuses the
whole device for an unknown key of `device`, of `origin` or beside them, for a component without
`platform` or `unique_id`, and for a missing `origin`.

It drops unknown keys of a component, in 2024.11 as in 2026.11: `extra=True` for components in
homeassistant/components/mqtt/schemas.py, and then `extra=REMOVE_EXTRA` in the DISCOVERY_SCHEMA of
event.py, sensor.py, binary_sensor.py, switch.py and button.py. A release before 2025.10 does not
know `default_entity_id` and makes the entity's id from the names of the device and the entity.
"""

import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from appliance import HOMEPAGE
from appliance.config import room_name
from appliance.mqtt import events
from appliance.records import ApplianceState, ApplianceStats

NPUS = {"hailo8": "Hailo-8", "hailo8l": "Hailo-8L", "hailo10h": "Hailo-10H"}
"""Chips by the encoder's name, as their maker writes them."""
TEMPERATURES = ("npu", "soc")
"""Temperatures that a machine may have; the `stats` topic has each as `<key>_temperature_c`."""
ENTITIES = Path(__file__).with_name("entities.toml")


def discovery_topic(prefix: str, node: str) -> str:
    """Return the topic of the message, under Home Assistant's discovery prefix."""
    return f"{prefix}/device/{node}/config"


def discovery_message(
    base: str,
    state: ApplianceState,
    *,
    area: str = "",
    page: str = "",
    temperatures: Collection[str] = TEMPERATURES,
    assist: bool = True,
) -> dict[str, Any]:
    """Return the message of the appliance whose topics begin with `base`: "roomscribe/kitchen/".

    It removes the sensors of TEMPERATURES that are not among `temperatures`, and the event of
    Assist without `assist`. A new device gets the room `area`. `page` is an address that the
    device's page links to.
    """
    node = _node(base)
    entities = tomllib.loads(ENTITIES.read_text(encoding="utf-8"))
    without = {f"{one}_temperature" for one in TEMPERATURES if one not in temperatures}
    without |= set() if assist else {"assist"}
    return {
        "device": {
            "identifiers": [f"roomscribe_{node}"],
            "name": f"Roomscribe {room_name(node, area)}",
            "manufacturer": "Roomscribe",
            "model": device_model(state),
            "sw_version": state.version,
            "serial_number": node,
            **({"suggested_area": area} if area else {}),
            **({"configuration_url": page} if page else {}),
        },
        "origin": {"name": "roomscribe", "sw_version": state.version, "support_url": HOMEPAGE},
        "availability": [{"topic": base + events.AVAILABILITY}],
        "availability_mode": "all",
        "components": {
            **{name: {"platform": entities[name]["platform"]} for name in sorted(without)},
            **{
                name: _component(base, name, keys)
                for name, keys in entities.items()
                if name not in without
            },
        },
    }


def device_model(state: ApplianceState) -> str:
    """Return the machine, its NPU if one is in use, and the model unless another machine
    transcribes."""
    title = "" if state.encoder == "fleet" else state.model_title
    parts = (state.machine or "Computer", NPUS.get(state.encoder, ""), title)
    return " + ".join(part for part in parts if part)


def available_temperatures(state: ApplianceState, stats: ApplianceStats | None) -> frozenset[str]:
    """Return the keys of TEMPERATURES that this machine has: a Hailo's while one is in use, the
    processor's if it can be read."""
    has_soc = stats is not None and stats.soc_temperature_c is not None
    return frozenset({"npu"} if state.encoder in NPUS else ()) | ({"soc"} if has_soc else set())


def _component(base: str, name: str, keys: dict[str, Any]) -> dict[str, Any]:
    """Return a component of the message, from what ENTITIES says of it.

    The entity's id is the same with and without an area, which Home Assistant 2026.11 else puts
    into it.
    """
    node, state, qos = _node(base), keys.pop("state", None), keys.pop("qos", 1)
    entity = keys.pop("entity", name)
    return {
        "unique_id": f"roomscribe_{node}_{name}",
        "default_entity_id": f"{keys['platform']}.roomscribe_{node}_{entity}",
        **({"state_topic": base + state} if state else {}),
        **({"qos": qos} if qos else {}),
        **{key: _with_base(base, value) for key, value in keys.items()},
    }


def _with_base(base: str, value: Any) -> Any:
    """Return a key's value, in which "~/" begins the appliance's own topics."""
    if isinstance(value, str) and value.startswith("~/"):
        return base + value[2:]
    if isinstance(value, list):
        return [_with_base(base, one) for one in value]
    if isinstance(value, dict):
        return {key: _with_base(base, one) for key, one in value.items()}
    return value


def _node(base: str) -> str:
    return base.split("/")[-2]
