"""What nats-server is told for a fleet, with a real one; and the codes that let nodes in."""

import json
import os
import signal
import ssl
import time
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rigs.broker import free_port
from rigs.disks import mounted
from rigs.engine import engine_of, login_of, served, settings_for
from rigs.fleet import Bus
from rigs.needs import needs_fleet
from rigs.waiting import until

from appliance.cli.fleet.provisioning import CONFIG, KEY, NODES, STATE, Code, FleetServer, is_host
from appliance.errors import ConfigError, ServerError, StoreError
from appliance.fleet.link import explain_failure
from appliance.fleet.probe import find_workers
from appliance.system import write_whole

pytestmark = needs_fleet


class Rights(Bus):
    """A node that tries what the server allows."""

    def __init__(self, engine: FleetServer, node: str) -> None:
        super().__init__(engine.addresses[0], node=node, **login_of(engine, node))

    def may_read(self, subject: str) -> bool:
        return self._allowed(self.client.subscribe(subject))

    def may_send(self, subject: str) -> bool:
        return self._allowed(self.client.publish(subject, b""))

    def _allowed(self, attempt: Coroutine[Any, Any, object]) -> bool:
        """The server answers a ping behind its refusal, which nats-py reports a moment later."""
        before = len(self.errors)
        self.run(attempt)
        self.run(self.client.flush())
        deadline_s = time.monotonic() + 0.3
        while len(self.errors) == before and time.monotonic() < deadline_s:
            time.sleep(0.01)
        return len(self.errors) == before


def lets_in(engine: FleetServer, node: str, folder: Path) -> bool:
    try:
        find_workers(settings_for(engine, node, folder), node)
    except ServerError:
        return False
    return True


def test_a_box_that_is_invited_gets_in_and_what_is_others_is_refused(tmp_path: Path) -> None:
    engine = engine_of(kitchen="satellite", attic="worker")
    assert engine.write(tmp_path / "s", tmp_path / "js")
    with served(tmp_path / "s", engine.port):
        with Rights(engine, "kitchen") as satellite:
            assert satellite.may_read("roomscribe.answer.kitchen")
            assert satellite.may_send("roomscribe.window.kitchen")
            for subject in ("roomscribe.answer.attic", "roomscribe.>", "_INBOX.>", "$JS.>"):
                assert not satellite.may_read(subject), subject
            for subject in (
                "roomscribe.window.attic",
                "roomscribe.answer.kitchen",
                "$JS.API.STREAM.DELETE.ROOMSCRIBE",
                "$JS.API.CONSUMER.MSG.NEXT.ROOMSCRIBE.workers",
                "$JS.API.STREAM.MSG.GET.ROOMSCRIBE",
            ):
                assert not satellite.may_send(subject), subject
        with Rights(engine, "attic") as worker:
            assert worker.may_read("roomscribe.workers")
            assert worker.may_send("roomscribe.answer.kitchen")
            assert not worker.may_read("roomscribe.window.kitchen")
            assert not worker.may_send("roomscribe.window.attic")
            assert not worker.may_send("$JS.API.STREAM.MSG.GET.ROOMSCRIBE")


def test_who_is_not_invited_or_no_longer_is_thrown_out_without_a_restart(tmp_path: Path) -> None:
    engine = engine_of(kitchen="satellite", bath="satellite")
    engine.write(tmp_path / "s", tmp_path / "js")
    with served(tmp_path / "s", engine.port) as server:
        pid = server.pid
        assert lets_in(engine, "bath", tmp_path)
        later = engine.remove("bath").invite("hall", "satellite")
        assert not later.write(tmp_path / "s", tmp_path / "js")  # no restart is asked for
        server.signal(signal.SIGHUP)
        until(lambda: lets_in(later, "hall", tmp_path))
        assert not lets_in(engine, "bath", tmp_path)
        assert lets_in(engine, "kitchen", tmp_path)
        assert server.pid == pid


def test_with_no_box_at_all_nobody_gets_in(tmp_path: Path) -> None:
    engine = engine_of()
    engine.write(tmp_path / "s", tmp_path / "js")
    stranger = replace(engine.invite("kitchen", "satellite"))
    with served(tmp_path / "s", engine.port):
        assert not lets_in(stranger, "kitchen", tmp_path)
        nameless = replace(settings_for(stranger, "kitchen", tmp_path), credential="")
        with pytest.raises(ServerError):
            find_workers(nameless, "kitchen")


def test_a_wrong_password_and_a_wrong_authority_are_told_apart(tmp_path: Path) -> None:
    engine = engine_of(kitchen="satellite")
    engine.write(tmp_path / "s", tmp_path / "js")
    box = replace(engine.nodes["kitchen"], password="wrong")
    with served(tmp_path / "s", engine.port):
        wrong = settings_for(replace(engine, nodes={"kitchen": box}), "kitchen", tmp_path)
        for _ in range(5):  # each time, although nats-py may be writing when it is refused
            with pytest.raises(ServerError, match="does not know this"):
                find_workers(wrong, "kitchen")
        other = replace(engine, certificate=engine_of().certificate)
        foreign = settings_for(other, "kitchen", tmp_path)
        with pytest.raises(ServerError, match="certificate"):
            find_workers(foreign, "kitchen")


@pytest.mark.parametrize(("number", "found"), [(9, "not valid yet"), (10, "has expired")])
def test_a_wrong_clock_is_named_with_the_fix(number: int, found: str) -> None:
    error = ssl.SSLCertVerificationError("certificate verify failed")
    error.verify_code = number
    reason = str(explain_failure("tls://attic.local:4222", error))
    assert found in reason
    assert "timedatectl" in reason


def test_nothing_of_it_waits_on_a_disk(tmp_path: Path) -> None:
    from nats.errors import Error

    engine = engine_of(kitchen="satellite", attic="worker")
    engine.write(tmp_path / "s", tmp_path / "js")
    text = (tmp_path / "s" / CONFIG).read_text(encoding="utf-8")
    assert not any(word in text for word in ("trace", "debug", "http", "log_file"))
    with served(tmp_path / "s", engine.port) as server:
        with Rights(engine, "attic") as worker:
            with pytest.raises(Error, match=r"(?i)storage|resources"):
                make_stream(worker, "file")
            assert make_stream(worker, "memory") == "memory"
        with Rights(engine, "kitchen") as satellite:
            speech = b"nobody reads this on a disk" * 100
            satellite.run(satellite.client.jetstream().publish(SUBJECT, speech))
            assert server.stream()["state"]["messages"] == 1
        assert SUBJECT not in server.log()
        files = [one for one in tmp_path.rglob("*") if one.is_file()]
        assert files
        assert not [one for one in files if speech[:27] in one.read_bytes()]


SUBJECT = "roomscribe.window.kitchen"


def make_stream(worker: Rights, storage: str) -> object:
    """Make the stream; return where it is stored."""
    from nats.js.api import RetentionPolicy, StorageType

    adding = worker.client.jetstream(timeout=2).add_stream(
        name="ROOMSCRIBE",
        subjects=["roomscribe.window.*"],
        storage=StorageType(storage),
        retention=RetentionPolicy.WORK_QUEUE,
    )
    return worker.run(adding).config.storage


def test_a_run_that_was_interrupted_is_finished_by_the_next(tmp_path: Path) -> None:
    engine = engine_of(kitchen="satellite")
    folder = tmp_path / "s"
    engine.write(folder, tmp_path / "js")
    for name in (CONFIG, NODES, KEY):
        (folder / name).unlink()  # all that a power cut behind the first file leaves out
        loaded = FleetServer.load(folder)
        assert loaded == engine
        assert loaded.write(folder, tmp_path / "js") == (name != NODES)
        assert (folder / name).exists()
        assert loaded.with_certificate() == loaded


def test_a_full_disk_leaves_the_server_as_it_was(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "48k") as disk:
        engine = engine_of(kitchen="satellite")
        engine.write(disk / "s", tmp_path / "js")
        before = {file.name: file.read_bytes() for file in (disk / "s").iterdir()}
        with pytest.raises(OSError, match="No space"), (disk / "rest").open("wb") as rest:
            while True:
                rest.write(bytes(4096))
                rest.flush()
        many = replace(engine, port=free_port())
        for number in range(40):
            many = many.invite(f"room{number}", "satellite")
        with pytest.raises(StoreError, match="cannot be written: No space left on device; see its"):
            many.write(disk / "s", tmp_path / "js")
        assert {file.name: file.read_bytes() for file in (disk / "s").iterdir()} == before


def test_secrets_are_for_the_owner_and_the_server_alone(tmp_path: Path) -> None:
    engine = engine_of(kitchen="satellite")
    engine.write(tmp_path / "s", tmp_path / "js")
    for name in (STATE, KEY, CONFIG, NODES):
        assert not (tmp_path / "s" / name).stat().st_mode & 0o007, name
    assert engine.nodes["kitchen"].password not in repr(engine)
    assert engine.key not in repr(engine)


def test_nats_server_may_read_its_files_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        engine_of(kitchen="satellite").write(tmp_path / "s", tmp_path / "js")
    finally:
        os.umask(before)
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "s" / "nats.conf").stat().st_mode & 0o007 == 0


def test_a_code_holds_what_the_node_needs_and_survives_a_messenger() -> None:
    engine = engine_of(kitchen="satellite")
    code = engine.code("kitchen")
    word = code.text()
    assert Code.read(word) == code
    wrapped = "\n  ".join(word[at : at + 60] for at in range(0, len(word), 60))
    assert Code.read(f" {wrapped}\r\n") == code
    assert code.servers == (f"tls://127.0.0.1:{engine.port}",)
    assert code.certificate == engine.certificate


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda _: "", "found nothing"),
        (lambda _: "hello", "found hello"),
        (lambda word: word[:-9], "incomplete or changed"),
        (
            lambda word: word[:200] + ("A" if word[200] != "A" else "B") + word[201:],
            "incomplete or",
        ),
        (lambda word: word.replace("-1.", "-2."), "found roomscribe-2"),
        (lambda _: "roomscribe-1.!!!", "incomplete or changed"),
        (lambda _: "roomscribe-1.", "incomplete or changed"),
    ],
)
def test_what_is_no_code_is_one_line(damage: object, expected: str) -> None:
    word = engine_of(kitchen="satellite").code("kitchen").text()
    with pytest.raises(ConfigError, match=expected) as caught:
        Code.read(damage(word))  # type: ignore[operator]
    assert "\n" not in str(caught.value)


def test_names_that_no_subject_or_certificate_can_hold_are_refused() -> None:
    for node in ("", "Kitchen", "a.b", "a*", "a>", "ä", "x" * 65):
        with pytest.raises(ConfigError, match="expected a node's name"):
            engine_of().invite(node, "satellite")
    with pytest.raises(ConfigError, match="was not invited here; known nodes: hall"):
        engine_of(hall="satellite").remove("kitchen")
    for good in ("attic.local", "192.168.1.5", "fd00::1", "a"):
        assert is_host(good), good
    for bad in ("", "a b", 'a"b', "-a", "a..b", "a,b", "a:1", "tls://a"):
        assert not is_host(bad), bad


def test_a_damaged_state_is_named_and_left_alone(tmp_path: Path) -> None:
    engine = engine_of(kitchen="satellite")
    engine.write(tmp_path, tmp_path / "js")
    whole = json.loads((tmp_path / STATE).read_text(encoding="utf-8"))
    for text in ("", "[]", "{}", json.dumps({**whole, "nodes": []}), json.dumps({**whole, "x": 1})):
        write_whole(tmp_path / STATE, text)
        with pytest.raises(ConfigError, match="set the server up again"):
            FleetServer.load(tmp_path)
        assert (tmp_path / STATE).read_text(encoding="utf-8") == text
    assert FleetServer.load(tmp_path / "none") is None
