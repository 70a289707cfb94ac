"""Hailo's HEFs: which there are, and that nothing but a whole HEF is kept."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from rigs.hub import Fault, LocalHub, local_hub

from appliance.convert.download import Downloader
from appliance.convert.hailo_store import (
    STORE,
    HefSource,
    explain_none,
    fetch_encoder,
    find_hef,
    published,
)
from appliance.errors import ModelError
from appliance.model.bundle import CHIP_NAMES, HEF_MAGIC

HEF = HEF_MAGIC + bytes(4) + bytes(range(256)) * 1000


@pytest.fixture
def hub() -> Iterator[LocalHub]:
    with local_hub() as running:
        yield running


def source(hub: LocalHub, chip: str = "hailo8", checkpoint: str = "tiny") -> HefSource:
    found = find_hef(chip, checkpoint, hub.environment())
    assert found is not None
    hub.hefs[found.address.removeprefix(f"{hub.store}/")] = HEF
    return found


def fetch(found: HefSource, folder: Path) -> Path:
    return fetch_encoder(found, folder, Downloader(pause_s=0))


@pytest.mark.parametrize(
    ("chip", "checkpoint", "window_s", "path"),
    [
        ("hailo8", "tiny", 10, "h8/tiny-whisper-encoder-10s_15dB.hef"),
        ("hailo8", "openai/whisper-base", 5, "h8/base-whisper-encoder-5s.hef"),
        ("hailo8l", "base", 5, "h8l/base-whisper-encoder-5s_h8l.hef"),
        ("hailo10h", "base", 10, "h10h/base-whisper-encoder-10s.hef"),
        ("hailo10h", "openai/whisper-tiny.en", 10, "h10h/tiny_en-whisper-encoder-10s.hef"),
    ],
)
def test_an_encoder_is_known_with_its_window(
    chip: str, checkpoint: str, window_s: float, path: str
) -> None:
    found = find_hef(chip, checkpoint, {})
    assert found is not None
    assert (found.window_s, found.address) == (window_s, f"{STORE}/whisper/{path}")


@pytest.mark.parametrize(
    ("chip", "checkpoint"),
    [("hailo8", "tiny.en"), ("hailo8", "small"), ("hailo15", "tiny"), ("hailo8", "me/tiny")],
)
def test_what_hailo_does_not_publish_is_none(chip: str, checkpoint: str) -> None:
    assert find_hef(chip, checkpoint, {}) is None


def test_why_there_is_none_says_what_there_is() -> None:
    assert published("hailo8") == "tiny (10 s), base (5 s)"
    message = explain_none("hailo8", "base", 10.0)
    assert "base with a window of 10 s on hailo8" in message
    assert "only tiny (10 s), base (5 s)" in message
    assert (
        explain_none("hailo9", "tiny", 10.0) == f"chip 'hailo9': expected {', '.join(CHIP_NAMES)}"
    )


def test_a_hef_is_fetched(hub: LocalHub, tmp_path: Path) -> None:
    found = source(hub)
    hub.misbehave(found.address.rsplit("/", 1)[-1], Fault(break_after=100_000))
    file = fetch(found, tmp_path)
    assert file == tmp_path / "tiny-whisper-encoder-10s_15dB.hef"
    assert file.read_bytes() == HEF


def test_what_is_no_hef_is_refused(hub: LocalHub, tmp_path: Path) -> None:
    found = source(hub)
    hub.hefs[found.address.removeprefix(f"{hub.store}/")] = b"<html>please log in</html>"
    with pytest.raises(ModelError, match=r"begins with b'\\x01HEF', found b'<htm'") as caught:
        fetch(found, tmp_path)
    assert "\n" not in str(caught.value)


def test_a_hef_that_is_gone_is_one_line_with_its_fix(hub: LocalHub, tmp_path: Path) -> None:
    found = source(hub)
    hub.hefs.clear()
    with pytest.raises(ModelError, match=r"found answer 403; .*\(--hef FILE\), or none") as caught:
        fetch(found, tmp_path)
    assert found.address in str(caught.value)
