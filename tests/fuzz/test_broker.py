"""A server that answers anything in the place of a broker: the publisher tries again and again."""

from __future__ import annotations

import gc
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from rigs.fuzzing import damaged, examples, is_one_line
from rigs.publishing import running, transcript
from rigs.waiting import until

from appliance.config import MqttSettings, StoreSettings
from appliance.mqtt.connection import Delays
from appliance.mqtt.publisher import Publisher
from appliance.store.store import Store

WELCOME = b"\x20\x03\x00\x00\x00"
PACKETS = (
    WELCOME,
    b"\x20\x09\x00\x00\x06\x21\x00\x14\x22\x00\x0a",  # CONNACK with Receive Maximum
    b"\x20\x06\x00\x00\x03\x21\x00\x00",  # Receive Maximum 0
    b"\x20\x02\x00\x00",  # CONNACK of MQTT 3
    b"\x20\x02\x00\x05",
    b"\x20\x03\x00\x87\x00",  # not authorized
    b"\x20\x03\x00\x89\x00",  # busy
    b"\x40\x02\x00\x01",  # PUBACK
    b"\x40\x03\x00\x02\x10",  # nobody subscribes
    b"\x40\x04\x00\x04\x87\x00",  # refused
    b"\x50\x02\x00\x01",  # PUBREC
    b"\x62\x02\x00\x01",  # PUBREL
    b"\x70\x02\x00\x01",  # PUBCOMP
    b"\x90\x04\x00\x01\x00\x00",  # SUBACK
    b"\x90\x04\x00\x02\x00\x87",
    b"\xb0\x04\x00\x01\x00\x00",  # UNSUBACK
    b"\xd0\x00",  # PINGRESP
    b"\xe0\x00",  # DISCONNECT
    b"\xe0\x02\x8e\x00",
    b"\xf0\x02\x18\x00",  # AUTH
    b"\x10\x10\x00\x04MQTT\x05\x02\x00\x1e\x00\x00\x03abc",  # CONNECT
    b"\x30\x17\x00\x14homeassistant/status\x00",
    b"\x32\x0e\x00\x08mute/set\x00\x09\x00ON",
    b"\x34\x0e\x00\x08mute/set\x00\x09\x00ON",
    b"\x30\x05\x00\x02\xff\xfe\x00",  # a topic that is no text
    b"\x30\x0b\x00\x01a\x07\x08\x00\x04\xef\xbb\xbfx",  # response topic with U+FEFF
)


class Impostor:
    """Sends each who speaks to it the present `answer`, and hangs up."""

    def __init__(self) -> None:
        self.answer = b""
        self.served = 0
        self._over = False
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(0.2)
        self.port: int = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._over:
            with suppress(OSError):
                connection, _ = self._server.accept()
                with connection:
                    connection.settimeout(2)
                    if connection.recv(4096):
                        self.served += 1
                        connection.sendall(self.answer)
                        connection.shutdown(socket.SHUT_WR)
                        deadline_s = time.monotonic() + 0.05
                        while connection.recv(65536) and time.monotonic() < deadline_s:
                            pass

    def close(self) -> None:
        self._over = True
        self._thread.join(30)
        self._server.close()


@pytest.fixture(scope="module")
def publisher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Publisher, Impostor]]:
    # within 0 s no broker is there
    soon = Delays(outages_s=(0.01,), refusal_s=0.01, attempt_s=0.5, probe_s=0.0, idle_answer_s=1.0)
    impostor = Impostor()
    state = tmp_path_factory.mktemp("state")
    logging.getLogger("roomscribe").setLevel(logging.CRITICAL)
    with Store.open(StoreSettings(path=str(state))) as store:
        for number in range(30):
            store.append(transcript(str(number)))
        chosen = MqttSettings(host="127.0.0.1", port=impostor.port, keepalive_s=5)
        with running(chosen, store, delays=soon) as one:
            yield one, impostor
            impostor.close()
    logging.getLogger("roomscribe").setLevel(logging.NOTSET)


def answers() -> st.SearchStrategy[bytes]:
    """Packets of a broker in any order, some of them damaged, or nothing of the kind."""
    one = st.one_of(st.sampled_from(PACKETS), st.sampled_from(PACKETS).flatmap(damaged))
    talk = st.lists(one, max_size=8).map(b"".join)
    return st.one_of(talk, talk.map(lambda told: WELCOME + told), st.binary(max_size=200))


@given(answers())
@examples(40, shrink=False)
def test_a_broker_may_answer_anything(publisher: tuple[Publisher, Impostor], answer: bytes) -> None:
    one, impostor = publisher
    impostor.answer = answer
    served = impostor.served
    until(lambda: impostor.served >= served + 2, 30)
    for reason in one.reasons():
        assert is_one_line(reason), reason


def open_files() -> int:
    """How many this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_no_thread_and_no_file_is_left_of_all_these_connections(
    publisher: tuple[Publisher, Impostor], capfd: pytest.CaptureFixture[str]
) -> None:
    _, impostor = publisher
    impostor.answer = b"\xff" * 100
    gc.collect()  # what other tests left open is not counted
    files, threads = open_files(), threading.active_count()
    served = impostor.served
    until(lambda: impostor.served >= served + 40, 60)
    until(lambda: threading.active_count() < threads + 10)
    until(lambda: open_files() < files + 20)
    assert "Traceback" not in capfd.readouterr().err
