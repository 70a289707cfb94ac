"""Measure a model's quality and compare it with the limits that a release must keep.

    scripts/measure gate [--bundle NAME | --commit COMMIT] [--against COMMIT] [--recordings FOLDER]
    scripts/measure gate --write [--release NAME] ...

One table, and a line for each limit that is broken. 0: passed, 1: a limit is broken, 2: wrong use.
Limits and the last releases' values are in quality.json beside the built-in model's card. --write
puts the values there and into the card, if nothing is broken and all was measured. Tests fail if
the model's weights, calibration or sentences are others than those of the last written values.

Recordings go through voice detector, segmenter, model and gates as the microphone's would: those
of tests/speech, as they are and in noise, and with --recordings (default:
$ROOMSCRIBE_SHARED/data/audio) people, noise and music of that folder's MANIFEST.tsv. An action is
what Home Assistant's blueprint would do from a confidence of 70 % on. Memory and CPU time are those
of processes of their own, with one thread; the release before is measured in turns with this one.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from evening_run.results import about, git
from evening_run.score import BLUEPRINT, action, same_action
from figures.gate_record import (
    FILE,
    MANIFEST,
    TIMED,
    bundle_checksum,
    faults,
    model_checksum,
    read_record,
    text_table,
    unmeasured,
    with_release,
    write_record,
)
from figures.model import (
    COMMANDS,
    NOT_SPEECH,
    Sound,
    alike,
    cut,
    quiet,
    read,
    synthetic_noises,
    to_int16,
    with_noise,
)
from rigs.checkout import ROOT, TINY_EN
from rigs.recordings import SHARED_AUDIO, manifest, sentences
from rigs.word_errors import word_error_rate

from appliance import __version__
from appliance.config import Settings
from appliance.errors import RoomscribeError
from appliance.infer.gates import Gates
from appliance.infer.opening import open_transcriber
from appliance.infer.transcriber import Transcriber
from appliance.lab.fit.statistics import calibration_error
from appliance.model import load_bundle
from appliance.records import Transcription, Window
from appliance.system import resident_mb

Record = dict[str, Any]
Clip = tuple[str, Sound]
"""What is said in a recording ("" if that does not matter), and its sound."""

NOISES_DB = (15, 5)
GAINS_DB = (-10, 0, 6)
TALK = {"speech", "speech-slots", "speech-oov", "long", "long-labelled"}
TIMED_SENTENCES, ROUNDS = 20, 3
SEED = 7


@dataclass(frozen=True, slots=True)
class Heard:
    """What was made of a recording."""

    said: str
    events: tuple[Record, ...]
    """Those of its windows that were not discarded, with the fields of the MQTT event."""

    @property
    def text(self) -> str:
        """The whole text."""
        return " ".join(one["text"] for one in self.events)

    @property
    def actions(self) -> list[list[str]]:
        """Words of the sentences that Home Assistant would act on."""
        return [done for one in self.events if (done := action(one, BLUEPRINT))]


def main(words: Sequence[str] | None = None) -> int:
    """Print the table; return the exit status."""
    options = arguments(words)
    try:
        record = read_record(TINY_EN)
        with tempfile.TemporaryDirectory() as scratch:
            return measured(options, record, Path(scratch))
    except (RoomscribeError, OSError, ValueError) as error:
        print(f"gate: {error}", file=sys.stderr)
        return 2


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        "scripts/measure gate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--bundle", default="tiny.en", metavar="NAME", help="a name or a folder")
    which.add_argument("--commit", help="the built-in model of this commit, with today's code")
    parser.add_argument(
        "--against",
        metavar="COMMIT",
        help="the model for the time's ratio; default: that of the release before; none: no ratio",
    )
    parser.add_argument("--recordings", type=Path, default=SHARED_AUDIO, metavar="FOLDER")
    parser.add_argument("--release", default=__version__, metavar="NAME")
    parser.add_argument("--write", action="store_true")
    return parser.parse_args(words)


def measured(options: argparse.Namespace, record: Record, scratch: Path) -> int:
    """Measure a bundle, print the table, and write the values; return the exit status."""
    begun_s = time.monotonic()
    if options.commit:
        folder = extract(options.commit, scratch / "measured")
    else:
        folder = load_bundle(options.bundle).folder
    before = [one for one in record["releases"] if one["release"] != options.release]
    against = options.against or (commit_of(before[0]) if before else "none")
    other = None if against == "none" else extract(against, scratch / "before")
    values = quality(folder, options.recordings) | cost(folder, other)
    values = {name: round(found, 4) for name, found in values.items()}
    print(text_table(values, record["limits"], before))
    lacking = unmeasured(values, () if other else TIMED)
    broken = faults(values, record["limits"])
    for line in (*broken, *(f"not measured: {name}" for name in lacking)):
        print(f"gate: {line}", file=sys.stderr)
    if lacking:
        print(f"gate: {options.recordings} has no recordings of people and noise: name a folder "
              "with a MANIFEST.tsv with --recordings", file=sys.stderr)  # fmt: skip
    print(f"took {time.monotonic() - begun_s:.0f} s")
    if options.write and not broken and not lacking:
        entry = about(ROOT) | {"release": options.release, "checksum": bundle_checksum(folder)}
        del entry["model"]
        if options.commit:
            entry["commit"] = git(ROOT, "rev-parse", "--short=10", options.commit)
        write_record(TINY_EN, with_release(record, entry | {"values": values}))
        print(f"written as release {options.release}")
    elif options.write:
        print("gate: not passed, so nothing was written", file=sys.stderr)
        return 1
    return int(bool(broken))


def extract(commit: str, folder: Path) -> Path:
    """Write the built-in model of a commit into a new folder and return the bundle's. Raises
    ValueError if the commit has none."""
    place = TINY_EN.relative_to(ROOT)
    done = subprocess.run(
        ["git", "archive", "--format=tar", commit, str(place)], cwd=ROOT, capture_output=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise ValueError(f"{commit}: expected a commit of this checkout with {place}")
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", str(folder)], input=done.stdout, check=True)
    return folder / place


def commit_of(release: Record) -> str:
    """Return the commit that has a recorded release's model: the release's tag, the measured
    commit, or the commit with the record. Raises ValueError if none has it."""
    place = TINY_EN.relative_to(ROOT)
    added = git(ROOT, "log", "--format=%H", f"-S{release['checksum']}", "--", f"{place}/{FILE}")
    for commit in (
        f"v{release['release']}",
        str(release["commit"]).rstrip("+"),
        *added.split()[-1:],
    ):
        manifest_text = git(ROOT, "show", f"{commit}:{place}/{MANIFEST}")
        if manifest_text and model_checksum(json.loads(manifest_text)) == release["checksum"]:
            return commit
    raise ValueError(
        f"no commit of this checkout has the model of release {release['release']}: name one with "
        "--against, or --against none"
    )


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
    plain = hear(spoken)
    noisy = hear(in_noise(spoken))
    both = [*plain, *noisy]
    return {
        "speech_word_errors": word_errors(plain),
        "noise_word_errors": word_errors(noisy),
        "confidence_error": confidence_error(both),
        "phrase_confidence_error": phrase_confidence_error(both),
        "wrong_actions": wrong_actions(both),
        "silence_texts": texts(hear(("", sound) for _, sound in synthetic_noises())),
    }


def on_recordings(hear: Hear, folder: Path) -> dict[str, float]:
    """Return the values of people's commands, of other talk, and of sounds without speech."""
    clips: dict[str, list[Clip]] = {}
    for file, row in manifest(folder):
        clips.setdefault(row["category"], []).append((row["transcript"], read(file)))
    commands = hear(clip for name in sorted(COMMANDS) for clip in clips.get(name, ()))
    read_aloud = hear(clips.get("speech", ()))
    talk = hear(
        ("", sound) for name in sorted(TALK - {"speech"}) for _, sound in clips.get(name, ())
    )
    noises = [sound for name in sorted(NOT_SPEECH) for _, sound in clips.get(name, ())]
    return {
        "people_word_errors": word_errors(commands),
        "people_confidence_error": confidence_error([*commands, *read_aloud]),
        "people_wrong_actions": wrong_actions(commands),
        "talk_phantoms": sum(len(one.actions) for one in (*read_aloud, *talk)),
        "noise_texts": texts(hear(at_gains(noises))),
    }


def in_noise(clips: Sequence[Clip]) -> Iterator[Clip]:
    """The recordings in pink noise."""
    for snr_db in NOISES_DB:
        rng = np.random.default_rng(SEED)
        for said, sound in clips:
            yield said, with_noise(rng, sound, snr_db)


def at_gains(sounds: Sequence[Sound]) -> Iterator[Clip]:
    """The sounds, softer and louder."""
    for gain_db in GAINS_DB:
        for sound in sounds:
            yield "", np.asarray(sound * np.float32(10 ** (gain_db / 20)), np.float32)


def of_bundle(folder: Path) -> Settings:
    """The default settings with another model."""
    return replace(Settings(), model=replace(Settings().model, bundle=str(folder.resolve())))


def hear_clip(settings: Settings, transcriber: Transcriber, clip: Clip) -> Heard:
    """What the microphone's path publishes for a recording in a quiet room."""
    said, sound = clip
    gates, events = Gates(transcriber.gates), []
    for window in windows(settings, transcriber, sound):
        result, reason = gates.apply(window, transcriber.transcribe(window))
        if not reason:
            events.append(as_event(result))
    return Heard(said, tuple(events))


def windows(settings: Settings, transcriber: Transcriber, sound: Sound) -> list[Window]:
    """The windows that detector and segmenter make of a recording in a quiet room."""
    rng = np.random.default_rng(SEED)
    stream = to_int16(np.concatenate((quiet(rng, 1), sound, quiet(rng, 2))))
    found = cut(stream, settings, transcriber.bundle.window_s)
    return [one for one in found if isinstance(one, Window)]


def as_event(result: Transcription) -> Record:
    """A result as the event has it."""
    phrase = result.phrase
    return {
        "text": result.text,
        "confidence": result.confidence if math.isfinite(result.confidence) else 0.0,
        "phrase": phrase.sentence if phrase else "",
        "phrase_confidence": phrase.confidence if phrase else 0.0,
        "flags": list(result.flags),
        "late": False,
    }


def word_errors(heard: Sequence[Heard]) -> float:
    """Words wrong, percent; numbers in words."""
    pairs = [(" ".join(alike(one.said)), " ".join(alike(one.text))) for one in heard]
    return word_error_rate([said for said, _ in pairs], [text for _, text in pairs])


def confidence_error(heard: Sequence[Heard]) -> float:
    """Expected calibration error of the texts' confidence."""
    return error_of(
        [
            (event["confidence"], alike(one.said) == alike(event["text"]))
            for one in heard
            for event in one.events
        ]
    )


def phrase_confidence_error(heard: Sequence[Heard]) -> float:
    """Expected calibration error of the expected sentences' confidence."""
    return error_of(
        [
            (event["phrase_confidence"], alike(one.said) == alike(event["phrase"]))
            for one in heard
            for event in one.events
            if event["phrase"]
        ]
    )


def error_of(pairs: Sequence[tuple[float, bool]]) -> float:
    """Expected calibration error; 1, the largest, if there is nothing to measure."""
    if not pairs:
        return 1.0
    found = np.array([probability for probability, _ in pairs], np.float64)
    return calibration_error(found, np.array([right for _, right in pairs], np.bool_))


def wrong_actions(heard: Sequence[Heard]) -> int:
    """Recordings after which Home Assistant would do something else than was said."""
    return sum(
        any(not same_action(done, one.said) for done in one.actions) for one in heard
    )  # fmt: skip


def texts(heard: Sequence[Heard]) -> int:
    """Number of texts."""
    return sum(len(one.events) for one in heard)


def cost(folder: Path, other: Path | None) -> dict[str, float]:
    """Return memory and, with another bundle, CPU time as a ratio to it. Each look is a process of
    its own; the two bundles take turns, and the fastest look of each counts."""
    looks: dict[Path, list[tuple[float, float]]] = {}
    for _ in range(ROUNDS if other else 1):
        for one in (folder, other):
            if one:
                with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                    looks.setdefault(one, []).append(pool.submit(look, one).result())
    found = {"memory_mb": min(memory_mb for _, memory_mb in looks[folder])}
    if other:
        found["time_ratio"] = min(looks[folder])[0] / min(looks[other])[0]
    return found


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


if __name__ == "__main__":
    sys.exit(main())
