"""The connection to the fleet's server comes back for ever, stalls nobody, and tells a stranger
nothing."""

import asyncio
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from rigs.certificates import Authority
from rigs.engine import engine_of, served, settings_for
from rigs.nats import NatsServer
from rigs.needs import needs_fleet, needs_nats
from rigs.waiting import PATIENCE_S, until

from appliance.config import FleetSettings
from appliance.errors import ConfigError, ServerError
from appliance.fleet.link import CREDENTIAL, Link, connect_options, read_credential
from appliance.fleet.probe import find_workers

PASSWORD = "a very secret password"


def written(folder: Path, text: str, mode: int = 0o600) -> FleetSettings:
    file = folder / "credential"
    file.write_text(text, encoding="utf-8")
    file.chmod(mode)
    return FleetSettings(role="satellite", server="tls://house:4222", credential=str(file))


def start(link: Link) -> None:
    """Connect, and do nothing with it."""

    async def stay(_: object) -> None:
        await asyncio.Event().wait()

    link.start(stay, lambda _: None)


@contextmanager
def linked(server: str, **fleet: Any) -> Iterator[Link]:
    opened = Link(FleetSettings(role="satellite", server=server, **fleet), "kitchen")
    start(opened)
    try:
        yield opened
    finally:
        opened.close()


def test_a_credential_is_user_and_password_for_its_owner_alone(tmp_path: Path) -> None:
    chosen = written(tmp_path, f'user = "bed-room"\npassword = "{PASSWORD}"\n')
    found = connect_options(chosen, "kitchen")
    assert (found["user"], found["password"]) == ("bed-room", PASSWORD)
    assert (found["name"], found["inbox_prefix"]) == ("bed-room", "_INBOX.bed-room")
    assert "tls" in found
    assert connect_options(FleetSettings(role="satellite"), "kitchen") == {
        "name": "kitchen",
        "inbox_prefix": "_INBOX.kitchen",
    }


@pytest.mark.parametrize(
    ("text", "mode", "wanted"),
    [
        (f'user = "x"\npassword = "{PASSWORD}"', 0o640, "with 0640; chmod 600 "),
        (f'user = "x"\npassword = "{PASSWORD}"', 0o604, "expected a file that its owner alone"),
        (f'password = "{PASSWORD}"', 0o600, 'user = "..." and password = "..."'),
        (PASSWORD, 0o600, 'user = "..." and password = "..."'),
        (f'user = "a.>"\npassword = "{PASSWORD}"', 0o600, "expected a user of a-z, A-Z"),
        ("", 0o600, "without; `roomscribe fleet join CODE` writes it"),
    ],
)
def test_a_wrong_credential_is_named_on_one_line_that_does_not_show_it(
    tmp_path: Path, text: str, mode: int, wanted: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        connect_options(written(tmp_path, text, mode), "kitchen")
    (line,) = refused.value.messages
    assert line.startswith("fleet.credential: expected")
    assert wanted in line
    assert PASSWORD not in line


def test_a_credential_or_an_authority_that_is_not_there_is_named(tmp_path: Path) -> None:
    beyond = FleetSettings(role="satellite", server="tls://house:4222")
    with pytest.raises(ConfigError, match="user and password for tls://house:4222, found none"):
        connect_options(beyond, "kitchen")
    gone = str(tmp_path / "gone")
    with pytest.raises(ConfigError, match="No such file or directory"):
        connect_options(FleetSettings(credential=gone), "kitchen")
    inside = FleetSettings(server="tls://127.0.0.1:4222", ca=gone)
    with pytest.raises(ConfigError, match=r"fleet\.ca: .*No such file"):
        connect_options(inside, "kitchen")
    (tmp_path / "ca").write_text("no certificate", encoding="ascii")
    with pytest.raises(ConfigError, match=r"fleet\.ca: expected a certificate authority"):
        connect_options(
            FleetSettings(server="tls://[::1]:4222", ca=str(tmp_path / "ca")), "kitchen"
        )


def test_systemd_hands_a_credential_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read_credential(FleetSettings()) is None
    given = tmp_path / CREDENTIAL
    given.write_text(f'user = "x"\npassword = "{PASSWORD}"', encoding="ascii")
    given.chmod(0o440)  # as systemd makes it
    found = read_credential(FleetSettings())
    assert found
    assert (found.user, found.password) == ("x", PASSWORD)
    assert stat.S_IMODE(given.stat().st_mode) == 0o440


@needs_nats
def test_a_server_that_comes_later_and_again_is_found() -> None:
    with NatsServer() as server:
        server.kill()
        with linked(server.url) as link:
            until(lambda: "nothing listens there" in str(link.trouble))
            assert link.client is None
            for _ in range(2):
                server.start()
                until(lambda: link.trouble is None)
                assert link.server == server.url
                server.kill()
                until(lambda: "no server" in str(link.trouble))


def test_a_server_that_says_nothing_is_let_go_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as dumb:
        address = f"nats://127.0.0.1:{dumb.getsockname()[1]}"
        with linked(address) as link:
            link.close()
            with pytest.raises(ServerError, match="is closed"):
                link.submit(asyncio.sleep(0))
        with pytest.raises(ServerError, match="no answer in time"):
            find_workers(FleetSettings(role="satellite", server=address), "kitchen")


def test_a_server_without_tls_is_not_given_the_password(tmp_path: Path) -> None:
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def greet() -> None:
            connection, _ = stranger.accept()
            with connection:
                connection.settimeout(5.0)
                connection.sendall(
                    b'INFO {"server_id":"x","version":"2.9.10","proto":1,"max_payload":1048576,'
                    b'"auth_required":true,"headers":true}\r\n'
                )
                while got := connection.recv(1 << 16):
                    heard.append(got)

        greeter = threading.Thread(target=greet)
        greeter.start()
        chosen = written(tmp_path, f'user = "x"\npassword = "{PASSWORD}"')
        port = stranger.getsockname()[1]
        with linked(f"tls://127.0.0.1:{port}", credential=chosen.credential) as link:
            until(lambda: "offers no TLS" in str(link.trouble))
            greeter.join(PATIENCE_S)
    assert PASSWORD.encode() not in b"".join(heard)


@needs_fleet
def test_tls_and_the_credential_are_checked(tmp_path: Path) -> None:
    engine = engine_of(bed="satellite", pi5="worker")
    engine.write(tmp_path / "server", tmp_path / "js")
    with served(tmp_path / "server", engine.port):
        good = settings_for(engine, "bed", tmp_path / "bed")
        right = Link(good, "kitchen")
        start(right)
        until(lambda: right.trouble is None)
        assert right.node == "bed"
        right.close()
        file = Path(good.credential)
        ca, right_ca, credential = Path(good.ca), Path(good.ca).read_bytes(), file.read_bytes()
        file.write_text('user = "bed"\npassword = "another"', encoding="ascii")
        with linked(good.server, credential=good.credential, ca=good.ca) as wrong:
            until(lambda: "does not know this user or password" in str(wrong.trouble))
            ca.write_bytes(Authority(tmp_path).certificate.read_bytes())
            file.write_bytes(credential)
            until(lambda: "its certificate is not trusted" in str(wrong.trouble))
            ca.write_bytes(right_ca)  # renewed on the disk, without a restart
            until(lambda: wrong.trouble is None)
        with linked(good.server, credential=good.credential) as unknown:
            until(lambda: "its certificate is not trusted" in str(unknown.trouble))
            assert str(unknown.trouble).startswith("refused: ")


@needs_fleet
def test_a_right_that_the_role_lacks_is_named_with_the_fix(tmp_path: Path) -> None:
    engine, told = engine_of(bed="satellite"), list[str | None]()
    engine.write(tmp_path / "server", tmp_path / "js")

    async def read_everything(client: Client) -> None:
        await client.subscribe("roomscribe.>")
        await asyncio.Event().wait()

    with served(tmp_path / "server", engine.port):
        link = Link(settings_for(engine, "bed", tmp_path / "bed"), "bed")
        link.start(read_everything, told.append)
        until(lambda: link.refusal)
        link.close()
    assert "does not let bed do what a satellite does (" in link.refusal
    assert told[:2] == [None, link.refusal]
