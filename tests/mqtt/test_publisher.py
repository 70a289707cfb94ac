"""Store to subscriber through a real Mosquitto: order, outages, refusals, the last will."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rigs.broker import Broker
from rigs.checkout import TESTS
from rigs.mqtt_client import Subscriber
from rigs.needs import needs_broker
from rigs.publishing import STATE, add, running, transcript
from rigs.waiting import NEVER_S, until

from appliance.config import MqttSettings, Settings, StoreSettings
from appliance.errors import ConfigError
from appliance.mqtt import credentials, live_topics
from appliance.mqtt.connection import Delays
from appliance.mqtt.publisher import Publisher
from appliance.records import Discarded, Partial
from appliance.store.store import Store
from appliance.store.tables import StoredTranscript

pytestmark = needs_broker


def settings(broker: Broker, **changes: Any) -> MqttSettings:
    return replace(broker.settings, **changes)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_backlog_does_not_wait_for_delayed_acknowledgements_of_tcp(store: Store) -> None:
    for number in range(100):
        store.append(transcript(str(number)))
    with Broker() as broker, Subscriber(broker.port) as subscriber:
        with running(settings(broker), store) as publisher:
            until(subscriber.events)
            link = publisher.connection._link
            assert link
            opened: Any = link._client.socket()
            assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            until(lambda: len(subscriber.events()) == 100)
        assert subscriber.texts() == [str(number) for number in range(100)]


def test_a_stored_transcript_reaches_subscribers_at_once(store: Store) -> None:
    with Broker() as broker, Subscriber(broker.port) as subscriber:
        with running(settings(broker), store) as publisher:
            until(lambda: publisher.connection.is_connected)
            add(store, publisher, "turn on the light")
            until(subscriber.events)
            stored = store.read_after(0)[0]
            event = subscriber.events()[0]
            assert (event["id"], event["seq"]) == (stored.transcript.id, stored.seq)
            assert (event["text"], event["late"]) == ("turn on the light", False)
            until(lambda: store.cursor() == stored.seq)
            message = next(m for m in subscriber.messages if m.topic.endswith("/transcript"))
            assert (message.qos, message.retain) == (1, False)
            properties: Any = message.properties  # paho makes its attributes up
            assert properties is not None
            assert 3590 <= properties.MessageExpiryInterval <= 3600
        until(lambda: subscriber.payloads("availability") == [b"online", b"offline"])


class LateStore(Store):
    """Something happens just when the publisher looks for what is due."""

    happens: Callable[[], object] | None = None

    def read_after(self, seq: int, limit: int = 100) -> list[StoredTranscript]:
        happens, self.happens = self.happens, None
        if happens:
            happens()
        return super().read_after(seq, limit)


def test_a_partial_text_comes_before_its_transcript(tmp_path: Path) -> None:
    said = transcript()
    with (
        Broker() as broker,
        Subscriber(broker.port) as subscriber,
        LateStore.open(StoreSettings(path=str(tmp_path))) as late,
        running(settings(broker, partials=True), late) as publisher,
    ):
        until(lambda: publisher.live.wants_partials)
        until(lambda: subscriber.payloads("state"))

        def say() -> None:
            publisher.live.on_partial(Partial(said.utterance_id, 1, 1, said.text, 0, eager=True))
            late.append(said)

        late.happens = say
        publisher.on_change()
        until(subscriber.events)
        topics = [message.topic.rpartition("/")[2] for message in subscriber.messages]
        assert [one for one in topics if one in ("partial", "transcript")] == [
            "partial",
            "transcript",
        ]
        message = next(one for one in subscriber.messages if one.topic.endswith("/partial"))
        assert (message.qos, message.retain) == (0, False)


def test_partial_texts_are_published_only_if_enabled(store: Store) -> None:
    with Broker() as broker, Subscriber(broker.port) as subscriber:
        with running(settings(broker), store) as publisher:
            until(lambda: publisher.connection.is_connected)
            assert not publisher.live.wants_partials
            publisher.live.on_partial(Partial("u", 1, 1, "turn on", 0))
            add(store, publisher, "turn on the light")
            until(subscriber.events)
        assert subscriber.payloads("partial") == []
    with running(settings(broker, partials=True), store) as publisher:
        assert not publisher.live.wants_partials, "the broker is away"


def test_availability_comes_before_everything_and_state_is_retained(store: Store) -> None:
    store.append(transcript("from before"))
    with Broker() as broker, Subscriber(broker.port) as subscriber:
        with running(settings(broker), store):
            until(lambda: subscriber.events() and subscriber.payloads("state"))
        assert subscriber.messages[0].topic == "roomscribe/kitchen/availability"
        state = json.loads(subscriber.payloads("state")[0])
        assert (state["status"], state["outbox_depth"]) == ("running", 1)
        assert subscriber.payloads("microphone") == [b"online"]
        until(lambda: subscriber.payloads("availability")[-1] == b"offline")
        with Subscriber(broker.port, name="newcomer") as newcomer:
            kept = ("availability", "state", "microphone")
            until(lambda: all(newcomer.payloads(name) for name in kept))
            assert newcomer.payloads("availability") == [b"offline"]
            assert newcomer.events() == []


def test_a_late_will_of_an_old_connection_is_corrected(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_topics, "STATE_S", 0.5)
    with (
        Broker() as broker,
        Subscriber(broker.port) as subscriber,
        running(settings(broker), store),
    ):
        until(lambda: subscriber.payloads("availability") == [b"online"])
        subscriber.publish("roomscribe/kitchen/availability", b"offline", retain=True)
        until(lambda: b"offline" in subscriber.payloads("availability"))
        until(lambda: subscriber.payloads("availability")[-1] == b"online")


def test_a_change_of_state_is_published_at_once_and_only_once(store: Store) -> None:
    states = [STATE]
    with Broker() as broker, Subscriber(broker.port) as subscriber:
        with running(settings(broker), store, lambda: states[-1]) as publisher:
            until(lambda: subscriber.payloads("state"))
            states.append(
                replace(STATE, status="degraded", reasons=("unplugged",), microphone_online=False)
            )
            publisher.on_change()
            until(lambda: len(subscriber.payloads("state")) == 2)
            states.append(replace(states[-1], uptime_s=99.0, queue_depth=3))
            publisher.on_change()
            publisher.live.on_speech(True)
            publisher.live.on_discarded(Discarded("no_speech", "01J", 0.5))
            publisher.live.on_speech(False)
            until(lambda: subscriber.payloads("speech") == [b"OFF", b"ON", b"OFF"])
        assert [json.loads(p)["status"] for p in subscriber.payloads("state")][:2] == [
            "running",
            "degraded",
        ]
        assert subscriber.payloads("microphone") == [b"online", b"offline"]
        assert json.loads(subscriber.payloads("discarded")[0])["reason"] == "no_speech"


def test_what_is_heard_before_the_broker_is_there_comes_late_in_order_and_once(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    texts = [f"sentence {number}" for number in range(50)]
    with Broker(start=False) as broker, running(settings(broker), store) as publisher:
        add(store, publisher, *texts)
        until(lambda: "is offline" in "".join(publisher.reasons()))
        time.sleep(1.5)
        assert publisher.outbox.depth() == 50
        broker.start()
        with Subscriber(broker.port) as subscriber:
            until(lambda: len(subscriber.events()) >= 50)
            add(store, publisher, "at once")
            until(lambda: store.depth() == 0 and len(subscriber.events()) >= 51)
            assert subscriber.texts() == [*texts, "at once"]
            assert [event["late"] for event in subscriber.events()] == [True] * 50 + [False]
            assert publisher.reasons() == ()
    assert sum("is offline" in line for line in caplog.messages) == 1


def test_a_broker_restart_in_the_middle_loses_nothing_and_keeps_the_order(store: Store) -> None:
    texts = [f"sentence {number}" for number in range(120)]
    with (
        Broker(persistent=True) as broker,
        running(settings(broker), store) as publisher,
        Subscriber(broker.port) as subscriber,
    ):
        until(lambda: publisher.connection.is_connected)
        add(store, publisher, *texts[:60])
        until(lambda: len(subscriber.events()) > 20)
        broker.stop()
        add(store, publisher, *texts[60:])
        broker.start()
        until(lambda: store.depth() == 0)
        until(lambda: subscriber.texts()[-1:] == texts[-1:])
        assert list(dict.fromkeys(subscriber.texts())) == texts


def test_a_stop_does_not_wait_for_a_broker_that_hangs(store: Store) -> None:
    with Broker() as broker:
        with running(settings(broker), store) as publisher:
            until(lambda: publisher.connection.is_connected)
            broker.signal(signal.SIGSTOP)
            add(store, publisher, "kept")
        assert store.depth() == 1
        broker.signal(signal.SIGCONT)


def test_a_wrong_password_is_reported_and_not_retried_soon(store: Store, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("hunter2-wrong\n")
    with Broker(users={"ada": "right"}) as broker:
        wrong = settings(broker, username="ada", password_file=str(secret))
        with running(wrong, store) as publisher:
            add(store, publisher, "kept")
            until(publisher.reasons)
            time.sleep(3)
            assert not publisher.connection.is_connected
            (reason,) = publisher.reasons()
            assert re.search(r"refuses user 'ada' .*make mqtt\.username and", reason)
            assert store.depth() == 1
            assert "hunter2" not in repr((reason, vars(publisher)))
        assert broker.log().count("Sending CONNACK") == 1

        secret.write_text("right\n")
        with running(wrong, store) as publisher, Subscriber(broker.port, "ada", "right") as heard:
            until(heard.events)
            assert publisher.reasons() == ()


def test_a_broker_that_wants_a_user_says_so_to_a_client_without(store: Store) -> None:
    with Broker(users={"ada": "right"}) as broker, running(settings(broker), store) as publisher:
        until(publisher.reasons)
        assert "refuses a client without mqtt.username" in publisher.reasons()[0]


def answer(store: Store, *packets: bytes) -> str:
    """The publisher's reason when a broker of few words answers its CONNECT with `packets`."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = MqttSettings(host="127.0.0.1", port=server.getsockname()[1])
        with running(there, store) as publisher:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"".join(packets))
                until(publisher.reasons)
                assert not publisher.connection.is_connected
                return publisher.reasons()[0]


def test_another_client_of_the_same_id_is_named(store: Store) -> None:
    # with a reason text: paho 2.1 takes a DISCONNECT without one for a normal end
    welcome, taken_over = b"\x20\x03\x00\x00\x00", b"\xe0\x06\x8e\x04\x1f\x00\x01x"
    reason = answer(store, welcome, taken_over)
    assert reason.startswith("another client uses the client id 'roomscribe-kitchen'")


def test_a_busy_broker_counts_as_offline(store: Store) -> None:
    assert "is offline" in answer(store, b"\x20\x03\x00\x89\x00")


def test_a_topic_refused_by_the_access_list_holds_the_outbox(store: Store, tmp_path: Path) -> None:
    rules = tmp_path / "acl"
    rules.write_text("topic write roomscribe/kitchen/availability\n")
    with Broker(config=f"acl_file {rules}") as broker, running(settings(broker), store) as p:
        until(lambda: p.connection.is_connected)
        add(store, p, "kept")
        until(p.reasons)
        assert "does not let us write to some topics (Not authorized)" in p.reasons()[0]
        until(lambda: "kitchen/transcript" in p.reasons()[0])
        time.sleep(0.5)
        assert (p.connection.is_connected, p.outbox.depth()) == (True, 1)


@pytest.mark.parametrize("limit", ["message_size_limit", "max_packet_size"])
def test_a_transcript_that_is_too_long_for_the_broker_does_not_hold_the_others(
    store: Store, limit: str
) -> None:
    delays = Delays(again_s=0.5)
    with Broker(config=f"{limit} 9000") as broker, Subscriber(broker.port) as subscriber:
        with running(settings(broker), store, delays=delays) as publisher:
            until(lambda: publisher.connection.is_connected)
            add(store, publisher, "one", "long " * 2000, "three")
            until(lambda: len(subscriber.events()) == 2)
            assert [event["seq"] for event in subscriber.events()] == [1, 3]
            until(lambda: publisher.outbox.depth() == 1)
            until(lambda: "refuses transcript 2 (" in str(subscriber.state()["reasons"]))
            assert broker.log().count("as roomscribe-kitchen") == 1, "the connection stays"
            broker.stop()
            broker._config.write_text(broker._config.read_text().replace("9000", "90000"))
            broker.start()
            until(lambda: store.depth() == 0)
            until(lambda: publisher.reasons() == ())
        until(lambda: [event["seq"] for event in subscriber.events()] == [1, 3, 2])
        assert [event["late"] for event in subscriber.events()] == [False, False, True]


def test_the_last_will_tells_that_the_process_was_killed(store: Store, tmp_path: Path) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from rigs.publishing import STATE, transcript\n"
        "from appliance.config import MqttSettings, Settings, StoreSettings\n"
        "from appliance.mqtt import Publisher\n"
        "from appliance.store.store import Store\n"
        "store = Store.open(StoreSettings(path=sys.argv[2]))\n"
        "store.append(transcript('before the end'))\n"
        "mqtt = MqttSettings(host='127.0.0.1', port=int(sys.argv[3]))\n"
        "Publisher(Settings(mqtt=mqtt), 'kitchen', store, lambda: STATE).run()\n"
    )
    with Broker() as broker, Subscriber(broker.port) as subscriber:
        arguments = [str(TESTS), str(tmp_path / "other"), str(broker.port)]
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments], cwd=TESTS.parent, env=os.environ
        )
        try:
            until(subscriber.events)
        finally:
            process.kill()
            process.wait()
        until(lambda: subscriber.payloads("availability") == [b"online", b"offline"])


def test_a_stop_delivers_what_is_stored_and_ends_soon(store: Store) -> None:
    with Broker() as broker, Subscriber(broker.port) as subscriber:
        publisher = Publisher(Settings(mqtt=settings(broker)), "kitchen", store, lambda: STATE)
        thread = threading.Thread(target=publisher.run)
        thread.start()
        until(lambda: publisher.connection.is_connected)
        for number in range(40):
            store.append(transcript(str(number)))
        publisher.stop(flush_s=NEVER_S)
        thread.join()
        until(lambda: subscriber.payloads("availability")[-1] == b"offline")
        assert subscriber.texts() == [str(number) for number in range(40)]
        assert subscriber.state()["status"] == "stopped"
        assert store.depth() == 0


def test_a_stop_without_a_broker_ends_at_once(store: Store) -> None:
    with (
        Broker(start=False) as broker,
        running(settings(broker), store, flush_s=NEVER_S) as publisher,
    ):
        add(store, publisher, "kept")
        until(publisher.reasons)
    assert store.depth() == 1


def test_failed_attempts_leave_no_threads_and_files_behind(store: Store) -> None:
    with Broker(start=False) as broker, running(settings(broker), store) as publisher:
        until(publisher.reasons)
        time.sleep(0.2)
        threads, files = threading.active_count(), open_files()
        time.sleep(4.3)
        assert threading.active_count() <= threads
        assert open_files() <= files


def test_the_password_comes_from_its_file_or_systemds_credential(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert credentials.read_password(MqttSettings()) is None
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert credentials.read_password(MqttSettings()) is None
    (tmp_path / credentials.PASSWORD_CREDENTIAL).write_text(" from systemd \n")
    assert credentials.read_password(MqttSettings()) == " from systemd "
    (tmp_path / "file").touch(mode=0o600)
    (tmp_path / "file").write_bytes(b"\xef\xbb\xbffrom file\r\n")
    assert (
        credentials.read_password(MqttSettings(password_file=str(tmp_path / "file"))) == "from file"
    )
    (tmp_path / "file").write_bytes(b"\n")
    with pytest.raises(ConfigError, match="found it empty"):
        credentials.read_password(MqttSettings(password_file=str(tmp_path / "file")))
