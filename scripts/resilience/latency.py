"""From the last sample of speech to the message at the subscriber, and where the time goes.

Real time, a real Mosquitto and mosquitto_sub, the product's pipeline in this process with a clock
around its calls. Speech ends at the last 10 ms of the recording that are within 35 dB of its
loudest, not where a detector finds the end. The parts are measured one by one, and must add up.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, ParamSpec, Self, TypeVar

import numpy as np
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
from rigs.subscriber import subscribe

import appliance.daemon.listening
from appliance import config
from appliance.capture.segmenter import Segmenter
from appliance.daemon.pipeline import Pipeline
from appliance.infer.transcriber import Transcriber
from appliance.records import Frame, Window
from appliance.store.store import Store

FRAME = 480
PARTS = ("hang-over", "queue", "mel", "encoder", "decoder", "store", "broker")
TOLERANCE_MS = 5.0
"""The parts may miss the whole by so much: two clocks (monotonic here, Unix at the subscriber)."""
STEP = RATE // 100
WITHIN_DB = 35.0

P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class Clock:
    """Moments (time.monotonic()) of each window, by its id; one thread a moment."""

    moments: dict[str, dict[str, float]] = field(default_factory=dict)
    encoding: str = ""
    """The window that is with the encoder."""
    writing: str = ""
    """The window that is with the decoder."""

    def note(self, window_id: str, name: str) -> None:
        """It is now."""
        self.moments.setdefault(window_id, {})[name] = time.monotonic()


@dataclass
class Outcome:
    """Milliseconds of each sentence's parts."""

    parts: list[dict[str, float]] = field(default_factory=list)
    wholes: list[float] = field(default_factory=list)
    said: int = 0
    trouble: str = ""

    @property
    def broken(self) -> bool:
        """True when a sentence has no figures, or they do not add up."""
        return bool(self.trouble) or len(self.wholes) != self.said

    def __str__(self) -> str:
        if not self.wholes:
            return f"latency: nothing arrived {self.trouble}"
        shares = ", ".join(f"{name} {_spread([one[name] for one in self.parts])}" for name in PARTS)
        return (
            f"latency, ms (p50/p95/p99) from the last sample of speech to the subscriber, "
            f"{len(self.wholes)} of {self.said} sentences: {_spread(self.wholes)}; {shares}"
            + (f"; {self.trouble}" if self.trouble else "")
        )


def _spread(values: list[float]) -> str:
    """p50/p95/p99."""
    return "/".join(
        f"{one:.{0 if one >= 100 else 1}f}" for one in np.percentile(values, (50, 95, 99))
    )


class Mouth:
    """A source that plays sentences in real time and knows when each one's last sample came."""

    description = "the sentences of tests/speech"
    silence = trouble = ""

    def __init__(self, sounds: list[Sound]) -> None:
        self._sounds, self._stopped = sounds, False
        self.ends_s: list[float] = []
        """When the sentences end that were begun so far, time.monotonic()."""

    def frames(self) -> Iterator[Frame]:
        """Frames of 30 ms, each when its last sample is due."""
        due_s = time.monotonic()
        for sound in self._sounds:
            self.ends_s.append(due_s + speech_ends(sound) / RATE)
            for at in range(0, len(sound), FRAME):
                if self._stopped:
                    return
                due_s += FRAME / RATE
                time.sleep(max(0.0, due_s - time.monotonic()))
                yield Frame(sound[at : at + FRAME], due_s - FRAME / RATE)

    def stop(self) -> None:
        """Makes `frames` end soon."""
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


def wrap(stack: ExitStack, clock: Clock) -> None:
    """Puts the clock around the product's calls; undone when the stack is closed."""

    def around(owner: type, name: str, make: Callable[[Callable[..., Any]], Any]) -> None:
        plain = getattr(owner, name)
        setattr(owner, name, make(plain))
        stack.callback(setattr, owner, name, plain)

    def push(plain: Callable[..., Any]) -> Any:
        def timed(self: Segmenter, frame: Frame) -> Any:
            found = plain(self, frame)
            for one in found:
                if isinstance(one, Window):
                    clock.note(one.id, "window")
            return found

        return timed

    def encode(plain: Callable[..., Any]) -> Any:
        def timed(self: Transcriber, window: Window) -> Any:
            clock.encoding = window.id
            clock.note(window.id, "taken")
            encoded = plain(self, window)
            clock.note(window.id, "encoded")
            owners[id(encoded)] = window.id
            return encoded

        return timed

    def mel(plain: Callable[..., Any]) -> Any:
        def timed(self: Transcriber, window: Window) -> Any:
            made = plain(self, window)
            clock.note(window.id, "mel")
            return made

        return timed

    def write(plain: Callable[..., Any]) -> Any:
        def timed(self: Transcriber, encoded: Any, *more: Any, **named: Any) -> Any:
            window_id = owners.pop(id(encoded), "")
            clock.note(window_id, "decoding")
            written = plain(self, encoded, *more, **named)
            clock.note(window_id, "decoded")
            return written

        return timed

    def append(plain: Callable[..., Any]) -> Any:
        def timed(self: Store, transcript: Any, *more: Any, **named: Any) -> Any:
            clock.note(transcript.id, "storing")
            done = plain(self, transcript, *more, **named)
            clock.note(transcript.id, "stored")
            return done

        return timed

    owners: dict[int, str] = {}
    around(Segmenter, "push", push)
    around(Transcriber, "encode", encode)
    around(Transcriber, "_mel", mel)
    around(Transcriber, "write", write)
    around(Store, "append", append)


def split(moments: dict[str, float], end_s: float, told_s: float) -> dict[str, float]:
    """The parts, in ms; what lies between two parts is waiting, and belongs to `queue`."""
    at = moments
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


def run(count: int = 40) -> Outcome:
    """Says so many sentences in real time."""
    spoken: list[Said] = sentences()[:count]
    sounds = [between_silences(read(SPEECH / f"{one.number:02}.flac")) for one in spoken]
    mouth, clock, outcome = Mouth(sounds), Clock(), Outcome(said=count)
    with Broker() as broker, Place() as place, ExitStack() as stack:
        place.configure(broker.port)
        heard = subscribe(broker, NODE, stack)
        wrap(stack, clock)
        plain = appliance.daemon.listening.open_source  # type: ignore[attr-defined]
        stack.callback(setattr, appliance.daemon.listening, "open_source", plain)
        appliance.daemon.listening.open_source = lambda *_args, **_named: mouth  # type: ignore[attr-defined]
        pipeline = Pipeline(config.load(place.config))
        pipeline.start()
        pipeline.ended.wait(60 + 10 * count)
        pipeline.stop()
        time.sleep(1.0)
        messages = [one for one in list(heard.queue) if one.topic == "transcript"]
    since_s = time.time() - time.monotonic()
    events = {json.loads(one.payload)["id"]: one.at_s - since_s for one in messages}
    for window_id, told_s in events.items():
        at = clock.moments[window_id]
        end_s = max((one for one in mouth.ends_s if one < at["window"]), default=None)
        if end_s is None:
            outcome.trouble = "a transcript came before anything was said"
            continue
        parts = split(at, end_s, told_s)
        whole = 1000 * (told_s - end_s)
        if abs(sum(parts.values()) - whole) > TOLERANCE_MS or min(parts.values()) < -TOLERANCE_MS:
            outcome.trouble = f"the parts do not add up: {parts} are not {whole:.1f} ms"
        outcome.parts.append(parts)
        outcome.wholes.append(whole)
    return outcome
