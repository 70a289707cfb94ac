"""What travels through the appliance. Every record is frozen; arrays in it are never written to.

A record with an array or a number that may be NaN is equal to itself alone (`eq=False`): compared
field by field, the array raises ValueError and NaN differs, on Python 3.13 even from itself.

Two clocks: `*_s` fields of frames and windows are seconds on their source's clock
(time.monotonic() for a microphone or a recording paced in real time, the position in the file
otherwise). A transcript carries wall-clock times in UTC, for people and other machines.
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
"""Transcript.source of what the appliance hears itself."""

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def new_id(now_s: float | None = None) -> str:
    """A fresh ULID: 48 bits of Unix milliseconds and 80 random bits, 26 letters, sorts by time."""
    millis = int((time.time() if now_s is None else now_s) * 1000) & ((1 << 48) - 1)
    value = (millis << 80) | int.from_bytes(os.urandom(10), "big")
    return "".join(_CROCKFORD[(value >> shift) & 31] for shift in range(125, -1, -5))


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """30 ms (or what a source gives) of sound: `samples` (n,) int16; `start_s` of the first one."""

    samples: Samples
    start_s: float
    after_gap: bool = False
    """True when samples were lost just before this frame (overflow, device trouble)."""

    @property
    def end_s(self) -> float:
        """Time of the end of the last sample, seconds on the source's clock."""
        return self.start_s + len(self.samples) / SAMPLE_RATE


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """A piece of one utterance that the model takes in at once.

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
    """Seconds of it judged speech."""
    flags: tuple[str, ...] = ()
    """clipped, cut_at_window, gap (a few samples lost within), interrupted (source lost in
    mid-utterance)."""
    overlap_s: float = 0.0
    """So much of its beginning is the end of the window before it, too; 0 where the cut fell into
    a pause."""
    id: str = field(default_factory=new_id)
    """Becomes its transcript's: a window that is transcribed twice is stored once."""
    continues: str = ""
    """As in Transcript."""

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return len(self.samples) / SAMPLE_RATE


@dataclass(frozen=True, slots=True)
class Discarded:
    """Speech that gave no transcript, with why; never with its text."""

    reason: str
    """too_short, no_speech, repetition, low_confidence, overload, failed or set_aside."""
    utterance_id: str
    duration_s: float


@dataclass(frozen=True, slots=True)
class Partial:
    """What a window says so far, while it is spoken; live only, never stored.

    An `eager` one is made in the silence that may end the utterance. The transcript of the window
    has its text, unless a `resumed` one comes between: the speaker went on.
    """

    utterance_id: str
    window: int
    """1 for the utterance's first window, as in its transcript."""
    rev: int
    """1 for the utterance's first; each one takes the place of all before of its window."""
    text: str
    stable_chars: int
    """So many characters of `text`, up to a word's end, the revision before had, too (agreement of
    two successive hypotheses: LocalAgreement-2)."""
    eager: bool = False
    resumed: bool = False
    """True when the eager one before holds no more; the text is still that one's."""
    continues: str = ""
    """As in Transcript."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """One of the sentences that are expected, as what a window says."""

    sentence: str
    """In lower case, with the optional words and alternatives that were said."""
    name: str
    """Of its group in the file of sentences."""
    slots: Mapping[str, str | int]
    confidence: float
    """How likely this is what was said, 0..1; that it was none of the sentences is allowed for."""


@dataclass(frozen=True, slots=True, eq=False)
class Transcription:
    """What the model made of one window; no times but the milliseconds that it took."""

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
    """cpu, hailo8, hailo8l or hailo10h; wyoming for a server, which tells no probabilities: they
    are not a number; fleet for a brain that tells none of the others."""
    encode_ms: float
    decode_ms: float
    confidence: float
    """How likely the text is right word for word, 0..1, by the model's calibration; without one
    the geometric mean probability of the tokens."""
    flags: tuple[str, ...] = ()
    complete: bool | None = None
    """Whether the text is a whole sentence, by what the decoder knows; None where that does not
    tell, and where nobody asked (`Encoded.speculative`)."""
    model: str = ""
    """What wrote it, where that may be another than the transcriber's bundle."""
    phrase: Phrase | None = None
    """The likeliest of the sentences that are expected, where any are and one was found."""
    phrase_continues: bool = True
    """False if no longer expected sentence begins with `phrase`."""
    language_probability: float = math.nan
    """Of `language` among those that may be spoken; not a number where it is not in question."""
    recommended: Mapping[str, float] = field(default_factory=dict)
    """What the model that wrote it recommends for keys of [gates] that leave it to the bundle;
    empty for the model here."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """One window's text with all that a reader gets; becomes the event of the MQTT contract."""

    id: str
    utterance_id: str
    window: int
    windows: int | None
    """How many the utterance has; None while it goes on."""
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
    """utterance_id of the utterance that was taken to be over, and that this one goes on with;
    empty for nearly all."""
    source: str = HEARD_HERE
    """Where the sound came from: the appliance's own microphone, or who sent it (wyoming)."""
    phrase: Phrase | None = None
    """As in Transcription; None for a part of a longer utterance."""
    language_probability: float | None = None
    """As in Transcription; None where it is not in question."""


class Tier(enum.IntEnum):
    """How likely a name of the home is said; the first are the likeliest."""

    ADDRESS = 0
    """The phrase that begins a sentence for Assist."""
    USED_PLACE = 1
    """A room or floor with something in it that may be asked for."""
    CALLED = 2
    """An entity that is called by its name: a light, a scene."""
    PLACE = 3
    OTHER = 4
    """An entity whose place is named rather than itself: a sensor."""
    ALIAS = 5
    """Another name of an entity."""


Name = tuple[str, Tier]
"""A name of the home: letters, digits and what may stand within a word, single spaces between."""


@dataclass(frozen=True, slots=True)
class AssistReply:
    """What became of a sentence that was meant for Home Assistant's Assist."""

    id: str
    """The transcript's."""
    text: str
    """The command, without the address phrase."""
    status: str
    """action_done, query_answer or error, as the agent answered; failed where it did not."""
    speech: str = ""
    """What is to be said to the speaker."""
    language: str = ""
    error: str = ""
    """Of `error` the agent's code (no_intent_match...), of `failed` why, in plain words."""
    conversation_id: str = ""
    took_ms: float | None = None
    """From handing it over to the answer; None where there was none."""


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

    def on_speech(self, speaking: bool) -> None:
        """Take in that someone starts or stops speaking."""

    def on_change(self) -> None:
        """Take in that the appliance's state has changed."""


def utc_from_monotonic(moment_s: float) -> datetime:
    """Wall-clock time (UTC) of a moment given on time.monotonic()'s clock."""
    return datetime.fromtimestamp(time.time() - (time.monotonic() - moment_s), UTC)


@dataclass(frozen=True, slots=True)
class ApplianceState:
    """How the appliance is, as the `state` and `microphone` topics publish it."""

    status: str
    """running, degraded or muted."""
    reasons: tuple[str, ...]
    """Why it is not simply running, in plain words, never with a password or a text."""
    encoder: str
    model: str
    microphone: str
    """The device's name, or what stands in for it."""
    microphone_online: bool
    """Present and delivering samples that are not digital silence."""
    queue_depth: int
    """Windows that wait to be transcribed."""
    uptime_s: float
    version: str
    muted: bool | None = False
    """True while the microphone is closed on request; None while it is closed because nobody knows
    whether it is to be, or is about to be opened."""
    machine: str = ""
    """What the appliance runs on; empty where that is not known."""
    listens: bool = True
    """False for a machine that has no microphone and is to have none."""
    fleet: tuple[str, str] | None = None
    """Role in a fleet, and the server that is connected to, empty while none is; None alone."""
    wyoming: str | None = ""
    """Address and port where the speech of others is transcribed; None while that cannot be had,
    empty where nobody wants it."""

    def news(self) -> tuple[object, ...]:
        """What is published as soon as it changes; the rest waits for the next regular message."""
        return (self.status, self.reasons, self.encoder, self.model, self.microphone)


@dataclass(frozen=True, slots=True)
class ApplianceStats:
    """Counters and readings, as the `stats` topic publishes them; None is for what is not known."""

    counters: Mapping[str, int]
    """transcripts, discarded_<reason>, frames_dropped... since the start."""
    uptime_s: float
    npu_temperature_c: float | None = None
    soc_temperature_c: float | None = None
    throttling: tuple[str, ...] | None = None
    """What the machine suffers from now, in plain words."""
    round_trips_ms: tuple[float, ...] = ()
    """How long a fleet's brains took for the last windows of this ear."""
