"""Words of a home come into a text where the sound allows it, and nowhere else; whatever others
call a name is bounded, and told in a line."""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from rigs.checkout import SPEECH
from rigs.models import SMALL_SHAPE, random_weights, write_checkpoint
from rigs.needs import needs_model
from rigs.recordings import heard_right, window_of
from rigs.records import differences
from rigs.steps import logits_of, start
from rigs.word_errors import same_words

from appliance.config import (
    DecoderSettings,
    EncoderSettings,
    PhrasesSettings,
    Settings,
    VocabularySettings,
)
from appliance.convert.build import Recipe, build_bundle
from appliance.errors import ConfigError
from appliance.infer.decoder import Decoded, Decoder
from appliance.infer.opening import open_transcriber
from appliance.infer.request import Request
from appliance.infer.tokenizer import Tokenizer
from appliance.infer.transcriber import Transcriber
from appliance.infer.vocabulary import (
    CREDIT,
    LEAST,
    TRIALS,
    UNLIKE,
    Rescorer,
    Span,
    Vocabulary,
    Words,
    likeness,
    open_vocabulary,
    sound,
)
from appliance.model.bundle import Bundle, load_bundle
from appliance.records import Transcription

QUICK = Settings(decoder=DecoderSettings(threads=1), encoder=EncoderSettings(threads=1))


@pytest.fixture(scope="module")
def tokenizer(built_in: Bundle) -> Tokenizer:
    return Tokenizer.open(built_in)


class Ear:
    """A decoder that finds each text as likely as it is told; in place of `Decoder`."""

    capacity = 112

    def __init__(self, tokenizer: Tokenizer, likely: dict[str, float]) -> None:
        self._tokenizer, self._likely = tokenizer, likely
        self.asked: list[str] = []

    def logprobs(self, tokens: Sequence[int], begin: int) -> tuple[float, ...]:
        text = self._tokenizer.detokenize(tokens).strip()
        self.asked.append(text)
        rest = len(tokens) - begin
        return (*[UNSURE] * rest, self._likely.get(text, -1000.0) - rest * UNSURE)


UNSURE = -0.5
"""Natural log-probability of a token that the model doubts."""


def written(
    tokenizer: Tokenizer, text: str, logprob: float = -3.0, each: float = UNSURE
) -> Decoded:
    tokens = tokenizer.tokenize(f" {text}")
    return Decoded(tokens, (*[each] * len(tokens), logprob), 0.0, ended=True)


def looked(
    built_in: Bundle,
    tokenizer: Tokenizer,
    words: Sequence[str],
    text: str,
    likely: dict[str, float],
) -> tuple[str, Decoded, Ear]:
    """What becomes of a text, and which others were asked about."""
    vocabulary = Vocabulary(words, lambda _: True)
    ear = Ear(tokenizer, likely)
    rescorer = Rescorer(built_in, tokenizer, cast(Decoder, ear), vocabulary, 1.0)
    result = rescorer.rescore(written(tokenizer, text))
    return tokenizer.detokenize(result.tokens).strip(), result, ear


def test_letters_that_are_said_alike_are_alike() -> None:
    assert sound("Philippa") == sound("filipa")
    assert sound("Zoë") == "soe"
    assert likeness(sound("wind stone"), sound("Winston")) > 0.7
    assert likeness(sound("castle"), sound("kitchen")) < LEAST
    assert likeness("", "") == 1.0 and likeness("abc", "") == 0.0


def test_the_likest_words_are_found_among_a_thousand() -> None:
    others = [f"{a}{b}{c}" for a in "bdfgklmnpr" for b in "aeiou" for c in "bdfgklmnprstvzhjqwxy"]
    words = Words([*others[:999], "Winston"])
    found = words.near([Span(0, 2, "wind stone"), Span(0, 1, "wind"), Span(1, 2, "stone")])
    assert (found[0].word, found[0].span.text) == ("Winston", "wind stone")
    assert Words(()).near([Span(0, 1, "a")]) == Words(["a"]).near([]) == []


def test_a_word_comes_in_when_the_sound_allows_it_and_not_else(
    built_in: Bundle, tokenizer: Tokenizer
) -> None:
    text, better = "tell wind stone to come", "tell Winston to come"
    credit = CREDIT * (likeness(sound("wind stone"), sound("winston")) - UNLIKE)
    rest = sum(written(tokenizer, text).logprobs[len(tokenizer.tokenize(" tell")) :])
    near, far = rest - credit + 0.1, rest - credit - 0.1
    assert looked(built_in, tokenizer, ["Winston"], text, {better: near})[0] == better
    assert looked(built_in, tokenizer, ["Winston"], text, {better: far})[0] == text
    assert looked(built_in, tokenizer, ["Beatrix"], text, {better: near})[2].asked == []


def test_no_credit_is_in_the_log_probabilities(built_in: Bundle, tokenizer: Tokenizer) -> None:
    text, better = "tell wind stone to come", "tell Winston to come"
    _, result, _ = looked(built_in, tokenizer, ["Winston"], text, {better: -7.0})
    before = UNSURE * len(tokenizer.tokenize(" tell"))
    assert sum(result.logprobs) == pytest.approx(before - 7.0)
    assert len(result.logprobs) == len(result.tokens) + 1


def test_what_is_a_word_of_the_home_stays_and_more_than_one_comes_in(
    built_in: Bundle, tokenizer: Tokenizer
) -> None:
    text = "tell Gideon and wind stone to call bee tricks"
    one = "tell Gideon and Winston to call bee tricks"
    both = "tell Gideon and Winston to call Beatrix"
    words = ["Gideon", "Gibson", "Winston", "Beatrix"]
    likely = {one: -6.0, both: -7.0, text.replace("Gideon", "Gibson"): 0.0}
    assert looked(built_in, tokenizer, words, text, likely)[0] == both


def test_a_word_that_was_heard_well_is_not_replaced_by_a_short_name(
    built_in: Bundle, tokenizer: Tokenizer
) -> None:
    text, other = "set the light to red", "set the light Tom red"
    ear = Ear(tokenizer, {other: -4.0})
    vocabulary = Vocabulary(["Tom", "Theo"], lambda _: True)
    rescorer = Rescorer(built_in, tokenizer, cast(Decoder, ear), vocabulary, 2.0)
    sure = written(tokenizer, text, each=math.log(0.71))
    assert rescorer.rescore(sure) is sure and ear.asked == []
    changed = rescorer.rescore(written(tokenizer, text, each=math.log(0.69)))
    assert tokenizer.detokenize(changed.tokens).strip() == other


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("set the eco beam. to 20 degrees.", "set the EcoBee to 20 degrees."),
        ("set the eco beam.", "set the EcoBee."),
        ("set the eco beam. Stop.", "set the EcoBee. Stop."),
    ],
)
def test_no_full_stop_is_left_behind_a_name_within_a_sentence(
    built_in: Bundle, tokenizer: Tokenizer, text: str, wanted: str
) -> None:
    assert looked(built_in, tokenizer, ["EcoBee"], text, {wanted: 0.0})[0] == wanted


def test_no_word_of_a_name_is_doubled(built_in: Bundle, tokenizer: Tokenizer) -> None:
    text = "set kitten light light to white"
    likely = {"set Kitchen Light light to white": 0.0}
    assert looked(built_in, tokenizer, ["Kitchen Light"], text, likely)[0] == text


@needs_model
@pytest.mark.parametrize("names", [("Tom", "Theo", "Ian", "Ann"), ("Den", "Hall", "Fan", "Max")])
def test_short_names_leave_sentences_that_are_heard_well(names: tuple[str, ...]) -> None:
    settings = replace(QUICK, vocabulary=VocabularySettings(words=names))
    with open_transcriber(settings) as transcriber:
        for one in heard_right()[:8]:
            assert same_words(transcriber.transcribe(window_of(one.file)).text, one.text)


def test_only_a_few_texts_are_asked_about(built_in: Bundle, tokenizer: Tokenizer) -> None:
    words = [f"winst{letter}n" for letter in "abcdefghijklmnopqrstuvwxyz"]
    asked = looked(built_in, tokenizer, words, "tell winson to come", {})[2].asked
    assert 0 < len(asked) <= TRIALS


def test_words_of_one_text_are_forgotten_with_it(built_in: Bundle, tokenizer: Tokenizer) -> None:
    vocabulary = Vocabulary(["Gideon"], lambda _: True)
    vocabulary.set_names([("Pantry", 1)])
    assert vocabulary.with_names(("Winston",)).words == ("Gideon", "Winston", "Pantry")
    assert vocabulary.words.words == ("Gideon", "Pantry")


def test_a_text_that_did_not_end_is_left_as_it_is(built_in: Bundle, tokenizer: Tokenizer) -> None:
    ear = Ear(tokenizer, {"tell Winston to come": 0.0})
    vocabulary = Vocabulary(["Winston"], lambda _: True)
    rescorer = Rescorer(built_in, tokenizer, cast(Decoder, ear), vocabulary, 4.0)
    endless = replace(written(tokenizer, "tell winson to come"), ended=False)
    assert rescorer.rescore(endless) is endless


def test_names_of_others_are_bounded_whatever_they_are(caplog: pytest.LogCaptureFixture) -> None:
    vocabulary = Vocabulary(["Anna"], str.isascii)
    hostile = ["", "x" * 10_000, "bell\x07\x1b[31m", "\U0001f3e0 Kitchen \U0001f3e0", "\U0001f600",
               "Küche", "a\nb", "  Anna  ", "\ud800"]  # fmt: skip
    told = vocabulary.set_names([(name, 1) for name in hostile])
    assert vocabulary.words.words == ("Anna", "bell 31m", "Kitchen", "a b")
    assert told.startswith("5 of 9 names are left out: expected 1 to 64 letters")
    begun_s = time.process_time()
    told = vocabulary.set_names([(f"name {number}", number % 3) for number in range(100_000)])
    assert time.process_time() - begun_s < 5
    assert len(vocabulary.words.words) == 1000 and vocabulary.words.words[:2] == ("Anna", "name 0")
    assert told.startswith("99001 of 100000 names are left out: ") and "at most 1000 words" in told
    assert "\n" not in told and vocabulary.set_names([]) == ""
    assert list(vocabulary.words.words) == ["Anna"]


def test_the_likeliest_names_stay_when_there_are_too_many() -> None:
    vocabulary = Vocabulary([], lambda _: True)
    vocabulary.set_names([*((f"sensor {at}", 4) for at in range(2000)), ("Pantry", 1)])
    assert vocabulary.words.words[0] == "Pantry"


def test_words_that_the_model_cannot_write_are_left_out_with_a_line(
    built_in: Bundle, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    settings = VocabularySettings(words=("Анна", "Anna"))
    with caplog.at_level(logging.WARNING):
        assert open_vocabulary(settings, built_in, tokenizer).words.words == ("Anna",)
    assert "the model cannot write 1 of them: Анна" in caplog.text


def test_too_many_words_are_refused(built_in: Bundle, tokenizer: Tokenizer) -> None:
    many = VocabularySettings(words=tuple(f"w{at}" for at in range(1001)))
    with pytest.raises(ConfigError, match="at most 1000 words, found 1001"):
        open_vocabulary(many, built_in, tokenizer)


CELLAR = SPEECH / "08.flac"
"""A recording in which the model hears a seller: "set the cellar to seventeen degrees"."""
MISHEARD, SAID = "turn off the seller fan", "turn off the cellar fan"


def heard(vocabulary: VocabularySettings, file: Path, **settings: Any) -> Transcription:
    chosen = replace(QUICK, vocabulary=vocabulary, **settings)
    with open_transcriber(chosen) as transcriber:
        return transcriber.transcribe(window_of(file))


@needs_model
def test_a_recording_has_its_word_with_the_list_and_not_without() -> None:
    others = ("Winston", "pantry", "air fryer", "Balthasar")
    free = heard(VocabularySettings(words=others), CELLAR)
    assert same_words(free.text, MISHEARD)
    led = heard(VocabularySettings(words=(*others, "Cellar")), CELLAR)
    assert same_words(led.text, SAID) and "Cellar" in led.text
    assert (led.avg_logprob, led.confidence) == (free.avg_logprob, free.confidence)
    off = heard(VocabularySettings(words=("cellar",), boost=0.0), CELLAR)
    assert off.text == free.text and off.avg_logprob == free.avg_logprob


@needs_model
def test_a_list_without_a_word_like_it_changes_no_bit_of_a_text() -> None:
    quiet = PhrasesSettings(file="")  # their search has a clock
    free = heard(VocabularySettings(), CELLAR, phrases=quiet)
    listed = heard(VocabularySettings(words=("Xanthippe",)), CELLAR, phrases=quiet)
    assert set(differences(listed, free)) <= {"encode_ms", "decode_ms"}


@needs_model
def test_words_are_taken_over_between_two_windows() -> None:
    window = window_of(CELLAR)
    with open_transcriber(QUICK) as transcriber:
        assert isinstance(transcriber, Transcriber)
        before = transcriber.transcribe(window).text
        assert same_words(before, MISHEARD)
        transcriber.set_names([("Cellar", 1)])  # type: ignore[list-item]
        assert same_words(transcriber.transcribe(window).text, SAID)
        transcriber.set_names([])
        assert transcriber.transcribe(window).text == before
        encoded = transcriber.begin(Request(window, names=("Cellar",)))
        assert same_words(transcriber.decode(encoded).text, SAID)
        assert transcriber.transcribe(window).text == before


@pytest.fixture(scope="module", params=["none", "int8"])
def any_bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("words")
    checkpoint = write_checkpoint(
        folder / "checkpoint", SMALL_SHAPE, random_weights(SMALL_SHAPE, seed=1)
    )
    recipe = Recipe(name="random", window_s=10.0, quantize=request.param)
    build_bundle(checkpoint, folder / "bundle", recipe)
    return load_bundle(folder / "bundle")


def test_a_text_is_as_likely_on_a_second_look_as_when_it_was_written(any_bundle: Bundle) -> None:
    decoder = Decoder(any_bundle, 1)
    rng = np.random.default_rng(5)
    states = rng.uniform(-2, 2, (any_bundle.positions, any_bundle.d_model)).astype(np.float32)
    wrote = decoder.decode(states, 1.0)
    within = {"none": 1e-4, "int8": 0.5}[any_bundle.quantize]
    for begin in (0, 3, len(wrote.tokens) - 1, 0):
        again = decoder.logprobs(wrote.tokens, begin)[:-1]
        former = wrote.logprobs[begin : len(wrote.tokens)]
        assert np.allclose(again, former, rtol=0, atol=within)
    other = (*wrote.tokens[:4], 40, 50, *wrote.tokens[4:12])
    decoder.logprobs(other, 2)
    behind = decoder.logprobs(wrote.tokens, 9)[:-1]  # what was written before is another text's
    former = wrote.logprobs[9 : len(wrote.tokens)]
    assert np.allclose(behind, former, rtol=0, atol=within)
    rows = logits_of(decoder, states, [*any_bundle.prompt, *other])
    rows = rows[len(any_bundle.prompt) - 1 :].astype(np.float64)
    rows[:, list(any_bundle.suppressed)] = -np.inf
    following = [*other, any_bundle.tokens.end_of_text]
    expected = [
        row[token] - np.logaddexp.reduce(row) for row, token in zip(rows, following, strict=True)
    ]
    start(decoder, states)
    several = 0.5 if any_bundle.quantize == "int8" else 1e-3
    assert np.allclose(decoder.logprobs(other, 0), expected, rtol=0, atol=several)


def test_a_word_more_is_no_sound_of_it() -> None:
    words = Words(["hall lights", "air fryer"])
    assert words.near([Span(0, 1, "lights"), Span(0, 2, "the lights")]) == []
    (found,) = words.near([Span(0, 2, "air fryar")])
    assert found.likeness == likeness(sound("fryar"), sound("fryer"))
