"""`roomscribe run`, and what belongs to it: `mute` and `devices`.

Heavy rooms are imported by the command that needs them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance import config
from appliance.config import Settings
from appliance.errors import TRY_AGAIN, DeviceError, MissingModelError, StoreError

if TYPE_CHECKING:
    from appliance.daemon import Pipeline

OBEYED_WITHIN_S = 3.0
"""A daemon closes the microphone in a fraction of this."""


def add_run(add: Callable[..., argparse.ArgumentParser]) -> None:
    """`roomscribe run`"""
    sub = add(
        "run",
        help="listen, transcribe and publish until stopped",
        description="Listens to the microphone, transcribes what is said and publishes it to "
        "MQTT and the local log, until SIGTERM. This is what the systemd unit runs.",
    )
    sub.add_argument(
        "--recording",
        metavar="FILE",
        help="hear this sound file (or - for one, or raw 16 kHz mono 16-bit PCM, on standard "
        "input) in real time in place of the microphone, and end with it",
    )
    sub.set_defaults(command=run)


def add_mute(add: Callable[..., argparse.ArgumentParser]) -> None:
    """`roomscribe mute`"""
    sub = add(
        "mute",
        help="close the microphone, or open it again",
        description="Closes the microphone until it is unmuted, through restarts, too, and "
        "returns when it is closed. Works whether the daemon runs or not. Without a word it "
        "tells how it stands: exit status 0 when muted, 1 when not.",
    )
    sub.add_argument("position", nargs="?", choices=("on", "off", "toggle"))
    sub.set_defaults(command=mute)


def add_devices(add: Callable[..., argparse.ArgumentParser]) -> None:
    """`roomscribe devices`"""
    sub = add(
        "devices",
        help="list the microphones",
        description="Lists the microphones; a part of a name goes into capture.device.",
    )
    sub.set_defaults(command=devices)


def run(
    options: argparse.Namespace,
    settings: Settings,
    pipeline: Callable[[Settings], Pipeline] | None = None,
) -> int:
    """`roomscribe run`; `pipeline` opens one for settings, in place of `assembly.build`."""
    from appliance.daemon import Day, ModelInstaller, Pipeline, assembly, service

    def with_recording(chosen: Settings) -> Settings:
        if not options.recording:
            return chosen
        return replace(chosen, capture=replace(chosen.capture, recording=options.recording))

    def read(chosen: Mapping[str, Mapping[str, Any]] | None) -> config.Reading:
        reading = config.read(options.config, chosen)
        return replace(reading, settings=with_recording(reading.settings))

    installer, day = ModelInstaller(), Day()

    def open_pipeline(settings: Settings) -> Pipeline:
        return Pipeline(assembly.build(settings, read=read, installer=installer, day=day))

    try:
        service.run(
            with_recording(settings),
            lambda: read(None).sure(),
            pipeline or open_pipeline,
        )
    except MissingModelError as error:
        error.exit_status = TRY_AGAIN
        raise
    return 0


def mute(options: argparse.Namespace, settings: Settings) -> int:
    """`roomscribe mute`: returns when the microphone is closed.

    Raises StoreError when this user may not, DeviceError when a daemon does not obey.
    """
    from appliance.daemon import mute as switch

    place = config.store_folder(settings.store)
    _may_use(place)
    if not options.position:
        before = switch.is_on(place)
        print(_position(before, switch.is_listening(place)))
        return 0 if before else 1
    on = not switch.is_on(place) if options.position == "toggle" else options.position == "on"
    switch.write(place / switch.FILE_NAME, on)
    deadline_s = time.monotonic() + OBEYED_WITHIN_S
    while (listening := switch.is_listening(place)) and on:
        if time.monotonic() > deadline_s:
            raise DeviceError(
                f"the microphone is still open after {OBEYED_WITHIN_S:g} s; "
                "stop the daemon (`systemctl stop roomscribe`), or pull the microphone's plug"
            )
        time.sleep(0.02)
    print(_position(on, listening))
    return 0


def _position(muted: bool, listening: bool) -> str:
    """How it stands, on one line."""
    if muted:
        return "muted: the microphone is closed"
    return "not muted: the microphone is open" if listening else "not muted"


def _may_use(place: Path) -> None:
    """Raises StoreError when there is no daemon's folder, or it is not for this user."""
    try:
        found = "" if place.is_dir() else "no folder"
        next(place.iterdir(), None)
    except OSError as error:
        found = error.strerror or str(error)
    if found:
        raise StoreError(
            f"{place}: expected the folder where the daemon keeps its log, found: {found}; run "
            "this as the daemon's user or with sudo, with the daemon's --config"
        )


def devices(_options: argparse.Namespace, _settings: Settings) -> int:
    """`roomscribe devices`; 1 when there is no microphone."""
    from appliance.capture import list_microphones, names_to_configure

    found = list_microphones()
    for one, name in zip(found, names_to_configure(found), strict=True):
        mark = "*" if one.default else " "
        print(f"{mark} {name}  ({one.channels} ch, {one.rate_hz:.0f} Hz)")
    if found:
        print("capture.device = a name, or a part of one; empty: the default, marked *")
    if not found:
        print(
            "roomscribe: no microphone found: plug one in, and see that this user is in the "
            "group audio (`arecord -l` shows what the kernel sees)",
            file=sys.stderr,
        )
    return 0 if found else 1
