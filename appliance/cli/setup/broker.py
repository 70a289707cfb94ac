"""Question 4: the MQTT broker, tried before it is accepted."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance import config
from appliance.cli.setup.answers import Answers, Context
from appliance.cli.terminal import YELLOW
from appliance.config import DEFAULT_PATH, MqttSettings, node_name
from appliance.errors import BrokerError, ConfigError
from appliance.system import shorten

if TYPE_CHECKING:
    from appliance.mqtt import BrokerProbe

MQTT_PORT = 1883
"""Registered at IANA for MQTT without TLS."""
REACH_S = 1.5
"""Longest wait for a broker that may be there."""
LOGIN_TRIES = 3
PASSWORD_FILE = "mqtt-password"
"""Beside the configuration."""
NO_BROKER = "none"


def ask_broker(context: Context, answers: Answers) -> Answers:
    """Ask for the broker until one lets this appliance in, or the old one is kept.

    Raises BrokerError and ConfigError for a wrong option where nobody is asked.
    """
    dialog, given = context.dialog, context.options.broker
    present = address_of(answers.mqtt)
    if given is None and not dialog.interactive:
        dialog.say(present)
        return answers
    address = given if given is not None else first_address(context, answers.mqtt)
    while address:
        try:
            return take_broker(context, answers, address)
        except (BrokerError, ConfigError) as error:
            if not dialog.interactive:
                raise
            dialog.report(error)
        address = dialog.read(
            f"Where is the broker? HOST, HOST:PORT, or none. Press Enter to keep {present}: "
        )
    dialog.say(f"The broker stays as it was: {present}")
    return answers


def first_address(context: Context, mqtt: MqttSettings) -> str:
    """Ask for the broker's address and propose one that answers."""
    found = list(find_brokers(mqtt))
    for address in found:
        context.dialog.say(f"found {address}")
    present = address_of(mqtt)
    keeps = present in found or mqtt.host != MqttSettings().host
    best = present if keeps or not found else found[0]
    return context.dialog.ask("Where is the broker? HOST, HOST:PORT, or none", best)


def address_of(mqtt: MqttSettings) -> str:
    """Return the broker's address as setup shows it."""
    return f"{mqtt.host}:{mqtt.port}" if mqtt.enabled else NO_BROKER


def find_brokers(mqtt: MqttSettings) -> Iterator[str]:
    """Return the brokers that answer: the configured one, Home Assistant's usual name, and this
    machine."""
    addresses = [
        (mqtt.host, mqtt.port),
        ("homeassistant.local", MQTT_PORT),
        ("localhost", MQTT_PORT),
    ]
    for host, port in dict.fromkeys(addresses):
        with suppress(OSError), socket.create_connection((host, port), REACH_S):
            yield f"{host}:{port}"


def take_broker(context: Context, answers: Answers, address: str) -> Answers:
    """Return the answers with the broker at `address`, after it has let this appliance in.

    Raises BrokerError, and ConfigError for a wrong address or file.
    """
    options = context.options
    if address.strip() in ("", NO_BROKER):
        context.dialog.say("Transcripts are not published. They are only in this machine's log.")
        return replace(answers, mqtt=replace(answers.mqtt, enabled=False))
    chosen = replace(answers.mqtt, enabled=True, **parse_address(address))
    if options.username is not None:
        chosen = replace(chosen, username=options.username)
    if options.password_file is not None:
        path = str(Path(options.password_file).expanduser().absolute())
        chosen = replace(chosen, password_file=path)
    return log_in(context, answers, chosen)


def parse_address(address: str) -> dict[str, Any]:
    """Return `host` and `port` of HOST, HOST:PORT or [ADDRESS]:PORT. Raises ConfigError."""
    found = re.fullmatch(r"\[?([^\[\]]+?)\]?(?::(\d{1,9}))?", address.strip())
    host = found[1] if found else ""
    port = int(found[2] or MQTT_PORT) if found else 0
    for name, value in (("mqtt.host", host), ("mqtt.port", port)):
        if mistake := config.explain_value(name, value):
            raise ConfigError(
                f"'{shorten(address)}' is not a broker's address ({mistake}); give HOST or "
                "HOST:PORT, such as 192.168.1.5:1883"
            )
    return {"host": host, "port": port}


def log_in(context: Context, answers: Answers, mqtt: MqttSettings) -> Answers:
    """Return the answers with `mqtt` and the login that the broker accepts.

    Raises BrokerError, and ConfigError for a file that cannot be read.
    """
    from appliance.cli.doctor.daemon import with_credentials
    from appliance.cli.doctor.outcome import split_fix
    from appliance.mqtt import BrokerProbe

    password = ""
    tried = mqtt if context.file != DEFAULT_PATH else with_credentials(mqtt)
    for left in reversed(range(LOGIN_TRIES)):
        try:
            with BrokerProbe(tried, answers.node, password=password or None) as probe:
                context.dialog.say(f"{address_of(mqtt)} accepts the connection.")
                look_around(context, answers, probe)
            return replace(answers, mqtt=mqtt, password=password)
        except BrokerError as error:
            asks = context.dialog.interactive and left
            if error.kind != BrokerError.LOGIN or not asks:
                raise
            context.dialog.report(BrokerError(split_fix(str(error))[0]))
        mqtt, password = ask_login(context, mqtt)
        tried = mqtt
    raise BrokerError(f"the broker {address_of(mqtt)} rejected every login")


def ask_login(context: Context, mqtt: MqttSettings) -> tuple[MqttSettings, str]:
    """Return `mqtt` with another user name, and the password.

    Raises BrokerError if no password is given: then another broker is wanted.
    """
    name = context.dialog.ask("User name at the broker?", mqtt.username)
    password = context.dialog.read_secret(
        "Password (not shown; press Enter to choose another broker): "
    )
    if not password:
        raise BrokerError(f"no password was given for {address_of(mqtt)}")
    file = context.file.absolute().with_name(PASSWORD_FILE)
    return replace(mqtt, username=name, password_file=str(file)), password


def look_around(context: Context, answers: Answers, probe: BrokerProbe) -> None:
    """Say if Home Assistant listens there, and if another appliance has this name."""
    home = context.settings.homeassistant
    if home.enabled:
        if probe.reaches(f"{home.prefix}/device/roomscribe_setup_{os.getpid()}/config"):
            context.dialog.say("Home Assistant uses this broker and will show this room.")
        else:
            context.dialog.say(
                "Home Assistant does not use this broker. If you have Home Assistant, add its MQTT "
                "integration."
            )
    if answers.node != node_name(context.settings):
        probe.subscribe([answers.mqtt.topic(answers.node, "availability")])
        if any(message.payload == b"online" for message in probe.receive(1.0, count=1)):
            context.dialog.say(
                f"Another appliance is already called {answers.node}. Run setup again and choose "
                "another name.",
                YELLOW,
            )
