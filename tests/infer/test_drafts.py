"""Drafts: what is proposed, and that it never changes what is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from rigs.models import HOME, ODD, random_weights, write_checkpoint
from rigs.records import differences

from appliance.config import DecoderSettings, ModelSettings, Settings
from appliance.convert.build import Recipe, build_bundle
from appliance.convert.shapes import WhisperConfig
from appliance.infer.decoder import Decoder, preset_guards
from appliance.infer.drafts import LONGEST, MOST, Drafts
from appliance.infer.network import Network
from appliance.infer.opening import open_transcriber
from appliance.infer.transcriber import Transcriber
from appliance.model.bundle import (
    JOINT,
    JOINT_FILE,
    LAYERS_FILE,
    STEP_FILE,
    WORDS_FILE,
    Bundle,
    Guards,
    load_bundle,
)
from appliance.records import SAMPLE_RATE, Transcription, Window

CHEAP = {1: 1.0, MOST + 1: 1.1}
"""Costs of passes at which the longest draft is always worth it."""


def heard(*sentences: tuple[int, ...], costs: dict[int, float] | None = None) -> Drafts:
    drafts = Drafts()
    drafts.price(costs or CHEAP)
    for number, sentence in enumerate(sentences):
        drafts.expect(number)
        drafts.add(sentence)
    drafts.expect(None)
    return drafts


def test_the_commonest_sentence_with_the_same_beginning_is_proposed() -> None:
    drafts = heard((1, 2, 3, 4), (1, 2, 5), (1, 2, 3, 4), (7, 8))
    assert drafts.propose((1,)) == (2, 3, 4)
    assert drafts.propose((1, 2, 5)) == ()
    assert drafts.propose((7,)) == (8,)


def test_nothing_is_proposed_for_an_unknown_beginning() -> None:
    drafts = heard((1, 2, 3))
    assert drafts.propose((9,)) == drafts.propose((1, 9)) == ()


def test_what_the_same_window_was_said_to_be_goes_first_and_counts_once() -> None:
    drafts = heard((1, 2, 3))
    drafts.expect("window")
    assert drafts.propose((1,)) == (2, 3)
    drafts.add((1, 6, 7))
    drafts.expect("window")
    assert drafts.propose((1,)) == (6, 7)
    assert drafts.propose((1, 2)) == (3,)
    drafts.add((1, 6, 7, 8))
    assert [node.count for node in drafts._root.after.values()] == [2]
    drafts.expect("another")
    assert drafts.propose((1, 6)) == (7, 8)
    assert drafts.propose((1,)) == (2, 3)


def test_at_most_so_many_are_proposed() -> None:
    drafts = heard(tuple(range(60)))
    assert len(drafts.propose((0,))) == MOST
    assert len(drafts.propose((0,), most=3)) == 3
    assert drafts.propose((0,), most=0) == ()
    assert len(drafts.propose(tuple(range(LONGEST - 2)))) == 2


def test_the_dearer_a_token_the_shorter_the_draft() -> None:
    lengths = []
    for slope in (0.02, 0.2, 0.4, 0.95):
        drafts = heard(tuple(range(20)), costs={1: 1.0, 2: 1 + slope, MOST + 1: 1 + slope * MOST})
        drafts.expect(0)
        lengths.append(len(drafts.propose((0,))))
    assert lengths == sorted(lengths, reverse=True) and lengths[0] == MOST and lengths[-1] == 0


def test_without_costs_nothing_is_proposed() -> None:
    drafts = Drafts()
    drafts.add((1, 2, 3))
    assert not drafts.worth_it and drafts.propose((1,)) == ()
    drafts.price(CHEAP)
    assert drafts.worth_it and drafts.propose((1,))


def test_where_nothing_is_said_twice_less_is_proposed() -> None:
    costs = {1: 1.0, MOST + 1: 1.0 + 0.3 * MOST}
    rare = heard((1, 2, 3), *((5, number, 6, 7) for number in range(60)), costs=costs)
    common = heard((1, 2, 3), *((5, 4, 6, 7) for _ in range(60)), costs=costs)
    assert rare.propose((1,)) == () and common.propose((1,)) == (2, 3)


def test_after_wrong_drafts_less_is_proposed() -> None:
    drafts = heard((1, 2, 3, 4, 5), costs={1: 1.0, MOST + 1: 1.0 + 0.2 * MOST})
    assert [len(drafts.propose((1,), missed=missed)) for missed in range(3)] == [4, 0, 0]


def test_the_oldest_sentences_are_forgotten_whole() -> None:
    drafts = Drafts(sentences=50)
    rng = np.random.default_rng(2)
    for number in range(3000):
        drafts.expect(number // 2)
        drafts.add([int(token) for token in rng.integers(0, 9, rng.integers(1, 60))])
    assert sum(1 for _ in nodes(drafts._root)) <= 50 * LONGEST
    assert sum(node.count for node in drafts._root.after.values()) == 50
    for number in range(50):
        drafts.expect(f"the same, {number}")
        drafts.add((3,))
    assert sum(1 for _ in nodes(drafts._root)) == 1


def nodes(node: object) -> Iterator[object]:
    for following in node.after.values():  # type: ignore[attr-defined]
        yield following
        yield from nodes(following)


INT8 = Recipe("drafts", 5.0, quantize="int8", zero_points=False)


def built(folder: Path, recipe: Recipe, config: WhisperConfig = HOME, seed: int = 1) -> Bundle:
    write_checkpoint(folder / "checkpoint", config, random_weights(config, seed))
    build_bundle(folder / "checkpoint", folder / "bundle", recipe)
    return load_bundle(folder / "bundle")


@pytest.fixture(scope="module", params=["home", "another home", "odd", "with zero points"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    recipe = replace(INT8, zero_points=request.param == "with zero points")
    config = ODD if request.param == "odd" else HOME
    folder = tmp_path_factory.mktemp("drafts")
    return built(folder, recipe, config, seed=len(request.param))


def drafting(bundle: Bundle, rules: Guards) -> tuple[Decoder, Drafts]:
    drafts = Drafts()
    decoder = Decoder(bundle, rules, 1, drafts)
    decoder.warm_up()
    assert drafts.worth_it
    drafts.price(CHEAP)  # whatever this machine's times are
    return decoder, drafts


def some_states(bundle: Bundle, rng: np.random.Generator) -> NDArray[np.float32]:
    return (rng.random((bundle.positions, bundle.d_model)) * 4 - 2).astype(np.float32)


def random_draft(
    text: tuple[int, ...], bundle: Bundle, rng: np.random.Generator
) -> tuple[int, ...]:
    """Right, right up to somewhere, right but for one token, wrong, too long, or empty; with tokens
    that are no text."""
    other = tuple(int(token) for token in rng.integers(0, bundle.vocabulary_size, 40))
    at = int(rng.integers(0, len(text) + 1))
    kinds = (
        text,
        text[:at],
        text[:at] + other[:at],
        text[:at] + other[:1] + text[at + 1 :],
        text + other,
        other,
        (),
    )
    return kinds[rng.integers(0, len(kinds))]


@pytest.mark.parametrize(
    "recipe",
    [
        replace(INT8, quantize="none"),
        replace(INT8, vocabulary_scan="int4"),
    ],
)
def test_where_a_pass_would_not_give_the_same_there_is_no_graph_for_it(
    tmp_path: Path, recipe: Recipe
) -> None:
    bundle = built(tmp_path, recipe)
    assert JOINT_FILE not in bundle.files
    decoder, plain = (
        Decoder(bundle, bundle.guards, 1, drafts := Drafts()),
        Decoder(bundle, bundle.guards, 1),
    )
    decoder.warm_up()
    assert not drafts.worth_it
    states = some_states(bundle, np.random.default_rng(1))
    assert not differences(decoder.decode(states, 1.0), plain.decode(states, 1.0))


def test_no_product_rounds_with_an_offset_as_arm_and_x86_do_differently(model: Bundle) -> None:
    for name in (STEP_FILE, LAYERS_FILE, JOINT_FILE, WORDS_FILE):
        nodes = onnx.load(str(model.folder / name), load_external_data=False).graph.node
        places = {"DynamicQuantizeMatMul": 4, "MatMulIntegerToFloat": 6}
        products = [node for node in nodes if node.op_type in places]
        assert all(len(node.input) <= places[node.op_type] for node in products), name
        assert products, name


def test_tokens_together_give_bit_by_bit_what_they_give_alone(model: Bundle) -> None:
    rng = np.random.default_rng(6)
    alone, parts, joint = (Network(model, 1, joint=at > 0) for at in range(3))
    for size in range(1, JOINT + 1):
        states, before = some_states(model, rng), int(rng.integers(1, 30))
        tokens = [int(token) for token in rng.integers(0, model.vocabulary_size, before + size)]
        started: tuple[list[NDArray[np.float32]], ...] = ([], [])
        for network in (alone, parts, joint):
            network.begin(states, model.positions + size)
            first = network.advance(tokens[:before], (0, before - 1), (0,))
            started[0].append(first.logits.copy())
            started[1].append(first.left_out.copy())
        for each in started:
            assert all(np.array_equal(each[0], other) for other in each[1:])
        rows = []
        for token in tokens[before:]:
            step = alone.advance((token,), (0,))
            rows.append((step.logits[0].copy(), step.odds[0].copy()))
            assert np.array_equal(parts.advance((token,), (0,)).logits[0], rows[-1][0])
        found = joint.verify(tokens[before:])
        assert np.array_equal(found.logits, [logits for logits, _ in rows])
        assert np.array_equal(found.odds, [odds for _, odds in rows])
        assert joint.length == alone.length
        next_ones = [network.advance((5,), (0,)).logits[0].copy() for network in (alone, joint)]
        assert np.array_equal(*next_ones)


@pytest.mark.parametrize("rules", ["conservative", "balanced", "aggressive", "strict", "short"])
def test_thousands_of_drafts_change_no_bit(model: Bundle, rules: str) -> None:
    own = {"strict": Guards(model.positions, 1.6, 0.1), "short": Guards(model.positions, 1.1, 3.0)}
    guards = own.get(rules) or preset_guards(model, rules)
    rng = np.random.default_rng(len(rules))
    if rules == "strict":
        barred = tuple(int(token) for token in rng.choice(model.kept, len(model.kept) // 2))
        model = replace(model, suppressed_first=barred)
    plain, (drafted, drafts) = Decoder(model, guards, 1), drafting(model, guards)
    for window in range(7):
        states = some_states(model, rng)
        expected = plain.decode(states, 0.5)
        for _ in range(11):
            drafts.expect(window)
            drafts.add(random_draft(expected.tokens, model, rng))
            drafts.expect(window)
            assert not differences(drafted.decode(states, 0.5), expected)
        warm = [decoder.decode(states, 0.5, 0.7) for decoder in (drafted, plain)]
        assert not differences(*warm)


def test_a_sentence_that_was_heard_takes_one_pass_behind_its_first_token(int8: Bundle) -> None:
    decoder, drafts = drafting(int8, Guards(500, 1.0, -1e9))
    states = some_states(int8, np.random.default_rng(1))
    text = decoder.decode(states, 0.5).tokens
    drafts.add(text)
    decoder._network._steps.clear()
    assert decoder.decode(states, 0.5).tokens == text
    passes = [key for key in decoder._network._steps if len(key) == 1]
    assert passes and (1, 1, 0) not in decoder._network._steps


def test_a_context_that_is_nearly_full_takes_drafts(int8: Bundle) -> None:
    endless = Guards(500, 1.0, -1e9)
    plain, (drafted, drafts) = Decoder(int8, endless, 1), drafting(int8, endless)
    states = some_states(int8, np.random.default_rng(4))
    expected = plain.decode(states, 10.0)
    assert len(expected.tokens) == int8.max_tokens - len(int8.prompt)
    for number, draft in enumerate((expected.tokens, expected.tokens[:20] * 3)):
        drafts.expect(number)
        drafts.add(draft)
        assert not differences(drafted.decode(states, 10.0), expected)


def test_where_a_pass_does_not_give_the_same_nothing_is_drafted(int8: Bundle) -> None:
    decoder = Decoder(int8, int8.guards, 1, drafts := Drafts())
    network = decoder._network
    verify = network.verify

    def off_by_a_bit(tokens: list[int]) -> object:
        step = verify(tokens)
        step.logits[0, 0] = np.nextafter(step.logits[0, 0], np.float32(9))
        return step

    network.verify = off_by_a_bit  # type: ignore[method-assign, assignment]
    decoder.warm_up()
    drafts.add((1, 2, 3))
    assert not drafts.worth_it
    states = some_states(int8, np.random.default_rng(4))
    plain = Decoder(int8, int8.guards, 1)
    assert not differences(decoder.decode(states, 1.0), plain.decode(states, 1.0))


@pytest.fixture(scope="module")
def int8(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return built(tmp_path_factory.mktemp("int8"), replace(INT8, window_s=10.0))


def spoken(bundle: Bundle, *, drafts: bool) -> tuple[Transcriber, list[Transcription]]:
    """Texts of four utterances and of guesses at their beginnings, all of them said twice."""
    decoder = DecoderSettings(threads=1, drafts=drafts, eot_boost=1.0)
    model = ModelSettings(bundle=str(bundle.folder))
    transcriber = open_transcriber(Settings(model=model, decoder=decoder))
    transcriber.warm_up()
    rng = np.random.default_rng(3)
    sounds = rng.integers(-9000, 9000, (4, SAMPLE_RATE)).astype(np.int16)
    written = []
    for number in range(8):
        for length in (9000, SAMPLE_RATE):
            samples = sounds[number % 4, :length]
            heard_s = length / SAMPLE_RATE
            window = Window(f"utterance {number}", 1, True, samples, 0.0, heard_s, heard_s)
            written.append(replace(transcriber.transcribe(window), encode_ms=0.0, decode_ms=0.0))
    return transcriber, written


def test_what_is_said_again_or_goes_on_after_a_guess_is_the_same_text(int8: Bundle) -> None:
    _, plain = spoken(int8, drafts=False)
    transcriber, drafted = spoken(int8, drafts=True)
    assert len(drafted) == len(plain) and not any(map(differences, drafted, plain))
    assert transcriber._drafts is not None and len(transcriber._drafts._heard) == 8


def test_where_nothing_is_drafted_no_sentence_is_kept(bundle: Bundle) -> None:
    transcriber, _ = spoken(bundle, drafts=True)
    assert transcriber._drafts is not None and not transcriber._drafts._heard
    assert spoken(bundle, drafts=False)[0]._drafts is None


def test_drafts_are_on_unless_they_are_turned_off() -> None:
    assert Settings().decoder.drafts
