"""Whether Home Assistant is there to hear transcripts, and from when they must be sent again."""

import logging
import math
import random

from appliance.mqtt import events, troubles
from appliance.mqtt.client import ReceivedMessage
from appliance.mqtt.connection import DELAYS, Delays
from appliance.mqtt.outbox import RECENT_S

log = logging.getLogger("roomscribe.mqtt")


class HomeAssistantPresence:
    """Whether Home Assistant is online, as far as its birth and will messages say.

    A PUBACK means that the broker has a message, not that Home Assistant has it. After a restart of
    either one, Home Assistant subscribes seconds later than we connect, and any other subscriber
    hides that from us. When it stops, it stays subscribed for seconds in which it reads nothing.
    Owned by one thread; times are time.monotonic()'s, given by the caller.
    """

    def __init__(self, delays: Delays = DELAYS) -> None:
        """Nothing waits until it was online once."""
        self._delays = delays
        self.announce_s = math.inf
        """When everything is to be published again for it."""
        self.held_until_s = 0.0
        """Until when transcripts wait for it."""
        self._seen = False
        """True once it was online: a home without one is not waited for."""
        self._connected_s = 0.0
        self._unheard_s = self._sure_s = math.inf
        """Since when it may have missed acknowledged transcripts, and from when that is certain."""
        self._offline_s: float | None = None
        """Since when it is offline; None while it is online."""
        self._discovery: int | None = None
        """Number of the announcement whose PUBACK is expected."""

    def on_connected(self, now_s: float, discovery: int) -> None:
        """Hold transcripts after a new connection, over which message `discovery` announced us.

        Home Assistant may have lost its connection, too. If it was ever online, it has to say so.
        """
        self.announce_s = self._sure_s = math.inf
        self._discovery, self._connected_s = discovery, now_s
        if self._seen:
            # even if its last message was `offline`: the broker publishes that on its behalf while
            # it stops, and Home Assistant may be back before us
            self.held_until_s = now_s + self._delays.birth_s

    def on_puback(self, now_s: float, message: int, *, subscribed: bool) -> None:
        """Use the answer to the announcement: without a subscriber, Home Assistant is offline.

        With one, only our connection was broken, or it is subscribing just now.
        """
        if message != self._discovery:
            return
        self._discovery = None
        if subscribed:
            self._seen, self._offline_s = True, None
            soon_s = self._connected_s + self._delays.subscribe_s
            self.held_until_s = min(self.held_until_s, soon_s)
        elif self._seen:
            self._mark_offline(now_s)

    def on_status(self, now_s: float, message: ReceivedMessage) -> None:
        """Use a message on its status topic, if that is a birth or will message.

        Retained messages are ignored: their age is unknown.
        """
        if message.retained or message.payload not in (events.ONLINE, events.OFFLINE):
            return
        seen, was_online = self._seen, self._offline_s is None
        self._seen = True
        if message.payload == events.OFFLINE:
            self._mark_offline(now_s)
            if was_online:
                self._unheard_s = now_s - RECENT_S
                self._sure_s = now_s + self._delays.leave_s
            return
        if seen and was_online:
            # it starts without having said that it stops: after the broker's restart another
            # client, which subscribes to everything, may have answered in its place
            self._unheard_s, self._sure_s = max(now_s - RECENT_S, self._connected_s), now_s
        elif not seen:
            # it or its broker may have restarted together with this process
            self._unheard_s, self._sure_s = now_s - RECENT_S, now_s
        self._offline_s = None
        self.announce_s = now_s + random.SystemRandom().uniform(*self._delays.announce_s)
        if self.held_until_s > now_s:
            self.held_until_s = self.announce_s
        log.info("Home Assistant is online")

    def pop_unheard_s(self, now_s: float) -> float | None:
        """Return once since when it may have missed acknowledged transcripts; None otherwise."""
        if now_s < self._sure_s:
            return None
        self._sure_s = math.inf
        return self._unheard_s

    def on_announced(self) -> None:
        """Stop holding: everything was published again for it."""
        self.announce_s = math.inf
        self.held_until_s = 0.0

    def is_holding(self, now_s: float) -> bool:
        """Return True while transcripts wait for it."""
        return now_s < self.held_until_s

    @property
    def reason(self) -> str:
        """Why transcripts wait."""
        offline = self._offline_s is not None
        return troubles.HOME_ASSISTANT_OFFLINE if offline else troubles.HOME_ASSISTANT_RETURNS

    def due_s(self, now_s: float) -> float:
        """Return when something is due even if nothing arrives."""
        held_s = self.held_until_s if self.is_holding(now_s) else math.inf
        return min(self.announce_s, held_s, self._sure_s)

    def _mark_offline(self, now_s: float) -> None:
        """Hold transcripts from when it was first known to be offline."""
        if self._offline_s is None:
            self._offline_s = now_s
        self.announce_s = math.inf
        self.held_until_s = max(self.held_until_s, self._offline_s + self._delays.hold_s)
