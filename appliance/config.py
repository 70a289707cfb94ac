"""Every configuration key, and TOML to the settings tree with every trouble reported at once.

A section is a frozen dataclass, a key a field of it with default, unit, range and meaning;
config/roomscribe.toml shows them to people, and a test keeps the two equal. A message names file,
section and key, what was expected, what was found, and the nearest right key.

Over 500 lines because it is one table and its reader.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import socket
import tomllib
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
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
    form: str = "",
    mend: Callable[[str], str] | None = None,
    fits: Callable[[str], bool] | None = None,
    alone: bool = False,
) -> Any:
    """A configuration key as a dataclass field: default, meaning, unit and limits (inclusive).

    `form` says in words what `pattern` and `fits` ask for, of each text in a list; `mend` makes of
    a wrong text one that may be meant. `alone`: a text may stand for a list of one.
    """
    limits = {"unit": unit, "low": low, "high": high, "choices": choices}
    texts = {"pattern": pattern, "form": form, "mend": mend, "fits": fits, "alone": alone}
    given: dict[str, Any] = {"default": default}
    if isinstance(default, dict):
        given = {"default_factory": dict}
    return field(**given, metadata={"sentence": sentence, **limits, **texts})


_LATIN = str.maketrans({"æ": "ae", "œ": "oe", "ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th"})
"""Letters that Unicode does not decompose into one of a to z and an accent."""


def slug(name: str) -> str:
    """`name` as a node may be called: [a-z0-9_], accents left out, 64 at most; maybe empty."""
    plain = (
        unicodedata.normalize("NFKD", name.casefold().translate(_LATIN))
        .encode("ascii", "ignore")
        .decode()
    )
    return re.sub(r"[^a-z0-9]+", "_", plain).strip("_")[:64]


def _bare_host(text: str) -> str:
    """The host of mqtt://user@broker.local:1883/."""
    host = re.sub(r"^\w+://", "", text.strip()).partition("/")[0].rpartition("@")[2]
    return re.sub(r":\d+$|[\[\]]", "", host)


def is_address(text: str) -> bool:
    """True for an IPv4 or IPv6 address."""
    from ipaddress import ip_address

    with suppress(ValueError):
        return bool(ip_address(text))
    return False


def is_home_url(text: str) -> bool:
    """True for an address of http, https, ws or wss without a password in it, and for ""."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    fits = parts.scheme in ("http", "https", "ws", "wss") and parts.hostname and port != 0
    return not text or bool(fits and not re.search(r"[\s?#@]", text) and len(text) <= 300)


def is_network(text: str) -> bool:
    """True for a range of addresses, or for one."""
    from ipaddress import ip_network

    with suppress(ValueError):
        return bool(ip_network(text, strict=False))
    return False


def fleet_server(text: str) -> tuple[str, str, int]:
    """Scheme, host and port of a server of the fleet, 4222 where no port is named.

    Raises ValueError for what is no such address.
    """
    from urllib.parse import urlsplit

    parts = urlsplit(text)
    host, port = parts.hostname or "", 4222 if parts.port is None else parts.port
    known = parts.scheme in ("nats", "tls") and re.fullmatch(_HOST, host) and port
    if not known or parts.username is not None or parts.path or parts.query or parts.fragment:
        raise ValueError(text)
    return parts.scheme, host, port


def is_fleet_server(text: str) -> bool:
    """True for nats:// or tls://, a host and perhaps a port, and nothing else."""
    with suppress(ValueError):
        return bool(fleet_server(text))
    return False


def is_loopback(host: str) -> bool:
    """True for an address, or the name, by which a machine reaches itself alone."""
    from ipaddress import ip_address

    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host.lower() == "localhost"


WORDS_AT_MOST = 1000
"""Words of a home, those that others give and corrections."""


def is_word(text: str) -> bool:
    """True for what may be a word or a name of several: 1 to 64 characters, letters or digits among
    them, on one line."""
    said = any(one.isalnum() for one in text)
    return said and len(text) <= 64 and text == text.strip() and text.isprintable()


_HOST = r"[^\s./:]{1,63}(\.[^\s./:]{1,63}){0,31}\.?|[0-9A-Fa-f.]*(:[0-9A-Fa-f.]*){2,8}(%\w+)?"
NO_DEVICE = "none"
"""capture.device of a machine without a microphone."""
_TOPIC = "words of a-z, A-Z, 0-9, _ and - with / between them"


@dataclass(frozen=True, slots=True)
class ApplianceSettings:
    """[appliance]"""

    node: str = key(
        "",
        "Name of this appliance in topics and events; empty: made from the host name.",
        pattern=r"[a-z0-9_]{0,64}",
        form="at most 64 of a-z, 0-9 and _",
        mend=slug,
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
        "",
        "Microphone: part of its name as `roomscribe devices` shows it; empty: the default one; "
        "none: this machine has none, and transcribes for others alone.",
    )
    silence_s: float = key(
        10.0,
        "A microphone that gives nothing but zeros for so long counts as off (muted by a switch or "
        "in the mixer) until it gives sound; 0: never, for one that cuts all noise out itself.",
        unit="s", low=0.0, high=3600.0,
    )  # fmt: skip
    block_ms: int = key(30, "Length of one read from the microphone.", unit="ms", low=10, high=100)
    recording: str = key(
        "", "A sound file (or - for standard input) to hear in place of the microphone."
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
    end_by_sound: bool = key(
        True,
        "Date the end of speech by the sound, too (level, and how the detector's score falls); "
        "false: by the detector alone, 100 to 250 ms later.",
    )
    speculate: bool = key(
        True,
        "Transcribe after 300 ms of silence what is thrown away if speech goes on, so that the "
        "text is there when the utterance ends.",
    )
    early_ms: int = key(
        350,
        "Silence that ends an utterance whose text, made after 300 ms, is surely a whole sentence; "
        "one that is plainly unfinished is waited for 400 ms longer than hang_over_ms, to 1000 ms "
        "at most. What is said after all is the next transcript, which `continues` the one before. "
        "0: hang_over_ms for all; needs speculate.",
        unit="ms", low=0, high=1000,
    )  # fmt: skip
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
class TranscriberSettings:
    """[transcriber]"""

    backend: str = key(
        "model",
        "What makes texts of sound. model: a model on this machine; wyoming: a Wyoming "
        "speech-to-text server in the house, such as another Roomscribe or wyoming-faster-whisper, "
        "is sent what is said, unencrypted. While it is away what is said waits: see [spool].",
        choices=("model", "wyoming"),
    )
    host: str = key(
        "",
        "Host name or address of the server.",
        pattern=f"({_HOST})?",
        form="a host name or an address alone (the port is transcriber.port)",
        mend=_bare_host,
    )
    port: int = key(10300, "TCP port of the server.", low=1, high=65535)
    language: str = key(
        "",
        "Language that the server is asked for; empty: it decides.",
        pattern=r"([A-Za-z]{2,3}(-[0-9A-Za-z]{2,8})*)?",
        form="an ISO 639 code such as en",
        mend=lambda text: text.strip().replace("_", "-"),
    )
    timeout_s: float = key(
        10.0,
        "The server has this time and as long as the speech itself lasts, for each window.",
        unit="s", low=1.0, high=120.0,
    )  # fmt: skip
    fallback: bool = key(
        True,
        "While the server is away, use the model that [model] bundle names or `roomscribe model "
        "use` chose, if one is; false, or none chosen: what is said waits.",
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
        "too (hailo-share.conf has what systemd must allow); a Hailo-10H needs no service; false: "
        "nobody else can use it.",
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
    language: str = key(
        "",
        "What is spoken, for models of several languages: a code such as de; auto: each window's "
        "is found out, one of `languages`, and its probability told. Empty: the one that the model "
        "was added with.",
        pattern=r"(auto|[a-z]{2,3})?",
        form="auto or an ISO 639 code such as de",
        mend=lambda text: text.strip().lower()[:2],
    )
    languages: tuple[str, ...] = key(
        (),
        "The languages that auto chooses from; empty: all that the model knows. Few are told apart "
        "better than many.",
        pattern=r"[a-z]{2,3}",
        form="ISO 639 codes such as de",
        mend=lambda text: text.strip().lower()[:2],
    )
    temperature_fallback: bool = key(
        False,
        "Decode again at temperatures 0.2, 0.4 .. 1.0 while the text is a repetition or of low "
        "confidence by the [gates], as Whisper does; up to six times as long.",
    )
    drafts: bool = key(
        True,
        "What was said before with the same beginning is verified in one pass of the decoder: the "
        "same text, bit by bit, in less time. For models of 8-bit weights, those from before this "
        "key once they are added again; the others decode as without. The last 400 sentences stay "
        "in the process's memory, and of the decoder a quarter more.",
    )


@dataclass(frozen=True, slots=True)
class PhrasesSettings:
    """[phrases]"""

    file: str = key(
        "bundle",
        "File of sentences that are expected, see docs/phrases.md: which of them was said, with "
        "its slots, stands beside the text in each event. bundle: those that come with the model, "
        "if any do; empty: none.",
    )


@dataclass(frozen=True, slots=True)
class VocabularySettings:
    """[vocabulary]"""

    words: tuple[str, ...] = key(
        (),
        "Words of this home that the model was not taught: names of people, rooms, devices and "
        "places, as they are to be written. Where a text has something like one of them, and the "
        "sound allows it, that word is written. At most 1000 with those of the file.",
        form="words or names of 1 to 64 letters",
        mend=lambda text: " ".join(text.split()),
        fits=is_word,
    )
    file: str = key("", "File of more words, one a line (# begins a comment); empty: none.")
    boost: float = key(
        -1.0,
        "How much is done for these words: 0 is off, more finds more of them and writes one more "
        "often where another was said; -1: what the bundle recommends, 1 where it says nothing.",
        low=-1.0,
        high=4.0,
    )
    replace: dict[str, str] = key(  # noqa: RUF009
        {},
        'A table [vocabulary.replace] of what the model hears and what is to be written: "wood '
        'pecker" = "Woodpecker"; whole words, whatever their case. Such texts are flagged '
        "corrected.",
        form="at most 1000 words or names of 1 to 64 letters, each with the text for it",
        fits=is_word,
    )


@dataclass(frozen=True, slots=True)
class GateSettings:
    """[gates]"""

    no_speech_sure: float = key(
        -1.0,
        "Windows that the model takes for no speech with more than this are discarded, whatever "
        "their text, unless 0.85 s of them are voiced and the text is not doubtful; 1 is off, -1: "
        "what the bundle recommends.",
        low=-1.0,
        high=1.0,
    )
    no_speech_prob: float = key(
        0.6, "The same, from this on, for windows whose text has less than avg_logprob.",
        low=0.0, high=1.0,
    )  # fmt: skip
    no_speech_lone: float = key(
        -1.0,
        "The same, from this on, for a single word of which the model is less than 78 % sure: what "
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
        "localhost",
        "Host name or address of the broker.",
        pattern=_HOST,
        form="a host name or an address alone (the port is mqtt.port)",
        mend=_bare_host,
    )
    port: int = key(1883, "TCP port of the broker.", low=1, high=65535)
    username: str = key("", "User name at the broker; empty: none.")
    password_file: str = key(
        "", "File holding the password; empty: the credential `roomscribe.mqtt-password`, if any."
    )
    client_id: str = key(
        "", "MQTT client id, unique at the broker; empty: roomscribe-<node>.",
        pattern=r"[0-9A-Za-z_-]{0,64}",
        form="at most 64 of a-z, A-Z, 0-9, _ and -",
        mend=lambda text: re.sub(r"[^0-9A-Za-z_-]+", "-", text)[:64],
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
    partials: bool = key(
        False,
        "Tell on the topic `partial` what somebody says while it is said. Costs a transcription a "
        "second of speech.",
    )


@dataclass(frozen=True, slots=True)
class HomeAssistantSettings:
    """[homeassistant]"""

    enabled: bool = key(True, "Announce the appliance to Home Assistant, which then shows it.")
    prefix: str = key(
        "homeassistant",
        "Where Home Assistant looks for announcements (its discovery prefix).",
        pattern=r"[0-9A-Za-z_-]+(/[0-9A-Za-z_-]+)*",
        form=_TOPIC,
        mend=lambda text: text.strip("/# "),
    )
    status_topic: str = key(
        "homeassistant/status",
        "Where Home Assistant says online and offline (its birth and will messages).",
        pattern=r"[0-9A-Za-z_-]+(/[0-9A-Za-z_-]+)*",
        form=_TOPIC,
        mend=lambda text: text.strip("/# "),
    )
    area: str = key(
        "", "Room that Home Assistant puts the appliance into when it first sees it; empty: none.",
        pattern=r"([^\s\x00-\x1f]([^\x00-\x1f]{0,62}[^\s\x00-\x1f])?)?",
        form="a name of 64 letters at most, such as Kitchen",
        mend=lambda text: " ".join(text.split())[:64].strip(),
    )  # fmt: skip
    hold_s: int = key(
        600,
        "Transcripts wait at most this long for a Home Assistant that was seen and is away, and "
        "never longer than mqtt.expiry_s; 0: they do not wait.",
        unit="s", low=0, high=86400,
    )  # fmt: skip
    url: str = key(
        "",
        "Home Assistant's address, to ask it for the names of what it exposes to Assist, and of "
        "rooms and floors: the words that are said in this home. Empty: it is not asked.",
        form="an address such as http://homeassistant.local:8123",
        mend=lambda text: "http://" + re.sub(r"^\w*:?//|[/?#].*$", "", text.strip()),
        fits=is_home_url,
    )
    token_file: str = key(
        "",
        "File holding a long-lived access token of Home Assistant; empty: the credential "
        "`roomscribe.homeassistant-token`.",
    )


@dataclass(frozen=True, slots=True)
class AssistSettings:
    """[assist]"""

    phrase: str = key(
        "",
        'A sentence that begins with this phrase, such as "computer", is handed over to Home '
        "Assistant's Assist, which acts in this appliance's room; it needs homeassistant.url. "
        "Empty: nothing is handed over.",
        pattern=r"([^\W\d_]{2,20}( [^\W\d_]{2,20}){0,3})?",
        form="one to four words of letters, such as computer",
        mend=lambda text: " ".join(re.findall(r"[^\W\d_]+", text)),
    )
    confidence: float = key(
        0.8,
        "Only sentences whose confidence is at least this are handed over, and none that is "
        "doubtful otherwise. An expected sentence whose phrase_confidence is at least this goes in "
        "place of the text.",
        low=0.0, high=1.0,
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
class WebSettings:
    """[web]"""

    enabled: bool = key(
        False,
        "There is a page for browsers; `sudo roomscribe web enable` sets this and starts it.",
    )
    listen: str = key(
        "127.0.0.1",
        "Address that the page listens on, or the path of a socket for a proxy; 0.0.0.0 is every "
        "IPv4 address of this machine, :: every address. Beyond 127.0.0.1 a password must be set.",
        pattern=r"[0-9.]{7,15}|[0-9A-Fa-f]*(:[0-9A-Fa-f.]*){2,8}|/[^\s%]{1,100}",
        form="an address such as 127.0.0.1 or 0.0.0.0, or the path of a socket",
        mend=lambda text: {"localhost": "127.0.0.1", "*": "0.0.0.0"}.get(text, ""),
    )
    port: int = key(8099, "TCP port of the page.", low=1, high=65535)
    hosts: str = key(
        "",
        "Names under which the page may be asked for, beside localhost, this machine's name and "
        "its addresses: those of a proxy.",
        pattern=r"[0-9A-Za-z.-]*([\s,]+[0-9A-Za-z.-]+)*",
        form="host names with spaces between them",
    )
    url: str = key(
        "",
        "Address of the page for Home Assistant's link to it; empty: made from listen and port, "
        "and none while only this machine may look.",
        pattern=r"(https?://[^\s/?#@]+(/[^\s?#]*)?)?",
        form="an address such as http://kitchen.local:8099/",
    )
    ingress: str = key(
        "",
        "Address of Home Assistant's supervisor (172.30.32.2), whose users need no other login; "
        "empty: none.",
        pattern=r"([0-9.]{7,15}|[0-9A-Fa-f]*(:[0-9A-Fa-f.]*){2,8})?",
        form="an address",
    )
    path: str = key(
        "",
        "Folder of the page's password and sessions; empty: /var/lib/roomscribe-web where the "
        "package is installed, else ~/.local/state/roomscribe-web.",
    )


@dataclass(frozen=True, slots=True)
class WyomingSettings:
    """[wyoming]"""

    enabled: bool = key(
        False,
        "Transcribe what Home Assistant and others send over the Wyoming protocol, which knows no "
        "password; the room's own microphone goes first.",
    )
    listen: str = key(
        "0.0.0.0",
        "Address to listen on: 0.0.0.0 is every IPv4 address of this machine, :: those of IPv6, "
        "too.",
        form="an address of this machine such as 0.0.0.0, :: or 127.0.0.1",
        mend=lambda text: {"localhost": "127.0.0.1", "*": "0.0.0.0"}.get(text, ""),
        fits=is_address,
    )
    port: int = key(10300, "TCP port.", low=1, high=65535)
    allow: tuple[str, ...] = key(
        ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1", "fc00::/7",
         "fe80::/10"),
        "Addresses, and ranges of them, from which others may connect.",
        form="addresses or ranges such as 192.168.0.0/16",
        fits=is_network,
    )  # fmt: skip
    zeroconf: bool = key(
        True,
        "Tell the network of it, so that Home Assistant finds it by itself: through avahi-daemon, "
        "or the library zeroconf.",
    )
    log: bool = key(
        False,
        "Write these transcripts down and publish them as if they were said here, with the source "
        "`wyoming`; false: only who sent the sound gets its text.",
    )
    confidence: float = key(
        -1.0,
        "Texts whose confidence is below this are answered as empty, so that nothing acts on them; "
        "0 is off, -1: the same limit as for low_confidence ([gates] low_confidence).",
        low=-1.0,
        high=1.0,
    )
    external_vad: bool = key(
        True,
        "Home Assistant decides when a command has ended; false: Roomscribe does, as at its own "
        "microphone, which only versions that know of it wait for.",
    )

    @property
    def announced(self) -> bool:
        """True when the network is to be told: not of what this machine alone can reach."""
        return self.zeroconf and not self.listen.startswith(("127.", "::1"))


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """[fleet]"""

    role: str = key(
        "alone",
        "Several rooms together, see docs/fleet.md. ear: what is said here is transcribed by the "
        "brains, and by a model on this machine, where one was chosen, while no brain can; brain: "
        'transcribes for the ears, its own room first (capture.device = "none" where it has no '
        "microphone); both: the same, of a room that may be given the rights of an ear, too.",
        choices=("alone", "ear", "brain", "both"),
    )
    server: tuple[str, ...] = key(
        ("nats://127.0.0.1:4222",),
        "The NATS server that the rooms share, or a list of those of a cluster: tls://HOST:PORT, "
        "or nats:// for this machine alone.",
        form="an address such as tls://192.168.1.10:4222, without a user or a path",
        mend=lambda text: f"tls://{_bare_host(text)}:4222",
        fits=is_fleet_server,
        alone=True,
    )
    credential: str = key(
        "",
        'File (mode 0600) with the lines user = "..." and password = "..." for the server; '
        "empty: the credential `roomscribe.fleet`, if any.",
    )
    ca: str = key(
        "", "The authority that signed the server's certificate (PEM); empty: those of the system."
    )
    model: str = key(
        "",
        "An ear asks only brains with this model; empty: any.",
        pattern=r"[0-9A-Za-z_-]{0,100}",
        form="the name of a model, of a-z, A-Z, 0-9, _ and -",
        mend=lambda text: re.sub(r"[^0-9A-Za-z_-]+", "-", text)[:100],
    )
    patience_s: float = key(
        5.0,
        "An ear waits so long for a text, then its own model makes one, or the window waits.",
        unit="s", low=1.0, high=60.0,
    )  # fmt: skip

    @property
    def sends(self) -> bool:
        """True when what is said here may be transcribed by others."""
        return self.role in ("ear", "both")

    @property
    def serves(self) -> bool:
        """True when what others hear is transcribed here."""
        return self.role in ("brain", "both")


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
    transcriber: TranscriberSettings = field(default_factory=TranscriberSettings)
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
    history: HistorySettings = field(default_factory=HistorySettings)
    web: WebSettings = field(default_factory=WebSettings)
    wyoming: WyomingSettings = field(default_factory=WyomingSettings)
    fleet: FleetSettings = field(default_factory=FleetSettings)
    journal: JournalSettings = field(default_factory=JournalSettings)


DEFAULT_PATH = Path("/etc/roomscribe/roomscribe.toml")

MOST_BYTES = 1 << 20
"""A longer file is no configuration."""
OVERLAY_HEAD = "# Chosen over the control socket; `roomscribe setup` moves it into roomscribe.toml."
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_MEANT = {"npu": "hailo"}
"""What people write and what they mean by it, where another choice looks more alike."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a file says."""

    settings: Settings
    """All that is right, and defaults."""
    troubles: tuple[str, ...] = ()
    """One line for each mistake."""
    wrong: frozenset[str] = frozenset()
    """Names of the sections in which there is a mistake; all of them for a file that says
    nothing."""
    cause: OSError | None = None
    """Why the file cannot be read."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """The file that each key (section.key) comes from; the others have their defaults."""

    def sure(self) -> Settings:
        """The settings; raises ConfigError, holding one message for each mistake."""
        if self.troubles:
            raise ConfigError(*self.troubles) from self.cause
        return self.settings


def load(path: Path | None) -> Settings:
    """Settings from `path`; from the default path, if it is there, when None; else the defaults.

    Over them lies what was chosen while the daemon runs (`overlay_file`). Raises ConfigError
    holding one message for each mistake.
    """
    return read(path).sure()


def parse(text: str, origin: str) -> Settings:
    """Settings from TOML `text`; `origin` names it in messages. Raises ConfigError."""
    return _read(text, origin).sure()


def read(path: Path | None, chosen: Mapping[str, Mapping[str, Any]] | None = None) -> Reading:
    """What `load` reads, with the mistakes in it; `chosen` stands for the overlay, if given."""
    file = path or DEFAULT_PATH
    cause = None
    try:
        with file.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            return _nothing(f"{file}: expected a configuration in TOML, found more than 1 MB")
        return _laid_over(data.decode("utf-8-sig"), str(file), chosen)
    except FileNotFoundError:
        if path is None:
            return _laid_over("", str(file), chosen)
        found = "no such file", "write one, or leave --config out to run on the defaults"
    except IsADirectoryError:
        found = "a folder", "name the file in it"
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        found = f"a byte that is none in line {line}", "save it as UTF-8"
        return _nothing(f"{file}: expected text in UTF-8, found {'; '.join(found)}")
    except PermissionError:
        found = "a file that this user may not read", "run this with sudo"
    except OSError as error:
        found, cause = (f"{error.strerror}", "see its disk"), error
    return _nothing(f"{file}: expected a configuration in TOML, found {'; '.join(found)}", cause)


def _nothing(trouble: str, cause: OSError | None = None) -> Reading:
    return Reading(Settings(), (trouble,), frozenset(get_type_hints(Settings)), cause)


def _laid_over(
    text: str, origin: str, chosen: Mapping[str, Mapping[str, Any]] | None = None
) -> Reading:
    """What `text` says, and over it what was chosen: `chosen`, or the overlay's content.

    An overlay that is not for this user is left out: so is the log beside it.
    """
    below = _read(text, origin)
    if "store" in below.wrong:
        return below
    try:
        file = overlay_file(below.settings)
        over = file.read_bytes()[:MOST_BYTES].decode() if chosen is None else as_toml(chosen)
    except (OSError, UnicodeDecodeError, RuntimeError):  # of a home that nobody has
        return below
    return _read(text, origin, (over, str(file)))


def _read(text: str, origin: str, over: tuple[str, str] | None = None) -> Reading:
    """The settings in `text` from `origin`, and over them those of another text and origin."""
    sections = get_type_hints(Settings)
    troubles: list[str] = []
    wrong: set[str] = set()
    values: dict[str, dict[str, Any]] = {}
    origins: dict[str, str] = {}
    for text, origin in ((text, origin), *([over] if over else ())):  # noqa: B020, PLR1704
        try:
            table = tomllib.loads(text)
        except RecursionError:
            return _nothing(f"{origin}: not valid TOML: brackets within brackets without end")
        except ValueError as error:  # TOMLDecodeError, and int's own for one of thousands of digits
            said = shorten(str(error), 200)
            fix = "; a text stands in quotes" if "Invalid value" in said else ""
            return _nothing(f"{origin}: not valid TOML: {said}{fix}")
        for section, content in table.items():
            if section not in sections:
                troubles.append(_unknown_section(origin, section, content, wrong))
            elif not isinstance(content, dict):
                line = f"{origin}: {section} is a section: write [{section}] above its keys"
                troubles.append(line)
                wrong.add(f"{section}.")
            else:
                right = _section(section, content, origin, troubles, wrong)
                values.setdefault(section, {}).update(right)
                origins.update({f"{section}.{name}": origin for name in right})
    settings = Settings(**{name: sections[name](**right) for name, right in values.items()})
    contradicted = set[str]()
    for involved, trouble in _contradictions(settings):
        if not wrong.intersection(involved):
            troubles.append(f"{origin}: {trouble}")
            contradicted.update(involved)
    named = frozenset(one.partition(".")[0] for one in wrong | contradicted)
    return Reading(settings, tuple(troubles), named, origins=origins)


def overlay_file(settings: Settings) -> Path:
    """Where keys lie that were chosen over the control socket: beside the log, for its user alone.

    The daemon may not write to /etc. They go before those of the configuration's file.
    """
    return store_folder(settings.store) / "settings.toml"


def as_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Sections with their keys (texts, numbers, booleans, lists and tables of texts) as a file."""
    lines = [OVERLAY_HEAD]
    for section, content in tables.items():
        lines += ["", f"[{section}]"]
        # a text of JSON is one of TOML but for a single letter, which no value may hold
        lines += [f"{name} = {_as_value(value)}" for name, value in content.items()]
    return "\n".join([*lines, ""])


def _as_value(value: Any) -> str:
    if not isinstance(value, dict):
        return json.dumps(value)
    pairs = (f"{json.dumps(name)} = {json.dumps(one)}" for name, one in value.items())
    return f"{{ {', '.join(pairs)} }}"


def mistake(name: str, value: Any) -> str:
    """What is wrong with `value` for the key `name` (section.key), on one line; empty when
    nothing is."""
    for section, entry in keys():
        if f"{section}.{entry.name}" == name:
            return _trouble(
                entry, get_type_hints(get_type_hints(Settings)[section])[entry.name], value
            )
    near = _near(name, [f"{section}.{entry.name}" for section, entry in keys()])
    return f"unknown key{f'; did you mean {near[0]}?' if near else ''}"


def store_folder(settings: StoreSettings) -> Path:
    """Where the log lies: store.path, else systemd's state directory, else the user's own."""
    if settings.path:
        return Path(settings.path).expanduser()
    given = os.environ.get("STATE_DIRECTORY", "").split(":")[0]
    return Path(given) if given else Path("~/.local/state/roomscribe").expanduser()


def keys() -> Iterator[tuple[str, Field[Any]]]:
    """(section, field) of every key, in the order of the shipped file."""
    for section, kind in get_type_hints(Settings).items():
        for entry in fields(kind):
            yield section, entry


def page_url(web: WebSettings) -> str:
    """The page's address for browsers in the house; empty while it is off, or local alone."""
    host = {"0.0.0.0": "", "::": ""}.get(web.listen, web.listen)
    host = host or f"{socket.gethostname().split('.')[0]}.local"
    if not web.enabled or web.url or host.startswith(("/", "127.", "::1")):
        return web.url if web.enabled else ""
    return f"http://{f'[{host}]' if ':' in host else host}:{web.port}/"


def node_name(settings: Settings) -> str:
    """The configured node, or a slug of the host name: [a-z0-9_], never empty."""
    host = socket.gethostname().split(".")[0]
    return settings.appliance.node or slug(host) or "roomscribe"


def _section(
    section: str, content: dict[str, Any], origin: str, troubles: list[str], wrong: set[str]
) -> dict[str, Any]:
    """One section's keys that are right; what is wrong is appended to `troubles` and left out.

    `wrong` is given the keys (section.key) whose values nobody knows: those, and what unknown keys
    may be meant to be.
    """
    kind = get_type_hints(Settings)[section]
    types = get_type_hints(kind)
    known = {entry.name: entry for entry in fields(kind)}
    right: dict[str, Any] = {}
    for name, value in content.items():
        if name not in known:
            troubles.append(_unknown_key(f"{origin}: {section}", name, known))
            wrong.update(f"{section}.{near}" for near in ("", *_near(name, known)))
        elif trouble := _trouble(known[name], types[name], value):
            troubles.append(f"{origin}: {section}.{name}: {trouble}")
            wrong.add(f"{section}.{name}")
        else:
            lone = isinstance(value, str) and known[name].metadata["alone"]
            right[name] = types[name]([value] if lone else value)
    return right


def _trouble(entry: Field[Any], kind: type, value: Any) -> str:
    """What is wrong with `value`; empty when nothing is."""
    if kind == dict[str, str]:
        return _trouble_of_table(entry, value)
    if kind != tuple[str, ...]:
        return _trouble_of_one(entry, kind, value)
    if isinstance(value, str) and entry.metadata["alone"]:
        value = [value]
    if not isinstance(value, list):
        return f"expected a list of texts, found {_shown(value)}"
    return next(filter(None, (_trouble_of_one(entry, str, one) for one in value)), "")


def _trouble_of_table(entry: Field[Any], value: Any) -> str:
    if not isinstance(value, dict) or len(value) > WORDS_AT_MOST:
        found = f"{len(value)} of them" if isinstance(value, dict) else _shown(value)
        return f"expected {entry.metadata['form']}, found {found}"
    texts = (text for pair in value.items() for text in pair)
    return next(filter(None, (_trouble_of_one(entry, str, one) for one in texts)), "")


def _trouble_of_one(entry: Field[Any], kind: type, value: Any) -> str:
    whole_as_number = kind is float and type(value) is int
    limits = entry.metadata
    if type(value) is not kind and not whole_as_number:
        return f"expected {_TYPE_NAMES[kind]}, found {_shown(value)}{_quotes(entry, kind, value)}"
    if kind is str and _CONTROL.search(value):
        return f"expected text without control characters, found {_shown(value)}"
    if limits["choices"] and value not in limits["choices"]:
        meant = [_MEANT.get(value.lower(), ""), *_near(value, limits["choices"], 0.7)]
        hint = next((f"; did you mean {one}?" for one in meant if one in limits["choices"]), "")
        return f"expected one of {', '.join(limits['choices'])}, found {_shown(value)}{hint}"
    low, high, unit = limits["low"], limits["high"], limits["unit"]
    if low is not None and not low <= value <= high:
        return f"expected {low} to {high}{' ' + unit if unit else ''}, found {_shown(value)}"
    if not _fits(entry, value):
        mended = limits["mend"](value) if limits["mend"] else ""
        fits = mended and _fits(entry, mended)
        hint = f"; did you mean {shorten(mended)}?" if fits else ""
        return f"expected {limits['form']}, found {_shown(value)}{hint}"
    return ""


def _fits(entry: Field[Any], value: Any) -> bool:
    """True for anything but a text that has not the key's form."""
    pattern, fits = entry.metadata["pattern"], entry.metadata["fits"]
    return not (pattern and not re.fullmatch(pattern, value)) and (fits is None or fits(value))


def _quotes(entry: Field[Any], kind: type, value: Any) -> str:
    """What to do about quotes, where they are all that is wrong."""
    if kind is str and isinstance(value, int | float) and not isinstance(value, bool):
        ruled = entry.metadata["choices"] or entry.metadata["pattern"]
        if ruled and not _trouble(entry, str, _shown(value)):
            return f'; write it in quotes: "{_shown(value)}"'
    if kind is not str and isinstance(value, str):
        plain = value.strip().lower()
        with suppress(ValueError, OverflowError):
            if plain in ("true", "false") if kind is bool else math.isfinite(kind(plain)):
                return f"; write it without quotes: {shorten(plain)}"
    return ""


def _contradictions(settings: Settings) -> Iterator[tuple[tuple[str, ...], str]]:
    """Values that are right by themselves and wrong together: their keys, and what is wrong."""
    voice, mqtt = settings.voice, settings.mqtt
    if settings.transcriber.backend == "wyoming" and not settings.transcriber.host:
        yield (
            ("transcriber.backend", "transcriber.host"),
            "transcriber.host: expected the server's host name or address, as transcriber.backend "
            '= "wyoming" wants it, found none',
        )
    to_itself = settings.transcriber.host.lower() in ("localhost", "127.0.0.1", "::1")
    both = settings.transcriber.backend == "wyoming" and settings.wyoming.enabled
    if both and to_itself and settings.transcriber.port == settings.wyoming.port:
        yield (
            ("transcriber.host", "transcriber.port", "wyoming.enabled", "wyoming.port"),
            "transcriber.host: expected another server than this machine's own, which "
            f"wyoming.enabled switches on, found {settings.transcriber.host}, port "
            f"{settings.transcriber.port}; each would wait for the other",
        )
    yield from _fleet_contradictions(settings)
    if settings.assist.phrase:
        for name, wanted, there in (
            ("homeassistant.url", "Home Assistant's address", bool(settings.homeassistant.url)),
            ("homeassistant.enabled", "true", settings.homeassistant.enabled),
            ("mqtt.enabled", "true", mqtt.enabled),
        ):
            if not there:
                yield (
                    ("assist.phrase", name),
                    f"assist.phrase: expected {wanted} as {name} beside it, found "
                    f"{'false' if wanted == 'true' else 'none'}",
                )
    if voice.close_score > voice.open_score:
        yield (
            ("voice.close_score", "voice.open_score"),
            f"voice.close_score: expected at most voice.open_score ({voice.open_score}), found "
            f"{voice.close_score}",
        )
    for name, needed, found in (
        ("password_file", "username", "none"),
        ("key_file", "cert_file", "none"),
        ("ca_file", "tls", "false"),
        ("cert_file", "tls", "false"),
        ("key_file", "tls", "false"),
    ):
        if getattr(mqtt, name) and not getattr(mqtt, needed):
            wanted = f"mqtt.{needed}{' = true' if needed == 'tls' else ''}"
            yield (
                (f"mqtt.{name}", f"mqtt.{needed}"),
                f"mqtt.{name}: expected {wanted} beside it, found {found}",
            )


def _fleet_contradictions(settings: Settings) -> Iterator[tuple[tuple[str, ...], str]]:
    """What of [fleet] cannot be together, as `_contradictions`."""
    fleet = settings.fleet
    if fleet.role == "alone":
        return
    if not fleet.server:
        yield ("fleet.server",), "fleet.server: expected at least one server, found none"
    for one in fleet.server:
        scheme, host, port = fleet_server(one)
        if scheme == "nats" and not is_loopback(host):
            yield (
                ("fleet.role", "fleet.server"),
                f"fleet.server: expected tls:// beyond this machine, as sound goes there, found "
                f"{shorten(one)}; write tls://{host}:{port} and give it a certificate "
                "(`roomscribe fleet join --serve` does)",
            )
    if settings.transcriber.backend == "wyoming":
        yield (
            ("fleet.role", "transcriber.backend"),
            f'fleet.role: expected "alone" beside transcriber.backend = "wyoming", found '
            f"{fleet.role}: one of the two makes the texts",
        )
    if fleet.role == "ear" and settings.capture.device == NO_DEVICE:
        yield (
            ("fleet.role", "capture.device"),
            'capture.device: expected a microphone, as fleet.role = "ear" wants one, found none',
        )


def _near(name: str, known: Iterable[str], least: float = 0.6) -> list[str]:
    """The one of `known` that is most like `name`, if one is."""
    return difflib.get_close_matches(name.lower(), list(known), 1, least)


def _unknown_section(origin: str, name: str, content: Any, wrong: set[str]) -> str:
    """Message for a section that does not exist, or for a key above all sections."""
    sections = get_type_hints(Settings)
    if not isinstance(content, dict) and (places := _places(name)):
        wrong.update(f"{place}." for place in places)
        return f"{origin}: {name} is a key: write it below {_bracketed(places)}"
    near = _near(name, sections)
    wrong.update(f"{one}." for one in near)
    fix = f"did you mean {near[0]}?" if near else f"known: {', '.join(sections)}"
    return f"{origin}: unknown section [{shorten(name)}]; {fix}"


def _unknown_key(where: str, name: str, known: Iterable[str]) -> str:
    """Message for a key that does not exist: where it does, or the nearest one."""
    if 0 < len(places := _places(name)) < 3:
        fix = f"it belongs below {_bracketed(places)}"
    else:
        near = _near(name, known)
        fix = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
    return f"{where}: unknown key {shorten(name)}; {fix}"


def _places(name: str) -> list[str]:
    """The sections that have such a key."""
    return [section for section, entry in keys() if entry.name == name]


def _bracketed(sections: list[str]) -> str:
    return " or ".join(f"[{section}]" for section in sections)


def _shown(value: Any) -> str:
    """`value` as TOML would show it, cut short."""
    try:
        text = str(value).lower() if isinstance(value, bool) else repr(value)
    except (ValueError, RecursionError):
        text = "something endless"
    return shorten(text)
