"""The clocks of other rooms, compared with this one's.

Each message carries the time of its sending on its sender's monotonic clock, which no correction of
the wall clock changes. The difference from its arrival is the clocks' offset plus the message's
delay. The smallest difference of the last messages has the least delay, so times of a delayed
message are right, too. Whether wall clocks differ by a second or an hour does not matter.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from appliance.house.claims import Act, Claim, Message

KEPT = 32
"""Messages of each room whose differences are kept."""
RESTARTED_S = 20.0
"""A message that seems to be delayed by more than this comes from a clock that began again."""


class ClockOffsets:
    """Offsets of the other rooms' monotonic clocks. One thread."""

    def __init__(self) -> None:
        self._differences_s: dict[str, deque[float]] = {}

    def observe(self, node: str, sent_s: float, now_s: float) -> float:
        """Note a message that was sent at `sent_s` by the clock of `node` and arrives `now_s`.

        Return how much to add to times on that clock.
        """
        kept = self._differences_s.setdefault(node, deque(maxlen=KEPT))
        difference_s = now_s - sent_s
        if kept and difference_s - min(kept) > RESTARTED_S:
            kept.clear()
        kept.append(difference_s)
        return min(kept)


def shift(message: Message, offset_s: float) -> Message:
    """Return a message with `offset_s` added to its times."""
    if isinstance(message, Act):
        claim = shift(message.claim, offset_s)
        return replace(message, claim=claim) if isinstance(claim, Claim) else message
    times = {name: getattr(message, name, None) for name in ("start_s", "end_s", "until_s")}
    moved = {name: time_s + offset_s for name, time_s in times.items() if time_s is not None}
    return replace(message, **moved)
