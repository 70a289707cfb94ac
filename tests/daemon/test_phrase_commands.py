"""Expected sentences over the control socket: edited, tried, and expected as an answer."""

import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import soundfile
from rigs.checkout import SPEECH
from rigs.core import make_core, make_works
from rigs.word_errors import same_words

from appliance import config
from appliance.control.server import ControlError
from appliance.daemon.phrase_commands import ANSWER_WITHIN_S, Expectations, PhraseCommands
from appliance.daemon.setting_commands import SettingCommands
from appliance.infer import Transcriber
from appliance.infer.opening import SENTENCES_FILE
from appliance.records import Listener, Transcript, Window, new_id
from appliance.store.store import Store

TEXT = '[phrases]\nweather = ["what is the {thing}"]\n[slots]\nthing = ["weather", "time"]\n'


class House(Listener):
    def __init__(self, folder: Path, model: Transcriber) -> None:
        self.folder, self.model = folder, model
        self.transcripts: list[Transcript] = []
        (folder / "x.toml").write_text(f'[store]\npath = "{folder}"\n', encoding="utf-8")
        self.settings = SettingCommands(
            config.load(folder / "x.toml"),
            lambda chosen: config.read(folder / "x.toml", chosen),
            lambda: None,
        )
        self.expectations = Expectations()
        self.commands = PhraseCommands(self.settings, model, self.expectations)

    def on_transcript(self, transcript: Transcript) -> None:
        self.transcripts.append(transcript)

    def ask(self, name: str, **arguments: object) -> Any:
        return self.commands.commands[name](arguments)

    def refusal(self, name: str, **arguments: object) -> str:
        with pytest.raises(ControlError) as caught:
            self.ask(name, **arguments)
        return f"{caught.value.code}: {caught.value}"


@pytest.fixture
def house(tmp_path: Path, transcriber: Transcriber) -> House:
    return House(tmp_path, transcriber)


def speech(ago_s: float = 0.0) -> Window:
    """A recorded sentence, as if it had ended `ago_s` before now."""
    samples, _ = soundfile.read(SPEECH / "02.flac", dtype="int16")
    end_s = time.monotonic() - ago_s
    length_s = len(samples) / 16_000
    return Window(new_id(), 1, True, samples, end_s - length_s, end_s, length_s)


def test_sentences_are_shown_saved_and_given_up_for_the_original_ones(house: House) -> None:
    first = house.ask("phrases")
    assert first["text"] == SENTENCES_FILE.read_text("utf-8")
    assert not first["own"]
    assert house.ask("phrases_save", text=TEXT) == {"file": str(house.folder / "phrases.toml")}
    assert house.ask("phrases") == {
        "text": TEXT, "file": str(house.folder / "phrases.toml"), "own": True,
    }  # fmt: skip
    assert house.settings.read(None).settings.phrases.file == str(house.folder / "phrases.toml")
    house.ask("phrases_save", text=None)
    assert house.ask("phrases") == first


@pytest.mark.parametrize(
    ("command", "arguments", "why"),
    [
        ("phrases_save", {}, "bad_request: text: expected the text of a file, or null"),
        ("phrases_save", {"text": 5}, "bad_request: text: expected the text of a file of at most"),
        ("phrases_save", {"text": "x" * 12_001}, "bad_request: text: expected the text of a file"),
        ("phrases_save", {"text": "[x"}, "refused: expected TOML, found: "),
        ("phrases_save", {"text": "[phrases]"}, "refused: expected sentences, found none"),
        ("phrases_save", {"text": '[phrases]\na = ["свет"]'}, "refused: [phrases] file: expected"),
        ("expect", {}, 'bad_request: sentences: expected a list such as ["yes [please]", "no"]'),
        ("expect", {"sentences": ["yes", 5]}, "refused: phrases.answer: expected a list"),
        ("expect", {"sentences": ["{x}"]}, "refused: phrases.answer, sentence 1: expected a slot"),
        (
            "expect",
            {"sentences": ["a" * 65]},
            "refused: phrases.answer, sentence 1: expected at most 64 letters in a word, found 65",
        ),
        ("expect", {"sentences": ["a"], "seconds": 61}, "bad_request: seconds: expected 1 to 60"),
        ("expect", {"sentences": ["a"], "slots": 5}, "refused: expected the tables"),
        ("expect", {"sentence": ["a"]}, "bad_request: unknown argument sentence"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_saved(
    house: House, command: str, arguments: dict[str, object], why: str
) -> None:
    assert house.refusal(command, **arguments).startswith(why)
    assert not (house.folder / "phrases.toml").exists()
    assert not house.ask("expect", sentences=["yes"]).done(), "a refused one is not awaited"
    house.expectations.poll(stop=True)


def test_the_next_utterance_answers_with_the_likeliest_sentences(house: House) -> None:
    settings = house.settings.settings
    store = Store.open(settings.store)
    core = make_core(settings, house.model, store, house, house.expectations)
    works = make_works(core, house.expectations)
    spoken, other = "how much power are we using", "close the garage door"
    answer = house.ask("expect", sentences={"right": [spoken], "wrong": [other]})
    assert isinstance(answer, Future)
    assert house.refusal("expect", sentences=["no"]).startswith("too_many: another answer")
    early, window = speech(ago_s=60), speech()
    for one in (early, window):
        core.backlog.push(one)
        lease = core.backlog.take_window(0)
        assert lease
        work = works.leased(lease)
        works.encode(work)
        works.decode(work)
        if one is early:
            assert not answer.done(), "it was spoken before"
    found = answer.result(1)
    assert found["transcript_id"] == window.id and same_words(found["text"], spoken)
    assert (found["answers"][0]["phrase"], found["answers"][0]["phrase_name"]) == (spoken, "right")
    assert found["answers"][0]["phrase_confidence"] > 0.5
    published = [one.phrase.name for one in house.transcripts if one.phrase]
    assert not {"right", "wrong"} & {*published}
    core.backlog.close()


def test_without_an_answer_in_time_there_is_none(house: House) -> None:
    answer = house.ask("expect", sentences=["yes"], seconds=1)
    house.expectations.poll()
    assert not answer.done()
    current = house.expectations._current
    assert current
    current.until_s -= 1 + ANSWER_WITHIN_S
    house.expectations.poll()
    assert answer.result(1) == {"transcript_id": None, "text": None, "answers": []}
    answer = house.ask("expect", sentences=["yes"])
    house.commands.close()
    assert answer.result(1)["text"] is None
