"""What a stolen credential of a satellite allows, tried with nats-py against a real nats-server.

The server checks the subject that a client publishes to, but not the reply subject: whoever answers
(the server itself, or a worker) publishes there with its own rights.
"""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from nats.errors import Error
from rigs.engine import engine_of, login_of, served, settings_for
from rigs.fleet import Bus, pack_window
from rigs.nats import NatsServer
from rigs.needs import needs_fleet
from rigs.waiting import holds, until
from rigs.windows import a_window
from rigs.workers import FakeWorker

from appliance.config import FleetSettings
from appliance.fleet.messages import Job

pytestmark = needs_fleet
PURGE = "$JS.API.STREAM.PURGE.ROOMSCRIBE"
DELETE = "$JS.API.STREAM.MSG.DELETE.ROOMSCRIBE"
HEADERS, PAYLOAD = pack_window(Job(a_window(), "den"))


@dataclass
class House:
    """A server, a worker that is busy with its own room, the satellite bath, and a thief: den."""

    server: NatsServer
    worker: FakeWorker
    bath: Bus
    thief: Bus

    def waiting(self) -> int:
        """Windows at the server."""
        return int(self.server.stream()["state"]["messages"])

    def steal(self, subject: str, reply: str, payload: bytes = b"") -> None:
        """Publish as the thief, with a reply subject of its choice."""

        async def publish() -> None:
            await self.thief.client.publish(subject, payload, reply=reply, headers=HEADERS)
            await self.thief.client.flush()

        self.thief.run(publish())


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    engine = engine_of(den="satellite", bath="satellite", pi5="worker")
    engine.write(tmp_path / "s", tmp_path / "js")

    def client(node: str) -> Bus:
        return Bus(server.url, node=node, **login_of(engine, node))

    with ExitStack() as stack:
        server = stack.enter_context(served(tmp_path / "s", engine.port))
        worker = FakeWorker()
        worker.settings = settings_for(engine, "pi5", tmp_path)
        assert isinstance(worker.settings, FleetSettings)
        worker.waiting = 1
        stack.enter_context(worker)
        bath = stack.enter_context(client("bath"))
        until(lambda: "pi5" in bath.workers())
        until(lambda: len(server.stream().get("consumer_detail", ())) == 1)
        yield House(server, worker, bath, stack.enter_context(client("den")))


def send(client: Bus, node: str) -> None:
    headers, payload = pack_window(Job(a_window(), node))
    client.publish(f"roomscribe.window.{node}", payload, headers)


@pytest.mark.parametrize("api", [PURGE, DELETE])
def test_waiting_windows_of_other_rooms_stay(house: House, api: str) -> None:
    send(house.bath, "bath")
    until(lambda: house.waiting() == 1)
    house.steal("roomscribe.workers", api)
    for _ in range(3):  # the server acknowledges with {"seq": N}, which is a valid request
        house.steal("roomscribe.window.den", api, PAYLOAD)
    assert not holds(lambda: house.waiting() < 2, 1.0)
    house.worker.waiting = 0
    house.bath.listen("roomscribe.answer.bath")
    until(lambda: house.worker.windows)


def test_a_worker_writes_no_window_in_another_rooms_name(house: House) -> None:
    for reply in ("roomscribe.window.bath", "roomscribe.answer.bath", "_INBOX.bath"):
        house.steal("roomscribe.workers", reply)
    house.bath.listen("roomscribe.answer.bath")
    time.sleep(0.5)
    assert (house.waiting(), house.bath.heard) == (0, [])
    assert house.worker.troubles[-1] is None, "a worker must not report a fault of its own"
    assert "pi5" in house.bath.workers(), "it answers those who ask rightly"


def test_junk_in_a_rooms_queue_delays_its_windows_and_loses_none(house: House) -> None:
    """The server's own acknowledgement can be sent there; nats-server has no permission for it."""
    for _ in range(6):
        house.steal("roomscribe.window.den", "roomscribe.window.bath", PAYLOAD)
    house.worker.waiting = 0
    until(lambda: house.waiting() == 0)
    send(house.bath, "bath")
    until(lambda: len(house.worker.windows) == 2)


def test_one_room_does_not_fill_the_server(house: House) -> None:
    for _ in range(8):
        house.steal("roomscribe.window.den", "", bytes(900_000))
    assert house.waiting() <= 4
    reply = house.bath.run(house.bath.client.request("roomscribe.window.bath", PAYLOAD, timeout=2))
    assert "error" not in json.loads(reply.data)


def test_when_other_rooms_speak_is_not_told(house: House) -> None:
    send(house.bath, "bath")
    for api in (
        "STREAM.INFO.ROOMSCRIBE",
        "CONSUMER.INFO.ROOMSCRIBE.workers",
        "STREAM.NAMES",
        "STREAM.MSG.GET.ROOMSCRIBE",
        "STREAM.PURGE.ROOMSCRIBE",
        "STREAM.MSG.DELETE.ROOMSCRIBE",
        "STREAM.UPDATE.ROOMSCRIBE",
        "CONSUMER.MSG.NEXT.ROOMSCRIBE.workers",
    ):
        with pytest.raises(Error):
            house.thief.run(house.thief.client.request(f"$JS.API.{api}", b"{}", timeout=0.3))
    for subject in ("roomscribe.>", "_INBOX.>", "_INBOX.bath.>", "roomscribe.answer.bath", "$JS.>"):
        house.thief.listen(subject)
    house.bath.workers()
    assert not house.thief.heard
    assert house.waiting() == 1
