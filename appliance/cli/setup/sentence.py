"""Question 5: a sentence, from the microphone to the log and the broker."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from appliance import config
from appliance.cli.config_file import RESTART_S
from appliance.cli.dialog import BackError, is_entered
from appliance.cli.setup.answers import Context
from appliance.cli.setup.meter import EVERY_S, Meter
from appliance.cli.setup.microphone import MUTED
from appliance.config import DEFAULT_PATH, node_name
from appliance.control import ControlClient
from appliance.errors import DaemonError, RoomscribeError

if TYPE_CHECKING:
    from appliance.mqtt import BrokerProbe

SENTENCE_S = 30.0
"""Longest wait for a sentence."""
PUBLISHED_S = 10.0
"""Longest wait for the broker: the daemon may not have known before that there is a subscriber."""


def hear_sentence(context: Context, *, changed: bool) -> bool:
    """Show the text of a sentence, how long it took and where it went; True if one was heard.

    `changed`: the daemon may be starting again.
    """
    dialog = context.dialog
    if not dialog.interactive:
        dialog.say("Skipped, because setup runs with --yes.")
        return False
    try:
        with ExitStack() as opened:
            daemon = connect(context, opened, patient=changed)
            dialog.say("Say a sentence. It will appear here. Press Enter to skip this.")
            probe = open_subscriber(context, opened)
            event = wait_for_transcript(context, daemon)
            if event is None:
                dialog.say("No sentence was heard. `sudo roomscribe doctor` shows what is wrong.")
            else:
                show_transcript(context, event, probe)
                return True
    except DaemonError as error:
        dialog.report(error)
    except BackError:
        dialog.say("The answers are written. Run setup again to change one.")
    return False


def connect(context: Context, opened: ExitStack, *, patient: bool) -> ControlClient:
    """Return the daemon, subscribed to its events.

    While the daemon starts again it may accept a connection and end it at once. Raises DaemonError.
    """
    deadline_s = time.monotonic() + RESTART_S
    while True:
        try:
            with ExitStack() as attempt:
                daemon = attempt.enter_context(ControlClient(context.sockets))
                daemon.subscribe("transcript", "level", "discarded", "state")
                opened.push(attempt.pop_all())
                return daemon
        except DaemonError:
            if time.monotonic() > deadline_s or not patient:
                raise
            time.sleep(0.2)


def open_subscriber(context: Context, opened: ExitStack) -> BrokerProbe | None:
    """Return a subscriber to this room's transcripts; None without a broker."""
    from appliance.cli.doctor.daemon import with_credentials
    from appliance.mqtt import BrokerProbe

    now = config.read(context.file).settings
    if not now.mqtt.enabled:
        return None
    with suppress(RoomscribeError):
        chosen = with_credentials(now.mqtt) if context.file == DEFAULT_PATH else now.mqtt
        probe = opened.enter_context(BrokerProbe(chosen, node_name(now)))
        probe.subscribe([now.mqtt.topic(node_name(now), "transcript")])
        return probe
    return None


def wait_for_transcript(context: Context, daemon: ControlClient) -> dict[str, Any] | None:
    """Show the level until a sentence has come; None if none came, or Enter was pressed.

    Raises DaemonError if the microphone is muted, or the daemon ends.
    """
    meter = Meter("", daemon=daemon)
    deadline_s = time.monotonic() + SENTENCE_S
    with context.dialog.display(lambda: f"  {meter.bar()} {meter.verdict()}") as draw:
        while time.monotonic() < deadline_s and not is_entered(EVERY_S):
            for name, event in meter.listen():
                if name == "transcript":
                    return event
                if name == "state" and event["status"] == "muted":
                    raise DaemonError(MUTED.rstrip("."))
            draw()
    return None


def show_transcript(context: Context, event: dict[str, Any], probe: BrokerProbe | None) -> None:
    """Print a transcript, its latency, its number in the log, and whether it was published."""
    dialog = context.dialog
    dialog.say(f"  {event['text']}", "bold")
    latency_s = event["latency_ms"] / 1000
    dialog.say(f"The text was ready {latency_s:.2f} s after you stopped speaking.")
    line = f"It is transcript {event['seq']} in the log"
    topic = context.settings.mqtt.topic(event["node"], "transcript")
    if probe is None:
        dialog.say(f"{line}.")
    elif is_published(probe, event["id"]):
        dialog.say(f"{line}, and the broker delivered it on {topic}.")
    else:
        dialog.say(f"{line}. The broker has not delivered it on {topic} yet.")


def is_published(probe: BrokerProbe, transcript_id: str) -> bool:
    """Return True if the broker publishes that transcript within PUBLISHED_S."""
    deadline_s = time.monotonic() + PUBLISHED_S
    while (left_s := deadline_s - time.monotonic()) > 0:
        messages = probe.receive(left_s, count=1)
        if any(transcript_id.encode() in message.payload for message in messages):
            return True
    return False
