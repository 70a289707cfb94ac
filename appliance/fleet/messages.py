"""Messages between satellites and workers (windows, answers, presence) and their subjects.

Messages are not trusted: sizes, numbers and texts have limits, and the refusal of an unreadable
message says why. Unknown fields are ignored, another version is refused.

Over 500 lines because it packs and reads every message.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from appliance.infer import clean_text, is_language, longest_text
from appliance.records import SAMPLE_RATE, Phrase, Samples, Transcription, Window
from appliance.system import shorten

VERSION = 1
"""Version of all messages; raised when a field changes or goes."""
STREAM = "ROOMSCRIBE"
WORKERS = "roomscribe.workers"
"""Every worker answers requests on this subject with its presence."""
CONSUMER, WINDOWS = "workers", "roomscribe.window.*"
"""The stream's consumer, which all workers share, and the subjects of all satellites' windows."""
WINDOW_HEADER, ID_HEADER = "Roomscribe-Window", "Nats-Msg-Id"
INBOX = re.compile(r"_INBOX\.[0-9A-Za-z_-]+(\.[0-9A-Za-z_-]+)+")
LARGEST = 1_000_000
"""Size limit of a window's message; nats-server's default limit is one megabyte."""
LARGEST_HEADER, LARGEST_ANSWER = 4096, 1 << 16
LONGEST_S = 31.0
"""Longest window; Whisper's is 30 s."""
MOST_TOKENS = 1000
NAME = re.compile(r"[0-9A-Za-z_-]{1,100}")
ID = re.compile(r"[0-9A-Za-z_.:-]{1,100}")
FLAG = re.compile(r"[a-z_]{1,40}")
ENCODERS = ("cpu", "hailo8", "hailo8l", "hailo10h")
FLEET = "fleet"
"""Encoder of an event if the worker does not name one."""
RECOMMENDED = ("low_confidence", "act_confidence")
"""Keys of [gates] for which a model recommends values."""
CODES = ("version", "bad", "too_long", "busy", "failed", "set_aside")
"""Why a worker has no text; see `Refusal`."""


class MessageError(Exception):
    """A message that cannot be read; `code` is one of CODES, the text is for people."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A window on its way to a worker."""

    window: Window
    node: str
    """The satellite's name."""
    attempt: int
    """1 when it is first sent."""
    ahead: bool = False
    """True if the worker is also to say whether the text is a complete sentence."""
    patience_s: float = 5.0
    """Seconds that the satellite waits for the answer."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no text.

    version: the message has another version than the worker; bad: it is unreadable; too_long: it
    is longer than the worker's model takes; busy: the worker has no time; failed: transcribing
    failed; set_aside: workers ended while they transcribed it.
    """

    code: str
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """A worker's answer to a window."""

    id: str
    attempt: int
    worker: str
    result: Transcription | Refusal


@dataclass(frozen=True, slots=True)
class Presence:
    """What a worker reports of itself; used in place of a bundle's facts."""

    node: str
    name: str
    """Name of its model."""
    version: str
    busy: bool
    done: int
    """Windows that it has transcribed for satellites."""
    queue: int
    """Windows of its own room that wait."""
    language: str
    languages: tuple[str, ...]
    window_s: float


@dataclass(frozen=True, slots=True)
class Subjects:
    """The subjects of a node."""

    node: str

    @property
    def window(self) -> str:
        """Subject for a satellite's windows."""
        return f"roomscribe.window.{self.node}"

    @property
    def answer(self) -> str:
        """Subject for the answers to them."""
        return f"roomscribe.answer.{self.node}"

    @property
    def inbox(self) -> str:
        """Prefix of the node's inboxes."""
        return f"_INBOX.{self.node}"


def is_inbox(subject: str) -> bool:
    """Return True for an inbox of a node, the only subject that replies go to."""
    return bool(INBOX.fullmatch(subject))


def token(name: str) -> str:
    """Return `name` as a part of a subject; never empty."""
    return re.sub(r"[^0-9A-Za-z_-]+", "-", name)[:100] or "-"


def window_headers(job: Job) -> dict[str, str]:
    """Return a window's fields, and the id by which the server recognises a repeated message."""
    window = job.window
    fields = {
        "v": VERSION,
        "id": window.id,
        "attempt": job.attempt,
        "utterance_id": window.utterance_id,
        "index": window.index,
        "last": window.last,
        "ahead": job.ahead,
        "patience_s": job.patience_s,
    }
    return {ID_HEADER: f"{job.node}.{window.id}.{job.attempt}", WINDOW_HEADER: json.dumps(fields)}


def pack_sound(samples: Samples) -> bytes:
    """Return samples as FLAC: 10 s of speech take 4 ms and 176 kB instead of 320 kB. Raises
    MessageError if that is too large."""
    import soundfile

    with _memory_file() as descriptor:
        soundfile.write(descriptor, samples, SAMPLE_RATE, "PCM_16", format="FLAC", closefd=False)
        payload = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    if len(payload) > LARGEST - LARGEST_HEADER:
        raise MessageError(
            "too_long",
            f"expected at most {LARGEST - LARGEST_HEADER} bytes of sound, found {len(payload)}",
        )
    return payload


def read_window(subject: str, headers: Mapping[str, str] | None, payload: bytes) -> Job:
    """Return the window in a message. Raises MessageError."""
    fields = read_window_header(headers)
    node = subject.rpartition(".")[2]
    _expect_version(fields)
    utterance, index = fields.get("utterance_id"), fields.get("index")
    window_id, attempt = read_identity(fields)
    known = isinstance(utterance, str) and ID.fullmatch(utterance) and NAME.fullmatch(node)
    if not known or type(index) is not int or not 0 < index < 1 << 31 or not window_id:
        raise MessageError("bad", "expected a window's id, utterance and number, found others")
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
    patience_s = _read_number(fields.get("patience_s"), 0.0, 600.0)
    return Job(
        window,
        node,
        attempt,
        ahead=fields.get("ahead") is True,
        patience_s=patience_s if math.isfinite(patience_s) else 5.0,
    )


def read_window_header(headers: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the fields of a window's header. Raises MessageError."""
    header = (headers or {}).get(WINDOW_HEADER, "")
    if len(header) > LARGEST_HEADER:
        raise MessageError("bad", f"expected a header of at most {LARGEST_HEADER} bytes")
    return _parse_object(header)


def read_identity(fields: Mapping[str, Any]) -> tuple[str, int]:
    """Return id and attempt of a message's window; the id is "" if it is missing or bad."""
    found, attempt = fields.get("id"), fields.get("attempt")
    known = isinstance(found, str) and ID.fullmatch(found)
    return (
        str(found) if known else "",
        attempt if type(attempt) is int and 0 < attempt < 1 << 31 else 1,
    )


def pack_answer(answer: Answer, recommended: Mapping[str, float] | None = None) -> bytes:
    """Return the message with an answer; `recommended`: the worker's values of RECOMMENDED."""
    fields: dict[str, Any] = {
        "v": VERSION,
        "id": answer.id,
        "attempt": answer.attempt,
        "worker": answer.worker,
    }
    result = answer.result
    if isinstance(result, Refusal):
        fields["error"] = {"code": result.code, "text": shorten(result.text, 300)}
        return _encode(fields)
    fields["transcription"] = {
        "text": result.text,
        "tokens": list(result.tokens),
        "language": result.language,
        "language_probability": _finite(result.language_probability),
        "avg_logprob": _finite(result.avg_logprob),
        "no_speech_prob": _finite(result.no_speech_prob),
        "ended": result.ended,
        "encoder": result.encoder,
        "encode_ms": _finite(result.encode_ms),
        "decode_ms": _finite(result.decode_ms),
        "confidence": _finite(result.confidence),
        "flags": list(result.flags),
        "model": result.model,
        "gates": {name: _finite(value) for name, value in (recommended or {}).items()},
    }
    if result.phrase:
        fields["transcription"]["phrase"] = {
            "sentence": result.phrase.sentence,
            "name": result.phrase.name,
            "slots": dict(result.phrase.slots),
            "confidence": _finite(result.phrase.confidence),
        }
    return _encode(fields)


def read_answer(data: bytes, ratio: Callable[[str], float]) -> Answer:
    """Return the answer in a message; `ratio` computes the compression ratio of a text.

    Raises MessageError.
    """
    fields = _parse_object(_decode(data))
    _expect_version(fields)
    window_id, attempt = read_identity(fields)
    if not window_id:
        raise MessageError("bad", "expected the id of a window, found none")
    worker = _read_name(fields.get("worker"))
    refused = fields.get("error")
    if isinstance(refused, dict):
        code = refused.get("code")
        text = shorten(refused.get("text", ""), 300)
        known = code if isinstance(code, str) and code in CODES else "failed"
        return Answer(window_id, attempt, worker, Refusal(known, text))
    found = fields.get("transcription")
    if not isinstance(found, dict):
        raise MessageError("bad", "expected a transcription or an error, found neither")
    return Answer(window_id, attempt, worker, _read_transcription(found, ratio))


def pack_presence(worker: Presence) -> bytes:
    """Return the message with a worker's presence."""
    return _encode(
        {
            "v": VERSION,
            "node": worker.node,
            "model": worker.name,
            "version": worker.version,
            "busy": worker.busy,
            "done": worker.done,
            "queue": worker.queue,
            "language": worker.language,
            "languages": list(worker.languages)[:200],
            "window_s": worker.window_s,
        }
    )


def read_presence(data: bytes) -> Presence:
    """Return the presence in a message. Raises MessageError, with code `version` for another
    version."""
    fields = _parse_object(_decode(data))
    try:
        _expect_version(fields)
    except MessageError as error:
        version = _read_line(fields.get("version"), 40)
        who = f"{_read_name(fields.get('node'))} runs Roomscribe {version}"
        raise MessageError(error.code, f"{who}: {error}") from None
    window_s = _read_number(fields.get("window_s"), 1.0, LONGEST_S)
    languages = fields.get("languages")
    language = fields.get("language")
    return Presence(
        node=_read_name(fields.get("node")),
        name=_read_line(fields.get("model"), 100) or "unnamed",
        version=_read_line(fields.get("version"), 40),
        busy=fields.get("busy") is True,
        done=_read_count(fields.get("done")),
        queue=_read_count(fields.get("queue")),
        language=language if is_language(language) else "und",
        languages=tuple(code for code in languages[:200] if is_language(code))
        if isinstance(languages, list)
        else (),
        window_s=window_s if math.isfinite(window_s) else 10.0,
    )


def _read_transcription(found: Mapping[str, Any], ratio: Callable[[str], float]) -> Transcription:
    text = found.get("text")
    if not isinstance(text, str) or len(text) > longest_text(LONGEST_S):
        raise MessageError("bad", "expected a text of a window's length, found another")
    clean = clean_text(text)
    tokens = found.get("tokens")
    if not isinstance(tokens, list) or len(tokens) > MOST_TOKENS:
        raise MessageError("bad", f"expected at most {MOST_TOKENS} tokens, found another")
    language, encoder, flags = found.get("language"), found.get("encoder"), found.get("flags")
    gates = found.get("gates")
    given = gates if isinstance(gates, dict) else {}
    limits = {name: _read_number(given.get(name), -1.0, 1.0) for name in RECOMMENDED}
    return Transcription(
        text=clean,
        tokens=tuple(number for number in tokens if type(number) is int and 0 <= number < 1 << 31),
        language=language if is_language(language) else "und",
        language_probability=_read_number(found.get("language_probability"), 0.0, 1.0),
        avg_logprob=_read_number(found.get("avg_logprob"), -1000.0, 0.0),
        no_speech_prob=_read_number(found.get("no_speech_prob"), 0.0, 1.0),
        compression_ratio=ratio(clean),
        ended=found.get("ended") is not False,
        encoder=encoder if isinstance(encoder, str) and encoder in ENCODERS else FLEET,
        encode_ms=_milliseconds(found.get("encode_ms")),
        decode_ms=_milliseconds(found.get("decode_ms")),
        confidence=_read_number(found.get("confidence"), 0.0, 1.0),
        flags=tuple(flag for flag in flags[:8] if isinstance(flag, str) and FLAG.fullmatch(flag))
        if isinstance(flags, list)
        else (),
        model=_read_line(found.get("model"), 100) or "unnamed",
        phrase=_read_phrase(found.get("phrase")),
        recommended={name: value for name, value in limits.items() if math.isfinite(value)},
    )


def _read_phrase(found: object) -> Phrase | None:
    """Return the expected sentence that a worker found; None if it is missing or bad."""
    if not isinstance(found, dict):
        return None
    slots, confidence = found.get("slots"), _read_number(found.get("confidence"), 0.0, 1.0)
    if not isinstance(slots, dict) or not math.isfinite(confidence):
        return None
    kept = {
        shorten(name, 100): shorten(value, 200) if isinstance(value, str) else value
        for name, value in list(slots.items())[:20]
        if isinstance(value, str) or (type(value) is int and abs(value) < 1 << 53)
    }
    sentence, name = _read_line(found.get("sentence"), 500), _read_line(found.get("name"), 100)
    return Phrase(sentence, name, kept, confidence) if sentence else None


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
                raise MessageError("bad", f"expected FLAC of {SAMPLE_RATE} Hz, mono, found {form}")
            if not 0 < length <= LONGEST_S * SAMPLE_RATE:
                raise MessageError(
                    "too_long" if length > 0 else "bad",
                    f"expected up to {LONGEST_S:g} s of sound, found {length / SAMPLE_RATE:.1f} s",
                )
            samples: Samples = file.read(length, dtype="int16")
    except soundfile.LibsndfileError as error:
        raise MessageError("bad", f"expected FLAC, found what is none: {error}") from None
    if samples.shape != (length,):
        raise MessageError("bad", "expected whole FLAC, found a part of it")
    return np.ascontiguousarray(samples)


def _expect_version(fields: Mapping[str, Any]) -> None:
    """Raise MessageError for another version, or none."""
    version = fields.get("v")
    if type(version) is not int or version < 1:
        raise MessageError("bad", "expected a version, found none")
    if version != VERSION:
        raise MessageError("version", f"expected messages of version {VERSION}, found {version}")


def _decode(data: bytes) -> str:
    if len(data) > LARGEST_ANSWER:
        raise MessageError("bad", f"expected at most {LARGEST_ANSWER} bytes, found {len(data)}")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise MessageError("bad", "expected UTF-8, found none") from None


def _parse_object(text: str) -> dict[str, Any]:
    """Return a JSON object. Raises MessageError."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise MessageError("bad", f"expected an object of JSON, found {shorten(text, 40)!r}")
    return found


def _encode(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _read_number(value: object, low: float, high: float) -> float:
    """Return a number within limits; NaN for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        return math.nan
    return float(value)


def _milliseconds(value: object) -> float:
    return 0.0 if math.isnan(found := _read_number(value, 0.0, 1e7)) else found


def _read_count(value: object) -> int:
    return value if type(value) is int and 0 <= value < 1 << 53 else 0


def _read_line(value: object, most: int) -> str:
    return shorten(value, most) if isinstance(value, str) else ""


def _read_name(value: object) -> str:
    return value if isinstance(value, str) and NAME.fullmatch(value) else "unnamed"
