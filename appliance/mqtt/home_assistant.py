"""What Home Assistant is told of the appliance: one message for the device and all its entities.

Pure functions. The form is Home Assistant's MQTT device discovery; an unknown key, a component
without `platform` or `unique_id`, or a missing `origin` makes it refuse the whole device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    node: str, state: ApplianceState, former: Mapping[str, str] = FORMER
) -> dict[str, Any]:
    """The message; `former` components are removed by it."""
    return {
        "device": {
            "identifiers": [f"roomscribe_{node}"],
            "name": f"Roomscribe {node}",
            "manufacturer": "Roomscribe",
            "model": model(state),
            "sw_version": state.version,
            "serial_number": node,
        },
        "origin": {"name": "roomscribe", "sw_version": state.version},
        "availability": [{"topic": events.topic(node, events.AVAILABILITY)}],
        "availability_mode": "all",
        "components": {
            **{name: {"platform": platform} for name, platform in former.items()},
            **_heard(node),
            **_switches(node),
            **_diagnostics(node),
        },
    }


def model(state: ApplianceState) -> str:
    """What the device is called: the machine and, where one is in use, the NPU."""
    parts = (state.machine, NPUS.get(state.encoder, ""))
    return " + ".join(part for part in parts if part) or "Computer"


def _heard(node: str) -> dict[str, Any]:
    """What is said. None of it depends on the microphone, which may go before its last sentence."""
    transcript = events.topic(node, events.TRANSCRIPT)
    return {
        "transcript": {
            **_component(node, "event", "transcript", "Transcript"),
            "icon": "mdi:text-recognition",
            "state_topic": transcript,
            "qos": 1,
            "event_types": ["transcript"],
        },
        "text": {
            **_component(node, "sensor", "text", "Last text"),
            "icon": "mdi:text",
            "state_topic": transcript,
            "qos": 1,
            "value_template": f"{{{{ value_json.text[:{TEXT_LETTERS}] }}}}",
            "json_attributes_topic": transcript,
            "json_attributes_template": (
                "{{ {'text': value_json.text, 'id': value_json.id, "
                "'late': value_json.late | default(false), "
                "'language': value_json.language | default(none)} | tojson }}"
            ),
            "force_update": True,
        },
        "speech": {
            **_component(node, "binary_sensor", "speech", "Speech"),
            "device_class": "sound",
            "state_topic": events.topic(node, events.SPEECH),
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
            **_component(node, "binary_sensor", "microphone", "Microphone"),
            "device_class": "connectivity",
            "entity_category": "diagnostic",
            "state_topic": events.topic(node, events.MICROPHONE),
            "qos": 1,
            "payload_on": events.ONLINE.decode(),
            "payload_off": events.OFFLINE.decode(),
        },
        "mute": {
            **_component(node, "switch", "mute", "Mute"),
            "icon": "mdi:microphone-off",
            "state_topic": events.topic(node, events.MUTE),
            "command_topic": events.topic(node, f"{events.MUTE}/set"),
            "qos": 1,
        },
    }


def _diagnostics(node: str) -> dict[str, Any]:
    """Numbers for those who look after the appliance."""
    transcript, state = events.topic(node, events.TRANSCRIPT), events.topic(node, events.STATE)
    diagnostic = {"entity_category": "diagnostic"}
    measured = {"state_class": "measurement"}
    return {
        "confidence": {
            **_component(node, "sensor", "confidence", "Confidence"),
            "icon": "mdi:gauge",
            "state_topic": transcript,
            "qos": 1,
            **measured,
            "unit_of_measurement": "%",
            "suggested_display_precision": 0,
            "value_template": "{{ (value_json.confidence * 100) | round(1) "
            "if value_json.confidence is number else none }}",
        },
        "latency": {
            **_component(node, "sensor", "latency", "Latency"),
            **diagnostic,
            "state_topic": transcript,
            "qos": 1,
            "device_class": "duration",
            **measured,
            "unit_of_measurement": "ms",
            "value_template": "{{ value_json.latency_ms | default(none) }}",
        },
        "npu_temperature": {
            **_component(node, "sensor", "npu_temperature", "NPU temperature"),
            **diagnostic,
            "state_topic": events.topic(node, events.STATS),
            "device_class": "temperature",
            **measured,
            "unit_of_measurement": "°C",
            "value_template": "{{ value_json.npu_temperature_c | default(none) }}",
        },
        "outbox": {
            **_component(node, "sensor", "outbox", "Outbox depth"),
            **diagnostic,
            "state_topic": state,
            "qos": 1,
            **measured,
            "value_template": "{{ value_json.outbox_depth | default(none) }}",
        },
        "status": {
            **_component(node, "sensor", "status", "Status"),
            **diagnostic,
            "state_topic": state,
            "qos": 1,
            "device_class": "enum",
            "options": ["running", "degraded", "muted"],
            "value_template": "{{ value_json.status }}",
            "json_attributes_topic": state,
        },
    }


def _component(node: str, platform: str, name: str, shown: str) -> dict[str, Any]:
    """What every component begins with."""
    return {"platform": platform, "unique_id": f"roomscribe_{node}_{name}", "name": shown}
