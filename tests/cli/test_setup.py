"""`roomscribe setup`: on a terminal with a real microphone and broker, and by its options alone."""

from __future__ import annotations

import stat
import threading
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from rigs.broker import Broker
from rigs.checkout import ROOT, TESTS
from rigs.command import OBEYING_MODES, errors, roomscribe
from rigs.daemon import READY_WITHIN_S, daemon, log_of, write_config
from rigs.microphone import PulseMicrophone
from rigs.mqtt_client import Subscriber
from rigs.needs import needs_broker, needs_microphone, program
from rigs.terminal import Terminal
from rigs.waiting import until

from appliance.cli.setup import _host_and_port, _loudest, _Meter, edited
from appliance.errors import ConfigError

SHIPPED = (ROOT / "config" / "roomscribe.toml").read_text("utf-8")
SENTENCE = TESTS / "speech" / "00.flac"


def test_a_key_goes_where_the_shipped_file_shows_it_and_the_comments_stay() -> None:
    changes = {"appliance.node": "kitchen", "capture.device": 'the "USB" é', "mqtt.port": 1884}
    text = edited(SHIPPED, changes)
    assert tomllib.loads(text) == {
        "appliance": {"node": "kitchen"},
        "capture": {"device": 'the "USB" é'},
        "mqtt": {"port": 1884},
    } | {
        name: {} for name in tomllib.loads(SHIPPED) if name not in ("appliance", "capture", "mqtt")
    }
    was, now = SHIPPED.splitlines(), text.splitlines()
    assert len(was) == len(now)
    changed = [(one, other) for one, other in zip(was, now, strict=True) if one != other]
    assert changed[0] == ('#node = ""', 'node = "kitchen"')
    assert len(changed) == 3
    again = edited(text, {"appliance.node": "hall"})
    assert again == text.replace('"kitchen"', '"hall"')


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '[mqtt]\nhost = "a"\n'),
        ("# mine\n", '# mine\n[mqtt]\nhost = "a"\n'),
        ("[mqtt]\nport = 1 # why\n", '[mqtt]\nport = 1 # why\nhost = "a"\n'),
        ("[mqtt]\nhost = 'b' # why\n", '[mqtt]\nhost = "a" # why\n'),
        ("mqtt.port = 1\n", 'mqtt.port = 1\nmqtt.host = "a"\n'),
        ("mqtt = {port = 1}\n", None),
        ('[mqtt]\nca_file = """\n#host = 1\n"""\n', None),
    ],
)
def test_whatever_the_file_looks_like_the_key_is_set_and_nothing_else(
    before: str, after: str | None
) -> None:
    text = edited(before, {"mqtt.host": "a"})
    expected = tomllib.loads(before)
    expected.setdefault("mqtt", {})["host"] = "a"
    assert tomllib.loads(text) == expected
    if after is not None:
        assert text.replace("\n\n", "\n") == after


def test_a_broker_is_a_host_with_or_without_a_port() -> None:
    assert _host_and_port("hub.local") == {"host": "hub.local", "port": 1883}
    assert _host_and_port("10.0.0.2:8883") == {"host": "10.0.0.2", "port": 8883}
    assert _host_and_port("[fd00::2]:1884") == {"host": "fd00::2", "port": 1884}
    for wrong in ("", "a:0", "a:99999", "mqtt://a", "a b"):
        with pytest.raises(ConfigError, match="--broker: expected HOST or HOST:PORT"):
            _host_and_port(wrong)


def test_a_meter_says_what_is_wrong_with_a_microphone() -> None:
    meter = _Meter("USB")
    assert meter.verdict() == "nothing yet"
    meter._push(None, False, 2.0)
    assert meter.verdict() == "nothing but zeros: off, or muted in the mixer"
    meter._push(-45.0, False, 0.1)
    assert meter.verdict() == "too quiet: speak, or turn it up"
    meter._push(-12.0, False, 0.1)
    assert (meter.verdict(), meter.bar().count("#")) == ("good", 19)
    meter._push(0.0, True, 0.1)
    assert meter.verdict() == "it clips: turn its gain down"
    assert meter.bar() == "#" * 24
    assert _loudest(np.zeros(8, np.int16).tobytes()) == (None, False)
    assert _loudest(np.array([3, -32768], np.int16).tobytes()) == (0.0, True)


def test_without_a_terminal_it_says_which_options_it_needs(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    before = config.read_text()
    done = roomscribe("setup", "--config", config)
    assert done.returncode == 2
    assert "add --yes, and of --node, --device, --broker and --model" in done.stderr
    assert config.read_text() == before


def test_by_its_options_alone_it_writes_what_has_changed_and_nothing_twice(
    tmp_path: Path,
) -> None:
    config = write_config(tmp_path, capture={"silence_s": 5})
    config.chmod(0o640)
    arguments = ("setup", "--config", config, "--yes", "--node", "Wohnküche", "--broker", "none")
    done = roomscribe(*arguments, "--model", "home-en")
    assert done.returncode == 0, done.stderr
    assert '+node = "wohnkuche"' in done.stdout
    assert "turn off the cellar fan" in done.stdout
    assert "written; the daemon: expected it to run" in done.stdout
    table = tomllib.loads(config.read_text())
    assert table["appliance"] == {"node": "wohnkuche"}
    assert (table["capture"], table["mqtt"]) == ({"silence_s": 5}, {"enabled": False})
    assert stat.S_IMODE(config.stat().st_mode) == 0o640
    again = roomscribe(*arguments)
    assert (again.returncode, "nothing is to be changed" in again.stdout) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "status", "line"),
    [
        (("--broker", "127.0.0.1:9"), 74, "broker 127.0.0.1:9 does not answer"),
        (("--broker", "mqtt://x"), 78, "--broker: expected HOST or HOST:PORT"),
        (("--node", "!!!"), 78, "--node: expected a name of letters or digits"),
        (("--model", "./none"), 78, "none"),
        (("--device", "no such microphone"), 69, "--device: expected one microphone with"),
    ],
)
def test_a_wrong_option_is_one_line_and_nothing_is_written(
    tmp_path: Path, arguments: tuple[str, ...], status: int, line: str
) -> None:
    config = write_config(tmp_path)
    before = config.read_text()
    done = roomscribe("setup", "--config", config, "--yes", "--node", "hall", *arguments)
    assert (done.returncode, len(errors(done))) == (status, 1), done.stderr
    assert line in errors(done)[0]
    assert config.read_text() == before


@program("setpriv", package="util-linux")
def test_who_may_not_write_the_configuration_is_not_asked_in_vain(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    config.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        done = roomscribe("setup", "--config", config, "--yes", wrapper=OBEYING_MODES)
    finally:
        tmp_path.chmod(0o755)
    assert done.returncode == 78
    assert "run `sudo roomscribe setup`" in errors(done)[0]


@needs_broker
@needs_microphone
def test_a_person_answers_five_questions_and_sees_each_work(tmp_path: Path) -> None:
    microphone = PulseMicrophone(tmp_path / "microphone")
    with microphone, Broker(users={"ada": "secret", "watch": "secret"}) as broker:
        config = write_config(tmp_path)
        (tmp_path / "state").mkdir()
        # what was chosen over the control socket gives way to what is answered here
        (tmp_path / "state" / "settings.toml").write_text(
            '[appliance]\nnode = "shed"\n[capture]\nsilence_s = 7.0\n', "utf-8"
        )
        watch = Subscriber(broker.port, user="watch", password="secret")
        with watch as heard, daemon(config, environment=microphone.environment):
            until(lambda: "ready after" in log_of(config), READY_WITHIN_S)
            terminal = Terminal(
                *("setup", "--config", config),
                environment={**microphone.environment, "TERM": "xterm"},
            )
            with terminal:
                terminal.until("[shed]")
                terminal.enter("Küche")
                terminal.until("seen enough")
                microphone.speak(SENTENCE)
                terminal.until("good")
                terminal.enter()
                terminal.until("Which one? [default]")
                terminal.enter("1")
                terminal.until("default: good")
                terminal.until("or none [none]")
                terminal.enter(f"127.0.0.1:{broker.port}")
                terminal.until("refuses a client without mqtt.username")
                terminal.enter("ada")
                terminal.until("not shown")
                terminal.enter("secret")
                terminal.until("lets it in\nno Home Assistant listens there yet")
                terminal.until("Which one? [home-en]")
                terminal.enter()
                terminal.until("is read as 'turn off the cellar fan'")
                terminal.until('+node = "kuche"')
                terminal.until("Write it? [yes]")
                terminal.enter("y")
                terminal.until("the daemon has read it")
                terminal.until("Say a sentence.")
                speaker = threading.Thread(target=_speak_until, args=(microphone, heard))
                speaker.start()
                terminal.until("after it was said")
                terminal.until("the broker told it on roomscribe/kuche/transcript")
                speaker.join(30)
                terminal.until("configuration         ")
                assert terminal.wait() == 0
            assert heard.payloads("availability", "kuche")[-1] == b"online"
        table = tomllib.loads(config.read_text())
        assert table["appliance"] == {"node": "kuche"}
        assert table["homeassistant"] == {"area": "Küche"}
        secret = Path(table["mqtt"]["password_file"])
        assert (secret.read_text(), secret.stat().st_mode & 0o007) == ("secret\n", 0)
        left = (tmp_path / "state" / "settings.toml").read_text("utf-8")
        assert tomllib.loads(left) == {"capture": {"silence_s": 7.0}}
        assert "secret" not in terminal.shown


def _speak_until(microphone: PulseMicrophone, heard: Subscriber) -> None:
    """Says the sentence until it was told, twice at most."""
    for _ in range(2):
        time.sleep(0.5)
        microphone.speak(SENTENCE)
        time.sleep(2)
        if heard.payloads("transcript", "kuche"):
            return


def test_ctrl_c_changes_nothing(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    before = config.read_text()
    with Terminal("setup", "--config", config) as terminal:
        terminal.until("[kitchen]")
        assert terminal.interrupt() == 130
    assert config.read_text() == before


def test_what_is_declined_is_not_written(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    before = config.read_text()
    arguments = ("--device", "", "--broker", "none", "--model", "home-en")
    with Terminal("setup", "--config", config, *arguments) as terminal:
        terminal.until("[kitchen]")
        terminal.enter("hall")
        terminal.until("Write it?")
        terminal.enter("no")
        terminal.until("nothing was changed")
        assert terminal.wait() == 1
    assert config.read_text() == before
