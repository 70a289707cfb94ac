"""Measure the time from the last sample of speech to the subscriber, and its parts.

Real time, a real Mosquitto, a subscriber and the product's pipeline in this process with a clock
around its calls. The parts are measured one by one, and must add up.

Where speech ends is read from the recording, not from what a detector finds. Synthetic sentences
end with their last 10 ms within 35 dB of their loudest. In people's commands noise, breath, the
room's tail and the click of a mouse follow the last word: it ends with the last 60 ms in a row
that are, in the band of voices or in that of hisses, 10 dB above that band's noise (its tenth
percentile) and within 30 dB of its loudest. Not all of them give a text.

A sentence's text was there ahead when its utterance ended, or even ended it (early); or neither:
plain. With --encoder-ms and --decoder-ms their calls take at least so long, as a larger model's do.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from figures.model import read as read_any, to_int16
from resilience.rig import (
    NODE,
    RATE,
    Place,
    Said,
    Sound,
    between_silences,
    read,
    sentences,
)
from rigs.broker import Broker
from rigs.checkout import SPEECH
from rigs.mqtt_client import Subscriber
from rigs.recordings import manifest

from appliance import config
from appliance.capture.segmenter import Segmenter
from appliance.daemon.assembly import Factories, build
from appliance.daemon.pipeline import Pipeline
from appliance.infer.opening import open_transcriber
from appliance.infer.transcriber import IGNORE_PROGRESS, Encoded, Progress, Transcriber
from appliance.records import Discarded, Frame, Transcript, Transcription, Window
from appliance.store.store import Store
from appliance.store.tables import StoredTranscript

FRAME = 480
PARTS = ("hang-over", "queue", "mel", "encoder", "decoder", "store", "broker")
TOLERANCE_MS = 5.0
"""The parts may miss the whole by so much."""
STEP = RATE // 100
WITHIN_DB = 35.0
BANDS_HZ = ((150, 4000), (4000, 7800))
"""Voices and hisses (s, t, f)."""
ABOVE_NOISE_DB, BELOW_LOUDEST_DB, RUN = 10.0, 30.0, 6
"""RUN steps in a row are 60 ms: no click lasts as long."""
QUIET_S = 0.2
"""The quietest so much of a recording follows it, over and over, until it is silent long enough."""
PEOPLE = ("speech-home-automation", "speech-slots")
"""Categories in a MANIFEST.tsv of people who give a command."""
LONGEST_S = 9.0


@dataclass
class Clock:
    """Moments (time.monotonic()) of each window, by its id; one thread a moment."""

    moments: dict[str, dict[str, float]] = field(default_factory=dict)
    early: set[str] = field(default_factory=set)
    """Windows that ended their utterance before the hang-over was over."""
    encodes: int = 0

    def note(self, window_id: str, name: str) -> None:
        """It is now."""
        self.moments.setdefault(window_id, {})[name] = time.monotonic()


class Utterance(NamedTuple):
    """A sentence to say."""

    sound: Sound
    end: int
    """The sample behind its speech."""
    group: str
    """Who says it."""


KINDS = ("early", "ahead", "plain")


class Measured(NamedTuple):
    """What became of a sentence, ms."""

    group: str
    kind: str
    parts: dict[str, float]
    whole: float


@dataclass
class Outcome:
    """Milliseconds of each sentence's parts."""

    measured: list[Measured] = field(default_factory=list)
    said: int = 0
    least: int = 0
    """How many must be heard."""
    cut: int = 0
    """Utterances that ended within a recording, before its speech did."""
    windows: int = 0
    encodes: int = 0
    passes: int = 0
    """Windows transcribed for partial texts."""
    trouble: str = ""

    @property
    def broken(self) -> bool:
        """True when a sentence that must be heard has no figures, or they do not add up."""
        return bool(self.trouble) or len(self.measured) < self.least

    def __str__(self) -> str:
        if not self.measured:
            return f"latency: nothing arrived {self.trouble}"
        shares = ", ".join(
            f"{name} {_spread([one.parts[name] for one in self.measured])}" for name in PARTS
        )
        note = f", {self.cut} ended in a pause" if self.cut else ""
        note += f", {self.passes} passes for partial texts" if self.passes else ""
        lines = [
            f"latency, ms (p50/p95/p99) from the last sample of speech to the subscriber, "
            f"{len(self.measured)} of {self.said} sentences{note}: "
            f"{_spread([one.whole for one in self.measured])}; {shares}"
            + (f"; {self.trouble}" if self.trouble else ""),
            f"    encodes: {self.encodes} for {self.windows} windows",
            f"    {'':24}{'all':>18}" + "".join(f"{kind:>24}" for kind in KINDS),
        ]
        for group in dict.fromkeys(("", *sorted({one.group for one in self.measured}))):
            mine = [one for one in self.measured if group in (one.group, "")]
            columns = [[one.whole for one in mine if one.kind == kind] for kind in KINDS]
            shown = [f"{len(one)}: {_spread(one)}" if one else "-" for one in columns]
            lines.append(
                f"    {group or 'all':24}{_spread([one.whole for one in mine]):>18}"
                + "".join(f"{one:>24}" for one in shown)
            )
        return "\n".join(lines)


def _spread(values: list[float]) -> str:
    """p50/p95/p99."""
    return "/".join(
        f"{one:.{0 if one >= 100 else 1}f}" for one in np.percentile(values, (50, 95, 99))
    )


class Player:
    """A source that plays sentences in real time and knows when each one's last sample came."""

    description = "recorded sentences"
    silence = trouble = ""
    echo = stream = None

    def __init__(self, sounds: Sequence[Utterance]) -> None:
        self._sounds, self._stopped = sounds, False
        self.spans_s: list[tuple[float, float]] = []
        """When the sentences begun so far begin, and end, time.monotonic()."""

    def frames(self) -> Iterator[Frame]:
        """Frames of 30 ms, each when its last sample is due."""
        due_s = time.monotonic()
        for sound, end, _ in self._sounds:
            self.spans_s.append((due_s, due_s + end / RATE))
            for at in range(0, len(sound), FRAME):
                if self._stopped:
                    return
                due_s += FRAME / RATE
                time.sleep(max(0.0, due_s - time.monotonic()))
                yield Frame(sound[at : at + FRAME], due_s - FRAME / RATE)

    def stop(self) -> None:
        """Make `frames` end soon."""
        self._stopped = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def speech_ends(sound: Sound) -> int:
    """The sample behind the last loud 10 ms."""
    steps = sound[: len(sound) // STEP * STEP].reshape(-1, STEP).astype(np.float64)
    level = 10 * np.log10((steps**2).mean(axis=1) + 1e-2)
    return (int(np.flatnonzero(level > level.max() - WITHIN_DB)[-1]) + 1) * STEP


def people(folder: Path) -> list[Utterance]:
    """Recordings of people giving commands, quiet around them; `folder` has a MANIFEST.tsv."""
    found = []
    for file, row in manifest(folder):
        if row["category"] in PEOPLE and float(row["duration_s"]) <= LONGEST_S:
            sound = to_int16(read_any(file))
            around = in_own_quiet(sound, 0.5, 2.2)
            found.append(Utterance(around, RATE // 2 + word_ends(sound), file.parent.name))
    return found


def in_own_quiet(sound: Sound, before_s: float, after_s: float) -> Sound:
    """The recording between so much of its own quietest part, over and over."""
    quiet = np.tile(quietest(sound), int(max(before_s, after_s) / QUIET_S) + 1)
    return np.concatenate((quiet[: int(before_s * RATE)], sound, quiet[: int(after_s * RATE)]))


def word_ends(sound: Sound) -> int:
    """The sample behind the last word of a person; (n,) int16."""
    frames = np.lib.stride_tricks.sliding_window_view(sound.astype(np.float64), 2 * STEP)[::STEP]
    powers = np.abs(np.fft.rfft(frames * np.hanning(2 * STEP))) ** 2
    frequencies = np.fft.rfftfreq(2 * STEP, 1 / RATE)
    last = 0
    for low, high in BANDS_HZ:
        band = powers[:, (frequencies >= low) & (frequencies < high)].mean(axis=1) + 1e-2
        level = 10 * np.log10(np.convolve(band, np.ones(3) / 3, "same"))
        loudest = np.percentile(level, 99) - BELOW_LOUDEST_DB
        loud = level > max(np.percentile(level, 10) + ABOVE_NOISE_DB, float(loudest))
        runs = np.convolve(loud, np.ones(RUN), "valid") == RUN
        last = max(last, int(np.flatnonzero(runs)[-1]) + RUN if runs.any() else 0)
    return last * STEP + STEP


def quietest(sound: Sound) -> Sound:
    """The softest QUIET_S of it, forth and back, so that its ends meet."""
    size = int(QUIET_S / 2 * RATE)
    energy = np.convolve(sound.astype(np.float64) ** 2, np.ones(size), "valid")
    at = int(np.argmin(energy))
    piece = sound[at : at + size]
    return np.concatenate((piece, piece[::-1]))


class TimedSegmenter(Segmenter):
    """Notes when each window is made."""

    def __init__(self, clock: Clock, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._clock = clock

    def push(self, frame: Frame) -> list[Window | Discarded]:
        """As the segmenter does."""
        return self._noted(super().push(frame))

    def close_if_due(self) -> list[Window | Discarded]:
        """As the segmenter does."""
        return self._noted(super().close_if_due())

    def _noted(self, found: list[Window | Discarded]) -> list[Window | Discarded]:
        for one in found:
            if isinstance(one, Window):
                self._clock.note(one.id, "window")
                if self.closed_early:
                    self._clock.early.add(one.id)
        return found


class TimedTranscriber(Transcriber):
    """Notes when each window is with the encoder and with the decoder, whose calls take at least
    so many ms."""

    def __init__(self, clock: Clock, plain: Transcriber, least_ms: tuple[float, float]) -> None:
        vars(self).update(vars(plain))
        self._clock, self._least_ms = clock, least_ms
        self._owners: dict[int, str] = {}
        """Ids of windows by those of the states that the encoder made of them."""

    def encode(self, window: Window) -> Encoded:
        """As the transcriber does."""
        self._clock.note(window.id, "taken")
        self._clock.encodes += 1
        encoded = super().encode(window)
        time.sleep(max(0.0, self._least_ms[0] - encoded.encode_ms) / 1000)
        encoded = replace(encoded, encode_ms=max(self._least_ms[0], encoded.encode_ms))
        self._clock.note(window.id, "encoded")
        at = self._clock.moments[window.id]
        at["mel"] = at["encoded"] - encoded.encode_ms / 1000
        self._owners[id(encoded.states)] = window.id
        return encoded

    def decode(self, encoded: Encoded, progress: Progress = IGNORE_PROGRESS) -> Transcription:
        """As the transcriber does."""
        window_id = self._owners.pop(id(encoded.states), "")
        self._clock.note(window_id, "decoding")
        written = super().decode(encoded, progress)
        time.sleep(max(0.0, self._least_ms[1] - written.decode_ms) / 1000)
        self._clock.note(window_id, "decoded")
        return written


class TimedStore(Store):
    """Notes when each transcript is written."""

    clock: Clock

    @classmethod
    def open_timed(
        cls, clock: Clock, settings: config.Settings, tell: Callable[[str | None], object]
    ) -> TimedStore:
        """As the daemon opens its store."""
        store = cls.open_with_fallback(settings, tell)
        store.clock = clock
        return store

    def append(self, transcript: Transcript) -> StoredTranscript:
        """As the store does."""
        self.clock.note(transcript.id, "storing")
        stored = super().append(transcript)
        self.clock.note(transcript.id, "stored")
        return stored


def split(moments: dict[str, float], end_s: float, told_s: float) -> dict[str, float]:
    """The parts, in ms; what lies between two parts is waiting, and belongs to `queue`. What was
    done ahead, before the window was made, took no time."""
    at = {name: max(moment, moments["window"]) for name, moment in moments.items()}
    ways = {
        "hang-over": at["window"] - end_s,
        "queue": at["taken"] - at["window"] + at["decoding"] - at["encoded"],
        "mel": at["mel"] - at["taken"],
        "encoder": at["encoded"] - at["mel"],
        "decoder": at["decoded"] - at["decoding"],
        "store": at["stored"] - at["storing"],
        "broker": told_s - at["stored"],
    }
    ways["queue"] += at["storing"] - at["decoded"]
    return {name: 1000 * ways[name] for name in PARTS}


def synthetic(count: int) -> list[Utterance]:
    """Sentences of tests/speech between silences."""
    spoken: list[Said] = sentences()[:count]
    sounds = [between_silences(read(SPEECH / f"{one.number:02}.flac")) for one in spoken]
    return [Utterance(sound, speech_ends(sound), "tests/speech") for sound in sounds]


def run(
    sounds: Sequence[Utterance],
    least: int,
    *,
    partials: bool = False,
    least_ms: tuple[float, float] = (0.0, 0.0),
    early_ms: int | None = None,
) -> Outcome:
    """Say the sentences, of which so many at least must be heard, in real time; with `partials`
    their partial texts are told, too; encoder and decoder take at least `least_ms`."""
    player, clock, outcome = Player(sounds), Clock(), Outcome(said=len(sounds), least=least)
    with Broker() as broker, Place() as place, ExitStack() as stack:
        place.configure(broker.port)
        heard = stack.enter_context(Subscriber(broker.port))
        settings = config.load(place.config)
        if early_ms is not None:
            segmenter = replace(settings.segmenter, early_ms=early_ms)
            settings = replace(settings, segmenter=segmenter)
        factories = Factories(
            source=lambda *_: player,
            segmenter=functools.partial(TimedSegmenter, clock),
            transcriber=lambda settings: TimedTranscriber(
                clock, open_transcriber(settings), least_ms
            ),
            store=functools.partial(TimedStore.open_timed, clock),
        )
        settings = replace(settings, mqtt=replace(settings.mqtt, partials=partials))
        pipeline = Pipeline(build(settings, factories))
        pipeline.start()
        pipeline.ended.wait(60 + 15 * len(sounds))
        pipeline.stop()
        time.sleep(1.0)
    outcome.passes = pipeline.health.counters().get("partials", 0)
    events = {
        json.loads(message.payload)["id"]: message.timestamp
        for message in heard.messages
        if message.topic == f"roomscribe/{NODE}/transcript"
    }
    for window_id, told_s in events.items():
        at = clock.moments[window_id]
        begun = [span for span in player.spans_s if span[0] < at["window"]]
        if not begun:
            outcome.trouble = "a transcript came before anything was said"
            continue
        end_s = begun[-1][1]
        if end_s > at["window"]:
            outcome.cut += 1
            continue
        parts = split(at, end_s, told_s)
        whole = 1000 * (told_s - end_s)
        if abs(sum(parts.values()) - whole) > TOLERANCE_MS or min(parts.values()) < -TOLERANCE_MS:
            outcome.trouble = f"the parts do not add up: {parts} are not {whole:.1f} ms"
        ahead = "ahead" if at["decoded"] <= at["window"] else "plain"
        kind = "early" if window_id in clock.early else ahead
        group = sounds[len(begun) - 1].group
        outcome.measured.append(Measured(group, kind, parts, whole))
    outcome.encodes = clock.encodes
    outcome.windows = sum("window" in at for at in clock.moments.values())
    return outcome
