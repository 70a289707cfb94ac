"""`roomscribe fleet` at the command line, with a real nats-server; scripts/test-deb has systemd."""

import io
import re
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rigs import bare
from rigs.broker import free_port
from rigs.checkout import ROOT
from rigs.command import OBEYING_MODES, errors, refusal, roomscribe, start
from rigs.daemon import daemon, log_of, write_config
from rigs.engine import served
from rigs.nats import NatsServer
from rigs.needs import needs_fleet
from rigs.terminal import Terminal
from rigs.waiting import PATIENCE_S, until

from appliance.cli.fleet.provisioning import PATHS, STATE
from appliance.cli.main import main

pytestmark = needs_fleet


def box(folder: Path, node: str = "") -> Path:
    """A box's configuration, as it is shipped but for its name."""
    folder.mkdir()
    text = (ROOT / "config" / "roomscribe.toml").read_text(encoding="utf-8")
    named = text.replace('#node = ""', f'node = "{node}"') if node else text
    state = text.replace('#path = ""', f'path = "{folder}/state"', 1) if not node else named
    config = folder / "roomscribe.toml"
    config.write_text(state, encoding="utf-8")
    return config


def sections(config: Path) -> dict[str, dict[str, object]]:
    return tomllib.loads(config.read_text(encoding="utf-8"))


@contextmanager
def house(folder: Path) -> Iterator[tuple[Path, NatsServer]]:
    """The configuration of the box attic, which serves, and its running server."""
    config, port = box(folder / "attic", "attic"), free_port()
    done = roomscribe(
        *("fleet", "invite", "--yes", "--name", "127.0.0.1", "--port", str(port)),
        *("--config", config),
    )
    assert done.returncode == 0, done.stderr
    assert f"nats-server -c {config.parent}/fleet/nats.conf" in done.stdout
    own = re.findall(r"once it runs, run this here: sudo roomscribe (.+)", done.stdout)
    with served(config.parent / "fleet", port) as server:
        joined = roomscribe(*own[0].split(), "--config", config)
        assert joined.returncode == 0, joined.stderr
        yield config, server


def invited(config: Path, server: NatsServer, *arguments: str) -> list[str]:
    """The codes that `fleet invite` prints, once the server knows of them."""
    done = roomscribe("fleet", "invite", *arguments, "--config", config)
    assert done.returncode == 0, done.stderr
    reloads = server.log().count("Reloaded server configuration")
    server.signal(signal.SIGHUP)
    until(lambda: server.log().count("Reloaded server configuration") > reloads)
    return re.findall(r"sudo roomscribe fleet join --yes (\S+)", done.stdout)


def test_a_server_is_set_up_and_boxes_join_with_one_line_each(tmp_path: Path) -> None:
    with house(tmp_path) as (attic, server):
        assert sections(attic)["fleet"] == {
            "role": "worker",
            "server": server.url,
            "credential": f"{attic.parent}/fleet/credential",
            "ca": f"{attic.parent}/fleet/trusted.crt",
        }
        kitchen, bath = box(tmp_path / "kitchen"), box(tmp_path / "bath")
        before = kitchen.read_text(encoding="utf-8")
        codes = invited(attic, server, "kitchen", "bath")
        done = roomscribe("fleet", "join", "--yes", codes[0], "--config", kitchen)
        assert done.returncode == 0, done.stderr
        assert f"{server.url} lets kitchen in; transcribing there: nobody yet" in done.stdout
        assert sections(kitchen)["appliance"] == {"node": "kitchen"}
        assert sections(kitchen)["fleet"]["role"] == "satellite"
        kept = kitchen.read_text(encoding="utf-8")
        assert [one for one in before.splitlines() if one[:2] == "# "] == [
            one for one in kept.splitlines() if one[:2] == "# "
        ]
        assert (kitchen.parent / "fleet" / "credential").stat().st_mode & 0o777 == 0o600
        piped = roomscribe(
            "fleet", "join", "--yes", "--config", bath, stdin=f"{codes[1]}\n".encode()
        )
        assert piped.returncode == 0, piped.stderr
        shown = roomscribe("fleet", "status", "--config", kitchen)
        assert shown.returncode == 1  # nobody transcribes
        assert shown.stdout.startswith(f"kitchen, satellite, at {server.url}\n  no worker: ")
        assert invited(attic, server, "bath") == codes[1:], "the same password"
        invited(attic, server, "bath", "--remove")
        shut = roomscribe("fleet", "status", "--config", bath)
        assert "does not know this user or password" in refusal(shut, 69)


def test_a_worker_that_runs_is_seen(tmp_path: Path) -> None:
    with house(tmp_path) as (attic, server):
        (code,) = invited(attic, server, "kitchen")
        kitchen = box(tmp_path / "kitchen")
        assert roomscribe("fleet", "join", "--yes", code, "--config", kitchen).returncode == 0
        worker = write_config(
            attic.parent,
            appliance={"node": "attic"},
            capture={"device": "none"},
            fleet=sections(attic)["fleet"],
        )
        runtime = {"RUNTIME_DIRECTORY": str(tmp_path / "run")}
        (tmp_path / "run").mkdir()
        with daemon(worker, environment=runtime):
            until(lambda: not roomscribe("fleet", "status", "--config", kitchen).returncode)
            own = roomscribe("fleet", "status", "--config", worker, environment=runtime)
            assert "attic                tiny.en, " in own.stdout
            (code,) = invited(worker, server, "attic")
            again = roomscribe(
                *("fleet", "join", "--yes", code, "--config", worker), environment=runtime
            )
            assert "written, and the daemon reads it" in again.stdout, again.stderr
            assert "password" not in log_of(worker)
        assert "Violation" not in server.log(), "nobody needs more than it may"


def test_a_machine_of_a_fleet_becomes_no_second_server(tmp_path: Path) -> None:
    config = write_config(tmp_path, fleet={"role": "satellite", "server": "tls://attic.local"})
    done = roomscribe("fleet", "invite", "kitchen", "--yes", "--config", config)
    assert "a satellite of tls://attic.local already. Run this command on" in refusal(done, 78)
    assert not (tmp_path / "fleet").exists()


def test_a_join_twice_changes_nothing_and_another_boxs_code_is_refused(tmp_path: Path) -> None:
    with house(tmp_path) as (attic, server):
        (code,) = invited(attic, server, "kitchen")
        kitchen, hall = box(tmp_path / "kitchen"), box(tmp_path / "hall", "hall")
        whole = []
        for _ in range(2):
            done = roomscribe("fleet", "join", "--yes", code, "--config", kitchen)
            assert done.returncode == 0, done.stderr
            whole.append({file.name: file.read_bytes() for file in kitchen.parent.rglob("*.*")})
        assert whole[0] == whole[1]
        before = hall.read_text(encoding="utf-8")
        wrong = roomscribe("fleet", "join", "--yes", code, "--config", hall)
        assert wrong.returncode == 78
        assert "this machine is named hall, and the code is for kitchen" in wrong.stderr
        assert hall.read_text(encoding="utf-8") == before
        server.stop()
        away = roomscribe("fleet", "join", "--yes", code, "--config", box(tmp_path / "den"))
        assert away.returncode == 69
        assert len(errors(away)) == 1
        assert not (tmp_path / "den" / "fleet").exists()


def test_a_code_is_pasted_into_a_terminal_and_the_change_declined(tmp_path: Path) -> None:
    with house(tmp_path) as (attic, server):
        (code,) = invited(attic, server, "kitchen")
        kitchen = box(tmp_path / "kitchen")
        before = kitchen.read_text(encoding="utf-8")
        for answer, status in (("no", 1), ("", 0)):
            with Terminal("fleet", "join", "--config", kitchen) as terminal:
                terminal.until("then press Enter and Ctrl-D:")
                terminal.enter(code[:300])  # as a messenger broke it
                terminal.enter(code[300:])
                terminal.press("\x04")
                shown = terminal.until("Write it? [yes] ")
                assert '+role = "satellite"' in shown
                assert "password" not in shown
                terminal.enter(answer)
                assert terminal.wait() == status
            assert (kitchen.read_text(encoding="utf-8") == before) == (answer == "no")


def test_without_a_model_a_box_is_a_satellite_and_takes_no_workers_code(tmp_path: Path) -> None:
    attic = box(tmp_path / "attic", "attic")
    done = roomscribe("fleet", "invite", "--yes", "--config", attic, program=bare.PROGRAM)
    assert done.returncode == 0, done.stderr
    assert "once it runs, run this here: sudo roomscribe fleet join --yes" in done.stdout
    code = roomscribe("fleet", "invite", "attic", "--role", "worker", "--config", attic)
    word = code.stdout.split()[-1]
    done = roomscribe("fleet", "join", "--yes", word, "--config", attic, program=bare.PROGRAM)
    assert "this code is for a worker, but this machine can only be a satellite" in refusal(
        done, 78
    )
    assert "sudo apt install roomscribe" in errors(done)[0]


def test_a_join_that_is_killed_leaves_a_whole_configuration(tmp_path: Path) -> None:
    with house(tmp_path) as (attic, server):
        (code,) = invited(attic, server, "kitchen")
        kitchen = box(tmp_path / "kitchen")
        running = start("fleet", "join", "--yes", code, "--config", kitchen)
        until((kitchen.parent / "fleet" / "trusted.crt").exists, 60)  # an interpreter starts
        running.kill()
        running.wait(PATIENCE_S)
        found = sections(kitchen).get("fleet", {})
        assert set(found) in (set(), {"role", "server", "credential", "ca"})
        for key in ("credential", "ca"):
            assert key not in found or Path(str(found[key])).stat().st_size
        done = roomscribe("fleet", "join", "--yes", code, "--config", kitchen)
        assert done.returncode == 0, done.stderr


@pytest.fixture
def no_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard input is empty, and no terminal."""
    monkeypatch.setattr("sys.stdin", io.StringIO())


@pytest.mark.usefixtures("no_input")
@pytest.mark.parametrize(
    ("typed", "status", "expected"),
    [
        ("join --yes hello", 78, "code: expected what `roomscribe fleet invite` printed"),
        ("join --yes", 78, "found nothing"),
        ("join", 2, "add --yes"),
        ("join CODE", 2, "add --yes"),
        ("invite kitchen", 2, "add --yes"),
        ("invite --yes --port 0", 78, "--port: expected 1 to 65535, found 0"),
        ("invite --yes --name a..b", 78, "--name: expected a host name or an address"),
        ("invite --role king", 2, "invalid choice: 'king'"),
        ("invite --yes kitchen --remove", 78, "kitchen: this node was not invited here"),
        ("invite kitchen --remove --role satellite", 2, "not allowed with"),
        ("status", 78, "this machine is in no fleet. Run `sudo roomscribe fleet join`"),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], typed: str, status: int, expected: str
) -> None:
    config = box(tmp_path / "attic")
    before = config.read_text(encoding="utf-8")
    try:
        ended = main(["fleet", *typed.split(), "--config", str(config)])
    except SystemExit as error:  # a wrong usage
        ended = int(error.code or 0)
    stderr = capsys.readouterr().err
    assert (ended, expected in stderr) == (status, True), stderr
    assert status == 2 or (stderr.count("\n"), stderr[:12]) == (1, "roomscribe: "), stderr
    assert config.read_text(encoding="utf-8") == before
    assert not (tmp_path / "attic" / "fleet" / STATE).exists()


def test_without_nats_server_the_fix_is_named(tmp_path: Path) -> None:
    config = box(tmp_path / "attic")
    places = " ".join(f"{folder}/nats-server" for folder in PATHS.split(":"))
    hide = f'for p in {places}; do [ -e $p ] && mount --bind /dev/null $p; done; exec "$@"'
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("not permitted: a namespace of its own (kernel.unprivileged_userns_clone)")
    done = roomscribe(
        *("fleet", "invite", "--yes", "--config", config),
        wrapper=("unshare", "-rm", "sh", "-c", hide, "sh"),
    )
    assert refusal(done, 74).endswith(
        "nats-server is not installed. Run `sudo apt install nats-server`"
    )


def test_a_user_without_rights_is_told_to_use_sudo(tmp_path: Path) -> None:
    config = box(tmp_path / "attic")
    config.parent.chmod(0o500)
    for typed in (("join", "--yes", "x"), ("invite", "kitchen", "--yes")):
        done = roomscribe("fleet", *typed, "--config", config, wrapper=OBEYING_MODES)
        assert "run this with sudo" in refusal(done, 78)


def test_a_credential_of_another_user_needs_root(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(mode=0)
    fleet = {"role": "satellite", "server": "tls://house:4222", "credential": secret}
    config = write_config(tmp_path, fleet=fleet)
    done = roomscribe("fleet", "status", "--config", config, wrapper=OBEYING_MODES)
    assert "Permission denied; run this with sudo" in refusal(done, 78)
