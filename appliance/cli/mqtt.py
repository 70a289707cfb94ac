"""`roomscribe mqtt`: watch this appliance's messages, and clear its retained ones."""

import argparse
import re
import sys
import time
from datetime import datetime

from appliance.cli.commands import Commands
from appliance.config import Settings, node_name, slug
from appliance.errors import BrokerError, ConfigError
from appliance.system import shorten

AGAIN_S = 2.0
"""Seconds between two attempts to reach the broker."""
SETTLE_S = 1.0
"""Seconds to wait for retained messages, and for Home Assistant to remove the entities."""
LINE = 8192
"""Most characters of a message that are shown."""


def add_mqtt(commands: Commands) -> None:
    """Add `roomscribe mqtt watch` and `roomscribe mqtt forget` to the command line."""
    mqtt = commands.group("mqtt", help="watch MQTT messages, clear retained ones")
    mqtt.add(
        "watch",
        watch_topics,
        help="print messages as they are published",
        description="Prints topic and payload of every message of all appliances as it is "
        "published, until Ctrl-C. Uses the [mqtt] section of the configuration.",
    )
    forget = mqtt.add(
        "forget",
        forget_appliance,
        help="clear an appliance's retained messages",
        description="Clears all retained messages of an appliance that you no longer use, and so "
        "removes its entities from Home Assistant. Stop its daemon first. If you rename an "
        "appliance, give its old name.",
    )
    forget.add_argument("--node", default="", help="name of the appliance (default: this one)")


def watch_topics(options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe mqtt watch` until Ctrl-C. Raises BrokerError if the broker refuses."""
    from appliance.mqtt import BrokerProbe

    settings = with_password(options, settings)
    topics = settings.mqtt.topic("+", "#")
    while True:
        with BrokerProbe(settings.mqtt, node_name(settings)) as probe:
            if probe.subscribe([topics]):
                raise BrokerError(
                    f"the broker does not allow reading {topics}; allow it in its access list"
                )
            print(f"watching {topics} at {settings.mqtt.host}:{settings.mqtt.port}", flush=True)
            while not probe.ended:
                for message in probe.receive(1.0, count=1):
                    text = f"{message.topic} {message.payload.decode(errors='replace')}"
                    print(f"{datetime.now():%H:%M:%S} {shorten(text, LINE)}", flush=True)
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
            print(f"cleared {shorten(topic, LINE)}")
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
