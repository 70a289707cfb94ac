"""The bad network of the fleet's trials: it changes nothing, and is as slow as it says."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from rigs.link import Link, Quality
from rigs.waiting import until

DATA = bytes(range(256)) * 300


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that sends back what it gets."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve(connection: socket.socket) -> None:
            with connection:
                while data := connection.recv(65536):
                    connection.sendall(data)

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(30)


def through(link: Link) -> tuple[bytes, float]:
    """What came back of DATA, and after how many seconds."""
    with socket.create_connection((link.host, link.port)) as connection:
        begun_s, back = time.monotonic(), b""
        sender = threading.Thread(target=connection.sendall, args=(DATA,))
        sender.start()
        while len(back) < len(DATA):
            back += connection.recv(65536)
        sender.join()
        return back, time.monotonic() - begun_s


def test_what_passes_a_perfect_link_is_counted_and_kept(echo: int) -> None:
    with Link(echo) as link:
        assert through(link)[0] == DATA
        assert bytes(link.sent) == DATA
        assert link.returned == len(DATA)


@pytest.mark.parametrize(
    ("quality", "least_s"),
    [
        (Quality(mbit_s=8.0), 8 * len(DATA) / 8e6),
        (Quality(delay_s=0.1), 0.2),
        (Quality(delay_s=0.05, loss=1.0), 0.5),
    ],
)
def test_a_bad_link_changes_nothing_and_takes_its_time(
    echo: int, quality: Quality, least_s: float
) -> None:
    with Link(echo, quality) as link:
        back, took_s = through(link)
        assert back == DATA
        assert took_s >= least_s


def test_a_cut_ends_what_is_open_and_later_connections_pass(echo: int) -> None:
    with Link(echo) as link, socket.create_connection((link.host, link.port)) as connection:
        connection.sendall(b"x")
        assert connection.recv(1) == b"x"
        cutting = threading.Thread(target=link.cut, args=(0.5,))
        cutting.start()
        assert connection.recv(1) == b""
        with socket.create_connection((link.host, link.port)) as refused:
            assert refused.recv(1) == b""
        cutting.join()
        until(lambda: through(link)[0] == DATA)
