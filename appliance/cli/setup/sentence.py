"""Question 5: a sentence, from the microphone to the log and the broker."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from appliance import config
from appliance.cli.config_file import RESTART_S
from appliance.cli.dialog import BackError, is_entered
from appliance.cli.setup.answers import Context
from appliance.cli.setup.meter import EVERY_S, Meter, read_daemon
from appliance.cli.setup.microphone import MUTED
from appliance.cli.terminal import BOLD
from appliance.config import DEFAULT_PATH, node_name
from appliance.control import ControlClient
from appliance.errors import DaemonError, RoomscribeError

if TYPE_CHECKING:
    from appliance.mqtt import BrokerProbe

SENTENCE_S = 30.0
"""Longest wait for a sentence."""
PUBLISHED_S = 10.0
"""Longest wait for the broker: the daemon may not have known before that there is a subscriber."""


def hear_sentence(context: Context, *, patient: bool) -> None:
    """Show the text of a sentence, how long it took and where it went.

    `patient`: the daemon may be starting again.
    """
    dialog = context.dialog
    try:
        with ExitStack() as opened:
            daemon = connect(context, opened, patient=patient)
            dialog.say("Say a sentence. It will appear here. Press Enter to skip this.")
            probe = open_subscriber(context, opened)
            event = wait_for_transcript(context, daemon)
            if event is None:
                dialog.say("\nNo sentence was heard.")
            else:
                show_transcript(context, event, probe)
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
                daemon.subscribe("transcript", "level", "state")
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
    meter, deadline_s = Meter(), time.monotonic() + SENTENCE_S
    while time.monotonic() < deadline_s and not is_entered(EVERY_S):
        for name, event in read_daemon(daemon, meter):
            if name == "transcript":
                return event
            if name == "state" and event["status"] == "muted":
                raise DaemonError(MUTED.rstrip("."))
        context.dialog.redraw(meter.bar())
    return None


def show_transcript(context: Context, event: dict[str, Any], probe: BrokerProbe | None) -> None:
    """Print a transcript, its latency, its number in the log, and whether it was published."""
    context.dialog.redraw("")
    context.dialog.say(f"\n  {event['text']}", BOLD)
    latency_s = event["latency_ms"] / 1000
    context.dialog.say(
        f"The text was ready {latency_s:.2f} s after you stopped speaking, and is transcript "
        f"{event['seq']} in the log."
    )
    if probe:
        published = is_published(probe, event["id"])
        topic = context.settings.mqtt.topic(event["node"], "transcript")
        delivered = "delivered it" if published else "has not delivered it yet"
        context.dialog.say(f"The broker {delivered} on {topic}.")


def is_published(probe: BrokerProbe, transcript_id: str) -> bool:
    """Return True if the broker publishes that transcript within PUBLISHED_S."""
    deadline_s = time.monotonic() + PUBLISHED_S
    while (left_s := deadline_s - time.monotonic()) > 0:
        messages = probe.receive(left_s, count=1)
        if any(transcript_id.encode() in message.payload for message in messages):
            return True
    return False
