"""The simulated home: names of its people and things in Home Assistant."""

import re

from rigs.home_websocket import Hub

from appliance.infer.opening import SENTENCES_FILE

ASSIST_PHRASE = "turn"
"""Sentences that begin with it are handed to Assist. Nobody in the recordings addresses a computer;
most commands begin with this word."""
PEOPLE = (
    "Tom", "Theo", "Ian", "Ann", "Max", "Eva", "Leo", "Mia", "Ben", "Amy", "Jo", "Sam", "Anna",
    "Paul", "Ella", "Will",
)  # fmt: skip
THINGS = {
    "light": ("Ceiling light", "Desk lamp", "Bed light", "Strip", "Porch light", "Mood lighting"),
    "switch": ("Heater", "Kettle", "Pump", "Coffee machine"),
    "fan": ("Fan", "Ceiling fan"),
    "media_player": ("TV", "Radio", "Hi-Fi"),
    "climate": ("Thermostat",),
    "cover": ("Blinds", "Garage door", "Awning"),
    "lock": ("Front door",),
    "vacuum": ("Robot",),
    "scene": ("Movie night",),
    "todo": ("Shopping list",),
}
AREAS = (
    "Kitchen", "Living room", "Bedroom", "Bathroom", "Hall", "Den", "Office", "Garage", "Attic",
)  # fmt: skip
FLOORS = ("Ground floor", "Upstairs")
ENTITIES = [
    *(("person", name) for name in PEOPLE),
    *((kind, name) for kind, names in THINGS.items() for name in names),
]
WORDS = len(ENTITIES) + len(AREAS) + len(FLOORS)
"""Names that the appliance is told of."""


def home() -> Hub:
    """Return a stand-in for Home Assistant that exposes these 50 names."""
    hub = Hub()
    names = " ".join((*(name for _, name in ENTITIES), *AREAS, *FLOORS))
    known = set(_words(f"{SENTENCES_FILE.read_text(encoding='utf-8')} {names}"))
    hub.knows = lambda text: known.issuperset(_words(text))
    hub.shown = {f"{kind}.{identifier(name)}": name for kind, name in ENTITIES}
    hub.exposed = dict.fromkeys(hub.shown, True)
    hub.entries = {
        entity: {"area_id": identifier(AREAS[number % len(AREAS)]), "aliases": []}
        for number, entity in enumerate(hub.shown)
    }
    hub.areas = [
        {"area_id": identifier(name), "name": name, "aliases": [], "floor_id": "ground_floor"}
        for name in AREAS
    ]
    hub.floors = [{"floor_id": identifier(name), "name": name, "aliases": []} for name in FLOORS]
    return hub


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def identifier(name: str) -> str:
    """Return what Home Assistant makes of a name."""
    return name.lower().replace(" ", "_")
