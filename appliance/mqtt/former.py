"""Clears what the broker retains under former names of this appliance.

The names that it had at each broker are saved in a file beside the log. So it does not matter how
the name changed (setup, the page, an editor, another host name), nor whether the broker was online
then. A former name is left alone while another appliance is online with it.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from appliance.mqtt import events
from appliance.mqtt.client import OutgoingMessage, ReceivedMessage
from appliance.mqtt.home_assistant import discovery_topic
from appliance.system import write_whole

log = logging.getLogger("roomscribe.mqtt")

ANNOUNCED_FILE = "announced.json"
RETAINED = (events.STATE, events.MUTE, events.MICROPHONE, events.LAST, events.AVAILABILITY)
"""The node's topics that are published retained."""
STEP_S = 1.0
"""Wait for the broker to tell who is online, and then for Home Assistant to remove the entities,
because their templates cannot read an empty payload."""
MOST = 50
"""Most names in the file; the oldest are dropped."""


class Name(NamedTuple):
    """A name under which this appliance announced itself."""

    broker: str
    """host:port"""
    node: str
    prefix: str
    """Home Assistant's discovery prefix."""


class Broker(Protocol):
    """The methods of BrokerConnection that are used here."""

    def subscribe_retained(self, topic: str) -> None:
        """Listen on a topic, with what is retained there. Raises BrokerError."""

    def send(self, message: OutgoingMessage) -> int:
        """Send a message and return its number. Raises BrokerError."""


class FormerNames:
    """Clears former names. One thread's; times are time.monotonic()'s, given by the caller."""

    def __init__(self, file: Path | None, present: Name) -> None:
        """Save names in `file`; without one, there are no former names."""
        self._file, self._present = file, present
        self._former: list[Name] = []
        self._online: set[str] = set()
        self._steps: list[tuple[float, Callable[[Broker], None]]] = []

    def connected(self, now_s: float, broker: Broker) -> None:
        """After connecting, save the name and begin to clear former ones.

        Raises BrokerError.
        """
        known = _read(self._file)
        self._former = [
            one for one in known if one.broker == self._present.broker and one != self._present
        ]
        self._online.clear()
        self._steps.clear()
        if self._present not in known:
            self._write([*known, self._present])
        for topic in map(_availability, self._renamed()):
            broker.subscribe_retained(topic)
        if self._former:
            actions = (self._clear_entities, self._clear_topics, self._forget)
            self._steps = [(now_s + STEP_S * n, each) for n, each in enumerate(actions, 1)]

    def lost(self) -> None:
        """Stop; the next connection starts over."""
        self._steps.clear()

    def take(self, message: ReceivedMessage) -> bool:
        """Return True if the message is the availability of a former name, which is recorded."""
        for one in self._renamed():
            if message.topic == _availability(one):
                if message.payload == events.ONLINE:
                    self._online.add(one.node)
                return True
        return False

    def poll(self, now_s: float, broker: Broker) -> None:
        """Do what is due. Raises BrokerError."""
        while self._steps and now_s >= self.due_s:
            _, action = self._steps.pop(0)
            action(broker)

    @property
    def due_s(self) -> float:
        """When `poll` has something to do, or infinity."""
        return self._steps[0][0] if self._steps else math.inf

    def _renamed(self) -> Iterable[Name]:
        return [one for one in self._former if one.node != self._present.node]

    def _vacant(self) -> Iterable[Name]:
        return [one for one in self._former if one.node not in self._online]

    def _clear_entities(self, broker: Broker) -> None:
        for one in self._vacant():
            broker.send(_empty(discovery_topic(one.prefix, one.node)))

    def _clear_topics(self, broker: Broker) -> None:
        for one in self._vacant():
            if one.node != self._present.node:
                for name in RETAINED:
                    broker.send(_empty(events.topic(one.node, name)))

    def _forget(self, _broker: Broker) -> None:
        """The connection still stands, so the broker has taken the messages: QoS 0, in order."""
        for one in self._former:
            if one.node in self._online:
                log.info("another appliance is called %s now; its messages stay", one.node)
            elif one.node != self._present.node:
                log.info("cleared what the broker retained under the old name %s", one.node)
        self._write([one for one in _read(self._file) if one not in self._former])
        self._former = []

    def _write(self, names: list[Name]) -> None:
        if self._file:
            try:
                write_whole(self._file, json.dumps(names[-MOST:]) + "\n", 0o600)
            except OSError as error:
                log.warning("%s: cannot be written: %s", self._file, error.strerror)


def _availability(name: Name) -> str:
    return events.topic(name.node, events.AVAILABILITY)


def _empty(topic: str) -> OutgoingMessage:
    return OutgoingMessage(topic, b"", qos=0, retain=True)


def _read(file: Path | None) -> list[Name]:
    """Return the names in the file; none from one that is missing or damaged."""
    if file is None:
        return []
    with suppress(OSError, ValueError, TypeError, RecursionError):
        names = [Name(*one) for one in json.loads(file.read_text(encoding="utf-8"))]
        if all(isinstance(part, str) for name in names for part in name):
            return names
    return []
