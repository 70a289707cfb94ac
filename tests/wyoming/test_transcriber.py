"""Windows are transcribed by a server, and by nobody or this machine's model while it cannot; it is
used again by itself."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from rigs.stt_server import SpeechServer, errs, says
from rigs.transcriber import FakeTranscriber
from rigs.windows import a_window

from appliance.config import ModelSettings, Settings, TranscriberSettings
from appliance.errors import ModelError, RefusedError, ServerError
from appliance.infer.gates import Gates
from appliance.infer.remote import LONGEST_PAUSE_S, MOST_TRIES, WATCH_EVERY_S, UnwantedError
from appliance.infer.transcriber import Transcriber
from appliance.records import SAMPLE_RATE
from appliance.wyoming.client import Info, Reply, WyomingClient
from appliance.wyoming.transcriber import ServedBackend, ServedTranscriber, open_transcriber

WITHIN_S = 30.0


@pytest.fixture
def server() -> Iterator[SpeechServer]:
    with SpeechServer() as running:
        yield running


def settings_for(server: SpeechServer, **more: Any) -> Settings:
    chosen: dict[str, Any] = {"backend": "wyoming", "host": "127.0.0.1", "port": server.port}
    return Settings(transcriber=TranscriberSettings(**(chosen | more)))


def served(server: SpeechServer, local: FakeTranscriber | None = None) -> ServedTranscriber:
    """A transcriber that has asked the server what it is."""
    opened = ServedTranscriber(settings_for(server), cast("Transcriber | None", local))
    opened.warm_up()
    return opened


def look_again(transcriber: ServedTranscriber, now_s: float = math.inf) -> None:
    """Has a look at the server that is due, and waits for it."""
    transcriber.backend.poll(now_s)
    transcriber.backend.settle(WITHIN_S)


def test_a_transcription_says_who_made_it_and_that_its_probabilities_are_not_known(
    server: SpeechServer,
) -> None:
    with served(server) as transcriber:
        found = transcriber.transcribe(a_window())
    assert (found.text, found.encoder, found.model) == ("turn on the light", "wyoming", "large")
    assert all(
        math.isnan(value) for value in (found.confidence, found.avg_logprob, found.no_speech_prob)
    )
    assert found.language == "und"  # the server has two and said nothing
    assert transcriber.backend.trouble is None


def test_the_local_model_transcribes_while_the_server_is_offline(
    server: SpeechServer,
) -> None:
    local = FakeTranscriber()
    with served(server, local) as transcriber:
        server.stop()
        found = transcriber.transcribe(a_window())
        assert (found.encoder, found.model) == ("cpu", "fake")
        assert (transcriber.backend.name, transcriber.bundle.name) == ("cpu", "fake")
        assert "this machine's model transcribes" in str(transcriber.backend.trouble)
        server.start()
        look_again(transcriber)
        assert (transcriber.backend.trouble, transcriber.backend.name) == (None, "wyoming")
        assert transcriber.transcribe(a_window()).model == "large"


def test_without_a_model_here_nobody_transcribes_until_the_server_is_back(
    server: SpeechServer,
) -> None:
    server.stop()
    with served(server) as transcriber:
        assert str(server.port) in transcriber.bundle.name
        with pytest.raises(ServerError, match="refused"):
            transcriber.begin(a_window())
        assert str(transcriber.backend.trouble).endswith(
            "until then speech waits to be transcribed"
        )
        server.start()
        look_again(transcriber)
        assert transcriber.transcribe(a_window()).text == "turn on the light"


def test_that_a_server_is_gone_is_known_before_somebody_speaks(server: SpeechServer) -> None:
    now_s = 0.0
    client = WyomingClient(settings_for(server).transcriber)
    backend = ServedBackend(client, 1.0, None, lambda: now_s)
    backend.settle(WITHIN_S)
    server.stop()
    backend.poll(WATCH_EVERY_S / 2)
    backend.settle(WITHIN_S)
    assert backend.trouble is None
    backend.poll(WATCH_EVERY_S)
    backend.settle(WITHIN_S)
    assert "refused" in str(backend.trouble)
    server.start()
    now_s = WATCH_EVERY_S + LONGEST_PAUSE_S
    backend.poll(now_s)
    backend.settle(WITHIN_S)
    assert backend.trouble is None


def test_a_window_that_alone_makes_the_server_fail_is_refused_and_the_next_one_written(
    server: SpeechServer,
) -> None:
    poison = a_window(seconds=0.5)

    def answer(connection: socket.socket, sound: bytes) -> None:
        (errs() if sound == poison.samples.tobytes() else says("yes"))(connection, sound)

    server.answer = answer
    with served(server) as transcriber:
        for _ in range(MOST_TRIES):
            with pytest.raises(ServerError, match="out of memory"):
                transcriber.begin(poison)
            look_again(transcriber)
        with pytest.raises(RefusedError, match="3 times"):
            transcriber.begin(poison)
        assert transcriber.transcribe(a_window()).text == "yes"


def test_a_server_that_fails_with_everything_is_broken_and_the_window_waits(
    server: SpeechServer,
) -> None:
    server.answer = errs()
    window = a_window()
    with served(server) as transcriber:
        for _ in range(2 * MOST_TRIES):
            with pytest.raises(ServerError, match="out of memory"):
                transcriber.begin(window)
            look_again(transcriber)  # silence fails, too
        assert len(server.asked) > MOST_TRIES
        server.answer = says("yes")
        look_again(transcriber)
        assert transcriber.transcribe(window).text == "yes"


def test_that_a_server_is_busy_is_no_windows_fault(server: SpeechServer) -> None:
    window = a_window()
    with served(server) as transcriber:
        for _ in range(2 * MOST_TRIES):
            server.answer = errs("busy", "too much to do")
            with pytest.raises(ServerError, match="too much to do"):
                transcriber.begin(window)
            server.answer = says("yes")
            look_again(transcriber)
        assert transcriber.transcribe(window).text == "yes"


class FakeClient:
    """A server whose name takes long to be looked up, or that needs more time than it is given."""

    address = "slow.local:10300"

    def __init__(self) -> None:
        self.deadlines_s: list[float] = []
        self.found = threading.Event()

    def describe(self) -> Info:
        return Info("large", ("en",))

    def transcribe(self, samples: object, within_s: float) -> Reply:
        if len(cast("Any", samples)) == SAMPLE_RATE:  # the silence
            return Reply("", "", 1.0)
        self.deadlines_s.append(within_s)
        if within_s < 60:
            raise ServerError("too slow")
        self.found.wait()
        return Reply("yes", "en", 1.0)

    def hang_up(self) -> None:
        pass


def test_a_slow_server_is_given_twice_the_time_for_the_same_window() -> None:
    client = FakeClient()
    client.found.set()
    backend = ServedBackend(cast("WyomingClient", client), 14.9)
    backend.settle(WITHIN_S)
    window = a_window(seconds=0.1)
    for _ in range(2):
        with pytest.raises(ServerError, match="too slow"):
            backend.ask(window)
        backend.poll(math.inf)
        backend.settle(WITHIN_S)
    assert backend.ask(window).text == "yes"
    assert client.deadlines_s == pytest.approx([15, 30, 60])


def test_a_cancelled_request_returns_at_once_and_is_no_failure() -> None:
    client = FakeClient()
    backend = ServedBackend(cast("WyomingClient", client), 100.0)
    backend.settle(WITHIN_S)
    window = a_window()
    moves: list[int] = []

    def should_continue() -> bool:
        moves.append(1)
        return len(moves) < 3

    with pytest.raises(UnwantedError):
        backend.ask(window, should_continue)
    assert len(moves) == 3
    assert backend.trouble is None
    with pytest.raises(ServerError, match="still being looked up"):
        backend.ask(window)
    client.found.set()
    backend._left and backend._left.join(WITHIN_S)  # type: ignore[func-returns-value]
    backend.poll(math.inf)
    backend.settle(WITHIN_S)
    assert backend.ask(window).text == "yes"


@pytest.mark.parametrize(
    ("text", "reason", "flags"),
    [
        ("", "no_speech", ()),
        ("yes no " * 20, "repetition", ()),
        ("тут " * 20, "repetition", ()),
        ("谢谢" * 12, "repetition", ()),
        ("no no no no", None, ()),
        ("stop it stop it stop it", None, ("repetition",)),
        ("turn on the light", None, ()),
    ],
)
def test_a_foreign_text_passes_the_gates_that_need_no_probability(
    server: SpeechServer, text: str, reason: str | None, flags: tuple[str, ...]
) -> None:
    server.answer = says(text)
    window = a_window()
    with served(server) as transcriber:
        found, why = Gates(transcriber.gates).apply(window, transcriber.transcribe(window))
    assert why == reason
    assert found.flags == (() if reason else ("unsure_to_act", *flags))


def test_without_a_chosen_model_the_server_is_all_there_is_and_windows_have_10_s(
    server: SpeechServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("ROOMSCRIBE_MODELS", str(tmp_path))
    with open_transcriber(settings_for(server)) as transcriber:
        assert not transcriber.in_process
        assert transcriber.bundle.window_s == 10.0


def test_a_model_that_the_configuration_names_stands_in(
    server: SpeechServer, bundle_folder: Path
) -> None:
    chosen = replace(settings_for(server), model=ModelSettings(bundle=str(bundle_folder)))
    with open_transcriber(chosen) as transcriber:
        assert transcriber.in_process
        assert transcriber.bundle.window_s == 10.0
    alone = replace(chosen, transcriber=replace(chosen.transcriber, fallback=False))
    with open_transcriber(alone) as transcriber:
        assert not transcriber.in_process


def test_a_model_that_is_named_and_missing_is_an_error(server: SpeechServer) -> None:
    chosen = replace(settings_for(server), model=ModelSettings(bundle="nowhere"))
    with pytest.raises(ModelError, match="nowhere"):
        open_transcriber(chosen)
