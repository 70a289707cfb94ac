"""A checkpoint becomes a bundle in the staging folder: what is told and refused on the way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from rigs.hub import LocalHub, local_hub
from rigs.models import SMALL_SHAPE, random_weights, sized, write_checkpoint

from appliance.convert.add import AddRequest, _published_hef, make_bundle, memory_needed
from appliance.convert.shapes import WhisperConfig, parameters
from appliance.convert.steps import ProgressDisplay, WorkInSteps
from appliance.errors import ConfigError, ModelError
from appliance.model.library import work_on

TINY = sized(384, (4, 4), 6, 51865, 1500, 448)
BASE = sized(512, (6, 6), 8, 51865, 1500, 448)
LARGE = sized(1280, (32, 32), 20, 51866, 1500, 448, n_mels=128)


@dataclass
class Watcher:
    """A ProgressDisplay that records its calls."""

    expected: dict[str, int] = field(default_factory=dict)
    begun: list[tuple[str, int | None]] = field(default_factory=list)
    came: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def expect(self, name: str, total: int) -> None:
        self.expected[name] = total

    def begin(self, name: str, done: int, total: int | None) -> None:
        self.begun.append((name, total))

    def advance(self, count: float) -> None:
        self.came.append(count)

    def note(self, line: str) -> None:
        self.notes.append(line)


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROOMSCRIBE_MODELS", str(tmp_path / "models"))
    return write_checkpoint(tmp_path / "home", SMALL_SHAPE, random_weights(SMALL_SHAPE, 7))


@pytest.fixture
def hub(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    with local_hub() as hub:
        hub.add_folder("somebody/home", checkpoint)
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        yield hub


@pytest.mark.parametrize(
    ("chip", "window_s", "words"),
    [("hailo8", 5.0, "of 5 s gets 16.1 %"), ("hailo8l", 5.0, "CPU 12.5 %"), ("hailo10h", 10.0, "")],
)
def test_hailos_encoder_is_taken_where_it_loses_no_words_and_for_a_folder_by_its_size(
    tmp_path: Path, chip: str, window_s: float, words: str
) -> None:
    encoder, why = _published_hef(AddRequest("base", hef="auto", chip_present=chip))
    assert (encoder is None, words in why) == (bool(words), True)
    folder = str(write_checkpoint(tmp_path / "mine", BASE, {}))
    encoder, why = _published_hef(AddRequest(folder, hef=chip))
    assert encoder and (encoder.window_s, why) == (window_s, "")
    assert "base-whisper-encoder" in encoder.address
    encoder, why = _published_hef(AddRequest(folder, hef="auto", chip_present=chip))
    assert encoder is None and (words or f"OpenAI's weights of base, --hef {chip} takes") in why
    other = str(write_checkpoint(tmp_path / "other", SMALL_SHAPE, {}))
    with pytest.raises(ConfigError, match=r"other with a window of 10 s.*publishes no such enc"):
        _published_hef(AddRequest(other, hef=chip))


def make(source: str | Path, watcher: ProgressDisplay, free: float = 64e9) -> list[str]:
    """The remarks on the way."""
    request = AddRequest(str(source), quantize="none")
    with work_on("home") as place:
        return list(make_bundle(request, place, progress=watcher, free=lambda: free))


def test_a_build_tells_how_far_it_is(checkpoint: Path) -> None:
    watcher, size = Watcher(), parameters(SMALL_SHAPE) / 2
    *_, short, last = make(checkpoint, watcher)
    assert last == "building home" and "positions, not Whisper's 1500" in short
    assert watcher.begun == [("building home", None)]
    assert watcher.expected == {"building home": int(size)}
    assert sum(watcher.came) == size and len(watcher.came) > 50
    assert watcher.notes == [
        f"{checkpoint}: building and verifying it takes about 1 s on a PC, more on a small board"
    ]


def test_a_download_and_its_build_have_one_total_from_the_weights_on(hub: LocalHub) -> None:
    shares = list[float]()

    class Shown(WorkInSteps):
        def advance(self, count: float) -> None:
            super().advance(count)
            if self.step in ("model.safetensors", "building home"):
                shares.append(self.done / self.total)

        def note(self, line: str) -> None: ...

    make("somebody/home", Shown())
    assert shares == sorted(shares), "it never goes back"
    assert shares[-1] == pytest.approx(1.0, abs=1e-5)


def test_too_little_memory_is_refused_before_the_weights_come(hub: LocalHub) -> None:
    line = (
        "somebody/home: expected 0.3 GB of memory to build and to verify it, found 0.1 GB free; "
        "stop other programs, add swap, or take --quantize int8"
    )
    with pytest.raises(ModelError) as caught:
        make("somebody/home", Watcher(), free=0.1e9)
    assert str(caught.value) == line
    assert hub.fetched("config.json") and not hub.fetched("model.safetensors")


def test_of_a_folder_too_little_memory_is_refused_at_once(checkpoint: Path) -> None:
    watcher = Watcher()
    with pytest.raises(ModelError, match=r"found 0\.1 GB free"):
        make(checkpoint, watcher, free=0.1e9)
    assert watcher.begun == []


def test_what_a_large_model_takes_is_told_once_and_before_the_weights_come(hub: LocalHub) -> None:
    files = hub.repositories["somebody/home"].files
    wide = json.loads(files["config.json"]) | {"encoder_layers": 200, "encoder_ffn_dim": 10_000}
    hub.add("somebody/wide", files | {"config.json": json.dumps(wide).encode()})
    watcher = Watcher()
    with pytest.raises(ModelError, match="missing"):
        make("somebody/wide", watcher)
    assert watcher.notes == [
        "somebody/wide: takes about 2.5 GB of memory to build and to verify it, 64.0 GB are free",
        "somebody/wide: building and verifying it takes about 23 s on a PC, more on a small board",
    ]


@pytest.mark.parametrize(
    ("config", "quantize", "measured_mb"),
    [
        (TINY, "int8", 280),
        (TINY, "none", 359),
        (LARGE, "int8", 1983),
        (LARGE, "none", 6574),
    ],
)
def test_the_estimate_is_close_above_what_was_measured(
    config: WhisperConfig, quantize: str, measured_mb: float
) -> None:
    assert measured_mb <= memory_needed(config, quantize) / 1e6 < 1.3 * measured_mb
