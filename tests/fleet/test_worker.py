"""A worker does each window once, gives back what it cannot finish, and answers for what it is."""

import json
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from rigs.fleet import Bus, pack_window
from rigs.nats import NatsServer
from rigs.needs import needs_nats
from rigs.transcriber import HEARD
from rigs.waiting import until
from rigs.windows import a_window
from rigs.workers import FakeWorker

from appliance.fleet.messages import STREAM, Job
from appliance.records import Window

pytestmark = needs_nats
SUBJECT = "roomscribe.window.kitchen"


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer() as running:
        yield running


@pytest.fixture
def worker(server: NatsServer) -> Iterator[FakeWorker]:
    with FakeWorker(server.url) as running:
        running.settle()
        yield running


@pytest.fixture
def bus(server: NatsServer) -> Iterator[Bus]:
    """Hears what is answered to the kitchen."""
    with Bus(server.url) as bus:
        bus.listen("roomscribe.answer.kitchen")
        yield bus


def send(bus: Bus, window: Window, series: str = "") -> str:
    headers, payload = pack_window(Job(window, "kitchen"), series)
    bus.publish(SUBJECT, payload, headers)
    return window.id


def answers(bus: Bus) -> list[dict[str, Any]]:
    return [json.loads(one.data) for one in bus.heard]


def test_the_stream_lies_in_memory_and_holds_little(server: NatsServer, worker: FakeWorker) -> None:
    found = server.stream()
    config = found["config"]
    assert config["storage"] == "memory"
    assert config["retention"] == "workqueue"
    assert (config["discard"], config["discard_new_per_subject"]) == ("new", True)
    assert (config["max_msgs_per_subject"], config["max_msg_size"]) == (4, 1_000_000)
    assert config["max_age"] == 60_000_000_000
    until(lambda: len(server.stream()["consumer_detail"]) == 1)
    consumers = {one["name"]: one["config"] for one in server.stream()["consumer_detail"]}
    assert set(consumers) == {"workers"}
    assert consumers["workers"]["filter_subject"] == "roomscribe.window.*"
    assert consumers["workers"]["ack_wait"] == 3_000_000_000


def test_a_window_is_done_once_and_gone(server: NatsServer, worker: FakeWorker, bus: Bus) -> None:
    window_id = send(bus, a_window())
    until(lambda: bus.heard)
    found = answers(bus)[0]
    assert (found["id"], found["worker"]) == (window_id, "pi5")
    assert found["transcription"]["text"] == HEARD.text
    assert found["transcription"]["recommended"]["low_confidence"] == 0.3
    until(lambda: server.stream()["state"]["messages"] == 0)
    assert worker.counts == {"fleet_done": 1}
    seen = bus.workers(2.0)["pi5"]
    assert (seen["model"], seen["window_s"]) == ("fake", 10.0)


def test_while_its_own_room_speaks_it_takes_none(server: NatsServer, bus: Bus) -> None:
    worker = FakeWorker(server.url)
    worker.waiting = 2
    with worker:
        worker.settle()
        send(bus, a_window())
        time.sleep(0.3)
        assert bus.heard == []
        worker.waiting = 0
        until(lambda: bus.heard)


def test_of_two_workers_each_has_one_window_at_a_time(
    server: NatsServer, worker: FakeWorker, bus: Bus
) -> None:
    with FakeWorker(server.url, node="second") as second:
        until(lambda: len(bus.workers()) == 2)
        worker.took_s, second.took_s = 1.0, 0.0
        for _ in range(4):
            send(bus, a_window())
        until(lambda: len(bus.heard) == 4)
        assert len(worker.windows) <= 1
        assert len(second.windows) >= 3


def test_a_worker_that_ends_in_order_gives_back_what_it_has_not_finished(
    server: NatsServer, worker: FakeWorker, bus: Bus
) -> None:
    worker.took_s = 60.0
    second = FakeWorker(server.url, node="second")
    second.waiting = 1
    with second:
        second.settle()
        send(bus, a_window())
        until(lambda: worker.windows)
        second.waiting = 0
        worker.stop()
        until(lambda: bus.heard)
        assert answers(bus)[0]["worker"] == "second"
        assert second.counts == {"fleet_done": 1}


def test_work_that_takes_longer_than_the_lease_is_not_given_to_another(
    server: NatsServer, worker: FakeWorker, bus: Bus
) -> None:
    worker.took_s = 4.0
    send(bus, a_window())
    until(lambda: worker.windows)
    with FakeWorker(server.url, node="second") as second:
        until(lambda: bus.heard)
        assert (answers(bus)[0]["worker"], second.windows) == ("pi5", [])
        assert worker.counts == {"fleet_done": 1}


def test_a_window_that_is_sent_again_is_done_again_and_its_owner_gets_the_text(
    worker: FakeWorker, bus: Bus
) -> None:
    window = a_window()
    texts = iter(("first", "again", "the bedroom's own"))
    worker.say = lambda _: replace(HEARD, text=next(texts))
    send(bus, window)
    until(lambda: bus.heard)
    send(bus, window)  # which the server recognises
    send(bus, window, "another connection")
    until(lambda: len(bus.heard) == 2)
    bus.listen("roomscribe.answer.bedroom")
    headers, payload = pack_window(Job(window, "bedroom"))
    bus.publish("roomscribe.window.bedroom", payload, headers)
    until(lambda: len(bus.heard) == 3)
    found = [one["transcription"]["text"] for one in answers(bus)]
    assert found == ["first", "again", "the bedroom's own"]


def test_what_is_no_window_is_refused_by_name_and_taken_away(
    server: NatsServer, worker: FakeWorker, bus: Bus
) -> None:
    headers, payload = pack_window(Job(window := a_window(), "kitchen"))
    newer = {"Roomscribe-Window": headers["Roomscribe-Window"].replace('"v": 1', '"v": 9')}
    for fields, sound in ((newer, payload), (headers, b"junk"), ({}, payload), ({"X": "y"}, b"")):
        bus.publish(SUBJECT, sound, fields or None)
    send(bus, a_window(samples=np.zeros(40 * 16_000, np.int16)))
    until(lambda: len(bus.heard) == 3)
    newer_one, junk, long = (one["refusal"] for one in answers(bus))
    assert [one["later"] for one in (newer_one, junk, long)] == [True, False, False]
    assert answers(bus)[0]["id"] == window.id
    assert "of version 1, found 9" in newer_one["text"] and "up to 31 s" in long["text"]
    until(lambda: server.stream()["state"]["messages"] == 0)
    assert not worker.counts


def test_who_has_no_time_says_so(server: NatsServer, bus: Bus) -> None:
    worker = FakeWorker(server.url)
    worker.free, worker.busy_s = False, 0.2
    with worker:
        worker.settle()
        send(bus, a_window())
        until(lambda: bus.heard)
    assert answers(bus)[0]["refusal"]["later"]


def test_a_window_that_two_workers_did_not_finish_is_not_tried_again(
    server: NatsServer, worker: FakeWorker, bus: Bus
) -> None:
    worker.took_s = 60.0
    send(bus, a_window())
    for number in (1, 2):
        until(partial(_has, worker, number))
        worker.stop()
        worker.start()
    until(lambda: bus.heard)
    assert "2 workers did not finish" in answers(bus)[0]["refusal"]["text"]
    until(lambda: server.stream()["state"]["messages"] == 0)
    assert len(worker.windows) == 2


def _has(worker: FakeWorker, number: int) -> bool:
    return len(worker.windows) == number


def test_a_server_that_forgot_everything_is_made_ready_again(
    server: NatsServer, worker: FakeWorker, bus: Bus
) -> None:
    server.kill()
    until(lambda: str(worker.troubles[-1]).startswith("no server"))
    server.start()
    until(lambda: worker.troubles[-1] is None and server.stream().get("consumer_detail"))
    until(bus.workers)
    send(bus, a_window())
    until(lambda: bus.heard)


def test_a_server_that_hangs_is_named_and_used_again_afterwards(
    server: NatsServer, worker: FakeWorker, bus: Bus
) -> None:
    server.signal(signal.SIGSTOP)
    until(lambda: str(worker.troubles[-1]).startswith("no server"))
    server.signal(signal.SIGCONT)
    until(lambda: worker.troubles[-1] is None)
    send(bus, a_window())
    until(lambda: bus.heard)


def test_a_server_without_jetstream_is_named() -> None:
    with NatsServer("jetstream: disabled") as plain, FakeWorker(plain.url) as worker:
        until(lambda: any("refuses the stream" in str(one) for one in worker.troubles))
        trouble = next(one for one in worker.troubles if one and "stream" in one)
        assert trouble.startswith("refused: the fleet's server nats://")
        assert "see that its JetStream is on" in trouble
        number = len(worker.troubles)
        time.sleep(1.0)
        assert len(worker.troubles) - number <= 1  # it is told once, however often it is tried


def test_a_window_longer_than_its_model_takes_is_made_in_parts(
    worker: FakeWorker, bus: Bus
) -> None:
    texts = iter(("turn on", "the light"))
    surest = iter((0.5, 0.9))
    worker.say = lambda _: replace(HEARD, text=next(texts), confidence=next(surest))
    worker.model.window_s = 2.0
    window = a_window(seconds=3)
    window.samples[24_000:24_480] = 0  # a pause after 1.5 s
    send(bus, window)
    until(lambda: bus.heard)
    assert np.array_equal(np.concatenate([one.samples for one in worker.windows]), window.samples)
    assert [(one.last, round(one.duration_s, 1)) for one in worker.windows] == [
        (False, 1.5),
        (True, 1.5),
    ]
    found = answers(bus)[0]["transcription"]
    assert (found["text"], found["confidence"]) == ("turn on the light", 0.5)
    assert len(found["tokens"]) == 2 * len(HEARD.tokens)


def test_a_stream_that_is_gone_while_the_connection_stands_is_made_again(
    server: NatsServer, worker: FakeWorker, bus: Bus
) -> None:
    async def delete() -> None:
        await bus.client.jetstream().delete_stream(STREAM)

    until(lambda: server.stream().get("consumer_detail"))
    bus.run(delete())
    until(lambda: server.stream().get("consumer_detail"))
    send(bus, a_window())
    until(lambda: bus.heard)
