"""The files for other programs: Home Assistant's blueprints and card, Mosquitto's configuration."""

import ast
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rigs.broker import Broker
from rigs.checkout import ROOT
from rigs.mqtt_client import Subscriber
from rigs.needs import module, needs_broker
from rigs.publishing import STATE, running, transcript
from rigs.waiting import until

from appliance.cli.doctor.mqtt import broker as check_broker
from appliance.cli.doctor.outcome import Surroundings
from appliance.config import ApplianceSettings, MqttSettings, Settings, StoreSettings
from appliance.mqtt import events, home_assistant
from appliance.records import AssistReply, Correction, new_id
from appliance.store.store import Store

yaml = module("yaml", "pyyaml")
jinja2 = module("jinja2")

CONFIG = ROOT / "config"
CARD = CONFIG / "home-assistant" / "dashboard_card.yaml"
SENTENCE, REPLY = "roomscribe_sentence.yaml", "roomscribe_reply.yaml"
QUESTION, MUSIC = "roomscribe_question.yaml", "roomscribe_music.yaml"
LIBRARIES = Path("/usr/lib")
SENTENCES = ["Turn on the light!", "Gute Nacht"]


class Loader(yaml.SafeLoader):  # type: ignore[misc, name-defined]
    """Home Assistant's YAML: !input NAME."""


class Input(str):
    """The name of an input."""


Loader.add_constructor("!input", lambda loader, node: Input(loader.construct_scalar(node)))


def blueprint(name: str = SENTENCE) -> dict[str, Any]:
    text = (CONFIG / "home-assistant" / name).read_text("utf-8")
    return dict(yaml.load(text, Loader))


def inputs(part: Any) -> Iterator[str]:
    """Every input that a part refers to."""
    if isinstance(part, Input):
        yield str(part)
    for inner in part.values() if isinstance(part, dict) else part if type(part) is list else ():
        yield from inputs(inner)


NODES = {"event.kitchen": "kitchen", "event.hall": "hall"}


def render(template: str, known: dict[str, Any]) -> Any:
    """What Home Assistant makes of a template: text, or what its text is in Python."""
    environment = jinja2.Environment()
    environment.filters["state_attr"] = lambda entity, _: NODES[entity]
    environment.filters["regex_replace"] = lambda text, find, by: re.sub(find, by, text)
    text = environment.from_string(template).render(known).strip()
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def heard(
    plan: dict[str, Any], given: dict[str, Any], text: str, before: str | None, attributes: Any
) -> tuple[bool, dict[str, Any]]:
    """Whether a blueprint's automation runs for an event, and its variables."""
    defaults = {name: one.get("default") for name, one in plan["blueprint"]["input"].items()}
    event = {"id": "2", "text": text, "acts": True, "acts_on": text} | attributes
    entity = SimpleNamespace(attributes={"id": before})
    known: dict[str, Any] = {
        "trigger": {
            "platform": "state",
            "to_state": SimpleNamespace(attributes=event),
            "from_state": entity if before else None,
        }
    }
    if event.get("event_type") == "act":
        known["trigger"] = {"platform": "mqtt", "payload_json": event}
    for name, value in plan["variables"].items():
        is_input = isinstance(value, Input)
        known[name] = (defaults | given)[value] if is_input else render(value, known)
    conditions = [condition["value_template"] for condition in plan["conditions"]]
    return all(render(one, known) is True for one in conditions), known


def runs(
    text: str, *, before: str | None = "1", given: dict[str, Any] | None = None, **attributes: Any
) -> bool:
    """True when the blueprint's automation runs for this event."""
    asked = {"sentences": SENTENCES} | (given or {})
    return heard(blueprint(), asked, text, before, attributes)[0]


@pytest.mark.parametrize("name", [SENTENCE, REPLY, QUESTION, MUSIC])
def test_a_blueprint_uses_every_input_and_no_other(name: str) -> None:
    plan = blueprint(name)
    head = plan.pop("blueprint")
    assert set(inputs(plan)) == set(head["input"])
    assert head["domain"] == ("script" if name == QUESTION else "automation")


@pytest.mark.parametrize("name", [SENTENCE, REPLY])
def test_a_blueprint_asks_for_the_release_that_discovery_asks_for(name: str) -> None:
    assert blueprint(name)["blueprint"]["homeassistant"] == {"min_version": "2024.11.0"}


@pytest.mark.parametrize(
    ("payload", "found"),
    [
        ({"answers": [{"phrase_name": "yes", "phrase_confidence": 0.9}], "text": "Yes."}, "yes"),
        ({"answers": [{"phrase_name": "yes", "phrase_confidence": 0.4}], "text": "Yet."}, ""),
        ({"answers": [], "text": None}, ""),
        ({"status": "error", "error": "another answer is expected"}, ""),
    ],
    ids=["sure", "unsure", "nobody", "refused"],
)
def test_a_question_is_answered_only_by_a_sure_sentence(
    payload: dict[str, Any], found: str
) -> None:
    made = next(
        step["variables"] for step in blueprint(QUESTION)["sequence"] if "variables" in step
    )
    known: dict[str, Any] = {"wait": {"trigger": {"payload_json": payload}}}
    environment = jinja2.Environment()
    for name, template in made.items():
        compiled = environment.compile_expression(template[2:-2])
        known[name] = compiled(**known)
    assert known["answer"] == found


def test_the_blueprint_is_not_triggered_by_an_entity_that_comes_and_goes() -> None:
    trigger, act = blueprint()["triggers"]
    assert act == {"trigger": "mqtt", "topic": "{{ prefix }}/+/act"}
    assert trigger["not_from"] == ["unavailable"]
    assert trigger["not_to"] == ["unavailable", "unknown"]


def test_no_sentence_waits_for_another_ones_actions() -> None:
    plan = blueprint()
    assert (plan["mode"], plan["max"]) == ("parallel", 100)
    # automation conditions come before a run; a condition among the actions would be within one
    assert not [step for step in plan["actions"] if "condition" in step]


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
    part = {"whole": False}
    assert runs(text, given=part) is found
    plain = {"sentences": "\n".join(SENTENCES)}
    assert runs(text, given=part | plain) is found, "one in each line of a text"


@pytest.mark.parametrize("one", ["turn on the light", ["turn on the light"], 42])
def test_a_single_sentence_may_be_plain_text(one: object) -> None:
    said = one[0] if isinstance(one, list) else str(one)
    assert runs(said, given={"sentences": one})
    assert not runs("t", given={"sentences": one})


def test_the_blueprint_runs_once_and_only_for_what_may_be_acted_on() -> None:
    said = SENTENCES[0]
    assert runs(said, before=None)
    assert not runs(f"do not {said}")
    assert not runs(said, before="2")
    assert not runs(said, acts=False, acts_on=None)
    assert runs("torn of a height", acts_on=said) and not runs(said, acts_on="stop")


def test_the_blueprint_runs_for_the_name_of_an_expected_sentence() -> None:
    said = "please make it dark in the hall"
    named: dict[str, Any] = {"phrase": said, "phrase_name": "light_off", "slots": {"area": "hall"}}
    for names in (["dim", "light_off"], "light_off dim"):
        given = {"sentences": [], "phrase_names": names}
        assert runs(said, given=given, **named)
        assert heard(blueprint(), given, said, "1", named)[1]["slots"] == {"area": "hall"}
        assert not runs(said, given=given)
        assert not runs(said, given=given, **named | {"phrase_name": "light_on"})
        assert not runs("make it dark", given=given, **named), "it acts on other words"


@pytest.mark.parametrize("rooms", ["event.kitchen", ["event.hall", "event.kitchen"]], ids=str)
def test_with_several_appliances_a_blueprint_runs_for_the_one_that_acts(rooms: object) -> None:
    given = {"room": rooms}
    act: dict[str, Any] = {"event_type": "act", "node": "kitchen", "heard_also": ["hall"]}
    elsewhere = act | {"node": "office"}
    assert not runs(SENTENCES[0], given=given, arbitrated=True)
    assert runs(SENTENCES[0], given=given, **act)
    assert not runs(SENTENCES[0], given=given, **elsewhere)
    assert not runs(SENTENCES[0], given=given, **act, acts=False, acts_on=None)


@pytest.mark.parametrize(
    ("node", "speech", "speaks"),
    [("kitchen", "Turned on the light", True), ("kitchen", "", False), ("hall", "Done", False)],
)
def test_a_blueprint_speaks_the_answers_of_its_room(node: str, speech: str, speaks: bool) -> None:
    plan = blueprint(REPLY)
    (trigger,), (action,) = plan["triggers"], plan["actions"]
    assert trigger == {"trigger": "mqtt", "topic": "{{ prefix }}/+/assist/reply"}
    reply = AssistReply("1", "turn on the light", "action_done", speech=speech)
    found = {"topic": f"roomscribe/{node}/assist/reply", "payload_json": events.assist_reply(reply)}
    known = {
        "trigger": found,
        "room": "device",
        "device_attr": lambda _, name: home_assistant.discovery_message(
            "roomscribe/kitchen/", STATE
        )["device"][name],
    }
    conditions = [render(one["value_template"], known) for one in plan["conditions"]]
    assert (conditions == [True, True]) is speaks
    assert render(action["data"]["message"], known) == speech
    assert (action["action"], action["target"]) == ("tts.speak", {"entity_id": "voice"})
    assert (plan["mode"], action["data"]["media_player_entity_id"]) == ("queued", "player")


class Entities(dict[str, SimpleNamespace]):
    """Home Assistant's `states`."""

    def __missing__(self, name: str) -> None:
        return None

    def __call__(self, name: str, *, with_unit: bool = False) -> str:
        return str(self[name].state) + (" %" if with_unit else "")


NOW = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)


def card(
    state: str,
    node: str = "",
    transcript: str = "event.roomscribe_kitchen_transcript",
    last: dict[str, Any] | None = None,
    reply: dict[str, Any] | None = None,
    **event: Any,
) -> str:
    """What the card shows, a line each, for a transcript entity in this state, and a Last text with
    the attributes `last`.

    There are also a Roomscribe in the attic, an event entity of another maker and other entities.
    """
    content = yaml.safe_load(CARD.read_text("utf-8"))["content"]
    made_by = {
        "event.doorbell": ("Somebody", None),
        "event.roomscribe_attic_transcript": ("Roomscribe", "attic"),
        transcript: ("Roomscribe", "kitchen"),
        "event.roomscribe_kitchen_correction": ("Roomscribe", "kitchen"),
        "event.roomscribe_kitchen_assist": ("Roomscribe", "kitchen"),
        "sensor.roomscribe_kitchen_last_text": ("Roomscribe", "kitchen"),
        "sensor.roomscribe_kitchen_confidence": ("Roomscribe", "kitchen"),
        "switch.roomscribe_kitchen_mute": ("Roomscribe", "kitchen"),
    }
    entities = Entities({name: SimpleNamespace(state="off", attributes={}) for name in made_by})
    entities[transcript] = SimpleNamespace(state=state, attributes=event)
    attributes: dict[str, dict[str, Any]] = {
        "sensor.roomscribe_kitchen_last_text": last or {},
        "event.roomscribe_attic_transcript": {"event_types": ["transcript"]},
        transcript: {"event_types": ["transcript"]},
        "event.roomscribe_kitchen_correction": {"event_types": ["correction"]},
        "event.roomscribe_kitchen_assist": {"event_types": ["failed"], **(reply or {})},
        "sensor.roomscribe_kitchen_confidence": {"unit_of_measurement": "%"},
    }

    def state_attribute(entity: str, name: str) -> Any:
        if name == "friendly_name":
            return f"Roomscribe kitchen {entity}"
        return attributes.get(entity, {}).get(name)

    def attribute(entity: str, name: str) -> str | None:
        if name == "name":
            return "Roomscribe kitchen"
        return made_by[entity][("manufacturer", "serial_number").index(name)]

    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    environment.tests["match"] = lambda text, find: re.match(find, text) is not None
    functions = {
        "states": entities,
        "state_attr": state_attribute,
        "state_translated": lambda name: entities[name].state.capitalize(),
        "has_value": lambda name: entities[name].state != "unavailable",
        "integration_entities": lambda name: list(entities) if name == "mqtt" else [],
        "device_attr": attribute,
        "device_id": lambda name: made_by[name][1] if name in entities else None,
        "device_entities": lambda device: [
            name for name in entities if device and made_by[name][1] == device
        ],
        "as_datetime": datetime.fromisoformat,
        "now": lambda: NOW,
        "relative_time": lambda moment: f"{(NOW - moment).total_seconds():.0f} s",
    }
    shown = environment.from_string(content.replace("node = ''", f"node = '{node}'"))
    return "\n".join(line for line in shown.render(functions).strip().splitlines() if line)


SAID: dict[str, Any] = {
    "id": "1",
    "text": "stop",
    "end": "2026-11-22T08:55:00.000Z",
    "acts": True,
    "acts_on": "stop",
}


def test_the_card_shows_the_sentence_and_its_age() -> None:
    others = "- sensor.roomscribe_kitchen_confidence: off %\n- switch.roomscribe_kitchen_mute: Off"
    assert card("2026-11-22T08:59:59", "kitchen", **SAID) == f"**stop**\n300 s ago\n{others}"
    ahead = card("x", "kitchen", **SAID | {"end": "2026-11-22T09:00:03.000Z"})
    assert "0 s ago" in ahead, "its clock is ahead"


@pytest.mark.parametrize(
    "transcript",
    ["event.kitchen_roomscribe_kitchen_transcript", "event.what_is_said"],
    ids=["with its area", "renamed"],
)
def test_the_card_finds_its_entity_whatever_that_is_called(transcript: str) -> None:
    assert card("x", "kitchen", transcript, **SAID).startswith("**stop**")


def test_the_card_needs_no_node_and_takes_only_the_one_it_is_given() -> None:
    assert card("x", "", "event.a", **SAID).startswith("**stop**")
    assert card("x", "cellar", **SAID) == "There is no Roomscribe cellar among the devices of MQTT."
    assert card("x", "attic", **SAID).startswith("Nothing was heard yet.")


def test_the_card_shows_a_correction_of_this_sentence_and_of_no_other() -> None:
    assert card("x", "kitchen", last={"id": "1", "text": "step"}, **SAID).startswith("**step**\n")
    assert card("x", "kitchen", last={"id": "0", "text": "step"}, **SAID).startswith("**stop**\n")


def test_the_card_says_what_acts_or_why_nothing_does() -> None:
    shown = card("x", "kitchen", **SAID | {"acts_on": "stop the music"})
    assert shown.startswith('**stop**\n300 s ago, acts as "stop the music"\n')
    shown = card("x", "kitchen", **SAID | {"acts": False, "acts_reason": "repetition"})
    assert shown.startswith("*stop*\n300 s ago, nothing acts on it (repetition)\n")


def test_the_card_says_what_assist_answered() -> None:
    reply = {"transcript_id": "1", "event_type": "action_done", "answer": "Stopped"}
    shown = card("x", "kitchen", reply=reply, **SAID)
    assert shown.startswith("**stop**\n300 s ago, Assist: Stopped\n")
    reply |= {"event_type": "failed", "answer": "", "reason": "late"}
    assert card("x", "kitchen", reply=reply, **SAID).startswith("*stop*\n300 s ago, Assist: late\n")
    assert "Assist" not in card("x", "kitchen", reply=reply | {"transcript_id": "0"}, **SAID)


def test_the_card_distinguishes_offline_from_nothing_heard() -> None:
    assert card("unavailable", "kitchen").startswith("The appliance is offline.")
    assert card("unknown", "kitchen").startswith("Nothing was heard yet.")


def test_the_card_looks_for_what_the_announcement_says() -> None:
    message = home_assistant.discovery_message("roomscribe/kitchen/", STATE)
    device = message["device"]
    assert (device["manufacturer"], device["serial_number"]) == ("Roomscribe", "kitchen")
    found = [one["event_types"] for one in message["components"].values() if "event_types" in one]
    assert found[:2] == [["transcript"], ["correction"]], "the card takes the first"


@needs_broker
@pytest.mark.parametrize("prefix", ["roomscribe", "homes/flat-2"])
def test_the_access_list_gives_an_appliance_its_topics_and_no_others(
    prefix: str, tmp_path: Path
) -> None:
    users = {"roomscribe_kitchen": "a", "homeassistant": "b"}
    secret, acl = tmp_path / "password", tmp_path / "acl"
    secret.write_text("a")
    shipped = (CONFIG / "mosquitto" / "acl").read_text("utf-8")
    acl.write_text(shipped.replace(" roomscribe/", f" {prefix}/"))
    commands = []
    with (
        Broker(users=users, config=f"acl_file {acl}") as broker,
        Store.open(StoreSettings(path=str(tmp_path / "state"))) as store,
        Subscriber(
            broker.port, "homeassistant", "b", topics=(f"{prefix}/#", "homeassistant/#")
        ) as house,
    ):

        def payloads(name: str) -> list[bytes]:
            topic = f"{prefix}/kitchen/{name}"
            return [bytes(one.payload) for one in list(house.messages) if one.topic == topic]

        settings = MqttSettings(
            host=broker.host, port=broker.port, username="roomscribe_kitchen",
            password_file=str(secret), prefix=prefix,
        )  # fmt: skip
        asked = {"mute/set": lambda message: commands.append(message.payload)}
        with running(settings, store, subscriptions=asked) as publisher:
            store.append(transcript("allowed"))
            publisher.on_change()
            until(lambda: payloads("last"))
            publisher.live.on_correction(Correction(new_id(), "allowed", datetime.now(UTC)))
            until(lambda: payloads("correction"))
            house.publish(f"{prefix}/kitchen/mute/set", b"ON")
            until(lambda: commands == [b"ON"])
            assert publisher.reasons() == ()
        until(lambda: payloads("availability")[-1:] == [b"offline"])
        announced = [one for one in house.messages if one.topic.startswith("homeassistant/")]
        named = re.findall(rb'topic": "([^"]*)"', announced[0].payload)
        assert {one.rpartition(b"/kitchen/")[0].decode() for one in named} == {prefix}
        here = Settings(appliance=ApplianceSettings(node="kitchen"), mqtt=settings)
        assert check_broker(Surroundings(here)).status == "ok"
        with running(settings, store, node="bedroom") as publisher:
            until(lambda: f"{prefix}/bedroom/state" in "".join(publisher.reasons()))
            assert "does not let us write" in "".join(publisher.reasons())
            time.sleep(0.2)
        assert not [m for m in house.messages if "bedroom" in m.topic]


def house(form: str, folder: Path) -> str:
    """The house's configuration for Mosquitto with the files of `folder`, without its listener."""
    text = (CONFIG / "mosquitto" / f"house-{form}.conf").read_text("utf-8")
    plugins = {
        found.name: str(found) for found in LIBRARIES.glob("*/mosquitto/mosquitto_*_file.so")
    }
    lines = []
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == "global_plugin":
            value = plugins.get(Path(value).name) or pytest.skip(
                "not installed: mosquitto 2.1 (Debian trixie has 2.0)"
            )
        if key != "listener":
            lines.append(f"{key} {value}".replace("/etc/mosquitto", str(folder)))
    return "\n".join(lines)


def test_the_plugins_of_mosquitto_2_1_are_in_debians_folder() -> None:
    """Mosquitto 2.1.2-3 of Debian has them in /usr/lib/<architecture>/mosquitto/."""
    text = (CONFIG / "mosquitto" / "house-2.1.conf").read_text("utf-8")
    named = re.findall(r"^global_plugin (.*)$", text, re.MULTILINE)
    folder = "/usr/lib/aarch64-linux-gnu/mosquitto"
    assert named == [f"{folder}/mosquitto_{one}_file.so" for one in ("password", "acl")]


@needs_broker
@pytest.mark.parametrize("form", ["2.0", "2.1"])
def test_the_example_broker_admits_known_users_and_limits_their_topics(
    form: str, tmp_path: Path
) -> None:
    """2.1 is tried where it is installed; its form has the same files and refuses the same."""
    shutil.copy(CONFIG / "mosquitto" / "acl", tmp_path)
    (tmp_path / "secret").write_text("a")
    config = house(form, tmp_path)
    made = Broker(users={"roomscribe_kitchen": "a"}, start=False)
    shutil.move(made.folder / "passwords", tmp_path)
    shutil.rmtree(made.folder)
    with Broker(config=config) as broker, Store.open(StoreSettings(str(tmp_path / "s"))) as store:
        with running(broker.settings, store) as publisher:
            until(lambda: "refuses a client without" in "".join(publisher.reasons()))
        known = replace(
            broker.settings, username="roomscribe_kitchen", password_file=str(tmp_path / "secret")
        )
        with running(known, store) as publisher:
            until(lambda: publisher.connection.is_connected)
            time.sleep(0.3)
            assert publisher.reasons() == ()
        with running(known, store, node="attic") as publisher:
            until(lambda: "does not let us write" in "".join(publisher.reasons()))


def test_both_forms_of_the_example_configuration_are_equal() -> None:
    forms = {}
    for form in ("2.0", "2.1"):
        text = (CONFIG / "mosquitto" / f"house-{form}.conf").read_text("utf-8")
        keys = dict(line.split(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        keys.pop("global_plugin", None)
        forms[form] = {key.removeprefix("plugin_opt_"): value for key, value in keys.items()}
    assert forms["2.0"] == forms["2.1"]
    assert forms["2.0"]["allow_anonymous"] == "false"
