"""The names of the home: which of them, in which order, and what no person says."""

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from rigs.home_websocket import TOKEN, Hub

from appliance.homeassistant import names as naming
from appliance.homeassistant.connection import HomeAssistantUrl, WebsocketLink, connect
from appliance.homeassistant.names import ENTITIES_AT_MOST, NAMES_AT_MOST, NAMES_FILE, Names, clean
from appliance.records import Name, Tier


def names_of(hub: Hub) -> Names:
    place = HomeAssistantUrl.parse(hub.url)

    async def work(link: WebsocketLink) -> Names:
        devices: list[dict[str, Any]] = (await link.send_command("config/device_registry/list"))[1]
        return await naming.fetch(link, devices)

    async def visit() -> Names:
        async with connect(place, place.resolve(), TOKEN) as link:
            return await link.during(work(link))

    return asyncio.run(visit())


def test_names_that_are_said_often_come_first(hub: Hub) -> None:
    found = names_of(hub)
    assert found.names == (
        ("Kitchen", Tier.USED_PLACE),
        ("Ground floor", Tier.USED_PLACE),
        ("Ceiling lamp", Tier.CALLED),
        ("Attic", Tier.PLACE),
        ("loft", Tier.PLACE),
        ("Heat", Tier.OTHER),
        ("big one", Tier.ALIAS),
    )
    assert (found.entities, found.left_out, found.registry) == (2, 0, False)


def test_locks_doors_alarms_and_valves_are_guarded_by_each_of_their_names(hub: Hub) -> None:
    hub.exposed = dict.fromkeys(("lock.a", "valve.b", "cover.c", "cover.d"), True)
    hub.entries |= {
        "lock.a": {"name": "Front door", "aliases": ["main entrance"]},
        "valve.b": {"name": "Main valve"},
        "cover.c": {"name": "Big gate", "original_device_class": "gate"},
        "cover.d": {"name": "Blinds", "device_class": "blind", "original_device_class": "gate"},
    }
    guarded = {name for name, tier in names_of(hub).names if tier is Tier.GUARDED}
    assert guarded == {"Front door", "main entrance", "Main valve", "Big gate"}


def test_what_is_not_exposed_or_is_disabled_is_left_out(hub: Hub) -> None:
    hub.exposed = {"light.kitchen": False, "sensor.heat": True, "not an entity": True}
    hub.entries["sensor.heat"]["disabled_by"] = "user"
    assert [tier for _, tier in names_of(hub).names] == [Tier.PLACE] * 4


def test_the_appliances_own_entities_are_no_names_of_the_home(hub: Hub) -> None:
    own = {"platform": "mqtt", "unique_id": "roomscribe_kitchen_mute"}
    hub.exposed["switch.roomscribe_kitchen_mute"] = True
    hub.entries["switch.roomscribe_kitchen_mute"] = {"name": "Roomscribe mute", **own}
    assert "Roomscribe mute" not in [name for name, _ in names_of(hub).names]
    hub.entries["switch.roomscribe_kitchen_mute"]["platform"] = "template"
    assert "Roomscribe mute" in [name for name, _ in names_of(hub).names]


def test_an_entity_without_state_or_entry_has_the_name_that_is_left(hub: Hub) -> None:
    hub.shown.clear()
    hub.entries["light.kitchen"]["name"] = "Mine"
    hub.exposed["light.yaml"] = True
    found = names_of(hub)
    assert ("Mine", Tier.CALLED) in found.names
    assert found.entities == 3


def test_a_user_who_is_no_administrator_gets_what_the_registry_says(hub: Hub) -> None:
    every = names_of(hub).names
    hub.admin = False
    found = names_of(hub)
    assert (found.names, found.registry) == (every, True)


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("homeassistant/expose_entity/list", '{"exposed_entities": [1, 2]}'),
        ("homeassistant/expose_entity/list", '{"exposed_entities": {"light.kitchen": 7}}'),
        ("config/entity_registry/get_entries", '{"light.kitchen": [], "sensor.heat": 1}'),
        ("config/area_registry/list", '[null, 7, {"area_id": 7, "name": [], "aliases": 7}]'),
        ("config/area_registry/list", '[{"area_id": "kitchen", "aliases": [null, 7, {}]}]'),
        ("config/floor_registry/list", '"floors"'),
        ("config/device_registry/list", '[{"id": [], "area_id": {}}]'),
    ],
)
def test_answers_of_another_form_give_the_other_names(hub: Hub, command: str, answer: str) -> None:
    hub.raw[command] = f'{{"id": $ID, "type": "result", "success": true, "result": {answer}}}'
    if command == "config/device_registry/list":
        answer = hub.raw.pop(command)
        hub.devices = json.loads('[{"id": [], "area_id": {}}]')
    found = names_of(hub)
    assert found.names


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Kitchen", "Kitchen"),
        ("  Anna's \t  room\n", "Anna's room"),
        ("Küche", "Küche"),
        ("Ku\u0308che", "Küche"),
        ("💡 Lamp ✨", "Lamp"),
        ("❤️", ""),
        ("", ""),
        ("---", ""),
        ("\x1b[31mred\x07", "31mred"),
        ("\u202eevil\u200b", "evil"),
        ("x" * 10_000, ""),
        ("a b c d e f g", ""),
        ("居間", "居間"),
        ("เปิดไฟ", "เปิดไฟ"),
        ("TV/Hi-Fi (new)", "TV/Hi-Fi new"),
        ("\ud800", ""),
        ("Room 2", "Room 2"),
    ],
)
def test_a_name_is_what_somebody_can_say(text: str, name: str) -> None:
    assert clean(text) == name
    assert clean(name) == name


def test_of_a_hundred_thousand_entities_those_that_are_called_go_first(hub: Hub) -> None:
    hub.exposed = {f"sensor.number_{one:06}": True for one in range(100_000)}
    hub.exposed |= {f"light.number_{one:04}": True for one in range(600)}
    hub.shown = {name: name.replace(".", " ").replace("_", " ") for name in hub.exposed}
    found = names_of(hub)
    wanted = next(one["entity_ids"] for one in hub.asked if one["type"] == "subscribe_entities")
    assert len(wanted) == ENTITIES_AT_MOST
    assert len(found.names) == NAMES_AT_MOST
    assert sum(tier is Tier.CALLED for _, tier in found.names) == 600
    assert found.entities == 100_600
    assert found.left_out > 99_000


def test_names_are_kept_for_this_user_alone(tmp_path: Path) -> None:
    names: tuple[Name, ...] = (("Kitchen", Tier.USED_PLACE), ("Küchenlicht", Tier.CALLED))
    naming.write(tmp_path, names)
    assert stat.S_IMODE((tmp_path / NAMES_FILE).stat().st_mode) == 0o600
    assert naming.read(tmp_path) == names


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"names": 7}',
        b'{"names": [["x"]]}',
        b'{"names": [["x", 99]]}',
        b'{"names": [["x", [1]]]}',
        b'{"names": [["x", 1' + b" " * (1 << 20) + b"]]}",
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_a_damaged_file_holds_no_names(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAMES_FILE).write_bytes(content)
    assert naming.read(tmp_path) == ()
    assert naming.read(tmp_path / "nowhere") == ()
