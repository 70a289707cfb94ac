"""The server is announced by a real avahi-daemon on a bus of its own, as the network sees it, and
in an app by the supervisor."""

import asyncio
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rigs.avahi import House, announcing, needs_avahi
from rigs.supervisor import TOKEN, Supervisor
from rigs.waiting import until

from appliance.config import Settings, WyomingSettings
from appliance.daemon import assembly
from appliance.daemon.health import Health
from appliance.wyoming.discovery import offer_to_supervisor, own_address

MDNS = ("224.0.0.251", 5353)
NO_OFFER = "Home Assistant's supervisor does not offer the Wyoming server"


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    house = House(tmp_path)
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={house.bus}")
    yield house
    house.close()


def answers() -> bytes:
    """What machines of the network say of `_wyoming._tcp.local`, asked as Home Assistant asks."""
    names = b"".join(bytes([len(part)]) + part for part in (b"_wyoming", b"_tcp", b"local"))
    question = struct.pack("!6H", 7, 0, 1, 0, 0, 0) + names + b"\0" + struct.pack("!2H", 12, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        address = socket.inet_aton(own_address())
        asked.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, address)
        asked.settimeout(1.0)
        asked.sendto(question, MDNS)
        found = b""
        with suppress(TimeoutError):
            while True:
                found += asked.recv(9000)
        return found


def is_announced(instance: str, port: int) -> bool:
    found = answers()
    return instance.encode() in found and struct.pack("!H", port) in found


def last_is(told: list[str], part: str) -> Callable[[], bool]:
    return lambda: bool(told) and (part in told[-1] if part else not told[-1])


@needs_avahi
def test_the_server_is_announced_while_it_runs_and_after_avahis_return(house: House) -> None:
    instance, port = f"roomscribe-{os.getpid()}", 10399
    house.start_avahi()
    with announcing(instance, port) as told:
        until(last_is(told, ""))
        until(lambda: is_announced(instance, port))
        house.stop_avahi()
        until(last_is(told, "not announced"))
        house.start_avahi()
        until(last_is(told, ""))
        until(lambda: is_announced(instance, port))
    until(lambda: instance.encode() not in answers())


@needs_avahi
def test_a_name_that_is_taken_is_reported_with_the_fix(house: House) -> None:
    house.start_avahi()
    with announcing("roomscribe-twice", 10398) as first:
        until(last_is(first, ""))
        with announcing("roomscribe-twice", 10397) as second:
            until(last_is(second, "node"))
        assert last_is(first, "")()


def test_without_avahi_the_address_to_type_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path / 'none'}")
    with announcing("roomscribe-kitchen", 10300) as told:
        until(lambda: told)
    assert f"{own_address()}, port 10300" in told[0]


def test_a_missing_library_is_not_taken_for_a_missing_avahi(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "jeepney", None)
    with announcing("roomscribe-kitchen", 10300) as told:
        until(lambda: told)
    assert "python3-jeepney" in told[0] and "avahi-daemon" not in told[0]


def test_of_each_port_that_is_not_announced_it_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(_instance: str, port: int, report: Callable[[str], None]) -> None:
        for _ in range(3):
            report(f"port {port} is not announced")
            await asyncio.sleep(0)

    async def announce_both() -> None:
        ports = ("wyoming.port", 1), ("wyoming.satellite_port", 2)
        await asyncio.gather(*(server.hooks.advertise(*port) for port in ports))

    monkeypatch.setattr(assembly, "advertise", refuse)
    core: Any = SimpleNamespace(
        transcriber=SimpleNamespace(gates=None), backlog=SimpleNamespace(submit=None), node="den"
    )
    core.settings, core.health = Settings(wyoming=WyomingSettings(enabled=True)), Health()
    server: Any = assembly._make_wyoming(core, None)
    with caplog.at_level("INFO"):
        asyncio.run(announce_both())
    assert caplog.messages == ["port 1 is not announced", "port 2 is not announced"]


def offer(server: Supervisor, report: Callable[[str], None]) -> None:
    address = ("127.0.0.1", server.port)
    asyncio.run(offer_to_supervisor(10300, report, supervisor=address, again_s=0.01))


def test_an_app_tells_the_supervisor_until_it_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERVISOR_TOKEN", TOKEN)
    told: list[str] = []
    with Supervisor() as server:
        server.discovery = []

        def report(trouble: str) -> None:
            told.append(trouble)
            server.discovery = ["wyoming"]

        offer(server, report)
    assert told == [f"{NO_OFFER}: it answered '403 Forbidden'", ""]
    uri = f"tcp://{socket.gethostname()}:10300"
    assert server.told == [{"service": "wyoming", "config": {"uri": uri}}]


@pytest.mark.parametrize("why", ["it did not answer", "it answered '401 Unauthorized'"])
def test_a_supervisor_that_is_no_help_is_reported(why: str) -> None:
    def report(trouble: str) -> None:
        raise EOFError(trouble)

    with Supervisor() as server:
        if "not answer" in why:
            server.__exit__()
        with pytest.raises(EOFError, match=f"{NO_OFFER}: {why}"):
            offer(server, report)
    assert server.told == []
