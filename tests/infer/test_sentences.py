"""Files of expected sentences: how they are written, and what a sentence means."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from rigs.checkout import ROOT
from rigs.phrase_files import network, written

from appliance.errors import ConfigError
from appliance.infer.sentences import (
    WORDS_RECEIVED,
    WordNetwork,
    build_network,
    parse_phrases,
    plain,
    read_phrases,
)

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


BUILT_IN = ROOT / "appliance" / "infer" / "sentences.toml"


def meaning(words: WordNetwork, text: str) -> object:
    return words.parse(text.split())


def test_a_file_adds_to_the_built_in_sentences_and_goes_first(tmp_path: Path) -> None:
    file = written(
        tmp_path, '[slots]\ncolour = ["mauve"]\n[phrases]\nmine = ["lights on", "be {colour}"]\n'
    )
    words = read_phrases(file, built_in=BUILT_IN)
    assert meaning(words, "lights on") == {"": "mine"}
    assert meaning(words, "lights off") == {"": "light_off", "light": "lights"}
    assert meaning(words, "set the light to mauve") and not meaning(words, "set the light to red")
    assert meaning(read_phrases(None, built_in=BUILT_IN), "set the light to red")
    alone = written(tmp_path, f"built_in = false\n{file.read_text()}")
    assert meaning(read_phrases(alone, built_in=BUILT_IN), "lights off") is None
    unknown = written(tmp_path, '[phrases]\na = ["{name} off"]\n')
    with pytest.raises(ConfigError, match=r"a slot that \[slots\] names, found .name."):
        read_phrases(unknown, built_in=BUILT_IN)
    assert read_phrases(unknown, {}, built_in=BUILT_IN)
    with pytest.raises(ConfigError, match="built_in: expected true or false"):
        read_phrases(written(tmp_path, "built_in = 5\n"), built_in=BUILT_IN)


def test_a_file_adds_to_what_is_guarded(tmp_path: Path) -> None:
    text = 'guarded = ["safe"]\n[phrases]\nsafe = ["open the safe"]\n'
    found = read_phrases(written(tmp_path, text), built_in=BUILT_IN).guarded
    assert found == {"safe"} | read_phrases(None, built_in=BUILT_IN).guarded
    assert {"unlock", "garage door"} < found
    alone = read_phrases(written(tmp_path, f"built_in = false\n{text}"), built_in=BUILT_IN)
    assert alone.guarded == {"safe"}
    for value in ('"safe"', "[1]"):
        with pytest.raises(ConfigError, match="guarded: expected a list of names"):
            read_phrases(written(tmp_path, f"guarded = {value}\n"))


def test_the_built_in_sentences_have_the_rooms_and_names_of_the_home() -> None:
    first = read_phrases(None, {}, built_in=BUILT_IN)
    assert meaning(first, "turn on the hall lights")
    assert meaning(first, "turn on the ecobee") is None
    assert first.rebuild
    home = first.rebuild({"name": ["EcoBee", "Reading Corner"], "area": ["Sauna"]})
    for text, slots in {
        "turn on the sauna lights": {"": "light_on", "area": "Sauna", "light": "lights"},
        "turn on the hall lights": None,
        "switch the ecobee off": {"": "name_off", "name": "EcoBee"},
        "is the reading corner on": {"": "name_ask", "name": "Reading Corner"},
    }.items():
        assert meaning(home, text) == slots
    copied = read_phrases(BUILT_IN, {"name": ["EcoBee"], "area": ["Sauna"]}, built_in=BUILT_IN)
    assert meaning(copied, "switch the ecobee off") and meaning(copied, "turn on the hall lights")


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
    assert bool(words.following(said.split())) is expected


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
        ("[phrases\n", "expected TOML, found: "),
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
    with pytest.raises(ConfigError, match="codec can't decode"):
        read_phrases(tmp_path / "bytes.toml")
    many = json.dumps([f"this is sentence {number}" for number in range(100_000)])
    with pytest.raises(ConfigError, match="expected fewer sentences and values"):
        read_phrases(written(tmp_path, f"[phrases]\na = {many}\n"))
    with pytest.raises(ConfigError, match="expected at most 4 MB of sentences, found more"):
        read_phrases(written(tmp_path, "#" * (5 << 20)))


def test_the_shipped_sentences_are_home_commands() -> None:
    words = read_phrases(BUILT_IN)
    for said, meant in (
        ("switch off the desk lamp", {"": "light_off", "light": "desk lamp"}),
        ("set a timer for 7 minutes", {"": "timer_start", "number": 7}),
        ("what is the weather like in chicago", None),
    ):
        assert words.parse(said.split()) == meant


def test_a_text_is_compared_without_capitals_and_marks() -> None:
    assert plain(" Set the Light to 50%, please! ") == "set the light to 50 percent please"
    assert plain("It's 21°.") == "it's 21 degrees"


ATTACKS: dict[str, dict[str, Any]] = {
    "brackets": {"sentences": ["[" * 520 + "x" + "]" * 520]},
    "numbers": {"sentences": ["{n}" * 4000], "slots": {"n": {"from": 0, "to": 999}}},
    "slots": {"sentences": ["x"], "slots": {f"n{at}": {"from": 0, "to": 999} for at in range(400)}},
}


@pytest.mark.parametrize("name", ATTACKS)
def test_what_would_take_all_memory_or_time_is_refused(name: str) -> None:
    given = ATTACKS[name]
    table = {"phrases": {"answer": given["sentences"]}, "slots": given.get("slots", {})}
    with pytest.raises(ConfigError, match=r"expected (at most 20|fewer)"):
        build_network(table, "", None, most=WORDS_RECEIVED)


def test_toml_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected TOML, found"):
        parse_phrases("a = " + "[" * 5000)


@pytest.mark.parametrize("nothing", ["(||||)" * 200, "[set] " * 300])
def test_many_ways_to_read_a_sentence_take_no_longer(nothing: str) -> None:
    words = build_network({"phrases": {"a": [f"{nothing} set it now"]}}, "", None)
    assert words.parse(["set", "it", "now"]) == {"": "a"}
    assert words.parse(["set", "it"]) is None
    assert words.following(["set", "it"]) == {"now"} and not words.following(["now"])


def test_a_slot_is_in_the_network_once() -> None:
    slots = {"n": {"from": 0, "to": 999}}
    one, many = (
        build_network({"phrases": {"a": ["say {n} " * times]}, "slots": slots}, "", None)
        for times in (1, 9)
    )
    assert len(many.edges) - len(one.edges) == 8 * 2
    assert many.parse(["say", "5", "say", "five"] * 4 + ["say", "999"]) == {"": "a", "n": 999}
    assert many.with_digits("say five hundred five say five") == "say 505 say 5"


def test_letters_and_apostrophes_may_be_written_in_either_way() -> None:
    decomposed = unicodedata.normalize("NFD", "licht in der küche")
    found = build_network(parse_phrases(f'[phrases]\nlight = ["{decomposed}"]'), "", None)
    assert found.parse(plain("Licht in der Küche.").split()) == {"": "light"}
    assert plain(decomposed) == "licht in der küche"
    assert plain("Let\u2019s go!") == "let's go"
