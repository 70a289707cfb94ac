"""Measure the latency after the last word, and how many sentences are cut in two.

    scripts/measure pauses FOLDER [--recordings FOLDER] [--early 0 300 350 ...] [--plot FILE.svg]

FOLDER is what scripts/measure pause_set made. With --recordings people's recordings of that
folder's MANIFEST.tsv are heard, too: commands, whose last word ends where scripts/torture latency
finds it, and readings. --segmenter KEY=VALUE ... takes other settings than the defaults, --early
several values of early_ms, one after the other; --plot draws them. With --log the house has heard
each sentence before: the same one, in the set's other conditions.

Nothing waits for real time: frames pass one after the other. Encoder and decoder take --decode-ms
of their clock until the first text is there, and what follows takes as much more as it did here;
with 0 each takes the CPU time that it took here. Printed for each group, condition and what follows
the word:

cut       sentences of which an utterance ended before their last word did; of those without a pause
lost      sentences whose last word is in no window that came out within 2.5 s; ends: those of which
          the last 100 ms are in none
latency   p50/p95 from the end of the last word to the text, of the sentences that are whole
closed    the same to the moment when the utterance ends
early     sentences whose utterance ended before the hang-over was over, of all
guesses   transcriptions ahead for each sentence
work      ms of encoder and decoder for each sentence, what is thrown away included
WER       of the texts joined
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import product
from pathlib import Path

import numpy as np
from figures.pause_set import rows_of
from figures.voice import samples_of
from resilience.latency import PEOPLE, QUIET_S, quietest, word_ends
from rigs.recordings import manifest
from rigs.word_errors import word_error_rate

from appliance.capture.frames import Framer
from appliance.capture.segmenter import Segmenter
from appliance.capture.voice import Judgement, VoiceDetector
from appliance.config import Settings, VoiceSettings
from appliance.infer.completeness import silence_ms
from appliance.infer.gates import Gates
from appliance.infer.opening import open_transcriber
from appliance.infer.transcriber import Progress, Transcriber
from appliance.records import SAMPLE_RATE, Discarded, Frame, Samples, Transcription, Window
from appliance.store.utterance_history import Sentence, UtteranceHistory

CUT_MS, LOST_MS = 50, 100
"""An utterance that ends so long before its last word does cuts it; what misses so much of it loses
it."""
LEAD_S, REST_S = 3.5, 2.5
"""Around people's recordings."""
GROUPS = {"tuning", "reporting", "people's commands"}
"""That the plot shows."""
SAID = ", said before"


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A sentence to hear."""

    name: str
    groups: tuple[str, ...]
    """Of the table's lines that it counts for."""
    samples: Samples
    begin_s: float
    end_s: float
    """Of the speech."""
    text: str
    paused: bool
    judgements: list[Judgement] = field(default_factory=list)
    """The detector's, once it was asked: they are the same whatever is made of them."""


class Once:
    """A voice detector that judges a case's frames once."""

    def __init__(self, case: Case, settings: VoiceSettings) -> None:
        self._found, self._at = case.judgements, 0
        self._voice = None if self._found else VoiceDetector(settings)

    def push(self, frame: Frame) -> Judgement:
        """As the detector does."""
        if self._voice:
            self._found.append(self._voice.push(frame))
        self._at += 1
        return self._found[self._at - 1]

    def reset(self) -> None:
        """No gap is in a case."""


@dataclass(frozen=True, slots=True)
class Closed:
    """An utterance's last window."""

    window: Window
    when_s: float
    text_s: float
    """When its text was there."""


@dataclass
class Heard:
    """What became of a case."""

    windows: list[Window] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    closed: list[Closed] = field(default_factory=list)
    guesses: int = 0
    early: int = 0
    """Utterances that ended before the hang-over was over."""
    work_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Reading:
    """What a transcriber makes of a sound, and when, in seconds after it began."""

    result: Transcription
    took_s: float
    decisions: tuple[tuple[float, Transcription], ...]
    """When it was decided whether the text is a whole sentence, the last time with `result`."""


class Reader:
    """A transcriber that reads each sound once."""

    def __init__(self, transcriber: Transcriber, decode_ms: float) -> None:
        self.transcriber, self._decode_ms = transcriber, decode_ms
        self._read: dict[bytes, Reading] = {}

    def read(self, window: Window) -> Reading:
        """The transcription. Its parts take the CPU time that they took here, or as much more or
        less as `decode_ms` is to that of the first text."""
        key = sha256(window.samples.tobytes()).digest()
        if key not in self._read:
            begun_s = time.process_time()
            timed: list[tuple[float, Transcription]] = []

            def decided(result: Transcription) -> None:
                timed.append((time.process_time() - begun_s, result))

            encoded = replace(self.transcriber.encode(window), speculative=True)
            written = self.transcriber.decode(encoded, Progress(decided, lambda: True))
            decided(written)
            scale = self._decode_ms / 1000 / timed[0][0] if self._decode_ms else 1.0
            decisions = tuple((scale * after_s, result) for after_s, result in timed)
            self._read[key] = Reading(written, decisions[-1][0], decisions)
        return self._read[key]


class Room:
    """A house in which a sound is heard, by detector, segmenter, model and gates."""

    def __init__(
        self, case: Case, settings: Settings, reader: Reader, history: UtteranceHistory
    ) -> None:
        window_s = reader.transcriber.bundle.window_s
        self._settings, self._reader, self._history = settings.segmenter, reader, history
        self._segmenter = Segmenter(Once(case, settings.voice), settings.segmenter, window_s)
        self._gates, self.heard = Gates(reader.transcriber.gates), Heard()
        self._ahead, self._ready_s = "", 0.0
        self._decisions: list[tuple[float, Window, Transcription]] = []
        """Decisions that are still to come: when, of which window, and what."""

    def push(self, frame: Frame) -> None:
        """Hear a frame, and what was decided while it lasted."""
        while self._decisions and self._decisions[0][0] <= frame.end_s:
            when_s, speculation, result = self._decisions.pop(0)
            self._segmenter.expect(speculation.id, self._silence_ms(speculation, result))
            self._close(self._segmenter.close_if_due(), when_s)
        self._close(self._segmenter.push(frame), frame.end_s)
        window_now = self._segmenter.speculative_window
        if self._settings.speculate and window_now and window_now.id != self._ahead:
            reading = self._reader.read(window_now)
            self._ahead, self._ready_s = window_now.id, frame.end_s + reading.took_s
            decisions = reading.decisions if self._settings.early_ms else ()
            self._decisions = [
                (frame.end_s + after_s, window_now, result) for after_s, result in decisions
            ]
            self.heard.guesses += 1
            self.heard.work_ms += _work_ms(reading)

    def _silence_ms(self, speculation: Window, result: Transcription) -> int:
        whole, longer = self._history.count(result.text)
        gates = self._reader.transcriber.gates
        return silence_ms(speculation, result, self._settings, gates, whole=whole, longer=longer)

    def _close(self, found: list[Window | Discarded], when_s: float) -> None:
        """Take in the windows that are there at that time."""
        for one in found:
            if not isinstance(one, Window):
                continue
            reading, ahead = self._reader.read(one), one.id == self._ahead
            text_s = max(when_s, self._ready_s if ahead else when_s + reading.took_s)
            result, reason = self._gates.apply(one, reading.result)
            self.heard.work_ms += 0.0 if ahead else _work_ms(reading)
            self.heard.windows.append(one)
            self.heard.texts.append("" if reason else result.text)
            if one.last:
                self.heard.early += self._segmenter.closed_early
                self.heard.closed.append(Closed(one, when_s, text_s))


def _work_ms(reading: Reading) -> float:
    return reading.result.encode_ms + reading.result.decode_ms


def hear(case: Case, settings: Settings, reader: Reader, history: UtteranceHistory) -> Heard:
    """Run one sound through detector, segmenter, model and gates, with an utterance `history`."""
    room = Room(case, settings, reader, history)
    for frame in Framer().push(case.samples, 0.0):
        room.push(frame)
    return room.heard


def cases_of(folder: Path, groups: Sequence[str]) -> Iterator[Case]:
    """The set of pauses."""
    for row in rows_of(folder):
        if row.group in groups:
            names = row.group, f"{row.group}, {row.condition}", f"{row.group}, then {row.after}"
            samples = samples_of(folder / row.file)
            yield Case(
                row.file, names, samples, row.begin_s, row.end_s, row.text, bool(row.pause_ms)
            )


def people(folder: Path) -> Iterator[Case]:
    """People's recordings, in their own quiet; where speech begins in them is not looked for."""
    for file, row in manifest(folder):
        kind = row["category"]
        if kind in PEOPLE or (kind == "speech" and row["transcript"]):
            sound = samples_of(file)
            rest = np.tile(quietest(sound), int(LEAD_S / QUIET_S) + 1)
            around = [rest[: int(seconds * SAMPLE_RATE)] for seconds in (LEAD_S, REST_S)]
            end_s = LEAD_S + word_ends(sound) / SAMPLE_RATE
            name = "people's commands" if kind in PEOPLE else "people's readings"
            text = "" if row["transcript"].startswith("SLOTS") else row["transcript"]
            yield Case(
                row["path"], (name,), np.concatenate((around[0], sound, around[1])),
                LEAD_S, end_s, text, kind == "speech" or not text,
            )  # fmt: skip


@dataclass
class Tally:
    """The figures of a group."""

    spoken: int = 0
    cut: int = 0
    cut_unpaused: int = 0
    unpaused: int = 0
    lost: int = 0
    ends: int = 0
    guesses: int = 0
    work_ms: float = 0.0
    early: int = 0
    text_ms: list[float] = field(default_factory=list)
    closed_ms: list[float] = field(default_factory=list)
    texts: list[tuple[str, str]] = field(default_factory=list)

    def add(self, case: Case, heard: Heard) -> str:
        """Count a case; what is wrong with it."""
        self.spoken += 1
        self.unpaused += not case.paused
        mine = [one for one in heard.closed if _end_s(one.window) > case.begin_s + 0.05]
        cut = any(one.when_s < case.end_s - CUT_MS / 1000 for one in mine)
        reached = [one for one in mine if one.when_s >= case.end_s - CUT_MS / 1000]
        reached = [one for one in reached if one.window.start_s < case.end_s - 0.03]
        covered_s = max(
            (_end_s(one) for one in heard.windows if one.start_s < case.end_s), default=0
        )
        lost = not reached or covered_s < case.end_s - 0.5
        end_lost = not lost and covered_s < case.end_s - LOST_MS / 1000
        self.cut += cut
        self.cut_unpaused += cut and not case.paused
        self.lost, self.ends = self.lost + lost, self.ends + end_lost
        self.guesses += heard.guesses
        self.work_ms += heard.work_ms
        self.early += bool(heard.early)
        if not cut and not lost:
            self.text_ms.append(1000 * (reached[0].text_s - case.end_s))
            self.closed_ms.append(1000 * (reached[0].when_s - case.end_s))
        if case.text:
            self.texts.append((case.text, " ".join(filter(None, heard.texts))))
        return "cut" * cut or "lost" * lost or "end lost" * end_lost

    def __str__(self) -> str:
        if not self.text_ms:
            return f"{self.spoken} said, none whole"
        error = word_error_rate(*zip(*self.texts, strict=True)) if self.texts else float("nan")
        return (
            f"{self.spoken} said, cut {self.cut} ({self.cut / self.spoken:.1%}; without a pause "
            f"{self.cut_unpaused} of {self.unpaused}), lost {self.lost}, ends {self.ends}; latency "
            f"{_spread(self.text_ms)} ms, closed {_spread(self.closed_ms)} ms; early "
            f"{self.early / self.spoken:.0%}, guesses {self.guesses / self.spoken:.2f}, "
            f"work {self.work_ms / self.spoken:.0f} ms; "
            f"WER {error:.1f} %"
        )


def _end_s(window: Window) -> float:
    return window.start_s + window.duration_s


def _spread(values: Sequence[float]) -> str:
    """p50/p95."""
    return "/".join(f"{one:.0f}" for one in np.percentile(values, (50, 95)))


def tallies(
    cases: Sequence[Case],
    settings: Settings,
    reader: Reader,
    report: Callable[[str], object] | None = None,
    log: dict[str, str] | None = None,
) -> dict[str, Tally]:
    """The figures of every group, of one setting; `log`: the text of each case's name."""
    found: dict[str, Tally] = {}
    for case in cases:
        others = (text for name, text in (log or {}).items() if name != case.name)
        history = UtteranceHistory(
            Sentence(f"{at}", 1, 1, text, "") for at, text in enumerate(others)
        )
        heard = hear(case, settings, reader, history)
        wrong = ""
        for name in case.groups:
            wrong = found.setdefault(name, Tally()).add(case, heard)
        if report:
            late_ms = 1000 * (heard.closed[-1].when_s - case.end_s) if heard.closed else 0.0
            report(f"{case.name}: {late_ms:.0f} ms {wrong} {heard.texts}")
    return found


def log_of(cases: Sequence[Case], settings: Settings, reader: Reader) -> dict[str, str]:
    """What a house has in its log that says each sentence without a pause of more than 1.5 s."""
    patient = replace(settings.segmenter, hang_over_ms=1500, early_ms=0)
    log: dict[str, str] = {}
    for case in cases:
        texts = hear(case, replace(settings, segmenter=patient), reader, UtteranceHistory()).texts
        if len(texts) == 1:
            log[case.name] = texts[0]
    return log


def draw(file: Path, curves: dict[str, dict[int, Tally]]) -> None:
    """Latency over early_ms, and beside it the share of sentences that are cut."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    late, cut = figure.subplots(1, 2, sharex=True)
    for name, points in curves.items():
        early = {ms: points[ms] for ms in sorted(points) if ms}
        whole = list(early.values())
        colour = late.plot(list(early), [np.median(one.text_ms) for one in whole], label=name)
        style = {"color": colour[0].get_color(), "linestyle": ":"}
        late.plot(list(early), [np.percentile(one.text_ms, 95) for one in whole], **style)
        cut.plot(list(early), [100 * one.cut / one.spoken for one in whole], label=name)
        if 0 in points and not name.endswith(SAID):
            cut.axhline(100 * points[0].cut / points[0].spoken, **style)
    late.set(xlabel="early_ms", ylabel="latency, ms: p50, p95 dotted")
    cut.set(xlabel="early_ms", ylabel="% of sentences cut; dotted: early_ms = 0")
    cut.legend(fontsize="small")
    for axes in (late, cut):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    with rc_context({"svg.hashsalt": "roomscribe"}):
        figure.savefig(file, metadata={"Date": None})


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--recordings", type=Path)
    parser.add_argument("--groups", nargs="+", default=("tuning", "reporting"))
    parser.add_argument("--decode-ms", type=float, default=30.0)
    parser.add_argument("--early", type=int, nargs="+", metavar="MS")
    parser.add_argument("--segmenter", nargs="+", default=(), metavar="KEY=VALUE")
    parser.add_argument("--log", action="store_true", help="with and without a log")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--verbose", action="store_true", help="one line per sentence")
    options = parser.parse_args()
    cases = list(cases_of(options.folder, options.groups)) if options.folder else []
    cases += list(people(options.recordings)) if options.recordings else []
    keys = {
        key: float(value) for key, _, value in (one.partition("=") for one in options.segmenter)
    }
    segmenter = replace(Settings().segmenter, **keys)  # type: ignore[arg-type]
    curves: dict[str, dict[int, Tally]] = {}
    with open_transcriber(Settings()) as transcriber:
        reader = Reader(transcriber, options.decode_ms)
        logs: dict[str, dict[str, str]] = {"": {}}
        if options.log:
            logs[SAID] = log_of(cases, replace(Settings(), segmenter=segmenter), reader)
        for early_ms, (spoken, log) in product(
            options.early or (segmenter.early_ms,), logs.items()
        ):
            settings = replace(Settings(), segmenter=replace(segmenter, early_ms=early_ms))
            found = tallies(cases, settings, reader, print if options.verbose else None, log)
            for name in sorted(found):
                print(f"early_ms {early_ms}: {name}{spoken}: {found[name]}", flush=True)
            for name in GROUPS & set(found):
                curves.setdefault(name + spoken, {})[early_ms] = found[name]
    if options.plot:
        draw(options.plot, dict(sorted(curves.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
