"""Recordings of people for home-en: which are read, from where, and who is kept out."""

from __future__ import annotations

import io
import random
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray
from rigs.checkout import ROOT
from train import people
from train.align import Word, phrases
from train.bank import Utterance
from train.phones import Segment
from train.splice import Splicer, Spoken

SLOTS = {"coffeeDrink": "latte", "milkAmount": " soy milk", "size": "small", "roast": "dark roast"}


@pytest.fixture
def clone(tmp_path: Path) -> people.Clone:
    """A repository of three digits and three orders, at its first commit; its second has none."""
    folder = tmp_path / "spoken"

    def git(*command: str) -> str:
        who = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
        done = subprocess.run(
            ["git", "-C", str(folder), *who, *command], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    (folder / "recordings").mkdir(parents=True)
    for name in ("7_lucas_3", "7_theo_3", "7_jackson_3", "7_lucas_45"):
        (folder / "recordings" / f"{name}.wav").write_bytes(b"RIFF" + name.encode())
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    first = git("rev-parse", "HEAD")
    git("rm", "-rq", "recordings")
    git("commit", "-qm", "second")
    return people.Clone(tmp_path, "spoken", first, "https://example.org/spoken")


def test_files_are_read_at_the_commit_that_is_named(clone: people.Clone) -> None:
    assert len(clone.names("recordings/")) == 4
    assert clone.read("recordings/7_theo_3.wav") == b"RIFF7_theo_3"


def test_who_is_in_a_test_of_the_project_is_left_out(clone: people.Clone) -> None:
    said = {one.speaker: one for one in people.free_spoken_digit_dataset(clone)}
    assert set(said) == {"lucas", "theo"}
    assert (said["lucas"].split, said["theo"].split) == ("train", "digits")
    assert said["lucas"].path == "recordings/7_lucas_3.wav" and said["lucas"].texts == ["seven"]


def test_a_folder_without_the_commit_is_one_line_that_says_what_to_clone(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as refused:
        people.Clone(tmp_path, "spoken", "0" * 40, "https://example.org/spoken")
    assert str(refused.value) == (
        f"{tmp_path / 'spoken'}: no clone with commit {'0' * 40}; "
        f"git clone https://example.org/spoken {tmp_path / 'spoken'}"
    )


def test_an_order_is_worded_in_every_way_that_its_slots_leave_open() -> None:
    texts = people.wordings(SLOTS)
    assert len(texts) == len(set(texts)) == len(people.BEGINNINGS) * 2 * 2
    assert "i'd like a small dark roast latte with soy milk" in texts
    assert "brew a dark roast small latte with soy milk" in texts
    assert people.wordings({"coffeeDrink": "mocha"})[0] == "brew a mocha"


def sound_of(
    samples: NDArray[np.float64] | NDArray[np.int16], rate: int, form: str = "WAV"
) -> bytes:
    file = io.BytesIO()
    raw = {"endian": "BIG", "subtype": "PCM_16"} if form == "RAW" else {}
    soundfile.write(file, samples, rate, format=form, **raw)
    return file.getvalue()


def test_a_recording_is_read_at_16_khz_and_a_broken_one_is_none() -> None:
    hiss = np.random.default_rng(1).uniform(-0.3, 0.3, (8000, 2))
    samples = people.read(sound_of(hiss, 8000), "hiss.wav")
    assert samples is not None and samples.dtype == np.int16 and len(samples) == 16_000
    tone = np.arange(-800, 800, dtype=np.int16)
    read = people.read(sound_of(tone, 16_000, "RAW"), "tone.raw")
    assert read is not None and np.abs(read.astype(int) - tone).max() <= 1
    assert people.read(b"RIFF", "broken.wav") is None


def test_a_silent_recording_and_a_long_one_that_cannot_be_cut_are_left_out() -> None:
    hiss = np.random.default_rng(1).integers(-9000, 9000, 16_000 * 12).astype(np.int16)
    assert people.cut(np.zeros(16_000, np.int16), "", "nobody", None) == []
    assert people.cut(hiss, "a long story", "somebody", None) == []
    (short,) = people.cut(hiss[:16_000], "hiss", "somebody", None)
    assert short.text == "hiss" and short.segments == []
    assert abs(len(short.samples) - 16_000) < 2000


def test_a_long_recording_is_cut_at_its_pauses_and_every_word_is_in_one_phrase_at_most() -> None:
    words = []
    for number in range(40):  # a word of 0.3 s, a pause of 0.2 s behind every fourth
        start = number * 0.35 + number // 4 * 0.2
        phones = [Segment("w", start, start + 0.1), Segment("ao", start + 0.1, start + 0.3)]
        words.append(Word(f"w{number}", start, start + 0.3, phones))
    duration = words[-1].end + 0.1
    parts = list(phrases(words, duration, random.Random(3)))
    assert len(parts) > 2
    said = [word for part in parts for word in part.text.split()]
    assert len(said) == len(set(said)) and set(said) <= {word.text for word in words}
    assert len(said) > 30
    for part in parts:
        assert 0.8 <= part.end - part.start <= 8.5
        assert int(part.text.split()[0][1:]) % 4 == 0, "begins behind a pause"
        assert sum(one.phone == "ao" for one in part.segments) == len(part.text.split())
        assert part.segments[0].start == 0 and part.segments[-1].end == part.end - part.start
    (whole,) = phrases(words[:8], 3.2, random.Random(3))
    assert whole.text == " ".join(word.text for word in words[:8])


def test_a_sentence_is_put_together_from_the_longest_runs_of_people_who_say_its_words() -> None:
    def spoken(speaker: str, text: str, loudness: int) -> Spoken:
        words = [
            Word(word, i * 0.5 + 0.1, i * 0.5 + 0.4, [Segment("ao", i * 0.5 + 0.1, i * 0.5 + 0.4)])
            for i, word in enumerate(text.split())
        ]
        samples = np.full(len(words) * 8000, loudness, np.int16)
        return Spoken(speaker, samples, words)

    splicer = Splicer(
        [
            spoken("ann", "please turn on the radio", 200),
            spoken("bob", "the kitchen is cold", 9000),
            spoken("ann", "a light", 200),
            spoken("bob", "a light", 9000),
        ]
    )
    rng = random.Random(1)
    assert splicer.splice("turn on the garage light", rng) is None
    for _ in range(20):
        found = splicer.splice("turn on the kitchen light", rng)
        assert found
        speaker, samples, phones = found
        assert speaker == "ann", "who is heard already goes on"
        # three words of one recording with the time between them, then two alone
        assert len(samples) / 16_000 == pytest.approx(0.1 + 1.3 + 2 * 0.3 + 3 * 0.02, abs=0.01)
        assert [phone.phone for phone in phones] == ["ao"] * 5
        assert all(a.end <= b.start + 1e-6 for a, b in pairwise(phones))
        loud = np.abs(samples.astype(int))
        assert 2900 < loud.max() < 3100, "nobody is louder than the others"


def test_the_same_words_of_a_speaker_of_single_words_are_not_heard_over_and_over(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "spoken"
    (folder / "on").mkdir(parents=True)
    for number in range(9):
        (folder / "on" / f"0a7c2a8d_nohash_{number}.wav").write_bytes(b"%d" % number)
    (folder / "zero_5e3dde6b_nohash_2.wav.wav").write_bytes(b"RIFF")
    (folder / "README.md").write_text("words")
    git = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=e"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, "-c", "commit.gpgsign=false", *command], check=True)
    said = list(people.speech_commands(people.Clone(tmp_path, "spoken", "HEAD", "")))
    assert [one.texts for one in said].count(["on"]) == people.WORDS_A_SPEAKER
    assert [one.speaker for one in said if one.texts == ["zero"]] == ["5e3dde6b"]


@pytest.mark.parametrize(
    ("arguments", "status", "line"),
    [
        (["--help"], 0, "scripts/train-home-en BUILD_FOLDER"),
        ([], 2, "scripts/train-home-en BUILD_FOLDER"),
        (["--poeple", "x"], 2, "scripts/train-home-en BUILD_FOLDER"),
        (["--people", "/nowhere", "build"], 2, "expected a folder of clones, found /nowhere"),
    ],
)
def test_the_training_command_says_how_it_is_called_and_installs_nothing(
    tmp_path: Path, arguments: list[str], status: int, line: str
) -> None:
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "train-home-en", tmp_path / "scripts")
    command = ["bash", str(tmp_path / "scripts" / "train-home-en"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert line in done.stdout + done.stderr


def test_shards_that_are_whole_are_kept_and_made_again_for_other_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[str] = []

    def utterances(*_: object) -> dict[str, list[Utterance]]:
        made.append("made")
        return {"train": [Utterance("one:a", "yes", np.full(8000, 9, np.int16), [])], "spliced": []}

    monkeypatch.setattr(people, "utterances", utterances)
    words = [word for name in ("people", "out", "pieces", "bundle") for word in (f"--{name}", "x")]
    words[3] = str(tmp_path / "bank")
    monkeypatch.setattr("sys.argv", ["people", *words])
    people.main()
    assert (tmp_path / "bank" / "train-people-00000.npz").exists()
    people.main()
    assert made == ["made"]
    assert capsys.readouterr().out.endswith("bank has the shards of people\n")
    monkeypatch.setattr(people, "manifest", lambda: {"spoken": {"commit": "0" * 40}})
    people.main()
    assert made == ["made", "made"]


def test_a_speaker_is_held_out_by_name_alone_about_one_of_eight() -> None:
    kept = sum(people.held_out(f"{number:04}") for number in range(800))
    assert 70 <= kept <= 130
    assert people.held_out("0012") == people.held_out("0012")


def test_every_source_of_the_list_can_be_read_and_says_its_licence() -> None:
    listed = people.manifest()
    assert set(listed) == set(people.READERS)
    for what in listed.values():
        assert len(what["commit"]) == 40 and what["licence"] and what["speakers"] > 0
