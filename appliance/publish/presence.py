"""Whether Home Assistant is there to hear, as far as it says so. No threads, no clock of its own.

A PUBACK means that the broker has a message, not that Home Assistant has: after a restart of either
it subscribes seconds later than we connect, and whoever else subscribes hides that from us.
"""

from __future__ import annotations

import logging
import math
import random

from appliance.config import HomeAssistantSettings
from appliance.publish import events
from appliance.publish.messages import Message

log = logging.getLogger(__name__)

ANNOUNCE_S = (1.0, 10.0)
"""After its birth message it is told everything again, at a random moment between these: all the
house's devices hear that message at once."""
BIRTH_S = 20.0
"""Its birth message comes within this after the broker's return: it tries to connect every 10 s,
and says so 6 to 9 s later (seen with 2024.12 and 2026.2)."""


class Presence:
    """Follows the birth and will messages. Owned by one thread; times are time.monotonic()'s."""

    def __init__(self, settings: HomeAssistantSettings, longest_s: float = math.inf) -> None:
        """Holds are no longer than `longest_s`, nor than the configuration allows."""
        self.announce_s = math.inf
        """When it is to be told everything again."""
        self.held_until_s = 0.0
        """Until when transcripts wait for it."""
        self._settings = settings
        self._hold_s = min(settings.hold_s, longest_s)
        self._seen = False
        self._away_s: float | None = None
        self._discovery: int | None = None

    def connected(self, now_s: float, discovery: int) -> None:
        """A connection stands, and the announcement has gone out as message `discovery`.

        It lost its connection with ours, perhaps; if it was ever there, it has to say that it is.
        """
        self.announce_s = math.inf
        self._discovery = discovery
        if self._seen:
            # also when its last word was offline: the broker says that for it while it goes down,
            # and the house may be back before us
            self.held_until_s = now_s + min(BIRTH_S, self._hold_s)

    def acknowledged(self, now_s: float, message: int, *, nobody: bool) -> None:
        """A PUBACK came; `nobody` subscribes to the announcement: Home Assistant is not there."""
        if message != self._discovery:
            return
        self._discovery = None
        if not nobody:
            self._seen, self._away_s = True, None
        elif self._seen:
            self._leave(now_s)

    def told(self, now_s: float, message: Message) -> None:
        """It said something on its status topic; what is neither birth nor will is ignored.

        So is what lay there before: nobody knows how old that is.
        """
        if message.retained or message.payload not in (events.ONLINE, events.OFFLINE):
            return
        self._seen = True
        if message.payload == events.OFFLINE:
            self._leave(now_s)
            return
        self._away_s = None
        self.announce_s = now_s + random.uniform(*ANNOUNCE_S)
        if self.held_until_s > now_s:
            self.held_until_s = self.announce_s
        log.info("Home Assistant is there")

    def announced(self) -> None:
        """It was told everything again; transcripts may follow."""
        self.announce_s = math.inf
        self.held_until_s = 0.0

    def holds(self, now_s: float) -> bool:
        """True while transcripts wait for it."""
        return now_s < self.held_until_s

    def due_s(self, now_s: float) -> float:
        """When something is to be done though nobody says anything."""
        held_s = self.held_until_s if self.holds(now_s) else math.inf
        return min(self.announce_s, held_s)

    def _leave(self, now_s: float) -> None:
        """It is away; the wait for it is counted from when that was first known."""
        if self._away_s is None:
            self._away_s = now_s
        self.announce_s = math.inf
        self.held_until_s = max(self.held_until_s, self._away_s + self._hold_s)
