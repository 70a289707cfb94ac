"""Measure a model's quality and compare it with the limits that a release must keep.

    scripts/measure gate [--bundle NAME] [--recordings FOLDER] [--write [--release NAME]]

0: passed, 1: a limit is broken, 2: wrong use. --write puts the values into gate.json and
docs/figures.md, if nothing is broken and all was measured.

Recordings go through voice detector, segmenter, model and gates as the microphone's would: those
of tests/speech, as they are and in noise, and people, noise and music of FOLDER's MANIFEST.tsv.
Words are compared after Whisper's own normaliser. An action is what Home Assistant's blueprint
would do with the evening's expected sentences. Memory and CPU time are of one thread.
"""

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
from evening_run.publish import put
from evening_run.results import about
from evening_run.score import action, same_action
from rigs.checkout import ROOT
from rigs.recordings import SHARED_AUDIO, manifest, sentences
from rigs.sounds import COMMANDS, NOT_SPEECH, Sound, cut, quiet, read, to_int16, with_noise
from rigs.word_errors import words
from whisper_normalizer.english import EnglishTextNormalizer

from appliance import __version__
from appliance.config import Settings
from appliance.daemon.transcripts import compose
from appliance.errors import RoomscribeError
from appliance.infer.gates import Gates
from appliance.infer.opening import open_transcriber
from appliance.infer.transcriber import Transcriber
from appliance.lab.benchmark.table import as_markdown
from appliance.lab.fit.statistics import calibration_error
from appliance.model import load_bundle
from appliance.records import SAMPLE_RATE, Transcript, Window, acting_text, why_not_act
from appliance.system import resident_mb, write_whole

Record = dict[str, Any]
Clip = tuple[str, Sound]
"""What is said in a recording ("" if that does not matter), and its sound."""

FILE = Path(__file__).with_suffix(".json")
MEASURES = {
    "speech_word_errors": "words wrong, `tests/speech`, %",
    "noise_word_errors": "words wrong, `tests/speech` in pink noise at 15 and 5 dB, %",
    "confidence_error": "calibration error of `confidence`, `tests/speech`",
    "wrong_actions": "wrong actions, `tests/speech` and in noise",
    "command_word_errors": "words wrong, home commands by people and a synthesiser, %",
    "reading_word_errors": "words wrong, people who read, %",
    "people_confidence_error": "calibration error of `confidence`, these and the commands",
    "people_wrong_actions": "wrong actions after these commands",
    "people_right_actions": "commands that would be acted on rightly",
    "talk_phantoms": "phantom actions of people who read, talk and order coffee",
    "right_discarded": "right texts that the gates discard, of these people",
    "noise_texts": "texts of an hour of recorded noise, music and chimes",
    "memory_mb": "memory of a process that transcribes, MB",
    "cpu_ms": "CPU time for a sentence of `tests/speech`, ms",
}
"""All measures, in the table's order."""
LARGER_IS_BETTER = {"people_right_actions"}
GAINS_DB = (-20, -12, -6, 0, 6)
TALK = {"speech", "speech-slots", "speech-oov", "long", "long-labelled"}
TIMED_SENTENCES = 20
SEED = 7


@dataclass(frozen=True, slots=True)
class Heard:
    """What was made of a recording."""

    said: str
    events: tuple[Record, ...]
    """Those of its windows that were not discarded, with the fields of the MQTT event."""
    discarded: tuple[tuple[str, str], ...] = ()
    """Reason and text of the others."""

    @property
    def text(self) -> str:
        """The whole text."""
        return " ".join(one["text"] for one in self.events)

    @property
    def right_discarded(self) -> int:
        """Number of discarded texts that are a part of what was said."""
        said = f" {' '.join(words(self.said))} "
        texts = [" ".join(words(text)) for _, text in self.discarded]
        return sum(f" {text} " in said for text in texts if text)

    @property
    def actions(self) -> list[list[str]]:
        """Words of the sentences that Home Assistant would act on."""
        return [done for one in self.events if (done := action(one))]


def main(words: Sequence[str] | None = None) -> int:
    """Print the table; return the exit status."""
    options = arguments(words)
    try:
        return measured(options, json.loads(FILE.read_text(encoding="utf-8")))
    except (RoomscribeError, OSError, ValueError) as error:
        print(f"gate: {error}", file=sys.stderr)
        return 2


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("scripts/measure gate", description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", default="tiny.en", metavar="NAME", help="a name or a folder")
    parser.add_argument("--recordings", type=Path, default=SHARED_AUDIO, metavar="FOLDER")
    parser.add_argument("--release", default=__version__, metavar="NAME")
    parser.add_argument("--write", action="store_true")
    return parser.parse_args(words)


def measured(options: argparse.Namespace, record: Record) -> int:
    """Measure a bundle, print the table, and write the values; return the exit status."""
    bundle = load_bundle(options.bundle)
    before = [one for one in record["releases"] if one["release"] != options.release]
    values = quality(bundle.folder, options.recordings) | cost(bundle.folder)
    values = {name: round(found, 3) for name, found in values.items()}
    print(text_table(values, record["limits"], before))
    lacking = unmeasured(values)
    broken = faults(values, record["limits"])
    for line in (*broken, *(f"not measured: {name}" for name in lacking)):
        print(f"gate: {line}", file=sys.stderr)
    if lacking:
        print(f"gate: {options.recordings} has no recordings of people and noise: name a folder "
              "with a MANIFEST.tsv with --recordings", file=sys.stderr)  # fmt: skip
    if options.write and not broken and not lacking:
        entry = about(ROOT, bundle.folder) | {"release": options.release, "values": values}
        record["releases"] = [entry, *before]
        put(page_table(record), "gate")
        write_whole(FILE, json.dumps(record, indent=1) + "\n", 0o644)
        print(f"written as release {options.release}")
    elif options.write:
        print("gate: not passed, so nothing was written", file=sys.stderr)
        return 1
    return int(bool(broken))


def quality(folder: Path, recordings: Path) -> dict[str, float]:
    """Return the values of a bundle that depend on its texts and probabilities."""
    settings = of_bundle(folder)
    with open_transcriber(settings) as transcriber:

        def hear(clips: Iterable[Clip]) -> list[Heard]:
            return [hear_clip(settings, transcriber, clip) for clip in clips]

        values = on_speech(hear, [(one.text, read(one.file)) for one in sentences()])
        if (recordings / "MANIFEST.tsv").is_file():
            values |= on_recordings(hear, recordings)
    return values


Hear = Callable[[Iterable[Clip]], list[Heard]]


def on_speech(hear: Hear, spoken: Sequence[Clip]) -> dict[str, float]:
    """Return the values that need no other recordings than these sentences."""
    plain, noisy = hear(spoken), hear(in_noise(spoken))
    both = [*plain, *noisy]
    return {
        "speech_word_errors": word_errors(plain),
        "noise_word_errors": word_errors(noisy),
        "confidence_error": confidence_error(both),
        "wrong_actions": count_actions(both, right=False),
    }


def on_recordings(hear: Hear, folder: Path) -> dict[str, float]:
    """Return the values of people's commands, of other talk, and of sounds without speech."""
    clips: dict[str, list[Clip]] = {}
    for file, row in manifest(folder):
        clips.setdefault(row["category"], []).append((row["transcript"], read(file)))
    commands = hear(clip for name in sorted(COMMANDS) for clip in clips.get(name, ()))
    read_aloud = hear(clip for clip in clips.get("speech", ()) if clip[0])
    talk = hear(
        ("", sound) for name in sorted(TALK - {"speech"}) for _, sound in clips.get(name, ())
    )
    noises = [sound for name in sorted(NOT_SPEECH) for _, sound in clips.get(name, ())]
    noise = hear(an_hour(noises))
    reasons = Counter(reason for one in noise for reason, _ in one.discarded)
    kept = sum(len(one.events) for one in noise)
    print(f"windows of noise: kept {kept}, discarded {dict(reasons)}")
    return {
        "command_word_errors": word_errors(commands),
        "reading_word_errors": word_errors(read_aloud),
        "people_confidence_error": confidence_error([*commands, *read_aloud]),
        "people_wrong_actions": count_actions(commands, right=False),
        "people_right_actions": count_actions(commands, right=True),
        "talk_phantoms": sum(len(one.actions) for one in (*read_aloud, *talk)),
        "right_discarded": sum(one.right_discarded for one in (*commands, *read_aloud)),
        "noise_texts": kept,
    }


def in_noise(clips: Sequence[Clip]) -> Iterator[Clip]:
    """The recordings in pink noise."""
    for snr_db in (15, 5):
        rng = np.random.default_rng(SEED)
        for said, sound in clips:
            yield said, with_noise(rng, sound, snr_db)


def an_hour(sounds: Sequence[Sound]) -> Iterator[Clip]:
    """An hour of the sounds, in pieces: one or two of them, each looped from anywhere in it."""
    rng, left = np.random.default_rng(SEED), 3600 * SAMPLE_RATE
    while left > 0:
        length = int(rng.integers(8, 25)) * SAMPLE_RATE
        left -= length
        piece = looped(rng, sounds, length)
        if rng.random() < 0.4:
            piece += looped(rng, sounds, length)
        yield "", piece


def looped(rng: np.random.Generator, sounds: Sequence[Sound], length: int) -> Sound:
    """`length` samples of one of the sounds, over and over with a pause of up to 2 s behind it."""
    sound = sounds[int(rng.integers(len(sounds)))]
    again = np.pad(sound, (0, int(rng.integers(2 * SAMPLE_RATE))))
    gain = np.float32(10 ** (rng.choice(GAINS_DB) / 20))
    return gain * np.resize(np.roll(again, -int(rng.integers(len(again)))), length)


def of_bundle(folder: Path) -> Settings:
    """The default settings with another model."""
    return replace(Settings(), model=replace(Settings().model, bundle=str(folder.resolve())))


def hear_clip(settings: Settings, transcriber: Transcriber, clip: Clip) -> Heard:
    """What the microphone's path publishes for a recording in a quiet room."""
    said, sound = clip
    gates, events, discarded = Gates(transcriber.gates), [], []
    for window in windows(settings, transcriber, sound):
        result, reason = gates.apply(window, transcriber.transcribe(window))
        if reason:
            discarded.append((reason, result.text))
        else:
            events.append(as_event(compose(window, result, transcriber.bundle.name, 0.0)))
    return Heard(said, tuple(events), tuple(discarded))


def windows(settings: Settings, transcriber: Transcriber, sound: Sound) -> list[Window]:
    """The windows that detector and segmenter make of a recording in a quiet room."""
    rng = np.random.default_rng(SEED)
    stream = to_int16(np.concatenate((quiet(rng, 1), sound, quiet(rng, 2))))
    found = cut(stream, settings, transcriber.bundle.window_s)
    return [one for one in found if isinstance(one, Window)]


def as_event(result: Transcript) -> Record:
    """A transcript as the event has it."""
    phrase = result.phrase
    return {
        "text": result.text,
        "confidence": result.confidence if math.isfinite(result.confidence) else 0.0,
        "phrase": phrase.sentence if phrase else "",
        "phrase_confidence": phrase.confidence if phrase else 0.0,
        "acts_on": "" if why_not_act(result) else acting_text(result),
    }


def word_errors(heard: Sequence[Heard]) -> float:
    """Words wrong, percent, after Whisper's normaliser."""
    normalize = EnglishTextNormalizer()
    spoken = [normalize(one.said) for one in heard]
    return 100 * float(jiwer.wer(spoken, [normalize(one.text) for one in heard]))


def confidence_error(heard: Sequence[Heard]) -> float:
    """Expected calibration error of the texts' confidence; 1, the largest, without a text."""
    pairs = [
        (event["confidence"], words(one.said) == words(event["text"]))
        for one in heard
        for event in one.events
    ]
    if not pairs:
        return 1.0
    found = np.array([probability for probability, _ in pairs], np.float64)
    return calibration_error(found, np.array([right for _, right in pairs], np.bool_))


def count_actions(heard: Sequence[Heard], *, right: bool) -> int:
    """Recordings after which Home Assistant would do what was said, or something else."""
    done = [[same_action(action, one.said) for action in one.actions] for one in heard]
    return sum(right in found for found in done)


def cost(folder: Path) -> dict[str, float]:
    """Return memory and CPU time, measured in a process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        cpu_s, memory_mb = pool.submit(look, folder).result()
    return {"memory_mb": memory_mb, "cpu_ms": 1000 * cpu_s / TIMED_SENTENCES}


def look(folder: Path) -> tuple[float, float]:
    """Return a bundle's CPU seconds for some sentences, and the process's memory, MB."""
    settings = of_bundle(folder)
    settings = replace(
        settings,
        encoder=replace(settings.encoder, threads=1),
        decoder=replace(settings.decoder, threads=1),
    )
    with open_transcriber(settings) as transcriber:
        transcriber.warm_up()
        chosen = [
            window
            for one in sentences()[:TIMED_SENTENCES]
            for window in windows(settings, transcriber, read(one.file))
        ]
        begun_s = time.process_time()
        for window in chosen:
            transcriber.transcribe(window)
        return time.process_time() - begun_s, resident_mb()


def is_broken(name: str, found: float, limits: Mapping[str, float]) -> bool:
    """Return True if a value is beyond its limit; measures without one are only recorded."""
    if name not in limits:
        return False
    return not (found >= limits[name] if name in LARGER_IS_BETTER else found <= limits[name])


def faults(values: Mapping[str, float], limits: Mapping[str, float]) -> list[str]:
    """Return a line for each limit that is broken."""
    return [
        f"{title(name)}: {number(found)} is beyond the limit of {number(limits[name])}"
        for name, found in values.items()
        if is_broken(name, found, limits)
    ]


def unmeasured(values: Mapping[str, float]) -> list[str]:
    """Return the measures that have no value."""
    return [title(name) for name in MEASURES if name not in values]


def page_table(record: Record) -> str:
    """Return the table of the last release."""
    last = record["releases"][0]
    rows = [
        ["model", "", last["model"]],
        ["commit, date", "", f"{last['commit']}, {last['date']}"],
        *(
            [text, *(shown_value(one, name) for one in (record["limits"], last["values"]))]
            for name, text in MEASURES.items()
        ),
    ]
    table = as_markdown(("", "limit", last["release"]), rows)
    return f"{table}\n\nMeasured on: {last['processor']}."


def shown_value(values: Mapping[str, float], name: str) -> str:
    """Return a value as tables have it; - where there is none."""
    return number(values[name]) if name in values else "-"


def text_table(
    values: Mapping[str, float], limits: Mapping[str, float], before: Sequence[Record]
) -> str:
    """Return the table that the command prints: each measure, its limit, the release before."""
    old = before[0]["values"] if before else {}
    lines = [f"{'':72} {'now':>8} {'limit':>8} {'before':>8}"]
    for name in MEASURES:
        mark = "  BROKEN" if name in values and is_broken(name, values[name], limits) else ""
        cells = (shown_value(one, name) for one in (values, limits, old))
        lines.append(f"{title(name):72} {' '.join(f'{cell:>8}' for cell in cells)}{mark}")
    return "\n".join(lines)


def title(name: str) -> str:
    """Return a measure's title as a terminal shows it."""
    return MEASURES[name].replace("`", "")


def number(found: float) -> str:
    """Return a value with at most three digits behind the point."""
    return f"{found:.3f}".rstrip("0").rstrip(".")


if __name__ == "__main__":
    sys.exit(main())
