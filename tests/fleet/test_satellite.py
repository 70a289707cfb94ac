"""Each window is transcribed once, by a worker or by the satellite's model, whatever fails."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from rigs.fleet import Bus
from rigs.nats import NatsServer
from rigs.needs import needs_nats
from rigs.transcriber import HEARD, FakeTranscriber
from rigs.waiting import NEVER_S, until
from rigs.windows import a_window
from rigs.workers import FakeWorker

from appliance.config import FleetSettings, SegmenterSettings, Settings
from appliance.errors import DeviceError, ServerError
from appliance.fleet.link import Link
from appliance.fleet.satellite import PATIENCE_S, SatelliteTranscriber
from appliance.infer.request import Request
from appliance.infer.transcriber import Transcriber
from appliance.records import Transcription, Window

pytestmark = needs_nats


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer() as running:
        yield running


@pytest.fixture
def satellites(server: NatsServer) -> Iterator[Callable[..., SatelliteTranscriber]]:
    """Makes satellites of the server, which are closed at the end."""
    opened: list[SatelliteTranscriber] = []

    def hear(
        local: FakeTranscriber | None = None,
        patience_s: float = PATIENCE_S,
        is_muted: Callable[[], bool] = lambda: False,
    ) -> SatelliteTranscriber:
        chosen = FleetSettings(role="satellite", server=server.url)
        model, link = cast("Transcriber | None", local), Link(chosen, "kitchen")
        settings = Settings(fleet=chosen)
        opened.append(SatelliteTranscriber(settings, model, link, patience_s, is_muted))
        opened[-1].warm_up()
        return opened[-1]

    yield hear
    for one in opened:
        one.close()


@contextmanager
def busy_with_its_own_room(server: NatsServer) -> Iterator[FakeWorker]:
    """A worker that is there and asks for no window."""
    worker = FakeWorker(server.url)
    worker.waiting = 1
    with worker:
        worker.settle()
        yield worker


def patiently(
    satellite: SatelliteTranscriber, window: Window, within_s: float = 300.0
) -> Transcription:
    """The transcription, asked for as the pipeline does while nobody can."""
    deadline_s = time.monotonic() + within_s
    while True:
        try:
            return satellite.transcribe(window)
        except ServerError:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)


def stats_of(satellite: SatelliteTranscriber) -> Counter[str]:
    return Counter(satellite.backend.facts()["counters"])


def test_a_worker_writes_and_the_satellite_knows_its_model(
    server: NatsServer, satellites: Callable[..., SatelliteTranscriber]
) -> None:
    with FakeWorker(server.url) as worker:
        worker.settle()
        satellite = satellites()
        window = a_window(seconds=3)
        found = patiently(satellite, window)
        assert (found.text, found.model, found.encoder) == (HEARD.text, "fake", "cpu")
        assert found.recommended["low_confidence"] == 0.3
        assert np.array_equal(worker.windows[-1].samples, window.samples)
        assert (satellite.bundle.name, satellite.bundle.window_s) == ("fake", 10.0)
        assert (satellite.backend.name, satellite.backend.trouble, satellite.in_process) == (
            "fleet",
            None,
            False,
        )
        assert worker.counts == {"fleet_done": 1}
        assert stats_of(satellite)["fleet_sent"] == 1
        assert worker.ahead == [True]
        patiently(satellite, replace(a_window(), last=False))
        assert worker.ahead == [True, False]


def test_whether_a_text_is_whole_is_asked_where_speech_may_end_early(server: NatsServer) -> None:
    chosen = FleetSettings(role="satellite", server=server.url)
    settings = Settings(fleet=chosen, segmenter=SegmenterSettings(early_ms=0))
    with FakeWorker(server.url) as worker:
        with SatelliteTranscriber(settings, None, Link(chosen, "kitchen")) as satellite:
            patiently(satellite, a_window())
        assert worker.ahead == [False]


def test_without_a_worker_the_own_model_writes_and_a_worker_when_one_is_back(
    server: NatsServer, satellites: Callable[..., SatelliteTranscriber]
) -> None:
    satellite = satellites(local := FakeTranscriber())
    local.gates = replace(local.gates, low_confidence=0.7)
    found = satellite.transcribe(a_window())
    assert (found.encoder, found.recommended["low_confidence"]) == ("cpu", 0.7)
    assert stats_of(satellite)["fleet_own_cpu"] == 1
    trouble = str(satellite.backend.trouble)
    assert trouble.startswith("no worker: none is connected to")
    assert trouble.endswith("until then this machine's model transcribes")
    assert (satellite.backend.name, satellite.bundle.name) == ("cpu", "fake")
    with FakeWorker(server.url, model="base"):
        until(lambda: satellite.transcribe(a_window()).model == "base")
        assert (satellite.backend.trouble, satellite.backend.name) == (None, "fleet")


def test_without_a_model_a_window_waits_until_the_server_is_back(
    server: NatsServer, satellites: Callable[..., SatelliteTranscriber]
) -> None:
    server.kill()
    satellite = satellites()
    window = a_window()
    with pytest.raises(ServerError, match=r"no server: .*nothing listens there"):
        satellite.begin(Request(window))
    assert str(satellite.backend.trouble).endswith("until then speech waits to be transcribed")
    with FakeWorker(server.url):
        server.start()
        assert patiently(satellite, window).text == HEARD.text
        assert satellite.backend.trouble is None


def test_a_window_that_is_under_way_is_not_sent_again_after_a_mute(
    server: NatsServer, satellites: Callable[..., SatelliteTranscriber]
) -> None:
    muted = threading.Event()
    with FakeWorker(server.url) as worker:
        worker.settle()
        satellite = satellites(patience_s=30.0, is_muted=muted.is_set)
        worker.took_s = 1.0

        def mute_and_restart() -> None:
            muted.set()
            restart(server)

        restarted = threading.Timer(0.3, mute_and_restart)
        restarted.start()
        window = a_window()
        with pytest.raises(ServerError, match="no server"):
            satellite.transcribe(window)
        restarted.join()
        with pytest.raises(ServerError, match="muted"):
            satellite.transcribe(window)
    assert stats_of(satellite)["fleet_sent"] == 1


def restart(server: NatsServer) -> None:
    server.kill()
    server.start()


def test_a_worker_of_another_version_is_refused_by_name(
    server: NatsServer, satellites: Callable[..., SatelliteTranscriber]
) -> None:
    with Bus(server.url) as bus:
        presence = json.dumps({"v": 9, "node": "attic", "version": "9.9"}).encode()
        bus.reply_with("roomscribe.workers", presence)
        with pytest.raises(ServerError, match=r"refused: the worker attic runs .*upgrade the"):
            satellites().begin(Request(a_window()))


def test_a_window_that_a_worker_fails_with_does_not_stop_the_next(
    server: NatsServer, satellites: Callable[..., SatelliteTranscriber]
) -> None:
    def say(window: Window) -> Transcription | Exception:
        return ValueError("too strange") if window.duration_s == 0.5 else HEARD

    with FakeWorker(server.url) as worker:
        worker.settle()
        worker.say = say
        satellite = satellites()
        with pytest.raises(DeviceError, match="pi5: transcribing failed: too strange") as bad:
            patiently(satellite, a_window(seconds=0.5))
        assert not isinstance(bad.value, ServerError)
        assert patiently(satellite, a_window()).text == HEARD.text
        with_model = satellites(FakeTranscriber())
        assert patiently(with_model, a_window(seconds=0.5)).model == "fake"
        assert stats_of(with_model)["fleet_own_cpu"] == 1


def test_a_late_answer_counts_when_its_window_is_requested_again(
    server: NatsServer, satellites: Callable[..., SatelliteTranscriber]
) -> None:
    with FakeWorker(server.url) as worker:
        worker.settle()
        satellite, window = satellites(patience_s=1.0), a_window()
        worker.took_s = 1.5
        with pytest.raises(ServerError, match="worker lost: no answer within 1 s"):
            satellite.begin(Request(window))
        assert patiently(satellite, window).text == HEARD.text
        assert len(worker.windows) == stats_of(satellite)["fleet_sent"] == 1


def test_not_a_byte_of_sound_leaves_a_satellite_that_is_muted(
    server: NatsServer, satellites: Callable[..., SatelliteTranscriber]
) -> None:
    muted = threading.Event()
    with FakeWorker(server.url) as worker, Bus(server.url) as bus:
        worker.settle()
        bus.listen("roomscribe.window.>")
        satellite = satellites(is_muted=muted.is_set)
        with_model = satellites(FakeTranscriber(), is_muted=muted.is_set)
        muted.set()
        for _ in range(3):
            with pytest.raises(ServerError, match="muted: speech from before is not sent"):
                satellite.begin(Request(a_window()))
        assert satellite.backend.trouble is None
        assert with_model.transcribe(a_window()).model == "fake"
        assert stats_of(with_model)["fleet_own_cpu"] == 1
        assert bus.heard == []
        muted.clear()
        assert patiently(satellite, a_window()).text == HEARD.text
        until(lambda: len(bus.heard) == 1)


def test_who_stops_waiting_is_let_go_at_once(
    server: NatsServer, satellites: Callable[..., SatelliteTranscriber]
) -> None:
    with FakeWorker(server.url) as worker:
        worker.settle()
        satellite = satellites(patience_s=NEVER_S)
        worker.took_s = 5.0
        with pytest.raises(ServerError, match="given up"):
            satellite.begin(Request(a_window()), lambda: False)
        assert not worker.counts["fleet_done"]
        worker.took_s = 0.0
        assert patiently(satellite, a_window()).text == HEARD.text


def test_more_than_may_wait_is_kept_by_the_satellite_and_no_windows_fault(
    server: NatsServer, satellites: Callable[..., SatelliteTranscriber]
) -> None:
    with busy_with_its_own_room(server) as worker, Bus(server.url) as bus:
        for _ in range(4):
            bus.publish("roomscribe.window.kitchen", b"", {"Roomscribe-Window": "{}"})
        satellite, window = satellites(patience_s=1.0), a_window()
        with pytest.raises(ServerError, match="maximum messages per subject exceeded"):
            satellite.begin(Request(window))
        worker.waiting = 0
        assert patiently(satellite, window).text == HEARD.text
    assert stats_of(satellite)["fleet_sent"] == 1


def test_if_the_only_worker_goes_in_mid_window_the_own_model_transcribes(
    server: NatsServer, satellites: Callable[..., SatelliteTranscriber]
) -> None:
    with FakeWorker(server.url) as worker:
        worker.settle()
        satellite = satellites(FakeTranscriber(), patience_s=NEVER_S)
        worker.took_s = NEVER_S
        gone = threading.Timer(0.3, worker.stop)
        gone.start()
        assert satellite.transcribe(a_window()).recommended == {
            "low_confidence": 0.3,
            "act_confidence": -1.0,
        }
        gone.join()
        assert str(satellite.backend.trouble).startswith("no worker: none is connected to")
    assert stats_of(satellite)["fleet_own_cpu"] == 1
