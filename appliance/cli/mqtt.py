"""`roomscribe mqtt`: watch what is published, and clear what the broker keeps."""

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
from appliance.control import SOCKET_NAME, Client
from appliance.errors import BrokerError, ConfigError, DaemonError

AGAIN_S = 2.0
"""Between two tries to reach the broker."""
SETTLE_S = 1.0
"""For retained messages to come, and for Home Assistant to let go of the entities."""


def add_mqtt(
    names: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    """`roomscribe mqtt watch` and `roomscribe mqtt forget`"""
    mqtt = names.add_parser("mqtt", help="see and clear what is at the broker")
    words = mqtt.add_subparsers(metavar="WHAT", required=True)
    add = functools.partial(words.add_parser, parents=[common])
    watch = add(
        "watch",
        help="show what is published, as it comes",
        description="Shows every message of this appliance, or of all of them, as it comes, until "
        "Ctrl-C. Uses the [mqtt] section of the configuration.",
    )
    watch.add_argument("--all", action="store_true", help="those of every appliance")
    watch.set_defaults(command=watch_topics)
    forget = add(
        "forget",
        help="clear what the broker keeps of this appliance",
        description="Clears all retained messages of an appliance that is not to come back, or "
        "whose old name another one has taken: its entities leave Home Assistant. Stop the daemon "
        "first. After a new name the daemon clears the old one's by itself.",
    )
    forget.add_argument("--node", default="", help="of this appliance (default: this one)")
    forget.set_defaults(command=forget_appliance)


def watch_topics(options: argparse.Namespace, settings: Settings) -> int:
    """`roomscribe mqtt watch`, until Ctrl-C; raises BrokerError when the broker refuses."""
    from appliance.mqtt import BrokerProbe

    settings = _with_password(options, settings)
    node = _present_node(settings)
    wanted = "roomscribe/+/#" if options.all else f"roomscribe/{node}/#"
    while True:
        with BrokerProbe(settings.mqtt, node) as probe:
            if probe.subscribe([wanted]):
                raise BrokerError(
                    f"the broker refuses to let us read {wanted}; allow it in its access list"
                )
            print(f"watching {wanted} at {settings.mqtt.host}:{settings.mqtt.port}", flush=True)
            while not probe.ended:
                for one in probe.receive(1.0, count=1):
                    at = datetime.now().astimezone()
                    print(line(at, one.topic, one.payload, one.retained), flush=True)
        print(f"the connection ended ({probe.ended}); trying again", file=sys.stderr)
        time.sleep(AGAIN_S)


def forget_appliance(options: argparse.Namespace, settings: Settings) -> int:
    """`roomscribe mqtt forget`: 1 when nothing was there.

    Raises BrokerError when the broker refuses, or while the appliance is online.
    """
    from appliance.mqtt import BrokerProbe

    settings = _with_password(options, settings)
    node = options.node or node_name(settings)
    if not re.fullmatch("[a-z0-9_]{1,64}", node):
        hint = f"; did you mean {slug(node)}?" if slug(node) else ""
        raise ConfigError(f"--node: expected a name of a-z, 0-9 and _, found {node!r}{hint}")
    discovery = f"{settings.homeassistant.prefix}/device/{node}/config"
    own = f"roomscribe/{node}/"
    with BrokerProbe(settings.mqtt, node) as probe:
        if probe.subscribe([discovery, f"{own}#"]):
            raise BrokerError(
                f"the broker refuses to let us read {discovery} and {own}#; see its access list"
            )
        found = probe.receive(SETTLE_S)
        kept = {one.topic: one.payload for one in found if one.retained and one.payload}
        if kept.get(f"{own}availability") == b"online":
            raise BrokerError(
                f"{node} is online and would tell it all again; stop it first "
                "(`systemctl stop roomscribe`)"
            )
        # the entities go before their values do: a live template cannot read an empty payload
        for topic in sorted(kept, key=lambda name: name != discovery):
            if probe.publish(topic, b"", retain=True):
                raise BrokerError(
                    f"the broker refuses to let us clear {topic}; see its access list"
                )
            print(f"cleared {printable(topic)}")
            if topic == discovery:
                time.sleep(SETTLE_S)
    if not kept:
        print(f"nothing of {node} is kept at the broker", file=sys.stderr)
    return 0 if kept else 1


def _with_password(options: argparse.Namespace, settings: Settings) -> Settings:
    """The settings with the daemon's password. Raises BrokerError where this user may not."""
    from appliance.cli.doctor.daemon import beside_daemon, password_is_hidden

    daemon, settings = beside_daemon(options.config, settings)
    if password_is_hidden(settings.mqtt, daemon):
        raise BrokerError("the broker's password is not for this user; run this with sudo")
    return settings


def _present_node(settings: Settings) -> str:
    """Return the name that the daemon has now, which may be set where this user cannot read."""
    from appliance.store import runtime_folders

    with (
        contextlib.suppress(DaemonError),
        Client([folder / SOCKET_NAME for folder in runtime_folders(settings)]) as daemon,
    ):
        return str(daemon.ask("state").get("node", "")) or node_name(settings)
    return node_name(settings)


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
    late = ", late" if event["late"] else ""
    sure = percent(event["confidence"])
    return f"{event['text']!r}  {sure}, {event['latency_ms']} ms{late}{flags}"


def _show_state(state: dict[str, Any]) -> str:
    what = f"{state['status']}, {state['model']} on {state['encoder']}, {state['microphone']}"
    waiting = f", {state['outbox_depth']} in the outbox" if state["outbox_depth"] else ""
    return "; ".join((what + waiting, *state["reasons"]))


_SHOWN: dict[str, Callable[[dict[str, Any]], str]] = {
    "transcript": _show_transcript,
    "last": _show_transcript,
    "state": _show_state,
}
