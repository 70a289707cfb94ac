"""The commands for the house around the appliance: the mute, and what is at the broker."""

from __future__ import annotations

import argparse

from appliance import house_commands

_Names = argparse._SubParsersAction


def add_mute(names: _Names[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    """`roomscribe mute`"""
    sub = names.add_parser(
        "mute",
        parents=[common],
        help="close the microphone, or open it again",
        description="Closes the microphone until it is unmuted, through restarts, too, and "
        "returns when it is closed. Works whether the daemon runs or not. Without a word it "
        "tells how it stands: exit status 0 when muted, 1 when not.",
    )
    sub.add_argument("position", nargs="?", choices=("on", "off", "toggle"))
    sub.set_defaults(command=house_commands.mute)


def add_mqtt(names: _Names[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    """`roomscribe mqtt watch` and `roomscribe mqtt forget`"""
    mqtt = names.add_parser("mqtt", help="see and clear what is at the broker")
    words = mqtt.add_subparsers(metavar="WHAT", required=True)
    watch = words.add_parser(
        "watch",
        parents=[common],
        help="show what is published, as it comes",
        description="Shows every message of this appliance, or of all of them, as it comes, until "
        "Ctrl-C. Uses the [mqtt] section of the configuration.",
    )
    watch.add_argument("--all", action="store_true", help="those of every appliance")
    watch.set_defaults(command=house_commands.watch)
    forget = words.add_parser(
        "forget",
        parents=[common],
        help="clear what the broker keeps of this appliance",
        description="Clears all retained messages of an appliance that is not to come back, or "
        "that got another name: its entities leave Home Assistant. Stop the daemon first.",
    )
    forget.add_argument("--node", default="", help="of this appliance (default: this one)")
    forget.set_defaults(command=house_commands.forget)
