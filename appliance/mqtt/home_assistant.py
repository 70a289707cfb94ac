"""Home Assistant's discovery: one message for the device and all its entities.

Pure functions. The form is Home Assistant's MQTT device discovery; an unknown key, a component
without `platform` or `unique_id`, or a missing `origin` makes it refuse the whole device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from appliance import HOMEPAGE
from appliance.mqtt import events
from appliance.records import ApplianceState

NPUS = {"hailo8": "Hailo-8", "hailo8l": "Hailo-8L", "hailo10h": "Hailo-10H"}
"""The encoder's names of what it runs on, as their maker writes them."""
FORMER: Mapping[str, str] = {}
"""Components that older versions announced and this one does not: name to platform.

Leaving one out of the message does not remove it from Home Assistant, naming its platform alone
does; it stays here, as nobody knows which version an appliance is upgraded from.
"""
TEXT_LETTERS = 255
"""Home Assistant takes no longer state; the whole text is in the attributes."""


def topic(prefix: str, node: str) -> str:
    """Where the message belongs, under Home Assistant's discovery prefix."""
    return f"{prefix}/device/{node}/config"


def discovery(
    node: str,
    state: ApplianceState,
    former: Mapping[str, str] = FORMER,
    *,
    area: str = "",
    page: str = "",
) -> dict[str, Any]:
    """The message; `former` components are removed by it. With an `area`, a new device gets that
    room; `page` is an address that the device's page links to."""
    return {
        "device": {
            "identifiers": [f"roomscribe_{node}"],
            "name": f"Roomscribe {node}",
            "manufacturer": "Roomscribe",
            "model": model(state),
            "sw_version": state.version,
            "serial_number": node,
            **({"suggested_area": area} if area else {}),
            **({"configuration_url": page} if page else {}),
        },
        "origin": {"name": "roomscribe", "sw_version": state.version, "support_url": HOMEPAGE},
        "availability": [{"topic": events.topic(node, events.AVAILABILITY)}],
        "availability_mode": "all",
        "components": {
            **{name: {"platform": platform} for name, platform in former.items()},
            **_speech(node),
            **_switches(node),
            **_diagnostics(node),
        },
    }


def model(state: ApplianceState) -> str:
    """What the device is called: the machine and, where one is in use, the NPU."""
    parts = (state.machine, NPUS.get(state.encoder, ""))
    return " + ".join(part for part in parts if part) or "Computer"


def _speech(node: str) -> dict[str, Any]:
    """Entities of what is said.

    None of it depends on the microphone, which may go before its last sentence.
    """
    return {
        "transcript": {
            **_component(node, "event", "transcript", "Transcript", events.TRANSCRIPT),
            "icon": "mdi:text-recognition",
            "event_types": ["transcript"],
        },
        "text": {
            **_component(node, "sensor", "text", "Last text", events.TRANSCRIPT),
            "icon": "mdi:text",
            "value_template": f"{{{{ value_json.text[:{TEXT_LETTERS}] }}}}",
            "json_attributes_topic": events.topic(node, events.TRANSCRIPT),
            "json_attributes_template": (
                "{{ {'text': value_json.text, 'id': value_json.id, "
                "'late': value_json.late | default(false), "
                "'language': value_json.language | default(none)} | tojson }}"
            ),
            "force_update": True,
        },
        "speech": {
            **_component(node, "binary_sensor", "speech", "Speech", events.SPEECH, qos=0),
            "device_class": "sound",
            "availability": [
                {"topic": events.topic(node, events.AVAILABILITY)},
                {"topic": events.topic(node, events.MICROPHONE)},
            ],
            "availability_mode": "all",
        },
    }


def _switches(node: str) -> dict[str, Any]:
    """The microphone, and the switch that closes it."""
    return {
        "microphone": {
            **_component(node, "binary_sensor", "microphone", "Microphone", events.MICROPHONE),
            "device_class": "connectivity",
            "entity_category": "diagnostic",
            "payload_on": events.ONLINE.decode(),
            "payload_off": events.OFFLINE.decode(),
        },
        "mute": {
            **_component(node, "switch", "mute", "Mute", events.MUTE),
            "icon": "mdi:microphone-off",
            # Home Assistant does not expose it to Assist by itself: nobody unmutes it by voice
            "entity_category": "config",
            "command_topic": events.topic(node, f"{events.MUTE}/set"),
        },
    }


def _diagnostics(node: str) -> dict[str, Any]:
    """Numbers for those who look after the appliance."""
    diagnostic = {"entity_category": "diagnostic"}
    measured = {"state_class": "measurement"}
    return {
        "confidence": {
            **_component(node, "sensor", "confidence", "Confidence", events.TRANSCRIPT),
            "icon": "mdi:gauge",
            **measured,
            "unit_of_measurement": "%",
            "suggested_display_precision": 0,
            "value_template": "{{ (value_json.confidence * 100) | round(1) "
            "if value_json.confidence is number else none }}",
        },
        "latency": {
            **_component(node, "sensor", "latency", "Latency", events.TRANSCRIPT),
            **diagnostic,
            "device_class": "duration",
            **measured,
            "unit_of_measurement": "ms",
            "value_template": "{{ value_json.latency_ms | default(none) }}",
        },
        "npu_temperature": {
            **_component(node, "sensor", "npu_temperature", "NPU temperature", events.STATS, qos=0),
            **diagnostic,
            "device_class": "temperature",
            **measured,
            "unit_of_measurement": "°C",
            "value_template": "{{ value_json.npu_temperature_c | default(none) }}",
        },
        "outbox": {
            **_component(node, "sensor", "outbox", "Outbox depth", events.STATE),
            **diagnostic,
            **measured,
            "value_template": "{{ value_json.outbox_depth | default(none) }}",
        },
        "status": {
            **_component(node, "sensor", "status", "Status", events.STATE),
            **diagnostic,
            "device_class": "enum",
            "options": ["running", "degraded", "muted"],
            "value_template": "{{ value_json.status }}",
            "json_attributes_topic": events.topic(node, events.STATE),
        },
    }


def _component(
    node: str, platform: str, name: str, shown: str, source: str, *, qos: int = 1
) -> dict[str, Any]:
    """What every component begins with; `source` is the node's topic of its state."""
    begin = {
        "platform": platform,
        "unique_id": f"roomscribe_{node}_{name}",
        "name": shown,
        "state_topic": events.topic(node, source),
    }
    return begin | {"qos": qos} if qos else begin
