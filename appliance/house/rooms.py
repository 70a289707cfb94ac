"""What a room knows of the others."""

from __future__ import annotations

from appliance.house.claims import Act, Claim, is_same_sentence

OPEN_S = 30.0
"""A room that hears speech for longer than this without any claim is not waited for."""


class OtherRooms:
    """What this room knows of the others: who is online, what they hear, claim and act on."""

    def __init__(self) -> None:
        self.nodes = set[str]()
        """Rooms that are online, or were when our connection ended."""
        self.hearers: dict[tuple[str, str], float] = {}
        """When rooms began to hear what they have not claimed yet."""
        self._claims: dict[str, tuple[Claim, float]] = {}
        """Claims and when they came."""
        self.acts: list[tuple[Act, float]] = []
        """Acts, with the claim as it came first, and when they came."""

    def leave(self, node: str) -> None:
        """Note that a room is offline."""
        self.nodes.discard(node)
        self.hearers = {key: at_s for key, at_s in self.hearers.items() if key[0] != node}

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
            if other.node in self.nodes and is_same_sentence(other, claim)
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

    def forget(self, before_s: float) -> None:
        """Forget what is older than that."""
        self.acts = [one for one in self.acts if one[1] > before_s]
        self._claims = {key: one for key, one in self._claims.items() if one[1] > before_s}
        self.hearers = {key: at_s for key, at_s in self.hearers.items() if at_s > before_s}
