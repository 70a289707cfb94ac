"""Which of the expected sentences a window says."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rigs.needs import needs_model
from rigs.phrase_files import network, written
from rigs.recordings import heard_right, sentences, window_of
from rigs.steps import logits_of
from rigs.vocabularies import letters_of
from rigs.word_errors import same_words

from appliance.config import HomeAssistantSettings, PhrasesSettings, Settings
from appliance.errors import ConfigError
from appliance.infer import phrases
from appliance.infer.decoder import Decoded, Decoder, LogOdds
from appliance.infer.opening import SENTENCES_FILE, open_transcriber, phrases_file
from appliance.infer.phrases import FLOOR, NO_REPORT, REPORT, Evidence, Phrases
from appliance.infer.request import Request
from appliance.infer.sentences import START, build_network, parse_phrases, read_phrases
from appliance.infer.tokenizer import Tokenizer
from appliance.infer.wording import Wording
from appliance.model.bundle import DEFAULT_PHRASE_CALIBRATION, Bundle, PhraseCalibration
from appliance.records import EXPECTED_FROM, Name, NoAct, States, Tier


@needs_model
@pytest.mark.parametrize(
    ("sentence", "found"), [("are the lights on", False), ("are the lights on in the attic", True)]
)
def test_a_sentence_that_leaves_out_the_end_of_what_was_said_is_none(
    tmp_path: Path, sentence: str, found: bool
) -> None:
    (attic,) = (one for one in sentences() if one.text == "are the lights on in the attic")
    table = f'built_in = false\n[phrases]\nask = ["{sentence}", "turn off the fan"]\n'
    settings = Settings(phrases=PhrasesSettings(file=str(written(tmp_path, table))))
    with open_transcriber(settings) as transcriber:
        assert bool(transcriber.transcribe(window_of(attic.file)).phrase) == found


@needs_model
def test_what_breaks_off_is_marked_as_a_part_and_acts_on_nothing() -> None:
    window = window_of(sentences()[26].file)
    window = replace(window, samples=np.pad(window.samples[: 13 * 1600], (0, 2400)))
    with open_transcriber(Settings()) as transcriber:
        result = transcriber.transcribe(window)
        assert result.text.startswith("Turn on the l") and result.flags[-1] == NoAct.PART


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
        transcriber.set_names([("Main Gate", Tier.GUARDED), *first])
        assert slots() == {"area": "Chicago"}
        phrases = transcriber.phrases
        assert phrases and phrases._network.guarded >= {"Main Gate", "unlock"}
        transcriber.set_names([("computer", Tier.ADDRESS), ("Lamp", Tier.CALLED)])
        assert slots() is None


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
    logits = logits_of(decoder, states, [*bundle.prompt, *tokens[:-1]])
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
        for free in (), tokenizer.tokenize(" hide a bed dig a bed"):
            scores = {
                tokenizer.detokenize(tokens).strip(): score
                for tokens, score in found._search(free, hope=100.0).items()
            }
            assert scores == {text: pytest.approx(whole[text], abs=1e-3) for text in scores}
        best = max(scores, key=scores.__getitem__)
        assert best == max(whole, key=whole.__getitem__)
        best_ones.add(best)
    assert len(best_ones) > 1


@pytest.mark.parametrize(
    "text, expected",
    [("Feed a big", True), ("feed a bi.", True), ("feed a bag", False), ("hide a bed", False),
     ("hide a bad", False), ("beg", False), ("", False)],
)  # fmt: skip
def test_a_text_that_is_only_the_beginning_of_sentences_is_known(
    tmp_path: Path, bundle: Bundle, decoder: Decoder, text: str, expected: bool
) -> None:
    found = Phrases(network(tmp_path, *MADE_UP), bundle, Tokenizer.open(bundle), decoder)
    assert found.breaks_off(text) == expected


def test_a_models_calibration_says_how_sure_a_sentence_is(
    tmp_path: Path, bundle: Bundle, decoder: Decoder, heard: list[States]
) -> None:
    words = network(tmp_path, *MADE_UP)
    calibration = PhraseCalibration(offset=9.0, share=0.5, mean=0.1, lead=-0.1)
    unsure = replace(calibration, offset=-9.0)
    for fitted in (DEFAULT_PHRASE_CALIBRATION, calibration, unsure):
        fitting = replace(bundle, phrase_calibration=fitted)
        found = Phrases(words, fitting, Tokenizer.open(bundle), decoder)
        phrase = found.find(replace(decoder.decode(heard[0], 1.0), logprobs=(-100.0,)))
        one = found.evidence
        assert one and one.sentence == "hide a cage" and 0.5 < one.share < 1
        sure = fitted.confidence(one.values())
        assert found.candidates[0].confidence == min(sure, phrases.DOUBTED), "other letters"
        assert (phrase is None) is (sure < FLOOR)
    assert phrase is None, "the sentence is less likely than anything that was said"


def test_evidence_counts_up_to_its_limits() -> None:
    def sure(share: float = 0.95, lead: float = 0.0, report: float = NO_REPORT) -> float:
        evidence = Evidence("", share, -0.1, lead, 0.5, Wording(0, 0, 0, 0), report)
        return DEFAULT_PHRASE_CALIBRATION.confidence(evidence.values())

    assert sure(1.0) == sure(0.99) > sure() > sure(0.2) > sure(0.0) == sure(0.01) > 0.8
    assert sure(lead=-1000.0) == sure(lead=-4.0) > sure() > sure(lead=5.0) == sure(lead=1000.0)
    assert sure(report=REPORT) < EXPECTED_FROM < sure() == sure(report=-1.0)


def test_what_is_said_is_found_among_the_sentences_if_it_is_one(
    tmp_path: Path, built_in: Bundle
) -> None:
    tokenizer, said = Tokenizer.open(built_in), [heard_right()[at] for at in (1, 2, 4)]
    texts = [*(one.text for one in said), "how much [light]", "is there any chicken", "stop"]
    decoder = Decoder(built_in, 1)
    expected = Phrases(network(tmp_path, *texts), built_in, tokenizer, decoder)
    others = Phrases(network(tmp_path, "abracadabra"), built_in, tokenizer, decoder)
    with open_transcriber(Settings(), bundle=built_in) as transcriber:
        for one in said:
            encoded = transcriber.begin(Request(window_of(one.file)))
            written = decoder.decode(encoded.states, encoded.request.window.duration_s)
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
    counting = found._decoder = Counting(decoder)
    written = counting.decode(heard[0], 1.0)
    assert found.find(replace(written, logprobs=(-1000.0,))) is None
    assert counting.steps == 7
    again = decoder.decode(heard[0], 1.0)
    assert (again.tokens, again.logprobs) == (written.tokens, written.logprobs)


DIGITS, SLOT = "{a} {a} {a} {a}", '[slots]\na = ["abba", "bead", "cafe", "feed"]'
"""Many sentences of four words."""


class Counting(Decoder):
    """Counts its steps."""

    def __init__(self, plain: Decoder) -> None:
        vars(self).update(vars(plain))
        self.steps = 0

    def odds(self, tokens: tuple[int, ...], rows: int = 1) -> LogOdds:
        self.steps += 1
        return super().odds(tokens, rows)


def test_ways_to_write_one_word_are_one_path(
    tmp_path: Path, built_in: Bundle, decoder: Decoder
) -> None:
    tokenizer = Tokenizer.open(built_in)
    found = Phrases(network(tmp_path, "set it"), built_in, tokenizer, decoder)
    ((_, ways),) = found._follow(frozenset([(START, ())]))[0].items()
    assert {tokenizer.detokenize([token]) for token in ways} == {" set", " Set"}


def test_a_text_that_is_surely_one_of_the_sentences_needs_two_steps(
    tmp_path: Path, built_in: Bundle
) -> None:
    decoder = Counting(Decoder(built_in, 1))
    tokenizer = Tokenizer.open(built_in)
    found = Phrases(network(tmp_path, "set it to {a}", slots=NUMBERS), built_in, tokenizer, decoder)
    tokens = tokenizer.tokenize(" Set it to 40.")
    sure, unsure = (Decoded(tokens, (log,) * len(tokens), 0.0, True) for log in (-0.1, -0.5))
    phrase = found.find(sure)
    assert phrase and (phrase.sentence, phrase.slots) == ("set it to 40", {"a": 40})
    assert phrase.confidence > 0.7 and decoder.steps == 2, "they tell a report from an order"
    decoder.steps = 0
    with open_transcriber(Settings(), bundle=built_in) as transcriber:
        decoder.decode(transcriber.begin(Request(window_of(sentences()[0].file))).states, 1.0)
    other = found.find(unsure)
    assert (other is None or other.confidence < 0.1) and decoder.steps > 0


def test_the_sound_tells_a_report_from_an_order(
    tmp_path: Path,
    bundle: Bundle,
    decoder: Decoder,
    heard: list[States],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(phrases, "SOMEBODY", "I")  # the model made here has no s
    found = Phrases(network(tmp_path, *MADE_UP), bundle, Tokenizer.open(bundle), decoder)
    for states in heard:
        decoder.decode(states, 1.0)
        scores = []
        for text in ("i hide a", "i hided a"):
            tokens = Tokenizer.open(bundle).tokenize(f" {text}")
            logits = logits_of(decoder, states, [*bundle.prompt, *tokens[:-1]]).astype(np.float64)
            logits = logits[len(bundle.prompt) :]
            logits[:, list(bundle.suppressed)] = -np.inf
            totals = np.logaddexp.reduce(logits, axis=1)
            rows = zip(logits, totals, tokens[1:], strict=True)
            scores.append(sum(row[token] - total for row, total, token in rows))
        decoder.decode(states, 1.0)
        odds = min(max(scores[1] - scores[0] - phrases.REPORT_FROM, NO_REPORT), REPORT)
        assert found._report_odds("hide a cage") == pytest.approx(odds, abs=1e-2)


@pytest.mark.parametrize(
    ("sentence", "text", "report", "sure"),
    [
        ("turn off the fan", "Turn off the fan.", NO_REPORT, True),
        ("turn off the fan", "Turn off the fan.", REPORT, False),
        ("turn off the fan", "Turned off the fan.", NO_REPORT, False),
        ("turn off the fan", "Do not turn off the fan.", NO_REPORT, False),
        ("turn off the fan", "Turn off the fan in the attic.", NO_REPORT, False),
        ("turn off the fan", "Torn off the fan.", NO_REPORT, True),
        ("turn off the fan", "Turn off the van.", NO_REPORT, False),
        ("turn off the fan", "Right.", NO_REPORT, False),
        ("unlock the door", "Unlock a door.", NO_REPORT, True),
        ("unlock the door", "Unlock the door.", -0.1, False),
        ("computer unlock the door", "Computer, unlock the door.", -0.1, True),
        ("lock the door", "Lock the door.", -0.1, True),
        ("unlock the door", "Unlock the door.", 0.1, False),
        ("unlock the door", "Unlock the floor.", NO_REPORT, False),
        ("open the safe", "Open the safe.", NO_REPORT, True),
        ("open the safe", "Open the save.", NO_REPORT, False),
        ("open the box", "Open the fox.", NO_REPORT, True),
        ("open the alarm", "Open the alarms.", NO_REPORT, False),
        ("set an alarm for 7", "Send an alarm for 7.", NO_REPORT, True),
        ("set an alarm for 1", "Set an alarm for half past 7.", NO_REPORT, False),
    ],
)
def test_only_what_was_said_acts_and_a_lock_only_word_for_word(
    built_in: Bundle, sentence: str, text: str, report: float, sure: bool
) -> None:
    """If the sound says the sentence nearly as well as the text, except that it says "van"."""
    tokenizer = Tokenizer.open(built_in)
    words = build_network(parse_phrases(GUARDED), "Computer", None)
    found = Phrases(words, built_in, tokenizer, Decoder(built_in, 1))
    tokens = tokenizer.tokenize(f" {text}")
    heard = Decoded(tokens, (-0.1,) * len(tokens), 0.0, True)
    lead = phrases.LIKELIER + 0.1 if "van" in text else 0.1
    score = sum(heard.logprobs) - lead
    found._search = lambda *_: {tokenizer.tokenize(f" {sentence}"): score}  # type: ignore[method-assign]
    found._report_odds = lambda sentence: report  # type: ignore[method-assign]
    phrase = found.find(heard)
    assert (phrase is not None and phrase.confidence >= EXPECTED_FROM) is sure
    is_guarded = any(word in sentence for word in ("unlock", "safe", "open the alarm"))
    guard = NoAct.UNSURE if report in (-0.1, REPORT) else NoAct.GUARDED if is_guarded else None
    assert found.guard is (None if sure else guard)


GUARDED = """
guarded = ["lock", "safe", "a=alarm"]
[phrases]
alarm = ["set an alarm for {b}"]
fan = ["turn off the fan"]
lock = ["unlock [the] door", "lock [the] door"]
open = ["open the {a}"]
[slots]
a = ["safe", "box", "alarm"]
b = ["1", "7"]
"""


def test_digits_and_number_words_are_one_sentence(tmp_path: Path, built_in: Bundle) -> None:
    decoder = Decoder(built_in, 1)
    tokenizer = Tokenizer.open(built_in)
    found = Phrases(network(tmp_path, "set it to {a}", slots=NUMBERS), built_in, tokenizer, decoder)
    ways = [
        tokenizer.tokenize(text) for text in (" set it to 40", " set it to forty", " set it to 44")
    ]
    found._search = lambda *_: dict(zip(ways, (-1.0, -1.1, -5.0), strict=True))  # type: ignore[method-assign]
    phrase = found.find(Decoded(tokenizer.tokenize(" Said it 40."), (-1.0,) * 5, 0.0, True))
    assert phrase and phrase.sentence == "set it to 40"
    assert found.evidence and found.evidence.share > 0.95


NUMBERS = "[slots]\na = {from = 0, to = 100}"


def test_a_search_that_is_cancelled_ends_before_the_next_step(
    tmp_path: Path, bundle: Bundle, decoder: Decoder, heard: list[States]
) -> None:
    slow = Counting(decoder)
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
    found = read_phrases(SENTENCES_FILE)
    assert "light" in found.following(["turn", "on", "the", "kitchen"])
    noise = ["thank you", "thanks", "thanks for watching", "you", "bye"]
    assert not any(found.parse(text.split()) for text in noise), "Whisper writes it for noise"


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
