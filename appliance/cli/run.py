"""`roomscribe run`, `mute` and `devices`.

Each command imports the heavy packages that it needs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance import config
from appliance.cli.commands import Commands
from appliance.config import Settings
from appliance.errors import TRY_AGAIN, DeviceError, MissingModelError, StoreError
from appliance.system import shorten

if TYPE_CHECKING:
    from appliance.daemon import Pipeline, mute as switch

MUTED_WITHIN_S = 3.0
"""Longest wait for the daemon to close the microphone; it needs a fraction of this."""


def add_run(commands: Commands) -> None:
    """Add `roomscribe run` to the command line."""
    sub = commands.add(
        "run",
        run,
        help="listen, transcribe and publish until stopped",
        description="Listens to the microphone, transcribes speech, stores the text in the local "
        "log and publishes it over MQTT, until SIGTERM. The systemd unit runs this command.",
    )
    sub.add_argument(
        "--recording",
        metavar="FILE",
        help="read this sound file in real time instead of the microphone, then end; -: a sound "
        "file or raw 16 kHz mono 16-bit PCM from standard input",
    )


def add_mute(commands: Commands) -> None:
    """Add `roomscribe mute` to the command line."""
    sub = commands.add(
        "mute",
        mute,
        help="close the microphone, or open it again",
        description="Closes the microphone and returns when it is closed. It stays closed, also "
        "after a restart, until you switch mute off or the mute ends. Works with and without a "
        "running daemon. Without an argument, prints the state; the exit status is 0 if muted, 1 "
        "if not.",
    )
    sub.add_argument("position", nargs="?", choices=("on", "off", "toggle"))
    sub.add_argument(
        "end",
        nargs="?",
        metavar="END",
        type=_mute_end,
        help="only after `on`: when the mute ends by itself: 30m, 2h (168h at most), or tomorrow "
        "(at 06:00)",
    )


def add_devices(commands: Commands) -> None:
    """Add `roomscribe devices` to the command line."""
    commands.add(
        "devices",
        devices,
        help="list the microphones and loudspeakers",
        description="Lists the microphones, then the loudspeakers. To choose one, set "
        "capture.device or speaker.device to its name or a part of it.",
    )


def run(
    options: argparse.Namespace,
    settings: Settings,
    pipeline: Callable[[Settings], Pipeline] | None = None,
) -> int:
    """Run `roomscribe run`; `pipeline` opens one for settings and replaces `assembly.build`."""
    from appliance.daemon import ModelInstaller, Pipeline, assembly, lifecycle

    def with_recording(chosen: Settings) -> Settings:
        if not options.recording:
            return chosen
        return replace(chosen, capture=replace(chosen.capture, recording=options.recording))

    def read(chosen: Mapping[str, Mapping[str, Any]] | None) -> config.Reading:
        reading = config.read(options.config, chosen)
        return replace(reading, settings=with_recording(reading.settings))

    installer = ModelInstaller()

    def open_pipeline(settings: Settings) -> Pipeline:
        return Pipeline(assembly.build(settings, read=read, installer=installer))

    try:
        lifecycle.run(
            with_recording(settings), lambda: read(None).or_raise(), pipeline or open_pipeline
        )
    except MissingModelError as error:
        error.exit_status = TRY_AGAIN
        raise
    return 0


def mute(options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe mute`; return when the microphone is closed.

    Raises StoreError if this user may not mute, DeviceError if the daemon does not react.
    """
    from appliance.daemon import mute as switch

    if options.end and options.position != "on":
        options.usage_error("END is only for `roomscribe mute on`")
    folder = config.store_folder(settings.store)
    _require_folder(folder)
    if not options.position:
        before = switch.read_position(folder)
        print(_mute_state(before, switch.is_listening(folder)))
        return 0 if before.on else 1
    toggled = options.position == "toggle" and not switch.read_position(folder).on
    on = toggled or options.position == "on"
    wanted = switch.Position(on, options.end if on else None)
    switch.write(folder / switch.FILE_NAME, wanted)
    deadline_s = time.monotonic() + MUTED_WITHIN_S
    while (listening := switch.is_listening(folder)) and on:
        if time.monotonic() > deadline_s:
            raise DeviceError(
                f"the microphone is still open after {MUTED_WITHIN_S:g} s. Stop the daemon "
                "(`sudo systemctl stop roomscribe`) or unplug the microphone."
            )
        time.sleep(0.02)
    print(_mute_state(wanted, listening))
    return 0


def _mute_end(text: str) -> datetime:
    """Return when a mute that begins now ends. Raises argparse.ArgumentTypeError."""
    from appliance.daemon import mute_end

    try:
        return mute_end.parse_end(text, datetime.now(UTC))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}, found '{shorten(text)}'") from None


def _mute_state(mute: switch.Position, listening: bool) -> str:
    """Return the state on one line."""
    from appliance.daemon import mute_end

    if mute.on:
        return (
            f"muted{mute_end.format_end(mute.until, datetime.now(UTC))}: the microphone is closed"
        )
    return "not muted: the microphone is open" if listening else "not muted"


def _require_folder(folder: Path) -> None:
    """Raise StoreError if the daemon's folder does not exist or this user may not use it."""
    try:
        problem = "" if folder.is_dir() else "no such folder"
        next(folder.iterdir(), None)
    except OSError as error:
        problem = error.strerror or str(error)
    if problem:
        raise StoreError(
            f"{folder}, where the daemon keeps its log, cannot be used: {problem}. Run this with "
            "sudo or as the daemon's user, and with the daemon's --config."
        )


def devices(_options: argparse.Namespace, _settings: Settings) -> int:
    """Run `roomscribe devices`; return 1 if there is no microphone."""
    from appliance.capture import LOUDSPEAKER, list_microphones, names_to_configure

    found, loudspeakers = list_microphones(), list_microphones(LOUDSPEAKER)
    for title, devices in (("", found), ("Loudspeakers, for speaker.device:", loudspeakers)):
        if title and devices:
            print(title)
        for device, name in zip(devices, names_to_configure(devices), strict=True):
            mark = "*" if device.default else " "
            print(f"{mark} {name}  ({device.channels} ch, {device.rate_hz:.0f} Hz)")
    if found:
        print(
            "To choose one, set capture.device to its name or a part of it. * is the default, used "
            "if capture.device is empty."
        )
    else:
        print(
            "roomscribe: No microphone found. Plug one in. `arecord -l` shows the cards that the "
            "kernel knows, `roomscribe doctor` why one cannot be opened.",
            file=sys.stderr,
        )
    return 0 if found else 1
