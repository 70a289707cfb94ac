"""An ear has each window transcribed once, by a brain or by its own model, whatever goes away."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from rigs.brains import FakeBrain
from rigs.fleet import Bus
from rigs.nats import NatsServer
from rigs.needs import needs_nats
from rigs.transcriber import HEARD, FakeEncoder, FakeTranscriber
from rigs.waiting import until
from rigs.windows import a_window

from appliance.config import FleetSettings, SegmenterSettings, Settings
from appliance.errors import RefusedError, ServerError
from appliance.fleet.link import Link
from appliance.fleet.satellite import COMING_S, Ear, EarTranscriber, FleetBackend
from appliance.infer.encoder import Backend
from appliance.infer.remote import UnwantedError
from appliance.infer.transcriber import Transcriber
from appliance.records import Transcription, Window

pytestmark = needs_nats
ANSWER = json.dumps(
    {
        "v": 1,
        "id": "%s",
        "attempt": 1,
        "brain": "pi5",
        "transcription": {"text": "raw", "tokens": [1], "language": "en", "model": "base"},
    }
).encode()


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer() as running:
        yield running


@pytest.fixture
def ears(server: NatsServer) -> Iterator[Callable[..., EarTranscriber]]:
    """Makes ears of the server, which are closed at the end."""
    opened: list[EarTranscriber] = []

    def hear(local: FakeTranscriber | None = None, **fleet: Any) -> EarTranscriber:
        chosen = FleetSettings(**{"role": "ear", "server": (server.url,), **fleet})
        settings = Settings(fleet=chosen)
        link = Link(chosen, "kitchen")
        opened.append(EarTranscriber(settings, cast("Transcriber | None", local), link))
        opened[-1].warm_up()
        return opened[-1]

    yield hear
    for one in opened:
        one.close()


@contextmanager
def busy_with_its_own_room(server: NatsServer) -> Iterator[FakeBrain]:
    """A brain that is there and asks for no window."""
    brain = FakeBrain(server.url)
    brain.waiting = 1
    with brain:
        brain.settle()
        yield brain


def patiently(ear: EarTranscriber, window: Window, within_s: float = 10.0) -> Transcription:
    """The transcription, asked for as the pipeline does while nobody can."""
    deadline_s = time.monotonic() + within_s
    while True:
        try:
            return ear.transcribe(window)
        except ServerError:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)


def told(ear: EarTranscriber) -> Counter[str]:
    return Counter(ear.backend.facts()["counters"])


def test_a_brain_writes_and_the_ear_knows_its_model(
    server: NatsServer, ears: Callable[..., EarTranscriber]
) -> None:
    with FakeBrain(server.url) as brain:
        brain.settle()
        ear = ears()
        window = a_window(seconds=3)
        found = patiently(ear, window)
        assert (found.text, found.model, found.encoder) == (HEARD.text, "fake", "cpu")
        assert found.recommended["low_confidence"] == 0.3
        assert np.array_equal(brain.windows[-1].samples, window.samples)
        assert (ear.bundle.name, ear.bundle.window_s) == ("fake", 10.0)
        assert ear.bundle.demo_model
        assert (ear.backend.name, ear.backend.trouble, ear.in_process) == ("fleet", None, False)
        assert brain.counts == {"fleet_done": 1}
        assert told(ear)["fleet_sent"] == 1
        assert len(ear.backend.facts()["round_trips_ms"]) == 1
        assert brain.ahead == [True]
        patiently(ear, replace(a_window(), last=False))
        assert brain.ahead == [True, False]


def test_whether_a_text_is_whole_is_asked_where_speech_may_end_early(server: NatsServer) -> None:
    chosen = FleetSettings(role="ear", server=(server.url,))
    settings = Settings(fleet=chosen, segmenter=SegmenterSettings(early_ms=0))
    with FakeBrain(server.url) as brain:
        with EarTranscriber(settings, None, Link(chosen, "kitchen")) as ear:
            patiently(ear, a_window())
        assert brain.ahead == [False]


def test_without_a_brain_the_own_model_writes_and_a_brain_when_one_is_back(
    server: NatsServer, ears: Callable[..., EarTranscriber]
) -> None:
    ear = ears(local := FakeTranscriber())
    local.gates = replace(local.gates, low_confidence=0.7)
    begun_s = time.monotonic()
    found = ear.transcribe(a_window())
    assert time.monotonic() - begun_s < 5.0
    assert (found.encoder, found.recommended["low_confidence"]) == ("cpu", 0.7)
    assert told(ear)["fleet_own_cpu"] == 1
    trouble = str(ear.backend.trouble)
    assert trouble.startswith("no brain: expected a brain at")
    assert trouble.endswith("until then this machine's model transcribes")
    assert (ear.backend.name, ear.bundle.name) == ("cpu", "fake")
    with FakeBrain(server.url, model="base"):
        until(lambda: ear.transcribe(a_window()).model == "base")
        assert (ear.backend.trouble, ear.backend.name) == (None, "fleet")


def test_without_a_model_here_a_window_waits_and_is_sent_when_the_server_is_back(
    server: NatsServer, ears: Callable[..., EarTranscriber]
) -> None:
    server.kill()
    ear = ears()
    window = a_window()
    with pytest.raises(ServerError, match=r"no server: .*nothing listens there"):
        ear.begin(window)
    assert str(ear.backend.trouble).endswith("until then what is said waits")
    with FakeBrain(server.url):
        server.start()
        assert patiently(ear, window).text == HEARD.text
        assert ear.backend.trouble is None


def test_a_window_that_is_under_way_when_the_server_restarts_is_sent_again(
    server: NatsServer, ears: Callable[..., EarTranscriber]
) -> None:
    with FakeBrain(server.url) as brain:
        brain.settle()
        ear = ears(patience_s=30.0)
        brain.took_s = 1.0
        restarted = threading.Timer(0.3, lambda: restart(server))
        restarted.start()
        assert ear.transcribe(a_window()).text == HEARD.text
        restarted.join()
    assert (told(ear)["fleet_sent"], told(ear)["fleet_redone"]) == (2, 1)


def test_a_window_that_is_under_way_is_not_sent_again_after_a_mute(
    server: NatsServer, ears: Callable[..., EarTranscriber]
) -> None:
    muted = threading.Event()
    with FakeBrain(server.url) as brain:
        brain.settle()
        ear = ears(patience_s=30.0)
        ear.ear.muted = muted.is_set
        brain.took_s = 1.0

        def mute_and_restart() -> None:
            muted.set()
            restart(server)

        restarted = threading.Timer(0.3, mute_and_restart)
        restarted.start()
        with pytest.raises(ServerError, match="muted"):
            ear.transcribe(a_window())
        restarted.join()
    assert told(ear)["fleet_sent"] == 1


def restart(server: NatsServer) -> None:
    server.kill()
    server.start()


def test_an_ear_that_may_ask_one_model_alone_asks_no_other(
    server: NatsServer, ears: Callable[..., EarTranscriber]
) -> None:
    with FakeBrain(server.url, node="tiny", model="tiny") as tiny:
        tiny.settle()
        ear = ears(model="base-en")
        with pytest.raises(ServerError, match="expected one with the model base-en, found tiny"):
            ear.begin(a_window())
        with FakeBrain(server.url, node="big", model="base.en"):
            assert patiently(ear, a_window()).model == "base.en"
        assert not tiny.windows


def test_of_two_answers_the_first_counts_and_the_second_is_dropped(
    server: NatsServer, ears: Callable[..., EarTranscriber]
) -> None:
    with FakeBrain(server.url) as brain, Bus(server.url) as bus:
        brain.settle()
        ear = ears()
        brain.took_s = 0.3
        bus.answer_all("roomscribe.window.>", "roomscribe.answer.kitchen", [ANSWER, ANSWER])
        assert ear.transcribe(a_window()).text == "raw"
        until(lambda: told(ear)["fleet_late"] == 2)


def test_an_answer_that_came_too_late_is_there_when_its_window_is_asked_again(
    server: NatsServer, ears: Callable[..., EarTranscriber]
) -> None:
    with FakeBrain(server.url) as brain:
        brain.settle()
        ear = ears(patience_s=1.0)
        brain.took_s = 1.4
        window = a_window()
        with pytest.raises(ServerError, match="brain lost: expected an answer within 1 s"):
            ear.begin(window)
        assert "brain lost" in str(ear.backend.trouble)
        until(lambda: told(ear)["fleet_late"] == 1)
        assert patiently(ear, window).text == HEARD.text
        assert len(brain.windows) == 1
        assert told(ear)["fleet_sent"] == 1


def test_a_window_that_waits_at_the_server_is_not_sent_again(
    server: NatsServer, ears: Callable[..., EarTranscriber]
) -> None:
    """Each copy would be done by some brain: with too few brains, more is sent and less is done."""
    with busy_with_its_own_room(server) as brain:
        ear = ears(patience_s=1.0)
        window = a_window()
        for _ in range(3):
            with pytest.raises(ServerError, match="expected an answer within 1 s"):
                ear.backend.request(window, 1.0)
        assert told(ear)["fleet_sent"] == 1
        assert server.stream()["state"]["messages"] == 1
        brain.waiting = 0
        assert patiently(ear, window).text == HEARD.text
        assert len(brain.windows) == 1
        assert (told(ear)["fleet_sent"], told(ear)["fleet_redone"]) == (1, 0)


def test_a_window_that_a_brain_gave_back_is_sent_again(
    server: NatsServer, ears: Callable[..., EarTranscriber]
) -> None:
    busy = b'{"v":1,"id":"%s","attempt":1,"brain":"pi5","error":{"code":"busy","text":"no time"}}'
    with busy_with_its_own_room(server) as brain, Bus(server.url) as bus:
        answers = [busy]
        bus.answer_all("roomscribe.window.>", "roomscribe.answer.kitchen", answers)
        ear = ears()
        window = a_window()
        with pytest.raises(ServerError, match="no time"):
            ear.backend.request(window, 5.0)
        answers.clear()
        brain.waiting = 0
        assert patiently(ear, window).text == HEARD.text
        assert told(ear)["fleet_sent"] == 2


def test_two_machines_with_one_credential_notice_each_other(server: NatsServer) -> None:
    chosen = FleetSettings(role="ear", server=(server.url,))
    links = [Link(chosen, "kitchen") for _ in range(3)]
    ears = [Ear(link, chosen, box) for link, box in zip(links, ("a", "a", "b"), strict=True)]
    try:
        for link in links[:2]:
            link.start()
            link.settle(5)
        time.sleep(0.3)
        assert [ear.rival for ear in ears[:2]] == ["", ""], "one machine, for instance at a reload"
        links[2].start()
        until(lambda: all(ear.rival for ear in ears))
        assert "another machine uses the invitation of kitchen" in ears[0].rival
    finally:
        for link in links:
            link.close()


def test_a_brain_that_is_newer_or_older_is_refused_by_name_and_the_window_waits(
    server: NatsServer, ears: Callable[..., EarTranscriber]
) -> None:
    newer = ANSWER.replace(b'"v": 1', b'"v": 2')
    older = b'{"v":1,"id":"%s","brain":"old","error":{"code":"version","text":"of version 0"}}'
    with busy_with_its_own_room(server), Bus(server.url) as bus:
        ear = ears()
        answers = [newer]
        bus.answer_all("roomscribe.window.>", "roomscribe.answer.kitchen", answers)
        with pytest.raises(ServerError, match=r"refused: a brain answers: .*upgrade this ear"):
            ear.begin(a_window())
        answers[:] = [older]
        until(lambda: _refused(ear, "refused: the brain old: of version 0; upgrade that brain"))


def _refused(ear: EarTranscriber, why: str) -> bool:
    try:
        ear.begin(a_window())
    except ServerError as error:
        return str(error) == why
    return False


def test_a_window_that_alone_fails_is_refused_and_the_next_one_written(
    server: NatsServer, ears: Callable[..., EarTranscriber]
) -> None:
    def say(window: Window) -> Transcription | Exception:
        return ValueError("too strange") if window.duration_s == 0.5 else HEARD

    with FakeBrain(server.url) as brain:
        brain.settle()
        brain.say = say
        ear, strange = ears(), a_window(seconds=0.5)
        with pytest.raises(RefusedError, match="3 times"):
            patiently(ear, strange)
        assert patiently(ear, a_window()).text == HEARD.text
        assert brain.counts["fleet_refused"] == 3


@pytest.mark.parametrize("local", [None, FakeEncoder()], ids=["waits", "own model"])
def test_while_a_window_waits_a_brain_is_looked_for_twice_a_second_and_seldom_else(
    local: FakeEncoder | None,
) -> None:
    class Deserted:
        looks = 0

        def present(self) -> None:
            self.looks += 1
            raise ServerError("no brain", busy=True)

        def muted(self) -> bool:
            return False

    now_s, deserted = 0.0, Deserted()
    link = cast("Link", SimpleNamespace(client=None))
    encoder = FleetBackend(
        cast("Ear", deserted), link, Settings(), cast("Backend", local), lambda: now_s
    )

    def looks_in_10_s() -> int:
        nonlocal now_s
        before = deserted.looks
        for _ in range(100):
            now_s += 0.1
            encoder.poll(now_s)
            encoder.settle(5.0)
        return deserted.looks - before

    encoder.settle(5.0)
    assert looks_in_10_s() <= 8
    with pytest.raises(ServerError):
        encoder.ask(a_window())
    looks_in_10_s()
    assert (looks_in_10_s() >= 16) == (local is None)


def test_not_a_byte_of_sound_leaves_an_ear_that_is_muted(
    server: NatsServer, ears: Callable[..., EarTranscriber]
) -> None:
    muted = threading.Event()
    with FakeBrain(server.url) as brain, Bus(server.url) as bus:
        brain.settle()
        bus.listen("roomscribe.window.>")
        ear, local = ears(), FakeTranscriber()
        with_model = ears(local)
        for one in (ear, with_model):
            one.ear.muted = muted.is_set
        muted.set()
        for _ in range(3):
            with pytest.raises(ServerError, match="muted: what was said before is not sent"):
                ear.begin(a_window())
            ear.backend.poll(math.inf)
            ear.backend.settle(2.0)
        assert ear.backend.trouble is None
        assert with_model.transcribe(a_window()).model == "fake"
        assert told(with_model)["fleet_own_cpu"] == 1
        assert bus.heard == []
        muted.clear()
        assert patiently(ear, a_window()).text == HEARD.text
        until(lambda: len(bus.heard) == 1)


def test_who_stops_waiting_is_let_go_at_once(
    server: NatsServer, ears: Callable[..., EarTranscriber]
) -> None:
    with FakeBrain(server.url) as brain:
        brain.settle()
        ear = ears(patience_s=60.0)
        brain.took_s = 1.0
        ear.should_continue = lambda: False
        begun_s = time.monotonic()
        with pytest.raises(UnwantedError):
            ear.begin(a_window())
        assert time.monotonic() - begun_s < 0.9
        ear.should_continue = lambda: True
        brain.took_s = 0.0
        assert patiently(ear, a_window()).text == HEARD.text


def test_more_than_may_wait_is_kept_by_the_ear_and_no_windows_fault(
    server: NatsServer, ears: Callable[..., EarTranscriber]
) -> None:
    with busy_with_its_own_room(server) as brain, Bus(server.url) as bus:
        for _ in range(4):
            bus.publish("roomscribe.window.any.kitchen", b"", {"Roomscribe-Window": "{}"})
        ear, window = ears(patience_s=1.0), a_window()
        with pytest.raises(ServerError, match="more waits for the brains than they can do"):
            ear.begin(window)
        brain.waiting = 0
        assert patiently(ear, window).text == HEARD.text
    assert told(ear)["fleet_sent"] == 1


def test_when_the_only_brain_goes_in_mid_window_the_own_model_writes_before_the_patience_ends(
    server: NatsServer, ears: Callable[..., EarTranscriber]
) -> None:
    with FakeBrain(server.url) as brain:
        brain.settle()
        ear = ears(FakeTranscriber(), patience_s=60.0)
        until(lambda: ear.link.age_s > COMING_S)
        brain.took_s = 60.0
        gone = threading.Timer(0.3, brain.stop)
        gone.start()
        begun_s = time.monotonic()
        assert ear.transcribe(a_window()).recommended == {
            "low_confidence": 0.3,
            "no_speech_lone": -1.0,
            "no_speech_sure": -1.0,
        }
        assert time.monotonic() - begun_s < 10.0
        gone.join()
        assert str(ear.backend.trouble).startswith("brain lost: expected a brain at")
    assert told(ear)["fleet_own_cpu"] == 1


def test_an_idle_ear_without_brains_looks_for_them_seldom_once_its_own_model_has_written(
    server: NatsServer, ears: Callable[..., EarTranscriber]
) -> None:
    ear = ears(FakeTranscriber())
    ear.transcribe(a_window())

    def sent() -> int:
        return int(server.monitor("varz")["in_msgs"])

    before = sent()
    for _ in range(70):
        ear.backend.poll(time.monotonic())
        time.sleep(0.05)
    assert 1 <= sent() - before <= 4  # after 0.5, 1 and 2 s; not each half second
