"""Every configuration key, and TOML to the settings tree with every trouble reported at once.

A section is a frozen dataclass, a key a field of it with default, unit, range and meaning;
config/roomscribe.toml shows them to people, and a test keeps the two equal. A message names file,
section and key, what was expected, what was found, and the nearest right key.

Over 500 lines because it is one table and its reader.
"""

from __future__ import annotations

import difflib
import re
import socket
import tomllib
from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from appliance.errors import ConfigError
from appliance.system import shorten


def key(
    default: Any,
    sentence: str,
    *,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    pattern: str = "",
) -> Any:
    """A configuration key as a dataclass field: default, meaning, unit and limits (inclusive)."""
    limits = {"unit": unit, "low": low, "high": high, "choices": choices, "pattern": pattern}
    return field(default=default, metadata={"sentence": sentence, **limits})


@dataclass(frozen=True, slots=True)
class ApplianceSettings:
    """[appliance]"""

    node: str = key(
        "",
        "Name of this appliance in topics and events; empty: made from the host name.",
        pattern=r"[a-z0-9_]{0,64}",
    )
    memory_mb: int = key(
        0,
        "With more memory than this the daemon ends in order and is started again, nothing is "
        "lost; 0: 400 MB more than once it is ready, less where systemd allows less.",
        unit="MB", low=0, high=1_000_000,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """[capture]"""

    device: str = key(
        "", "Microphone: part of its name as `roomscribe devices` shows it; empty: the default one."
    )
    silence_s: float = key(
        10.0,
        "A microphone that gives nothing but zeros for so long counts as off (muted by a switch or "
        "in the mixer) until it gives sound; 0: never, for one that cuts all noise out itself.",
        unit="s", low=0.0, high=3600.0,
    )  # fmt: skip
    block_ms: int = key(30, "Length of one read from the microphone.", unit="ms", low=10, high=100)
    recording: str = key(
        "", "A sound file (or - for raw PCM on standard input) to hear in place of the microphone."
    )


@dataclass(frozen=True, slots=True)
class VoiceSettings:
    """[voice]"""

    webrtc_mode: int = key(
        2, "How strict the detector that wakes Silero is: 0 lets most through.", low=0, high=3
    )
    open_score: float = key(
        0.5, "Silero's score from which 32 ms count as speech when opening.", low=0.05, high=0.99
    )
    close_score: float = key(
        0.35, "Silero's score below which 32 ms count as silence when closing.", low=0.01, high=0.95
    )


@dataclass(frozen=True, slots=True)
class SegmenterSettings:
    """[segmenter]"""

    pre_roll_ms: int = key(
        600, "Sound kept from before the speech was noticed.", unit="ms", low=0, high=2000
    )
    hang_over_ms: int = key(600, "Silence that ends an utterance.", unit="ms", low=200, high=3000)
    min_speech_ms: int = key(
        90, "Utterances with less speech than this are discarded.", unit="ms", low=0, high=2000
    )
    overlap_ms: int = key(
        1000,
        "Where speech longer than a window has no pause to cut in, the next window begins so much "
        "earlier at most (half of it at least), its text freed of what it repeats; 0: never.",
        unit="ms", low=0, high=2000,
    )  # fmt: skip
    floor_margin_db: float = key(
        10.0,
        "Where the detector takes the noise for speech (voices of a television), an utterance is "
        "over when its level has sunk to within this of the noise floor; 0: off.",
        unit="dB", low=0.0, high=20.0,
    )  # fmt: skip
    steady_s: float = key(
        5.0, "So long a stretch with less voice in it than min_voiced_share ends an utterance.",
        unit="s", low=2.0, high=60.0,
    )  # fmt: skip
    min_voiced_share: float = key(
        0.2,
        "Share of voice below which steady_s end an utterance, and a quarter of which an utterance "
        "of one window must have to be kept; 0: off.",
        low=0.0, high=0.5,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """[model]"""

    bundle: str = key(
        "",
        "Model bundle: the name of an installed one, or the path of a folder with a bundle.json; "
        "empty: the one that `roomscribe model use` chose, else the built-in home-en.",
    )


@dataclass(frozen=True, slots=True)
class EncoderSettings:
    """[encoder]"""

    backend: str = key(
        "auto",
        "What runs the encoder. auto: the Hailo, where there is one and the model has a HEF for "
        "it, and the CPU while it cannot; hailo: the same, but the start fails (status 69) "
        "without it; cpu: never the Hailo.",
        choices=("auto", "hailo", "cpu"),
    )
    share: bool = key(
        False,
        "Share the Hailo with other programs, through the hailort service, which they must use "
        "too (hailo-share.conf has what systemd must allow); false: nobody else can use it.",
    )
    threads: int = key(
        2, "CPU threads of the encoder; 0: as many as there are cores.", low=0, high=64
    )


@dataclass(frozen=True, slots=True)
class DecoderSettings:
    """[decoder]"""

    backend: str = key(
        "cpu",
        "What runs the decoder. hailo is for comparison only, never for use: it computes the whole "
        "text again for each token and takes about ten times as long as the CPU with its cache, "
        "cuts the text at the HEF's length (24 to 64 tokens, prompt included) and keeps the "
        "encoder waiting; it wants a model added with --npu-decoder, and the start fails (status "
        "69) without a Hailo.",
        choices=("cpu", "hailo"),
    )
    threads: int = key(
        2, "CPU threads of the decoder; 0: as many as there are cores.", low=0, high=64
    )
    preset: str = key(
        "bundle",
        "How the decoder is kept from running on: conservative pads to what the model was trained "
        "on (1500 positions for 30 s); balanced pads a fifth of that way, with a penalty of 1.1 "
        "and a boost of 0.2; aggressive pads nothing, with 1.2 and 0.5; bundle is what the model "
        "recommends. All take the same time. The next three keys change single rules.",
        choices=("bundle", "conservative", "balanced", "aggressive"),
    )
    positions: int = key(
        0,
        "Encoder positions after zero-padding; 0: what the preset says.",
        low=0,
        high=1500,
    )
    repetition_penalty: float = key(
        0.0,
        "Divides positive and multiplies negative scores of tokens already written; "
        "1 is off, 0: what the preset says.",
        low=0.0,
        high=2.0,
    )
    eot_boost: float = key(
        -1.0,
        "End-of-text is taken when its score comes within this of the best; "
        "-1: what the preset says.",
        low=-1.0,
        high=5.0,
    )
    temperature_fallback: bool = key(
        False,
        "Decode again at temperatures 0.2, 0.4 .. 1.0 while the text is a repetition or of low "
        "confidence by the [gates], as Whisper does; up to six times as long.",
    )


@dataclass(frozen=True, slots=True)
class GateSettings:
    """[gates]"""

    no_speech_sure: float = key(
        -1.0,
        "Windows that the model takes for no speech with more than this are discarded, whatever "
        "their text; 1 is off, -1: what the bundle recommends.",
        low=-1.0,
        high=1.0,
    )
    no_speech_prob: float = key(
        0.6, "The same, from this on, for windows whose text has less than avg_logprob.",
        low=0.0, high=1.0,
    )  # fmt: skip
    no_speech_lone: float = key(
        -1.0,
        "The same, from this on, for a single word of which the model is less than 55 % sure: what "
        "chimes and knocks are taken for; 1 is off, -1: what the bundle recommends.",
        low=-1.0,
        high=1.0,
    )
    low_confidence: float = key(
        -1.0,
        "Transcripts whose confidence is below this are flagged low_confidence; 0 is off, -1: what "
        "the bundle recommends.",
        low=-1.0,
        high=1.0,
    )
    avg_logprob: float = key(
        -1.0,
        "Mean log-probability of the tokens below which a text counts as doubtful where a window "
        "may be no speech; 1.5 below it no text is kept.",
        low=-10.0,
        high=0.0,
    )
    compression_ratio: float = key(
        2.4, "Text that compresses better than this is a repetition loop.", low=1.0, high=10.0
    )


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """[store]"""

    path: str = key(
        "", "Folder of the local log; empty: $STATE_DIRECTORY, else ~/.local/state/roomscribe."
    )
    retention_days: int = key(
        30, "Transcripts older than this are deleted; 0 keeps them for ever.",
        unit="days", low=0, high=3650,
    )  # fmt: skip
    retention_count: int = key(
        0,
        "No more transcripts than this are kept, the oldest go first; 0: any number.",
        low=0, high=100_000_000,
    )  # fmt: skip
    retention_mb: int = key(
        512,
        "The log takes no more of the disk than this, about a kilobyte a transcript, the oldest go "
        "first; 0: any size.",
        unit="MB", low=0, high=1_000_000,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SpoolSettings:
    """[spool]"""

    enabled: bool = key(
        True,
        "Keep speech that is not transcribed yet in memory that outlives a crash of the daemon, "
        "for its user alone, deleted once it is; never on a disk.",
    )
    limit_mb: int = key(
        64,
        "Most of it that may wait; beyond it the oldest is dropped (10 s are 0.3 MB).",
        unit="MB", low=1, high=4096,
    )  # fmt: skip
    path: str = key(
        "",
        "Its folder, which must lie in memory (tmpfs); empty: $RUNTIME_DIRECTORY/spool, else one "
        "below $XDG_RUNTIME_DIR or /dev/shm.",
    )


@dataclass(frozen=True, slots=True)
class MqttSettings:
    """[mqtt]"""

    enabled: bool = key(True, "Publish to an MQTT broker.")
    host: str = key(
        "localhost", "Host name or address of the broker.",
        pattern=r"[^\s.]{1,63}(\.[^\s.]{1,63}){0,31}\.?",
    )  # fmt: skip
    port: int = key(1883, "TCP port of the broker.", low=1, high=65535)
    username: str = key("", "User name at the broker; empty: none.")
    password_file: str = key(
        "", "File holding the password; empty: the credential `roomscribe.mqtt-password`, if any."
    )
    client_id: str = key(
        "", "MQTT client id, unique at the broker; empty: roomscribe-<node>.",
        pattern=r"[0-9A-Za-z_-]{0,64}",
    )  # fmt: skip
    protocol: str = key(
        "5",
        "Version of MQTT. 3.1.1 is for a broker that knows no better: it tells neither that nobody "
        "subscribes nor why it refuses, and forgets no message by age.",
        choices=("5", "3.1.1"),
    )
    tls: bool = key(
        False, "Encrypt the connection and check the broker's certificate; its port is mostly 8883."
    )
    ca_file: str = key(
        "", "The authority that signed the broker's certificate (PEM); empty: those of the system."
    )
    cert_file: str = key("", "Our own certificate (PEM), for a broker that asks for one.")
    key_file: str = key(
        "", "Its private key (PEM); empty: the credential `roomscribe.mqtt-key`, else cert_file."
    )
    keepalive_s: int = key(30, "Longest silence towards the broker.", unit="s", low=5, high=3600)
    expiry_s: int = key(
        3600, "The broker forgets an undelivered transcript after this.", unit="s", low=60,
        high=604800,
    )  # fmt: skip
    outbox_limit: int = key(
        10_000,
        "Most transcripts that wait for the broker; beyond it the oldest are passed over: they are "
        "in the log alone then. 0: any number.",
        low=0, high=10_000_000,
    )  # fmt: skip
    hold: bool = key(
        True,
        "Keep transcripts, for expiry_s at most, while nobody subscribes to them; false: they are "
        "in the log alone then.",
    )
    retain_last: bool = key(
        False,
        "Leave the last transcript on the broker, on the topic `last`, for whoever comes later.",
    )


@dataclass(frozen=True, slots=True)
class HomeAssistantSettings:
    """[homeassistant]"""

    enabled: bool = key(True, "Announce the appliance to Home Assistant, which then shows it.")
    prefix: str = key(
        "homeassistant", "Where Home Assistant looks for announcements (its discovery prefix).",
        pattern=r"[0-9A-Za-z_-]+(/[0-9A-Za-z_-]+)*",
    )  # fmt: skip
    status_topic: str = key(
        "homeassistant/status",
        "Where Home Assistant says online and offline (its birth and will messages).",
        pattern=r"[0-9A-Za-z_-]+(/[0-9A-Za-z_-]+)*",
    )
    hold_s: int = key(
        600,
        "Transcripts wait at most this long for a Home Assistant that was seen and is away, and "
        "never longer than mqtt.expiry_s; 0: they do not wait.",
        unit="s", low=0, high=86400,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class HistorySettings:
    """[history]"""

    enabled: bool = key(
        False,
        "Answer command/history: whoever may publish that at the broker reads what was said, as "
        "far back as store.retention_days.",
    )
    limit: int = key(100, "Most transcripts in one answer.", low=1, high=1000)


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """[journal]"""

    text: bool = key(False, "Write the text of transcripts to systemd's journal, too.")
    level: str = key(
        "info", "Least severe message shown.", choices=("debug", "info", "warning", "error")
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole configuration."""

    appliance: ApplianceSettings = field(default_factory=ApplianceSettings)
    capture: CaptureSettings = field(default_factory=CaptureSettings)
    voice: VoiceSettings = field(default_factory=VoiceSettings)
    segmenter: SegmenterSettings = field(default_factory=SegmenterSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    decoder: DecoderSettings = field(default_factory=DecoderSettings)
    gates: GateSettings = field(default_factory=GateSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    spool: SpoolSettings = field(default_factory=SpoolSettings)
    mqtt: MqttSettings = field(default_factory=MqttSettings)
    homeassistant: HomeAssistantSettings = field(default_factory=HomeAssistantSettings)
    history: HistorySettings = field(default_factory=HistorySettings)
    journal: JournalSettings = field(default_factory=JournalSettings)


DEFAULT_PATH = Path("/etc/roomscribe/roomscribe.toml")

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def load(path: Path | None) -> Settings:
    """Settings from `path`; from the default path, if it is there, when None; else the defaults.

    Raises ConfigError holding one message for each mistake.
    """
    if path is None:
        if not DEFAULT_PATH.exists():
            return Settings()
        path = DEFAULT_PATH
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file; expected a configuration in TOML; "
            "write one, or leave --config out to run on the defaults"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as UTF-8 text: {error}") from None
    return parse(text, str(path))


def parse(text: str, origin: str) -> Settings:
    """Settings from TOML `text`; `origin` names it in messages. Raises ConfigError."""
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise ConfigError(
            f"{origin}: not valid TOML: brackets within brackets without end"
        ) from None
    except ValueError as error:  # TOMLDecodeError, and int's own for one of thousands of digits
        raise ConfigError(f"{origin}: not valid TOML: {shorten(str(error), 200)}") from None
    sections = get_type_hints(Settings)
    troubles: list[str] = []
    values: dict[str, Any] = {}
    for section, content in table.items():
        if section not in sections:
            what = f"section [{shorten(section)}]"
            troubles.append(_unknown(origin, what, section, sections))
        elif not isinstance(content, dict):
            troubles.append(f"{origin}: {section} is a section: write [{section}] above its keys")
        else:
            values[section] = _section(sections[section], content, f"{origin}: {section}", troubles)
    if not troubles:
        settings = Settings(**values)
        troubles.extend(_contradictions(settings, origin))
    if troubles:
        raise ConfigError(*troubles)
    return settings


def keys() -> Iterator[tuple[str, Field[Any]]]:
    """(section, field) of every key, in the order of the shipped file."""
    for section, kind in get_type_hints(Settings).items():
        for entry in fields(kind):
            yield section, entry


def node_name(settings: Settings) -> str:
    """The configured node, or a slug of the host name: [a-z0-9_], never empty."""
    host = socket.gethostname().split(".")[0]
    slug = re.sub(r"[^a-z0-9]+", "_", host.lower()).strip("_")
    return settings.appliance.node or slug[:64] or "roomscribe"


def _section(kind: Any, content: dict[str, Any], where: str, troubles: list[str]) -> Any:
    """One section's dataclass; what is wrong is appended to `troubles` and left out."""
    types = get_type_hints(kind)
    known = {entry.name: entry for entry in fields(kind)}
    right: dict[str, Any] = {}
    for name, value in content.items():
        if name not in known:
            troubles.append(_unknown(where, f"key {shorten(name)}", name, known))
            continue
        if trouble := _trouble(known[name], types[name], value):
            troubles.append(f"{where}.{name}: {trouble}")
        else:
            right[name] = types[name](value)
    return kind(**right)


def _trouble(entry: Field[Any], kind: type, value: Any) -> str:
    """What is wrong with `value`; empty when nothing is."""
    whole_as_number = kind is float and type(value) is int
    if type(value) is not kind and not whole_as_number:
        return f"expected {_TYPE_NAMES[kind]}, found {_shown(value)}"
    if kind is str and _CONTROL.search(value):
        return f"expected text without control characters, found {_shown(value)}"
    limits = entry.metadata
    if limits["choices"] and value not in limits["choices"]:
        near = difflib.get_close_matches(str(value), limits["choices"], 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"expected one of {', '.join(limits['choices'])}, found {_shown(value)}{hint}"
    low, high, unit = limits["low"], limits["high"], limits["unit"]
    if low is not None and not low <= value <= high:
        return f"expected {low} to {high}{' ' + unit if unit else ''}, found {_shown(value)}"
    if limits["pattern"] and not re.fullmatch(limits["pattern"], value):
        return f"expected text of the form {limits['pattern']}, found {_shown(value)}"
    return ""


def _contradictions(settings: Settings, origin: str) -> Iterator[str]:
    """Values that are right by themselves and wrong together."""
    voice = settings.voice
    if voice.close_score > voice.open_score:
        yield (
            f"{origin}: voice.close_score: expected at most voice.open_score "
            f"({voice.open_score}), found {voice.close_score}"
        )
    if settings.mqtt.password_file and not settings.mqtt.username:
        yield f"{origin}: mqtt.password_file: expected mqtt.username beside it, found none"
    if not settings.mqtt.tls:
        for name in ("ca_file", "cert_file", "key_file"):
            if getattr(settings.mqtt, name):
                yield f"{origin}: mqtt.{name}: expected mqtt.tls = true beside it, found false"
    if settings.mqtt.key_file and not settings.mqtt.cert_file:
        yield f"{origin}: mqtt.key_file: expected mqtt.cert_file beside it, found none"


def _unknown(where: str, what: str, name: str, known: Any) -> str:
    """Message for a name that does not exist, with the nearest one that does."""
    near = difflib.get_close_matches(name, list(known), 1, 0.5)
    cure = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
    return f"{where}: unknown {what}; {cure}"


def _shown(value: Any) -> str:
    """`value` as TOML would show it, cut short."""
    try:
        text = str(value).lower() if isinstance(value, bool) else repr(value)
    except (ValueError, RecursionError):
        text = "something endless"
    return shorten(text)
