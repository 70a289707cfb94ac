"""The server is announced by a real avahi-daemon on a bus of its own, as the network sees it."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from rigs.avahi import WITHIN_S, House, announcing, needs_avahi
from rigs.waiting import until

from appliance.wyoming.discovery import own_address

MDNS = ("224.0.0.251", 5353)


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
def test_the_server_is_announced_while_it_runs_and_after_avahis_return(
    house: House,
) -> None:
    instance, port = f"roomscribe-{os.getpid()}", 10399
    house.start_avahi()
    with announcing(instance, port) as told:
        until(last_is(told, ""), WITHIN_S)
        until(lambda: is_announced(instance, port), WITHIN_S)
        house.stop_avahi()
        until(last_is(told, "not announced"), WITHIN_S)
        house.start_avahi()
        until(last_is(told, ""), WITHIN_S)
        until(lambda: is_announced(instance, port), WITHIN_S)
    until(lambda: instance.encode() not in answers(), WITHIN_S)


@needs_avahi
def test_a_name_that_is_taken_is_reported_with_the_fix(house: House) -> None:
    house.start_avahi()
    with announcing("roomscribe-twice", 10398) as first:
        until(last_is(first, ""), WITHIN_S)
        with announcing("roomscribe-twice", 10397) as second:
            until(last_is(second, "node"), WITHIN_S)
        assert last_is(first, "")()


def test_without_avahi_the_address_to_type_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path / 'none'}")
    with announcing("roomscribe-kitchen", 10300) as told:
        until(lambda: told, WITHIN_S)
    assert f"{own_address()}, port 10300" in told[0]


def test_a_missing_library_is_not_taken_for_a_missing_avahi(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "jeepney", None)
    with announcing("roomscribe-kitchen", 10300) as told:
        until(lambda: told, WITHIN_S)
    assert "python3-jeepney" in told[0] and "avahi-daemon" not in told[0]
