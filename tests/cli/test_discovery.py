"""What the network announces is found with a real avahi-daemon on a bus of its own."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rigs.avahi import WITHIN_S, House, announcing, needs_avahi
from rigs.waiting import until

from appliance.cli.discovery import find_services

SERVICE = "_wyoming._tcp"


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    house = House(tmp_path)
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={house.bus}")
    yield house
    house.close()


@needs_avahi
def test_announced_services_are_found_with_host_and_port(house: House) -> None:
    assert find_services(SERVICE, 3.0) == [], "avahi-daemon does not run"
    house.start_avahi()
    name = f"house-{os.getpid()}"
    with announcing(f"{name}-a", 10395) as one, announcing(f"{name}-b", 10396) as other:
        until(lambda: one[-1:] == other[-1:] == [""], WITHIN_S)
        found = find_services(SERVICE, 10.0)
    # avahi-daemon counts its host name up if it takes its own echo for another machine's
    hosts = {port: host for host, port in found if port in (10395, 10396)}
    assert sorted(hosts) == [10395, 10396]
    assert all(re.fullmatch(r"house-\d+\.local", host) for host in hosts.values())
    assert len(found) == len(set(found))
    begun_s = time.monotonic()
    assert find_services("_nobody._udp", 10.0) == []
    assert time.monotonic() - begun_s < 9.0, "it waits for more when all is there"


def test_without_a_bus_or_with_one_that_says_nothing_there_is_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path / 'bus'}")
    assert find_services(SERVICE, 1.0) == []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "bus"))
        listener.listen(1)

        def hang_up() -> None:
            listener.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        assert find_services(SERVICE, 1.0) == []
        thread.join()
