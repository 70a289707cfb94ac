"""`roomscribe setup`: its options, and the order of the questions.

Nothing changes before the end. Then setup shows the changes, writes them into the configuration,
keeps its comments, and has the daemon read it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from appliance import config
from appliance.cli import model as models
from appliance.cli.dialog import BACK, BackError, Dialog, open_console
from appliance.cli.setup.answers import Answers, Context, configured_answers
from appliance.cli.setup.broker import ask_broker
from appliance.cli.setup.microphone import ask_microphone
from appliance.cli.setup.model import ask_model
from appliance.cli.setup.room import ask_room
from appliance.cli.setup.saving import save
from appliance.cli.setup.sentence import hear_sentence
from appliance.cli.setup.summary import show_summary
from appliance.config import DEFAULT_PATH, Settings
from appliance.control import SOCKET_NAME
from appliance.system import require_writable

FLAGS = "--node, --device, --broker and --model"
QUESTIONS: tuple[tuple[str, Callable[[Context, Answers], Answers]], ...] = (
    ("The room", ask_room),
    ("The microphone", ask_microphone),
    ("The broker", ask_broker),
    ("The model", ask_model),
)
STEPS = len(QUESTIONS) + 1
"""The last one is a sentence, after the answers are written."""


def add_setup(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `roomscribe setup` to the command line."""
    sub = add(
        "setup",
        help="set up room, microphone, broker and model",
        description="Asks for the room's name, the microphone, the broker and the model, tries "
        "each answer, writes the changes into the configuration (your comments stay) and listens "
        "to a sentence. The daemon keeps running. You can run setup again at any time. It skips "
        "questions that you answer with an option. Without a terminal, add --yes, which keeps all "
        "other settings.",
    )
    sub.add_argument("--node", metavar="NAME", help="the room's name, such as kitchen")
    sub.add_argument(
        "--device", metavar="NAME", help="microphone, as `roomscribe devices` shows it"
    )
    sub.add_argument(
        "--reference",
        metavar="NAME",
        help="what the room's loudspeakers play: a line input, or pulse:NAME.monitor of the sound "
        "server; none: no echo cancellation",
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
        "--page",
        action="store_true",
        help="also switch on the page for a browser, and print a link to it",
    )
    sub.add_argument("--yes", action="store_true", help="ask nothing, and write the changes")
    sub.set_defaults(command=setup, usage_error=sub.error)


def setup(options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe setup`; return 0, or 1 if the changes were declined."""
    if not options.yes and not (sys.stdin.isatty() and sys.stdout.isatty()):
        options.usage_error(
            f"setup needs a terminal to ask you. Without one, add --yes, and any of {FLAGS} that "
            "you want to change"
        )
    from appliance.store import runtime_folders

    file = options.config or DEFAULT_PATH
    require_writable(file, "run `sudo roomscribe setup`")
    sockets = tuple(folder / SOCKET_NAME for folder in runtime_folders(settings))
    dialog = Dialog(open_console(), interactive=not options.yes)
    return run(Context(options, settings, file, sockets, dialog))


def run(context: Context) -> int:
    """Ask, save, listen to a sentence and show the result; return the exit status."""
    before = configured_answers(context.settings, models.model_in_use(context.settings))
    dialog = context.dialog
    try:
        if not (answers := ask_and_save(context, before)):
            return 1
    except KeyboardInterrupt:
        dialog.say("\nSetup was cancelled. Nothing was changed.")
        raise
    if context.options.page:
        switch_page_on(context)
    dialog.say(f"\n{STEPS} of {STEPS}  A sentence", "bold")
    heard = hear_sentence(context, changed=answers != before or context.options.page)
    dialog.say("\nResult", "bold")
    show_summary(context, heard=heard)
    return 0


def ask_and_save(context: Context, before: Answers) -> Answers | None:
    """Ask every question and write the answers; return them, or None if they are declined.

    BACK returns to the question before. Raises RoomscribeError where nobody is visited.
    """
    dialog = context.dialog
    if dialog.interactive:
        dialog.say(f"Answer {BACK} to return to the question before, Ctrl-C to cancel.")
    answers, number, visited = before, 0, list[int]()
    while True:
        count = dialog.questions
        try:
            if number == len(QUESTIONS):
                return answers if save(context, before, answers) else None
            title, question = QUESTIONS[number]
            dialog.say(f"\n{number + 1} of {STEPS}  {title}", "bold")
            answers = question(context, answers)
        except BackError:
            if not visited:
                dialog.say("This is the first question.")
            number = visited.pop() if visited else number
            continue
        if dialog.questions > count:  # others were answered by an option, or there is no choice
            visited.append(number)
        number += 1


def switch_page_on(context: Context) -> None:
    """Switch the page on and print a link to it. Raises ConfigError and StoreError."""
    from appliance.cli.web import enable_page, print_link

    context.dialog.say("\nThe page", "bold")
    now = config.read(context.file).settings
    enable_page(context.options, now)
    print_link(context.options, config.read(context.file).settings)
