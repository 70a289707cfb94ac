"""Measure the words wrong beside a hum and a television, through the microphone's path.

    scripts/measure noise [--most N] [--write]

The speakers are those of $ROOMSCRIBE_SHARED/data/audio on whom nothing of capture/hum.py and
capture/endpoint.py was chosen. A recording has 2 s before and 1.5 s behind it; windows that do not
reach 0.5 s into it do not count. A television is other people who read. faster-whisper has the same
weights, and 1 s around a recording.
"""

import argparse
from collections.abc import Iterator
from itertools import islice
from unittest.mock import patch

import numpy as np
from evening_run.acoustics import Sound, beside, in_turn
from evening_run.publish import put
from evening_run.results import about
from rigs.checkout import ROOT
from rigs.recordings import SHARED_AUDIO, manifest
from rigs.sounds import quiet, read, to_int16
from rigs.weights import find_weights
from rigs.word_errors import word_errors

from appliance.capture import Resampler, measure_speech
from appliance.capture.utterance import Utterance
from appliance.config import Settings
from appliance.infer import Gates, Transcriber, open_transcriber
from appliance.lab.benchmark.measure import FasterWhisper
from appliance.lab.benchmark.table import as_markdown
from appliance.lab.words import cut_windows
from appliance.model import load_bundle
from appliance.records import SAMPLE_RATE

READERS = ("libri-1998-F", "libri-2412-F", "libri-2414-M", "LJ-F", "uberi")
OTHERS = ("ms-1", "rhasspy-author", "TTS (generated)")
SOUNDS = {"nothing": (50, 99), "50 Hz and multiples, 13 dB louder": (50, -13),
          "60 Hz and multiples, 7 dB louder": (60, -7), "100 Hz and multiples, as loud": (100, 0),
          "television, 20 dB softer": (0, 20), "television, 10 dB softer": (0, 10)}  # fmt: skip
"""What is beside the speaker: a hum of so many Hz or talk, and how many dB below."""
LINES_DB = {1: 0, 2: -6, 3: -3, 4: -18, 5: -9}
Clip = tuple[str, str, Sound]  # speaker, text, sound
COLUMNS = "beside it", "words wrong, %", "`snr_db`", "cut by a louder voice", "faster-whisper, %"


def hum(hz: int) -> Sound:
    """Return 20 s of a hum that wanders a little."""
    at_s = np.arange(0, 20, 1 / SAMPLE_RATE)
    turns = 2 * np.pi * hz * (at_s - 4e-4 * np.cos(at_s))
    lines = [10 ** (db / 20) * np.sin(one * turns + one) for one, db in LINES_DB.items()]
    return np.asarray(np.sum(lines, axis=0))


def hear(transcriber: Transcriber, sound: Sound) -> tuple[str, float]:
    """Return the text of the recording's windows, and the first one's `snr_db`."""
    resampler, pieces = Resampler(SAMPLE_RATE), np.split(sound, range(480, len(sound), 480))
    passed = [resampler.push(piece[:, None].astype(np.float32)) for piece in pieces]
    end_s, gates = len(sound) / SAMPLE_RATE - 2, Gates(transcriber.gates)
    windows = [one for one in cut_windows(np.concatenate(passed), Settings(), 10.0)
               if one.start_s < end_s and one.start_s + one.duration_s > 2.5]  # fmt: skip
    results = [gates.apply(one, transcriber.transcribe(one)) for one in windows]
    ratios = [measure_speech(one.samples)[1] or 0.0 for one in windows]
    return " ".join(one.text for one, reason in results if not reason), (ratios or [0.0])[0]


def mixes(clips: list[Clip], hz: int, below_db: float) -> Iterator[tuple[str, Sound]]:
    """Yield the text of each recording, and it with what is beside it, -1..1."""
    rng = np.random.default_rng(5)
    for speaker, said, sound in clips:
        talk = [one for who, _, one in clips if who in READERS and who != speaker]
        talk = [talk[one] for one in rng.permutation(len(talk))]
        plain: Sound = np.concatenate((quiet(rng, 2), sound, quiet(rng, 1.5)))
        mix = beside(plain, hum(hz) if hz else in_turn(talk), below_db)
        yield said, mix / max(1, np.abs(mix).max())


def main() -> None:
    """Print, and with --write publish, the table."""
    parser = argparse.ArgumentParser("scripts/measure noise", description=__doc__)
    parser.add_argument("--most", type=int, metavar="N", help="the first N recordings")
    parser.add_argument("--write", action="store_true", help="into docs/figures.md")
    options, old, rows = parser.parse_args(), Utterance.end_before_voice, list[list[str]]()
    listed = [(row["speaker"], row["transcript"], file) for file, row in manifest(SHARED_AUDIO)]
    clips = [(who, said, np.asarray(read(file), np.float64))
             for who, said, file in listed if said and who in READERS + OTHERS]  # fmt: skip
    other = FasterWhisper(find_weights() or ROOT, 1, "en", 1)
    with open_transcriber(Settings(), load_bundle("tiny.en")) as transcriber:
        for name, (hz, below_db) in SOUNDS.items():
            errors, ratios = np.zeros(3, int), list[float]()
            with patch.object(Utterance, old.__name__, autospec=True, side_effect=old) as cuts:
                for said, mix in islice(mixes(clips, hz, below_db), options.most):
                    text, ratio = hear(transcriber, mix)
                    around = to_int16(mix[SAMPLE_RATE : -SAMPLE_RATE // 2].astype(np.float32))
                    theirs = "" if hz else other.hear(around).text
                    errors += *word_errors(said, text), word_errors(said, theirs)[0]
                    ratios += [ratio]
            ours, theirs = (f"{100 * one / errors[1]:.1f}" for one in errors[::2])
            ratio_db, count = f"{np.median(ratios):.0f}", str(cuts.call_count)
            rows.append([name, ours, ratio_db, count, "-" if hz else theirs])
    text = as_markdown(COLUMNS, rows)
    text += f"\n\nCommit {about(ROOT)['commit']}: {len(ratios)} recordings, {errors[1]} words."
    print(text)
    if options.write:
        put(text, "noise")


if __name__ == "__main__":
    main()
