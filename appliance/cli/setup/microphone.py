"""Questions 2 and 3: the microphone, which is listened to, and the loudspeaker."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from appliance.cli.setup.answers import Answers, Context
from appliance.control import ControlClient
from appliance.errors import DaemonError, DeviceError

MUTED = "The microphone is muted. `roomscribe mute off` switches it on."
NO_SPEAKER, RING_HZ = "none", 22_050
LEVEL = "peaks between -20 and -6 dBFS are right"


def ask_microphone(context: Context, answers: Answers) -> Answers:
    """Ask for one of the microphones and listen to it.

    Raises DeviceError for a wrong --device where nobody is asked.
    """
    from appliance.capture import list_microphones, names_to_configure, public_name

    dialog, wanted = context.dialog, context.options.device
    if wanted is None and not dialog.interactive:
        dialog.say(public_name(answers.device) or "the default microphone")
        return answers
    state, found = state_of_daemon(context), dict[str, bool]()
    daemons = str(state.get("microphone", ""))
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
        works = try_microphone(context, name, state if name == daemons else {})
        if works or not several or dialog.confirm("Use it all the same?"):
            return answers if name == present else replace(answers, device=name)


def ask_speaker(context: Context, answers: Answers) -> Answers:
    """Play a sound on a loudspeaker, and ask whether it is heard."""
    from appliance.capture import LOUDSPEAKER, list_microphones, names_to_configure
    from appliance.speaker import play_once, ring

    dialog = context.dialog
    if not dialog.interactive:
        dialog.say("on" if answers.speaker else "off")
        return answers
    names = [NO_SPEAKER]
    try:
        names = [*names_to_configure(list_microphones(LOUDSPEAKER)), NO_SPEAKER]
    except DeviceError as error:
        dialog.report(error)
    if len(names) == 1:
        dialog.say("No loudspeaker found. Run setup again once there is one.")
        return answers
    for number, name in enumerate(names, 1):
        dialog.say(f"{number:3} {name}")
    present = (answers.speaker_device or names[0]) if answers.speaker else NO_SPEAKER
    while True:
        name = dialog.choose("Which loudspeaker answers?", names, present)
        if name == NO_SPEAKER:
            return replace(answers, speaker=False)
        settings = replace(context.settings.speaker, device=name)
        dialog.say(play_once(settings, ring(RING_HZ), RING_HZ) or "A ring was played.")
        if dialog.confirm("Did you hear it?"):
            return replace(answers, speaker=True, speaker_device=name)


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


def state_of_daemon(context: Context) -> dict[str, Any]:
    """Return the state of the daemon that has a microphone open; empty if none has."""
    with suppress(DaemonError), ControlClient(context.sockets) as daemon:
        state: dict[str, Any] = daemon.call("state")
        if state["status"] == "muted":
            context.dialog.say(MUTED)
        if state["microphone"] != "none":
            return state
    return {}


def try_microphone(context: Context, name: str, state: dict[str, Any]) -> bool:
    """Say what is heard from a microphone; return True if it is right.

    `state` is that of the daemon which has it open; empty: none has.
    """
    from appliance.cli.doctor import microphone as doctor
    from appliance.cli.doctor.main import look
    from appliance.cli.doctor.outcome import FAILED, Surroundings

    if state:
        outcome, advice = doctor.heard_by_daemon(state, f"{name}: used by the daemon"), ""
    else:
        context.dialog.read(f"{name}: press Enter, and speak in a normal voice: ")
        capture = replace(context.settings.capture, device=name)
        check = replace(doctor.CHECKS[0], look=doctor.listen)
        settings = replace(context.settings, capture=capture)
        outcome, advice = look(check, Surroundings(settings, context.file)), LEVEL
    context.dialog.say("; ".join(filter(None, [outcome.found, outcome.fix or advice])))
    return outcome.status != FAILED
