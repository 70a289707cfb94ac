"""`roomscribe setup`: its options, and the order of the questions.

Nothing changes before the end. Then setup shows the changes, writes them into the configuration,
keeps its comments, and has the daemon read it.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from appliance import config
from appliance.cli import model as models, web
from appliance.cli.commands import Commands, control_sockets
from appliance.cli.config_file import RESTART_S, connect
from appliance.cli.dialog import BACK, BackError, Dialog, is_entered
from appliance.cli.setup.answers import Answers, Context, configured_answers
from appliance.cli.setup.broker import ask_broker
from appliance.cli.setup.microphone import MUTED, ask_microphone, ask_speaker
from appliance.cli.setup.model import ask_model
from appliance.cli.setup.saving import save
from appliance.cli.terminal import BOLD
from appliance.config import DEFAULT_PATH, Settings, slug
from appliance.control import ControlClient
from appliance.errors import ConfigError, DaemonError
from appliance.system import legible, require_writable

Questions = tuple[tuple[str, Callable[[Context, Answers], Answers]], ...]
SENTENCE_S = 30.0
"""Longest wait for a sentence."""
EVERY_S = 0.1
"""Longest wait until Enter is noticed."""
FLAGS = "--node, --device, --broker and --model"


def add_setup(commands: Commands) -> None:
    """Add `roomscribe setup` to the command line."""
    sub = commands.add(
        "setup",
        setup,
        help="set up room, microphone, broker and model",
        description="Asks for the room's name, the microphone, a loudspeaker, the broker and the "
        "model, tries each answer, writes the changes into the configuration (your comments stay) "
        "and listens to a sentence. The daemon keeps running. You can run setup again at any time. "
        "It skips questions that you answer with an option. Without a terminal, add --yes, which "
        "keeps all other settings.",
    )
    sub.add_argument("--node", metavar="NAME", help="the room's name, such as kitchen")
    sub.add_argument(
        "--device", metavar="NAME", help="microphone, as `roomscribe devices` shows it"
    )
    sub.add_argument(
        "--broker", metavar="HOST[:PORT]", help="the MQTT broker; none: publish nothing"
    )
    sub.add_argument("--username", metavar="NAME", help="user name at the broker")
    sub.add_argument(
        "--password-file", metavar="FILE", help="file that holds the broker's password"
    )
    sub.add_argument(
        "--model",
        metavar="NAME",
        help="an installed model, or one to add: its name, such as base, or a folder",
    )
    sub.add_argument(
        "--hef",
        metavar="FILE",
        help="with --model: the encoder for a Hailo that you compiled yourself",
    )
    sub.add_argument(
        "--page",
        action="store_true",
        help="also switch on the page for a browser, and print a link to it",
    )
    sub.add_argument("--yes", action="store_true", help="ask nothing, and write the changes")
    sub.set_defaults(may_lack_config=True)


def setup(options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe setup`; return 0, or 1 if the changes were declined."""
    if not options.yes and not (sys.stdin.isatty() and sys.stdout.isatty()):
        options.usage_error(
            f"setup needs a terminal to ask you. Without one, add --yes, and any of {FLAGS} that "
            "you want to change"
        )
    if options.hef and not options.model:
        options.usage_error("--hef: add --model with the name of the model that it is for")
    if options.yes and not options.broker and (options.username or options.password_file):
        options.usage_error("--username, --password-file: add --broker with the broker's address")
    for name in ("node", "device", "broker", "username"):
        value = getattr(options, name) or ""
        if value != legible(value):
            options.usage_error(f"--{name} is not UTF-8: {legible(value)}")
    from appliance.cli.doctor.main import GROUPS, print_findings, surroundings

    file = options.config or config.default_path()
    if not options.config and file != DEFAULT_PATH:
        file.parent.mkdir(parents=True, exist_ok=True)
    require_writable(file, "run `sudo roomscribe setup`")
    dialog = Dialog(interactive=not options.yes)
    context = Context(options, settings, file, (*control_sockets(settings),), dialog)
    before = configured_answers(settings, models.model_in_use(settings))
    try:
        answers = ask_all(context, before)
        if not save(context, before, answers):
            return 1
    except KeyboardInterrupt:
        dialog.say("\nSetup was cancelled. Nothing was changed.")
        raise
    if options.page:
        dialog.say("\nThe page", BOLD)
        web.enable_page(options, config.read(file).settings)
        web.print_link(options, config.read(file).settings)
    if dialog.interactive:
        dialog.say(f"\n{len(QUESTIONS) + 1} of {len(QUESTIONS) + 1}  A sentence", BOLD)
        hear_sentence(context, RESTART_S if answers != before or options.page else 0.0)
    dialog.say("\nResult, as `sudo roomscribe doctor` shows it", BOLD)
    print_findings(surroundings(options.config, config.read(file).settings), GROUPS)
    return 0


def ask_all(context: Context, answers: Answers, questions: Questions | None = None) -> Answers:
    """Ask one question after the other, and the one before again after `back`."""
    questions = questions or QUESTIONS
    dialog, number, visited = context.dialog, 0, list[int]()
    if dialog.interactive:
        dialog.say(f"`{BACK}` as an answer returns to the question before.")
    while number < len(questions):
        title, question = questions[number]
        dialog.say(f"\n{number + 1} of {len(questions) + 1}  {title}", BOLD)
        try:
            count = dialog.question_count
            answers = question(context, answers)
            if dialog.question_count > count:
                visited.append(number)
            number += 1
        except BackError:  # past steps that had nothing to ask
            number = visited.pop() if visited else 0
    return answers


def ask_room(context: Context, answers: Answers) -> Answers:
    """Ask what the room is called. Raises ConfigError for a wrong --node."""
    name = context.options.node
    if name is not None and not slug(name):
        raise ConfigError(f"--node: {name!r} cannot be a room's name: it needs a letter or a digit")
    while not name or not slug(name):
        name = context.dialog.ask("What is this room called?", answers.node)
    named = with_room(answers, name)
    context.dialog.say(f"Its MQTT topics begin with {named.mqtt.topic(named.node, '')}")
    return named


def with_room(answers: Answers, name: str) -> Answers:
    """Return the answers with the room's name, and with the area in Home Assistant that follows it.

    An area with another name than the room's was chosen by hand, and stays.
    """
    node = slug(name)
    if node == answers.node:
        return answers
    follows = not answers.area or slug(answers.area) == answers.node
    return replace(answers, node=node, area=name.strip() if follows else answers.area)


def hear_sentence(context: Context, within_s: float) -> None:
    """Show the text of a sentence, and how long it took. The daemon may come back `within_s`."""
    dialog = context.dialog
    try:
        with connect(context.sockets, "transcript", "state", within_s=within_s) as daemon:
            dialog.say("Say a sentence. It will appear here. Press Enter to skip this.")
            event = wait_for_transcript(daemon)
            if event is None:
                dialog.say("No sentence was heard.")
                return
            dialog.say(f"  {event['text']}", BOLD)
            dialog.say(
                f"The text was ready {event['latency_ms'] / 1000:.2f} s after you stopped "
                f"speaking, and is transcript {event['seq']} in the log."
            )
    except DaemonError as error:
        dialog.report(error)
    except BackError:
        dialog.say("The answers are written. Run setup again to change one.")


def wait_for_transcript(daemon: ControlClient) -> dict[str, Any] | None:
    """Return the next transcript; None if none came, or Enter was pressed.

    Raises DaemonError if the microphone is muted, or the daemon ends.
    """
    deadline_s = time.monotonic() + SENTENCE_S
    while time.monotonic() < deadline_s and not is_entered(EVERY_S):
        while received := daemon.next_event(0.0):
            name, event = received
            if name == "transcript":
                return event
            if event["status"] == "muted":
                raise DaemonError(MUTED.rstrip("."))
    return None


QUESTIONS: Questions = (
    ("The room", ask_room),
    ("The microphone", ask_microphone),
    ("The loudspeaker", ask_speaker),
    ("The broker", ask_broker),
    ("The model", ask_model),
)
"""The last step is a sentence, after the answers are written."""
