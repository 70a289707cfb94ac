"""Make shards of a bank from recordings of people.

    python -m train.people --people FOLDER --out BANK --pieces PIECES --bundle BUNDLE

FOLDER holds a clone of every repository of people.toml under its name there; files are read at the
commit named there, so that nothing else is ever heard. Coffee orders, of which the wording is not
known, get the one that BUNDLE's network finds likeliest. When each phone sounds is found by
alignment (align.py), by which what is too long for a window is cut into phrases; it is not known
where alignment fails. The bank gets ``train-people-00000.npz`` ... of 500
utterances, and of people held out by name ``people-00000.npz`` (grown up, of speechocean762),
``children-00000.npz``, ``digits-00000.npz``, ``orders-00000.npz``, ``natives-00000.npz`` and
``words-00000.npz``. Of the words that were found home commands are put together as well
(splice.py), of those held out ``spliced-00000.npz``. That takes 20 minutes on two cores; run again,
it keeps what is whole, unless people.toml names other commits.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import multiprocessing
import random
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Mapping
from itertools import permutations, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray
from train.align import Aligner, Phrase, Word, phrases
from train.bank import FIRST_PERSON, Utterance, finish, write_shard
from train.phones import tidy
from train.splice import Splicer, Spoken, spliced
from train.texts import commands
from train.voices import SAMPLE_RATE

DONE = "people.json"
"""File in the bank with the commits whose recordings are all in it."""
SHARD = 500
TASK = 400
"""Recordings that a process takes at once."""
HELD_OUT = 8
"""One speaker of so many is held out."""
GROWN_UP = 15
"""Years."""
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
DIGIT_TAKES = 20
"""Of the 50 times that a speaker of free-spoken-digit-dataset says each digit."""
DIGIT_PHRASES = f"""[phrases]
digit = ["({"|".join(DIGITS)})"]
other = ["(yes|no|stop|cancel)", "turn (on|off) the light", "light (on|off)"]
"""
"""What `scripts/measure phrases` is to expect of held-out digits."""
WAKE_WORDS = {"computer": 150, "jarvis": 150, "smart mirror": 150, "alexa": 100}
"""How many of each are heard: more would teach the words, not the people."""
WORDS_A_SPEAKER = 3
"""Of Speech Commands, for the same reason; and a model that hears many lone words hears them in
chimes."""
SPLICED, SPLICED_HELD_OUT = 8000, 150
"""Home commands that are put together from people's words."""

ORDERS_LEFT_OUT = (
    "0c6a", "26ba", "3e81", "577d", "71f2", "84e3", "9b27", "b0ec", "ca28", "e6a1",
    "0075d273", "18ae57a1", "32fab152", "4dd4dbf0", "6363f981", "7d2fe946", "8fb1933e", "a7b1de7b",
    "bd6cec28", "d70f1aac",
)  # fmt: skip
"""Beginnings of the names of orders that are in tests of the project."""
BEGINNINGS = (
    "brew", "can i get", "can i have", "i want", "get me", "give me", "i'd like", "make me",
    "may i have",
)  # fmt: skip
BEFORE, DRINK, BEHIND = (
    ("size", "roast", "numberOfShots"),
    "coffeeDrink",
    ("milkAmount", "sugarAmount"),
)
"""How the grammar that the speakers of speech-to-intent-benchmark were given has an order
(data/rhino/coffee_maker.yaml): how it begins, its article and the order of its slots are free."""
SURE = 0.8
"""Share of all wordings that the likeliest one of an order has to have."""


class Clone:
    """A repository at its commit; files are read from git, so a work tree is not needed."""

    def __init__(self, folder: Path, name: str, commit: str, repository: str) -> None:
        self._git = ["git", "-c", "safe.directory=*", "-C", str(folder / name)]
        self._commit = commit
        known = [*self._git, "cat-file", "-e", commit]
        done = subprocess.run(known, capture_output=True, check=False)
        if done.returncode:
            raise SystemExit(
                f"{folder / name}: no clone with commit {commit}; "
                f"git clone {repository} {folder / name}"
            )

    def names(self, folder: str) -> list[str]:
        """Paths of all files under `folder`."""
        command = [*self._git, "ls-tree", "-rz", "--name-only", self._commit, folder]
        listed = subprocess.run(command, check=True, capture_output=True).stdout
        return [name for name in listed.decode().split("\0") if name]

    def read(self, path: str) -> bytes:
        """The content of the file at `path`."""
        command = [*self._git, "cat-file", "blob", f"{self._commit}:{path}"]
        return subprocess.run(command, check=True, capture_output=True).stdout

    def table(self, path: str) -> dict[str, str]:
        """Lines of a key and the rest, as Kaldi writes them."""
        lines = self.read(path).decode().splitlines()
        pairs = (line.split(maxsplit=1) for line in lines)
        return {key: rest.strip() for key, rest in pairs}


class Recording(NamedTuple):
    """Who says one of `texts` in which file, and which shards it goes to."""

    speaker: str
    path: str
    texts: list[str]
    split: str


def wordings(slots: Mapping[str, str]) -> list[str]:
    """Every way to order `slots`, in small letters."""
    said = {name: value.strip().lower() for name, value in slots.items()}
    before = permutations([said[name] for name in BEFORE if name in said])
    behind = permutations([said[name] for name in BEHIND if name in said])
    found = []
    for first, last, beginning, article in product(before, behind, BEGINNINGS, ("a", "an")):
        words = [beginning, article, *first, said[DRINK]]
        found.append(" ".join([*words, "with", " and ".join(last)] if last else words))
    return found


def held_out(speaker: str) -> bool:
    """Whether `speaker` is kept for choosing; a matter of the name alone."""
    return hashlib.sha256(speaker.encode()).digest()[0] % HELD_OUT == 0


def speechocean762(clone: Clone) -> Iterator[Recording]:
    """Read sentences, with the speakers' ages."""
    for part in ("train", "test"):
        texts, waves = clone.table(f"{part}/text"), clone.table(f"{part}/wav.scp")
        speakers, ages = clone.table(f"{part}/utt2spk"), clone.table(f"{part}/spk2age")
        for name, text in texts.items():
            speaker = speakers[name]
            split = "train"
            if held_out(speaker):
                split = "people" if int(ages[speaker]) >= GROWN_UP else "children"
            yield Recording(speaker, waves[name], [text.lower()], split)


def free_spoken_digit_dataset(clone: Clone) -> Iterator[Recording]:
    """Digits of three of the six speakers; the others are tests of the project."""
    for path in clone.names("recordings/"):
        digit, speaker, take = Path(path).stem.split("_")
        if int(take) < DIGIT_TAKES and speaker in {"george", "lucas", "theo"}:
            split = "digits" if speaker == "theo" else "train"
            yield Recording(speaker, path, [DIGITS[int(digit)]], split)


def wake_word_benchmark(clone: Clone) -> Iterator[Recording]:
    """Wake words; each file counts as a speaker."""
    rng = random.Random(1)
    for word, count in WAKE_WORDS.items():
        paths = clone.names(f"audio/{word}/")
        for path in rng.sample(paths, min(count, len(paths))):
            yield Recording(path, path, [word], "train")


def speech_to_intent_benchmark(clone: Clone) -> Iterator[Recording]:
    """Coffee orders; who speaks is not named, so that held-out ones may be of people trained on."""
    labels = json.loads(clone.read("data/label/label.json"))
    for path in clone.names("data/speech/clean/"):
        name = Path(path).name
        if name in labels and not name.startswith(ORDERS_LEFT_OUT):
            split = "orders" if held_out(name) else "train"
            yield Recording(name, path, wordings(labels[name]["slots"]), split)


def librispeech(clone: Clone) -> Iterator[Recording]:
    """Books read aloud, most by native speakers."""
    folder = "LibriSpeech/train-clean-5/"
    for path in clone.names(folder):
        if path.endswith(".trans.txt"):
            for name, text in clone.table(path).items():
                speaker = name.partition("-")[0]
                split = "natives" if held_out(f"librispeech {speaker}") else "train"
                sound = str(Path(path).with_name(f"{name}.flac"))
                yield Recording(speaker, sound, [text.lower()], split)


def an4(clone: Clone) -> Iterator[Recording]:
    """Spelled names, numbers and dates, by Americans."""
    line = re.compile(r"(?:<s> )?(.+?) (?:</s> )?\((\S+)\)")
    for part in ("train", "test"):
        listed = clone.read(f"data/an4/etc/an4_{part}.transcription").decode()
        paths = clone.read(f"data/an4/etc/an4_{part}.fileids").decode().split()
        for path, (text, name) in zip(paths, line.findall(listed), strict=True):
            speaker = path.split("/")[-2]
            if Path(path).name != name:
                raise SystemExit(f"data/an4/etc: expected {path} where {name} is transcribed")
            split = "natives" if held_out(f"an4 {speaker}") else "train"
            yield Recording(speaker, f"data/an4/wav/{path}.raw", [text.lower()], split)


def common_voice(clone: Clone) -> Iterator[Recording]:
    """Sentences read by volunteers, with their own microphones."""
    folder = "en/" if clone.names("en/validated.tsv") else ""
    header, *lines = clone.read(f"{folder}validated.tsv").decode().splitlines()
    there = set(clone.names(f"{folder}clips/"))
    for line in lines:
        row = dict(zip(header.split("\t"), line.split("\t"), strict=False))
        path = f"{folder}clips/{row['path']}"
        text = row["sentence"].lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
        text = " ".join(re.sub(r'[.,?!;:"“”]', " ", text).split())
        if path in there and re.fullmatch(r"[a-z' ]+", text):
            split = "natives" if held_out(row["client_id"]) else "train"
            yield Recording(row["client_id"][:16], path, [text], split)


def speech_commands(clone: Clone) -> Iterator[Recording]:
    """Single words; of a speaker WORDS_A_SPEAKER of each repository are heard at most."""
    said: dict[str, dict[str, str]] = {}
    for path in clone.names("."):
        name = re.fullmatch(r".*?([a-z]+)[_/]([0-9a-f]{8})_nohash_\d\.wav(\.wav)?", path)
        if name:
            said.setdefault(name[2], {})[path] = name[1]
    for speaker, paths in said.items():
        chosen = random.Random(speaker).sample(sorted(paths), min(len(paths), WORDS_A_SPEAKER))
        for path in chosen:
            split = "words" if held_out(speaker) else "train"
            yield Recording(speaker, path, [paths[path]], split)


READERS: dict[str, Callable[[Clone], Iterator[Recording]]] = {
    "speechocean762": speechocean762,
    "free-spoken-digit-dataset": free_spoken_digit_dataset,
    "wake-word-benchmark": wake_word_benchmark,
    "speech-to-intent-benchmark": speech_to_intent_benchmark,
    "librispeech": librispeech,
    "an4": an4,
    "common-voice-1": common_voice,
    "common-voice-2": common_voice,
    "speech-commands-1": speech_commands,
    "speech-commands-2": speech_commands,
    "speech-commands-3": speech_commands,
}


def read(content: bytes, path: str) -> NDArray[np.int16] | None:
    """A recording (n,) at 16 kHz; None for a broken one."""
    raw: dict[str, Any] = {}
    if path.endswith(".raw"):
        raw = {"format": "RAW", "subtype": "PCM_16", "endian": "BIG", "channels": 1}
        raw["samplerate"] = SAMPLE_RATE
    try:
        sound, rate = soundfile.read(io.BytesIO(content), dtype="float32", always_2d=True, **raw)
    except soundfile.LibsndfileError:
        return None
    mono = soxr.resample(sound.mean(axis=1), rate, SAMPLE_RATE, "HQ")
    samples: NDArray[np.int16] = np.clip(np.rint(mono * 32768), -32768, 32767).astype(np.int16)
    return samples


def cut(
    samples: NDArray[np.int16], text: str, voice: str, words: list[Word] | None
) -> list[Utterance]:
    """The recording's phrases, trimmed and levelled; none for a silent one.

    A long recording is cut where `words` pause; where they are not known, it is left out.
    """
    duration = len(samples) / SAMPLE_RATE
    parts: list[Phrase] = [Phrase(0.0, duration, text, [])]
    if words:
        parts = list(phrases(words, duration, random.Random(f"{voice} {text}")))
    found = []
    for part in parts:
        first, last = round(part.start * SAMPLE_RATE), round(part.end * SAMPLE_RATE)
        done = finish(samples[first:last], part.segments)
        if done:
            found.append(Utterance(voice, part.text, *done))
    return found


def manifest() -> dict[str, dict[str, Any]]:
    """people.toml."""
    return tomllib.loads(Path(__file__).with_name("people.toml").read_text(encoding="utf-8"))


class Heard(NamedTuple):
    """What some recordings say, by split: their phrases, and those whose words were found."""

    phrases: dict[str, list[Utterance]]
    spoken: dict[str, list[Spoken]]


def hear(task: tuple[Path, str, list[Recording], Path, Path]) -> Heard:
    """What some recordings of a repository say; a process of its own runs it."""
    from train.listener import Listener
    from train.wordpieces import Wordpieces

    folder, name, recordings, bundle, pieces = task
    clone, aligner, listener = _clone(folder, name), Aligner(), None
    found = Heard({}, {})
    for said in recordings:
        samples = read(clone.read(said.path), said.path)
        if samples is None:
            continue
        text = said.texts[0]
        if len(said.texts) > 1:
            done = finish(samples, [])
            if not done:
                continue
            listener = listener or Listener(bundle, Wordpieces(pieces))
            sound = done[0].astype(np.float32) / np.float32(32768)
            text, share = listener.likeliest(sound, said.texts)
            if share < SURE:
                continue
        voice = f"{re.sub(r'-[0-9]$', '', name)}:{said.speaker}"
        words = aligner.words(samples, text)
        found.phrases.setdefault(said.split, []).extend(cut(samples, text, voice, words))
        if words:
            found.spoken.setdefault(said.split, []).append(Spoken(voice, samples, words))
    return found


def _clone(folder: Path, name: str) -> Clone:
    what = manifest()[name]
    return Clone(folder, name, what["commit"], what["repository"])


def splice(spoken: list[Spoken], split: str, count: int) -> Iterator[Utterance]:
    """Home commands of the texts of `split`, put together from what people say."""
    rng = random.Random(count)
    splicer = Splicer(spoken)
    for speaker, text, samples, segments in spliced(splicer, commands(count, split), count, rng):
        done = finish(samples, tidy(segments, len(samples) / SAMPLE_RATE))
        if done:
            yield Utterance(speaker, text, *done)


def utterances(
    folder: Path, bundle: Path, pieces: Path, processes: int
) -> dict[str, list[Utterance]]:
    """What each split hears, in an order that is the same every time."""
    tasks = []
    for name in manifest():
        said = list(READERS[name](_clone(folder, name)))
        parts = (said[at : at + TASK] for at in range(0, len(said), TASK))
        tasks += [(folder, name, part, bundle, pieces) for part in parts]
    found = Heard({}, {})
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for number, heard in enumerate(pool.imap(hear, tasks), 1):
            print(f"aligned part {number} of {len(tasks)}: {tasks[number - 1][1]}", flush=True)
            for split, some in heard.phrases.items():
                found.phrases.setdefault(split, []).extend(some)
            for split, recordings in heard.spoken.items():
                found.spoken.setdefault(split, []).extend(recordings)
    found.phrases["train"] += splice(found.spoken["train"], "train", SPLICED)
    others = [one for split, some in found.spoken.items() if split != "train" for one in some]
    found.phrases["spliced"] = list(splice(others, "dev", SPLICED_HELD_OUT))
    random.Random(1).shuffle(found.phrases["train"])
    return found.phrases


def write_recordings(folder: Path, heard: list[Utterance]) -> None:
    """Write FLAC files and a transcripts.tsv, as `scripts/measure` reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    if folder.name == "digits":
        (folder / "phrases.toml").write_text(DIGIT_PHRASES, encoding="utf-8")
    rows = ["file\ttext"]
    for number, said in enumerate(heard):
        soundfile.write(folder / f"{number:04}.flac", said.samples, SAMPLE_RATE, subtype="PCM_16")
        rows.append(f"{number:04}.flac\t{said.text}")
    (folder / "transcripts.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")


def main() -> None:
    """Read the command line and write the shards."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--people", type=Path, required=True, help="folder of the clones")
    parser.add_argument("--out", type=Path, required=True, help="folder of the bank")
    parser.add_argument("--pieces", type=Path, required=True, help="folder of the word pieces")
    parser.add_argument("--bundle", type=Path, required=True, help="hears how orders are worded")
    parser.add_argument("--recordings", type=Path, help="write what is held out here as well")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    done = args.out / DONE
    sources = json.dumps({name: what["commit"] for name, what in manifest().items()}, indent=1)
    if done.exists() and done.read_text(encoding="utf-8") == sources:
        print(f"{args.out} has the shards of people")
        return
    found = utterances(args.people, args.bundle, args.pieces, args.processes)
    speakers = sorted({said.voice for part in found.values() for said in part})
    voices = [""] * FIRST_PERSON + speakers
    for split, heard in found.items():
        kind = "train-people" if split == "train" else split
        for number, at in enumerate(range(0, len(heard), SHARD)):
            write_shard(args.out / f"{kind}-{number:05}.npz", heard[at : at + SHARD], voices)
        if args.recordings and split != "train":
            write_recordings(args.recordings / split, heard)
        seconds = sum(len(said.samples) for said in heard) / SAMPLE_RATE
        print(f"{split}: {len(heard)} utterances, {seconds / 3600:.2f} h", flush=True)
    done.write_text(sources, encoding="utf-8")


if __name__ == "__main__":
    main()
