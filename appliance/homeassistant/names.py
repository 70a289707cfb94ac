"""The names of a home: of what Home Assistant exposes to its voice assistants, and of its places.

The tiers are those of wyoming-faster-whisper (3.8.1, hass_api.py). A name is taken as it is shown
(`friendly_name`): the registries' own lack their device's. Whatever comes is bounded and cleaned.
"""

from __future__ import annotations

import asyncio
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.homeassistant.connection import ANSWER_WITHIN_S, CommandError, HouseError, Link
from appliance.records import Name, Tier
from appliance.system import write_whole

NAMES_FILE = "homeassistant-names.json"
"""In the state folder, for the daemon's user alone."""
FILE_AT_MOST = 1 << 20
CALLED_DOMAINS = frozenset(
    {
        *("light", "switch", "fan", "media_player", "climate", "cover", "lock", "vacuum"),
        *("scene", "script", "todo"),
    }
)
NAMES_AT_MOST = 1000
ENTITIES_AT_MOST = 3000
"""Of so many entities the names are asked for; those that are called by name go first."""
LETTERS_AT_MOST, WORDS_AT_MOST = 64, 6
"""A longer name is none that anybody says."""
EXPOSED, REGISTRY = "homeassistant/expose_entity/list", "config/entity_registry/list"
ASSISTANT = "conversation"
INNER = "'\u2019.&+-/"
"""May stand within a word, and not at its ends."""
_ENTITY = re.compile(r"[a-z0-9_]{1,64}\.[a-z0-9_]{1,200}")


@dataclass(frozen=True, slots=True)
class Names:
    """What a home calls its things."""

    names: tuple[Name, ...]
    """By tier, NAMES_AT_MOST; no two that differ in capitals alone."""
    left_out: int = 0
    """Names and entities that are there and not among them."""
    entities: int = 0
    """That are exposed."""
    registry: bool = False
    """True when the token is no administrator's: what is exposed comes from the registry, which
    lacks entities without a unique id."""


async def fetch(link: Link, devices: Sequence[Mapping[str, Any]]) -> Names:
    """The names now; `devices` is the device registry. Raises CommandError and HouseError."""
    exposed, registry = await _exposed(link)
    exposed.sort(key=lambda one: (one.partition(".")[0] not in CALLED_DOMAINS, one))
    wanted = exposed[:ENTITIES_AT_MOST]
    entries: dict[str, Any] = {}
    shown: dict[str, Any] = {}
    if wanted:
        entries = _table(await _ask(link, "config/entity_registry/get_entries", entity_ids=wanted))
        shown = await _shown(link, wanted)
    areas = _list(await _ask(link, "config/area_registry/list"))
    floors: list[dict[str, Any]] = []
    with suppress(CommandError):  # older than 2024.4
        floors = _list(await _ask(link, "config/floor_registry/list"))
    area_of = {_text(one.get("id")): _text(one.get("area_id")) for one in devices}
    found: list[Name] = []
    used: set[str] = set()
    for entity in wanted:
        entry = _table(entries.get(entity))
        if entry.get("disabled_by") or _is_appliances(entry):
            continue
        used.add(_text(entry.get("area_id")) or area_of.get(_text(entry.get("device_id")), ""))
        name = shown.get(entity) or entry.get("name") or entry.get("original_name")
        called = entity.partition(".")[0] in CALLED_DOMAINS
        found.append((_text(name), Tier.CALLED if called else Tier.OTHER))
        found += [(alias, Tier.ALIAS) for alias in _texts(entry.get("aliases"))]
    floors_used = {
        _text(area.get("floor_id")) for area in areas if _text(area.get("area_id")) in used
    }
    for places, key, there in ((areas, "area_id", used), (floors, "floor_id", floors_used)):
        for place in places:
            tier = Tier.USED_PLACE if _text(place.get(key)) in there - {""} else Tier.PLACE
            names = [_text(place.get("name")), *_texts(place.get("aliases"))]
            found += [(name, tier) for name in names]
    kept, left_out = cleaned(found)
    return Names(kept, left_out + len(exposed) - len(wanted), len(exposed), registry)


def cleaned(found: Iterable[Name]) -> tuple[tuple[Name, ...], int]:
    """The names that can be said, by tier, each once, and how many are left out for their form or
    their number."""
    kept: dict[str, Name] = {}
    left_out = 0
    for text, tier in sorted(found, key=lambda one: one[1]):
        name = clean(text)
        left_out += bool(text) and not name
        if name:
            kept.setdefault(name.casefold(), (name, tier))
    return tuple(kept.values())[:NAMES_AT_MOST], left_out + max(0, len(kept) - NAMES_AT_MOST)


def clean(text: str) -> str:
    """A name in letters, digits and what stands within words, single spaces between; "" for one
    that nobody says (nothing of that in it, or too long)."""
    if len(text) > 4 * LETTERS_AT_MOST:
        return ""
    kept = ""
    for letter in unicodedata.normalize("NFC", text):
        kind = unicodedata.category(letter)
        # a mark that stands on no letter is what is left of an emoji
        if kind[0] in "LN" or letter in INNER or (kind[0] == "M" and kept[-1:] not in ("", " ")):
            kept += letter
        elif kind != "Cf":
            kept += " "
    words = [word.strip(INNER) for word in kept.split()]
    words = [word for word in words if any(letter.isalnum() for letter in word)]
    name = " ".join(words)
    return name if len(name) <= LETTERS_AT_MOST and len(words) <= WORDS_AT_MOST else ""


def read(folder: Path) -> tuple[Name, ...]:
    """The names kept in a folder; none where there are none, or none that can be read."""
    try:
        with (folder / NAMES_FILE).open("rb") as opened:
            data = opened.read(FILE_AT_MOST + 1)
        found = json.loads(data)["names"] if len(data) <= FILE_AT_MOST else []
        return cleaned((text, Tier(tier)) for text, tier in found if isinstance(text, str))[0]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return ()


def write(folder: Path, names: Sequence[Name]) -> None:
    """Keeps the names in a folder. Raises OSError."""
    content = json.dumps({"schema": 1, "names": names}, ensure_ascii=False, indent=0)
    write_whole(folder / NAMES_FILE, content, 0o600)


async def _exposed(link: Link) -> tuple[list[str], bool]:
    """The entities that are exposed to Assist, and whether the registry had to say so."""
    try:
        found = _table(_table(await _ask(link, EXPOSED)).get("exposed_entities"))
        chosen = {name for name, how in found.items() if _table(how).get(ASSISTANT) is True}
        registry = False
    except CommandError as error:
        if error.code not in ("unauthorized", "unknown_command"):
            raise
        chosen, registry = set(), True
        for entry in _list(await _ask(link, REGISTRY)):
            how = _table(_table(entry.get("options")).get(ASSISTANT))
            if how.get("should_expose") is True:
                chosen.add(_text(entry.get("entity_id")))
    return [name for name in chosen if _ENTITY.fullmatch(name)], registry


async def _shown(link: Link, entities: Sequence[str]) -> dict[str, Any]:
    """The names of entities as Home Assistant shows them; of those that have a state."""
    first: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    def take(event: dict[str, Any]) -> None:
        if not first.done():
            first.set_result(_table(event.get("a")))

    number, _ = await link.ask("subscribe_entities", take, entity_ids=entities)
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            states = await first
    except TimeoutError:
        raise HouseError("Home Assistant tells no states; see its log") from None
    link.forget(number)
    await link.ask("unsubscribe_events", subscription=number)
    found = ((entity, _table(_table(state).get("a"))) for entity, state in states.items())
    return {entity: _text(attributes.get("friendly_name")) for entity, attributes in found}


async def _ask(link: Link, command: str, **arguments: Any) -> Any:
    return (await link.ask(command, **arguments))[1]


def _is_appliances(entry: Mapping[str, Any]) -> bool:
    """True for an entity of a Roomscribe: nobody says "Roomscribe mute" of the things at home."""
    ours = _text(entry.get("unique_id")).startswith("roomscribe_")
    return ours and entry.get("platform") == "mqtt"


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: object) -> Iterator[str]:
    """The texts of a list; an alias may be null, which stands for the name itself."""
    return (one for one in value if isinstance(one, str)) if isinstance(value, list) else iter(())
