"""Each door takes its largest input, and the work that it costs is bounded."""

import asyncio
import json
import os
import string
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from rigs.publishing import transcript
from rigs.transcriber import HEARD

from appliance import config
from appliance.config import WORDS_AT_MOST, VocabularySettings
from appliance.control.server import LINE_BYTES, ControlError
from appliance.daemon.correction_commands import TEXT_LETTERS, CorrectionCommands
from appliance.daemon.phrase_commands import TEXT_BYTES, Expectations, PhraseCommands
from appliance.daemon.setting_commands import SettingCommands
from appliance.fleet.messages import (
    LARGEST as FLEET_BYTES,
    Answer,
    MessageError,
    pack_answer,
    read_answer,
)
from appliance.homeassistant.names import NAMES_AT_MOST, cleaned
from appliance.infer import Transcriber
from appliance.infer.vocabulary import open_vocabulary
from appliance.mqtt.client import ReceivedMessage
from appliance.mqtt.commands import EXPECT_BYTES, ExpectRequests
from appliance.records import Tier
from appliance.store.store import Store
from appliance.web.form import FIELD_BYTES, PARTS_AT_MOST, ApiError, read_form
from appliance.web.transcriptions import _daemon_request
from appliance.wyoming.protocol import LARGEST, Event, pack, read_event
from appliance.wyoming.server import _read_names

MOST_CPU_S = 6.0
"""A stage is replaced after 25 s without progress; a Pi is four times slower than most machines."""
TWO = ["".join(pair) for pair in product(string.ascii_lowercase, repeat=2)]
THREE = ["".join(three) for three in product(string.ascii_lowercase, repeat=3)]
LONG = [f"{word}x"[:3] + "q" * 61 for word in THREE]
"""Words of the longest length, all different."""


def nested(size: int) -> str:
    return "[a " * (size // 6) + "a" + "]" * (size // 6)


SENTENCES: dict[str, Callable[[int], list[str]]] = {
    "one word": lambda size: ["a" * size],
    "one accented word": lambda size: ["\u0301\u0316" * (size // 4)],
    "different words": lambda size: [" ".join(THREE[: size // 4])],
    "longest words": lambda size: [" ".join(LONG[: size // 65])],
    "many sentences": lambda size: [word for word in TWO for _ in range(size // len(TWO) // 6)],
    "alternatives": lambda size: ["(" + "|".join(THREE[: size // 4]) + ")"],
    "optional words": lambda size: ["a " + "[a] " * (size // 4)],
    "brackets": lambda size: [nested(size)],
    "numbers": lambda size: ["a" + " {n}" * (size // 4)],
}
SLOTS = {"n": {"from": 0, "to": 999}}


class House:
    def __init__(self, folder: Path, model: Transcriber) -> None:
        file = folder / "x.toml"
        file.write_text(f'[store]\npath = "{folder}"\n', encoding="utf-8")
        self.model = model
        self.settings = SettingCommands(
            config.load(file), lambda chosen: config.read(file, chosen), lambda: None
        )
        self.expectations = Expectations()
        self.phrases = PhraseCommands(self.settings, model, self.expectations)


@pytest.fixture
def house(tmp_path: Path, transcriber: Transcriber) -> House:
    return House(tmp_path, transcriber)


def cpu_s(work: Callable[[], object]) -> float:
    """Return the processor time that some work takes; a refusal is an answer, too."""
    begun_s = time.process_time()
    with suppress(ControlError, ApiError):
        work()
    return time.process_time() - begun_s


@pytest.mark.parametrize("kind", SENTENCES)
def test_sentences_over_mqtt_cost_little(house: House, kind: str) -> None:
    request = {"sentences": SENTENCES[kind](EXPECT_BYTES - 200), "slots": SLOTS}
    payload = json.dumps(request, ensure_ascii=False).encode()[:EXPECT_BYTES]
    answered = ExpectRequests("kitchen", house.phrases.expect, lambda _: None)
    message = ReceivedMessage("roomscribe/kitchen/command/expect", payload, retained=False)
    assert cpu_s(lambda: answered(message)) < MOST_CPU_S


@pytest.mark.parametrize("kind", SENTENCES)
def test_sentences_over_the_control_socket_cost_little(house: House, kind: str) -> None:
    sentences = json.dumps(SENTENCES[kind](TEXT_BYTES - 100), ensure_ascii=False)
    text = f"[phrases]\nall = {sentences}\n[slots]\nn = {{from = 0, to = 999}}\n"
    save = house.phrases.commands["phrases_save"]
    assert cpu_s(lambda: save({"text": text[:TEXT_BYTES]})) < MOST_CPU_S


@pytest.mark.parametrize("text", ["a" * TEXT_LETTERS, "a b " * (TEXT_LETTERS // 4)])
def test_a_correction_costs_little(house: House, tmp_path: Path, text: str) -> None:
    store = Store.open(house.settings.settings.store)
    stored = transcript("b a " * 200)
    store.append(stored)
    commands = CorrectionCommands(
        store, "kitchen", house.settings, lambda _: None, house.model.is_common
    )
    correct = commands.commands["correct"]
    assert cpu_s(lambda: correct({"transcript_id": stored.id, "text": text})) < MOST_CPU_S
    store.close()


def test_a_vocabulary_costs_little(house: House) -> None:
    words = LONG[: LINE_BYTES // 68]
    configure = house.settings.commands["configure"]
    assert cpu_s(lambda: configure({"set": {"vocabulary.words": words}})) < MOST_CPU_S
    settings = VocabularySettings(words=tuple(words))
    tokenizer = house.model._tokenizer
    vocabulary = lambda: open_vocabulary(settings, house.model.bundle, tokenizer)  # noqa: E731
    assert cpu_s(vocabulary) < MOST_CPU_S


def test_the_names_of_a_home_cost_little(house: House) -> None:
    found = [(word, Tier.CALLED) for word in LONG] + [("a" * 100_000, Tier.CALLED)]
    assert cpu_s(lambda: cleaned(found)) < MOST_CPU_S
    names, _ = cleaned(found)
    assert len(names) == NAMES_AT_MOST
    assert cpu_s(lambda: house.model.set_names(names)) < MOST_CPU_S


def test_the_names_of_a_wyoming_request_cost_little(house: House) -> None:
    words = LONG[: LARGEST // 68]
    data = {"transcript_names": words[: len(words) // 2], "transcript_terms": ["a" * 30_000]}
    assert len(pack(Event("transcribe", data))) < LARGEST

    async def receive() -> Event:
        reader = asyncio.StreamReader(limit=LARGEST)
        reader.feed_data(pack(Event("transcribe", data)))
        return await read_event(reader)

    def work() -> None:
        names = _read_names(asyncio.run(receive()).data)
        settings = VocabularySettings()
        tokenizer = house.model._tokenizer
        open_vocabulary(settings, house.model.bundle, tokenizer).with_names(names)

    assert cpu_s(work) < MOST_CPU_S


@pytest.mark.parametrize("kind", ["one prompt", "capitals", "parts", "spaces"])
def test_a_form_costs_little(kind: str) -> None:
    head = '--x\r\nContent-Disposition: form-data; name="{}"\r\n\r\n'
    texts = {"one prompt": "A" * FIELD_BYTES, "capitals": "Ab cd. " * (FIELD_BYTES // 7)}
    parts = [texts.get(kind, "a." + " " * (FIELD_BYTES - 2))]
    if kind == "parts":
        parts = ["a"] * 200_000
    form = "".join(f"{head.format('prompt')}{text}\r\n" for text in parts)
    form += f"{head.format('file')}x\r\n--x--\r\n"
    body = os.memfd_create("form")
    os.write(body, form.encode())

    def work() -> None:
        _daemon_request(read_form(body, "multipart/form-data; boundary=x"), words=False)

    assert cpu_s(work) < MOST_CPU_S
    if kind == "parts":
        with pytest.raises(ApiError, match=f"at most {PARTS_AT_MOST} parts"):
            work()
    os.close(body)


def test_a_workers_answer_costs_little() -> None:
    answer = pack_answer(Answer("w", "pi5", replace(HEARD, text="a" * FLEET_BYTES)))
    begun_s = time.process_time()
    with pytest.raises(MessageError, match="expected at most 4000 letters"):
        read_answer(answer)
    assert time.process_time() - begun_s < MOST_CPU_S


def test_more_words_than_a_vocabulary_takes_are_left_out(house: House) -> None:
    data = {"transcript_names": [f"N{number}" for number in range(20_000)]}
    assert len(_read_names(data)) == WORDS_AT_MOST
