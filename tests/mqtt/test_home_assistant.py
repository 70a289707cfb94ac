"""Home Assistant: the discovery message, and a house that comes late, goes, and misses nothing."""

import json
import re
import socket
import time
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from rigs.broker import Broker
from rigs.checkout import GOLDEN
from rigs.home_assistant import DISCOVERY, STATUS, HomeAssistant
from rigs.mqtt_client import Subscriber, publish_once
from rigs.needs import module, needs_broker
from rigs.publishing import STATE, running, transcript
from rigs.waiting import until

from appliance import HOMEPAGE
from appliance.config import HomeAssistantSettings, MqttSettings, Settings, WebSettings, page_url
from appliance.mqtt import events, home_assistant
from appliance.mqtt.client import ReceivedMessage
from appliance.mqtt.connection import Delays
from appliance.mqtt.presence import HomeAssistantPresence
from appliance.mqtt.publisher import Publisher
from appliance.records import ApplianceStats, AssistReply, Correction
from appliance.store.store import Store

EXPECTED = GOLDEN / "home_assistant_discovery.json"
PI = replace(STATE, machine="Raspberry Pi 5", encoder="hailo8")

SOON = Delays(announce_s=(0.2, 0.3))
"""The announcement after a birth message comes almost at once."""


def settings(broker: Broker, **changes: Any) -> MqttSettings:
    return replace(broker.settings, **changes)


def is_connected(publisher: Publisher) -> bool:
    return publisher.connection.is_connected


def say_all(store: Store, publisher: Publisher, *texts: str) -> list[str]:
    """Stores transcripts, returns their ids."""
    ids = []
    for text in texts:
        ids.append(store.append(transcript(text)).transcript.id)
        publisher.on_change()
    return ids


# the message


def test_the_discovery_message_is_the_golden_one() -> None:
    assert home_assistant.discovery_message("roomscribe/kitchen/", PI) == json.loads(
        EXPECTED.read_text("utf-8").replace("HOMEPAGE", HOMEPAGE)
    )


def test_every_entity_has_the_same_id_with_and_without_an_area() -> None:
    """Without `default_entity_id` Home Assistant 2026.11 puts the area of the device into them."""
    plain, roomy = (
        home_assistant.discovery_message("roomscribe/kitchen/", PI, area=area)["components"]
        for area in ("", "Kitchen")
    )
    assert plain == roomy and all("default_entity_id" in one for one in plain.values())


@pytest.mark.parametrize(
    ("encoder", "soc_c", "there"),
    [
        ("cpu", None, set()),
        ("fleet", None, set()),
        ("cpu", 51.0, {"soc"}),
        ("hailo10h", None, {"npu"}),
        ("hailo8l", 51.0, {"npu", "soc"}),
    ],
)
def test_only_temperatures_that_the_machine_has_get_a_sensor(
    encoder: str, soc_c: float | None, there: set[str]
) -> None:
    state = replace(STATE, encoder=encoder)
    found = home_assistant.available_temperatures(
        state, ApplianceStats({}, 1.0, soc_temperature_c=soc_c)
    )
    assert found == there
    components = home_assistant.discovery_message("roomscribe/kitchen/", state, temperatures=found)[
        "components"
    ]
    for one in home_assistant.TEMPERATURES:
        sensor = components[f"{one}_temperature"]
        assert (sensor == {"platform": "sensor"}) == (one not in there), "removed where absent"


@needs_broker
def test_a_hailo_that_comes_later_is_announced_with_its_temperature_and_stays(store: Store) -> None:
    state = replace(STATE, encoder="cpu")

    def sensors(heard: Subscriber) -> list[bool]:
        """Whether each announcement has the NPU's temperature."""
        found = [json.loads(one.payload)["components"] for one in heard.messages]
        return [len(components["npu_temperature"]) > 1 for components in found]

    with (
        Broker() as broker,
        Subscriber(broker.port, topics=("homeassistant/device/#",)) as heard,
        running(settings(broker), store, state=lambda: state, delays=SOON) as publisher,
    ):
        until(lambda: sensors(heard) == [False])
        state = replace(STATE, encoder="hailo8")
        publisher.on_change()
        until(lambda: sensors(heard) == [False, True])
        state = replace(STATE, encoder="cpu")
        publish_once(broker.port, STATUS, b"online")
        until(lambda: sensors(heard) == [False, True, True])


@needs_broker
def test_the_birth_message_is_reported_but_no_will_and_no_retained_one(store: Store) -> None:
    births: list[float] = []
    with Broker() as broker:
        publish_once(broker.port, STATUS, b"online", retain=True)
        told = partial(births.append, 1.0)
        with running(settings(broker), store, on_birth=told, delays=SOON) as publisher:
            until(partial(is_connected, publisher))
            time.sleep(0.3)
            publish_once(broker.port, STATUS, b"offline")
            time.sleep(0.3)
            assert births == []
            publish_once(broker.port, STATUS, b"online")
            until(lambda: births == [1.0])


@pytest.mark.parametrize(
    ("web", "address"),
    [
        (WebSettings(), ""),
        (WebSettings(enabled=True), ""),
        (WebSettings(enabled=True, listen="::1"), ""),
        (WebSettings(enabled=True, listen="/run/page.sock"), ""),
        (WebSettings(enabled=True, url="https://page.example/"), "https://page.example/"),
        (WebSettings(url="https://page.example/"), ""),
        (WebSettings(enabled=True, listen="0.0.0.0", ingress="172.30.32.2"), ""),
        (WebSettings(enabled=True, listen="fd00::7"), "http://[fd00::7]:8099/"),
        (
            WebSettings(enabled=True, listen="0.0.0.0"),
            f"http://{socket.gethostname().partition('.')[0]}.local:8099/",
        ),
    ],
)
def test_there_is_no_link_to_a_page_that_others_cannot_open(web: WebSettings, address: str) -> None:
    assert page_url(web) == address


@needs_broker
def test_the_device_has_the_page_and_the_room_that_are_configured(store: Store) -> None:
    plain = home_assistant.discovery_message("roomscribe/kuche/", PI)["device"]
    web = WebSettings(enabled=True, listen="192.168.1.7", port=8100)
    more = {"configuration_url": "http://192.168.1.7:8100/", "suggested_area": "Küche"}
    device = home_assistant.discovery_message(
        "roomscribe/kuche/", PI, area="Küche", page=page_url(web)
    )
    assert device["device"] == plain | more | {"name": "Roomscribe Küche"}
    others = Settings(homeassistant=HomeAssistantSettings(area="Küche"), web=web)
    with (
        Broker() as broker,
        Subscriber(broker.port, topics=("homeassistant/#",)) as heard,
        running(settings(broker), store, others=others),
    ):
        until(lambda: heard.messages)
        assert more.items() <= json.loads(heard.messages[0].payload)["device"].items()


def test_the_event_of_assist_tells_what_became_of_a_command() -> None:
    message = home_assistant.discovery_message("roomscribe/kitchen/", STATE)
    component = message["components"]["assist"]
    template = module("jinja2").Template(component["value_template"])
    reply = AssistReply("1", "stop", "failed", speech="Sorry.", error="late")
    found = json.loads(template.render(value_json=events.assist_reply(reply)))
    assert found.pop("event_type") in component["event_types"]
    assert found == {"command": "stop", "answer": "Sorry.", "reason": "late", "transcript_id": "1"}
    without = home_assistant.discovery_message("roomscribe/kitchen/", STATE, assist=False)
    assert without["components"]["assist"] == {"platform": "event"}


def test_the_device_is_called_after_what_it_runs_on() -> None:
    model = home_assistant.device_model
    assert model(PI) == "Raspberry Pi 5 + Hailo-8 + Whisper tiny.en"
    assert model(replace(PI, encoder="cpu")) == "Raspberry Pi 5 + Whisper tiny.en"
    assert model(replace(STATE, encoder="cpu")) == "Computer + Whisper tiny.en"
    assert model(replace(STATE, encoder="fleet")) == "Computer"


def test_the_templates_name_fields_that_the_events_have() -> None:
    message = json.dumps(home_assistant.discovery_message("roomscribe/kitchen/", STATE))
    muted = replace(STATE, muted=True, muted_until=datetime.now(UTC))
    told = set(events.state(muted, 0)) | set(events.stats(ApplianceStats({}, 1.0), []))
    fields = set(re.findall(r"value_json\.(\w+)", message))
    heard = {"text", "correction", "id", "late", "language", "confidence", "latency_ms"}
    told |= set(events.assist_reply(AssistReply("1", "stop", "failed")))
    assert fields - heard <= told
    assert heard <= fields


# presence, without a broker


def status(payload: bytes, retained: bool = False) -> ReceivedMessage:
    return ReceivedMessage(STATUS, payload, retained)


def test_a_home_assistant_that_was_never_online_is_not_waited_for() -> None:
    quiet = HomeAssistantPresence()
    quiet.on_connected(0.0, discovery=1)
    quiet.on_puback(0.1, 1, subscribed=False)
    assert not quiet.is_holding(0.2)


def test_transcripts_wait_between_offline_and_the_announcement_after_online() -> None:
    watch = HomeAssistantPresence()
    watch.on_status(10.0, status(b"offline"))
    assert watch.is_holding(300.0)
    watch.on_status(300.0, status(b"online"))
    assert 301.0 <= watch.announce_s <= 310.0
    assert watch.is_holding(watch.announce_s - 0.1)
    watch.on_announced()
    assert not watch.is_holding(300.1)


def test_a_home_assistant_that_stays_offline_is_not_waited_for_forever() -> None:
    watch = HomeAssistantPresence(Delays(hold_s=60))
    watch.on_status(10.0, status(b"offline"))
    assert (watch.is_holding(69.9), watch.is_holding(70.1)) == (True, False)


def test_after_a_reconnection_home_assistant_has_to_say_that_it_is_online() -> None:
    watch = HomeAssistantPresence()
    watch.on_connected(0.0, discovery=1)
    watch.on_puback(0.1, 1, subscribed=True)
    watch.on_connected(100.0, discovery=2)
    watch.on_puback(100.1, 2, subscribed=True)
    assert (watch.is_holding(104.0), watch.is_holding(106.0)) == (True, False)
    assert "offline" not in watch.reason
    watch.on_connected(200.0, discovery=3)
    watch.on_puback(200.1, 3, subscribed=False)
    assert watch.is_holding(700.0), "nobody subscribes to announcements: it is known to be away"
    assert "offline" in watch.reason


def test_a_home_assistant_that_returned_before_us_does_not_count_as_offline() -> None:
    watch = HomeAssistantPresence()
    watch.on_status(10.0, status(b"offline"))
    watch.on_connected(12.0, discovery=1)
    watch.on_puback(12.1, 1, subscribed=True)
    assert (watch.is_holding(16.0), watch.is_holding(18.0)) == (True, False)


def test_without_news_of_subscribers_the_birth_message_is_waited_for() -> None:
    watch = HomeAssistantPresence()
    watch.on_status(10.0, status(b"online"))
    watch.on_connected(100.0, discovery=1)
    assert (watch.is_holding(119.0), watch.is_holding(121.0)) == (True, False)


def test_home_assistant_may_miss_what_was_acknowledged_shortly_before_it_left() -> None:
    watch = HomeAssistantPresence()
    watch.on_connected(10.0, discovery=1)
    watch.on_status(100.0, status(b"offline"))
    assert watch.due_s(100.0) == 101.0
    assert (watch.pop_unheard_s(100.9), watch.pop_unheard_s(101.0)) == (None, 70.0)
    watch.on_status(101.1, status(b"offline"))
    assert watch.pop_unheard_s(103.0) is None, "said twice, gone once"
    watch.on_status(130.0, status(b"online"))
    assert watch.pop_unheard_s(140.0) is None
    watch.on_status(500.0, status(b"offline", retained=True))
    assert watch.pop_unheard_s(510.0) is None


def test_a_will_that_the_broker_tells_while_it_goes_down_itself_is_no_farewell() -> None:
    watch = HomeAssistantPresence()
    watch.on_status(100.0, status(b"offline"))
    watch.on_connected(105.0, discovery=1)
    watch.on_puback(105.1, 1, subscribed=True)
    assert watch.pop_unheard_s(110.0) is None


def test_so_may_what_was_acknowledged_before_a_birth_that_no_farewell_announced() -> None:
    watch = HomeAssistantPresence()
    watch.on_status(5.0, status(b"online"))
    assert watch.pop_unheard_s(10.0) == -25.0, "it may have restarted together with us"
    watch.on_connected(100.0, discovery=1)
    watch.on_puback(100.1, 1, subscribed=True)
    watch.on_status(110.0, status(b"online"))
    assert watch.pop_unheard_s(110.0) == 100.0
    watch.on_status(190.0, status(b"online"))
    assert watch.pop_unheard_s(190.0) == 160.0


def test_reconnections_do_not_prolong_the_wait_for_home_assistant() -> None:
    watch = HomeAssistantPresence(Delays(hold_s=60))
    watch.on_status(10.0, status(b"offline"))
    for moment in (20.0, 40.0, 49.0):
        watch.on_connected(moment, discovery=1)
        watch.on_puback(moment, 1, subscribed=False)
    assert (watch.is_holding(69.0), watch.is_holding(70.5)) == (True, False)


@pytest.mark.parametrize(
    "payload", [b"", b"ONLINE", b"offline ", b"\xff\xfe", b"{}", b"x" * 60000], ids=range(6)
)
def test_other_words_on_the_status_topic_mean_nothing(payload: bytes) -> None:
    watch = HomeAssistantPresence()
    watch.on_status(10.0, status(payload))
    watch.on_status(10.0, status(b"offline", retained=True))
    assert not watch.is_holding(10.1)
    assert watch.announce_s == float("inf")


# with a real broker


@needs_broker
def test_all_topics_are_published_in_order_after_a_connection(store: Store) -> None:
    store.append(transcript("from before"))
    told = "homeassistant/#", "roomscribe/#"
    with Broker() as broker, Subscriber(broker.port, topics=told) as everybody:
        stats = ApplianceStats({"transcripts": 1, "discarded_no_speech": 2}, 9.6, 51.23)
        with running(settings(broker), store, stats=lambda: stats):
            until(lambda: everybody.payloads("last"))
        order = list(dict.fromkeys(m.topic for m in everybody.messages))
        below = "roomscribe/kitchen/"
        first = "availability", "", "state", "mute", "microphone", "stats"
        names = (*first, "speech", "transcript", "last")
        assert order == [below + name if name else DISCOVERY for name in names]
        found = json.loads(everybody.payloads("stats")[0])
        assert found["discarded"] == {"no_speech": 2}
        assert (found["transcripts"], found["npu_temperature_c"]) == (1, 51.2)
        assert (found["latency_ms_p50"], found["soc_temperature_c"]) == (None, None)
        kept = {m.topic.removeprefix(below): m.qos for m in everybody.messages}
        assert (kept["stats"], kept["speech"], kept["mute"]) == (0, 0, 1)
    with Broker() as broker, Subscriber(broker.port, topics=told) as everybody:
        never = Settings(homeassistant=HomeAssistantSettings(enabled=False))
        with running(settings(broker), store, others=never):
            until(lambda: everybody.payloads("state"))
            time.sleep(0.3)
        assert not any(m.topic.startswith("homeassistant") for m in everybody.messages)


@needs_broker
def test_a_home_assistant_that_starts_later_gets_every_entity_and_value(store: Store) -> None:
    stats = ApplianceStats({}, 1.0, soc_temperature_c=50.0)
    told: dict[str, Any] = {"stats": lambda: stats, "delays": SOON}
    with Broker() as broker, running(settings(broker), store, **told) as p:
        until(lambda: p.connection.is_connected)
        with HomeAssistant(broker.port, birth_after_s=1.0) as house:
            until(lambda: house.discoveries == 2)
            until(lambda: "roomscribe/kitchen/stats" in house.values)
            until(lambda: "roomscribe/kitchen/speech" in house.values)
            assert set(house.components) == {
                *("transcript", "text", "speech", "microphone", "mute"),
                *("confidence", "latency", "soc_temperature", "outbox", "status"),
                *("mute_30_minutes", "mute_until_tomorrow", "muted_until"),
                *("correction", "assist", "problem"),
            }
            assert all(house.is_available(name) for name in house.components)
            topics = {c["state_topic"] for c in house.components.values() if "state_topic" in c}
            below = "roomscribe/kitchen/"
            wanted = {f"{below}{name}" for name in ("transcript", "last", "correction")}
            wanted |= {f"{below}assist/reply"}
            assert topics - set(house.values) == wanted
            ids = say_all(store, p, "turn on the light")
            until(lambda: house.fired == ids)


@needs_broker
def test_transcripts_during_its_shutdown_are_resent_when_it_returns(store: Store) -> None:
    with (
        Broker() as broker,
        running(settings(broker), store, delays=SOON) as publisher,
        HomeAssistant(broker.port) as house,
        Subscriber(broker.port) as everybody,
    ):
        until(lambda: house.discoveries >= 2)
        ids = say_all(store, publisher, "heard")
        until(lambda: len(house.events) == 1)
        house.stop_reading()
        ids += say_all(store, publisher, "to deaf ears", "and again")
        until(lambda: store.depth() == 0)
        house.leave()
        until(lambda: store.depth() == 3)
        ids += say_all(store, publisher, "while it is away")
        publisher.live.on_reply(AssistReply("1", "stop", "action_done"))
        until(publisher.reasons)
        assert not everybody.payloads("assist/reply")
        house.come_back()
        until(lambda: everybody.payloads("assist/reply"))
        until(lambda: len(house.events) == 5)
        assert [event["id"] for event in house.events] == [ids[0], *ids]
        assert [event["late"] for event in house.events[:4]] == [False, True, True, True]
        assert set(house.fired) <= {ids[0], ids[3]}
        until(lambda: store.depth() == 0)
        until(lambda: len(everybody.events()) >= 3 + len(ids))
        assert [event["id"] for event in everybody.events()] == [*ids[:3], *ids]
        until(lambda: publisher.reasons() == ())
        say_all(store, publisher, "as ever")
        until(lambda: house.events[5:])
        assert not house.events[5]["late"]


def test_a_problem_is_on_while_something_is_broken_not_while_texts_wait() -> None:
    component = home_assistant.discovery_message("roomscribe/kitchen/", PI)["components"]["problem"]
    state, reasons = (
        module("jinja2").Template(component[key])
        for key in ("value_template", "json_attributes_template")
    )
    broken = replace(PI, status="degraded", reasons=("no microphone",))
    for shown, problem in (
        (events.state(PI, 0), "OFF"),
        (events.state(PI, 3, (), ("Home Assistant is offline",)), "OFF"),
        (events.state(broken, 0), "ON"),
        (events.state(replace(broken, status="muted"), 0), "ON"),
        (events.state(replace(PI, status="muted"), 0), "OFF"),
        (events.state(PI, 0, ("the disk is full",)), "ON"),
    ):
        assert state.render(value_json=shown) == problem
    assert json.loads(reasons.render(value_json=events.state(broken, 0))) == {
        "reasons": ["no microphone"]
    }


def last_text(message: bytes) -> tuple[str, dict[str, Any]]:
    """What Home Assistant makes of a message on `last`: state and attributes of Last text."""
    component = home_assistant.discovery_message("roomscribe/kitchen/", PI)["components"]["text"]
    assert component["state_topic"] == component["json_attributes_topic"]
    assert component["state_topic"] == "roomscribe/kitchen/last"
    state, attributes = (
        module("jinja2").Template(component[key]).render(value_json=json.loads(message))
        for key in ("value_template", "json_attributes_template")
    )
    return state, json.loads(attributes)


def has_corrections(heard: Subscriber, count: int) -> bool:
    return len(heard.payloads("correction")) == count


@needs_broker
def test_a_correction_is_an_event_and_corrects_the_last_text_alone(store: Store) -> None:
    with (
        Broker() as broker,
        Subscriber(broker.port) as heard,
        running(settings(broker), store) as publisher,
    ):
        older, newest = say_all(store, publisher, "stop", "turn on the lied")
        until(lambda: len(heard.payloads("last")) == 2)
        corrections = (older, "stop it"), (newest, "turn on the light"), (newest, None)
        for count, (id, text) in enumerate(corrections, 1):
            store.correct(id, text)
            publisher.live.on_correction(Correction(id, text, datetime.now(UTC)))
            until(partial(has_corrections, heard, count))
        until(lambda: len(heard.payloads("last")) == 4)
        _, *shown = map(last_text, heard.payloads("last"))
        assert [state for state, _ in shown] == [
            "turn on the lied", "turn on the light", "turn on the lied",
        ]  # fmt: skip
        assert [one["corrected"] for _, one in shown] == [False, True, False]
        assert {one["id"] for _, one in shown} == {newest}
        again = json.loads(heard.payloads("last")[-2])
        assert again["late"], "nobody acts on a correction"
        assert not again["acts"]
        assert len(heard.events()) == 2, "no sentence is published twice"
