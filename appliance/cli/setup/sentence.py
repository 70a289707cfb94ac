"""Question 6: a sentence, from the microphone to the log."""

import time
from contextlib import ExitStack
from typing import Any

from appliance.cli.config_file import RESTART_S
from appliance.cli.dialog import BackError, is_entered
from appliance.cli.setup.answers import Context
from appliance.cli.setup.microphone import MUTED
from appliance.cli.terminal import BOLD
from appliance.control import ControlClient
from appliance.errors import DaemonError

SENTENCE_S = 30.0
"""Longest wait for a sentence."""
EVERY_S = 0.1
"""Longest wait until Enter is noticed."""


def hear_sentence(context: Context, *, patient: bool) -> None:
    """Show the text of a sentence, and how long it took.

    `patient`: the daemon may be starting again.
    """
    dialog = context.dialog
    try:
        with ExitStack() as opened:
            daemon = connect(context, opened, patient=patient)
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


def connect(context: Context, opened: ExitStack, *, patient: bool) -> ControlClient:
    """Return the daemon, subscribed to its events.

    While the daemon starts again it may accept a connection and end it at once. Raises DaemonError.
    """
    deadline_s = time.monotonic() + RESTART_S
    while True:
        try:
            with ExitStack() as attempt:
                daemon = attempt.enter_context(ControlClient(context.sockets))
                daemon.subscribe("transcript", "state")
                opened.push(attempt.pop_all())
                return daemon
        except DaemonError:
            if time.monotonic() > deadline_s or not patient:
                raise
            time.sleep(0.2)


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
