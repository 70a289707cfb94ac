"""`roomscribe model ...` as its user types it, against a hub on this machine."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rigs.checkout import ROOT, SPEECH
from rigs.command import OBEYING_MODES, errors, roomscribe
from rigs.ctranslate2_folder import write_ctranslate2
from rigs.hailo_simulator.hef_files import write_hef
from rigs.hub import Fault, LocalHub, local_hub
from rigs.models import SMALL_SHAPE, random_weights, sized, write_checkpoint
from rigs.needs import needs_root
from rigs.waiting import PATIENCE_S

SMALL = sized(16, (1, 1), 2, 140, 500, 60)
EDGES = ((1, 1000, 80), (1, 500, 16))
"""Of SMALL's encoder."""
REPOSITORY = "somebody/whisper-home"
OTHER = 12345
"""Number of another user."""


@dataclass
class Desk:
    """A user's place: a hub, a models folder and a folder with a checkpoint."""

    hub: LocalHub
    models: Path
    checkpoint: Path

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """`roomscribe model ARGUMENTS`"""
        environment = self.hub.environment() | {"ROOMSCRIBE_MODELS": str(self.models)}
        return roomscribe("model", *arguments, environment=environment)

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """The same, not waited for."""
        environment = self.hub.environment() | {"ROOMSCRIBE_MODELS": str(self.models)}
        return subprocess.Popen(
            [sys.executable, "-m", "appliance", "model", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
            cwd=ROOT,
        )

    def facts(self, name: str) -> dict[str, Any]:
        """What a model says of itself."""
        found: dict[str, Any] = json.loads((self.models / name / "bundle.json").read_text())
        return found

    def in_use(self) -> str:
        """What `model list` marks."""
        listed = self.run("list").stdout.splitlines()
        return next(line.split()[1] for line in listed if line.startswith("*"))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    checkpoint = write_checkpoint(tmp_path / "whisper-home", SMALL, random_weights(SMALL, 6))
    with local_hub() as hub:
        hub.add_folder(REPOSITORY, checkpoint)
        hub.add_folder("openai/whisper-tiny", checkpoint)
        yield Desk(hub, tmp_path / "models", checkpoint)


def one_line(done: subprocess.CompletedProcess[str], status: int = 78) -> str:
    """The only line of a refusal."""
    assert done.returncode == status, done.stderr
    assert len(errors(done)) == 1, done.stderr
    return errors(done)[0]


def test_one_command_downloads_builds_verifies_and_chooses(desk: Desk) -> None:
    added = desk.run("add", REPOSITORY)
    assert added.returncode == 0, added.stderr
    assert (
        "verified with a test decode" in added.stdout
        and "chosen instead of tiny.en" in added.stdout
    )
    commit = desk.hub.repositories[REPOSITORY].commit
    facts = desk.facts("whisper-home")
    assert facts["name"] == "whisper-home" == desk.in_use()
    assert facts["source"] == f"{REPOSITORY}@{commit}" and facts["window_s"] == 10
    heard = roomscribe(
        "transcribe",
        "--json",
        SPEECH / "00.flac",
        environment={"ROOMSCRIBE_MODELS": str(desk.models)},
    )
    assert heard.returncode == 0, heard.stderr
    assert sorted(file.name for file in desk.models.iterdir()) == [
        ".work",
        "in-use",
        "whisper-home",
    ]


def test_an_interrupted_download_leaves_no_model_and_continues(desk: Desk) -> None:
    size = (desk.checkpoint / "model.safetensors").stat().st_size
    desk.hub.misbehave("model.safetensors", *[Fault(break_after=size // 2), Fault(break_after=0)])
    running = desk.start("add", REPOSITORY)
    part = desk.models / ".work" / "whisper-home" / "checkpoint" / "model.safetensors.part"
    deadline = time.monotonic() + PATIENCE_S
    while not (part.exists() and part.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.02)
    running.kill()
    running.communicate()
    begun = part.stat().st_size
    assert 0 < begun <= size // 2
    assert desk.in_use() == "tiny.en" and not (desk.models / "whisper-home").exists()
    desk.hub.faults.clear()
    assert desk.run("add", REPOSITORY).returncode == 0
    assert desk.hub.fetched("model.safetensors")[-1].headers["Range"] == f"bytes={begun}-"
    assert desk.in_use() == "whisper-home"


def wait_for(pattern: str, folder: Path, running: subprocess.Popen[str]) -> None:
    """Returns once a file with something in it is there. Fails when the process ends before."""
    deadline = time.monotonic() + PATIENCE_S
    while not any(file.is_file() and file.stat().st_size for file in folder.glob(pattern)):
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)


LANGUAGE = "language: en (the only one it knows)\n"
PART = ".work/whisper-home/checkpoint/model.safetensors.part"
DRAFT = ".work/home/.bundle.*/new/encoder.onnx"


def test_ctrl_c_in_the_midst_of_an_add_leaves_the_download_and_nothing_else(
    desk: Desk, tmp_path: Path
) -> None:
    large = write_checkpoint(tmp_path / "home", SMALL_SHAPE, random_weights(SMALL_SHAPE, 7))
    building = desk.start("add", large)
    wait_for(DRAFT, desk.models, building)
    building.send_signal(signal.SIGINT)
    told, complaint = building.communicate()
    assert (building.returncode, complaint) == (130, "")
    assert told.startswith(LANGUAGE) and told.endswith("building home\n")
    assert list((desk.models / ".work").iterdir()) == []

    size = (desk.checkpoint / "model.safetensors").stat().st_size
    desk.hub.misbehave("model.safetensors", Fault(break_after=size // 2), *[Fault(status=503)] * 20)
    fetching = desk.start("add", REPOSITORY)
    wait_for(PART, desk.models, fetching)
    fetching.send_signal(signal.SIGINT)
    told, complaint = fetching.communicate()
    assert fetching.returncode == 130, complaint
    assert "roomscribe model remove whisper-home" in told
    assert [file.name for file in (desk.models / ".work").iterdir()] == ["whisper-home"]
    assert desk.in_use() == "tiny.en"


def test_an_unknown_name_is_one_line_with_the_known_ones(desk: Desk) -> None:
    line = one_line(desk.run("add", "tinny"))
    assert "tiny" in line and "folder" in line
    assert "whisper-nothing" in one_line(desk.run("add", "somebody/whisper-nothing"))
    assert list((desk.models / ".work").iterdir()) == []


def test_a_model_that_cannot_be_removed_is_not_suggested(desk: Desk) -> None:
    for name, which in (("tiny.en", "the built-in model"), ("../x", "'../x'")):
        line = one_line(desk.run("remove", name))
        assert f"{which} cannot be removed. You can remove: (no model is installed)" in line


@pytest.mark.parametrize("name", ["nosuch", "./nosuch"])
def test_a_wrong_name_on_the_command_line_is_not_blamed_on_the_configuration(
    desk: Desk, name: str
) -> None:
    (line,) = errors(desk.run("use", name))
    assert "nosuch" in line and "tiny.en" in line
    assert "[model]" not in line


def test_a_folder_becomes_a_model_of_another_name_and_stays_unused_if_asked(desk: Desk) -> None:
    done = desk.run("add", desk.checkpoint, "--name", "mine", "--no-use", "--window", "4")
    assert done.returncode == 0, done.stderr
    assert "roomscribe model use mine" in done.stdout and desk.in_use() == "tiny.en"
    assert desk.facts("mine")["window_s"] == 4
    assert desk.run("use", "mine").returncode == 0
    assert desk.in_use() == "mine"
    assert "is in use; first choose another one" in one_line(desk.run("remove", "mine"))
    assert desk.run("use", "tiny.en").returncode == 0
    assert desk.run("remove", "mine").returncode == 0
    assert "mine" not in desk.run("list").stdout


@needs_root("giving the models folder to another user")
def test_root_leaves_nothing_of_its_own_in_a_models_folder_of_another_user(desk: Desk) -> None:
    desk.models.mkdir()
    os.chown(desk.models, OTHER, OTHER)
    desk.checkpoint.chmod(0o700)
    for arguments in (["add", desk.checkpoint, "--name", "mine"], ["use", "mine"]):
        done = desk.run(*arguments)
        assert done.returncode == 0, done.stderr
    half = (desk.checkpoint / "model.safetensors").stat().st_size // 2
    desk.hub.misbehave("model.safetensors", Fault(break_after=half), *[Fault(status=503)] * 20)
    with desk.start("add", REPOSITORY) as fetching:
        wait_for(PART, desk.models, fetching)
        fetching.kill()
    found = list(desk.models.rglob("*"))
    assert {"in-use", "bundle.json", "model.safetensors.part"} <= {each.name for each in found}
    assert {(each.lstat().st_uid, each.lstat().st_gid) for each in found} == {(OTHER, OTHER)}
    assert desk.run("remove", "whisper-home").returncode == 0
    assert list((desk.models / ".work").iterdir()) == []


@needs_root("giving the models folder to another user")
@pytest.mark.parametrize("command", ["list", "add"])
def test_a_link_in_another_users_models_folder_leads_root_nowhere(
    desk: Desk, tmp_path: Path, command: str
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "important").write_text("kept", encoding="utf-8")
    work = desk.models / ".work"
    work.mkdir(parents=True)
    (work / "home").symlink_to(victim)
    (work / "home.lock").symlink_to(tmp_path / "made")
    for each in (desk.models, work):
        os.chown(each, OTHER, OTHER)
    desk.run(*{"list": ["list"], "add": ["add", REPOSITORY, "--name", "home"]}[command])
    assert [each.name for each in victim.iterdir()] == ["important"]
    assert not (tmp_path / "made").exists()


def test_a_second_model_does_not_push_the_chosen_one_aside(desk: Desk) -> None:
    assert desk.run("add", desk.checkpoint, "--name", "first").returncode == 0
    done = desk.run("add", desk.checkpoint, "--name", "second")
    assert "first stays in use. To change: `roomscribe model use second`" in done.stdout
    assert desk.in_use() == "first"


def test_the_configuration_goes_before_the_choice(desk: Desk, tmp_path: Path) -> None:
    config = tmp_path / "roomscribe.toml"
    config.write_text('[model]\nbundle = "tiny.en"\n', encoding="utf-8")
    assert desk.run("add", desk.checkpoint, "--name", "mine").returncode == 0
    line = one_line(desk.run("use", "mine", "--config", config))
    assert "sets [model] bundle = 'tiny.en'" in line
    listed = desk.run("list", "--config", config).stdout
    assert [line.split()[1] for line in listed.splitlines() if line.startswith("*")] == ["tiny.en"]


def test_a_chosen_model_that_is_gone_is_one_line_with_its_fix(desk: Desk) -> None:
    assert desk.run("add", desk.checkpoint, "--name", "mine").returncode == 0
    shutil.rmtree(desk.models / "mine")
    done = roomscribe(
        "transcribe", SPEECH / "00.flac", environment={"ROOMSCRIBE_MODELS": str(desk.models)}
    )
    assert "'mine'" in one_line(done)
    assert desk.run("use", "tiny.en").returncode == 0


def test_a_models_folder_that_may_not_be_read_leaves_the_built_in_one(tmp_path: Path) -> None:
    sealed = tmp_path / "models"
    (sealed / "tiny").mkdir(parents=True)
    (sealed / "in-use").write_text("tiny\n", encoding="utf-8")
    sealed.chmod(0)
    for command in ("transcribe {}", "model list"):
        done = roomscribe(
            *command.format(SPEECH / "00.flac").split(),
            environment={"ROOMSCRIBE_MODELS": str(sealed)},
            wrapper=OBEYING_MODES,
        )
        assert done.returncode == 0 and done.stdout, (command, done.stderr)
        told = [line for line in done.stderr.splitlines() if str(sealed) in line]
        assert len(told) == 1 and "sudo" in told[0], done.stderr
    file = SPEECH / "00.flac"
    named = roomscribe("transcribe", "--model", sealed / "tiny", file, wrapper=OBEYING_MODES)
    assert "sudo" in one_line(named)


def test_a_damaged_model_is_found_and_the_others_are_still_checked(desk: Desk) -> None:
    for name in ("one", "two"):
        assert desk.run("add", desk.checkpoint, "--name", name).returncode == 0
    step = desk.models / "one" / "step.onnx"
    content = bytearray(step.read_bytes())
    content[len(content) // 2] ^= 1
    step.write_bytes(content)
    done = desk.run("list")
    assert "one/bundle.json" in one_line(done)
    assert [line[2:].split()[0] for line in done.stdout.splitlines()] == ["tiny.en", "two"]


def test_half_a_file_is_one_line_and_changes_nothing(desk: Desk) -> None:
    assert desk.run("add", desk.checkpoint, "--name", "mine").returncode == 0
    before = (desk.models / "mine" / "bundle.json").read_bytes()
    os.truncate(desk.checkpoint / "model.safetensors", 5000)
    assert "model.safetensors" in one_line(desk.run("add", desk.checkpoint, "--name", "mine"))
    assert (desk.models / "mine" / "bundle.json").read_bytes() == before
    assert sorted(file.name for file in desk.models.iterdir()) == [".work", "in-use", "mine"]
    assert list((desk.models / ".work").iterdir()) == []


def test_a_folder_of_faster_whisper_becomes_a_model(desk: Desk, tmp_path: Path) -> None:
    cache = tmp_path / "models--Systran--faster-whisper-small"
    write_ctranslate2(cache / "snapshots" / "0123abc", SMALL, random_weights(SMALL, 6), "float16")
    done = desk.run("add", cache)
    assert done.returncode == 0, done.stderr
    assert desk.in_use() == "faster-whisper-small"


def test_the_built_in_model_is_not_added_under_its_own_name(desk: Desk) -> None:
    line = one_line(desk.run("add", "tiny.en"))
    assert "'tiny.en' is the built-in model's; give another with --name" in line
    assert desk.hub.requests == []


def test_hailos_encoder_is_fetched_for_the_chip_that_is_asked_for(
    desk: Desk, tmp_path: Path
) -> None:
    hef = write_hef(tmp_path / "hailos.hef", *EDGES).read_bytes()
    desk.hub.hefs["whisper/h8/tiny-whisper-encoder-10s_15dB.hef"] = hef
    done = desk.run("add", "tiny", "--hef", "hailo8")
    assert done.returncode == 0, done.stderr
    assert (desk.models / "tiny" / "encoder.hef").read_bytes() == hef
    assert "encoder.hef" in desk.facts("tiny")["files"]
    assert "only tiny (10 s), base (5 s)" in one_line(
        desk.run("add", "tiny", "--hef", "hailo8", "--window", "5")
    )


def test_a_hef_of_the_users_own_must_be_one(desk: Desk, tmp_path: Path) -> None:
    mine = write_hef(tmp_path / "mine.hef", *EDGES).read_bytes()
    (tmp_path / "photo.hef").write_bytes(b"\xff\xd8\xff\xe0")
    options = ("add", desk.checkpoint, "--name", "mine", "--hef")
    assert desk.run(*options, tmp_path / "mine.hef").returncode == 0
    assert (desk.models / "mine" / "encoder.hef").read_bytes() == mine
    assert "photo.hef: expected a HEF" in one_line(desk.run(*options, tmp_path / "photo.hef"))
    assert "nothing.hef" in one_line(desk.run(*options, tmp_path / "nothing.hef"))
    networks = b"base-whisper-encoder-10s base-whisper-decoder-10s-out-seq-64"
    for name, content in (("Whisper-Small.hef", mine), ("other.hef", mine + networks)):
        (tmp_path / name).write_bytes(content)
        line = one_line(desk.run(*options, tmp_path / name))
        assert "found one with encoder and decoder, for Hailo's own speech API" in line


def test_the_encoder_is_packed_and_the_error_reported(desk: Desk, tmp_path: Path) -> None:
    done = desk.run("pack", desk.checkpoint, "--out", tmp_path / "packed")
    assert done.returncode == 0, done.stderr
    assert "packed: " in done.stdout
    shown = desk.run("pack", desk.checkpoint, "--dtype", "int8", "--out", tmp_path / "small")
    assert "largest relative error (RMS) of a weight: 0.0" in shown.stdout


def test_an_export_holds_what_hailos_compiler_needs(desk: Desk, tmp_path: Path) -> None:
    out = tmp_path / "compile"
    recordings = [SPEECH / "00.flac", SPEECH / "01.flac"]
    done = desk.run("export", desk.checkpoint, "--out", out, "--recordings", *recordings)
    assert done.returncode == 0, done.stderr
    calibration = [np.load(file) for file in out.rglob("calib*.npy")]
    assert calibration[0].shape == (2, 1, 1000, 80)
    with np.load(out / "decoder_calib_set.npz") as arrays:
        shapes = [array.shape for array in arrays.values()]
    assert shapes == [(2, 1, 500, 16), (2, 32, 1, 16)]
    assert len(list(out.rglob("*.onnx"))) == 2


@pytest.mark.parametrize("window", ["nan", "30.5"])
def test_a_window_that_cannot_be_is_one_line(desk: Desk, window: str) -> None:
    line = one_line(desk.run("add", REPOSITORY, f"--window={window}"))
    assert f"--window: expected 0.04 to 30 seconds, found {float(window):g}" in line
    line = one_line(desk.run("export", desk.checkpoint, f"--window={window}"))
    assert f"window: expected a multiple of 0.02 s up to 10 s, found {float(window):g}" in line
    assert desk.hub.requests == []


def test_a_window_or_language_that_the_model_does_not_have_costs_no_weights(desk: Desk) -> None:
    assert "up to 10 s, found 20" in one_line(desk.run("add", REPOSITORY, "--window", "20"))
    line = one_line(desk.run("add", REPOSITORY, "--language", "de"))
    assert "--language: 'de': this model is English-only" in line
    assert not desk.hub.fetched("model.safetensors")
