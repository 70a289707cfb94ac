"""Sentences that are expected: how they are written, and which of them a window says."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rigs.checkout import ROOT
from rigs.needs import module, needs_model
from rigs.recordings import heard_right, sentences, window_of
from rigs.vocabularies import letters_of
from rigs.word_errors import same_words

from appliance.config import (
    DecoderSettings,
    HomeAssistantSettings,
    PhrasesSettings,
    Settings,
)
from appliance.errors import ConfigError
from appliance.infer import phrases as subject
from appliance.infer.decoder import Cache, Decoder, LogOdds
from appliance.infer.opening import SENTENCES_FILE, open_transcriber, phrases_file
from appliance.infer.phrases import (
    FLOOR,
    Phrases,
    WordNetwork,
    in_words,
    number_words,
    plain,
    read_phrases,
)
from appliance.infer.tokenizer import Tokenizer
from appliance.model.bundle import DEFAULT_PHRASE_CALIBRATION, Bundle, PhraseCalibration
from appliance.records import Name, States, Tier


def written(folder: Path, text: str) -> Path:
    file = folder / "phrases.toml"
    file.write_text(text, encoding="utf-8")
    return file


def network(folder: Path, *templates: str, slots: str = "") -> WordNetwork:
    table = f"{slots}\n[phrases]\nall = {json.dumps(templates)}\n"
    return read_phrases(written(folder, table))


SLOTS = """
[slots]
area = ["kitchen", "living room"]
device = {tv = ["tv", "television"], "media_player.hifi" = "stereo"}
level = {from = 0, to = 100, step = 25}
"""


@pytest.mark.parametrize(
    ("template", "said", "slots"),
    [
        ("turn on the light", "turn on the light", {}),
        ("turn (on|off) [the] light", "turn off light", {}),
        ("turn on [all [of]] the lights", "turn on all of the lights", {}),
        ("[please] lights on", "lights on", {}),
        ("light in the {area}", "light in the living room", {"area": "living room"}),
        ("turn on the {device}", "turn on the television", {"device": "tv"}),
        ("turn on the {device}", "turn on the stereo", {"device": "media_player.hifi"}),
        ("dim to {level} percent", "dim to seventy five percent", {"level": 75}),
        ("dim to {level} percent", "dim to 75 percent", {"level": 75}),
        ("(dim|set) {area} [to] {level}", "set kitchen 0", {"area": "kitchen", "level": 0}),
        ("What's the Time", "what's the time", {}),
    ],
)
def test_a_sentence_means_its_slots(
    tmp_path: Path, template: str, said: str, slots: dict[str, object]
) -> None:
    words = network(tmp_path, template, slots=SLOTS)
    assert words.parse(said.split()) == slots | {"": "all"}


def test_names_of_the_home_are_values_where_the_file_has_none(tmp_path: Path) -> None:
    file = written(tmp_path, '[phrases]\nall = ["light in [the] {area}", "turn on {name}"]\n')
    names = {"area": ["Anna's room", "Küche"], "name": ["TV/Hi-Fi"]}
    found = read_phrases(file, names)
    said = "light in the anna's room", "light in küche", "turn on tv hi-fi", "light in attic"
    assert [found.parse(one.split()) for one in said] == [
        {"": "all", "area": "Anna's room"},
        {"": "all", "area": "Küche"},
        {"": "all", "name": "TV/Hi-Fi"},
        None,
    ]
    own = read_phrases(written(tmp_path, SLOTS + '[phrases]\na = ["in {area}"]\n'), names)
    assert own.parse(["in", "kitchen"])
    assert own.parse(["in", "küche"]) is None
    with pytest.raises(ConfigError, match=r"found .area.; add area to"):
        read_phrases(written(tmp_path, '[phrases]\na = ["in {area}"]\n'))


@needs_model
def test_names_of_the_home_come_and_go_while_the_model_is_in_use(tmp_path: Path) -> None:
    file = written(tmp_path, '[phrases]\nall = ["what is the weather like in {area}"]\n')
    settings = Settings(
        phrases=PhrasesSettings(file=str(file)),
        homeassistant=HomeAssistantSettings(url="http://ha:8123"),
    )
    first: list[Name] = [("居間", Tier.PLACE), ("Chicago", Tier.PLACE), ("Lamp", Tier.CALLED)]
    with open_transcriber(settings) as transcriber:

        def slots() -> object:
            found = transcriber.transcribe(window_of(sentences()[0].file)).phrase
            return found and found.slots

        assert slots() is None
        transcriber.set_names(first)
        assert slots() == {"area": "Chicago"}
        transcriber.set_names([("computer", Tier.ADDRESS), ("Lamp", Tier.CALLED)])
        assert slots() is None


@pytest.mark.parametrize(
    "said, expected",
    [("turn on the light", False), ("turn on", True), ("what is the weather", True), ("", True),
     ("what is the weather in the hall", False), ("off", False)],
)  # fmt: skip
def test_where_a_sentence_goes_on_is_known(tmp_path: Path, said: str, expected: bool) -> None:
    words = network(
        tmp_path, "Turn on [the] light", "what is the weather", "what is the weather in the {area}",
        slots='[slots]\narea = ["hall", "living room"]',
    )  # fmt: skip
    assert words.is_beginning(said.split()) is expected


@pytest.mark.parametrize("said", ["", "turn", "turn on", "turn on the light now", "on the light"])
def test_what_is_no_sentence_means_nothing(tmp_path: Path, said: str) -> None:
    assert network(tmp_path, "turn on [the] light").parse(said.split()) is None


def test_of_two_sentences_that_are_the_same_the_first_counts(tmp_path: Path) -> None:
    table = '[phrases]\nfirst = ["stop (it|that)"]\nsecond = ["stop it"]\n'
    assert read_phrases(written(tmp_path, table)).parse(["stop", "it"]) == {"": "first"}


@pytest.mark.parametrize(
    ("table", "trouble"),
    [
        ("", "expected sentences, found none"),
        ("[phrases]\n", "expected sentences, found none"),
        ("[phrases]\na = []\n", "expected sentences, found none"),
        ('[phrases]\na = "stop"\n', "phrases.a: expected a list of sentences"),
        ("[phrases]\na = [5]\n", "phrases.a: expected a list of sentences"),
        ('[phrase]\na = ["stop"]\n', "expected the tables [phrases] and [slots], found [phrase]"),
        ("phrases = 5\n", "expected the tables [phrases] and [slots]"),
        ('[phrases]\na = ["ok", "turn (on|off"]\n', "phrases.a, sentence 2: expected ) for what"),
        ('[phrases]\na = ["turn on]"]\n', "sentence 1: expected nothing to close, found ']'"),
        ('[phrases]\na = ["turn [on)"]\n', "expected ] for what was opened, found ')'"),
        ('[phrases]\na = ["turn {on"]\n', "expected a slot as {area}, found '{' as piece 2"),
        (
            '[phrases]\na = ["stop!"]\n',
            "expected letters, digits, ' and - in a word, found 'stop!'",
        ),
        ('[phrases]\na = ["[stop]"]\n', "found one that is optional as a whole"),
        ('[phrases]\na = ["in {rom}"]\n[slots]\nroom = ["hall"]\n', "found {rom}; room?"),
        ('[phrases]\na = ["in {x}"]\n', "found {x}; add x to [slots]"),
        ('[phrases]\na = ["in {x}"]\n[slots]\nx = []\n', "slots.x: expected values"),
        ('[phrases]\na = ["in {x}"]\n[slots]\nx = {}\n', "slots.x: expected values"),
        ('[phrases]\na = ["in {x}"]\n[slots]\nx = 5\n', "slots.x: expected values"),
        ('[phrases]\na = ["in {x}"]\n[slots]\nx = [""]\n', "slots.x, value 1: expected words"),
        ('[phrases]\na = ["in {x}"]\n[slots]\nx = ["a b", "(c)"]\n', "slots.x, value 2: expected"),
        ("[slots]\nx = {from = 5, to = 1}\n", "slots.x: expected numbers from 0 to 999"),
        ("[slots]\nx = {from = 0, to = 9, stop = 1}\n", "slots.x: expected {from = 0, to = 100"),
        ("[slots]\nx = {from = 0}\n", "slots.x: expected {from = 0, to = 100"),
        ("[phrases\n", "expected TOML in UTF-8, found: "),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, table: str, trouble: str) -> None:
    file = written(tmp_path, table)
    with pytest.raises(ConfigError) as error:
        read_phrases(file)
    assert str(error.value).startswith(f"{file}: ")
    assert trouble in str(error.value)
    assert "\n" not in str(error.value)


def test_no_file_bytes_and_too_many_sentences_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found No such file"):
        read_phrases(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="expected TOML in UTF-8"):
        read_phrases(tmp_path / "bytes.toml")
    many = json.dumps([f"sentence {number}" for number in range(100_000)])
    with pytest.raises(ConfigError, match="at most 20000 sentences in all, found more; put what"):
        read_phrases(written(tmp_path, f"[phrases]\na = {many}\n"))
    with pytest.raises(ConfigError, match="expected at most 4 MB of sentences, found 5 MB"):
        read_phrases(written(tmp_path, "#" * (5 << 20)))


def test_numbers_are_spelled() -> None:
    assert [in_words(one) for one in (0, 13, 40, 99, 100, 342)] == [
        "zero",
        "thirteen",
        "forty",
        "ninety nine",
        "one hundred",
        "three hundred forty two",
    ]


@pytest.mark.parametrize(
    ("language", "number", "words"),
    [
        ("de", 21, ["einundzwanzig"]),
        ("de", 1, ["ein", "eine", "einem", "einen", "einer", "eines", "eins"]),
        ("fr", 80, ["quatre-vingts"]),
        ("es", 21, ["veintiuna", "veintiuno", "veintiún"]),
        ("nl", 22, ["tweeëntwintig"]),
    ],
)
def test_numbers_are_spelled_in_every_form_of_a_language(
    language: str, number: int, words: list[str]
) -> None:
    module("unicode_rbnf", "unicode-rbnf")
    assert number_words(number, language) == words


def test_the_numbers_of_a_range_are_in_the_language_that_is_spoken(tmp_path: Path) -> None:
    module("unicode_rbnf", "unicode-rbnf")
    table = '[slots]\ngrad = {from = 20, to = 22}\n[phrases]\nwarm = ["{grad} Grad"]\n'
    words = read_phrases(written(tmp_path, table), languages=("de",))
    for spoken in ("zweiundzwanzig", "22"):
        assert words.parse([spoken, "grad"]) == {"": "warm", "grad": 22}
    assert words.parse(["twenty", "two", "grad"]) is None
    both = read_phrases(written(tmp_path, table), languages=("de", "en"))
    assert both.parse(["zweiundzwanzig", "grad"]) == both.parse(["twenty", "two", "grad"])


def test_a_language_without_number_words_is_named(tmp_path: Path) -> None:
    module("unicode_rbnf", "unicode-rbnf")
    table = '[slots]\na = {from = 1, to = 2}\n[phrases]\nb = ["{a}"]\n'
    with pytest.raises(
        ConfigError, match=r"slots\.a: number words in the language 'haw' are unkno"
    ):
        read_phrases(written(tmp_path, table), languages=("haw",))


def test_without_the_library_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "unicode_rbnf", None)
    table = '[slots]\na = {from = 1, to = 2}\n[phrases]\nb = ["{a}"]\n'
    with pytest.raises(ConfigError, match="apt install python3-unicode-rbnf"):
        read_phrases(written(tmp_path, table), languages=("is",))
    read_phrases(written(tmp_path, table))


def test_the_shipped_sentences_are_home_commands() -> None:
    words = read_phrases(ROOT / "appliance" / "infer" / "sentences.toml")
    for said, meant in (
        ("switch off the desk lamp", {"": "light_off", "light": "desk lamp"}),
        ("set a timer for 7 minutes", {"": "timer_start", "number": 7}),
        ("what is the weather like in chicago", None),
    ):
        assert words.parse(said.split()) == meant


def test_a_text_is_compared_without_capitals_and_marks() -> None:
    assert plain(" Set the Light to 50%, please! ") == "set the light to 50 percent please"
    assert plain("It's 21°.") == "it's 21 degrees"


@pytest.fixture(scope="module")
def decoder(bundle: Bundle) -> Decoder:
    return Decoder(bundle, 1)


@pytest.fixture(scope="module")
def heard(bundle: Bundle) -> list[States]:
    """Made-up states of some windows."""
    rng = np.random.default_rng(3)
    shape = bundle.positions, bundle.d_model
    return [rng.uniform(-2, 2, shape).astype(np.float32) for _ in range(4)]


MADE_UP = "a bad cab", "feed a big chicade", "hide a bed", "hide a cage", "dig a bed"
"""Sentences in the letters that the random models know."""


def exactly(decoder: Decoder, bundle: Bundle, states: States, text: str) -> float:
    """The log-probability of a text, asked for token by token and apart from the search."""
    tokens = [*Tokenizer.open(bundle).tokenize(f" {text}"), bundle.tokens.end_of_text]
    logits = decoder.step(decoder.start(states), [*bundle.prompt, *tokens[:-1]])
    logits = logits[len(bundle.prompt) - 1 :].astype(np.float64)
    logits[:, list(bundle.suppressed)] = -np.inf
    totals = np.logaddexp.reduce(logits, axis=1)
    return float(sum(row[token] for row, token in zip(logits, tokens, strict=True)) - totals.sum())


def test_the_best_sentence_is_the_one_that_an_exhaustive_search_finds(
    tmp_path: Path, bundle: Bundle, decoder: Decoder, heard: list[States]
) -> None:
    tokenizer = Tokenizer.open(bundle)
    found = Phrases(network(tmp_path, *MADE_UP), bundle, tokenizer, decoder)
    best_ones = set()
    for states in heard:
        whole = {text: exactly(decoder, bundle, states, text) for text in MADE_UP}
        decoder.decode(states, 1.0)
        scores = {
            tokenizer.detokenize(tokens).strip(): score
            for tokens, score in found._search(-math.inf).items()
        }
        assert scores == {text: pytest.approx(whole[text], abs=1e-3) for text in scores}
        best = max(scores, key=scores.__getitem__)
        assert best == max(whole, key=whole.__getitem__)
        best_ones.add(best)
    assert len(best_ones) > 1


def test_a_models_calibration_says_how_sure_a_sentence_is(
    tmp_path: Path, bundle: Bundle, decoder: Decoder, heard: list[States]
) -> None:
    words = network(tmp_path, *MADE_UP)
    calibration = PhraseCalibration(offset=3.0, share=0.5, mean=0.1, lead=-0.1)
    for fitted in (None, calibration):
        fitting = replace(bundle, phrase_calibration=fitted)
        found = Phrases(words, fitting, Tokenizer.open(bundle), decoder)
        phrase = found.find(decoder.decode(heard[0], 1.0))
        evidence = found.evidence
        assert evidence and evidence.sentence == "hide a cage" and 0.5 < evidence.share < 1
        judge = fitted or DEFAULT_PHRASE_CALIBRATION
        sure = judge.confidence(evidence.share, evidence.mean, evidence.lead)
        assert evidence.confidence == sure
        if fitted:
            assert phrase and phrase.confidence == sure
        else:
            assert phrase is None, "the sentence is less likely than anything that was said"


def test_what_is_said_is_found_among_the_sentences_and_nothing_where_it_is_none_of_them(
    tmp_path: Path, built_in: Bundle
) -> None:
    tokenizer, said = Tokenizer.open(built_in), [heard_right()[at] for at in (1, 2, 4)]
    texts = [*(one.text for one in said), "how much [light]", "is there any chicken", "stop"]
    decoder = Decoder(built_in, 1)
    expected = Phrases(network(tmp_path, *texts), built_in, tokenizer, decoder)
    others = Phrases(network(tmp_path, "abracadabra"), built_in, tokenizer, decoder)
    with open_transcriber(Settings(), bundle=built_in) as transcriber:
        for one in said:
            encoded = transcriber.encode(window_of(one.file))
            written = decoder.decode(encoded.states, encoded.duration_s)
            phrase = expected.find(written)
            assert phrase and same_words(phrase.sentence, one.text) and phrase.name == "all"
            sure = math.exp(sum(written.logprobs) / len(written.logprobs))
            assert 0.5 * sure < phrase.confidence <= 1
            assert others.find(written) is None


def test_the_address_phrase_may_stand_in_front_of_every_sentence(
    tmp_path: Path, built_in: Bundle, decoder: Decoder
) -> None:
    file = tmp_path / "phrases.toml"
    file.write_text('[phrases]\nlight = ["turn on the {a}"]\n[slots]\na = ["light", "fan"]\n')
    words = read_phrases(file, None, "Hey Jarvis")
    assert words.parse(["hey", "jarvis", "turn", "on", "the", "fan"]) == {"": "light", "a": "fan"}
    assert words.parse(["turn", "on", "the", "fan"]) == {"": "light", "a": "fan"}
    assert words.parse(["hey", "jarvis"]) is None
    found = Phrases(words, built_in, Writer(), decoder)
    forms = {Writer().detokenize(one) for one in found._write("Jarvis", False)}
    assert forms == {" jarvis", " Jarvis", " jarvis,", " Jarvis,"}
    assert words.rebuild is None
    again = read_phrases(file, {}, "Hey Jarvis").rebuild
    assert again and again({}).parse(["hey", "jarvis", "turn", "on", "the", "fan"])
    with pytest.raises(ConfigError, match=r"\[assist\] phrase: expected words that model tiny.en"):
        Phrases(read_phrases(file, None, "компьютер"), built_in, Tokenizer.open(built_in), decoder)


def test_a_search_takes_no_more_steps_than_it_may(
    tmp_path: Path, bundle: Bundle, decoder: Decoder, heard: list[States]
) -> None:
    found = Phrases(network(tmp_path, DIGITS, slots=SLOT), bundle, Tokenizer.open(bundle), decoder)
    found.steps = 7
    written = decoder.decode(heard[0], 1.0)
    assert found.find(replace(written, logprobs=(-1000.0,))) is None
    again = decoder.decode(heard[0], 1.0)
    assert (again.tokens, again.logprobs) == (written.tokens, written.logprobs)


DIGITS, SLOT = "{a} {a} {a} {a}", '[slots]\na = ["abba", "bead", "cafe", "feed"]'
"""Many sentences of four words."""


class Counting(Decoder):
    """Counts its steps, each of which takes `step_s` on a clock of its own."""

    def __init__(self, plain: Decoder, step_s: float) -> None:
        vars(self).update(vars(plain))
        self.steps, self._step_s = 0, step_s

    def odds(self, cache: Cache, tokens: tuple[int, ...], rows: int = 1) -> LogOdds:
        self.steps += 1
        return super().odds(cache, tokens, rows)

    def thread_time(self) -> float:
        return self.steps * self._step_s


@pytest.mark.parametrize("step_s, steps", [(0.0, 48), (0.0025, 40), (0.1, 24)])
def test_a_search_looks_at_the_clock_while_it_runs(
    tmp_path: Path,
    bundle: Bundle,
    decoder: Decoder,
    heard: list[States],
    *,
    monkeypatch: pytest.MonkeyPatch,
    step_s: float,
    steps: int,
) -> None:
    slow = Counting(decoder, step_s)
    found = Phrases(network(tmp_path, DIGITS, slots=SLOT), bundle, Tokenizer.open(bundle), slow)
    monkeypatch.setattr(subject, "time", slow)
    slow.decode(heard[0], 1.0)
    found._search(-math.inf)
    assert slow.steps == steps


def test_a_search_that_is_cancelled_ends_before_the_next_step(
    tmp_path: Path, bundle: Bundle, decoder: Decoder, heard: list[States]
) -> None:
    slow = Counting(decoder, 0.0)
    found = Phrases(network(tmp_path, DIGITS, slots=SLOT), bundle, Tokenizer.open(bundle), slow)
    found.find(slow.decode(heard[0], 1.0), lambda: slow.steps < 3)
    assert slow.steps == 3


@pytest.mark.parametrize("word", ["свет", "光", "φως"])
def test_a_word_in_another_script_than_the_models_is_refused(
    tmp_path: Path, bundle: Bundle, decoder: Decoder, word: str
) -> None:
    words = network(tmp_path, word)
    with pytest.raises(ConfigError, match=f"model random can write \\(en\\), found '{word}'"):
        Phrases(words, bundle, Tokenizer.open(bundle), decoder)


class Writer(Tokenizer):
    """A vocabulary with capitals."""

    def __init__(self) -> None:
        single = [bytes([byte]) for byte in range(256)]
        pieces = [*single, b" T", b" t", b"on", b" Ki", b" ki"]
        super().__init__({letters_of(one): at for at, one in enumerate(pieces)}, len(pieces))


def test_models_that_write_capitals_may_write_them(
    tmp_path: Path, bundle: Bundle, decoder: Decoder
) -> None:
    words = network(tmp_path, "turn on Kitchen 50 percent")
    found = Phrases(words, bundle, Writer(), decoder)
    written = {
        word: {Writer().detokenize(one) for one in found._write(word, first)}
        for word, first in (("turn", True), ("on", False), ("Kitchen", False), ("percent", False))
    }
    assert written == {
        "turn": {" turn", " Turn"},
        "on": {" on"},
        "Kitchen": {" Kitchen", " kitchen"},
        "percent": {" percent", "%"},
    }


def test_the_built_in_sentences_are_for_english(built_in: Bundle) -> None:
    settings = Settings()
    assert phrases_file(settings, ("de", "en")) == SENTENCES_FILE
    assert phrases_file(settings, ("de",)) is None
    assert phrases_file(replace(settings, phrases=PhrasesSettings("")), ("en",)) is None
    own = replace(settings, phrases=PhrasesSettings("/mine.toml"))
    assert phrases_file(own, ("de",)) == Path("/mine.toml")
    assert read_phrases(SENTENCES_FILE).is_beginning(["turn", "on", "the", "kitchen"])


def test_expected_sentences_can_be_left_out(tmp_path: Path) -> None:
    own = written(tmp_path, '[phrases]\nremind = ["remind me [to buy sugar at midnight]"]\n')
    heard = {}
    for file in (str(own), ""):
        settings = Settings(phrases=PhrasesSettings(file=file))
        with open_transcriber(settings) as transcriber:
            heard[file] = [
                transcriber.transcribe(window_of(sentences()[37].file, last=last))
                for last in (True, False)
            ]
            assert (transcriber.phrases is None) is (file == "")
    assert {one.text for both in heard.values() for one in both} == {heard[""][0].text}
    assert heard[str(own)][1].phrase is None, "a part of an utterance is no sentence"
    phrase = heard[str(own)][0].phrase
    assert phrase and (phrase.name, phrase.sentence) == (
        "remind",
        "remind me to buy sugar at midnight",
    )
    assert FLOOR <= phrase.confidence <= 1


@needs_model
def test_sentences_are_refused_where_the_decoder_cannot_compare_them(tmp_path: Path) -> None:
    settings = Settings(
        phrases=PhrasesSettings(file=str(written(tmp_path, '[phrases]\na = ["stop"]\n'))),
        decoder=DecoderSettings(backend="hailo"),
    )
    with pytest.raises(ConfigError, match=r"\[phrases\] file: expected \[decoder\] backend = cpu"):
        open_transcriber(settings)
