"""Every configuration key, and the reader of TOML, which reports all mistakes together.

A section is a frozen dataclass. A key is a field of it with default, unit, range and description;
config/roomscribe.toml shows them, and a test keeps both equal. A message names file, section, key,
what was expected, what was found, and the nearest right key.

Over 500 lines because it is one table and its reader.
"""

import difflib
import json
import os
import re
import socket
import tomllib
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_type_hints

from appliance.errors import ConfigError
from appliance.system import shorten, user_folder

if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network


@dataclass(frozen=True, slots=True)
class TextForm:
    """What a text must look like."""

    description: str
    """Follows "expected" in messages."""
    pattern: str = ""
    """Regular expression that the whole text matches; empty: any text."""
    accepts: Callable[[str], object] = lambda text: True
    """Returns what is false for a text without this form, or raises ValueError."""
    suggest: Callable[[str], str | None] = lambda text: None
    """Returns what a wrong text may be meant to be; None or empty: no idea."""

    def fits(self, text: str) -> bool:
        """Return True if `text` has this form."""
        with suppress(ValueError):
            return bool(re.fullmatch(self.pattern or "(?s).*", text) and self.accepts(text))
        return False


ANY_TEXT = TextForm("a text")
ROOM, MICROPHONE, SPEAKER = "Room", "Microphone", "Loudspeaker"
MODEL, WORDS = "Model", "Words"
LOG, MQTT = "Log", "MQTT and Home Assistant"
HEARING, PAUSES, TEXTS, SYSTEM = "Detecting speech", "End of a sentence", "Text", "System"
ADVANCED = (HEARING, PAUSES, TEXTS, SYSTEM)
"""Headings of the page's settings. The advanced ones are closed at first, and explained by the
descriptions."""
MODELS_OWN = (-1.0, "Automatic")
"""The value that leaves a limit to the model."""


def key(
    default: Any,
    description: str,
    *,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    form: TextForm = ANY_TEXT,
    names: tuple[str, ...] = (),
    group: str = "",
    label: str = "",
    help: str = "",
    blank: tuple[float, str] | None = None,
    shown: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """Return a dataclass field for a configuration key; `low` and `high` are inclusive.

    `form` is that of each text in a list; `names`: the only names that a table may have.

    The local page shows a key with a `label`, below the heading `group`. `help` explains it; an
    empty field stands for the value in `blank`, whose text says so; `shown`:
    the texts of choices.
    """
    metadata = {name: given for name, given in locals().items() if name != "default"}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


_LATIN = str.maketrans({"æ": "ae", "œ": "oe", "ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th"})
"""Letters that Unicode does not decompose into one of a to z and an accent."""


def slug(name: str) -> str:
    """Return `name` as a node name: [a-z0-9_], without accents, 64 at most, perhaps empty."""
    apart = unicodedata.normalize("NFKD", name.casefold().translate(_LATIN))
    plain = apart.encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "_", plain).strip("_")[:64]


def _bare_host(text: str) -> str:
    """Return the host of an address such as mqtt://user@broker.local:1883/."""
    host = re.sub(r"^\w+://", "", text.strip()).partition("/")[0].rpartition("@")[2]
    return re.sub(r":\d+$|[\[\]]", "", host)


def is_address(text: str) -> bool:
    """Return True for an IPv4 or IPv6 address."""
    from ipaddress import ip_address

    with suppress(ValueError):
        return bool(ip_address(text))
    return False


def is_home_url(text: str) -> bool:
    """Return True for a URL of http, https, ws or wss without a password, and for "". Raises
    ValueError for no URL."""
    from urllib.parse import urlsplit

    parts = urlsplit(text)
    fits = parts.scheme in ("http", "https", "ws", "wss") and parts.hostname and parts.port != 0
    return not text or bool(fits and not re.search(r"[\s?#@]", text) and len(text) <= 300)


def parse_network(text: str) -> "IPv4Network | IPv6Network":
    """Return a range of addresses, or one address as such. Raises ValueError."""
    from ipaddress import ip_network

    return ip_network(text, strict=False)


def fleet_server(text: str) -> tuple[str, str, int]:
    """Return scheme, host and port (default 4222) of a fleet's server. Raises ValueError."""
    from urllib.parse import urlsplit

    parts = urlsplit(text)
    host, port = parts.hostname or "", 4222 if parts.port is None else parts.port
    known = parts.scheme in ("nats", "tls") and re.fullmatch(_HOST, host) and port
    if not known or parts.username is not None or parts.path or parts.query or parts.fragment:
        raise ValueError(text)
    return parts.scheme, host, port


def url_host(host: str) -> str:
    """Return the host as in a URL."""
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Return True for an address or name of this machine that no other machine can reach."""
    from ipaddress import ip_address

    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host.lower() == "localhost"


WORDS_AT_MOST = 1000
"""Words of a home, names from Home Assistant, and corrections."""


def is_word(text: str) -> bool:
    """Return True for a word or a name: 1 to 64 printable characters with a letter or digit."""
    is_shown = text.isprintable() and text == text.strip()
    return is_shown and len(text) <= 64 and any(map(str.isalnum, text))


_HOST = r"[^\s./:]{1,63}(\.[^\s./:]{1,63}){0,31}\.?|[0-9A-Fa-f.]*(:[0-9A-Fa-f.]*){2,8}(%\w+)?"
NO_DEVICE = "none"
"""capture.device of a machine without a microphone."""
_ADDRESS = r"[0-9.]{7,15}|[0-9A-Fa-f]*(:[0-9A-Fa-f.]*){2,8}"
_LISTEN = {"localhost": "127.0.0.1", "*": "0.0.0.0"}


def _lower_code(text: str) -> str:
    return text.strip().lower()[:2]


_TOPIC = TextForm(
    "words of a-z, A-Z, 0-9, _ and - with / between them",
    pattern=r"[0-9A-Za-z_-]+(/[0-9A-Za-z_-]+)*",
    suggest=lambda text: text.strip("/# "),
)


@dataclass(frozen=True, slots=True)
class ApplianceSettings:
    """[appliance]"""

    node: str = key(
        "",
        "Name of this appliance in topics and events. Empty: made from the host name.",
        form=TextForm("at most 64 of a-z, 0-9 and _", pattern=r"[a-z0-9_]{0,64}", suggest=slug),
        group=ROOM, label="Name of this appliance",
        help="Used in MQTT topics and in Home Assistant. If empty, it is made from the host name.",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """[capture]"""

    device: str = key(
        "",
        "Microphone: part of its name in `roomscribe devices`. Empty: the default. none: this "
        "machine only transcribes for others. Or a stream: rtsp://, http://, pulse:SOURCE or "
        "pipe://PATH.",
        group=MICROPHONE, label="Microphone",
    )  # fmt: skip
    device_file: str = key(
        "",
        "File with a stream's address, in place of device, for an address with a password. "
        "Empty: the credential `roomscribe.capture-device`, if any.",
    )
    channel: int = key(
        0,
        "Channel of the microphone that is heard, from 1. 0: the mean of two, the first of more.",
        low=0, high=64,
    )  # fmt: skip
    silence_s: float = key(
        10.0,
        "A microphone that delivers no sound for this long (at most the last bit changes) "
        "counts as off. 0: never, for a microphone that removes all noise itself.",
        unit="s", low=0.0, high=3600.0,
        group=HEARING, label="Report the microphone as off after", blank=(0, "never"),
    )  # fmt: skip
    recording: str = key(
        "", "Sound file (or - for standard input) to read instead of the microphone."
    )
    reference: dict[str, str] = key(  # noqa: RUF009
        {},
        "What the room's loudspeakers play, to remove it from the sound: a table "
        "[capture.reference] with device = a sound card or stream. Empty: off.",
        form=TextForm("a table with the key device"),
        names=("device",),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SpeakerSettings:
    """[speaker]"""

    enabled: bool = key(
        False,
        "Play answers, announcements and the ring of a timer on a loudspeaker.",
        group=SPEAKER, label="Answer on a loudspeaker",
    )  # fmt: skip
    device: str = key(
        "",
        "Loudspeaker: part of its name in `roomscribe devices`, or pulse:SINK. Empty: the "
        "default.",
        group=SPEAKER, label="Loudspeaker",
    )  # fmt: skip
    volume: int = key(
        80, "Volume.", unit="%", low=0, high=100, group=SPEAKER, label="Volume",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class VoiceSettings:
    """[voice]"""

    open_score: float = key(
        0.5,
        "Score of the voice detector (Silero) from which 32 ms count as the start of speech.",
        low=0.05,
        high=0.99,
        group=HEARING, label="Speech starts at",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SegmenterSettings:
    """[segmenter]"""

    hang_over_ms: int = key(
        600, "Silence that ends an utterance.", unit="ms", low=200, high=3000,
        group=PAUSES, label="Pause that ends a sentence",
    )  # fmt: skip
    speculate: bool = key(
        True,
        "Transcribe after 0.15 s of silence, so that the text is ready when the utterance ends.",
        group=PAUSES, label="Start transcribing during the pause",
    )  # fmt: skip
    early_ms: int = key(
        250,
        "Silence that ends an utterance whose text is surely a whole sentence. After less than "
        "two seconds of speech, any text waits for three quarters of hang_over_ms, a clearly "
        "unfinished one 400 ms longer than hang_over_ms, 1000 ms at most. If you go on speaking "
        "after an early end, the next transcript names the one before in `continues`. 0: "
        "hang_over_ms for every text. Needs speculate.",
        unit="ms", low=0, high=1000,
        group=PAUSES, label="Pause after a complete sentence", blank=(0, "off"),
        help="Used if the text is clearly a whole sentence. Clearly unfinished ones get 400 ms "
             "more than the pause that ends a sentence.",
    )  # fmt: skip
    min_speech_ms: int = key(
        90, "Utterances with less speech than this are discarded.", unit="ms", low=0, high=2000,
        group=HEARING, label="Shortest speech",
    )  # fmt: skip
    overlap_ms: int = key(
        1000,
        "If speech longer than a window has no pause to cut in, the next window overlaps by "
        "half of this to all of it; repeated words are removed. 0: no overlap.",
        unit="ms", low=0, high=2000,
        group=PAUSES, label="Overlap in long speech", blank=(0, "off"),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """[model]"""

    bundle: str = key(
        "",
        "Name of an installed model, or a folder with a bundle.json. Empty: the one chosen with "
        "`roomscribe model use`, else tiny.en.",
        group=MODEL, label="Model",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class EncoderSettings:
    """[encoder]"""

    backend: str = key(
        "auto",
        "auto: on the Hailo, if there is one and the model has a HEF for it, and on the CPU "
        "while the Hailo fails. hailo: the same, but without a Hailo the daemon does not start "
        "(status 69). cpu: never on the Hailo.",
        choices=("auto", "hailo", "cpu"),
    )
    share: bool = key(
        False,
        "Share the Hailo with other programs through the hailort service, which they must use, "
        "too (see docs/hailo.md). false: no other program can use it.",
    )
    threads: int = key(
        2, "CPU threads of the encoder; 0: one per core.", low=0, high=64,
        group=SYSTEM, label="Processor threads for the encoder", blank=(0, "one per core"),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class DecoderSettings:
    """[decoder]"""

    threads: int = key(
        2, "CPU threads of the decoder; 0: one per core.", low=0, high=64,
        group=SYSTEM, label="Processor threads for the decoder", blank=(0, "one per core"),
    )  # fmt: skip
    beam_size: int = key(
        5,
        "Texts that are followed at once where the likeliest tokens gave a doubtful one: in "
        "files, and in sound that programs send while nobody speaks in the room. 1: off.",
        low=1, high=5,
    )  # fmt: skip
    language: str = key(
        "",
        "Spoken language, for models of several languages: a code such as de. auto: the model "
        "detects one of `languages` in each window. Empty: the one that the model was added "
        "with.",
        form=TextForm(
            "auto or an ISO 639 code such as de", pattern=r"(auto|[a-z]{2,3})?", suggest=_lower_code
        ),
        group=MODEL, label="Language",
        help="If you always speak the same one, choosing it is the most reliable.",
    )  # fmt: skip
    languages: tuple[str, ...] = key(
        (),
        "Languages that auto chooses from. Empty: all that the model knows. A short list is "
        "detected more reliably.",
        form=TextForm("ISO 639 codes such as de", pattern=r"[a-z]{2,3}", suggest=_lower_code),
    )


BUILT_IN_SENTENCES = "built-in"
"""PhrasesSettings.file for the list that comes with the package."""


@dataclass(frozen=True, slots=True)
class PhrasesSettings:
    """[phrases]"""

    file: str = key(
        BUILT_IN_SENTENCES,
        "File of expected sentences, see docs/phrases.md, in addition to the built-in ones. "
        "built-in: only English home commands, if the model writes English. Empty: none.",
    )

    @property
    def own_file(self) -> str:
        """The user's file; "" without one."""
        return "" if self.file == BUILT_IN_SENTENCES else self.file


@dataclass(frozen=True, slots=True)
class VocabularySettings:
    """[vocabulary]"""

    words: tuple[str, ...] = key(
        (),
        "Words of your home that the model does not know: names of people, rooms, devices and "
        "places. They replace something similar if the sound allows it. At most 1000.",
        form=TextForm(
            "words or names of 1 to 64 letters",
            accepts=is_word,
            suggest=lambda text: " ".join(text.split()),
        ),
        group=WORDS, label="Names and words to recognise",
        help="One per line: people, rooms, devices, places. List only words that it gets wrong: "
             "every extra word is another chance of a false match.",
    )  # fmt: skip
    boost: float = key(
        -1.0,
        "How strongly these words are preferred. 0: off; higher values find more of them, also "
        "where you said another word. -1: what the model recommends, else 1.",
        low=-1.0, high=4.0,
        group=TEXTS, label="Preference for your words", blank=MODELS_OWN,
        help="0 is off. A higher value finds more of them and causes more false matches.",
    )  # fmt: skip
    replace: dict[str, str] = key(  # noqa: RUF009
        {},
        'Corrections: a table [vocabulary.replace] of heard and written text, such as "wood '
        'pecker" = "Woodpecker". Whole words, in any case.',
        form=TextForm(
            "at most 1000 words or names of 1 to 64 letters, each with the text for it",
            accepts=is_word,
        ),
        group=WORDS, label="Corrections: heard = written",
        help="One per line, for example: wood pecker = Woodpecker",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class GateSettings:
    """[gates]"""

    low_confidence: float = key(
        -1.0,
        "Transcripts with a lower confidence get the flag low_confidence, and nothing acts on "
        "them. 0: off, -1: what the model recommends.",
        low=-1.0, high=1.0,
        group=TEXTS, label="Mark as unsure below", blank=MODELS_OWN,
        help="Confidence of the text. 0 is off.",
    )  # fmt: skip
    act_confidence: float = key(
        -1.0,
        "Other transcripts with a lower confidence get the flag unsure_to_act: something acts on "
        "them only if they begin with assist.phrase. 0: off, -1: what the model recommends.",
        low=-1.0, high=1.0,
        group=TEXTS, label="Act on a text from", blank=MODELS_OWN,
        help="Confidence that Assist and the blueprints need, besides their own limit. 0 is off.",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """[store]"""

    path: str = key(
        "", "Folder of the local log. Empty: $STATE_DIRECTORY, else ~/.local/state/roomscribe."
    )
    retention_days: int = key(
        30, "Older transcripts are deleted; 0: none.", unit="days", low=0, high=3650,
        group=LOG, label="Keep sentences for", blank=(0, "no limit"),
    )  # fmt: skip
    retention_mb: int = key(
        512,
        "Most disk space for the log, about a kilobyte per transcript; the oldest are deleted "
        "first. 0: any size.",
        unit="MB", low=0, high=1_000_000,
        group=LOG, label="Maximum size", blank=(0, "no limit"),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SpoolSettings:
    """[spool]"""

    limit_mb: int = key(
        64,
        "Most memory for speech that is not transcribed yet (10 s take 0.3 MB); beyond it the "
        "oldest is discarded.",
        unit="MB", low=1, high=4096,
    )  # fmt: skip
    path: str = key(
        "",
        "Folder of the spool, in memory (tmpfs). Empty: $RUNTIME_DIRECTORY/spool, else a folder "
        "in $XDG_RUNTIME_DIR or /dev/shm.",
    )


@dataclass(frozen=True, slots=True)
class MqttSettings:
    """[mqtt]"""

    enabled: bool = key(True, "Publish to an MQTT broker.", group=MQTT, label="Publish to MQTT")
    host: str = key(
        "localhost",
        "Host name or address of the broker.",
        form=TextForm(
            "a host name or an address alone (the port is mqtt.port)",
            pattern=_HOST,
            suggest=_bare_host,
        ),
        group=MQTT, label="Broker",
    )  # fmt: skip
    port: int = key(1883, "TCP port of the broker.", low=1, high=65535, group=MQTT, label="Port")
    prefix: str = key(
        "roomscribe",
        "Beginning of all topics, before the node; the same for all rooms that work together.",
        form=_TOPIC,
    )
    username: str = key("", "User name at the broker. Empty: none.", group=MQTT, label="User name")
    password_file: str = key(
        "", "File with the password. Empty: the credential `roomscribe.mqtt-password`, if any."
    )
    tls: bool = key(
        False,
        "Encrypt the connection and verify the broker's certificate; the port is often 8883.",
        group=MQTT, label="Encrypt the connection (TLS)",
    )  # fmt: skip
    words: bool = key(
        False,
        "Transcripts have `words`: when each was spoken. Takes one more pass of the decoder.",
    )
    ca_file: str = key(
        "", "Authority that signed the broker's certificate (PEM). Empty: those of the system."
    )
    partials: bool = key(
        False,
        "Publish partial results while someone speaks. Costs one transcription per second of "
        "speech.",
        group=MQTT, label="Publish partial results while someone speaks",
        help="Takes one extra transcription per second of speech.",
    )  # fmt: skip

    def topic(self, node: str, name: str) -> str:
        """Return the topic `name` of the appliance `node`."""
        return f"{self.prefix}/{node}/{name}"


@dataclass(frozen=True, slots=True)
class HomeAssistantSettings:
    """[homeassistant]"""

    enabled: bool = key(
        True,
        "Announce the appliance to Home Assistant, which then shows it.",
        group=MQTT, label="Add this appliance to Home Assistant",
    )  # fmt: skip
    prefix: str = key("homeassistant", "Home Assistant's discovery prefix.", form=_TOPIC)
    area: str = key(
        "",
        "Area that Home Assistant assigns when it first sees the appliance. Empty: none.",
        form=TextForm(
            "a name of 64 letters at most, such as Kitchen",
            pattern=r"([^\s\x00-\x1f]([^\x00-\x1f]{0,62}[^\s\x00-\x1f])?)?",
            suggest=lambda text: " ".join(text.split())[:64].strip(),
        ),
        group=ROOM, label="Area in Home Assistant",
        help="Used when Home Assistant first sees this appliance.",
    )  # fmt: skip
    url: str = key(
        "",
        "Home Assistant's address, to read the names of rooms, floors and everything that is "
        "exposed to Assist. Empty: no connection.",
        form=TextForm(
            "an address such as http://homeassistant.local:8123",
            accepts=is_home_url,
            suggest=lambda text: "http://" + re.sub(r"^\w*:?//|[/?#].*$", "", text.strip()),
        ),
    )
    token_file: str = key(
        "",
        "File with a long-lived access token of Home Assistant. Empty: the credential "
        "`roomscribe.homeassistant-token`.",
    )

    @property
    def status_topic(self) -> str:
        """Topic of Home Assistant's birth and will messages (online, offline)."""
        return f"{self.prefix}/status"


@dataclass(frozen=True, slots=True)
class AssistSettings:
    """[assist]"""

    phrase: str = key(
        "",
        'Sentences that start with this phrase, such as "computer", go to Assist. '
        "Needs homeassistant.url or wyoming.satellite. Empty: none.",
        form=TextForm(
            "one to four words of letters, such as computer",
            pattern=r"([^\W\d_]{2,20}( [^\W\d_]{2,20}){0,3})?",
            suggest=lambda text: " ".join(re.findall(r"[^\W\d_]+", text)),
        ),
    )
    media: bool = key(
        True,
        "While a media player in this appliance's area of Home Assistant plays, nothing acts on a "
        "sentence without the phrase: a television may have said it. Needs a phrase.",
    )


@dataclass(frozen=True, slots=True)
class WebSettings:
    """[web]"""

    enabled: bool = key(
        False, "Serve the local page; `sudo roomscribe web enable` sets this and starts it."
    )
    listen: str = key(
        "127.0.0.1",
        "Address that the page listens on (0.0.0.0: every IPv4 address, :: every one), or the "
        "path of a socket for a proxy. Beyond 127.0.0.1 a password must be set.",
        form=TextForm(
            "an address such as 127.0.0.1 or 0.0.0.0, or the path of a socket",
            pattern=_ADDRESS + r"|/[^\s%]{1,100}",
            suggest=_LISTEN.get,
        ),
    )
    port: int = key(8099, "TCP port of the page.", low=1, high=65535)
    hosts: str = key(
        "",
        "Host names that the page accepts besides localhost, this machine's name and its "
        "addresses: those of a proxy.",
        form=TextForm(
            "host names with spaces between them",
            pattern=r"[0-9A-Za-z.-]*([\s,]+[0-9A-Za-z.-]+)*",
        ),
    )
    url: str = key(
        "",
        "Address of the page for the link in Home Assistant. Empty: made from listen and port.",
        form=TextForm(
            "an address such as http://kitchen.local:8099/",
            pattern=r"(https?://[^\s/?#@]+(/[^\s?#]*)?)?",
        ),
    )
    ingress: str = key(
        "",
        "Address of Home Assistant's supervisor (172.30.32.2), whose users need no other login. "
        "Empty: none.",
        form=TextForm("an address", pattern=f"({_ADDRESS})?"),
    )
    playback: bool = key(
        False,
        "Users of the page can play the last sentence, which is in memory, at most 60 s after "
        "its end.",
    )
    api: bool = key(
        False,
        "Programs with a token (`roomscribe web token`) can transcribe sound files over "
        "OpenAI's API.",
    )
    cors: str = key(
        "",
        "Origins of web pages whose scripts may use that interface, with their token, such as "
        "https://chat.example.org; *: all. Empty: none.",
        form=TextForm(
            "origins with spaces between them, or *",
            pattern=r"(\*|https?://[^\s/]+( +https?://[^\s/]+)*)?",
        ),
    )
    path: str = key(
        "",
        "Folder of the page's password and sessions. Empty: /var/lib/roomscribe-web if the package "
        "is installed, else ~/.local/state/roomscribe-web.",
    )


_LANGUAGES = """
af=afrikaans sq=albanian am=amharic ar=arabic hy=armenian as=assamese az=azerbaijani ba=bashkir
eu=basque be=belarusian bn=bengali bs=bosnian br=breton bg=bulgarian yue=cantonese ca=catalan
zh=chinese hr=croatian cs=czech da=danish nl=dutch en=english et=estonian fo=faroese fi=finnish
fr=french gl=galician ka=georgian de=german el=greek gu=gujarati ha=hausa haw=hawaiian he=hebrew
hi=hindi hu=hungarian is=icelandic id=indonesian it=italian ja=japanese jw=javanese kn=kannada
kk=kazakh km=khmer ko=korean lo=lao la=latin lv=latvian ln=lingala lt=lithuanian lb=luxembourgish
mk=macedonian mg=malagasy ms=malay ml=malayalam mt=maltese mi=maori mr=marathi mn=mongolian
my=myanmar ne=nepali no=norwegian nn=nynorsk oc=occitan ps=pashto fa=persian pl=polish
pt=portuguese pa=punjabi ro=romanian ru=russian sa=sanskrit sr=serbian sn=shona sd=sindhi
si=sinhala sk=slovak sl=slovenian so=somali es=spanish su=sundanese sw=swahili sv=swedish
tl=tagalog tg=tajik ta=tamil tt=tatar te=telugu th=thai bo=tibetan tr=turkish tk=turkmen
uk=ukrainian ur=urdu uz=uzbek vi=vietnamese cy=welsh yi=yiddish yo=yoruba
"""
LANGUAGES = dict(entry.split("=") for entry in _LANGUAGES.split()) | {"ht": "haitian creole"}
"""English names of Whisper's languages by their codes (openai/whisper, tokenizer.py, LANGUAGES)."""

WYOMING_SOCKET = "wyoming.sock"
"""File beside the control socket, over which the page sends sound in Wyoming's events."""


@dataclass(frozen=True, slots=True)
class WyomingSettings:
    """[wyoming]"""

    enabled: bool = key(
        False,
        "Transcribe for Home Assistant and other clients over the Wyoming protocol, which has "
        "no password.",
    )
    listen: str = key(
        "0.0.0.0",
        "Address to listen on. 0.0.0.0 is every IPv4 address of this machine, :: also IPv6.",
        form=TextForm(
            "an address of this machine such as 0.0.0.0, :: or 127.0.0.1",
            accepts=is_address,
            suggest=_LISTEN.get,
        ),
    )
    port: int = key(10300, "TCP port.", low=1, high=65535)
    allow: tuple[str, ...] = key(
        ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1", "fc00::/7",
         "fe80::/10"),
        "Addresses and ranges from which clients may connect.",
        form=TextForm("addresses or ranges such as 192.168.0.0/16", accepts=parse_network),
    )  # fmt: skip
    log: bool = key(
        False,
        "Store and publish these transcripts, too, with the source `wyoming`.",
    )
    acts: bool = key(
        True,
        "Answer with an expected sentence in place of the text where it is sure enough to act on.",
    )

    satellite: bool = key(
        False,
        "Let Home Assistant add this room as a voice satellite, see docs/talk.md. Needs no token.",
    )
    satellite_port: int = key(10700, "TCP port of the satellite.", low=1, high=65535)

    @property
    def announced(self) -> bool:
        """True if the network is to know of the server: not if only this machine can reach it."""
        return not self.listen.startswith(("127.", "::1"))


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """[fleet]"""

    role: str = key(
        "alone",
        "Several rooms together, see docs/fleet.md. satellite: workers transcribe what is said "
        "here, or this machine's model, if you chose one, while no worker can; worker: "
        "transcribes for the satellites, its own room first.",
        choices=("alone", "satellite", "worker"),
    )
    server: str = key(
        "nats://127.0.0.1:4222",
        "The NATS server that the rooms share: tls://HOST:PORT, or nats:// for this machine alone.",
        form=TextForm(
            "an address such as tls://192.168.1.10:4222, without a user or a path",
            accepts=fleet_server,
            suggest=lambda text: f"tls://{_bare_host(text)}:4222",
        ),
    )
    credential: str = key(
        "",
        'File (mode 0600) with the lines user = "..." and password = "..." for the server; '
        "empty: the credential `roomscribe.fleet`, if any.",
    )
    ca: str = key(
        "", "The authority that signed the server's certificate (PEM); empty: those of the system."
    )


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """[journal]"""

    text: bool = key(
        False,
        "Write the text of transcripts to systemd's journal, too.",
        group=SYSTEM, label="Write sentences to the system journal",
        help="Everyone who can read the journal can then read them.",
    )  # fmt: skip
    level: str = key(
        "info", "Least severe message shown.", choices=("debug", "info", "warning", "error"),
        group=SYSTEM, label="Messages in the system journal", shown={"debug": "Everything",
        "info": "Information and warnings", "warning": "Warnings", "error": "Errors only"},
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole configuration."""

    appliance: ApplianceSettings = field(default_factory=ApplianceSettings)
    capture: CaptureSettings = field(default_factory=CaptureSettings)
    speaker: SpeakerSettings = field(default_factory=SpeakerSettings)
    voice: VoiceSettings = field(default_factory=VoiceSettings)
    segmenter: SegmenterSettings = field(default_factory=SegmenterSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    decoder: DecoderSettings = field(default_factory=DecoderSettings)
    phrases: PhrasesSettings = field(default_factory=PhrasesSettings)
    vocabulary: VocabularySettings = field(default_factory=VocabularySettings)
    gates: GateSettings = field(default_factory=GateSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    spool: SpoolSettings = field(default_factory=SpoolSettings)
    mqtt: MqttSettings = field(default_factory=MqttSettings)
    homeassistant: HomeAssistantSettings = field(default_factory=HomeAssistantSettings)
    assist: AssistSettings = field(default_factory=AssistSettings)
    web: WebSettings = field(default_factory=WebSettings)
    wyoming: WyomingSettings = field(default_factory=WyomingSettings)
    fleet: FleetSettings = field(default_factory=FleetSettings)
    journal: JournalSettings = field(default_factory=JournalSettings)


DEFAULT_PATH = Path("/etc/roomscribe/roomscribe.toml")

MOST_BYTES = 1 << 20
"""A longer file is no configuration."""
OVERLAY_HEAD = "# Chosen over the control socket; `roomscribe setup` moves it into roomscribe.toml."
REMOVED = frozenset({"decoder.backend"})
"""Keys (section.key) of earlier versions that this one does not have. They are ignored."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_MEANT = {"npu": "hailo"}
"""What people write and what they mean by it, where another choice looks more alike."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake in a configuration."""

    keys: tuple[str, ...]
    """The keys (section.key; `section.` for the whole section) whose values it leaves open."""
    text: str
    """What is wrong, on one line, with the file in front."""


EVERYTHING = tuple(f"{section}." for section in get_type_hints(Settings))
"""Keys of a mistake for which the whole file is unknown."""


@dataclass(frozen=True, slots=True)
class Layer:
    """What one text says: the right values by section and key, and its mistakes."""

    origin: str
    """The file, for messages."""
    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    mistakes: tuple[Mistake, ...] = ()
    ignored: tuple[str, ...] = ()
    """One line for each key or empty section that an older version had."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A configuration that was read, with its mistakes."""

    settings: Settings
    """The right values, and defaults for all others."""
    mistakes: tuple[Mistake, ...] = ()
    cause: OSError | None = None
    """Why the file cannot be read."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """The file of each key (section.key) that has not its default."""
    ignored: tuple[str, ...] = ()
    """One line for each key or empty section that an older version had."""

    @property
    def wrong_sections(self) -> frozenset[str]:
        """Sections with a mistake; all sections if the file cannot be read."""
        keys = (key for mistake in self.mistakes for key in mistake.keys)
        return frozenset(key.partition(".")[0] for key in keys)

    def or_raise(self) -> Settings:
        """Return the settings. Raises ConfigError with one message for each mistake."""
        if self.mistakes:
            raise ConfigError(*(mistake.text for mistake in self.mistakes)) from self.cause
        return self.settings


def load(path: Path | None) -> Settings:
    """Return the settings of `path`; None: of the default path, or the defaults without a file.

    Values of the `overlay_file` go first. Raises ConfigError with one message for each mistake.
    """
    return read(path).or_raise()


def parse(text: str, origin: str) -> Settings:
    """Return the settings in TOML `text`; `origin` names it in messages. Raises ConfigError."""
    return merge(read_layer(text, origin)).or_raise()


def take_leftovers(
    table: dict[str, Any], origin: str, removed: frozenset[str] = REMOVED
) -> list[str]:
    """Take out of `table` what an upgrade may have left in it: `removed` keys, and unknown sections
    without keys. Return a line for each."""
    lines = []
    for section, content in [*table.items()]:
        for name in [*content] if isinstance(content, dict) else ():
            if f"{section}.{name}" in removed:
                del content[name]
                lines.append(f"{origin}: {section}.{name} has no effect in this version; delete it")
        if content == {} and section not in get_type_hints(Settings):
            del table[section]
            lines.append(f"{origin}: the section [{shorten(section)}] is unknown and empty")
    return lines


def default_path() -> Path:
    """Return the configuration without --config: for an ordinary user on a machine without the
    package, the one in their home."""
    if not os.geteuid() or DEFAULT_PATH.parent.exists():
        return DEFAULT_PATH
    return user_folder("XDG_CONFIG_HOME", ".config") / DEFAULT_PATH.name


def read(
    path: Path | None,
    chosen: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    may_lack: bool = False,
) -> Reading:
    """Return what `load` reads, with its mistakes; `chosen` replaces the overlay, if given. With
    `may_lack`, the file at `path` need not exist."""
    file = path or default_path()
    cause = None
    try:
        with file.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
        if len(data) <= MOST_BYTES:
            return _with_overlay(read_layer(data.decode("utf-8-sig"), str(file)), chosen)
        found = "in TOML, found more than 1 MB"
    except FileNotFoundError:
        if path is None or may_lack:
            return _with_overlay(Layer(str(file)), chosen)
        found = "in TOML, found no such file; write one, or leave out --config to use the defaults"
    except IsADirectoryError:
        found = "in TOML, found a folder; name the file in it"
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        found = f"in UTF-8, found another byte in line {line}; save it as UTF-8"
    except PermissionError:
        found = "in TOML, found a file that you may not read; run this with sudo"
    except OSError as error:
        found, cause = f"in TOML, found {error.strerror}; check its disk", error
    mistake = Mistake(EVERYTHING, f"{file}: expected a configuration {found}")
    return Reading(Settings(), (mistake,), cause)


def _with_overlay(layer: Layer, chosen: Mapping[str, Mapping[str, Any]] | None) -> Reading:
    """Return the layer with `chosen` over it, or the overlay file.

    An overlay that this user may not read is ignored; neither may they read the log beside it.
    """
    below = merge(layer)
    if "store" in below.wrong_sections:
        return below
    try:
        file = overlay_file(below.settings)
        over = file.read_bytes()[:MOST_BYTES].decode() if chosen is None else as_toml(chosen)
    except (OSError, UnicodeDecodeError, RuntimeError):  # of a home that nobody has
        return below
    return merge(layer, read_layer(over, str(file)))


def read_layer(text: str, origin: str) -> Layer:
    """Return what a text in TOML says; `origin` names it in messages."""
    try:
        table = tomllib.loads(text)
    except RecursionError:
        cause = "too many nested brackets"
    except ValueError as error:  # TOMLDecodeError, and int's own for one of thousands of digits
        cause = re.sub(r"Cannot declare \('(.*)',\) twice", r"[\1] stands there twice", str(error))
        cause = shorten(cause, 200)
        cause += "; a text stands in quotes" if "Invalid value" in cause else ""
    else:
        ignored = take_leftovers(table, origin)
        values: dict[str, dict[str, Any]] = {}
        mistakes = list[Mistake]()
        for section, content in table.items():
            if wrong := _mistake_of_section(section, content):
                mistakes.append(wrong)
                continue
            found = {name: _mistake_of_key(section, name, content[name]) for name in content}
            mistakes += filter(None, found.values())
            types = get_type_hints(get_type_hints(Settings)[section])
            right = (name for name, wrong in found.items() if not wrong)
            values[section] = {name: types[name](content[name]) for name in right}
        named = (replace(each, text=f"{origin}: {each.text}") for each in mistakes)
        return Layer(origin, values, tuple(named), tuple(ignored))
    return Layer(origin, {}, (Mistake(EVERYTHING, f"{origin}: not valid TOML: {cause}"),))


def merge(*layers: Layer) -> Reading:
    """Return the configuration of these layers; the last one wins."""
    values: dict[str, dict[str, Any]] = {section: {} for section in get_type_hints(Settings)}
    origins: dict[str, str] = {}
    for layer in layers:
        for section, content in layer.values.items():
            values[section].update(content)
            origins.update({f"{section}.{name}": layer.origin for name in content})
    kinds = get_type_hints(Settings)
    settings = Settings(**{section: kinds[section](**right) for section, right in values.items()})
    mistakes = [mistake for layer in layers for mistake in layer.mistakes]
    unknown = {key for mistake in mistakes for key in mistake.keys}
    for each in contradictions(settings):
        sections = {f"{key.partition('.')[0]}." for key in each.keys}
        if unknown.isdisjoint(sections | {*each.keys}):
            mistakes.append(replace(each, text=f"{layers[-1].origin}: {each.text}"))
    ignored = tuple(line for layer in layers for line in layer.ignored)
    return Reading(settings, tuple(mistakes), origins=origins, ignored=ignored)


def overlay_file(settings: Settings) -> Path:
    """Return the file of values chosen over the control socket: beside the log.

    The daemon may not write to /etc. These values go before those of the configuration.
    """
    return store_folder(settings.store) / "settings.toml"


def as_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Return sections and keys (texts, numbers, booleans, lists, tables of texts) as TOML."""
    lines = [OVERLAY_HEAD]
    for section, content in tables.items():
        lines += ["", f"[{section}]"]
        # a JSON text is a TOML text, except for DEL, which no value may contain
        lines += [f"{name} = {_as_value(value)}" for name, value in content.items()]
    return "\n".join([*lines, ""])


def _as_value(value: Any) -> str:
    if not isinstance(value, dict):
        return json.dumps(value)
    pairs = (f"{json.dumps(name)} = {json.dumps(text)}" for name, text in value.items())
    return f"{{ {', '.join(pairs)} }}"


def explain_value(name: str, value: Any) -> str:
    """Return what is wrong with `value` for the key `name` (section.key); empty if nothing is."""
    for section, entry in keys():
        if f"{section}.{entry.name}" == name:
            return _explain(
                entry, get_type_hints(get_type_hints(Settings)[section])[entry.name], value
            )
    near = _near(name, [f"{section}.{entry.name}" for section, entry in keys()])
    return f"unknown key{f'; did you mean {near[0]}?' if near else ''}"


def store_folder(settings: StoreSettings) -> Path:
    """Return the log's folder: store.path, else systemd's state directory, else the user's."""
    if settings.path:
        return Path(settings.path).expanduser()
    given = os.environ.get("STATE_DIRECTORY", "").split(":")[0]
    return Path(given) if given else Path("~/.local/state/roomscribe").expanduser()


def keys() -> Iterator[tuple[str, Field[Any]]]:
    """Yield (section, field) of every key, in the order of config/roomscribe.toml."""
    for section, kind in get_type_hints(Settings).items():
        for entry in fields(kind):
            yield section, entry


def page_url(web: WebSettings) -> str:
    """Return the page's address for other machines; empty if it is off or only local."""
    host = {"0.0.0.0": "", "::": ""}.get(web.listen, web.listen)
    host = host or f"{socket.gethostname().split('.')[0]}.local"
    if not web.enabled or web.url or web.ingress or host.startswith(("/", "127.", "::1")):
        return web.url if web.enabled else ""
    return f"http://{url_host(host)}:{web.port}/"


def node_name(settings: Settings) -> str:
    """Return the configured node, or a slug of the host name: [a-z0-9_], never empty."""
    host = socket.gethostname().split(".")[0]
    return settings.appliance.node or slug(host) or "roomscribe"


def room_name(node: str, area: str) -> str:
    """Return what people call the appliance: the area as typed, if the node was made from it."""
    return area if slug(area) == node else node


def _explain(entry: Field[Any], kind: type, value: Any) -> str:
    """Return what is wrong with `value`; empty if nothing is."""
    if kind == dict[str, str]:
        return _explain_table(entry, value)
    if kind != tuple[str, ...]:
        return _explain_text_or_number(entry, kind, value)
    if not isinstance(value, list):
        return f"expected a list of texts, found {_shown(value)}"
    return next(filter(None, (_explain_text_or_number(entry, str, text) for text in value)), "")


def _explain_table(entry: Field[Any], value: Any) -> str:
    if not isinstance(value, dict) or len(value) > WORDS_AT_MOST:
        found = f"{len(value)} of them" if isinstance(value, dict) else _shown(value)
        return f"expected {entry.metadata['form'].description}, found {found}"
    allowed = entry.metadata["names"]
    if unknown := [name for name in value if allowed and name not in allowed]:
        return f"unknown key {shorten(unknown[0])}; expected {', '.join(allowed)}"
    texts = (text for pair in value.items() for text in pair)
    return next(filter(None, (_explain_text_or_number(entry, str, text) for text in texts)), "")


def _explain_text_or_number(entry: Field[Any], kind: type, value: Any) -> str:
    whole_as_number = kind is float and type(value) is int
    limits = entry.metadata
    if type(value) is not kind and not whole_as_number:
        return f"expected {_TYPE_NAMES[kind]}, found {_shown(value)}"
    if kind is str and _CONTROL.search(value):
        return f"expected text without control characters, found {_shown(value)}"
    if limits["choices"] and value not in limits["choices"]:
        guesses = [_MEANT.get(value.lower(), ""), *_near(value, limits["choices"], 0.7)]
        hint = next(
            (f"; did you mean {name}?" for name in guesses if name in limits["choices"]), ""
        )
        return f"expected one of {', '.join(limits['choices'])}, found {_shown(value)}{hint}"
    low, high, unit = limits["low"], limits["high"], limits["unit"]
    if low is not None and not low <= value <= high:
        return f"expected {low} to {high}{' ' + unit if unit else ''}, found {_shown(value)}"
    form: TextForm = limits["form"]
    if kind is str and not form.fits(value):
        meant = form.suggest(value)
        hint = f"; did you mean {shorten(meant)}?" if meant and form.fits(meant) else ""
        return f"expected {form.description}, found {_shown(value)}{hint}"
    return ""


def contradictions(settings: Settings) -> Iterator[Mistake]:
    """Yield what is wrong with values that contradict each other."""
    mqtt = settings.mqtt
    yield from _fleet_contradictions(settings)
    phrase, by_text = settings.assist.phrase, bool(settings.homeassistant.url)
    heard = by_text or settings.wyoming.satellite
    for name, beside, there, wanted, found in (
        ("assist.phrase", "homeassistant.url", heard or not phrase,
         "Home Assistant's address as homeassistant.url", "none"),
        ("assist.phrase", "homeassistant.enabled",
         settings.homeassistant.enabled or not (phrase and by_text),
         "true as homeassistant.enabled", "false"),
        ("assist.phrase", "mqtt.enabled", mqtt.enabled or not (phrase and by_text),
         "true as mqtt.enabled", "false"),
        ("mqtt.password_file", "mqtt.username", mqtt.username or not mqtt.password_file,
         "mqtt.username", "none"),
        ("mqtt.ca_file", "mqtt.tls", mqtt.tls or not mqtt.ca_file, "mqtt.tls = true", "false"),
    ):  # fmt: skip
        if not there:
            yield Mistake((name, beside), f"{name}: expected {wanted} beside it, found {found}")


def _fleet_contradictions(settings: Settings) -> Iterator[Mistake]:
    """Yield what `contradictions` yields, for [fleet]."""
    fleet = settings.fleet
    if fleet.role == "alone":
        return
    scheme, host, port = fleet_server(fleet.server)
    if scheme == "nats" and not is_loopback(host):
        yield Mistake(
            ("fleet.role", "fleet.server"),
            f"fleet.server: expected tls:// beyond this machine, as sound goes there, found "
            f"{shorten(fleet.server)}; write tls://{host}:{port} and give it a certificate "
            "(`roomscribe fleet invite` does)",
        )
    if fleet.role == "satellite" and settings.capture.device == NO_DEVICE:
        text = 'capture.device: expected a microphone for fleet.role = "satellite", found none'
        yield Mistake(("fleet.role", "capture.device"), text)


def _near(name: str, known: Iterable[str], least: float = 0.6) -> list[str]:
    """Return the entry of `known` that is most like `name`, if one is."""
    return difflib.get_close_matches(name.lower(), list(known), 1, least)


def _mistake_of_section(name: str, content: Any) -> Mistake | None:
    """Return what is wrong with a section as a whole, or with a key above all sections."""
    sections = get_type_hints(Settings)
    if name in sections:
        text = f"{name} is a section: write [{name}] above its keys"
        return None if isinstance(content, dict) else Mistake((f"{name}.",), text)
    if not isinstance(content, dict) and (owners := _sections_with(name)):
        text = f"{name} is a key: write it below {_bracketed(owners)}"
        return Mistake(tuple(f"{owner}." for owner in owners), text)
    near = _near(name, sections)
    fix = f"did you mean {near[0]}?" if near else f"known: {', '.join(sections)}"
    text = f"unknown section [{shorten(name)}]; {fix}"
    return Mistake(tuple(f"{name}." for name in near), text)


def _mistake_of_key(section: str, name: str, value: Any) -> Mistake | None:
    """Return what is wrong with a key of a section, or its value; None if nothing is."""
    kind = get_type_hints(Settings)[section]
    known = {entry.name: entry for entry in fields(kind)}
    if name in known:
        wrong = _explain(known[name], get_type_hints(kind)[name], value)
        key = f"{section}.{name}"
        return Mistake((key,), f"{key}: {wrong}") if wrong else None
    near = _near(name, known)
    fix = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
    if 0 < len(owners := _sections_with(name)) < 3:
        fix = f"it belongs below {_bracketed(owners)}"
    meant = tuple(f"{section}.{key}" for key in ("", *near))
    return Mistake(meant, f"{section}: unknown key {shorten(name)}; {fix}")


def _sections_with(name: str) -> list[str]:
    """Return the sections that have such a key."""
    return [section for section, entry in keys() if entry.name == name]


def _bracketed(sections: list[str]) -> str:
    return " or ".join(f"[{section}]" for section in sections)


def _shown(value: Any) -> str:
    """Return `value` as TOML shows it, shortened."""
    try:
        text = str(value).lower() if isinstance(value, bool) else repr(value)
    except (ValueError, RecursionError):
        text = "something endless"
    return shorten(text)
