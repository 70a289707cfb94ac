"""What rooms publish about the speech that they hear, and whether two of them heard the same."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.house.sketch import is_same_sound

SAME_END_S = 0.5
"""Two rooms that hear one sentence find its end within this time of each other. In simulated rooms
the median of the difference is 0.03 s."""


@dataclass(frozen=True, slots=True)
class Hearing:
    """A room has begun to hear someone speak."""

    node: str
    utterance: str
    start_s: float


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """What a room heard gave no sentence, or none that it may act on."""

    node: str
    utterance: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A room has the text of a sentence. Times are on the receiver's clock."""

    node: str
    id: str
    """Of the transcript."""
    utterance: str
    start_s: float
    end_s: float
    grade: int
    """2 for a sentence with the address phrase, 1 for another one, 0 for a doubtful one."""
    score: float
    """How well it was heard; higher is better."""
    sketch: bytes = b""
    """The course of the sound's level; empty if unknown."""
    last: bool = True
    """False if the utterance continues."""

    @property
    def order(self) -> tuple[int, float, str]:
        """Sorts the claims of one sentence, the best first. No two nodes have equal ones."""
        return (-self.grade, -self.score, self.node)


@dataclass(frozen=True, slots=True)
class Act:
    """A room acts on its claim."""

    claim: Claim
    over: tuple[str, ...] = ()
    """Ids of the claims of other rooms that it takes for the same sentence."""
    by: str = ""
    """The room that repeats it for one that missed it; empty if the acting room sends it."""

    @property
    def node(self) -> str:
        """The room that acts."""
        return self.claim.node


Message = Hearing | Withdrawal | Claim | Act


def sender(message: Message) -> str:
    """Return the room that sent a message, on whose clock its times are."""
    return message.by or message.node if isinstance(message, Act) else message.node


def is_same_sentence(one: Claim, other: Claim) -> bool:
    """Return True if two claims are about one sentence: they overlap, end together, and their sound
    has the same course."""
    overlap_s = min(one.end_s, other.end_s) - max(one.start_s, other.start_s)
    if overlap_s <= 0 or abs(one.end_s - other.end_s) > SAME_END_S:
        return False
    return is_same_sound(one.sketch, other.sketch, other.end_s - one.end_s)
