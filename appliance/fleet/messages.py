"""Messages between satellites and workers (windows, answers, presence) and their subjects.

The server decides who may send what (`cli/fleet/provisioning`). A window is checked nevertheless,
as a satellite's stolen password lets anybody send one; workers are trusted with texts, as they are
with sound. Another version is refused, with the reason.
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from appliance import build_version
from appliance.infer import Model, RemoteModel
from appliance.records import SAMPLE_RATE, Phrase, Samples, Transcription, Window
from appliance.system import json_object, shorten

VERSION = 1
"""Version of all messages; raised when a field changes or goes."""
STREAM = "ROOMSCRIBE"
WORKERS = "roomscribe.workers"
"""Every worker answers requests on this subject with its presence."""
WINDOW, ANSWER, INBOXES = "roomscribe.window.{}", "roomscribe.answer.{}", "_INBOX.{}"
"""Subjects of a node: a satellite's windows, the answers to them; the prefix of its inboxes."""
CONSUMER, WINDOWS = "workers", WINDOW.format("*")
"""The stream's consumer, which all workers share, and the subjects of all satellites' windows."""
WINDOW_HEADER, ID_HEADER = "Roomscribe-Window", "Nats-Msg-Id"
INBOX = re.compile(r"_INBOX\.[0-9A-Za-z_-]+(\.[0-9A-Za-z_-]+)+")
LARGEST = 1_000_000
"""Size limit of a window's message; nats-server's default limit is one megabyte."""
LARGEST_HEADER = 4096
TEXT_LETTERS = 4000
"""Longest text of a window: Whisper's 448 tokens of nine letters."""
LONGEST_S = 31.0
"""Longest window; Whisper's is 30 s."""
NAME = re.compile(r"[0-9A-Za-z_-]{1,100}")
ID = re.compile(r"[0-9A-Za-z_.:-]{1,100}")
FLEET = "fleet"
"""The encoder while workers are in use."""
RECOMMENDED = ("low_confidence", "act_confidence")
"""Keys of [gates] for which a model recommends values."""


class MessageError(Exception):
    """A message that cannot be read; `later`: because it has another version, so that another
    machine, or this one once it is upgraded, may read it."""

    def __init__(self, text: str, *, later: bool = False) -> None:
        super().__init__(text)
        self.later = later


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A window on its way to a worker."""

    window: Window
    node: str
    """The satellite's name."""
    ahead: bool = False
    """True if the worker is also to say whether the text is a complete sentence."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no text."""

    text: str
    later: bool = False
    """True if the window is not the cause: it may be sent again."""


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """A worker's answer to a window."""

    id: str
    worker: str
    result: Transcription | Refusal


@dataclass(frozen=True, slots=True)
class Presence:
    """What a worker reports of itself; used in place of a bundle's facts."""

    node: str
    version: str
    model: RemoteModel


def is_inbox(subject: str) -> bool:
    """Return True for an inbox of a node, the only subject that replies go to."""
    return bool(INBOX.fullmatch(subject))


def token(name: str) -> str:
    """Return `name` as a part of a subject; never empty."""
    return re.sub(r"[^0-9A-Za-z_-]+", "-", name)[:100] or "-"


def window_headers(job: Job, series: str = "") -> dict[str, str]:
    """Return a window's fields, and the id by which the server recognises a message that is
    repeated in the same `series`."""
    window = job.window
    fields = {
        "v": VERSION,
        "id": window.id,
        "utterance_id": window.utterance_id,
        "index": window.index,
        "last": window.last,
        "ahead": job.ahead,
    }
    return {ID_HEADER: f"{job.node}.{window.id}.{series}", WINDOW_HEADER: json.dumps(fields)}


def pack_sound(samples: Samples) -> bytes:
    """Return samples as FLAC: 10 s of speech take 4 ms and 176 kB instead of 320 kB. Raises
    MessageError if that is too large."""
    import soundfile

    with _memory_file() as descriptor:
        soundfile.write(descriptor, samples, SAMPLE_RATE, "PCM_16", format="FLAC", closefd=False)
        payload = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    if len(payload) > LARGEST - LARGEST_HEADER:
        raise MessageError(
            f"expected at most {LARGEST - LARGEST_HEADER} bytes of sound, found {len(payload)}"
        )
    return payload


def read_window(subject: str, headers: Mapping[str, str] | None, payload: bytes) -> Job:
    """Return the window in a message. Raises MessageError."""
    fields = _read_header(headers)
    if (version := fields.get("v")) != VERSION:
        text = f"expected messages of version {VERSION}, found {version}; upgrade the older machine"
        raise MessageError(text, later=True)
    node = subject.rpartition(".")[2]
    utterance, index = fields.get("utterance_id"), fields.get("index")
    window_id = read_id(headers)
    known = isinstance(utterance, str) and ID.fullmatch(utterance) and NAME.fullmatch(node)
    if not known or type(index) is not int or not 0 < index < 1 << 31 or not window_id:
        raise MessageError("expected a window's id, utterance and number, found others")
    samples = _read_sound(payload)
    now_s, duration_s = time.monotonic(), len(samples) / SAMPLE_RATE
    window = Window(
        # two satellites may count alike
        utterance_id=f"{node}.{utterance}",
        index=index,
        last=fields.get("last") is True,
        samples=samples,
        start_s=now_s - duration_s,
        speech_end_s=now_s,
        voiced_s=duration_s,
        id=window_id,
    )
    return Job(window, node, ahead=fields.get("ahead") is True)


def read_id(headers: Mapping[str, str] | None) -> str:
    """Return the id of a message's window; "" if it is missing or bad. Raises MessageError."""
    found = _read_header(headers).get("id")
    return found if isinstance(found, str) and ID.fullmatch(found) else ""


def pack_answer(answer: Answer) -> bytes:
    """Return the message with an answer."""
    result = answer.result
    if isinstance(result, Refusal):
        return _encode({"id": answer.id, "worker": answer.worker, "refusal": asdict(result)})
    fields = {name: getattr(result, name) for name in FIELDS}
    fields["phrase"] = asdict(result.phrase) if result.phrase else None
    return _encode({"id": answer.id, "worker": answer.worker, "transcription": fields})


def read_answer(data: bytes) -> Answer:
    """Return the answer in a message. Raises MessageError."""
    try:
        fields = json.loads(data)
        refusal, found = fields.get("refusal"), fields.get("transcription")
        result: Transcription | Refusal
        if refusal:
            result = Refusal(shorten(refusal["text"], 300), bool(refusal["later"]))
        else:
            phrase = found["phrase"]
            result = Transcription(
                **{name: read(found[name]) for name, read in FIELDS.items()},
                phrase=Phrase(**phrase) if phrase else None,
            )
        return Answer(str(fields["id"]), str(fields["worker"]), result)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise MessageError(f"not an answer: {error!r}") from None


def pack_presence(node: str, model: Model) -> bytes:
    """Return the message with the presence of a worker with that model."""
    facts = {name: getattr(model, name) for name in ("language", "languages", "window_s")}
    worker = {"v": VERSION, "node": node, "model": model.name, "version": build_version()}
    return _encode(worker | facts)


def read_presence(data: bytes) -> Presence:
    """Return the presence in a message. Raises MessageError."""
    try:
        fields = json.loads(data)
        node, version = str(fields["node"]), str(fields["version"])
        if fields.get("v") != VERSION:
            raise MessageError(
                f"the worker {node} runs Roomscribe {version}, which this one does not understand; "
                "upgrade the older of the two",
                later=True,
            )
        name, language = str(fields["model"]), str(fields["language"])
        languages, window_s = tuple(fields["languages"]), float(fields["window_s"])
        return Presence(node, version, RemoteModel(name, language, languages, window_s))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise MessageError(f"not a worker's presence: {error!r}") from None


def clean_text(text: str) -> str:
    """Return another machine's text on one line, without what no transcript holds. Raises
    ValueError if it is longer than any transcript."""
    if len(text) > TEXT_LETTERS:
        raise ValueError(f"expected at most {TEXT_LETTERS} letters, found {len(text)}")
    whole = text.encode("utf-8", "replace").decode()
    return " ".join("".join(letter if letter.isprintable() else " " for letter in whole).split())


FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "text": clean_text,
    "tokens": tuple,
    "language": str,
    "language_probability": float,
    "avg_logprob": float,
    "no_speech_prob": float,
    "compression_ratio": float,
    "ended": bool,
    "encoder": str,
    "encode_ms": float,
    "decode_ms": float,
    "confidence": float,
    "flags": tuple,
    "model": str,
    "recommended": dict,
}
"""What an answer has of a Transcription, besides its phrase, and how each is read."""


@contextmanager
def _memory_file(content: bytes = b"") -> Iterator[int]:
    """Open a file in memory, at its beginning. soundfile reads bytes with callbacks, which need
    memory that is writable and executable; the unit forbids that."""
    descriptor = os.memfd_create("sound")
    try:
        os.pwrite(descriptor, content, 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _read_sound(payload: bytes) -> Samples:
    """Return (n,) int16 samples of FLAC. Raises MessageError."""
    import soundfile

    try:
        with (
            _memory_file(payload) as descriptor,
            soundfile.SoundFile(descriptor, closefd=False) as file,
        ):
            form = file.format, file.samplerate, file.channels
            length = file.frames
            if form != ("FLAC", SAMPLE_RATE, 1):
                raise MessageError(f"expected FLAC of {SAMPLE_RATE} Hz, mono, found {form}")
            if not 0 < length <= LONGEST_S * SAMPLE_RATE:
                raise MessageError(
                    f"expected up to {LONGEST_S:g} s of sound, found {length / SAMPLE_RATE:.1f} s"
                )
            samples: Samples = file.read(length, dtype="int16")
    except soundfile.LibsndfileError as error:
        raise MessageError(f"expected FLAC, found what is none: {error}") from None
    if samples.shape != (length,):
        raise MessageError("expected whole FLAC, found a part of it")
    return np.ascontiguousarray(samples)


def _read_header(headers: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the fields of a window's header. Raises MessageError."""
    header = (headers or {}).get(WINDOW_HEADER, "")
    found = json_object(header[:LARGEST_HEADER])
    if found is None:
        raise MessageError(f"expected an object of JSON, found {shorten(header, 40)!r}")
    return found


def _encode(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")
