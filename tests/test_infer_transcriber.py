"""Windows go in, transcriptions come out, sized by the bundle."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from appliance.errors import ConfigError, ModelError
from appliance.infer.guards import compression_ratio
from appliance.infer.transcriber import Transcriber, open_transcriber
from appliance.model.build import Recipe, build_bundle
from appliance.records import SAMPLE_RATE, Window
from appliance.settings import DecoderSettings, EncoderSettings, ModelSettings, Settings


def settings(folder: Path, **decoder: float) -> Settings:
    return Settings(
        model=ModelSettings(bundle=str(folder)),
        encoder=EncoderSettings(threads=1),
        decoder=DecoderSettings(threads=1, **decoder),  # type: ignore[arg-type]
    )


def window(seconds: float, seed: int = 1) -> Window:
    rng = np.random.Generator(np.random.PCG64(seed))
    samples = (rng.random(round(seconds * SAMPLE_RATE)) * 20_000 - 10_000).astype(np.int16)
    return Window("utterance", 1, True, samples, 0.0, seconds, seconds)


@pytest.fixture(scope="module")
def transcriber(bundle_folder: Path) -> Transcriber:
    return open_transcriber(settings(bundle_folder))


def test_a_window_becomes_a_transcription(transcriber: Transcriber) -> None:
    result = transcriber.transcribe(window(3.0))
    assert result.text and result.text == result.text.strip() and len(result.tokens) > 3
    assert result.language == "en" and result.encoder == transcriber.encoder.name == "cpu"
    assert result.avg_logprob < 0 and 0 < result.no_speech_prob < 1
    assert result.compression_ratio == compression_ratio(result.text)
    assert result.encode_ms > 0 and result.decode_ms > 0


def test_the_demonstration_model_is_marked_on_every_transcription(
    transcriber: Transcriber, checkpoint_folder: Path, tmp_path: Path
) -> None:
    assert "demo_model" in transcriber.transcribe(window(1.0)).flags
    build_bundle(checkpoint_folder, tmp_path / "real", Recipe("real", 10.0, demo_model=False))
    real = open_transcriber(settings(tmp_path / "real"))
    assert "demo_model" not in real.transcribe(window(1.0)).flags


def test_a_decode_stopped_by_the_limit_is_marked(bundle_folder: Path) -> None:
    eager = open_transcriber(settings(bundle_folder, eot_boost=5.0))
    plain = open_transcriber(settings(bundle_folder))
    for seed in range(5):
        for result in (eager.transcribe(window(1.0, seed)), plain.transcribe(window(1.0, seed))):
            assert ("token_limit" in result.flags) == (not result.ended)
    assert not plain.transcribe(window(1.0)).ended


def test_the_same_window_gives_the_same_transcription(transcriber: Transcriber) -> None:
    first, _, again = (transcriber.transcribe(window(2.0, seed)) for seed in (1, 2, 1))
    assert replace(first, encode_ms=0, decode_ms=0) == replace(again, encode_ms=0, decode_ms=0)


def test_different_sounds_give_different_transcriptions(transcriber: Transcriber) -> None:
    assert transcriber.transcribe(window(2.0)).tokens != transcriber.transcribe(window(9.0)).tokens


def test_silence_behind_a_short_window_changes_nothing_but_the_limit(
    transcriber: Transcriber,
) -> None:
    short = window(2.0)
    long = replace(short, samples=np.pad(short.samples, (0, 8 * SAMPLE_RATE)))
    tokens = transcriber.transcribe(short).tokens
    assert transcriber.transcribe(long).tokens[: len(tokens)] == tokens


def test_a_window_of_the_models_whole_length_is_taken_and_a_longer_one_refused(
    transcriber: Transcriber,
) -> None:
    assert transcriber.transcribe(window(10.0)).tokens
    with pytest.raises(ValueError, match=r"at most 10 s, found 10\.01 s"):
        transcriber.transcribe(window(10.01))


def test_warming_up_leaves_no_trace(bundle_folder: Path, transcriber: Transcriber) -> None:
    warm = open_transcriber(settings(bundle_folder))
    warm.warm_up()
    assert warm.transcribe(window(1.0)).tokens == transcriber.transcribe(window(1.0)).tokens


def test_the_shortest_and_the_emptiest_windows_do_no_harm(transcriber: Transcriber) -> None:
    silence = np.zeros(SAMPLE_RATE, np.int16)
    for samples in (silence, silence[:1], silence[:0], silence - 32767):
        result = transcriber.transcribe(replace(window(1.0), samples=samples))
        assert np.isfinite(result.avg_logprob)


@pytest.mark.parametrize("seconds", [2.0, 5.0, 9.98])
def test_the_length_of_the_window_comes_from_the_bundle(
    checkpoint_folder: Path, tmp_path: Path, seconds: float
) -> None:
    build_bundle(checkpoint_folder, tmp_path / "other", Recipe("other", seconds))
    other = open_transcriber(settings(tmp_path / "other"))
    assert other.bundle.frames == round(seconds * 100)
    assert other.transcribe(window(seconds)).tokens
    with pytest.raises(ValueError, match=f"at most {seconds:g} s"):
        other.transcribe(window(seconds + 0.1))


def test_a_damaged_bundle_or_setting_stops_the_opening(bundle_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="positions"):
        open_transcriber(settings(bundle_folder, positions=100))
    broken = Path(shutil.copytree(bundle_folder, tmp_path / "broken"))
    (broken / "vocabulary.json").write_text("{}")
    with pytest.raises(ModelError, match=r"vocabulary\.json"):
        open_transcriber(settings(broken))
