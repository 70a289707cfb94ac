"""Fill a speech bank: shards of spoken sentences with the time of every phone.

    python -m train.bank --out BANK --seed 1 --count 40000 --workers 2

The folder gets ``phones.txt`` and ``voices.txt`` (a name per line; the line number is the id) and
``train-00000.npz`` ... of 500 utterances, ``dev-00000.npz`` of 400 (voices of training, sentences
of the dev split), ``homeseen-00000.npz`` (home commands of that split alone) and, with
``--unseen``, ``unseen-00000.npz`` and ``homeunseen-00000.npz`` (nor voice nor sentence trained).
A shard depends on the seed and its number alone; shards that exist are kept, so an interrupted
run goes on where it stopped. Each holds, for n utterances:

    audio         int16   (total,)   16 kHz, one after another, about -20 dBFS RMS each
    offset        int64   (n + 1,)   where each utterance starts in ``audio``
    voice         int16   (n,)       line of voices.txt; a person from 10,000 on
    text          str     (n,)       lower case, ``[a-z' ]``
    phone         uint8   (phones,)  lines of phones.txt, one utterance after another; 0 is silence
    phone_end     float32 (phones,)  seconds from the utterance's start; each starts at the last end
    phone_offset  int64   (n + 1,)   where each utterance starts in ``phone`` (empty if unknown)
"""

import argparse
import multiprocessing
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from train import unseen
from train.phones import PHONE_ID, PHONES, Segment
from train.texts import commands, sentences
from train.voices import SAMPLE_RATE, VOICES, Samples, Synthesizers, draw_guest, draw_voice


class Kind(NamedTuple):
    """What a shard of one kind holds."""

    size: int
    split: str
    texts: Callable[[int, str], Iterator[str]]
    unseen: bool
    """Spoken by voices that training never hears."""
    guest_share: float = 0.0
    """Of the utterances, spoken by guests."""


KINDS = {
    "train": Kind(500, "train", sentences, unseen=False, guest_share=0.25),
    "dev": Kind(400, "dev", sentences, unseen=False),
    "homeseen": Kind(200, "dev", commands, unseen=False),
    "unseen": Kind(300, "test", sentences, unseen=True),
    "homeunseen": Kind(200, "test", commands, unseen=True),
}
FIRST_PERSON = 10_000
"""Number of the first voice that is a person's; those below are synthesisers."""
SHORTEST_S, LONGEST_S = 0.2, 9.5
SHORTEST_PHONE_S = 0.003
"""Shorter ones are rounding, and go to the phone after them."""
MARGIN_S = 0.05
RMS_DBFS = -20.0
SPEECH_BELOW_PEAK_DB = 42.0
FRAME = 80
"""Samples in the 5 ms frames that find where speech starts and ends."""


class Utterance(NamedTuple):
    """One spoken sentence, trimmed and levelled."""

    voice: str
    text: str
    samples: Samples
    segments: list[Segment]


Say = Callable[[str, str, random.Random], tuple[Samples, list[Segment]]]


def finish(samples: Samples, segments: list[Segment]) -> tuple[Samples, list[Segment]] | None:
    """Give samples with 50 ms around the speech at the common level; None for a broken take.

    Broken: silent, shorter than 0.2 s or longer than 9.5 s. Phone times move with the trim.
    """
    frames = samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME).astype(np.float32)
    power_db = 10 * np.log10((frames**2).mean(axis=1) + 1e-3)
    if not len(frames) or power_db.max() < 30:
        return None
    heard = np.flatnonzero(power_db > power_db.max() - SPEECH_BELOW_PEAK_DB) * FRAME / SAMPLE_RATE
    sounds = [s for s in segments if s.phone != "sil"]
    if segments and not sounds:
        return None
    first, last = heard[0], heard[-1] + FRAME / SAMPLE_RATE
    if sounds:
        # A quiet first or last phone ("f", "th") is speech, but not one drawn out by far.
        first = max(min(first, sounds[0].start), first - 0.1)
        last = min(max(last, sounds[-1].end), last + 0.1)
    begin = max(0, round((first - MARGIN_S) * SAMPLE_RATE))
    kept = samples[begin : round((last + MARGIN_S) * SAMPLE_RATE)]
    duration = len(kept) / SAMPLE_RATE
    if not SHORTEST_S + 2 * MARGIN_S <= duration <= LONGEST_S:
        return None
    moved = [
        Segment(p, max(0.0, s - begin / SAMPLE_RATE), min(duration, e - begin / SAMPLE_RATE))
        for p, s, e in segments
    ]
    moved = [s for s in moved if s.end - s.start >= SHORTEST_PHONE_S]
    moved[-1:] = [s._replace(end=duration) for s in moved[-1:]]
    return _level(kept), moved


def _level(samples: Samples) -> Samples:
    """Give `samples` at -20 dBFS RMS, or as near as the loudest sample allows."""
    sound = samples.astype(np.float32) / 32768
    gain = 10 ** (RMS_DBFS / 20) / np.sqrt((sound**2).mean())
    gain = min(gain, 0.99 / np.abs(sound).max())
    level: Samples = np.rint(sound * gain * 32767).astype(np.int16)
    return level


def speak(kind: str, number: int, seed: int, say: Say) -> list[Utterance]:
    """Give the utterances of shard `number` of a kind, the same for the same seed."""
    rng = random.Random(f"{kind}-{number}-{seed}")
    what = KINDS[kind]
    texts = what.texts(rng.getrandbits(60), what.split)
    out: list[Utterance] = []
    while len(out) < what.size:
        text = next(texts)
        if what.unseen:
            voice = unseen.VOICES[len(out) % len(unseen.VOICES)]
        elif what.guest_share and rng.random() < what.guest_share:
            voice = draw_guest(rng)
        else:
            voice = draw_voice(rng)
        done = finish(*say(voice, text, rng))
        if done:
            out.append(Utterance(voice, text, *done))
    return out


def write_shard(path: Path, utterances: list[Utterance], voices: list[str]) -> None:
    """Write one shard under its final name only when it is whole."""
    segments = [s for u in utterances for s in u.segments]
    part = path.with_name(f".part-{path.name}")  # out of reach of a reader's "train-*.npz"
    np.savez(
        part,
        audio=np.concatenate([u.samples for u in utterances]),
        offset=np.cumsum([0, *(len(u.samples) for u in utterances)], dtype=np.int64),
        voice=np.array([voices.index(u.voice) for u in utterances], np.int16),
        text=np.array([u.text for u in utterances]),
        phone=np.array([PHONE_ID[s.phone] for s in segments], np.uint8),
        phone_end=np.array([s.end for s in segments], np.float32),
        phone_offset=np.cumsum([0, *(len(u.segments) for u in utterances)], dtype=np.int64),
    )
    part.rename(path)


def fill(out: Path, seed: int, task: tuple[str, int]) -> str:
    """Write one shard unless it exists; give a line that says so."""
    kind, number = task
    path = out / f"{kind}-{number:05}.npz"
    if path.exists():
        return f"{path.name} kept"
    utterances = speak(kind, number, seed, unseen.say if KINDS[kind].unseen else Synthesizers().say)
    write_shard(path, utterances, [*VOICES, *unseen.VOICES])
    seconds = sum(len(u.samples) for u in utterances) / SAMPLE_RATE
    return f"{path.name} {len(utterances)} utterances, {seconds:.0f} s of speech"


def main() -> None:
    """Read the command line and fill the bank."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the bank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40_000, help="utterances for training")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--unseen", action="store_true", help="also the voices held out for test")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "phones.txt").write_text("\n".join(PHONES) + "\n")
    (args.out / "voices.txt").write_text("\n".join([*VOICES, *unseen.VOICES]) + "\n")
    shards = -(-args.count // KINDS["train"].size)
    tests = [kind for kind in KINDS if kind != "train" and (args.unseen or not KINDS[kind].unseen)]
    tasks = [("train", 0), *((kind, 0) for kind in tests)]
    tasks += [("train", number) for number in range(1, shards)]
    # A fresh process for each shard: the engines' noise depends on all they said before, and
    # festival's memory grows.
    with multiprocessing.get_context("spawn").Pool(args.workers, maxtasksperchild=1) as pool:
        for line in pool.imap(partial(fill, args.out, args.seed), tasks):
            print(line, flush=True)


if __name__ == "__main__":
    main()
