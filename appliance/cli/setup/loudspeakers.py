"""The room's loudspeakers: which sounds may be the reference of echo cancellation."""

from __future__ import annotations

import re
import subprocess
from contextlib import suppress
from dataclasses import replace

from appliance.cli.setup.answers import Answers, Context
from appliance.errors import DeviceError

PACTL_S = 3.0
"""Longest wait for the sound server."""
MONITOR = ".monitor"
LINE_INPUT = re.compile(r"hdmi|\bline|loopback|stereo mix|what u hear", re.IGNORECASE)
"""Names of sound cards that usually record no microphone."""


def ask_reference(context: Context, answers: Answers) -> Answers:
    """Take the reference of --reference; without it, show which sounds could be the reference.

    Raises DeviceError if --reference does not open.
    """
    wanted, dialog = context.options.reference, context.dialog
    if wanted is not None:
        name = "" if wanted == "none" else wanted
        if name and name != answers.reference:
            try_reference(context, name)
        return replace(answers, reference=name)
    if answers.reference:
        dialog.say(f"Loudspeakers: {answers.reference}")
    elif dialog.interactive and (found := possible_references()):
        dialog.say(
            "Loudspeakers: Roomscribe can remove what a television or music adds to the "
            f"microphone's sound, if it gets that sound from one of these: {', '.join(found)}. "
            "`sudo roomscribe setup --reference NAME` uses it."
        )
    return answers


def try_reference(context: Context, name: str) -> None:
    """Open the reference. Raises DeviceError if that fails, or if the name has a password."""
    from appliance.capture import Recorder, public_name

    if public_name(name) != name:
        raise DeviceError(
            "--reference: other users can read a password on the command line. Write the stream "
            f"into {context.file}: [capture.reference] device"
        )
    with Recorder() as recorder:
        try:
            opened = recorder.open(name)
        except DeviceError as error:
            raise DeviceError(f"--reference: {error}") from error
    context.dialog.say(f"Loudspeakers: {opened.name}")


def possible_references() -> list[str]:
    """Return the sound server's monitors and the line inputs, as capture.reference names them."""
    from appliance.capture import list_microphones, names_to_configure

    found = [f"pulse:{name}" for name in list_monitors()]
    with suppress(DeviceError):
        names = names_to_configure(list_microphones())
        found += [name for name in names if LINE_INPUT.search(name)]
    return found


def list_monitors() -> list[str]:
    """Return what the outputs of PulseAudio or PipeWire play, by name; none without a server."""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            ["pactl", "list", "short", "sources"],
            capture_output=True, text=True, timeout=PACTL_S, check=False,
        )  # fmt: skip
        columns = [line.split("\t") for line in done.stdout.splitlines()]
        return [one[1] for one in columns if len(one) > 1 and one[1].endswith(MONITOR)]
    return []
