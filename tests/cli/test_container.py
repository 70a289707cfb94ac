"""`roomscribe container`: daemon and page as its processes; the options of a Home Assistant app."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rigs.command import is_gone, refusal, roomscribe, start
from rigs.daemon import write_config
from rigs.needs import program
from rigs.supervisor import TOKEN, Supervisor
from rigs.waiting import PATIENCE_S, until

from appliance.cli.app_options import INGRESS, write_app_config
from appliance.config import load
from appliance.errors import ConfigError

READY_S = 40.0


def commands(pid: int) -> dict[str, int]:
    """Return the process ids of `roomscribe` commands below a process, by their first word."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split():
        words = Path(f"/proc/{child}/cmdline").read_text("utf-8").split("\0")
        if "appliance" in words:
            found[words[words.index("appliance") + 1]] = int(child)
        else:
            found |= commands(int(child))
    return found


@pytest.fixture
def page_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def running(config: Path, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, str]]]:
    """`roomscribe container run` with a runtime folder of its own, and its environment."""
    memory = Path("/dev/shm") / f"roomscribe-test-{os.getpid()}"
    environment = {"RUNTIME_DIRECTORY": str(memory), "STATE_DIRECTORY": str(folder / "state")}
    with (folder / "log").open("wb") as log:
        process = start("container", "run", "--config", config, stderr=log, environment=environment)
    try:
        yield process, environment
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(PATIENCE_S)
        shutil.rmtree(memory, ignore_errors=True)


def is_healthy(config: Path, environment: dict[str, str]) -> bool:
    done = roomscribe("container", "check", "--config", config, environment=environment)
    return done.returncode == 0 and done.stdout.startswith(("running", "degraded"))


@program("tini")
def test_daemon_and_page_obey_signals_and_a_killed_daemon_comes_back(
    tmp_path: Path, page_port: int
) -> None:
    web = {"enabled": True, "port": page_port, "path": str(tmp_path / "page")}
    config = write_config(tmp_path, web=web, capture={"device": "none"}, store={"path": ""})
    with running(config, tmp_path) as (process, environment):
        until(lambda: is_healthy(config, environment), READY_S)
        connection = http.client.HTTPConnection("localhost", page_port, timeout=READY_S)
        connection.request("GET", "/")
        with contextlib.closing(connection):
            assert connection.getresponse().status == 200
        before = commands(process.pid)
        assert before.keys() == {"run", "web"}
        os.kill(before["run"], signal.SIGKILL)
        until(lambda: commands(process.pid).get("run", before["run"]) != before["run"], READY_S)
        until(lambda: is_healthy(config, environment), READY_S)
        os.kill(process.pid, signal.SIGHUP)
        until(lambda: "the configuration is the one in use" in (tmp_path / "log").read_text())
        assert commands(process.pid)["web"] == before["web"]
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
        until(lambda: is_gone(before["web"]))
    assert "ended with status 137; it is started again" in (tmp_path / "log").read_text()


def test_a_wrong_configuration_ends_the_container(tmp_path: Path) -> None:
    config = write_config(tmp_path, mqtt={"hots": "x"})
    done = roomscribe("container", "run", "--config", config)
    assert "unknown key hots" in refusal(done, 78)


def test_a_container_without_a_daemon_is_not_healthy(tmp_path: Path) -> None:
    done = roomscribe("container", "check", "--config", write_config(tmp_path))
    assert refusal(done, 69).startswith("roomscribe: the daemon is not running")


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    monkeypatch.setenv("SUPERVISOR_TOKEN", TOKEN)
    with Supervisor() as server:
        yield server


def made(folder: Path, supervisor: Supervisor, options: object, own: str = "") -> Path:
    """Return the configuration that is made from the options."""
    private = folder / "private"
    private.mkdir(exist_ok=True)
    (folder / "options.json").write_text(
        options if isinstance(options, str) else json.dumps(options), encoding="utf-8"
    )
    (folder / "own.toml").write_text(own, encoding="utf-8")
    state = folder / "state"
    return write_app_config(folder, private, state, supervisor.url, folder / "own.toml")


def test_options_and_the_supervisors_broker_become_the_configuration(
    tmp_path: Path, supervisor: Supervisor
) -> None:
    broker = {"host": "core-mosquitto", "port": 1883, "ssl": False, "username": "addons"}
    supervisor.broker = {**broker, "password": "secret", "protocol": "5"}
    options = {"node": "kitchen", "microphone": "pulse:", "words": ["Priscilla"], "area": ""}
    own = (
        '# mine\n[segmenter]\nearly_ms = 0\n[appliance]\nnode = "mine"\n[vocabulary]\nboost = 2.0\n'
    )
    talking = {"assist_phrase": "computer", "satellite": True}
    file = made(tmp_path, supervisor, options | talking, own)
    found = load(file)
    assert (found.appliance.node, found.capture.device) == ("kitchen", "pulse:")
    assert (found.segmenter.early_ms, found.vocabulary.boost) == (0, 2.0), "of the user's own file"
    assert found.vocabulary.words == ("Priscilla",)
    assert (found.mqtt.host, found.mqtt.username) == ("core-mosquitto", "addons")
    assert Path(found.mqtt.password_file).read_text() == "secret\n"
    assert (found.web.listen, found.web.ingress) == ("0.0.0.0", INGRESS)
    assert found.homeassistant.url == f"{supervisor.url}/core"
    assert Path(found.homeassistant.token_file).read_text() == f"{TOKEN}\n"
    assert (found.assist.phrase, found.wyoming.satellite) == ("computer", True)
    assert (found.speaker.enabled, found.speaker.device) == (True, "pulse:")
    for secret in file.parent.iterdir():
        assert secret.stat().st_mode & 0o077 == 0, secret
    assert "secret" not in file.read_text("utf-8")


def test_without_a_broker_the_app_still_keeps_its_log(
    tmp_path: Path, supervisor: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    found = load(made(tmp_path, supervisor, {"home_names": False}))
    assert not found.mqtt.enabled
    assert found.homeassistant.url == ""
    assert "Install the app Mosquitto broker" in caplog.text


def test_a_broker_in_the_options_is_used_in_place_of_the_supervisors(
    tmp_path: Path, supervisor: Supervisor
) -> None:
    own = {"mqtt_host": "nas.lan", "mqtt_port": 1884, "mqtt_username": "me", "mqtt_password": "p"}
    found = load(made(tmp_path, supervisor, own)).mqtt
    assert (found.host, found.port, found.username) == ("nas.lan", 1884, "me")
    assert Path(found.password_file).read_text() == "p\n"


def test_a_broker_in_the_users_own_file_is_used_in_place_of_the_supervisors(
    tmp_path: Path, supervisor: Supervisor
) -> None:
    supervisor.broker = {"host": "core-mosquitto", "port": 8883, "ssl": True, "username": "addons"}
    own = '[mqtt]\nhost = "home.example.org"\nport = 8883\ntls = true\n'
    found = load(made(tmp_path, supervisor, {"node": "kitchen"}, own)).mqtt
    assert (found.host, found.tls, found.username) == ("home.example.org", True, "")


@pytest.mark.parametrize(
    ("options", "own", "message"),
    [
        ("{", "", "options.json: expected the options of the app"),
        ("[]", "", "options.json: expected a JSON object"),
        ("{}", "[mqtt\n", "own.toml: not valid TOML"),
    ],
)
def test_wrong_options_are_one_clear_line(
    tmp_path: Path, supervisor: Supervisor, options: str, own: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        made(tmp_path, supervisor, options, own)
