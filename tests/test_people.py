"""Recordings of people for home-en: which are read, from where, and who is kept out."""

from __future__ import annotations

import io
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import soundfile
from rigs.checkout import ROOT
from train import people

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


def test_a_recording_is_heard_at_16_khz_and_a_broken_or_silent_one_is_none() -> None:
    rng = np.random.default_rng(1)
    file = io.BytesIO()
    soundfile.write(file, rng.uniform(-0.3, 0.3, (8000, 2)), 8000, format="WAV")
    heard = people.hear(file.getvalue(), "hiss", "somebody")
    assert heard and heard.samples.dtype == np.int16
    assert abs(len(heard.samples) - 16_000) < 2000 and heard.segments == []
    file = io.BytesIO()
    soundfile.write(file, np.zeros(16_000), 16_000, format="WAV")
    assert people.hear(file.getvalue(), "", "nobody") is None
    assert people.hear(b"RIFF", "", "nobody") is None


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


def test_a_speaker_is_held_out_by_name_alone_about_one_of_eight() -> None:
    kept = sum(people.held_out(f"{number:04}") for number in range(800))
    assert 70 <= kept <= 130
    assert people.held_out("0012") == people.held_out("0012")


def test_every_source_of_the_list_can_be_read_and_says_its_licence() -> None:
    listed = people.manifest()
    assert set(listed) == set(people.READERS)
    for what in listed.values():
        assert len(what["commit"]) == 40 and what["licence"] and what["speakers"] > 0
