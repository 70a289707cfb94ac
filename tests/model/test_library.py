"""Models are installed, replaced, removed and chosen whole or not at all."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rigs.command import OBEYING_MODES

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
    assert list((models / ".work").iterdir()) == []


def test_a_second_one_of_the_name_replaces_the_first(models: Path) -> None:
    add("tiny", "one")
    add("tiny", "two")
    assert (models / "tiny" / "bundle.json").read_text() == "two"
    assert list((models / ".work").iterdir()) == []


def test_an_error_on_the_way_leaves_downloads_but_no_draft_and_the_old_bundle(models: Path) -> None:
    add("tiny", "one")
    with pytest.raises(RuntimeError, match="power"), work_on("tiny") as place:
        place.checkpoint.mkdir()
        (place.checkpoint / "model.safetensors.part").write_text("half")
        draft(place, "two")
        raise RuntimeError("power")
    assert (models / "tiny" / "bundle.json").read_text() == "one"
    assert [file.name for file in (models / ".work").rglob("*")] == [
        "tiny",
        "checkpoint",
        "model.safetensors.part",
    ]
    with work_on("tiny") as place:
        assert (place.checkpoint / "model.safetensors.part").read_text() == "half"


def killed(at: str) -> None:
    """A command that works on tiny, has 4 bytes of its weights, and dies in the midst of `at`."""
    program = (
        "import os, signal\n"
        "from appliance.model.library import drafted, work_on\n"
        "with work_on('tiny') as place:\n"
        "    place.checkpoint.mkdir()\n"
        "    (place.checkpoint / 'config.json').write_text('{}')\n"
        "    (place.checkpoint / 'vocab.json.part').write_text('{')\n"
        "    (place.checkpoint / 'model.safetensors.part').write_text('half')\n"
        f"    {at}\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == -signal.SIGKILL


DRAFTS = {
    "a bundle": "place.draft.mkdir(); (place.draft / 'bundle.json').write_text('{}')",
    "half a bundle": "half = drafted(place.draft, 'a bundle'); half.__enter__()",
    "a removed bundle": "(place.folder / 'removed').mkdir()",
}


@pytest.mark.parametrize("at", DRAFTS.values(), ids=DRAFTS)
def test_of_what_a_killed_command_left_the_download_alone_outlives_the_next_one(
    models: Path, at: str
) -> None:
    killed(at)
    work = models / ".work"
    assert len(list((work / "tiny").iterdir())) == 2 and installed() == []
    library.clear_abandoned()
    assert [file.name for file in work.iterdir()] == ["tiny"]
    assert [file.name for file in (work / "tiny").iterdir()] == ["checkpoint"]
    assert library.unfinished() == {"tiny": library.Unfinished(len("{}{half"), "")}
    with work_on("tiny") as place:
        assert (place.checkpoint / "model.safetensors.part").read_text() == "half"
    remove("tiny")
    assert list(work.iterdir()) == [] and library.unfinished() == {}


def test_a_download_without_weights_is_not_worth_keeping(models: Path) -> None:
    with pytest.raises(ModelError, match="refused"), work_on("tiny") as place:
        place.checkpoint.mkdir()
        for name, content in {
            "config.json": "{}", "fetched.json": "{}", "vocab.json.part": "{",
            "vocab.json.part.json": "{}", "model.safetensors.part": "",
        }.items():  # fmt: skip
            (place.checkpoint / name).write_text(content)
        raise ModelError("refused")
    assert list((models / ".work").iterdir()) == []


def test_what_another_command_works_on_is_shown_and_left_alone(models: Path) -> None:
    with work_on("tiny") as place:
        draft(place, "half")
        library.clear_abandoned()
        assert place.draft.is_dir()
        assert library.unfinished() == {"tiny": library.Unfinished(4, str(os.getpid()))}
        with pytest.raises(ModelError, match="is working on it"):
            library.drop_download("tiny")
    assert library.unfinished() == {}


def test_who_may_not_write_there_sees_what_is_left_and_clears_nothing(models: Path) -> None:
    killed(DRAFTS["a bundle"])
    program = (
        "from appliance.model import library\n"
        "library.clear_abandoned(); print(library.unfinished())"
    )
    for folder in (models / ".work" / "tiny", models / ".work"):
        folder.chmod(0o555)
    (models / ".work" / "tiny.lock").chmod(0o444)
    done = subprocess.run(
        [*OBEYING_MODES, sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "{'tiny': Unfinished(size=7, process='')}" in done.stdout
    assert (models / ".work" / "tiny" / "bundle").is_dir()


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
    with pytest.raises(ModelError, match=r"model 'tiny' is not installed in .*installed are: base"):
        remove("tiny")


@pytest.mark.parametrize(
    "name", ["", ".hidden", "../up", "Tiny", "a b", "x" * 65, "tiny.en", "in-use"]
)
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
    ("number", "fix"),
    [
        (errno.EACCES, "sudo"),
        (errno.EROFS, "make the file system writable"),
        (errno.ENOSPC, "make room"),
        (errno.EINVAL, "remove the old model first"),
        (errno.EIO, "see to that file"),
    ],
)
def test_each_refusal_of_the_disk_has_its_fix(number: int, fix: str) -> None:
    with pytest.raises(ModelError, match=fix) as caught, library.model_errors(Path("/models/tiny")):
        raise OSError(number, os.strerror(number), "/models/tiny/step.onnx")
    assert "\n" not in str(caught.value)
    assert "/models/tiny/step.onnx: the model cannot be written" in str(caught.value)
