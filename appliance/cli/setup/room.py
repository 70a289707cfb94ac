"""Question 1: the room's name."""

from __future__ import annotations

from dataclasses import replace

from appliance.cli.setup.answers import Answers, Context
from appliance.config import slug
from appliance.errors import ConfigError


def ask_room(context: Context, answers: Answers) -> Answers:
    """Ask what the room is called. Raises ConfigError for a wrong --node where nobody is asked."""
    name = context.options.node
    while True:
        if name is None:
            name = context.dialog.ask("What is this room called?", answers.node)
        if slug(name):
            break
        problem = ConfigError(f"{name!r} cannot be a room's name: it needs a letter or a digit")
        if not context.dialog.interactive:
            raise ConfigError(f"--node: {problem}")
        context.dialog.report(problem)
        name = None
    named = with_room(answers, name)
    context.dialog.say(f"Its MQTT topics begin with {named.mqtt.topic(named.node, '')}")
    return named


def with_room(answers: Answers, name: str) -> Answers:
    """Return the answers with the room's name, and with the area in Home Assistant that follows it.

    The area follows unless it is another one than the old name's: then somebody chose it.
    """
    node = slug(name)
    if node == answers.node:
        return answers
    spelled = name.strip() != node
    follows = slug(answers.area) == answers.node if answers.area else spelled
    return replace(answers, node=node, area=name.strip() if follows else answers.area)
