"""What rooms publish about the speech that they hear, and whether two of them heard the same."""

from dataclasses import dataclass

from appliance.house.sketch import agreement

SAME_START_S, SAME_END_S = 0.2, 0.5
"""Two rooms that hear one sentence find its start or its end within this time of each other. In
simulated rooms the median of the differences is 0.03 s. A room that is far away may miss the first
or the last word, and one may cut a sentence in two where another does not."""
SOUND_S, SOUND_LATE_S = 0.05, 0.5
"""Two machines time the same sound as differently as that: a sound card's buffer; a camera's stream
or a machine with too much to do."""
SAME, SURELY_SAME = 1.95, 2.8
"""Agreement of two sketches from which on they are of one sound: if its start or its end agrees and
the times may differ by SOUND_S, and in any case with SOUND_LATE_S."""


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
class Saying:
    """A room's loudspeaker says something, which others may hear through the air."""

    node: str
    text: str
    until_s: float


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
    """2 with the address phrase, 1 without, 0 if nothing may act on the sentence."""
    score: float
    """How well it was heard; higher is better."""
    sketch: bytes = b""
    """When the sound rises; empty if unknown."""
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

    @property
    def node(self) -> str:
        """The room that acts."""
        return self.claim.node

    def counts_for(self, claim: Claim) -> bool:
        """Return False if it does nothing about a sentence on which `claim` would act."""
        return self.claim.grade > 0 or claim.grade == 0


Message = Hearing | Withdrawal | Saying | Claim | Act


def is_same_sentence(one: Claim, other: Claim) -> bool:
    """Return True if two claims are about one sentence: they overlap, and their sound agrees."""
    overlap_s = min(one.end_s, other.end_s) - max(one.start_s, other.start_s)
    if overlap_s <= 0:
        return False
    ends_together = abs(one.end_s - other.end_s) <= SAME_END_S
    starts_together = abs(one.start_s - other.start_s) <= SAME_START_S
    apart_s = other.end_s - one.end_s
    found = agreement(one.sketch, other.sketch, apart_s, SOUND_S)
    if found is None:  # too little sound to compare
        longer_s = max(one.end_s - one.start_s, other.end_s - other.start_s)
        return ends_together and overlap_s > longer_s / 2
    if found >= SAME and (ends_together or starts_together):
        return True
    return (agreement(one.sketch, other.sketch, apart_s, SOUND_LATE_S) or 0.0) >= SURELY_SAME
