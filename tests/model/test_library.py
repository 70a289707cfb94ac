"""Models are installed, replaced, removed and chosen whole or not at all."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.errors import ConfigError, ModelError
from appliance.model import library
from appliance.model.bundle import chosen_model
from appliance.model.library import StagingFolder, choose, install, installed, remove, work_on


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "models"
    monkeypatch.setenv("ROOMSCRIBE_MODELS", str(folder))
    return folder


def draft(place: StagingFolder, content: str) -> None:
    place.draft.mkdir()
    (place.draft / "bundle.json").write_text(content)


def add(name: str, content: str = "{}") -> None:
    with work_on(name) as place:
        draft(place, content)
        install(place)


def test_a_finished_draft_is_moved_to_its_name_and_nothing_else_stays(models: Path) -> None:
    add("tiny", "one")
    assert installed() == ["tiny"]
    assert (models / "tiny" / "bundle.json").read_text() == "one"
    assert [file.name for file in (models / ".work").iterdir()] == ["tiny.lock"]


def test_a_second_one_of_the_name_replaces_the_first(models: Path) -> None:
    add("tiny", "one")
    add("tiny", "two")
    assert (models / "tiny" / "bundle.json").read_text() == "two"
    assert [file.name for file in (models / ".work").iterdir()] == ["tiny.lock"]


def test_an_error_on_the_way_leaves_downloads_but_no_draft_and_the_old_bundle(models: Path) -> None:
    add("tiny", "one")
    with pytest.raises(RuntimeError, match="power"), work_on("tiny") as place:
        place.checkpoint.mkdir()
        (place.checkpoint / "model.safetensors.part").write_text("half")
        draft(place, "two")
        raise RuntimeError("power")
    assert (models / "tiny" / "bundle.json").read_text() == "one"
    assert not (models / ".work" / "tiny" / "bundle").exists()
    with work_on("tiny") as place:
        assert (place.checkpoint / "model.safetensors.part").read_text() == "half"


def test_what_a_killed_command_left_is_no_model_and_is_cleared_by_the_next(models: Path) -> None:
    killed = (
        "import os, signal\n"
        "from appliance.model.library import work_on\n"
        "with work_on('tiny') as place:\n"
        "    place.draft.mkdir()\n"
        "    (place.draft / 'bundle.json').write_text('{}')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", killed], check=False)
    assert (models / ".work" / "tiny" / "bundle").is_dir()
    assert installed() == []
    with work_on("tiny") as place:
        assert not place.draft.exists()


def test_two_that_work_on_the_same_model_are_kept_apart(models: Path) -> None:
    expected = f"another `roomscribe model` command \\(process {os.getpid()}\\) is working on it"
    with work_on("tiny"):
        with pytest.raises(ModelError, match=expected), work_on("tiny"):
            pass
        with work_on("base"):
            pass
    with work_on("tiny"):
        pass


def test_a_removed_model_is_gone_and_an_unknown_one_is_named(models: Path) -> None:
    add("tiny")
    add("base")
    remove("tiny")
    assert installed() == ["base"]
    with pytest.raises(ModelError, match=r"model 'tiny': expected it in .*found there: base"):
        remove("tiny")


@pytest.mark.parametrize("name", ["", ".hidden", "../up", "Tiny", "a b", "x" * 65, "home-en"])
def test_a_name_that_cannot_be_one_is_refused(models: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="give another with --name"), work_on(name):
        pass
    assert not models.exists()


def test_the_choice_is_remembered_and_replaced(models: Path) -> None:
    assert chosen_model() == ""
    choose("tiny")
    assert chosen_model() == "tiny"
    choose("base")
    assert chosen_model() == "base"
    assert [file.name for file in models.iterdir()] == ["in-use"]


@pytest.mark.parametrize(
    ("number", "cure"),
    [
        (errno.EACCES, "sudo"),
        (errno.EROFS, "make the file system writable"),
        (errno.ENOSPC, "make room"),
        (errno.EINVAL, "remove the old model first"),
        (errno.EIO, "see to that file"),
    ],
)
def test_each_refusal_of_the_disk_has_its_cure(number: int, cure: str) -> None:
    with (
        pytest.raises(ModelError, match=cure) as caught,
        library.model_errors(Path("/models/tiny")),
    ):
        raise OSError(number, os.strerror(number), "/models/tiny/step.onnx")
    assert "\n" not in str(caught.value)
    assert "/models/tiny/step.onnx: expected room and leave" in str(caught.value)
