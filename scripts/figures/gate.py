"""Measure a model's quality and compare it with the limits that a release must keep.

    scripts/measure gate [--bundle NAME] [--recordings FOLDER] [--write]

0: passed, 1: a limit is broken, 2: wrong use. --write puts the table into docs/figures.md, if
nothing is broken and all was measured.

Recordings go through voice detector, segmenter, model and gates as the microphone's would: those
of tests/speech, as they are and in noise, and people, noise and music of FOLDER's MANIFEST.tsv.
Words are compared after Whisper's own normaliser. An action is what Home Assistant's blueprint
would do with the evening's expected sentences. Memory and times: scripts/measure benchmark.
"""

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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

Record = dict[str, Any]
Clip = tuple[str, Sound]
"""What is said in a recording ("" if that does not matter), and its sound."""

RIGHT_ACTIONS = "commands that would be acted on rightly, at least"
LIMITS = {
    "words wrong, `tests/speech`, %": 7.0,
    "words wrong, `tests/speech` in pink noise at 15 and 5 dB, %": 50.0,
    "calibration error of `confidence`, `tests/speech`": 0.2,
    "wrong actions, `tests/speech` and in noise": 6,
    "words wrong, home commands by people and a synthesiser, %": 17.0,
    "words wrong, people who read, %": 18.0,
    "calibration error of `confidence`, these and the commands": 0.2,
    "wrong actions after these commands": 0,
    RIGHT_ACTIONS: 26,
    "phantom actions of people who read, talk and order coffee": 1,
    "right texts that the gates discard, of these people": 0,
    "texts of an hour of recorded noise, music and chimes": 2,
}
"""All measures, in the table's order, with the largest value of each: of one, the least."""
GAINS_DB = (-20, -12, -6, 0, 6)
TALK = {"speech", "speech-slots", "speech-oov", "long", "long-labelled"}
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


def main() -> int:
    """Measure a bundle, print the table, and write it; return the exit status."""
    parser = argparse.ArgumentParser("scripts/measure gate", description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", default="tiny.en", metavar="NAME", help="a name or a folder")
    parser.add_argument("--recordings", type=Path, default=SHARED_AUDIO, metavar="FOLDER")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    try:
        bundle = load_bundle(options.bundle)
        values = quality(bundle.folder, options.recordings)
    except (RoomscribeError, OSError, ValueError) as error:
        print(f"gate: {error}", file=sys.stderr)
        return 2
    seen = about(ROOT, bundle.folder)
    table = page_table(values, f"{seen['model']}, commit {seen['commit']}, {seen['date']}")
    print(table)
    broken = faults(values)
    lines = [*broken, *(f"not measured: {name}" for name in LIMITS if name not in values)]
    if len(lines) > len(broken):
        lines.append(f"{options.recordings} has no recordings of people and noise: name a folder "
                     "with a MANIFEST.tsv with --recordings")  # fmt: skip
    if options.write and not lines:
        put(table, "gate")
    elif options.write:
        lines.append("not passed, so nothing was written")
    for line in lines:
        print(f"gate: {line}", file=sys.stderr)
    return int(bool(broken or (options.write and lines)))


def quality(folder: Path, recordings: Path) -> dict[str, float]:
    """Return the values of a bundle, by their names in LIMITS."""
    settings = replace(Settings(), model=replace(Settings().model, bundle=str(folder.resolve())))
    with open_transcriber(settings) as transcriber:

        def hear(clips: Iterable[Clip]) -> list[Heard]:
            return [hear_clip(settings, transcriber, clip) for clip in clips]

        values = on_speech(hear, [(one.text, read(one.file)) for one in sentences()])
        if (recordings / "MANIFEST.tsv").is_file():
            values += on_recordings(hear, recordings)
    return {name: round(found, 3) for name, found in zip(LIMITS, values, strict=False)}


Hear = Callable[[Iterable[Clip]], list[Heard]]


def on_speech(hear: Hear, spoken: Sequence[Clip]) -> list[float]:
    """Return the first values, which need no other recordings than these sentences."""
    plain, noisy = hear(spoken), hear(in_noise(spoken))
    both = [*plain, *noisy]
    wrong = count_actions(both, right=False)
    return [word_errors(plain), word_errors(noisy), confidence_error(both), wrong]


def on_recordings(hear: Hear, folder: Path) -> list[float]:
    """Return the others: of people's commands, of other talk, and of sounds without speech."""
    clips: dict[str, list[Clip]] = {}
    for file, row in manifest(folder):
        clips.setdefault(row["category"], []).append((row["transcript"], read(file)))
    known = {name: [one for one in found if one[0]] for name, found in clips.items()}
    commands = hear(clip for name in sorted(COMMANDS) for clip in known.get(name, ()))
    read_aloud = hear(known.get("speech", ()))
    talk = hear(
        ("", sound) for name in sorted(TALK - {"speech"}) for _, sound in clips.get(name, ())
    )
    noises = [sound for name in sorted(NOT_SPEECH) for _, sound in clips.get(name, ())]
    noise = hear(an_hour(noises))
    return [
        word_errors(commands),
        word_errors(read_aloud),
        confidence_error([*commands, *read_aloud]),
        count_actions(commands, right=False),
        count_actions(commands, right=True),
        sum(len(one.actions) for one in (*read_aloud, *talk)),
        sum(one.right_discarded for one in (*commands, *read_aloud)),
        sum(len(one.events) for one in noise),
    ]


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


def faults(values: Mapping[str, float]) -> list[str]:
    """Return a line for each limit that is broken."""
    return [
        f"{name.replace('`', '')}: {found:g} is beyond the limit of {LIMITS[name]:g}"
        for name, found in values.items()
        if (found < LIMITS[name] if name == RIGHT_ACTIONS else found > LIMITS[name])
    ]


def page_table(values: Mapping[str, float], model: str) -> str:
    """Return the table of the measures."""
    rows = [
        [name, f"{limit:g}", f"{values[name]:g}" if name in values else "-"]
        for name, limit in LIMITS.items()
    ]
    return as_markdown((f"model {model}", "limit", "found"), rows)


if __name__ == "__main__":
    sys.exit(main())
