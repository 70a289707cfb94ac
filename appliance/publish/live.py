"""What subscribers are told live, or not at all: state, microphone, voice, discarded speech."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from appliance.publish import events
from appliance.publish.events import ApplianceState
from appliance.records import Discarded

STATE_S = 60.0
"""The state is told this often though nothing changed."""


class Publish(Protocol):
    """Sends a payload on one of the node's topics."""

    def __call__(self, name: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> object:
        """Returns nothing of interest here. Raises PublishError."""


class LiveTopics:
    """Remembers what was told, so that only news is. `speech` and `discarded`: any thread."""

    def __init__(
        self, state_source: Callable[[], ApplianceState], outbox_depth: Callable[[], int]
    ) -> None:
        """Both are called by the thread of `tell`."""
        self._state_source = state_source
        self._outbox_depth = outbox_depth
        self._passing: deque[tuple[str, bytes]] = deque(maxlen=100)
        self._speech = events.OFF
        self._told: tuple[object, ...] = ()
        self._told_s = 0.0
        self._told_microphone: bool | None = None

    def speech(self, on: bool) -> None:
        """Voice begins or ends."""
        self._speech = events.ON if on else events.OFF
        self._passing.append((events.SPEECH, self._speech))

    def discarded(self, speech: Discarded) -> None:
        """Speech gave no transcript."""
        payload = events.encode(events.discarded(speech))
        self._passing.append((events.DISCARDED, payload))

    def begin_anew(self) -> None:
        """A new connection: what was missed meanwhile is of no use, what holds is told again."""
        self._passing.clear()
        self._passing.append((events.SPEECH, self._speech))
        self._told, self._told_microphone = (), None

    def tell(self, now_s: float, publish: Publish) -> None:
        """Publishes what is new; the state once a minute as well. Raises PublishError."""
        while self._passing:
            name, payload = self._passing.popleft()
            publish(name, payload, qos=0)
        state = self._state_source()
        if state.microphone_online != self._told_microphone:
            online = events.ONLINE if state.microphone_online else events.OFFLINE
            publish(events.MICROPHONE, online, retain=True)
            self._told_microphone = state.microphone_online
        if state.news() != self._told or now_s >= self.due_s:
            payload = events.encode(events.state(state, self._outbox_depth()))
            publish(events.STATE, payload, retain=True)
            self._told, self._told_s = state.news(), now_s

    @property
    def due_s(self) -> float:
        """When the state is to be told again, on time.monotonic()'s clock."""
        return self._told_s + STATE_S
