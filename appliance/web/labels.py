"""Title, help and place of each setting on the page.

config.py's texts are for the configuration file; these are for people who never see it. A test
checks that every setting of the page has an entry here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field
from typing import Any

from appliance.config import keys


@dataclass(frozen=True, slots=True)
class Label:
    """The texts of one setting."""

    group: str
    """Heading that it stands under."""
    title: str
    help: str = ""
    advanced: bool = False
    blank: tuple[float, str] | None = None
    """The value that an empty field stands for, and the placeholder that says so."""
    choices: dict[str, str] = field(default_factory=dict)
    """Shown text by value."""


def _advanced(group: str, title: str, help: str = "", **more: Any) -> Label:
    return Label(group, title, help, advanced=True, **more)


MODELS_OWN = (-1.0, "Automatic")
"""The value that leaves a limit to the model."""
HEARING, PAUSES, TEXTS = "Detecting speech", "End of a sentence", "Text"
MQTT, LOG, SYSTEM = "MQTT and Home Assistant", "Log", "System"
LABELS = {
    "capture.device": Label("Microphone", "Microphone"),
    "appliance.node": Label(
        "Room",
        "Name of this appliance",
        "Used in MQTT topics and in Home Assistant. If empty, it is made from the host name.",
    ),
    "homeassistant.area": Label(
        "Room", "Area in Home Assistant", "Used when Home Assistant first sees this appliance."
    ),
    "model.bundle": Label("Model", "Model"),
    "decoder.language": Label(
        "Model", "Language", "If you always speak the same one, choosing it is the most reliable."
    ),
    "vocabulary.words": Label(
        "Words",
        "Names and words to recognise",
        "One per line: people, rooms, devices, places. List only words that it gets wrong: every "
        "extra word is another chance of a false match.",
    ),
    "vocabulary.replace": Label(
        "Words",
        "Corrections: heard = written",
        "One per line, for example: wood pecker = Woodpecker",
    ),
    "mqtt.enabled": Label(MQTT, "Publish to MQTT"),
    "mqtt.host": Label(MQTT, "Broker"),
    "mqtt.port": Label(MQTT, "Port"),
    "mqtt.username": Label(MQTT, "User name"),
    "mqtt.password": Label(MQTT, "Password"),
    "mqtt.tls": Label(MQTT, "Encrypt the connection (TLS)"),
    "homeassistant.enabled": Label(
        MQTT, "Add this appliance to Home Assistant", "Uses MQTT discovery."
    ),
    "mqtt.partials": Label(
        MQTT,
        "Publish partial results while someone speaks",
        "Takes one extra transcription per second of speech.",
    ),
    "store.retention_days": Label(LOG, "Keep sentences for", blank=(0, "no limit")),
    "store.retention_mb": Label(LOG, "Maximum size", blank=(0, "no limit")),
    "capture.silence_s": _advanced(
        HEARING,
        "Report the microphone as off after",
        "Seconds of complete silence, as from a muted microphone.",
        blank=(0, "never"),
    ),
    "voice.open_score": _advanced(
        HEARING, "Speech starts at", "Score of the second detector (Silero)."
    ),
    "segmenter.min_speech_ms": _advanced(
        HEARING, "Shortest speech", "Shorter sounds are discarded."
    ),
    "segmenter.hang_over_ms": _advanced(PAUSES, "Pause that ends a sentence"),
    "segmenter.early_ms": _advanced(
        PAUSES,
        "Pause after a complete sentence",
        "Used if the text is clearly a whole sentence. Clearly unfinished ones get 400 ms more "
        "than the pause above.",
        blank=(0, "off"),
    ),
    "segmenter.speculate": _advanced(
        PAUSES,
        "Start transcribing during the pause",
        "You get the text sooner. It is thrown away if you go on speaking.",
    ),
    "segmenter.pre_roll_ms": _advanced(
        PAUSES, "Sound before speech", "Sound kept from before speech was detected."
    ),
    "segmenter.overlap_ms": _advanced(
        PAUSES,
        "Overlap in long speech",
        "If there is no pause to cut at, the parts overlap by this much.",
        blank=(0, "off"),
    ),
    "vocabulary.boost": _advanced(
        TEXTS,
        "Preference for your words",
        "0 is off. A higher value finds more of them and causes more false matches.",
        blank=MODELS_OWN,
    ),
    "gates.low_confidence": _advanced(
        TEXTS, "Mark as unsure below", "Confidence of the text. 0 is off.", blank=MODELS_OWN
    ),
    "gates.act_confidence": _advanced(
        TEXTS,
        "Act on a text from",
        "Confidence of a text that does not begin with the name of your home. 0 is off.",
        blank=MODELS_OWN,
    ),
    "mqtt.retain_last": _advanced(
        SYSTEM,
        "Keep the last sentence on the broker",
        "New subscribers receive it at once.",
    ),
    "homeassistant.hold_s": _advanced(
        SYSTEM,
        "Wait for Home Assistant",
        "How long sentences wait while Home Assistant is offline.",
        blank=(0, "do not wait"),
    ),
    "store.retention_count": _advanced(
        SYSTEM, "Maximum number of sentences in the log", blank=(0, "no limit")
    ),
    "encoder.threads": _advanced(
        SYSTEM, "Processor threads for the encoder", blank=(0, "one per core")
    ),
    "decoder.threads": _advanced(
        SYSTEM, "Processor threads for the decoder", blank=(0, "one per core")
    ),
    "journal.level": _advanced(
        SYSTEM,
        "Messages in the system journal",
        choices={
            "debug": "Everything",
            "info": "Information and warnings",
            "warning": "Warnings",
            "error": "Errors only",
        },
    ),
    "journal.text": _advanced(
        SYSTEM,
        "Write sentences to the system journal",
        "Everyone who can read the journal can then read them.",
    ),
}
"""By key, in the order of the page."""


def fields() -> dict[str, dict[str, Any]]:
    """Return each setting by section.key: its texts, and the kind, unit and limits of its key.

    `kind` is bool, int, float, str, list, table or password.
    """
    known = {f"{section}.{entry.name}": entry for section, entry in keys()}
    return {name: dict(_describe(name, label, known)) for name, label in LABELS.items()}


def file_only() -> dict[str, str]:
    """Return a name for each key that is in the configuration file only, for messages."""
    proper = {"mqtt": "MQTT", "homeassistant": "Home Assistant"}
    names = ((section, entry.name) for section, entry in keys())
    return {
        f"{section}.{key}": f"{proper.get(section, section.capitalize())}: {key.replace('_', ' ')}"
        for section, key in names
        if f"{section}.{key}" not in LABELS
    }


def _describe(name: str, label: Label, known: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what the page needs to show one setting, by name."""
    yield from (("group", label.group), ("title", label.title), ("help", label.help))
    yield from (("advanced", label.advanced), ("blank", label.blank))
    if name not in known:  # the password has a file of its own and no key
        yield from (("kind", "password"), ("unit", ""), ("low", None), ("high", None))
        yield "choices", []
        return
    entry, metadata = known[name], known[name].metadata
    kind = type({} if entry.default is MISSING else entry.default).__name__
    yield "kind", {"tuple": "list", "dict": "table"}.get(kind, kind)
    yield from ((one, metadata[one]) for one in ("unit", "low", "high"))
    yield "choices", [[one, label.choices.get(one, one)] for one in metadata["choices"]]
