"""A checkpoint becomes a bundle in the staging folder: what is told and refused on the way."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from rigs.hub import LocalHub, local_hub
from rigs.models import SMALL_SHAPE, random_weights, sized, write_checkpoint

from appliance.convert.add import AddRequest, _choose_hef, make_bundle, memory_needed
from appliance.convert.progress import ProgressDisplay
from appliance.convert.shapes import WhisperConfig
from appliance.errors import ConfigError, ModelError
from appliance.model.library import work_on

TINY = sized(384, (4, 4), 6, 51865, 1500, 448)
BASE = sized(512, (6, 6), 8, 51865, 1500, 448)
LARGE = sized(1280, (32, 32), 20, 51866, 1500, 448, n_mels=128)


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
    ("chip", "taken"), [("hailo8", False), ("hailo8l", False), ("hailo10h", True)]
)
def test_hailos_encoder_is_taken_if_its_window_and_the_sizes_fit(
    checkpoint: Path, tmp_path: Path, chip: str, taken: bool
) -> None:
    encoder, why = _choose_hef(AddRequest("base", hef="auto", chip_present=chip))
    assert (encoder is not None, why == "") == (taken, taken)
    encoder, why = _choose_hef(AddRequest("base", hef=chip))
    assert encoder and (encoder.window_s, why) == (10.0 if taken else 5.0, "")
    folder = str(write_checkpoint(tmp_path / "mine", BASE, {}))
    assert _choose_hef(AddRequest(folder, hef=chip)) == (encoder, "")
    found, why = _choose_hef(AddRequest(folder, hef="auto", chip_present=chip))
    assert found is None
    assert (f"OpenAI's weights of base, --hef {chip} takes" in why) == taken
    with pytest.raises(ConfigError, match="publishes no such encoder"):
        _choose_hef(AddRequest(str(checkpoint), hef=chip))


def make(source: str | Path, free: float = 64e9) -> list[str]:
    """The remarks on the way."""
    request = AddRequest(str(source), quantize="none")
    remarks = list[str]()
    with work_on("home") as place:
        make_bundle(
            request, place, progress=ProgressDisplay(), say=remarks.append, free=lambda: free
        )
    return remarks


def test_a_download_and_its_build_have_one_total_from_the_weights_on(hub: LocalHub) -> None:
    shares = list[float]()

    class Shown(ProgressDisplay):
        def show(self) -> None:
            if self.step in ("model.safetensors", "building home"):
                shares.append(self.done / self.total)

    with work_on("home") as place:
        make_bundle(AddRequest("somebody/home"), place, progress=Shown(), say=list[str]().append)
    assert shares == sorted(shares), "it never goes back"
    assert shares[-1] == pytest.approx(1.0, abs=1e-5)


def test_too_little_memory_is_refused_before_the_weights_come(hub: LocalHub) -> None:
    line = (
        "somebody/home: expected 0.3 GB of memory to build and to verify it, found 0.1 GB free; "
        "stop other programs, add swap, or take --quantize int8"
    )
    with pytest.raises(ModelError) as caught:
        make("somebody/home", free=0.1e9)
    assert str(caught.value) == line
    assert hub.fetched("config.json") and not hub.fetched("model.safetensors")


def test_of_a_folder_too_little_memory_is_refused_at_once(checkpoint: Path) -> None:
    with pytest.raises(ModelError, match=r"found 0\.1 GB free"):
        make(checkpoint, free=0.1e9)


@pytest.mark.parametrize(
    ("config", "quantize", "measured_mb"),
    [(TINY, "int8", 280), (TINY, "none", 359), (LARGE, "int8", 1983), (LARGE, "none", 6574)],
)
def test_the_estimate_is_close_above_what_was_measured(
    config: WhisperConfig, quantize: str, measured_mb: float
) -> None:
    assert measured_mb <= memory_needed(config, quantize) / 1e6 < 1.3 * measured_mb
