"""What satellites and workers tell each other survives the way, and nothing of it is trusted."""

import io
import json
import math
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings, strategies as st
from rigs.checkout import ROOT
from rigs.fleet import pack_window
from rigs.records import differences
from rigs.transcriber import HEARD
from rigs.windows import a_window

from appliance.config import GateSettings
from appliance.fleet import messages
from appliance.fleet.messages import Answer, Job, MessageError, Refusal, read_answer
from appliance.infer.gates import Gates, fill_gates
from appliance.infer.runtime import RemoteModel
from appliance.records import SAMPLE_RATE, Phrase

SUBJECT = "roomscribe.window.kitchen"
MODEL = RemoteModel("base", "en", ("en", "de"), 10.0)


def header(**fields: Any) -> dict[str, str]:
    """A window's header with other fields."""
    job = Job(a_window("u"), "kitchen")
    found = json.loads(messages.window_headers(job)[messages.WINDOW_HEADER])
    return {messages.WINDOW_HEADER: json.dumps(found | fields)}


def test_a_window_arrives_as_it_was_sent_but_for_times_that_are_anothers() -> None:
    window = replace(a_window("u1", seconds=3), index=2, last=False)
    headers, payload = pack_window(Job(window, "kitchen", ahead=True), "3")
    assert headers["Nats-Msg-Id"] == f"kitchen.{window.id}.3"
    found = messages.read_window(SUBJECT, headers, payload)
    assert np.array_equal(found.window.samples, window.samples)
    assert (found.window.id, found.window.index, found.window.last) == (window.id, 2, False)
    assert (found.node, found.ahead) == ("kitchen", True)
    assert found.window.utterance_id == "kitchen.u1"


def test_half_a_minute_of_noise_is_taken_by_a_server_that_takes_a_megabyte() -> None:
    loudest = np.random.default_rng(1).integers(-32768, 32767, 30 * SAMPLE_RATE, np.int16)
    assert len(messages.pack_sound(loudest)) < messages.LARGEST
    with pytest.raises(MessageError, match="expected at most"):
        messages.pack_sound(np.concatenate([loudest, loudest]))


def test_an_answer_carries_all_that_a_satellite_makes_of_a_text() -> None:
    phrase = Phrase("turn on the light", "lights", {"room": "kitchen", "percent": 40}, 0.9)
    flags = ("token_limit", "corrected")
    heard = replace(HEARD, phrase=phrase, model="base", flags=flags)
    heard = replace(heard, language="de", language_probability=0.8)
    gates = {"act_confidence": -1.0, "low_confidence": 0.5}
    sent = replace(heard, recommended=gates)
    found = read_answer(messages.pack_answer(Answer("w", "pi5", sent)))
    assert (found.id, found.worker) == ("w", "pi5")
    assert not differences(found.result, sent)


def test_a_satellites_gates_are_its_own_or_those_of_the_workers_model() -> None:
    gates = GateSettings(low_confidence=0.2)
    heard = replace(HEARD, recommended={"low_confidence": 0.9, "act_confidence": 0.4})
    assert fill_gates(gates, heard.recommended).low_confidence == 0.2
    assert fill_gates(gates, heard.recommended).act_confidence == 0.4
    kept, reason = Gates(GateSettings()).apply(a_window(), heard)
    assert ("low_confidence" in kept.flags, reason) == (True, None)
    assert "low_confidence" not in Gates(GateSettings()).apply(a_window(), HEARD)[0].flags


def test_what_is_not_known_stays_unknown() -> None:
    heard = replace(HEARD, confidence=math.nan, avg_logprob=-math.inf)
    found = read_answer(messages.pack_answer(Answer("w", "pi5", heard))).result
    assert not isinstance(found, Refusal)
    assert math.isnan(found.confidence)
    assert found.avg_logprob == -math.inf


def test_a_refusal_and_a_presence_arrive() -> None:
    refusal = Refusal("too much\nto do", later=True)
    found = read_answer(messages.pack_answer(Answer("w", "pi5", refusal))).result
    assert found == Refusal("too much\\nto do", later=True)
    seen = messages.read_presence(messages.pack_presence("pi5", MODEL))
    assert (seen.node, seen.model) == ("pi5", MODEL)


def test_another_version_is_refused_by_name_and_unknown_fields_are_ignored() -> None:
    payload = messages.pack_sound(a_window().samples)
    with pytest.raises(MessageError, match="of version 1, found 3") as refused:
        messages.read_window(SUBJECT, header(v=3, utterance_id={"new": "form"}), payload)
    assert refused.value.later
    assert messages.read_window(SUBJECT, header(colour="red"), payload)
    other = json.dumps(json.loads(messages.pack_presence("pi5", MODEL)) | {"v": 2}).encode()
    with pytest.raises(MessageError, match=r"worker pi5 runs Roomscribe .*; upgrade") as refused:
        messages.read_presence(other)
    assert refused.value.later


def flac(seconds: float, rate: int = SAMPLE_RATE, channels: int = 1, kind: str = "FLAC") -> bytes:
    file = io.BytesIO()
    sound = np.zeros((int(seconds * rate), channels), np.int16)
    soundfile.write(file, sound, rate, format=kind, subtype="PCM_16")
    return file.getvalue()


@pytest.mark.parametrize(
    ("headers", "payload"),
    [
        (None, flac(1)),
        ({}, flac(1)),
        ({messages.WINDOW_HEADER: "[" * 4000}, flac(1)),
        ({messages.WINDOW_HEADER: json.dumps({"v": 1, "id": "x" * 5000})}, flac(1)),
        (header(id="a b"), flac(1)),
        (header(index=0), flac(1)),
        (header(utterance_id=7), flac(1)),
        (header(), b""),
        (header(), b"fLaC" + bytes(100)),
        (header(), flac(1)[:100]),
        (header(), flac(1, kind="WAV")),
        (header(), flac(1, rate=44_100)),
        (header(), flac(1, channels=2)),
        (header(), flac(40)),
    ],
)
def test_what_is_no_window_is_refused(headers: dict[str, str] | None, payload: bytes) -> None:
    with pytest.raises(MessageError):
        messages.read_window(SUBJECT, headers, payload)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"\xff",
        b"{" * 10_000,
        b'{"v":1}',
        b'{"v":1,"id":"w"}',
        b'{"v":1,"id":"w","transcription":{}}',
        b'{"id":"w","worker":"pi5","refusal":"no"}',
        b'{"stream":"ROOMSCRIBE","seq":7}',
    ],
)
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(MessageError):
        read_answer(data)


def test_a_text_is_one_printable_line() -> None:
    heard = replace(HEARD, text=" turn\non \x1b[31mthe\0 light\udcff ")
    found = read_answer(messages.pack_answer(Answer("w", "pi5", heard))).result
    assert not isinstance(found, Refusal)
    assert found.text == "turn on [31mthe light?"


def test_a_name_becomes_a_part_of_a_subject() -> None:
    assert messages.token("base.en int8") == "base-en-int8"
    assert messages.token("") == "-"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*HEARD.__slots__, "slots", "sentence"]), inner)
    ),
    max_leaves=20,
)


@settings(max_examples=25, deadline=None)
@given(found=st.dictionaries(st.sampled_from(["id", "worker", "transcription", "refusal"]), JSON))
def test_no_answer_crashes_a_satellite(found: dict[str, Any]) -> None:
    with suppress(MessageError):
        read_answer(json.dumps(found).encode())


SEALED = """
import ctypes, sys
import numpy as np
from appliance.fleet.messages import pack_sound, _read_sound

PR_SET_MDWE, REFUSE_EXEC_GAIN = 65, 1
if ctypes.CDLL(None).prctl(PR_SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0):
    sys.exit(77)
samples = np.arange(16_000, dtype=np.int16)
assert np.array_equal(_read_sound(pack_sound(samples)), samples)
"""


def test_sound_is_packed_and_read_where_memory_may_not_be_made_executable() -> None:
    """As in the daemon's unit (MemoryDenyWriteExecute)."""
    done = subprocess.run(
        [sys.executable, "-c", SEALED], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode == 77:
        pytest.skip("no memory-deny-write-execute: the kernel is older than Linux 6.3")
    assert done.returncode == 0, done.stderr
