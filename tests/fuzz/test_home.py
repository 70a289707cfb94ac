"""Home Assistant may answer whatever it likes: names come of it, or a refusal, and nothing else."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, strategies as st
from rigs.fuzzing import ODD_TEXTS, examples, is_one_line
from rigs.publishing import transcript

from appliance.config import AssistSettings
from appliance.homeassistant import names as naming
from appliance.homeassistant.assist import Assist
from appliance.homeassistant.client import describe, find_device
from appliance.homeassistant.connection import CommandError, HomeAssistantUrl, WebsocketLink
from appliance.homeassistant.names import LETTERS_AT_MOST, NAMES_AT_MOST, WORDS_AT_MOST
from appliance.mqtt import events

TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(ODD_TEXTS),
    st.sampled_from(
        ("light.one", "sensor.two", "kitchen", "mqtt", "roomscribe_kitchen", "conversation")
    ),
)
KEYS = st.sampled_from(
    (
        *("exposed_entities", "conversation", "should_expose", "options", "entity_id", "area_id"),
        *("light.one", "sensor.two", "name", "aliases", "floor_id", "device_id", "identifiers"),
        *("id", "a", "friendly_name", "original_name", "disabled_by", "response", "speech"),
        *("plain", "data", "code", "response_type", "language", "conversation_id", "message"),
        *("intent_output", "type"),
    )
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(KEYS, TEXTS), inner, max_size=5)
    ),
    max_leaves=25,
)
KINDS = st.sampled_from(("intent-start", "intent-end", "error", "run-end", "x"))


class AnyServer:
    """Answers each command with the next of some values, a refusal among them, and an event."""

    def __init__(self, values: list[Any]) -> None:
        self._values, self._link = (
            values,
            WebsocketLink(self, HomeAssistantUrl.parse("http://ha:8123"), "1"),
        )

    def _next(self) -> Any:
        return self._values.pop(0) if self._values else None

    async def send(self, message: str) -> None:
        number = json.loads(message)["id"]
        result = self._next()
        done = {"id": number, "type": "result", "success": result != 0, "result": result}
        self._link._handle(json.dumps(done | {"error": result}))
        for event in (self._next(), {"a": self._next()}, {"type": "run-end", "data": result}):
            self._link._handle(json.dumps({"id": number, "type": "event", "event": event}))

    @property
    def link(self) -> WebsocketLink:
        return self._link


@examples(40, 0.4)
@given(st.lists(JSON, max_size=24), JSON)
def test_any_answers_give_names_that_can_be_said_or_a_refusal(
    values: list[Any], exposed: Any
) -> None:
    how = {"exposed_entities": {"light.one": {"conversation": True}, "sensor.two": exposed}}
    devices = [one for one in values if isinstance(one, dict)]
    find_device(devices, "kitchen")
    link = AnyServer([how, None, None, *values]).link
    try:
        found = asyncio.run(naming.fetch(link, devices))
    except CommandError as error:
        assert str(error).isprintable()
        return
    assert len(found.names) <= NAMES_AT_MOST
    for name, _ in found.names:
        assert naming.clean(name) == name
        assert name.isprintable() and 0 < len(name) <= LETTERS_AT_MOST
        assert len(name.split()) <= WORDS_AT_MOST
        name.encode()
    assert is_one_line(describe(found))


@examples(40, 0.4)
@given(st.lists(st.tuples(KINDS, JSON), max_size=6))
def test_any_run_of_assist_gives_one_reply_that_can_be_published(
    told: list[tuple[str, Any]],
) -> None:
    values = [None, *({"type": kind, "data": data} for kind, data in told)]
    said = replace(transcript(), end=datetime.now(UTC), confidence=1.0, flags=())
    with TemporaryDirectory() as folder:
        assist = Assist(AssistSettings(phrase="computer"), Path(folder))
        reply = asyncio.run(assist.run(AnyServer(values).link, "device", said, "lights on"))
    assert reply
    payload = events.encode(events.assist_reply(reply))
    assert len(payload) < 1 << 16
    assert json.loads(payload)["id"] == said.id
