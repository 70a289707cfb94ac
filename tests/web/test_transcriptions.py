"""`POST /v1/audio/transcriptions` with curl, a real page and a real daemon."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from rigs.checkout import SPEECH
from rigs.daemon import daemon
from rigs.needs import program
from rigs.page import Page, page
from rigs.waiting import until
from rigs.word_errors import same_words

from appliance.control import SOCKET_NAME
from appliance.web.transcriptions import subtitles

pytestmark = program("curl", package="curl")


class Api:
    """The interface, and its token."""

    def __init__(self, home: Page) -> None:
        self.url = f"http://localhost:{home.port}/v1/audio/transcriptions"
        self.token = home.access.new_api_token()

    def curl(self, *fields: str, token: str | None = None, path: str = "") -> tuple[int, str]:
        """Return the status and the answer."""
        command = ["curl", "-sS", "-w", "\n%{http_code}", f"{self.url}{path}"]
        command += ["-H", f"Authorization: Bearer {self.token if token is None else token}"]
        for field in fields:
            command += ["-F", field]
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        text, _, status = found.stdout.rpartition("\n")
        return int(status), text


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("api")
    state = {"RUNTIME_DIRECTORY": str(folder), "STATE_DIRECTORY": str(folder / "state")}
    with page(folder, api=True) as home, daemon(home.config, environment=state):
        until((folder / SOCKET_NAME).exists, 60)
        yield Api(home)


def speech(number: str = "00") -> str:
    return f"file=@{SPEECH / f'{number}.flac'}"


def test_each_form_has_the_text(api: Api) -> None:
    status, answer = api.curl(speech(), "model=whisper-1")
    text = json.loads(answer)["text"]
    assert (status, list(json.loads(answer))) == (200, ["text"])
    assert same_words(text, "what is the weather like in chicago")
    assert api.curl(speech(), "response_format=text") == (200, f"{text}\n")
    status, answer = api.curl(speech(), "response_format=verbose_json")
    found = json.loads(answer)
    (segment,) = found["segments"]
    assert (status, found["text"], segment["text"], found["language"]) == (200, text, text, "en")
    assert 0 <= segment["start"] < segment["end"] <= found["duration"]
    assert segment["avg_logprob"] < 0
    status, answer = api.curl(speech(), "response_format=srt")
    assert answer.startswith("1\n00:00:00,")
    assert answer.endswith(f"\n{text}\n")
    status, answer = api.curl(speech(), "stream=true")
    lines = [json.loads(line.removeprefix("data: ")) for line in answer.split("\n\n") if line]
    assert lines == [
        {"type": "transcript.text.delta", "delta": text},
        {"type": "transcript.text.done", "text": text},
    ]


def test_a_long_sound_of_another_rate_is_cut_and_its_parts_are_joined(
    api: Api, tmp_path: Path
) -> None:
    parts = [soundfile.read(SPEECH / f"{name}.flac", dtype="float32")[0] for name in ("00", "02")]
    pause = np.zeros(32_000, np.float32)
    sound = np.concatenate([parts[0], pause, parts[1], pause]).repeat(3)
    soundfile.write(tmp_path / "long.wav", np.stack([sound, sound], axis=1), 48_000)
    status, answer = api.curl(f"file=@{tmp_path / 'long.wav'}", "response_format=verbose_json")
    found = json.loads(answer)
    assert status == 200
    texts = [json.loads(api.curl(speech(name))[1])["text"] for name in ("00", "02")]
    assert found["text"] == " ".join(texts)
    first, second = found["segments"]
    assert first["end"] + 1 < second["start"]
    assert found["duration"] == pytest.approx(len(sound) / 48_000, abs=0.01)


@pytest.mark.parametrize(
    ("fields", "status", "why"),
    [
        (["model=x"], 400, "Expected a sound file in the field `file`."),
        ([speech(), "response_format=xml"], 400, "expected one of json, text, srt"),
        ([f"file=@{__file__}"], 400, "Expected a sound file as WAV, FLAC, OGG or MP3"),
        ([], 405, "Expected POST."),
    ],
)
def test_a_wrong_request_is_one_clear_line(
    api: Api, fields: list[str], status: int, why: str
) -> None:
    found, answer = api.curl(*fields)
    error = json.loads(answer)["error"]
    assert (found, error["type"]) == (status, "invalid_request_error")
    assert error["message"].startswith(why)
    assert "\n" not in error["message"]


def test_a_sound_of_many_channels_and_one_without_samples_are_refused(
    api: Api, tmp_path: Path
) -> None:
    for name, shape in (("many", (800, 9)), ("none", (0, 1))):
        soundfile.write(tmp_path / f"{name}.wav", np.zeros(shape, np.int16), 8000)
    assert "at most 8 channels" in api.curl(f"file=@{tmp_path / 'many.wav'}")[1]
    assert "a file without one" in api.curl(f"file=@{tmp_path / 'none.wav'}")[1]


def test_a_sound_that_is_too_long_and_a_wrong_token_are_refused(api: Api, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "long.wav", np.zeros(61 * 8000, np.int16), 8000)
    status, answer = api.curl(f"file=@{tmp_path / 'long.wav'}", "response_format=verbose_json")
    assert (status, "at most 60 s of sound" in answer) == (400, True)
    for token in ("", "rs-wrong"):
        status, answer = api.curl(speech(), token=token)
        assert (status, "roomscribe web token" in answer) == (401, True)


def test_it_is_off_unless_the_configuration_says_otherwise(tmp_path: Path) -> None:
    with page(tmp_path) as home:
        status, answer = Api(home).curl(speech())
    assert (status, "api = true" in answer) == (404, True)


def test_subtitles_have_their_times_in_their_form() -> None:
    found = [
        {"text": "one", "start_s": 0.0, "end_s": 1.5},
        {"text": "two", "start_s": 59.9996, "end_s": 3661},
    ]
    assert subtitles(found, "srt") == (
        "1\n00:00:00,000 --> 00:00:01,500\none\n\n2\n00:01:00,000 --> 01:01:01,000\ntwo\n"
    )
    assert subtitles(found, "vtt").startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.500\none\n")
