"""`roomscribe mqtt`: watch this appliance's messages, and clear its retained ones."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import re
import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from appliance.cli.terminal import percent
from appliance.config import Settings, node_name, slug
from appliance.control import SOCKET_NAME, ControlClient
from appliance.errors import BrokerError, ConfigError, DaemonError

AGAIN_S = 2.0
"""Seconds between two attempts to reach the broker."""
SETTLE_S = 1.0
"""Seconds to wait for retained messages, and for Home Assistant to remove the entities."""


def add_mqtt(
    names: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    """Add `roomscribe mqtt watch` and `roomscribe mqtt forget` to the command line."""
    mqtt = names.add_parser("mqtt", help="watch MQTT messages, clear retained ones")
    words = mqtt.add_subparsers(metavar="WHAT", required=True)
    add = functools.partial(words.add_parser, parents=[common])
    watch = add(
        "watch",
        help="print messages as they are published",
        description="Prints every message of this appliance as it is published, until Ctrl-C. "
        "Uses the [mqtt] section of the configuration.",
    )
    watch.add_argument("--all", action="store_true", help="messages of all appliances")
    watch.set_defaults(command=watch_topics)
    forget = add(
        "forget",
        help="clear an appliance's retained messages",
        description="Clears all retained messages of an appliance that you no longer use, and so "
        "removes its entities from Home Assistant. Stop its daemon first. If you rename an "
        "appliance, give its old name.",
    )
    forget.add_argument("--node", default="", help="name of the appliance (default: this one)")
    forget.set_defaults(command=forget_appliance)


def watch_topics(options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe mqtt watch` until Ctrl-C. Raises BrokerError if the broker refuses."""
    from appliance.mqtt import BrokerProbe

    settings = with_password(options, settings)
    node = _present_node(settings)
    prefix = f"{settings.mqtt.prefix}/"
    topics = settings.mqtt.topic("+" if options.all else node, "#")
    while True:
        with BrokerProbe(settings.mqtt, node) as probe:
            if probe.subscribe([topics]):
                raise BrokerError(
                    f"the broker does not allow reading {topics}; allow it in its access list"
                )
            print(f"watching {topics} at {settings.mqtt.host}:{settings.mqtt.port}", flush=True)
            while not probe.ended:
                for message in probe.receive(1.0, count=1):
                    now = datetime.now().astimezone()
                    topic = message.topic.removeprefix(prefix)
                    print(line(now, topic, message.payload, message.retained), flush=True)
        print(f"connection lost ({probe.ended}); reconnecting", file=sys.stderr)
        time.sleep(AGAIN_S)


def forget_appliance(options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe mqtt forget`; return 1 if there was nothing to clear.

    Raises BrokerError if the broker refuses, or the appliance is online.
    """
    from appliance.mqtt import BrokerProbe

    settings = with_password(options, settings)
    node = options.node or node_name(settings)
    if not re.fullmatch("[a-z0-9_]{1,64}", node):
        hint = f"; did you mean {slug(node)}?" if slug(node) else ""
        raise ConfigError(f"--node: expected a name of a-z, 0-9 and _, found {node!r}{hint}")
    discovery = f"{settings.homeassistant.prefix}/device/{node}/config"
    own = settings.mqtt.topic(node, "")
    with BrokerProbe(settings.mqtt, node) as probe:
        if probe.subscribe([discovery, f"{own}#"]):
            raise BrokerError(
                f"the broker does not allow reading {discovery} and {own}#; check its access list"
            )
        found = probe.receive(SETTLE_S)
        kept = {
            message.topic: message.payload
            for message in found
            if message.retained and message.payload
        }
        if kept.get(f"{own}availability") == b"online":
            raise BrokerError(
                f"{node} is online and would publish them again; stop it first "
                "(`sudo systemctl stop roomscribe`)"
            )
        # remove the entities before their values: their templates cannot read an empty payload
        for topic in sorted(kept, key=lambda name: name != discovery):
            if probe.publish(topic, b"", retain=True):
                raise BrokerError(
                    f"the broker does not allow clearing {topic}; check its access list"
                )
            print(f"cleared {printable(topic)}")
            if topic == discovery:
                time.sleep(SETTLE_S)
    if not kept:
        print(f"the broker has no retained messages of {node}", file=sys.stderr)
    return 0 if kept else 1


def with_password(options: argparse.Namespace, settings: Settings) -> Settings:
    """Return the settings with the daemon's password. Raises BrokerError if it is unreadable."""
    from appliance.cli.doctor.daemon import beside_daemon, is_hidden
    from appliance.mqtt import PASSWORD_CREDENTIAL

    daemon, settings = beside_daemon(options.config, settings)
    mqtt = settings.mqtt
    if mqtt.username and is_hidden(mqtt.password_file, PASSWORD_CREDENTIAL, daemon):
        raise BrokerError("this user cannot read the broker's password; run this with sudo")
    return settings


def _present_node(settings: Settings) -> str:
    """Return the running daemon's name; this user may not be able to read where it is set."""
    from appliance.store import runtime_folders

    with (
        contextlib.suppress(DaemonError),
        ControlClient([folder / SOCKET_NAME for folder in runtime_folders(settings)]) as daemon,
    ):
        return str(daemon.call("state").get("node", "")) or node_name(settings)
    return node_name(settings)


def line(time_of_day: datetime, topic: str, payload: bytes, retained: bool) -> str:
    """Return a message as one line that is safe for a terminal: time, appliance, topic, content.

    `topic` is without the prefix: kitchen/state.
    """
    node, _, name = topic.partition("/")
    text = payload[:8192].decode(errors="replace")
    if show := _SHOWN.get(name):
        # messages of another form are shown unchanged
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
            text = show(json.loads(text))
    kept = " (retained)" if retained else ""
    return printable(f"{time_of_day:%H:%M:%S}  {node:12s} {name:12s} {text}{kept}")


def printable(text: str) -> str:
    """Return `text` without control characters."""
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


def _show_transcript(event: dict[str, Any]) -> str:
    flags = "".join(f" [{flag}]" for flag in event["flags"])
    late = ", late" if event["late"] else ""
    sure = "confidence unknown" if event["confidence"] is None else percent(event["confidence"])
    return f"{event['text']!r}  {sure}, {event['latency_ms']} ms{late}{flags}"


def _show_state(state: dict[str, Any]) -> str:
    what = f"{state['status']}, {state['model_title']} on {state['encoder']}, {state['microphone']}"
    waiting = f", {state['outbox_depth']} unpublished" if state["outbox_depth"] else ""
    return "; ".join((what + waiting, *state["reasons"]))


_SHOWN: dict[str, Callable[[dict[str, Any]], str]] = {
    "transcript": _show_transcript,
    "last": _show_transcript,
    "act": _show_transcript,
    "state": _show_state,
}
