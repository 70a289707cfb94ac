"""Question 2: the microphone, with a level meter for each that is there."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from appliance.cli.dialog import is_entered
from appliance.cli.setup.answers import Answers, Context
from appliance.cli.setup.loudspeakers import ask_reference
from appliance.cli.setup.meter import EVERY_S, Meter
from appliance.control import ControlClient
from appliance.errors import DaemonError, DeviceError

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN = 8
"""Most microphones that are shown."""
MUTED = "The microphone is muted. `roomscribe mute off` switches it on."


def ask_microphone(context: Context, answers: Answers) -> Answers:
    """Ask for the microphone, and take the reference that belongs to it.

    Raises DeviceError for a wrong --reference, and without a terminal for a wrong --device.
    """
    return ask_reference(context, ask_device(context, answers))


def ask_device(context: Context, answers: Answers) -> Answers:
    """Show the level of each microphone and ask for one of them.

    Raises DeviceError for a wrong --device where nobody is asked.
    """
    from appliance.capture import public_name

    wanted = context.options.device
    if wanted is None and not context.dialog.interactive:
        context.dialog.say(public_name(answers.device) or "the default microphone")
        return answers
    with ExitStack() as opened:
        meters = open_meters(context, answers, opened)
        if wanted is not None:
            try:
                return take_option(context, answers, wanted, [meter.name for meter in meters])
            except DeviceError as error:
                if not context.dialog.interactive:
                    raise
                context.dialog.report(error)
        if not meters:
            context.dialog.say(
                "No microphone found. You can continue: the daemon uses one as soon as you plug it "
                "in."
            )
            return answers
        return choose_microphone(context, answers, meters)


def choose_microphone(context: Context, answers: Answers, meters: Sequence[Meter]) -> Answers:
    """Show the meters until Enter, and ask for one of several microphones."""
    dialog = context.dialog
    dialog.say("Say something in a normal voice and watch the level. Press Enter to continue.")
    dialog.questions += 1
    with dialog.display(lambda: meters_table(meters)) as draw:
        while not is_entered(EVERY_S):
            for meter in meters:
                meter.listen()
            draw()
    in_use = next((meter for meter in meters if meter.in_use), meters[0])
    names = [meter.name for meter in meters]
    name = names[0]
    if len(names) > 1:
        name = dialog.choose("Which microphone?", names, in_use.name)
    chosen = meters[names.index(name)]
    dialog.say(f"{name}: {chosen.verdict()}")
    return answers if chosen.in_use else replace(answers, device=name)


def take_option(context: Context, answers: Answers, wanted: str, names: Sequence[str]) -> Answers:
    """Return the answers with the one microphone whose name holds `wanted`; empty: the default.

    Raises DeviceError if there is none, or more than one.
    """
    from appliance.capture import is_stream

    if is_stream(wanted):
        raise DeviceError(
            "--device: setup takes sound cards only. Write the stream into "
            f"{context.file}: [capture] device"
        )
    whole = [name for name in names if name.casefold() == wanted.casefold()]
    found = whole or [name for name in names if wanted.casefold() in name.casefold()]
    if wanted and len(found) != 1:
        there = ", ".join(repr(name) for name in found or names)
        count = "more than one microphone has" if found else "no microphone has"
        raise DeviceError(
            f"--device: {count} {wanted!r} in its name. Choose one of: {there or '(none found)'}"
        )
    context.dialog.say(found[0] if wanted else "the default microphone")
    return replace(answers, device=wanted)


def open_meters(context: Context, answers: Answers, opened: ExitStack) -> list[Meter]:
    """Return a meter for each microphone: the daemon's own over its socket, the others opened."""
    from appliance.capture import Recorder, list_microphones, names_to_configure

    meters: list[Meter] = []
    with suppress(DaemonError):
        meters += daemon_meter(context, opened)
    try:
        devices = list_microphones()
    except DeviceError as error:
        context.dialog.report(error)
        return meters
    for device, name in zip(devices, names_to_configure(devices), strict=True):
        if len(meters) >= SHOWN or name in [known.name for known in meters]:
            continue
        meter = Meter(name, recorder=opened.enter_context(Recorder()))
        meter.open()
        wanted = answers.device.casefold()
        configured = wanted in name.casefold() if wanted else device.default
        meter.in_use = configured and not any(known.in_use for known in meters)
        meters.append(meter)
    return meters


def daemon_meter(context: Context, opened: ExitStack) -> list[Meter]:
    """Return a meter of the microphone that the daemon has open, if it has one.

    Raises DaemonError if the daemon does not answer.
    """
    daemon = opened.enter_context(ControlClient(context.sockets))
    state = daemon.call("state")
    if state["microphone"] != "none":
        daemon.subscribe("level")
        return [Meter(state["microphone"], daemon=daemon, in_use=True)]
    if state["status"] == "muted":
        context.dialog.say(MUTED)
    return []


def meters_table(meters: Sequence[Meter]) -> RenderableType:
    """Return a table with a line for each microphone."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in ("", "microphone", "level", "loudest", ""):
        table.add_column(title)
    for number, meter in enumerate(meters, 1):
        peak = "" if meter.peak_db is None else f"{meter.peak_db:.0f} dB"
        table.add_row(
            *map(Text, (str(number), meter.name[:40], meter.bar(), peak, meter.verdict()))
        )
    return table
