"""`roomscribe setup`: on a terminal with a real microphone and broker, and by its options alone."""

import os
import shutil
import stat
import threading
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from rigs.broker import Broker
from rigs.checkout import BUILT_IN, TESTS
from rigs.command import OBEYING_MODES, errors, refusal, roomscribe
from rigs.daemon import daemon, log_of, write_config
from rigs.hailo_simulator.control import Simulator
from rigs.hailo_simulator.hef_files import write_hef
from rigs.microphone import PulseMicrophone
from rigs.mqtt_client import Subscriber
from rigs.needs import needs_broker, needs_microphone, program
from rigs.terminal import Terminal
from rigs.waiting import PATIENCE_S, until

from appliance.cli.dialog import BACK, BackError, Dialog
from appliance.cli.setup.answers import Answers, Context
from appliance.cli.setup.broker import parse_address
from appliance.cli.setup.main import ask_all, with_room
from appliance.config import MqttSettings
from appliance.errors import ConfigError

WIDE = {"TERM": "xterm", "COLUMNS": "200"}
"""A terminal whose lines no message fills."""
OFFLINE = dict.fromkeys(("HF_ENDPOINT", "PIP_INDEX_URL"), "http://127.0.0.1:9")
"""No model can be downloaded."""
SENTENCE = TESTS / "speech" / "00.flac"


def test_a_broker_is_a_host_with_or_without_a_port() -> None:
    assert parse_address("hub.local") == {"host": "hub.local", "port": 1883}
    assert parse_address("10.0.0.2:8883") == {"host": "10.0.0.2", "port": 8883}
    assert parse_address("[fd00::2]:1884") == {"host": "fd00::2", "port": 1884}
    for wrong in ("", "a:0", "a:99999", "mqtt://a", "a b"):
        with pytest.raises(ConfigError, match="is not a broker's address"):
            parse_address(wrong)


def test_without_a_terminal_it_says_which_options_it_needs(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    before = config.read_text()
    done = roomscribe("setup", "--config", config)
    assert done.returncode == 2
    assert "add --yes, and any of --node, --device, --broker and --model" in done.stderr
    assert config.read_text() == before


def test_by_its_options_alone_it_writes_what_has_changed_and_nothing_twice(tmp_path: Path) -> None:
    config = write_config(tmp_path, capture={"silence_s": 5})
    config.chmod(0o640)
    arguments = ("setup", "--config", config, "--yes", "--node", "Wohnküche", "--broker", "none")
    done = roomscribe(*arguments, "--model", "tiny.en")
    assert done.returncode == 0, done.stderr
    assert '+node = "wohnkuche"' in done.stdout
    assert "Whisper tiny.en heard the test sentence word for word" in done.stdout
    assert "are written, but the daemon did not read them" in done.stdout
    table = tomllib.loads(config.read_text())
    assert table["appliance"] == {"node": "wohnkuche"}
    assert (table["capture"], table["mqtt"]) == ({"silence_s": 5}, {"enabled": False})
    assert stat.S_IMODE(config.stat().st_mode) == 0o640
    again = roomscribe(*arguments)
    assert (again.returncode, "Nothing to change" in again.stdout) == (0, True)


def test_setup_makes_the_configuration_that_it_was_given_a_name_for(tmp_path: Path) -> None:
    config = tmp_path / "new.toml"
    done = roomscribe("setup", "--config", config, "--yes", "--node", "bath", "--broker", "none")
    assert done.returncode == 0, done.stderr
    assert tomllib.loads(config.read_text())["appliance"] == {"node": "bath"}


class TypedDialog(Dialog):
    """Takes its answers from a list."""

    def __init__(self, *typed: str) -> None:
        super().__init__(interactive=True)
        self.typed = [*typed]

    def read(self, prompt: str) -> str:
        self.question_count += 1
        if (answer := self.typed.pop(0)) == BACK:
            raise BackError
        return answer


def test_back_passes_steps_that_had_nothing_to_ask(tmp_path: Path) -> None:
    dialog, asked = TypedDialog("a", "back", "b", "c"), list[str]()
    context = cast(Context, SimpleNamespace(dialog=dialog))

    def question(context: Context, answers: Answers) -> Answers:
        asked.append(context.dialog.ask("What?", ""))
        return answers

    steps = (("One", question), ("Two", lambda _, answers: answers), ("Three", question))
    ask_all(context, cast(Answers, None), steps)
    assert asked == ["a", "b", "c"], "`back` at the third step asks the first one again"


@needs_broker
def test_the_broker_forgets_the_former_name_of_the_room(tmp_path: Path) -> None:
    with Broker() as broker:
        mqtt = {"enabled": True, "host": "127.0.0.1", "port": broker.port}
        config = write_config(tmp_path, mqtt=mqtt)
        with Subscriber(broker.port) as heard, daemon(config):
            until(lambda: heard.payloads("availability", "kitchen"))
            done = roomscribe("setup", "--config", config, "--yes", "--node", "hall")
            assert "cleared roomscribe/kitchen/availability" in done.stdout, done.stdout
            until(lambda: heard.payloads("availability", "hall"))
            with Subscriber(broker.port, name="later") as later:
                until(lambda: later.payloads("availability", "hall"))
                assert not [one.topic for one in later.messages if "/kitchen/" in one.topic]


@pytest.mark.parametrize(
    ("arguments", "status", "line"),
    [
        (("--broker", "127.0.0.1:9"), 74, "broker 127.0.0.1:9 does not answer"),
        (("--broker", "mqtt://x"), 78, "is not a broker's address"),
        (("--node", "!!!"), 78, "--node: '!!!' cannot be a room's name"),
        (("--model", "./none"), 78, "none"),
        (("--device", "no such microphone"), 69, "--device: no microphone has"),
        (("--device", "rtsp://a:b@camera/1"), 69, "setup takes sound cards only"),
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
def test_a_user_who_may_not_write_the_configuration_is_asked_no_question(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    config.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        done = roomscribe("setup", "--config", config, "--yes", wrapper=OBEYING_MODES)
    finally:
        tmp_path.chmod(0o755)
    assert "run `sudo roomscribe setup`" in refusal(done, 78)


@needs_broker
@needs_microphone
def test_a_person_answers_six_questions_and_sees_each_work(tmp_path: Path) -> None:
    microphone = PulseMicrophone(tmp_path / "microphone")
    with microphone, Broker(users={"ada": "mellon7", "watch": "mellon7"}) as broker:
        config = write_config(tmp_path)
        (tmp_path / "state").mkdir()
        # what was chosen over the control socket gives way to what is answered here
        (tmp_path / "state" / "settings.toml").write_text(
            '[appliance]\nnode = "shed"\n[capture]\nsilence_s = 7.0\n', "utf-8"
        )
        watch = Subscriber(broker.port, user="watch", password="mellon7")
        with watch as heard, daemon(config, environment=microphone.environment):
            until(lambda: "ready after" in log_of(config))
            terminal = Terminal(
                *("setup", "--config", config),
                environment={**microphone.environment, **WIDE, **OFFLINE},
            )
            with terminal:
                terminal.answer("[shed]", "Küche")
                terminal.answer("Which microphone? [default]", "back")
                terminal.answer("[kuche]")
                terminal.answer("Which microphone? [default]")
                terminal.until("default: used by the daemon, which receives sound")
                terminal.answer("Which loudspeaker answers? [none]", "pulse")
                terminal.until("A ring was played.")
                terminal.answer("Did you hear it? [yes]")
                terminal.answer("or none [none]", f"127.0.0.1:{broker.port}")
                terminal.answer("efuses a client without mqtt.username", "ada")
                terminal.answer("not shown", "mellon7")
                terminal.until("accepts the connection.\nHome Assistant does not use")
                terminal.until("12.7 % of words wrong")
                terminal.until("Recommended: base, or tiny.en where that is too slow.")
                terminal.answer("Which model? [tiny.en]")
                terminal.until("Whisper tiny.en heard the test sentence word for word")
                terminal.until('+node = "kuche"')
                terminal.answer("Write it? [yes]", "y")
                terminal.until("the daemon uses them")
                terminal.until("Say a sentence.")
                speaker = threading.Thread(target=_speak_until, args=(microphone, heard))
                speaker.start()
                terminal.until("after you stopped speaking")
                speaker.join(PATIENCE_S)
                terminal.until(" skipped; ")
                assert terminal.wait() == 0
            assert heard.payloads("availability", "kuche")[-1] == b"online"
        table = tomllib.loads(config.read_text())
        assert table["appliance"] == {"node": "kuche"}
        assert table["homeassistant"] == {"area": "Küche"}
        assert table["speaker"] == {"enabled": True, "device": "pulse"}
        secret = Path(table["mqtt"]["password_file"])
        assert (secret.read_text(), secret.stat().st_mode & 0o007) == ("mellon7\n", 0)
        left = (tmp_path / "state" / "settings.toml").read_text("utf-8")
        assert tomllib.loads(left) == {"capture": {"silence_s": 7.0}}
        assert "mellon7" not in terminal.shown


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
    assert "Nothing was changed." in terminal.shown
    assert config.read_text() == before


def test_what_is_declined_is_not_written(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    before = config.read_text()
    arguments = ("--device", "", "--broker", "none", "--model", "tiny.en")
    with Terminal("setup", "--config", config, *arguments) as terminal:
        terminal.answer("[kitchen]", "hall")
        terminal.answer("Write it?", "no")
        terminal.until("Nothing was changed")
        assert terminal.wait() == 1
    assert config.read_text() == before


def test_the_area_follows_the_name_unless_the_user_chose_another() -> None:
    answers = Answers("kitchen", "", "", MqttSettings(), "tiny.en")
    assert with_room(answers, "hall").area == "hall"
    named = with_room(answers, "Living Room")
    assert (named.node, named.area) == ("living_room", "Living Room")
    again = with_room(named, "alpha")
    assert (again.node, again.area) == ("alpha", "alpha")
    assert again.changes_since(named) == {"appliance.node": "alpha", "homeassistant.area": "alpha"}
    chosen = with_room(named, "Living Room")
    assert chosen == named
    upstairs = Answers("kitchen", "Upstairs", "", MqttSettings(), "tiny.en")
    assert with_room(upstairs, "alpha").area == "Upstairs"


@needs_broker
def test_a_wrong_answer_is_asked_again_and_nothing_is_lost(tmp_path: Path) -> None:
    with Broker() as broker:
        config = write_config(tmp_path)
        options = ("--device", "", "--node", "Living Room")
        nowhere = OFFLINE | {"PATH": os.environ["PATH"]}
        with Terminal("setup", "--config", config, *options, environment=nowhere) as terminal:
            terminal.answer("or none [", "127.0.0.1:9")
            terminal.until("does not answer")
            terminal.answer("Press Enter to keep none: ", "nosuch:99999")
            terminal.until("'nosuch:99999' is not a broker's address")
            terminal.answer("Press Enter to keep none: ", f"127.0.0.1:{broker.port}")
            terminal.until("accepts the connection")
            terminal.answer("Which model? [tiny.en]", "tiny")
            terminal.answer("Which model? [tiny.en]")
            terminal.answer("Write it? [yes]", "maybe")
            terminal.until("Please answer yes or no")
            terminal.answer("Write it? [yes]", "yes")
            terminal.until(" skipped; ")
            assert terminal.wait() == 0
    table = tomllib.loads(config.read_text())
    assert table["mqtt"] == {"enabled": True, "host": "127.0.0.1", "port": broker.port}
    assert table["appliance"] == {"node": "living_room"}
    assert table["homeassistant"] == {"area": "Living Room"}


def test_a_folder_is_added_and_refused_if_it_writes_nonsense(
    tmp_path: Path, checkpoint_folder: Path
) -> None:
    config = write_config(tmp_path)
    before = config.read_text()
    shutil.copytree(checkpoint_folder, tmp_path / "mine")
    options = ("--device", "", "--broker", "none", "--node", "kitchen")
    here = OFFLINE | {"ROOMSCRIBE_MODELS": str(tmp_path / "models")}
    with Terminal("setup", "--config", config, *options, environment=WIDE | here) as terminal:
        terminal.answer("Which model? [tiny.en]", f"{tmp_path}/nothing")
        terminal.until("such as openai/whisper-tiny, or a folder")
        terminal.answer("Which model? [tiny.en]", f"{tmp_path}/mine")
        terminal.until("mine: installed")
        terminal.until("add the model mine again, or choose another one.")
        terminal.answer("Which model? [tiny.en]")
        terminal.until(" skipped; ")
    assert config.read_text() == before
    assert not (tmp_path / "models" / "in-use").exists()


def test_setup_chooses_a_model_even_if_the_configuration_names_another(tmp_path: Path) -> None:
    config = write_config(tmp_path, model={"bundle": "tiny.en"})
    models = tmp_path / "models"
    shutil.copytree(BUILT_IN, models / "mine")
    options = ("--yes", "--model", "mine")
    done = roomscribe(
        "setup", "--config", config, *options, environment={"ROOMSCRIBE_MODELS": str(models)}
    )
    assert done.returncode == 0, done.stderr
    assert "The model: mine instead of tiny.en" in done.stdout
    assert (models / "in-use").read_text() == "mine\n"
    assert tomllib.loads(config.read_text())["model"] == {"bundle": ""}


def test_setup_takes_a_hef_that_the_user_compiled(
    tmp_path: Path, simulator: Simulator, checkpoint_folder: Path
) -> None:
    simulator.plug()
    config, models = write_config(tmp_path), tmp_path / "models"
    shutil.copytree(checkpoint_folder, tmp_path / "mine")
    (tmp_path / "no.hef").write_bytes(b"PK")
    hef = write_hef(tmp_path / "own.hef", (1, 1000, 80), (1, 500, 16))
    options = ("--device", "", "--broker", "none", "--node", "kitchen")
    here = OFFLINE | simulator.environment | {"ROOMSCRIBE_MODELS": str(models)}
    with Terminal("setup", "--config", config, *options, environment=WIDE | here) as terminal:
        terminal.answer("tiny.en or base with a HEF of 10 s that you compile", f"{tmp_path}/mine")
        terminal.answer(
            "A HEF that you compiled for its encoder (a path; Enter: none)?", f"{tmp_path}/no.hef"
        )
        terminal.until("expected a HEF")
        terminal.answer("Which model? [tiny.en]", f"{tmp_path}/mine")
        terminal.answer("Enter: none)?", str(hef))
        terminal.until("mine: installed")
        assert (models / "mine" / "encoder.hef").read_bytes() == hef.read_bytes()
        terminal.until("Which model? [tiny.en]", 60)  # random weights misread the sentence
        terminal.enter()
        terminal.answer("Enter: none)?")
        terminal.until(" skipped; ")


def test_a_hef_without_its_model_is_refused(tmp_path: Path) -> None:
    done = roomscribe("setup", "--config", write_config(tmp_path), "--yes", "--hef", "own.hef")
    assert done.returncode == 2
    assert "--hef: add --model with the name of the model that it is for" in done.stderr


def test_an_empty_answer_keeps_the_broker_that_was_there(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    before = config.read_text()
    options = ("--device", "", "--model", "tiny.en", "--node", "kitchen")
    with Terminal("setup", "--config", config, *options) as terminal:
        terminal.answer("or none [", "127.0.0.1:9")
        terminal.answer("Press Enter to keep none: ")
        terminal.until("The broker stays as it was: none")
        terminal.until(" skipped; ")
        assert terminal.wait() == 0
    assert config.read_text() == before


@needs_microphone
def test_a_microphone_that_no_daemon_has_is_listened_to(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    options = ("--node", "kitchen", "--broker", "none", "--model", "tiny.en")
    with PulseMicrophone(tmp_path / "microphone") as microphone:
        environment = {**microphone.environment, **WIDE}
        with Terminal("setup", "--config", config, *options, environment=environment) as terminal:
            terminal.answer("Which microphone? [default]")
            terminal.answer("default: press Enter, and speak")
            terminal.until("digital silence")
            terminal.answer("Use it all the same? [yes]", "no")
            terminal.answer("Which microphone? [default]")
            terminal.until("default: press Enter, and speak")
            speaker = threading.Thread(target=microphone.speak, args=(SENTENCE,))
            speaker.start()
            terminal.enter()
            terminal.until("peaks between -20 and -6 dBFS are right")
            terminal.interrupt()
            speaker.join(PATIENCE_S)
