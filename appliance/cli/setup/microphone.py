"""Question 2: the microphone, whose level is shown."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace

from appliance.cli.dialog import is_entered
from appliance.cli.setup.answers import Answers, Context
from appliance.cli.setup.meter import EVERY_S, GOOD, Meter, read_daemon, read_recorder
from appliance.control import ControlClient
from appliance.errors import DaemonError, DeviceError

MUTED = "The microphone is muted. `roomscribe mute off` switches it on."


def ask_microphone(context: Context, answers: Answers) -> Answers:
    """Ask for one of the microphones and show its level.

    Raises DeviceError for a wrong --device where nobody is asked.
    """
    from appliance.capture import list_microphones, names_to_configure, public_name

    dialog, wanted = context.dialog, context.options.device
    if wanted is None and not dialog.interactive:
        dialog.say(public_name(answers.device) or "the default microphone")
        return answers
    daemons, found = microphone_of_daemon(context), dict[str, bool]()
    try:
        devices = list_microphones()
        is_default = (device.default for device in devices)
        found = dict(zip(names_to_configure(devices), is_default, strict=True))
        if wanted is not None:
            return take_option(context, answers, wanted, [*found])
    except DeviceError as error:
        if not dialog.interactive:
            raise
        dialog.report(error)
    names = list(dict.fromkeys([*found, *filter(None, [daemons])]))
    if not names:
        dialog.say("No microphone found. The daemon uses one as soon as you plug it in.")
        return answers
    part = answers.device.casefold()
    configured = (name for name in found if (part in name.casefold() if part else found[name]))
    present = daemons or next(configured, names[0])
    for number, name in enumerate(names, 1):
        dialog.say(f"{number:3} {name}")
    while True:
        several = len(names) > 1
        name = dialog.choose("Which microphone?", names, present) if several else names[0]
        verdict = watch_level(context, name, by_daemon=name == daemons)
        dialog.say(f"{name}: {verdict}")
        if verdict == GOOD or not several or dialog.confirm("Use it all the same?"):
            return answers if name == present else replace(answers, device=name)


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


def microphone_of_daemon(context: Context) -> str:
    """Return the name of the microphone that the daemon has open; "" if it has none."""
    with suppress(DaemonError), ControlClient(context.sockets) as daemon:
        state = daemon.call("state")
        if state["status"] == "muted":
            context.dialog.say(MUTED)
        if state["microphone"] != "none":
            return str(state["microphone"])
    return ""


def watch_level(context: Context, name: str, *, by_daemon: bool) -> str:
    """Show a microphone's level until Enter; return what is right or wrong with it."""
    from appliance.capture import EndError, Recorder

    dialog, meter = context.dialog, Meter()
    dialog.say("Say something in a normal voice and watch the level. Press Enter to continue.")
    with ExitStack() as opened:
        try:
            if by_daemon:
                daemon = opened.enter_context(ControlClient(context.sockets))
                daemon.subscribe("level")
            else:
                recorder = opened.enter_context(Recorder())
                recorder.open(name)
            while not is_entered(EVERY_S):
                if by_daemon:
                    read_daemon(daemon, meter)
                else:
                    read_recorder(recorder, meter)
                dialog.redraw(meter.bar())
        except (DeviceError, DaemonError, EndError) as error:
            return str(error)
    return meter.verdict()
