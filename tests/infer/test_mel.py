"""The mel: against published values where they are at hand, and by its properties everywhere."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from rigs.checkout import shared

from appliance.errors import ModelError
from appliance.infer.mel import log_mel, mel_filters
from appliance.records import SAMPLE_RATE


def tone(hz: float, seconds: float = 1.0, amplitude: float = 0.5) -> NDArray[np.float32]:
    moments = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    return (amplitude * np.sin(2 * np.pi * hz * moments)).astype(np.float32)


def noise(seconds: float, seed: int = 1) -> NDArray[np.float32]:
    rng = np.random.Generator(np.random.PCG64(seed))
    return (rng.random(int(seconds * SAMPLE_RATE)) - 0.5).astype(np.float32)


@pytest.fixture
def published() -> Path:
    """The published reference data, which is not part of the repository."""
    return shared("data/whisper")


def test_the_mel_of_a_published_recording_equals_the_published_values(published: Path) -> None:
    values = json.loads((published / "expected_reference_values.json").read_text())[
        "log_mel_1x80x3000"
    ]["values"]
    audio = np.load(published / "ctranslate2" / "mr_quilter.npy").astype(np.float32)
    mel = log_mel(audio, 80, 3000)
    assert np.abs(mel[: len(values), 0] - values).max() < 1e-4


@pytest.mark.parametrize("n_mels", [80, 128])
def test_the_filters_equal_whispers_own(published: Path, n_mels: int) -> None:
    with np.load(published / "openai" / "mel_filters.npz") as file:
        expected = file[f"mel_{n_mels}"]
    assert np.abs(mel_filters(n_mels).T - expected).max() < 1e-7


@pytest.mark.parametrize("n_mels", [40, 80, 128])
@pytest.mark.parametrize("hz", [300.0, 1000.0, 3000.0, 6000.0])
def test_a_tone_is_loudest_in_the_filter_that_covers_it(n_mels: int, hz: float) -> None:
    mel = log_mel(tone(hz), n_mels)
    bins = np.linspace(0, SAMPLE_RATE / 2, 201)
    weights = mel_filters(n_mels)[np.abs(bins - hz).argmin()]
    loudest = mel[10:-10].argmax(axis=1)
    assert (weights[loudest] > 0).all()


def test_a_short_sound_is_padded_with_silence_and_a_long_one_cut() -> None:
    sound = noise(1.0)
    padded = log_mel(sound, 80, 300)
    longer = np.concatenate([sound, np.zeros(32_000, np.float32)])
    assert padded.shape == (300, 80)
    assert np.array_equal(padded, log_mel(longer, 80, 300))
    assert np.array_equal(log_mel(sound, 80, 50), log_mel(sound[:8000], 80, 50))


def test_the_mel_is_what_the_encoder_takes() -> None:
    mel = log_mel(noise(0.5), 80)
    assert mel.dtype == np.float32 and mel.flags.c_contiguous and mel.shape == (50, 80)


def test_a_window_of_less_than_two_frames_is_refused() -> None:
    with pytest.raises(ModelError, match="at least 2 mel frames"):
        log_mel(np.zeros(200, np.float32))


@pytest.mark.parametrize("frames", [2, 31, 32, 33, 1000])
def test_blocks_of_frames_change_no_bit(frames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = noise(frames / 100)
    in_blocks = log_mel(sound, 80, frames)
    monkeypatch.setattr("appliance.infer.mel.BLOCK", frames)
    assert in_blocks.tobytes() == log_mel(sound, 80, frames).tobytes()


@pytest.mark.parametrize("length", [0, 1, 199, 200, 201, 359, 360, 361, 47_999, 159_801])
def test_the_end_of_a_short_sound_is_not_computed_and_is_the_same(length: int) -> None:
    sound = noise(10.0)[:length]
    padded = np.concatenate((sound, np.zeros(160_000 - length, np.float32)))
    assert np.array_equal(log_mel(sound, 80, 1000), log_mel(padded, 80))
