"""A server of speech to text is asked, and whatever it answers, the caller gets a text or one clear
line, in time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from rigs.stt_server import INFO, Answer, SpeechServer, errs, resets, says, sends

from appliance.config import TranscriberSettings
from appliance.errors import ServerError
from appliance.wyoming.client import Info, WyomingClient
from appliance.wyoming.protocol import Event, pack

SOUND = np.arange(-16000, 16000, dtype=np.int16)
"""2 s."""
TRANSCRIPT = pack(Event("transcript", {"text": "turn on the light"}))


@pytest.fixture
def server() -> Iterator[SpeechServer]:
    with SpeechServer() as running:
        yield running


def client_of(server: SpeechServer, **more: Any) -> WyomingClient:
    return WyomingClient(TranscriberSettings(host="127.0.0.1", port=server.port, **more))


def test_the_sound_arrives_whole_and_the_text_comes_back(server: SpeechServer) -> None:
    server.answer = says("Licht an", language="de")
    reply = client_of(server, language="de").transcribe(SOUND, 5.0)
    assert (reply.text, reply.language) == ("Licht an", "de")
    assert server.asked == [{"language": "de"}]
    assert server.heard == [SOUND.tobytes()]


def test_without_a_language_the_server_decides(server: SpeechServer) -> None:
    reply = client_of(server).transcribe(SOUND, 5.0)
    assert server.asked == [{}]
    assert reply.language == ""


def test_a_server_says_what_it_is(server: SpeechServer) -> None:
    assert client_of(server).describe() == Info("large", ("en", "de"))


def test_of_several_models_the_one_for_the_language_counts(server: SpeechServer) -> None:
    program = INFO["asr"][0]
    models = [{"name": name, "installed": True, "languages": [name]} for name in ("en", "fr")]
    server.info = {"asr": [{**program, "models": models}]}
    assert client_of(server, language="fr").describe().model == "fr"
    assert client_of(server, language="it").describe().model == "en"


@pytest.mark.parametrize(
    ("info", "found"),
    [
        ({"asr": []}, "found nothing"),
        ({"asr": "all", "tts": [{"name": "piper"}]}, "found tts"),
        ({"asr": [{"installed": True, "models": [7, {"installed": False}]}]}, "found asr"),
        (b'{"type": "info", "data_length": 1000000000}\n', "data_length"),
        (b'{"type": "info", "payload_length": -1}\n', "payload_length"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "an object of JSON"),
        (b"[" * 100_000 + b"\n", "a line of at most"),
        (b"\xff" * 200_000, "a line of at most"),
        (b"", "within 0.3 s"),
    ],
)
def test_what_is_no_speech_to_text_server_is_one_line(
    server: SpeechServer, info: dict[str, object] | bytes, found: str
) -> None:
    server.info = info
    with pytest.raises(ServerError, match=found) as failed:
        client_of(server).describe(0.3)
    assert f"127.0.0.1:{server.port}" in str(failed.value)
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (says(None), "a transcript with a text"),
        (says(["light"]), "a transcript with a text"),
        (says("x" * 20_000), "has 20000 letters"),
        (errs(), "it reports out of memory"),
        (errs("busy", ""), "it reports busy"),
        (sends(), "closed"),
        (sends(b'{"type": "transcript", "data_length": 100}\n{"text":'), "closed"),
        (sends(b'{"type": "transcript", "data_length": 1000000000}\n'), "data_length"),
        (sends(b'{"type": "transcript", "data_length": 2}\n[]'), "an object of JSON"),
        (sends(TRANSCRIPT[:10]), "closed"),
        (resets, "reset|closed"),
    ],
)
def test_an_answer_that_is_none_is_one_line(
    server: SpeechServer, answer: Answer, found: str
) -> None:
    server.answer = answer
    with pytest.raises(ServerError, match=found):
        client_of(server).transcribe(SOUND, 5.0)


def test_an_answer_that_does_not_come_is_given_up_in_time(server: SpeechServer) -> None:
    server.answer = server.hang
    with pytest.raises(ServerError, match="no answer within"):
        client_of(server).transcribe(SOUND, 0.2)


def test_an_answer_that_trickles_is_given_up_in_time(server: SpeechServer) -> None:
    def trickle(connection: socket.socket, _sound: bytes) -> None:
        while not server.over.wait(0.02):
            connection.sendall(b" ")

    server.answer = trickle
    with pytest.raises(ServerError, match="no answer within"):
        client_of(server).transcribe(SOUND, 0.3)


def test_a_server_that_does_not_read_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        settings = TranscriberSettings(host="127.0.0.1", port=deaf.getsockname()[1])
        with pytest.raises(ServerError, match="no answer within"):
            WyomingClient(settings).transcribe(np.zeros(16_000 * 600, np.int16), 0.3)


def test_of_two_answers_the_first_counts_and_none_is_taken_for_the_next(
    server: SpeechServer,
) -> None:
    server.answer = sends(TRANSCRIPT, pack(Event("transcript", {"text": "turn it off"})))
    client = client_of(server)
    assert client.transcribe(SOUND, 5.0).text == "turn on the light"
    server.answer = says("stop")
    assert client.transcribe(SOUND, 5.0).text == "stop"


def test_an_answer_before_the_end_of_the_sound_counts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings = TranscriberSettings(host="127.0.0.1", port=listener.getsockname()[1])

        def answer_at_once() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(TRANSCRIPT)
                while connection.recv(1 << 16):
                    pass

        thread = threading.Thread(target=answer_at_once)
        thread.start()
        assert WyomingClient(settings).transcribe(SOUND, 5.0).text == "turn on the light"
        thread.join()


def test_a_text_is_one_printable_line(server: SpeechServer) -> None:
    server.answer = says(" turn\non \x1b[31mthe\0 light\udcff ", language="no language at all")
    reply = client_of(server).transcribe(SOUND, 5.0)
    assert (reply.text, reply.language) == ("turn on [31mthe light?", "")


def test_nobody_there_is_one_line_with_a_fix() -> None:
    server = SpeechServer()
    with pytest.raises(ServerError, match=r"refused; check that it runs, and .transcriber. host"):
        client_of(server).transcribe(SOUND, 5.0)


@pytest.mark.parametrize("host", ["nowhere.invalid", "x" * 70, ".".join("x" * 70)])
def test_a_name_that_nobody_has_is_one_line(host: str) -> None:
    with pytest.raises(ServerError, match=host[:10]):
        WyomingClient(TranscriberSettings(host=host)).describe()


def test_hanging_up_cancels_the_request(server: SpeechServer) -> None:
    reached = threading.Event()

    def hang(connection: socket.socket, sound: bytes) -> None:
        reached.set()
        server.hang(connection, sound)

    server.answer, errors = hang, list[Exception]()
    client = client_of(server)

    def ask() -> None:
        try:
            client.transcribe(SOUND, 60.0)
        except ServerError as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert reached.wait(30)
    client.hang_up()
    thread.join(30)
    assert not thread.is_alive()
    assert len(errors) == 1
