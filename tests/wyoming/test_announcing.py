"""The server is announced by a real avahi-daemon on a bus of its own, as the network sees it."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from rigs.waiting import until

from appliance.wyoming.announcing import advertise, own_address

WITHIN_S = 20.0
MDNS = ("224.0.0.251", 5353)
BUS = """
<busconfig>
  <type>system</type>
  <listen>unix:path={path}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/><allow own="*"/>
    <allow send_type="method_call"/><allow send_type="signal"/>
    <allow send_requested_reply="true"/>
    <allow receive_type="method_call"/><allow receive_type="method_return"/>
    <allow receive_type="error"/><allow receive_type="signal"/>
  </policy>
</busconfig>
"""
needs_avahi = pytest.mark.skipif(
    os.geteuid() != 0
    or not all(map(shutil.which, ("dbus-daemon", "avahi-daemon", "unshare")))
    or find_spec("jeepney") is None
    or not own_address()[0].isdigit(),
    reason="needs root, dbus-daemon, avahi-daemon, unshare, jeepney and a network",
)


class House:
    """A message bus, and an avahi-daemon on it that is started and stopped."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.bus = folder, folder / "bus"
        self._avahi: subprocess.Popen[bytes] | None = None
        config = folder / "bus.conf"
        config.write_text(BUS.format(path=self.bus), encoding="utf-8")
        self._daemon = subprocess.Popen(
            ["dbus-daemon", "--nofork", "--nopidfile", f"--config-file={config}"],
            stderr=subprocess.DEVNULL,
        )
        until(self.bus.exists, WITHIN_S)
        (folder / "avahi.conf").write_text(
            f"[server]\nhost-name=house-{os.getpid()}\nuse-ipv6=no\n", encoding="utf-8"
        )

    def start_avahi(self) -> None:
        # where it writes its number, another one may run
        mount = "mkdir -p /run/avahi-daemon && mount -t tmpfs none /run/avahi-daemon"
        run = "exec avahi-daemon --no-drop-root --no-chroot --no-rlimits -f"
        log = self._folder / "avahi.log"
        with log.open("wb") as stream:
            self._avahi = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", f"{mount} && {run} {self._folder}/avahi.conf"],
                env=os.environ | {"DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={self.bus}"},
                stderr=stream,
            )
        until(lambda: b"startup complete" in log.read_bytes(), WITHIN_S)

    def stop_avahi(self) -> None:
        if self._avahi:
            self._avahi.terminate()
            self._avahi.wait()
            self._avahi = None

    def close(self) -> None:
        self.stop_avahi()
        self._daemon.kill()
        self._daemon.wait()


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    house = House(tmp_path)
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={house.bus}")
    yield house
    house.close()


@contextmanager
def announcing(instance: str, port: int) -> Iterator[list[str]]:
    """What is told while it is announced."""
    told: list[str] = []
    loop = asyncio.new_event_loop()
    announced = advertise(instance, port, told.append, look_s=0.2, again_s=0.1)
    task = loop.create_task(announced)

    def run() -> None:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(task)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield told
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()


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
def test_the_network_sees_the_server_while_it_runs_and_again_when_avahi_was_away(
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
def test_a_name_that_is_taken_is_told_with_the_cure(house: House) -> None:
    house.start_avahi()
    with announcing("roomscribe-twice", 10398) as first:
        until(last_is(first, ""), WITHIN_S)
        with announcing("roomscribe-twice", 10397) as second:
            until(last_is(second, "node"), WITHIN_S)
        assert last_is(first, "")()


def test_without_avahi_the_address_to_type_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path / 'none'}")
    if find_spec("zeroconf"):
        pytest.skip("zeroconf is here and would announce it")
    with announcing("roomscribe-kitchen", 10300) as told:
        until(lambda: told, WITHIN_S)
    assert f"{own_address()}, port 10300" in told[0]
