"""The server as others meet it: what it says, whom it serves, and what it does not put up with."""

import socket
import struct
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rigs.broker import free_port
from rigs.recordings import sentences
from rigs.transcriber import HEARD, FakeTranscriber
from rigs.waiting import PATIENCE_S, in_thread, until
from rigs.wyoming import AUDIO_16K, Talk, Worker, running, sound_of

from appliance import build_version
from appliance.config import Settings, WyomingSettings
from appliance.records import SAMPLE_RATE
from appliance.wyoming import request
from appliance.wyoming.protocol import Event
from appliance.wyoming.request import Hooks
from appliance.wyoming.server import CONNECTIONS, Timeouts, WyomingServer

SPEECH = sound_of(sentences()[0].file)
SILENCE = np.zeros(SAMPLE_RATE, np.int16)
WHOLE = ["transcript-start", "transcript-chunk", "transcript", "transcript-stop"]


def kinds(events: list[Event]) -> list[str]:
    return [one.type for one in events]


def test_describe_says_what_home_assistant_wants_to_know() -> None:
    with running() as house, Talk(house.port) as talk:
        talk.send("describe")
        event = talk.event()
    assert event
    assert event.type == "info"
    [program] = event.data["asr"]
    assert program["name"] == "Roomscribe kitchen"
    assert program["version"] == build_version()
    assert program["installed"] is True
    assert program["requires_external_vad"] is True
    assert program["supports_transcript_streaming"] is True
    assert program["prefers_noise_reduction_enabled"] is False
    [model] = program["models"]
    assert model["languages"] == ["en"]
    assert {"name", "url"} == set(model["attribution"])
    assert event.data["tts"] == []


def test_a_request_gets_its_text_in_parts_and_whole() -> None:
    with running() as house, Talk(house.port) as talk:
        talk.speak(SPEECH)
        events = talk.events("transcript-stop")
    assert kinds(events) == WHOLE
    assert events[2].data == {"text": HEARD.text, "language": "en"}
    assert events[1].data["text"] == HEARD.text
    assert house.counted == {"wyoming_requests": 1}


def test_parts_of_the_text_are_sent_during_speech_and_add_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request, "RECORDED", np.inf)
    with running() as house, Talk(house.port) as talk:
        talk.send("audio-start", **AUDIO_16K)
        talk.sound(np.concatenate((SPEECH, SILENCE)))
        until(lambda: house.worker.asked)
        talk.sound(SILENCE)
        first = talk.events("transcript-chunk")
        talk.sound(SPEECH)
        talk.send("audio-stop")
        rest = talk.events("transcript-stop")
    assert kinds(first) == WHOLE[:2]
    assert kinds(rest) == WHOLE[1:]
    parts = [one.data["text"] for one in (*first, *rest) if one.type == "transcript-chunk"]
    assert rest[-2].data["text"] == "".join(parts) == f"{HEARD.text} {HEARD.text}"


def test_one_connection_makes_one_request_after_another_and_asks_in_between() -> None:
    with running() as house, Talk(house.port) as talk:
        for _ in range(3):
            talk.speak(SPEECH)
            assert talk.text() == HEARD.text
            talk.send("describe")
            assert talk.events("info")[-1].data["asr"]
        talk.send("ping", text="há")
        assert talk.event() == Event("pong", {"text": "há"})
        talk.send("ping")
        assert talk.event() == Event("pong", {"text": None})


def test_words_that_a_request_names_hold_for_it_alone() -> None:
    terms = ["Gideon", 5, "air fryer"]
    with running() as house, Talk(house.port) as talk:
        talk.send("transcribe", transcript_terms=terms, transcript_names=["Pantry", "Gideon"])
        for sent in (True, False):
            talk.send("audio-start", **AUDIO_16K)
            talk.sound(SPEECH)
            talk.send("audio-stop")
            assert talk.text() == HEARD.text
            named = {one.request.names for one in house.worker.asked}
            assert named == {("Pantry", "Gideon", "air fryer") if sent else ()}
            house.worker.asked.clear()
        for odd in ("Gideon", None, {"a": 1}, 7):
            talk.send("transcribe", transcript_terms=odd)
            talk.speak(SPEECH)
            assert talk.text() == HEARD.text
        talk.send("transcribe", transcript_names=[f"n{number}" for number in range(5000)])
        talk.sound(SPEECH)
        talk.send("audio-stop")
        assert talk.text() == HEARD.text
        assert len(house.worker.asked[-1].request.names) == 1000


def test_a_client_may_choose_any_language_that_the_model_knows() -> None:
    with running(languages=("de", "en", "fr")) as house, Talk(house.port) as talk:
        talk.send("describe")
        event = talk.event()
        assert event and event.data["asr"][0]["models"][0]["languages"] == ["en", "de", "fr"]
        for wanted, language in (("fr", "fr"), ("xx", ""), (["de"], ""), (None, "")):
            talk.send("transcribe", language=wanted)
            talk.sound(SPEECH)
            talk.send("audio-stop")
            assert talk.text() == HEARD.text
            assert {one.request.language for one in house.worker.asked} == {language}
            house.worker.asked.clear()


@pytest.mark.parametrize("acts", [True, False])
def test_a_sure_sentence_is_the_answer_if_it_is_all_that_was_said(acts: bool) -> None:
    with running(act_on="timer status", acts=acts) as house, Talk(house.port) as talk:
        talk.speak(SPEECH)
        assert talk.text() == ("timer status" if acts else HEARD.text)
        talk.speak(np.concatenate((SPEECH, *[SILENCE] * 10, SPEECH)))
        assert talk.text() == f"{HEARD.text} {HEARD.text}"


def test_the_detected_language_is_sent() -> None:
    german = FakeTranscriber()
    german.answer = replace(HEARD, language="de")
    with running(german) as house, Talk(house.port) as talk:
        talk.speak(SPEECH)
        events = talk.events("transcript-stop")
    assert [one.data["language"] for one in events if "language" in one.data] == ["de", "de"]


def test_silence_nothing_at_all_and_a_stop_without_a_start_have_an_empty_text() -> None:
    with running() as house, Talk(house.port) as talk:
        talk.speak(np.concatenate([SILENCE] * 3))
        assert talk.text() == ""
        talk.speak(SILENCE[:0])
        assert talk.text() == ""
        talk.send("audio-stop")
        assert talk.text() == ""
        assert house.worker.asked == []


def test_events_in_another_order_and_unknown_ones_do_no_harm() -> None:
    with running() as house, Talk(house.port) as talk:
        talk.send("select-program", name="Roomscribe kitchen")
        talk.send("no-such-event", b"\n{}\n" * 10, rate=3)
        talk.sound(SPEECH)  # neither transcribe nor audio-start
        talk.send("audio-stop")
        assert talk.text() == HEARD.text
        talk.sound(SPEECH)
        talk.send("transcribe", language="de", name="x", context={"a": 1}, transcript_names=["A"])
        talk.send("audio-start", **AUDIO_16K)  # what came before is forgotten
        talk.send("audio-start", **AUDIO_16K)
        talk.sound(SILENCE)
        talk.send("audio-stop")
        assert talk.text() == ""


def test_a_minute_of_speech_is_transcribed_and_a_second_more_is_not() -> None:
    minute = np.resize(np.concatenate((SPEECH, SILENCE)), 60 * SAMPLE_RATE)
    with running() as house:
        with Talk(house.port) as talk:
            talk.speak(minute, chunk=32_000)
            assert talk.text().count(HEARD.text) >= 5
        with Talk(house.port) as talk:
            talk.send("audio-start", **AUDIO_16K)
            talk.sound(np.concatenate((minute, SILENCE)), chunk=32_000)
            assert talk.text() == "bad_sound"


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b'{"type": "audio-chunk", "payload_length": 1000000000}\n' + b"x" * 1000, "bad_event"),
        (b'{"type": "x", "data_length": 1000000000}\n', "bad_event"),
        (b"[" * 60_000 + b"\n", "bad_event"),
        (b"x" * 70_000 + b"\n", "bad_event"),
        (b"GET / HTTP/1.1\r\n\r\n", "bad_event"),
        (b"\x16\x03\x01\x02\x00\x01\x00\n", "bad_event"),
        (b"\n", "bad_event"),
        (b'{"type": "audio-start", "data": {"rate": 1e999}}\n', "bad_sound"),
        (b'{"type": "audio-start"}\n', "bad_sound"),
        (b'{"type": "audio-chunk", "payload_length": 4}\nabcd', "bad_sound"),
    ],
)
def test_hostile_bytes_end_their_own_connection_with_a_word(sent: bytes, code: str) -> None:
    with running() as house, Talk(house.port) as other:
        other.send("audio-start", **AUDIO_16K)
        other.sound(SPEECH)
        with Talk(house.port) as talk:
            talk.socket.sendall(sent)
            [error] = talk.events()
            assert error.type == "error"
            assert error.data["code"] == code
            assert error.data["text"].isprintable()
        other.send("audio-stop")
        assert other.text() == HEARD.text
        assert house.counted == {"wyoming_failed": 1, "wyoming_requests": 1}


def test_sound_that_changes_its_form_is_refused() -> None:
    with running() as house, Talk(house.port) as talk:
        talk.send("audio-start", **AUDIO_16K)
        talk.sound(SPEECH[:1600])
        talk.sound(SPEECH[:1600], form=AUDIO_16K | {"rate": 44_100})
        assert talk.text() == "bad_sound"


def test_eight_of_twenty_are_served_and_the_others_get_busy() -> None:
    with running() as house:
        house.worker.working.clear()
        answers: list[str] = []

        def ask() -> None:
            try:
                with Talk(house.port) as talk:
                    talk.speak(SPEECH, chunk=8000)
                    answers.append(talk.text())
            except OSError as error:  # refused before it had sent all
                answers.append(str(error))

        asking = [threading.Thread(target=ask) for _ in range(20)]
        for one in asking:
            one.start()
        until(lambda: len(answers) == 12)
        assert answers == ["busy"] * 12
        with Talk(house.port) as talk:
            talk.send("describe")
            assert talk.event()
        house.worker.working.set()
        for one in asking:
            one.join(PATIENCE_S)
        assert answers[12:] == [HEARD.text] * 8
        assert house.counted == {"wyoming_requests": 8, "wyoming_refused": 12}
        with Talk(house.port) as talk:
            talk.speak(SPEECH)
            assert talk.text() == HEARD.text


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is this machine's on Linux alone")
def test_one_client_with_every_connection_open_keeps_nobody_from_being_heard(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with running() as house, Talk(house.port) as quiet:
        for talk in (quiet, *(idle := [Talk(house.port, source="127.0.0.2") for _ in range(30)])):
            with suppress(OSError):
                talk.send("describe")
                talk.event()
        for _ in range(3):
            with Talk(house.port) as talk:
                talk.speak(SPEECH)
                assert talk.text() == HEARD.text
        quiet.send("ping", text="still there")
        assert quiet.event() == Event("pong", {"text": "still there"}), "it has only this one"
        for talk in idle:
            talk.close()
    told = [one.message for one in caplog.records if "connections" in one.message]
    assert len(told) == 1, "one line, however often they come back"
    assert f"{CONNECTIONS} connections, 15 of them from 127.0.0.2" in told[0]


def test_describe_is_answered_while_a_window_is_transcribed_for_seconds() -> None:
    with running() as house, Talk(house.port) as busy:
        house.worker.working.clear()
        busy.speak(SPEECH)
        until(lambda: house.worker.asked)
        with Talk(house.port) as talk:
            for _ in range(5):
                talk.send("describe")
                assert talk.event()
        house.worker.working.set()
        assert busy.text() == HEARD.text


def test_cut_and_reset_connections_leave_nothing_behind() -> None:
    with running() as house:
        house.worker.working.clear()
        for reset in (True, False) * 12:
            talk = Talk(house.port)
            talk.send("audio-start", **AUDIO_16K)
            talk.sound(SPEECH)
            if reset:
                linger = struct.pack("ii", 1, 0)
                talk.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            else:
                talk.socket.sendall(b'{"type": "audio-chunk", "payload_length": 9}\nabc')
            talk.close()
            until(lambda: house.server.requests == 0)
        house.worker.working.set()
        assert not any(one.wanted for one in house.worker.asked)
        with Talk(house.port) as talk:
            talk.speak(SPEECH)
            assert talk.text() == HEARD.text


def test_a_half_open_connection_is_closed() -> None:
    with running(idle_s=0.3) as house, Talk(house.port) as silent, Talk(house.port) as half:
        half.socket.sendall(b'{"type": "describe"')
        assert silent.events() == []
        with pytest.raises(ConnectionResetError):
            half.events()
            raise ConnectionResetError  # closed in order is as good
        half.close()


def test_a_client_that_reads_no_answer_is_disconnected() -> None:
    with running(idle_s=0.3) as house:
        flood = socket.create_connection(("127.0.0.1", house.port))
        flood.settimeout(20)
        asked = b'{"type": "describe"}\n' * 3000
        with pytest.raises(OSError):
            for _ in range(2000):
                flood.sendall(asked)
        flood.close()


def test_only_allowed_addresses_are_served(caplog: pytest.LogCaptureFixture) -> None:
    with running(allow=("10.0.0.0/8",)) as house:
        for _ in range(2):
            with pytest.raises(OSError), Talk(house.port) as talk:
                talk.send("describe")
                assert talk.event() is None
                raise OSError  # closed in order is as good
        assert house.counted == {"wyoming_refused": 2}
    told = [one.message for one in caplog.records if "refused" in one.message]
    assert told == ["refused 127.0.0.1, which is not in wyoming.allow"]


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 on this machine")
def test_on_two_colons_both_kinds_of_addresses_are_served() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 on this machine")
    with running(listen="::", allow=("127.0.0.1", "::1")) as house:
        for host in ("127.0.0.1", "::1"):
            with Talk(house.port, host) as talk:
                talk.send("ping", text=host)
                assert talk.event() == Event("pong", {"text": host})
        assert house.server.address == f"[::]:{house.port}"


def test_a_port_that_is_taken_is_a_trouble_and_is_had_when_it_is_free() -> None:
    port = free_port()
    told = list[tuple[str, str | None]]()
    worker = Worker(FakeTranscriber())
    settings = replace(
        Settings(), wyoming=WyomingSettings(enabled=True, listen="127.0.0.1", port=port)
    )
    model: Any = FakeTranscriber().bundle
    with socket.create_server(("127.0.0.1", port)) as taken:
        server = WyomingServer(
            settings,
            "kitchen",
            Hooks(lambda: model, settings.gates, worker.submit, report=lambda *it: told.append(it)),
            Timeouts(listen_again_s=0.1),
        )  # fmt: skip
        with in_thread(lambda: server.run(lambda: None), server.stop):
            until(lambda: told)
            assert server.address is None
            taken.close()
            until(lambda: server.address)
    worker.close()
    assert told[0][1] == (
        f"nobody can connect to 127.0.0.1 port {port} for speech to text: another program uses "
        "that port. Choose another wyoming.port"
    )
    assert told[-1] == ("wyoming.port", None)


def test_waiting_clients_get_an_error_when_the_server_stops() -> None:
    with running() as house:
        house.worker.working.clear()
        talk, idle = Talk(house.port), Talk(house.port)
        idle.send("describe")
        assert idle.event()
        talk.speak(SPEECH)
        until(lambda: house.worker.asked)
        house.server.stop()
        assert talk.text() == "failed"
        talk.close()
        idle.close()
        assert house.counted == {"wyoming_failed": 1}, "who asked for nothing was denied nothing"
        with pytest.raises(ConnectionRefusedError):
            until(lambda: Talk(house.port).close())
