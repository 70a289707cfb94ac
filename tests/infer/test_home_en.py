"""The embedded model is what its card says: small, true to its test set, silent in silence."""

from __future__ import annotations

import numpy as np
import pytest
import soundfile
from figures.model import Examination, coloured, quiet, synthetic_noises
from rigs.checkout import HOME_EN
from rigs.recordings import sentences
from rigs.word_errors import word_error_rate

from appliance.config import Settings
from appliance.model.bundle import load_bundle
from appliance.records import SAMPLE_RATE

MEGABYTES = 1e6


@pytest.fixture(scope="module")
def examination() -> Examination:
    return Examination(Settings())


def test_the_bundle_is_under_24_mb_and_says_that_it_is_for_demonstration() -> None:
    bundle = load_bundle("home-en")
    assert sum(file.stat().st_size for file in HOME_EN.iterdir()) < 24 * MEGABYTES
    assert bundle.demo_model
    card = (HOME_EN / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert all(word in card for word in ("Licence", "Voices", "WER", "must not be used"))


def test_the_test_set_is_40_sentences_of_small_files_that_say_what_their_table_says() -> None:
    assert len(sentences()) == 40
    assert len({one.text for one in sentences()}) == 40
    for one in sentences():
        assert soundfile.info(one.file).samplerate == SAMPLE_RATE
        assert one.file.stat().st_size < 100_000


def test_unseen_sentences_of_unseen_voices_are_heard_through_the_whole_path(
    examination: Examination,
) -> None:
    heard = [examination.kept(sound) for sound in examination.sounds]
    assert word_error_rate(examination.spoken, heard) <= WER_LIMIT


def test_end_of_text_always_comes(examination: Examination) -> None:
    rng = np.random.default_rng(1)
    noise = [coloured(rng, 10 * SAMPLE_RATE, slope) * np.float32(0.1) for slope in (0.0, 1.0, 2.0)]
    for sound in (*examination.sounds[:10], *noise, quiet(rng, 10)):
        assert examination.window(sound, 0).ended


def test_silence_and_noise_give_no_text(examination: Examination) -> None:
    windows = synthetic_noises()
    silent = [name for name, sound in windows if not examination.kept(sound)]
    assert len(silent) >= 0.95 * len(windows)


WER_LIMIT = 15.0
"""Percent. The card's figure and room for other builds of onnxruntime."""
