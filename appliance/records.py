"""Data passed between stages. Every record is frozen; arrays in it are never written to.

A record with an array or a number that may be NaN is equal to itself alone (`eq=False`): compared
field by field, the array raises ValueError and NaN differs, on Python 3.13 even from itself.

Two clocks: `*_s` fields of frames and windows are seconds on their source's clock
(time.monotonic() for a microphone or a recording paced in real time, the position in the file
otherwise). A transcript carries wall-clock times in UTC, for people and other machines.

Over 500 lines because every package may import this one alone, so what two of them share is here.
"""

from __future__ import annotations

import enum
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE = 16_000
"""Samples per second of everything behind capture/; Whisper's and both voice detectors' rate."""
FULL_SCALE = 32_768.0
"""An int16 sample over this is the same sample in -1..1."""
HOP = 160
"""Samples from one mel frame to the next: Whisper's 10 ms."""
FRAMES_PER_SECOND = SAMPLE_RATE // HOP

Samples = NDArray[np.int16]
"""(n,) int16 mono at SAMPLE_RATE."""
Mel = NDArray[np.float32]
"""(W, n_mels) float32, W frames of 10 ms."""
States = NDArray[np.float32]
"""Encoder states, (P, d_model) float32; P positions of 20 ms."""
Logits = NDArray[np.float32]
"""(vocabulary,) float32."""

HEARD_HERE = "microphone"
"""Transcript.source of the appliance's own microphone."""

ADDRESSED = "addressed"
"""Flag of a transcript that begins with the address phrase, or follows it."""
JOINED = "joined"
"""Flag of a transcript of two parts of a sentence, which have transcripts of their own."""
ADDRESS_ALONE_S = 1.8
"""Longest speech of an address phrase alone, with the 0.6 s before it. "Computer" of six voices
took 1.0 to 1.5 s; with a command behind it that was not written down, 2.0 s and more."""
EXPECTED_FROM = 0.7
"""Confidence from which on an expected sentence counts in place of the text."""
WORD_FROM = 0.33
"""Least confidence of the text for an expected sentence of one word: a syllable of music may be a
"no" among words alone. Texts of people's words have 0.5 and more, "No!" of music 0.29."""

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def new_id(now_s: float | None = None) -> str:
    """Return a ULID: 48 bits of Unix milliseconds, 80 random bits; 26 letters, sorts by time."""
    millis = int((time.time() if now_s is None else now_s) * 1000) & ((1 << 48) - 1)
    value = (millis << 80) | int.from_bytes(os.urandom(10), "big")
    return "".join(_CROCKFORD[(value >> shift) & 31] for shift in range(125, -1, -5))


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """Usually 30 ms of sound: `samples` (n,) int16; `start_s` is the time of the first one."""

    samples: Samples
    start_s: float
    after_gap: bool = False
    """True when samples were lost just before this frame (overflow, device trouble)."""
    explained: bool = False
    """True if it is what the loudspeakers play, by the reference."""
    recorded_power: float | None = None
    """Mean square before the loudspeakers' sound was removed; None if nothing was."""

    @property
    def end_s(self) -> float:
        """Time of the end of the last sample, seconds on the source's clock."""
        return self.start_s + len(self.samples) / SAMPLE_RATE


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """A part of an utterance that the model reads at once.

    `samples` (n,) int16, pre-roll and hang-over included, at most the model's length.
    `speech_end_s` is the end of the last frame judged speech: latency is counted from there.
    """

    utterance_id: str
    index: int
    """1 for the utterance's first window."""
    last: bool
    """True when the utterance ends with this window."""
    samples: Samples
    start_s: float
    speech_end_s: float
    voiced_s: float
    """Seconds of it that are speech."""
    flags: tuple[str, ...] = ()
    """clipped, cut_at_window, gap (a few samples lost within), interrupted (source lost in
    mid-utterance)."""
    overlap_s: float = 0.0
    """Seconds at its start that are the end of the window before, too; 0 after a cut in a pause."""
    id: str = field(default_factory=new_id)
    """Also its transcript's id: a window that is transcribed twice is stored once."""
    continues: str = ""
    """As in Transcript."""

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return len(self.samples) / SAMPLE_RATE


@dataclass(frozen=True, slots=True)
class Discarded:
    """Speech without a transcript, with the reason; never with its text."""

    reason: str
    """too_short, no_speech, reference (the loudspeakers'), repetition, low_confidence, overload,
    failed or set_aside."""
    utterance_id: str
    duration_s: float


@dataclass(frozen=True, slots=True)
class Partial:
    """Text of a window while someone speaks; never stored.

    An `eager` one is made in the silence that may end the utterance. The window's transcript has
    its text, unless a `resumed` one follows: the speaker went on.
    """

    utterance_id: str
    window: int
    """1 for the utterance's first window, as in its transcript."""
    rev: int
    """1 for the utterance's first; each one replaces the earlier ones of its window."""
    text: str
    stable_chars: int
    """Characters of `text`, up to a word's end, that the revision before had, too (agreement of two
    successive hypotheses: LocalAgreement-2)."""
    eager: bool = False
    resumed: bool = False
    """True if the eager one before is no longer valid; the text is still that one's."""
    continues: str = ""
    """As in Transcript."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """An expected sentence that a window may say."""

    sentence: str
    """In lower case, with the spoken optional words and alternatives."""
    name: str
    """Of its group in the file of sentences."""
    slots: Mapping[str, str | int]
    confidence: float
    """Probability that this was spoken, 0..1; it may also have been no expected sentence."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a text, and when it was spoken, in seconds from the window's start."""

    text: str
    start_s: float
    end_s: float

    def shifted(self, by_s: float) -> Word:
        """Return it that much later."""
        return Word(self.text, self.start_s + by_s, self.end_s + by_s)

    def as_json(self, from_s: float) -> dict[str, str | float]:
        """Return it as OpenAI writes it, with the window's start at `from_s`."""
        times = {"start": round(from_s + self.start_s, 3), "end": round(from_s + self.end_s, 3)}
        return {"word": self.text, **times}


@dataclass(frozen=True, slots=True, eq=False)
class Transcription:
    """Result of the model for one window, without times of day."""

    text: str
    tokens: tuple[int, ...]
    """Without prompt and end-of-text."""
    language: str
    avg_logprob: float
    """Mean natural log-probability of the tokens and end-of-text."""
    no_speech_prob: float
    compression_ratio: float
    """Length of the UTF-8 text over its zlib size (Whisper's measure of repetition)."""
    ended: bool
    """True when end-of-text was reached, False when the token limit stopped the decode."""
    encoder: str
    """cpu, hailo8, hailo8l or hailo10h; fleet for a worker that names none of the others."""
    encode_ms: float
    decode_ms: float
    confidence: float
    """Probability that the text is right word for word, 0..1, by the model's calibration."""
    flags: tuple[str, ...] = ()
    model: str = ""
    """Model, if that may be another than the transcriber's bundle."""
    phrase: Phrase | None = None
    """The likeliest expected sentence, if one was found."""
    candidates: tuple[Phrase, ...] = ()
    """The likeliest expected sentences, the first one first; unlikely ones, too."""
    phrase_continues: bool = True
    """False if no longer expected sentence begins with `phrase`."""
    is_listed: bool = False
    """True if the text is an expected sentence."""
    text_continues: bool = True
    """False if no longer expected sentence begins with the text."""
    language_probability: float = math.nan
    """Probability of `language` among the possible ones; NaN if there is only one."""
    recommended: Mapping[str, float] = field(default_factory=dict)
    """Values of another machine's model for keys of [gates] that leave them to the bundle."""
    words: tuple[Word, ...] = ()
    """The text's words, if somebody wanted their times and the model tells them."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """One window's text with everything that is published; becomes the MQTT event."""

    id: str
    utterance_id: str
    window: int
    windows: int | None
    """Windows of the utterance; None until it ends."""
    start: datetime
    end: datetime
    text: str
    language: str
    avg_logprob: float
    no_speech_prob: float
    compression_ratio: float
    duration_s: float
    model: str
    encoder: str
    encode_ms: float
    decode_ms: float
    queue_ms: float
    latency_ms: float
    """From the end of speech to the transcript being complete, before the store."""
    flags: tuple[str, ...]
    confidence: float
    """As in Transcription."""
    continues: str = ""
    """utterance_id of the utterance that ended too early and goes on here; nearly always empty."""
    source: str = HEARD_HERE
    """Origin of the sound: the own microphone, or wyoming."""
    phrase: Phrase | None = None
    """As in Transcription; None for a part of a longer utterance."""
    language_probability: float | None = None
    """As in Transcription; None instead of NaN."""
    correction: str | None = None
    """What was really said, as a user entered it later; None without a correction."""
    level_dbfs: float | None = None
    """Level of the speech, dB of full scale; None if it was not measured."""
    snr_db: float | None = None
    """The speech's level above the noise around it, dB; None if it was not measured."""
    heard_better_by: str = ""
    """Node of the room that heard the same sentence better and acts on it; empty without one."""
    heard_also: tuple[str, ...] = ()
    """Nodes of other rooms that heard the same sentence, if this one acts on it."""
    words: tuple[Word, ...] = ()
    """As in Transcription, but in seconds from `start`."""


class NoAct(enum.StrEnum):
    """Why nothing may act on a transcript. Most are flags of it, too."""

    SATELLITE = "satellite"
    """A Wyoming client sent the sound: its own pipeline acts."""
    LATE = "late"
    PART = "part"
    """It is one window of a longer utterance."""
    INTERRUPTED = "interrupted"
    CUT = "cut_at_window"
    TOKEN_LIMIT = "token_limit"
    REPETITION = "repetition"
    MEDIA = "media"
    """A media player of the area plays, and the sentence lacks the address phrase."""
    OWN_VOICE = "own_voice"
    """A loudspeaker of the home says it, or has just said it."""
    LOW_CONFIDENCE = "low_confidence"
    GUARDED = "guarded"
    """It may be an order to a lock, door, alarm or valve, and is not sure enough for that."""
    UNSURE = "unsure_to_act"
    """Sure enough only for a sentence with the address phrase, where a mishearing costs little."""


def why_not_act(one: Transcript, *, late: bool = False) -> NoAct | None:
    """Return why nothing may act on a transcript; None if something may.

    The one rule for automations, Assist, the claims of rooms and the page. `late`: its delivery
    had to wait.
    """
    if one.source != HEARD_HERE:
        return NoAct.SATELLITE
    if late:
        return NoAct.LATE
    if (one.window, one.windows) != (1, 1):
        return NoAct.PART
    found = [reason for reason in NoAct if reason.value in one.flags]
    passed = {NoAct.LOW_CONFIDENCE, NoAct.UNSURE} if is_expected(one) else set[NoAct]()
    passed |= {NoAct.UNSURE} if ADDRESSED in one.flags else set()
    return next((reason for reason in found if reason not in passed), None)


def is_expected(one: Transcript) -> bool:
    """Return True if a transcript's expected sentence counts in place of its text."""
    if one.phrase is None or not one.phrase.confidence >= EXPECTED_FROM:
        return False
    return " " in one.phrase.sentence or one.confidence >= WORD_FROM


def acting_text(one: Transcript) -> str:
    """Return the words to act on: those of the expected sentence if that is sure enough."""
    return one.phrase.sentence if one.phrase and is_expected(one) else one.text


@dataclass(frozen=True, slots=True)
class Correction:
    """What a user says about a transcript that is in the log."""

    transcript_id: str
    text: str | None
    """What was really said; None if a correction was removed."""
    at: datetime
    """UTC."""


@dataclass(frozen=True, slots=True)
class HeardIn:
    """Other rooms that heard a sentence of this one."""

    transcript_id: str
    heard_better_by: str
    """As in Transcript."""
    heard_also: tuple[str, ...]
    """As in Transcript."""


class Tier(enum.IntEnum):
    """How likely a name of the home is spoken; the first are the likeliest."""

    ADDRESS = 0
    """The address phrase of Assist."""
    USED_PLACE = 1
    """A room or floor that contains an exposed entity."""
    GUARDED = 2
    """A lock, door, alarm or valve, by its name or another."""
    CALLED = 3
    """An entity that people call by its name: a light, a scene."""
    PLACE = 4
    OTHER = 5
    """An entity that people call by its place: a sensor."""
    ALIAS = 6
    """Another name of an entity."""


Name = tuple[str, Tier]
"""A name of the home: words of letters, digits and signs within words, with single spaces."""


@dataclass(frozen=True, slots=True)
class AssistReply:
    """Result of a sentence that was sent to Home Assistant's Assist."""

    id: str
    """Of the transcript."""
    text: str
    """The command, without the address phrase."""
    status: str
    """action_done, query_answer or error, as the agent answered; answered if a satellite does not
    tell which; failed without an answer."""
    speech: str = ""
    """The answer for the speaker."""
    language: str = ""
    error: str = ""
    """For `error` the agent's code (no_intent_match...), for `failed` the reason."""
    conversation_id: str = ""
    took_ms: float | None = None
    """From the request to the answer; None without an answer."""
    goes_on: bool = False
    """True if Home Assistant asks back: the next sentence needs no phrase."""


class Listener:
    """A part of the appliance that gets its news. Override the methods for the news that it needs;
    any thread may call them, so they must not wait."""

    def on_transcript(self, transcript: Transcript) -> None:
        """Take in that the store has a new transcript."""

    def on_discarded(self, discarded: Discarded) -> None:
        """Take in that speech gave no transcript."""

    @property
    def wants_partials(self) -> bool:
        """True while it needs partial texts, which cost a pass a second."""
        return False

    def on_partial(self, partial: Partial) -> None:
        """Take in a partial text; called even if it does not want any."""

    def on_heard_in(self, heard: HeardIn) -> None:
        """Take in which other rooms heard a sentence."""

    def on_speech(self, speaking: bool) -> None:
        """Take in that someone starts or stops speaking."""

    def on_change(self) -> None:
        """Take in that the appliance's state has changed."""

    def on_correction(self, correction: Correction) -> None:
        """Take in that a user has corrected a transcript."""

    def on_reply(self, reply: AssistReply) -> None:
        """Take in Assist's reply to a sentence."""

    def on_answer(self, message: OutgoingMessage) -> None:
        """Take in a late answer to a command that came from the broker."""

    def on_mute(self) -> None:
        """Take in that the mute has changed."""

    def on_frame(self, frame: Frame) -> None:
        """Take in sound from the microphone. Capture's thread."""

    def on_begin(self, utterance_id: str) -> None:
        """Take in that an utterance begins. The segmenter's thread."""

    def on_window(self, window: Window) -> None:
        """Take in a window of the microphone that is to be transcribed. The segmenter's thread."""

    def on_saying(self, text: str, until_s: float) -> None:
        """Take in what this room's loudspeaker says, and until when on time.monotonic()'s clock."""

    def on_transcription(self, window: Window, result: Transcription) -> None:
        """Take in what a window of the microphone was transcribed to, before the gates judge it."""

    def on_stored(self, window: Window, result: Transcription) -> None:
        """Take in that the transcript of a window of the microphone is in the store."""

    def on_idle(self) -> None:
        """Take in that nothing is to be transcribed; about once a second."""


def utc_from_monotonic(moment_s: float) -> datetime:
    """Return the wall-clock time (UTC) of a moment on time.monotonic()'s clock."""
    return datetime.fromtimestamp(time.time() - (time.monotonic() - moment_s), UTC)


@dataclass(frozen=True, slots=True)
class EchoState:
    """What the echo canceller does with the reference."""

    reduction_db: float | None = None
    """By how much it makes the loudspeakers' sound softer; None while that is not known."""
    delay_ms: int | None = None
    """Time from the reference to the microphone; None while that is not known."""
    drift_ppm: int | None = None
    """Difference between the clocks of the reference and of the microphone."""
    active: bool = False
    """True while it changes the sound."""
    problem: str = ""
    """Why there is no reference, with the fix; empty when all is well."""


@dataclass(frozen=True, slots=True)
class ApplianceState:
    """State of the appliance, as the topics `state` and `microphone` publish it."""

    status: str
    """running, degraded or muted."""
    reasons: tuple[str, ...]
    """Problems, in plain words, never with a password or a transcript."""
    encoder: str
    model: str
    """Name of the bundle."""
    model_title: str
    """Name of the model for people, such as Whisper tiny.en."""
    microphone: str
    """Name of the device, or of the recording."""
    microphone_online: bool
    """True if it delivers sound."""
    queue_depth: int
    """Windows that wait for transcription."""
    uptime_s: float
    version: str
    updated: tuple[str, datetime] | None = None
    """The version before this one, and when this one first ran; None: there was no other."""
    muted: bool | None = False
    """True while the microphone is closed on request; None while it is closed because the mute file
    cannot be read, or while it is being opened."""
    muted_until: datetime | None = None
    """When it is unmuted by itself; None: never, or it is not muted."""
    machine: str = ""
    """Board or machine; empty if unknown."""
    listens: bool = True
    """False for a machine without a microphone (capture.device = "none")."""
    rooms: tuple[str, ...] = ()
    """Other rooms that are online on the same broker."""
    fleet: tuple[str, str] | None = None
    """Role in a fleet, and the connected server or ""; None without a fleet."""
    assist: Mapping[str, str | bool | None] = field(default_factory=dict)
    """Of the satellite, as `state` publishes it; empty without one."""
    wyoming: str | None = ""
    """Address and port of the Wyoming server; None while it cannot listen, empty if it is off."""
    echo: EchoState | None = None
    """What the echo canceller does; None without a reference."""

    def news(self) -> tuple[object, ...]:
        """Return the fields that are published at once if they change; others wait for the next."""
        return (
            self.status, self.reasons, self.encoder, self.model, self.model_title, self.microphone,
            self.muted_until, self.rooms, self.assist,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ApplianceStats:
    """Counters and readings, as the topic `stats` publishes them; None if unknown."""

    counters: Mapping[str, int]
    """transcripts, discarded_<reason>, frames_dropped... since the start."""
    uptime_s: float
    npu_temperature_c: float | None = None
    soc_temperature_c: float | None = None
    throttling: tuple[str, ...] | None = None
    """Current limits of the machine, in plain words."""


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """An MQTT message to publish."""

    topic: str
    """An answer's topic is checked by its maker: no wildcard, none of our own topics."""
    payload: bytes
    qos: int = 1
    retain: bool = False
    expiry_s: int | None = None
    """The broker discards it after this time (MQTT 5)."""
    correlation: bytes | None = None
    """Data of the request that an answer repeats (MQTT 5)."""
