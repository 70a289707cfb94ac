"""What a room knows of the others."""

from __future__ import annotations

import math
from collections.abc import Collection

from appliance.house.claims import Act, Claim, is_same_sentence

OPEN_S = 30.0
"""A room that hears speech for longer than this without any claim is not waited for."""
CLOSING_S = 2.0
"""A broker that stops closes one connection after the other, and tells rooms that are still
connected that the others are offline. That counts for nothing if our connection ends so soon."""
CLOSED_S = 0.2
"""A broker that stops has closed all connections within this time."""


class OtherRooms:
    """What this room knows of the others: who is online, what they hear, claim and act on."""

    def __init__(self, nodes: Collection[str]) -> None:
        """`nodes` may be online."""
        self.since_s: dict[str, float] = dict.fromkeys(nodes, -math.inf)
        """Since when each room is online; -inf for one that may be."""
        self._left_s: dict[str, float] = {}
        """When rooms went offline."""
        self.hearers: dict[tuple[str, str], float] = {}
        """When rooms began to hear what they have not claimed yet."""
        self._claims: dict[str, tuple[Claim, float]] = {}
        """Claims and when they came."""
        self.acts: list[tuple[Act, float]] = []
        """Acts, with the claim as it came first, and when they came."""

    def reconnect(self, now_s: float) -> None:
        """Forget who is online and what was missed: our connection begins or ends."""
        self.hearers.clear()
        closed = [node for node, left_s in self._left_s.items() if now_s - left_s < CLOSING_S]
        self.since_s = dict.fromkeys([*self.since_s, *closed], -math.inf)
        self._left_s.clear()

    def join(self, node: str, now_s: float) -> None:
        """Note that a room is online."""
        self.since_s[node] = now_s
        self._left_s.pop(node, None)

    def drop_unconfirmed(self) -> None:
        """Take rooms that have not said that they are online for offline."""
        self.since_s = {node: since_s for node, since_s in self.since_s.items() if since_s > -1e9}

    def leave(self, node: str, now_s: float) -> None:
        """Note that a room is offline."""
        if self.since_s.pop(node, None) is not None:
            self._left_s[node] = now_s
        for key in [key for key in self.hearers if key[0] == node]:
            del self.hearers[key]

    def add_claim(self, claim: Claim, now_s: float) -> Claim:
        """Note a claim, and return it as it came first: an act after a claim has no sketch."""
        if claim.last:
            self.hearers.pop((claim.node, claim.utterance), None)
        return self._claims.setdefault(claim.id, (claim, now_s))[0]

    def group(self, claim: Claim) -> list[tuple[Claim, float]]:
        """Return the claims of the same sentence by rooms that are online, and when they came."""
        return [
            (other, came_s)
            for other, came_s in self._claims.values()
            if other.node in self.since_s and is_same_sentence(other, claim)
        ]

    def hear(self, claim: Claim) -> bool:
        """Return True while another room hears speech that may be the same."""
        return any(
            start_s < claim.end_s and claim.end_s - start_s < OPEN_S
            for start_s in self.hearers.values()
        )

    def act_on(self, claim: Claim) -> str:
        """Return the room that acts on the sentence; empty without one."""
        acts = (act for act, _ in self.acts if act.counts_for(claim) and self.is_about(act, claim))
        return next((act.node for act in acts), "")

    def is_about(self, act: Act, claim: Claim) -> bool:
        """Return True if a room's Act is about the sentence that we claim."""
        ids = {claim.id, *(other.id for other, _ in self.group(claim))}
        return not ids.isdisjoint(act.over) or is_same_sentence(act.claim, claim)

    @property
    def closing_until_s(self) -> float:
        """Until when the broker may be closing all connections, ours next: rooms went offline just
        before."""
        return max(self._left_s.values(), default=-math.inf) + CLOSED_S

    def forget(self, before_s: float) -> None:
        """Forget what is older than that."""
        self.acts = [one for one in self.acts if one[1] > before_s]
        self._claims = {key: one for key, one in self._claims.items() if one[1] > before_s}
        self.hearers = {key: at_s for key, at_s in self.hearers.items() if at_s > before_s}
