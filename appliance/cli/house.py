"""What the commands of `appliance.cli.house` do.

The commands for the house around the appliance: the mute, and what is at the broker.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from appliance.config import Settings, node_name
from appliance.daemon import mute as switch
from appliance.errors import BrokerError, ConfigError, DeviceError, StoreError

OBEYED_WITHIN_S = 3.0
"""A daemon closes the microphone in a fraction of this."""
AGAIN_S = 2.0
"""Between two tries to reach the broker."""
SETTLE_S = 1.0
"""For retained messages to come, and for Home Assistant to let go of the entities."""


def mute(options: argparse.Namespace, settings: Settings) -> int:
    """`roomscribe mute`: returns when the microphone is closed.

    Raises StoreError when this user may not, DeviceError when a daemon does not obey.
    """
    from appliance.store import store_folder

    place = store_folder(settings.store)
    _may_use(place)
    before = switch.is_on(place)
    if not options.position:
        print(_told(before, switch.is_listening(place)))
        return 0 if before else 1
    on = not before if options.position == "toggle" else options.position == "on"
    switch.write(place / switch.FILE_NAME, on)
    deadline_s = time.monotonic() + OBEYED_WITHIN_S
    while (listening := switch.is_listening(place)) and on:
        if time.monotonic() > deadline_s:
            raise DeviceError(
                f"the microphone is still open after {OBEYED_WITHIN_S:g} s; "
                "stop the daemon (`systemctl stop roomscribe`), or pull the microphone's plug"
            )
        time.sleep(0.02)
    print(_told(on, listening))
    return 0


def watch_topics(options: argparse.Namespace, settings: Settings) -> int:
    """`roomscribe mqtt watch`, until Ctrl-C; raises BrokerError when the broker refuses."""
    from appliance.mqtt import REFUSED, Probe

    node = node_name(settings)
    wanted = "roomscribe/+/#" if options.all else f"roomscribe/{node}/#"
    while True:
        with Probe(settings.mqtt, node) as probe:
            if probe.subscribe([wanted])[0] >= REFUSED:
                raise BrokerError(
                    f"the broker refuses to let us read {wanted}; allow it in its access list"
                )
            print(f"watching {wanted} at {settings.mqtt.host}:{settings.mqtt.port}", flush=True)
            while not probe.heard.trouble:
                probe.until(lambda heard=probe.heard: bool(heard.messages), 1.0)  # type: ignore[misc]
                while probe.heard.messages:
                    one = probe.heard.messages.pop(0)
                    at = datetime.now().astimezone()
                    print(line(at, one.topic, bytes(one.payload), one.retain), flush=True)
        print(f"the connection ended ({probe.heard.trouble}); trying again", file=sys.stderr)
        time.sleep(AGAIN_S)


def forget_appliance(options: argparse.Namespace, settings: Settings) -> int:
    """`roomscribe mqtt forget`: 1 when nothing was there.

    Raises BrokerError when the broker refuses, or while the appliance is online.
    """
    from appliance.mqtt import REFUSED, Probe

    node = options.node or node_name(settings)
    if not re.fullmatch("[a-z0-9_]{1,64}", node):
        raise ConfigError(f"--node: expected a name of a-z, 0-9 and _, found {node!r}")
    discovery = f"{settings.homeassistant.prefix}/device/{node}/config"
    own = f"roomscribe/{node}/"
    with Probe(settings.mqtt, node) as probe:
        if max(probe.subscribe([discovery, f"{own}#"])) >= REFUSED:
            raise BrokerError(
                f"the broker refuses to let us read {discovery} and {own}#; see its access list"
            )
        probe.until(lambda: False, SETTLE_S)
        kept = {m.topic: bytes(m.payload) for m in probe.heard.messages if m.retain and m.payload}
        if kept.get(f"{own}availability") == b"online":
            raise BrokerError(
                f"{node} is online and would tell it all again; stop it first "
                "(`systemctl stop roomscribe`)"
            )
        # the entities go before their values do: a live template cannot read an empty payload
        for topic in sorted(kept, key=lambda name: name != discovery):
            if probe.publish(topic, b"", retain=True) >= REFUSED:
                raise BrokerError(
                    f"the broker refuses to let us clear {topic}; see its access list"
                )
            print(f"cleared {printable(topic)}")
            if topic == discovery:
                probe.until(lambda: False, SETTLE_S)
    if not kept:
        print(f"nothing of {node} is kept at the broker", file=sys.stderr)
    return 0 if kept else 1


def line(at: datetime, topic: str, payload: bytes, retained: bool) -> str:
    """One message for people: when, whose, what; nothing in it can harm a terminal."""
    _, node, name = topic.split("/", 2) if topic.count("/") > 1 else ("", topic, "")
    text = payload[:8192].decode(errors="replace")
    if show := _SHOWN.get(name):
        # what is not ours is shown as it is
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
            text = show(json.loads(text))
    kept = " (retained)" if retained else ""
    return printable(f"{at:%H:%M:%S}  {node:12s} {name:12s} {text}{kept}")


def printable(text: str) -> str:
    """`text` without what a terminal would obey."""
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


def _show_transcript(event: dict[str, Any]) -> str:
    flags = "".join(f" [{flag}]" for flag in event["flags"])
    late = " late" if event["late"] else ""
    return f"{event['text']!r}  {event['confidence']:.0%}, {event['latency_ms']} ms{late}{flags}"


def _show_state(state: dict[str, Any]) -> str:
    what = f"{state['status']}, {state['model']} on {state['encoder']}, {state['microphone']}"
    waiting = f", {state['outbox_depth']} in the outbox" if state["outbox_depth"] else ""
    return "; ".join((what + waiting, *state["reasons"]))


_SHOWN: dict[str, Callable[[dict[str, Any]], str]] = {
    "transcript": _show_transcript,
    "last": _show_transcript,
    "state": _show_state,
}


def _told(muted: bool, listening: bool) -> str:
    """How it stands, on one line."""
    if muted:
        return "muted: the microphone is closed"
    return "not muted: the microphone is open" if listening else "not muted"


def _may_use(place: Path) -> None:
    """Raises StoreError when there is no daemon's folder, or it is not for this user."""
    try:
        found = "" if place.is_dir() and (place / switch.FILE_NAME).parent.stat() else "no folder"
        next(place.iterdir(), None)
    except OSError as error:
        found = error.strerror or str(error)
    if found:
        raise StoreError(
            f"{place}: expected the folder where the daemon keeps its log, found: {found}; run "
            "this as the daemon's user or with sudo, with the daemon's --config"
        )


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
    sub.set_defaults(command=mute)


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
    watch.set_defaults(command=watch_topics)
    forget = words.add_parser(
        "forget",
        parents=[common],
        help="clear what the broker keeps of this appliance",
        description="Clears all retained messages of an appliance that is not to come back, or "
        "that got another name: its entities leave Home Assistant. Stop the daemon first.",
    )
    forget.add_argument("--node", default="", help="of this appliance (default: this one)")
    forget.set_defaults(command=forget_appliance)
