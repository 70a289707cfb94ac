"""Home Assistant's discovery: one message for the device and all its entities.

Pure functions. The form is Home Assistant's MQTT device discovery. Home Assistant refuses the
whole device for an unknown key of `device`, of `origin` or beside them, for a component without
`platform` or `unique_id`, and for a missing `origin`.

It drops unknown keys of a component, in 2024.11 as in 2026.11: `extra=True` for components in
homeassistant/components/mqtt/schemas.py, and then `extra=REMOVE_EXTRA` in the DISCOVERY_SCHEMA of
event.py, sensor.py, binary_sensor.py, switch.py and button.py. A release before 2025.10 does not
know `default_entity_id` and makes the entity's id from the names of the device and the entity.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from appliance import HOMEPAGE
from appliance.config import room_name
from appliance.mqtt import events
from appliance.records import ApplianceState, ApplianceStats

NPUS = {"hailo8": "Hailo-8", "hailo8l": "Hailo-8L", "hailo10h": "Hailo-10H"}
"""Chips by the encoder's name, as their maker writes them."""
TEMPERATURES = {"npu": "NPU temperature", "soc": "Processor temperature"}
"""Temperatures that a machine may have, with the names of their sensors. The `stats` topic has each
as `<key>_temperature_c`."""
TEXT_LETTERS = 255
"""Home Assistant's longest state; the attributes have the whole text."""
_SPOKEN = "value_json.correction | default(value_json.text)"
"""The text, or what a user says was really said."""


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
    absent = {f"{one}_temperature": "sensor" for one in TEMPERATURES if one not in temperatures}
    absent |= {} if assist else {"assist": "event"}
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
            **{name: {"platform": platform} for name, platform in absent.items()},
            **_speech(base),
            **(_assist(base) if assist else {}),
            **_switches(base),
            **_measurements(base),
            **_temperatures(base, temperatures),
            **_diagnostics(base),
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


def _speech(base: str) -> dict[str, Any]:
    """Return the entities of transcripts and speech.

    Transcripts stay available without the microphone, which may be lost before its last sentence.
    """
    return {
        **_component(
            base, "event", "transcript", "Transcript", events.TRANSCRIPT,
            icon="mdi:text-recognition", event_types=["transcript"],
        ),
        # disabled, so that it is not chosen in place of Transcript
        **_component(
            base, "event", "correction", "Correction", events.CORRECTION, qos=0,
            entity_category="diagnostic", enabled_by_default=False, icon="mdi:pencil",
            event_types=["correction"],
        ),
        **_component(
            base, "sensor", "text", "Last text", events.LAST, entity="last_text", icon="mdi:text",
            value_template=f"{{{{ ({_SPOKEN})[:{TEXT_LETTERS}] }}}}",
            json_attributes_topic=base + events.LAST,
            json_attributes_template=(
                f"{{{{ {{'text': {_SPOKEN}, 'id': value_json.id, "
                "'corrected': value_json.correction is defined, "
                "'late': value_json.late | default(false), "
                "'language': value_json.language | default(none)} | tojson }}"
            ),
            force_update=True,
        ),
        **_component(
            base, "binary_sensor", "speech", "Speech", events.SPEECH, qos=0, device_class="sound",
            **_available(base, {"topic": base + events.MICROPHONE}),
        ),
    }  # fmt: skip


def _available(base: str, also: dict[str, str]) -> dict[str, Any]:
    """Return the keys of a component that is available while the appliance and `also` are."""
    both = [{"topic": base + events.AVAILABILITY}, also]
    return {"availability": both, "availability_mode": "all"}


def _assist(base: str) -> dict[str, Any]:
    """Return the event of Assist's replies: its history tells what became of each command."""
    fields = {"command": "text", "answer": "speech", "reason": "error", "transcript_id": "id"}
    values = "".join(f", '{name}': value_json.{field}" for name, field in fields.items())
    return _component(
        base, "event", "assist", "Assist", events.ASSIST_REPLY, qos=0, icon="mdi:home-assistant",
        event_types=["action_done", "query_answer", "answered", "error", "failed"],
        value_template=f"{{{{ {{'event_type': value_json.status{values}}} | tojson }}}}",
    )  # fmt: skip


def _switches(base: str) -> dict[str, Any]:
    # a muted microphone is closed, neither connected nor disconnected
    unmuted = {
        "topic": base + events.MUTE,
        "payload_available": events.OFF.decode(),
        "payload_not_available": events.ON.decode(),
    }
    return {
        **_component(
            base, "binary_sensor", "microphone", "Microphone", events.MICROPHONE,
            device_class="connectivity", entity_category="diagnostic",
            payload_on=events.ONLINE.decode(), payload_off=events.OFFLINE.decode(),
            **_available(base, unmuted),
        ),
        # Home Assistant does not expose it to Assist by itself: nobody unmutes it by voice
        **_component(
            base, "switch", "mute", "Mute", events.MUTE, entity_category="config",
            command_topic=f"{base}{events.MUTE}/set",
        ),
        **_mute_button(base, "mute_30_minutes", "Mute for 30 minutes", "30m"),
        **_mute_button(base, "mute_until_tomorrow", "Mute until tomorrow", "tomorrow"),
        **_component(
            base, "sensor", "muted_until", "Muted until", events.STATE,
            entity_category="diagnostic", icon="mdi:timer-off-outline", device_class="timestamp",
            value_template="{{ value_json.muted_until | default(none) }}",
        ),
    }  # fmt: skip


def _mute_button(base: str, name: str, shown: str, end: str) -> dict[str, Any]:
    """Return a button that mutes until `end`; it has no state."""
    button = _component(
        base, "button", name, shown, events.MUTE, icon="mdi:microphone-off",
        entity_category="config", command_topic=f"{base}{events.MUTE}/set",
        payload_press=f"{events.ON.decode()} {end}",
    )  # fmt: skip
    del button[name]["state_topic"]
    return button


def _measurements(base: str) -> dict[str, Any]:
    return {
        **_component(
            base, "sensor", "confidence", "Confidence", events.TRANSCRIPT, icon="mdi:gauge",
            state_class="measurement", unit_of_measurement="%", suggested_display_precision=0,
            value_template="{{ (value_json.confidence * 100) | round(1) "
            "if value_json.confidence is number else none }}",
        ),
        **_component(
            base, "sensor", "latency", "Latency", events.TRANSCRIPT, entity_category="diagnostic",
            device_class="duration", state_class="measurement", unit_of_measurement="ms",
            value_template="{{ value_json.latency_ms | default(none) }}",
        ),
    }  # fmt: skip


def _temperatures(base: str, present: Collection[str]) -> dict[str, Any]:
    """Return the sensors of `present`, keys of TEMPERATURES."""
    found: dict[str, Any] = {}
    for key in present:
        name, shown = f"{key}_temperature", TEMPERATURES[key]
        found |= _component(
            base, "sensor", name, shown, events.STATS, qos=0,
            entity=shown.lower().replace(" ", "_"), entity_category="diagnostic",
            device_class="temperature", state_class="measurement", unit_of_measurement="°C",
            value_template=f"{{{{ value_json.{key}_temperature_c | default(none) }}}}",
        )  # fmt: skip
    return found


def _diagnostics(base: str) -> dict[str, Any]:
    return {
        **_component(
            base, "sensor", "outbox", "Unpublished transcripts", events.STATE,
            entity="outbox_depth", entity_category="diagnostic", icon="mdi:tray-full",
            state_class="measurement", unit_of_measurement="transcripts",
            value_template="{{ value_json.outbox_depth | default(none) }}",
        ),
        **_component(
            base, "sensor", "status", "Status", events.STATE, entity_category="diagnostic",
            icon="mdi:heart-pulse", device_class="enum",
            options=["running", "degraded", "muted", "stopped"],
            value_template="{{ value_json.status }}", json_attributes_topic=base + events.STATE,
        ),
        # not for reasons alone: some end by themselves, as while transcripts wait
        **_component(
            base, "binary_sensor", "problem", "Problem", events.STATE,
            entity_category="diagnostic", device_class="problem",
            value_template="{{ 'ON' if value_json.status == 'degraded' "
            "or value_json.status == 'muted' and value_json.reasons else 'OFF' }}",
            json_attributes_topic=base + events.STATE,
            json_attributes_template="{{ {'reasons': value_json.reasons} | tojson }}",
        ),
    }  # fmt: skip


def _component(
    base: str,
    platform: str,
    name: str,
    shown: str,
    source: str,
    *,
    qos: int = 1,
    entity: str = "",
    **more: Any,
) -> dict[str, dict[str, Any]]:
    """Return a component by its name: the keys of all, and `more`.

    `source` is the node's topic of its state. `entity` ends the entity id, if `name` does not: the
    id is the same with and without an area, which Home Assistant 2026.11 else puts into it.
    """
    node = _node(base)
    keys = {
        "platform": platform,
        "unique_id": f"roomscribe_{node}_{name}",
        "default_entity_id": f"{platform}.roomscribe_{node}_{entity or name}",
        "name": shown,
        "state_topic": base + source,
    }
    return {name: keys | ({"qos": qos} if qos else {}) | more}


def _node(base: str) -> str:
    return base.split("/")[-2]
