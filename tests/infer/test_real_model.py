"""Whisper tiny.en, the built-in model, beside what others published about it and CTranslate2.

Published ids and probabilities are those of weights in float32 and of a window of 30 s: for them a
bundle is made of the weights that scripts/setup.sh fetched. The recordings are not ours to ship.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rigs.checkout import shared
from rigs.needs import module, needs_model
from rigs.recordings import manifest
from rigs.sounds import read, to_int16
from rigs.weights import find_weights
from rigs.word_errors import word_errors, words

from appliance.config import (
    AssistSettings,
    DecoderSettings,
    EncoderSettings,
    PhrasesSettings,
    Settings,
)
from appliance.convert.build import Recipe, build_bundle
from appliance.infer.decoder import Decoded, Decoder
from appliance.infer.mel import log_mel
from appliance.infer.network import TEXTS
from appliance.infer.opening import open_transcriber
from appliance.infer.tokenizer import Tokenizer
from appliance.infer.transcriber import Transcriber
from appliance.lab.words import ProductRecogniser, Recorded, count_words, read_recordings
from appliance.model import BUILT_IN, load_bundle
from appliance.records import FULL_SCALE, HOP, Samples, States, Transcription, Window

SETTINGS = replace(
    Settings(),
    encoder=EncoderSettings(backend="cpu"),
    decoder=DecoderSettings(),
    phrases=PhrasesSettings(file=""),
)
MOST_ERRORS = 20.0
"""Percent. OpenAI publishes about 15 on all of LibriSpeech's test-other, with whole recordings."""
IDENTICAL = 6
RECORDINGS = ("mr_quilter", "jfk")
"""LibriSpeech 1272-128104-0000 and "jfk". Published numbers come from the tests of transformers
(tests/models/whisper/; Apache-2.0) and of CTranslate2 (python/tests/test_transformers.py; MIT)."""
TINY_EN_IDS = (
    50257, 50362, 1770, 13, 2264, 346, 353, 318, 262, 46329,
    286, 262, 3504, 6097, 11, 290, 356, 389, 9675, 284,
)  # fmt: skip
"""What tiny.en writes greedily for mr_quilter, prompt included, up to 20 tokens."""
TINY_EN_TEXTS = {
    "mr_quilter": (
        " Mr. Quilter is the apostle of the middle classes, and we are glad to welcome his gospel."
    ),
    "jfk": (
        " And so, my fellow Americans ask not what your country can do for you"
        " ask what you can do for your country."
    ),
}
"""Of a beam search, so punctuation may differ from the greedy text."""
TINY_EN_NO_SPEECH = {"mr_quilter": 0.02644546702504158, "jfk": 0.062380101531744}
NO_SPEECH_ATOL = {"mr_quilter": 1e-4, "jfk": 1e-3}


@pytest.fixture(scope="module")
def built_in() -> Transcriber:
    """The model as it is installed: windows of 10 s, INT8."""
    return open_transcriber(SETTINGS, bundle=load_bundle(BUILT_IN))


@pytest.fixture(scope="session")
def weights() -> Path:
    if (folder := find_weights()) is None:
        pytest.skip("no weights of tiny.en: run scripts/test, which fetches them")
    return folder


@pytest.fixture(scope="module")
def exact(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Transcriber:
    """The same weights as published: windows of 30 s, float32."""
    folder = tmp_path_factory.mktemp("real") / "exact"
    build_bundle(weights, folder, Recipe("exact", 30.0))
    return open_transcriber(SETTINGS, bundle=load_bundle(folder))


def recording(name: str) -> Samples:
    """A published recording, (n,) int16."""
    waveform = np.load(shared(f"data/whisper/ctranslate2/{name}.npy"))
    samples: Samples = (waveform * FULL_SCALE).astype(np.int16)
    return samples


def transcribe(transcriber: Transcriber, samples: Samples) -> Transcription:
    return transcriber.transcribe(Window("", 1, True, samples, 0.0, 0.0, 0.0))


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_transcripts_are_the_published_ones_word_for_word(
    exact: Transcriber, name: str
) -> None:
    assert words(transcribe(exact, recording(name)).text) == words(TINY_EN_TEXTS[name])


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_no_speech_probabilities_are_the_published_ones(exact: Transcriber, name: str) -> None:
    """Whose mels end with the sound, with zeros behind."""
    sound = recording(name).astype(np.float32) / FULL_SCALE
    frames = len(sound) // HOP
    mel = np.zeros((3000, 80), np.float32)
    mel[:frames] = log_mel(sound, 80, frames)
    decoder = Decoder(exact.bundle, 1)
    found = decoder.decode(exact.encoder.encode(mel), 30.0).no_speech_prob
    assert found == pytest.approx(TINY_EN_NO_SPEECH[name], abs=NO_SPEECH_ATOL[name])


@needs_model
def test_the_greedy_ids_are_the_published_ones(exact: Transcriber) -> None:
    found = transcribe(exact, recording("mr_quilter")).tokens
    assert (*exact.bundle.prompt, *found)[: len(TINY_EN_IDS)] == TINY_EN_IDS


@needs_model
@pytest.mark.timeout(300)
def test_ctranslate2_in_float32_writes_the_same_tokens(weights: Path, exact: Transcriber) -> None:
    """`scripts/measure model` compares all recordings."""
    module("ctranslate2")
    from figures.model import TokenComparison

    sounds = [one.samples for one in read_recordings(shared("data/audio"), IDENTICAL)]
    pair = TokenComparison(weights, exact.bundle)
    searched = 0
    for sound in sounds:
        greedy, theirs = pair.tokens(sound)
        assert greedy == theirs
        assert greedy, "a recording of speech has a text"
        best, theirs = pair.tokens(sound, TEXTS)
        assert best == theirs
        searched += best != greedy
    assert searched, "a beam finds some texts that a greedy decode does not"


@needs_model
def test_the_built_in_model_hears_the_published_text(built_in: Transcriber) -> None:
    result = transcribe(built_in, recording("mr_quilter"))
    errors, _ = word_errors(TINY_EN_TEXTS["mr_quilter"], result.text)
    assert errors <= 1, result.text
    assert result.ended and result.avg_logprob > -0.5, result


@needs_model
def test_the_built_in_model_understands_readers_nearly_as_well_as_published(
    built_in: Transcriber,
) -> None:
    for name in ("jiwer", "whisper_normalizer"):
        module(name)
    recordings = [
        Recorded(to_int16(read(file)), row["transcript"])
        for file, row in manifest(shared("data/audio"))
        if row["path"].startswith("librispeech_test_other/") and row["transcript"]
    ]
    recogniser = ProductRecogniser(built_in)
    found = count_words([recogniser.hear(one.samples) for one in recordings], recordings)
    assert found.wer <= MOST_ERRORS, found
    assert found.loops <= 1, found


def test_names_are_told_from_words_that_the_model_knows(built_in: Transcriber) -> None:
    words = ("nursery", "sixty", "seller", "kitchen", "Priscilla", "EcoBee", "Stehlampe", "Gideon")
    assert [word for word in words if not built_in.is_common(word)] == list(words[4:])


class Hasty(Decoder):
    """Ends each text after the address phrase, as Whisper sometimes does."""

    beginning: tuple[int, ...] = ()

    def decode(self, states: States, duration_s: float, *_: Any, **keys: Any) -> Decoded:
        found = super().decode(states, duration_s)
        return replace(found, tokens=self.beginning, logprobs=(-0.1,) * len(self.beginning))


@needs_model
@pytest.mark.parametrize(
    ("speech_s", "text"), [(1.7, "Computer."), (5.0, "Mr. Quilter is the apostle")]
)
def test_a_command_that_was_cut_off_behind_the_address_comes_back(
    speech_s: float, text: str
) -> None:
    bundle = load_bundle(BUILT_IN)
    settings = replace(SETTINGS, assist=AssistSettings(phrase="computer"))
    transcriber = open_transcriber(settings, bundle=bundle)
    hasty = Hasty(bundle, threads=1)
    hasty.beginning = Tokenizer.open(bundle).tokenize(" Computer.")
    transcriber.decoder = hasty
    sound = Window("", 1, True, recording("mr_quilter"), 0.0, speech_s, 0.0)
    found = transcriber.transcribe(sound)
    assert found.text.startswith("Computer")
    assert text in found.text and 0 < found.confidence < 1
