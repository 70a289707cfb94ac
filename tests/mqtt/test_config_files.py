"""The files for other programs: Home Assistant's blueprint and card, Mosquitto's access list."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rigs.broker import Broker
from rigs.checkout import ROOT
from rigs.mqtt_client import Subscriber
from rigs.needs import needs_broker
from rigs.publishing import STATE, running, transcript
from rigs.waiting import until

from appliance.config import MqttSettings, StoreSettings
from appliance.mqtt import home_assistant
from appliance.store.store import Store

yaml = pytest.importorskip("yaml")
jinja2 = pytest.importorskip("jinja2")

CONFIG = ROOT / "config"
SENTENCES = ["Turn on the light!", "Gute Nacht"]


class Loader(yaml.SafeLoader):  # type: ignore[misc, name-defined]
    """Home Assistant's YAML: !input NAME."""


class Input(str):
    """The name of an input."""


Loader.add_constructor("!input", lambda loader, node: Input(loader.construct_scalar(node)))


def blueprint() -> dict[str, Any]:
    text = (CONFIG / "home-assistant" / "roomscribe_sentence.yaml").read_text("utf-8")
    return dict(yaml.load(text, Loader))


def inputs(part: Any) -> Iterator[str]:
    """Every input that a part refers to."""
    if isinstance(part, Input):
        yield str(part)
    for inner in part.values() if isinstance(part, dict) else part if type(part) is list else ():
        yield from inputs(inner)


def render(template: str, known: dict[str, Any]) -> Any:
    """What Home Assistant makes of a template: text, or what its text is in Python."""
    environment = jinja2.Environment()
    environment.filters["regex_replace"] = lambda text, find, by: re.sub(find, by, text)
    text = environment.from_string(template).render(known).strip()
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def runs(text: str, *, before: str | None = "1", whole: bool = False, **attributes: Any) -> bool:
    """True when the blueprint's automation runs for this event."""
    plan = blueprint()
    event = {"id": "2", "text": text, "confidence": 0.9, "late": False} | attributes
    entity = SimpleNamespace(attributes={"id": before})
    known: dict[str, Any] = {
        "trigger": {
            "to_state": SimpleNamespace(attributes=event),
            "from_state": entity if before else None,
        }
    }
    given = {"sentences": SENTENCES, "whole": whole, "confidence": 40}
    for name, value in plan["variables"].items():
        is_input = isinstance(value, Input)
        known[name] = given[value] if is_input else render(value, known)
    conditions = [condition["value_template"] for condition in plan["conditions"]]
    return all(render(one, known) is True for one in conditions)


def test_the_blueprint_uses_every_input_and_no_other() -> None:
    plan = blueprint()
    assert set(inputs({k: v for k, v in plan.items() if k != "blueprint"})) == set(
        plan["blueprint"]["input"]
    )
    assert plan["blueprint"]["domain"] == "automation"


def test_the_blueprint_is_not_triggered_by_an_entity_that_comes_and_goes() -> None:
    (trigger,) = blueprint()["triggers"]
    assert trigger["not_from"] == ["unavailable"]
    assert trigger["not_to"] == ["unavailable", "unknown"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Turn on the light.", True),
        ("please, turn on  the LIGHT now", True),
        ("gute nacht", True),
        ("turn on the lights", False),
        ("overturn on the light", False),
        ("", False),
        ("42", False),
    ],
)
def test_the_blueprint_runs_for_its_sentences(text: str, found: bool) -> None:
    assert runs(text) is found


def test_the_blueprint_can_insist_on_the_sentence_alone() -> None:
    assert runs("Turn on the light", whole=True)
    assert not runs("please turn on the light", whole=True)


def test_the_blueprint_runs_for_nothing_late_twice_or_doubtful() -> None:
    said = SENTENCES[0]
    assert runs(said, before=None)
    assert not runs(said, late=True)
    assert not runs(said, before="2")
    assert not runs(said, confidence=0.2)
    assert not runs(said, confidence=None)


def test_the_card_names_entities_that_the_device_has() -> None:
    text = (CONFIG / "home-assistant" / "dashboard_card.yaml").read_text("utf-8")
    yaml.safe_load(text)
    components = home_assistant.discovery("kitchen", STATE)["components"].values()
    known = {
        f"{c['platform']}.roomscribe_kitchen_{c['name'].lower().replace(' ', '_')}"
        for c in components
    }
    named = set(re.findall(r"\w+\.roomscribe_kitchen_\w+", text))
    assert named
    assert named <= known


@needs_broker
def test_the_access_list_gives_an_appliance_its_topics_and_no_others(tmp_path: Path) -> None:
    users = {"roomscribe_kitchen": "a", "homeassistant": "b"}
    secret = tmp_path / "password"
    secret.write_text("a")
    commands = []
    with (
        Broker(users=users, config=f"acl_file {CONFIG / 'mosquitto' / 'acl'}") as broker,
        Store.open(StoreSettings(path=str(tmp_path / "state"))) as store,
        Subscriber(broker.port, "homeassistant", "b") as house,
    ):
        settings = MqttSettings(
            host=broker.host, port=broker.port, username="roomscribe_kitchen",
            password_file=str(secret), retain_last=True,
        )  # fmt: skip
        asked = {"mute/set": lambda message: commands.append(message.payload)}
        with running(settings, store, subscriptions=asked) as publisher:
            store.append(transcript("allowed"))
            publisher.notify()
            until(lambda: house.payloads("last"))
            house.publish("roomscribe/kitchen/mute/set", b"ON")
            until(lambda: commands == [b"ON"])
            assert publisher.status().reasons == ()
        other = MqttSettings(
            host=broker.host, port=broker.port, username="roomscribe_kitchen",
            password_file=str(secret), client_id="elsewhere",
        )  # fmt: skip
        with running(other, store, node="bedroom") as publisher:
            until(lambda: "does not let us write" in "".join(publisher.status().reasons))
            assert "roomscribe/bedroom/state" in "".join(publisher.status().reasons)
            time.sleep(0.2)
        assert not [m for m in house.messages if "bedroom" in m.topic]
