"""Which of a few languages is spoken is found out by one step, with what the room spoke last."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from rigs.steps import logits_of
from rigs.windows import a_window

from appliance.config import DecoderSettings, EncoderSettings, ModelSettings, Settings
from appliance.errors import ConfigError
from appliance.infer.decoder import Decoder
from appliance.infer.languages import (
    ROOMS,
    STAYS_PROBABILITY,
    Languages,
    choose_languages,
    language_tokens,
)
from appliance.infer.opening import open_transcriber
from appliance.infer.request import Request
from appliance.infer.tokenizer import Tokenizer
from appliance.infer.transcriber import Encoded
from appliance.model.bundle import VOCABULARY_FILE, Bundle, enter_files, load_bundle


@pytest.fixture(scope="module")
def two(bundle_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A model of two languages, with random weights."""
    folder = tmp_path_factory.mktemp("two") / "two"
    shutil.copytree(bundle_folder, folder)
    file = folder / VOCABULARY_FILE
    file.write_text(file.read_text().replace("<|translate|>", "<|de|>"))
    enter_files(folder, [VOCABULARY_FILE], languages=["de", "en"])
    return load_bundle(folder)


@pytest.fixture(scope="module")
def tokenizer(two: Bundle) -> Tokenizer:
    return Tokenizer.open(two)


def sounds(bundle: Bundle, count: int = 12) -> list[NDArray[np.float32]]:
    rng = np.random.default_rng(3)
    shape = bundle.positions, bundle.d_model
    return [rng.uniform(-2, 2, shape).astype(np.float32) for _ in range(count)]


def test_the_likeliest_language_is_chosen_and_the_last_one_is_likelier() -> None:
    languages = Languages({"de": 1, "en": 3})
    logits = np.array([9.0, 1.0, 9.0, 1.5], np.float32)
    name, probability = languages.choose(logits)
    assert name == "en" and probability == pytest.approx(1 / (1 + math.exp(-0.5)))
    name, probability = languages.choose(logits, "de")
    odds = STAYS_PROBABILITY * math.exp(1.0), (1 - STAYS_PROBABILITY) * math.exp(1.5)
    assert name == "de" and probability == pytest.approx(odds[0] / sum(odds))
    logits[3] = 4.0
    assert languages.choose(logits, "de")[0] == "en"
    assert languages.choose(logits, "fr") == languages.choose(logits)
    assert Languages({"de": 1}).choose(logits)[0] == "de"


def test_a_decode_is_that_of_a_model_told_the_language(two: Bundle, tokenizer: Tokenizer) -> None:
    finding = Decoder(two, 1)
    finding.languages, _ = choose_languages(two, tokenizer, "auto", ("de", "en"))
    german = tokenizer.specials["<|de|>"]
    english = tokenizer.specials["<|en|>"]
    prompts = {
        name: tuple(token if one == english else one for one in two.prompt)
        for name, token in (("de", german), ("en", english))
    }
    told = {name: Decoder(replace(two, prompt=prompts[name]), 1) for name in prompts}
    found = set()
    for states in sounds(two):
        row = logits_of(told["en"], states, two.prompt[:1])[0]
        expected = "de" if row[german] > row[english] else "en"
        decoded = finding.decode(states, 1.0)
        assert decoded.language == expected
        assert decoded.language_probability == pytest.approx(
            1 / (1 + math.exp(-abs(float(row[german] - row[english])))), abs=1e-3
        )
        assert decoded.tokens == told[expected].decode(states, 1.0).tokens
        assert decoded.logprobs == told[expected].decode(states, 1.0).logprobs
        found.add(expected)
    assert found == {"de", "en"}


def test_a_named_language_holds_for_one_decode(two: Bundle, tokenizer: Tokenizer) -> None:
    decoder, english = Decoder(two, 1), Decoder(two, 1)
    decoder.known_languages = language_tokens(two, tokenizer)
    german = tuple(
        decoder.known_languages["de"] if one == decoder.known_languages["en"] else one
        for one in two.prompt
    )
    states = sounds(two)[0]
    found = decoder.decode(states, 1.0, only="de")
    assert found.language == "de" and math.isnan(found.language_probability)
    assert found.tokens == Decoder(replace(two, prompt=german), 1).decode(states, 1.0).tokens
    for unknown in ("", "fr"):
        after = decoder.decode(states, 1.0, only=unknown)
        assert (after.language, after.tokens) == ("", english.decode(states, 1.0).tokens)


def test_nothing_is_found_out_unless_it_is_wanted(two: Bundle, tokenizer: Tokenizer) -> None:
    decoder = Decoder(two, 1)
    for wanted in ("", "en"):
        decoder.languages, first = choose_languages(two, tokenizer, wanted, ("de",))
        assert (decoder.languages, first) == (None, "en")
    decoded = decoder.decode(sounds(two)[0], 1.0)
    assert decoded.language == "" and math.isnan(decoded.language_probability)


@pytest.mark.parametrize(
    ("language", "allowed", "message"),
    [
        (
            "auto",
            ("de", "xx"),
            "languages: expected languages of model random (de, en), found 'xx'",
        ),
        ("fr", (), "language: expected languages of model random (de, en), found 'fr'"),
    ],
)
def test_a_language_that_the_model_lacks_is_refused_in_one_line(
    two: Bundle, tokenizer: Tokenizer, language: str, allowed: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        choose_languages(two, tokenizer, language, allowed)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_model_of_one_language_says_so(bundle: Bundle) -> None:
    with pytest.raises(ConfigError, match="expected a model of several languages, found random"):
        open_transcriber(Settings(decoder=DecoderSettings(language="auto")), bundle=bundle)


def encoded(states: NDArray[np.float32], room: str | None) -> Encoded:
    """States of a second of sound."""
    return Encoded(Request(a_window(seconds=1.0), room=room), states, "cpu", 0.0)


def test_each_room_goes_on_in_its_own_language(two: Bundle) -> None:
    settings = Settings(
        model=ModelSettings(bundle=str(two.folder)),
        decoder=DecoderSettings(language="auto", languages=("de", "en"), threads=1),
        encoder=EncoderSettings(threads=1),
    )
    with open_transcriber(settings) as transcriber:
        assert (transcriber.bundle.language, transcriber.bundle.languages) == ("", ("de", "en"))

        def say(states: NDArray[np.float32], room: str | None) -> tuple[str, float]:
            heard = transcriber.decode(encoded(states, room))
            assert heard.text
            return heard.language, heard.language_probability

        first = [(*say(states, None), states) for states in sounds(two)]
        spoken, least, close = min(first, key=lambda one: one[1])
        other, _, sure = next(one for one in first if one[0] != spoken and one[1] > least)
        assert 0.5 < least < STAYS_PROBABILITY
        assert say(sure, "hall")[0] == other
        assert say(close, "kitchen") == (spoken, least)
        assert say(close, "hall")[0] == other
        assert say(close, "kitchen")[0] == spoken
        heard = transcriber.decode(encoded(close, None))
        noise = replace(heard, no_speech_prob=0.9, avg_logprob=-0.9)
        transcriber._rooms.remember("hall", noise)
        assert say(close, "hall")[0] == other, "noise changes no language"
        assert say(close, None) == (spoken, least)
        for number in range(ROOMS + 2):
            say(close, f"room {number}")
        assert len(transcriber._rooms) == ROOMS


def test_one_language_is_spoken_from_the_first_window_on(two: Bundle) -> None:
    settings = Settings(
        model=ModelSettings(bundle=str(two.folder)),
        decoder=DecoderSettings(language="de", threads=1),
        encoder=EncoderSettings(threads=1),
    )
    with open_transcriber(settings) as transcriber:
        assert (transcriber.bundle.language, transcriber.bundle.languages) == ("de", ("de",))
        heard = transcriber.decode(encoded(sounds(two)[0], None))
    assert heard.language == "de" and math.isnan(heard.language_probability)
    specials = Tokenizer.open(two).specials
    german = tuple(specials["<|de|>"] if one == specials["<|en|>"] else one for one in two.prompt)
    told = [Decoder(replace(two, prompt=one), 1) for one in (german, two.prompt)]
    expected, english = (one.decode(sounds(two)[0], 1.0).avg_logprob for one in told)
    assert heard.avg_logprob == expected != english


def test_codes_of_languages_are_checked_where_they_are_written(bundle_folder: Path) -> None:
    from appliance.config import parse

    assert json.loads((bundle_folder / "bundle.json").read_text())["languages"] == ["en"]
    for line in ('language = "German"', 'languages = ["Deutsch"]', 'languages = "de"'):
        with pytest.raises(ConfigError, match=r"decoder\.language"):
            parse(f"[decoder]\n{line}\n", "here")
