"""The names of a home: of what Home Assistant exposes to its voice assistants, and of its places.

The tiers are those of wyoming-faster-whisper (3.8.1, hass_api.py). Names are those that Home
Assistant shows (`friendly_name`), because the registries' own lack the device's name. All that is
received is limited and cleaned.
"""

import asyncio
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.homeassistant.connection import (
    ANSWER_WITHIN_S,
    CommandError,
    HomeAssistantError,
    WebsocketLink,
    as_list,
    as_table,
    as_text,
)
from appliance.records import Name, Tier
from appliance.system import write_whole

NAMES_FILE = "homeassistant-names.json"
"""In the state folder; only the daemon's user may read it."""
FILE_AT_MOST = 1 << 20
CALLED_DOMAINS = frozenset(
    {
        *("light", "switch", "fan", "media_player", "climate", "cover", "lock", "vacuum"),
        *("scene", "script", "todo"),
    }
)
GUARDED_DOMAINS = frozenset({"lock", "alarm_control_panel", "valve"})
GUARDED_COVERS = frozenset({"garage", "door", "gate"})
"""Domains, and device classes of covers, whose names are of Tier.GUARDED."""
NAMES_AT_MOST = 1000
ENTITIES_AT_MOST = 3000
"""Entities whose names are requested; those that are called by name go first."""
LETTERS_AT_MOST, WORDS_AT_MOST = 64, 6
"""Longest names; nobody says longer ones."""
EXPOSED, REGISTRY = "homeassistant/expose_entity/list", "config/entity_registry/list"
ASSISTANT = "conversation"
INNER = "'\u2019.&+-/"
"""Characters that are allowed within a word, but not at its ends."""
_ENTITY = re.compile(r"[a-z0-9_]{1,64}\.[a-z0-9_]{1,200}")


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a home."""

    names: tuple[Name, ...]
    """By tier, at most NAMES_AT_MOST; no two differ only in case."""
    left_out: int = 0
    """Names and entities that were left out."""
    entities: int = 0
    """Exposed entities."""
    registry: bool = False
    """True if the token is no administrator's: the exposed entities come from the registry then,
    which lacks entities without a unique id."""


async def fetch(link: WebsocketLink, devices: Sequence[Mapping[str, Any]]) -> Names:
    """Read the names. `devices` is the device registry.

    Raises CommandError and HomeAssistantError.
    """
    exposed, registry = await _exposed(link)
    exposed.sort(key=lambda one: (one.partition(".")[0] not in CALLED_DOMAINS, one))
    wanted = exposed[:ENTITIES_AT_MOST]
    entries: dict[str, Any] = {}
    shown: dict[str, Any] = {}
    if wanted:
        entries = as_table(
            await _request(link, "config/entity_registry/get_entries", entity_ids=wanted)
        )
        shown = await _shown(link, wanted)
    areas = as_list(await _request(link, "config/area_registry/list"))
    floors: list[dict[str, Any]] = []
    with suppress(CommandError):  # older than 2024.4
        floors = as_list(await _request(link, "config/floor_registry/list"))
    area_of = {as_text(one.get("id")): as_text(one.get("area_id")) for one in devices}
    found: list[Name] = []
    used: set[str] = set()
    for entity in wanted:
        entry = as_table(entries.get(entity))
        if entry.get("disabled_by") or _is_ours(entry):
            continue
        used.add(as_text(entry.get("area_id")) or area_of.get(as_text(entry.get("device_id")), ""))
        name = shown.get(entity) or entry.get("name") or entry.get("original_name")
        tier = _tier(entity, entry)
        alias_tier = tier if tier is Tier.GUARDED else Tier.ALIAS
        found.append((as_text(name), tier))
        found += [(alias, alias_tier) for alias in _texts(entry.get("aliases"))]
    floors_used = {
        as_text(area.get("floor_id")) for area in areas if as_text(area.get("area_id")) in used
    }
    for places, key, there in ((areas, "area_id", used), (floors, "floor_id", floors_used)):
        for place in places:
            tier = Tier.USED_PLACE if as_text(place.get(key)) in there - {""} else Tier.PLACE
            names = [as_text(place.get("name")), *_texts(place.get("aliases"))]
            found += [(name, tier) for name in names]
    kept, left_out = cleaned(found)
    return Names(kept, left_out + len(exposed) - len(wanted), len(exposed), registry)


def _tier(entity: str, entry: Mapping[str, Any]) -> Tier:
    """The tier of an entity's name."""
    domain = entity.partition(".")[0]
    kind = as_text(entry.get("device_class") or entry.get("original_device_class"))
    if domain in GUARDED_DOMAINS or (domain == "cover" and kind in GUARDED_COVERS):
        return Tier.GUARDED
    return Tier.CALLED if domain in CALLED_DOMAINS else Tier.OTHER


def cleaned(found: Iterable[Name]) -> tuple[tuple[Name, ...], int]:
    """Return the names that can be said, by tier, each once, and how many were left out."""
    kept: dict[str, Name] = {}
    left_out = 0
    for text, tier in sorted(found, key=lambda one: one[1]):
        name = clean(text)
        left_out += bool(text) and not name
        if name:
            kept.setdefault(name.casefold(), (name, tier))
    return tuple(kept.values())[:NAMES_AT_MOST], left_out + max(0, len(kept) - NAMES_AT_MOST)


def clean(text: str) -> str:
    """Return a name reduced to letters, digits and INNER, with single spaces.

    It is "" if nothing is left, or too much.
    """
    if len(text) > 4 * LETTERS_AT_MOST:
        return ""
    kept = ""
    for letter in unicodedata.normalize("NFC", text):
        kind = unicodedata.category(letter)
        # a combining mark without a letter is the rest of an emoji
        if kind[0] in "LN" or letter in INNER or (kind[0] == "M" and kept[-1:] not in ("", " ")):
            kept += letter
        elif kind != "Cf":
            kept += " "
    words = [word.strip(INNER) for word in kept.split()]
    words = [word for word in words if any(letter.isalnum() for letter in word)]
    name = " ".join(words)
    return name if len(name) <= LETTERS_AT_MOST and len(words) <= WORDS_AT_MOST else ""


def read(folder: Path) -> tuple[Name, ...]:
    """Return the names saved in a folder; none if the file is missing or damaged."""
    try:
        with (folder / NAMES_FILE).open("rb") as opened:
            data = opened.read(FILE_AT_MOST + 1)
        found = json.loads(data)["names"] if len(data) <= FILE_AT_MOST else []
        return cleaned((text, Tier(tier)) for text, tier in found if isinstance(text, str))[0]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return ()


def write(folder: Path, names: Sequence[Name]) -> None:
    """Save the names in a folder. Raises OSError."""
    content = json.dumps({"schema": 1, "names": names}, ensure_ascii=False, indent=0)
    write_whole(folder / NAMES_FILE, content, 0o600)


async def _exposed(link: WebsocketLink) -> tuple[list[str], bool]:
    """Return the entities exposed to Assist, and whether they come from the registry."""
    try:
        found = as_table(as_table(await _request(link, EXPOSED)).get("exposed_entities"))
        chosen = {name for name, how in found.items() if as_table(how).get(ASSISTANT) is True}
        registry = False
    except CommandError as error:
        if error.code not in ("unauthorized", "unknown_command"):
            raise
        chosen, registry = set(), True
        for entry in as_list(await _request(link, REGISTRY)):
            how = as_table(as_table(entry.get("options")).get(ASSISTANT))
            if how.get("should_expose") is True:
                chosen.add(as_text(entry.get("entity_id")))
    return [name for name in chosen if _ENTITY.fullmatch(name)], registry


async def _shown(link: WebsocketLink, entities: Sequence[str]) -> dict[str, Any]:
    """Return the names of entities as Home Assistant shows them, if they have a state."""
    first: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    def take(event: dict[str, Any]) -> None:
        if not first.done():
            first.set_result(as_table(event.get("a")))

    number, _ = await link.send_command("subscribe_entities", take, entity_ids=entities)
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            states = await first
    except TimeoutError:
        raise HomeAssistantError("Home Assistant sent no states; see its log") from None
    link.forget(number)
    await link.send_command("unsubscribe_events", subscription=number)
    found = ((entity, as_table(as_table(state).get("a"))) for entity, state in states.items())
    return {entity: as_text(attributes.get("friendly_name")) for entity, attributes in found}


async def _request(link: WebsocketLink, command: str, **arguments: Any) -> Any:
    return (await link.send_command(command, **arguments))[1]


def _is_ours(entry: Mapping[str, Any]) -> bool:
    ours = as_text(entry.get("unique_id")).startswith("roomscribe_")
    return ours and entry.get("platform") == "mqtt"


def _texts(value: object) -> Iterator[str]:
    """Return the texts of a list; an alias may be null, which means the name itself."""
    return (one for one in value if isinstance(one, str)) if isinstance(value, list) else iter(())
