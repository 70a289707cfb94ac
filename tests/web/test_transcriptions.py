"""`POST /v1/audio/transcriptions` with curl, a real page and a real daemon."""

import asyncio
import contextlib
import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from rigs.checkout import SPEECH
from rigs.daemon import daemon
from rigs.needs import needs_ffmpeg, program
from rigs.page import Page, page
from rigs.waiting import PATIENCE_S, until
from rigs.word_errors import same_words

from appliance.config import WYOMING_SOCKET
from appliance.control import SOCKET_NAME
from appliance.web.connections import CONNECTIONS
from appliance.web.daemon import DaemonClient, OfflineError
from appliance.web.transcriptions import _daemon_request

pytestmark = program("curl", package="curl")
SAID = "what is the weather like in chicago"
"""In 00.flac."""
RECORDED = {
    "openai 3.57 for Python": (
        "multipart/form-data; boundary=18898606cb82d6cb392a284affc102fd",
        """--18898606cb82d6cb392a284affc102fd
Content-Disposition: form-data; name="model"

whisper-1
--18898606cb82d6cb392a284affc102fd
Content-Disposition: form-data; name="language"

en
--18898606cb82d6cb392a284affc102fd
Content-Disposition: form-data; name="prompt"

Ada
--18898606cb82d6cb392a284affc102fd
Content-Disposition: form-data; name="timestamp_granularities[]"

segment
--18898606cb82d6cb392a284affc102fd
Content-Disposition: form-data; name="file"; filename="a.flac"
Content-Type: audio/flac

SOUND
--18898606cb82d6cb392a284affc102fd--
""",
    ),
    "openai 6.49 for JavaScript": (
        "multipart/form-data; boundary=openai-2f5xepnmqfb",
        """--openai-2f5xepnmqfb
Content-Disposition: form-data; name="model"

whisper-1
--openai-2f5xepnmqfb
Content-Disposition: form-data; name="file"; filename="a.flac"
Content-Type: application/octet-stream

SOUND
--openai-2f5xepnmqfb--
""",
    ),
    "FormData in Node 20": (
        "multipart/form-data; boundary=----formdata-undici-027113205841",
        """------formdata-undici-027113205841
Content-Disposition: form-data; name="file"; filename="a %22b%22.webm"
Content-Type: audio/webm;codecs=opus

SOUND
------formdata-undici-027113205841
Content-Disposition: form-data; name="prompt"


------formdata-undici-027113205841--
""",
    ),
}
"""Content-Type and body by the program."""


def output_of(command: list[str]) -> str:
    return subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=True
    ).stdout


class Api:
    """The interface, and its token."""

    def __init__(self, home: Page) -> None:
        self.home = home
        self.url = f"http://localhost:{home.port}/v1/audio/transcriptions"
        self.token = home.access.new_api_token()

    def curl(self, *fields: str, token: str | None = None, path: str = "") -> tuple[int, str]:
        """Return the status and the answer."""
        command = ["curl", "-sS", "-w", "\n%{http_code}", f"{self.url}{path}"]
        command += ["-H", f"Authorization: Bearer {self.token if token is None else token}"]
        for field in fields:
            command += ["-F", field]
        text, _, status = output_of(command).rpartition("\n")
        return int(status), text


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("api")
    state = {"RUNTIME_DIRECTORY": str(folder), "STATE_DIRECTORY": str(folder / "state")}
    with page(folder, api=True) as home, daemon(home.config, environment=state):
        until((folder / SOCKET_NAME).exists)
        yield Api(home)


def speech(number: str = "00") -> str:
    return f"file=@{SPEECH / f'{number}.flac'}"


def test_each_form_has_the_text(api: Api) -> None:
    status, answer = api.curl(speech(), "model=whisper-1")
    text = json.loads(answer)["text"]
    assert (status, list(json.loads(answer))) == (200, ["text"])
    assert same_words(text, SAID)
    assert api.curl(speech(), "response_format=text") == (200, f"{text}\n")
    status, answer = api.curl(speech(), "response_format=verbose_json")
    found = json.loads(answer)
    (segment,) = found["segments"]
    assert (status, found["text"], segment["text"]) == (200, text, text)
    assert found["language"] == "english"
    assert 0 <= segment["start"] < segment["end"] <= found["duration"]
    assert segment["avg_logprob"] < 0
    wanted = ["response_format=verbose_json", "timestamp_granularities[]=word"]
    found = json.loads(api.curl(speech(), *wanted)[1])
    assert [word["word"] for word in found["words"]] == text.split()
    assert found["words"][0]["start"] < found["words"][-1]["end"] <= found["duration"]
    assert "segments" not in found
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
    pause = np.zeros(160_000, np.float32)
    sound = np.concatenate([parts[0], pause, parts[1], pause]).repeat(3)
    soundfile.write(tmp_path / "long.wav", np.stack([sound, sound], axis=1), 48_000)
    status, answer = api.curl(f"file=@{tmp_path / 'long.wav'}", "response_format=verbose_json")
    found = json.loads(answer)
    assert status == 200
    texts = [json.loads(api.curl(speech(name))[1])["text"] for name in ("00", "02")]
    assert found["text"] == " ".join(texts)
    first, second = found["segments"]
    assert first["end"] + 1 < second["start"]
    assert found["duration"] == pytest.approx(len(sound) / 48_000, abs=0.03)


@pytest.mark.parametrize(
    ("fields", "status", "param", "why"),
    [
        (["model=x"], 400, "file", "Expected a sound file in the field `file`."),
        ([speech(), "response_format=xml"], 400, "response_format", "Expected one of json, text"),
        ([speech(), "timestamp_granularities[]=letter"], 400, "timestamp_granularities[]", "Expe"),
        ([speech(), "language=de"], 400, None, "expected a language of the model (en)"),
        ([f"file=@{__file__}"], 400, "file", "the file: no sound in it"),
        (["file=@/dev/null"], 400, "file", "the file is an empty file"),
        ([], 405, None, "Expected POST."),
    ],
)
def test_a_wrong_request_is_one_clear_line(
    api: Api, fields: list[str], status: int, param: str | None, why: str
) -> None:
    found, answer = api.curl(*fields)
    error = json.loads(answer)["error"]
    assert (found, error["type"], error["param"]) == (status, "invalid_request_error", param)
    assert error["message"].startswith(why)
    assert "\n" not in error["message"]


def test_other_paths_answer_as_openai_does(api: Api) -> None:
    assert json.loads(api.curl(path="/../../models/whisper-1")[1])["id"] == "whisper-1"
    for path, status in (("models/gpt-4", 404), ("chat/completions", 404)):
        found, answer = api.curl(path=f"/../../{path}")
        assert (found, json.loads(answer)["error"]["type"]) == (status, "invalid_request_error")


def test_a_sound_of_many_channels_is_heard_and_one_without_samples_is_refused(
    api: Api, tmp_path: Path
) -> None:
    sound, rate_hz = soundfile.read(SPEECH / "00.flac", dtype="int16")
    soundfile.write(tmp_path / "many.wav", np.stack([sound] * 24, axis=1), rate_hz)
    text = json.loads(api.curl(f"file=@{tmp_path / 'many.wav'}")[1])["text"]
    assert same_words(text, SAID)
    soundfile.write(tmp_path / "none.wav", sound[:0], rate_hz)
    assert api.curl(f"file=@{tmp_path / 'none.wav'}")[0] == 400


@needs_ffmpeg
def test_what_a_browser_records_is_read(api: Api, tmp_path: Path) -> None:
    file = tmp_path / "talk.webm"
    subprocess.run(["ffmpeg", "-v", "error", "-i", SPEECH / "00.flac", file], check=True)
    status, answer = api.curl(f"file=@{file};filename=blob")
    assert status == 200, answer
    assert same_words(json.loads(answer)["text"], SAID)


@needs_ffmpeg
def test_a_telephones_amr_is_read(api: Api, tmp_path: Path) -> None:
    frame = b"\x3c" + bytes(31)  # 20 ms at 12.2 kbit/s (RFC 4867)
    (tmp_path / "memo.amr").write_bytes(b"#!AMR\n" + 50 * frame)
    status, answer = api.curl(f"file=@{tmp_path / 'memo.amr'}", "response_format=verbose_json")
    assert (status, json.loads(answer)["duration"]) == (200, pytest.approx(1.0, abs=0.05))


def test_ten_minutes_are_transcribed_and_more_than_an_hour_is_refused(
    api: Api, tmp_path: Path
) -> None:
    sound, rate_hz = soundfile.read(SPEECH / "00.flac", dtype="int16")
    silence = np.zeros(595 * rate_hz, np.int16)
    soundfile.write(tmp_path / "long.flac", np.concatenate([sound, silence, sound]), rate_hz)
    sent = f"file=@{tmp_path / 'long.flac'}"
    found = json.loads(api.curl(sent, "response_format=verbose_json")[1])
    first, last = found["segments"]
    assert (first["text"], last["end"] > 595) == (last["text"], True)
    soundfile.write(tmp_path / "hours.flac", np.zeros(3601 * 8000, np.int16), 8000)
    status, answer = api.curl(f"file=@{tmp_path / 'hours.flac'}")
    assert (status, "at most 3600 s of sound" in answer) == (400, True)


def test_a_client_that_leaves_makes_room_for_others(api: Api, tmp_path: Path) -> None:
    sounds = [soundfile.read(SPEECH / f"{n:02}.flac", dtype="int16")[0] for n in range(12)]
    soundfile.write(tmp_path / "long.flac", np.concatenate(sounds * 20), 16_000)
    command = ["curl", "-sN", api.url, "-H", f"Authorization: Bearer {api.token}"]
    command += ["-F", f"file=@{tmp_path / 'long.flac'}", "-F", "stream=true"]
    clients = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    for client in clients:
        assert client.stdout and b".delta" in client.stdout.readline()
    assert api.curl(speech())[0] == 429
    for client in clients:
        client.kill()
        client.communicate()
    until(lambda: api.curl(speech())[0] == 200)


def test_a_wrong_token_and_a_file_that_is_too_large_get_an_answer(api: Api, tmp_path: Path) -> None:
    (tmp_path / "large.wav").write_bytes(bytes(60 << 20))
    for token in ("", "rs-wrong"):
        for file in (speech(), f"file=@{tmp_path / 'large.wav'}"):
            status, answer = api.curl(file, token=token)
            assert (status, "roomscribe web token" in answer) == (401, True)
    command = ["curl", "-sS", api.url, "-F", file, "-w", "%{size_upload}", "-o", "/dev/null"]
    assert output_of(command) == "0", "a client that asks first does not send its file"
    status, answer = api.curl(f"file=@{tmp_path / 'large.wav'}")
    assert (status, json.loads(answer)["error"]["param"]) == (413, "file")
    assert api.curl(speech())[0] == 200


def test_the_daemon_gets_the_names_in_a_prompt_and_the_languages_code() -> None:
    prompt = "This is a talk of Ada and ZyntriQix. Please note: Digique Plus, CynapseFive."
    found = _daemon_request({"prompt": ["old", prompt], "language": ["English"]}, words=False)
    assert not found["acts"] and _daemon_request({"acts": ["true"]}, words=False)["acts"]
    assert found["transcript_names"] == ["Ada", "ZyntriQix", "Digique", "Plus", "CynapseFive"]
    assert found["language"] == "en"


@pytest.mark.parametrize("client", RECORDED)
def test_what_clients_have_sent_is_read(api: Api, client: str) -> None:
    """Requests as they were recorded, with the token and the file in their places."""
    kind, form = RECORDED[client]
    sound = (SPEECH / "00.flac").read_bytes()
    body = form.replace("\n", "\r\n").encode().replace(b"SOUND", sound)
    headers = {"Authorization": f"Bearer {api.token}", "Content_Type": kind}
    status, _, answer = api.home.request("POST", "v1/audio/transcriptions", body, **headers)
    assert status == 200, answer
    assert same_words(json.loads(answer)["text"], SAID)


def test_scripts_of_a_web_page_are_served_only_if_it_is_named(api: Api, tmp_path: Path) -> None:
    origin = "https://chat.example.org"
    asked = {"Origin": origin, "Access_Control_Request_Headers": "x-a"}
    path = "v1/audio/transcriptions"
    status, headers, _ = api.home.request("OPTIONS", path, None, **asked)
    assert (status, headers["Access-Control-Allow-Origin"]) == (401, None)
    with page(tmp_path, api=True, cors=origin) as home:
        status, headers, _ = home.request("OPTIONS", path, None, **asked)
        assert (status, headers["Access-Control-Allow-Headers"]) == (204, "x-a")
        assert headers["Access-Control-Allow-Origin"] == origin
        status, headers, _ = home.request("POST", path, b"", **asked)
        assert (status, headers["Access-Control-Allow-Origin"]) == (401, origin)
        _, headers, _ = home.request("OPTIONS", path, Origin="https://evil.example.org")
        assert headers["Access-Control-Allow-Origin"] is None


def test_it_is_off_unless_the_configuration_says_otherwise(tmp_path: Path) -> None:
    with page(tmp_path) as home:
        status, answer = Api(home).curl(speech())
    assert (status, "api = true" in answer) == (404, True)


def test_questions_without_a_token_do_not_keep_the_owner_out(tmp_path: Path) -> None:
    origin = "https://chat.example.org"
    ask = f"OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: {origin}\r\n\r\n".encode()
    with page(tmp_path, api=True, cors=origin) as home, contextlib.ExitStack() as opened:
        for _ in range(CONNECTIONS + 10):
            stranger = socket.create_connection(("127.0.0.1", home.port), 20)
            opened.callback(stranger.close)
            stranger.sendall(ask)
            assert stranger.recv(100).startswith(b"HTTP/1.1 204")
        assert home.get("")[0] == 200


@pytest.mark.parametrize(
    ("fields", "param", "why"),
    [
        (("include[]=logprobs",), "include[]", "is not supported"),
        (("prompt=" + "a" * 70_000,), "prompt", "at most 64 kB in a field"),
        (("a=b",) * 101, None, "at most 100 parts"),
    ],
)
def test_a_form_of_too_much_is_refused(
    api: Api, fields: tuple[str, ...], param: str | None, why: str
) -> None:
    status, answer = api.curl(speech(), *fields)
    error = json.loads(answer)["error"]
    assert (status in (400, 413), error["param"], why in error["message"]) == (True, param, True)


@pytest.mark.parametrize("language", ["auto", "null", "", "en-US", "EN_gb", "English"])
def test_a_language_is_taken_as_clients_write_it(api: Api, language: str) -> None:
    status, answer = api.curl(speech(), f"language={language}")
    assert status == 200, answer


def test_a_path_without_v1_is_answered_whatever_its_body(api: Api, tmp_path: Path) -> None:
    (tmp_path / "large.wav").write_bytes(bytes(1 << 20))
    for path in ("audio/transcriptions", "v2/audio/transcriptions", ""):
        command = ["curl", "-sS", f"http://localhost:{api.home.port}/{path}", "-w", "%{http_code}"]
        answer = output_of([*command, "-F", f"file=@{tmp_path / 'large.wav'}"])
        assert "is under /v1" in answer and answer.endswith("}404"), path


def test_a_stream_is_not_buffered_by_a_proxy(api: Api) -> None:
    command = ["curl", "-sSi", api.url, "-H", f"Authorization: Bearer {api.token}"]
    command += ["-F", speech(), "-F", "stream=true"]
    assert "x-accel-buffering: no" in output_of(command).lower()


def test_a_request_waits_for_a_daemon_that_loads_its_settings(tmp_path: Path) -> None:
    async def connect() -> bytes:
        client = DaemonClient([tmp_path / SOCKET_NAME])
        with pytest.raises(OfflineError):
            async with client.connected(WYOMING_SOCKET):
                pass

        async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"here")
            writer.close()

        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(first_bytes(client))
            await asyncio.sleep(0)  # the first attempt fails
            async with await asyncio.start_unix_server(greet, tmp_path / WYOMING_SOCKET):
                return await waiting

    async def first_bytes(client: DaemonClient) -> bytes:
        async with client.connected(WYOMING_SOCKET, 60.0) as (reader, _):
            return await reader.read()

    assert asyncio.run(connect()) == b"here"
