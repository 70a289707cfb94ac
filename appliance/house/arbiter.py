"""Decides which of several rooms acts on a sentence that all of them heard.

A pure object: it has no clock, no thread and no connection. Its owner passes in the time, what this
room hears, and every message of the topic, this room's own messages included. The owner publishes
`outgoing` in order and obeys `decisions`.

The broker passes the messages of one topic to all rooms in the same order. That order decides: of
several `Act` messages about one sentence, the first one counts, and a room acts only when its own
`Act` has come back from the broker before any other. So two rooms that can communicate never both
act. A room that leaves the sentence to a better one takes over if it does not see that room's `Act`
in time. So no sentence is lost because each room thought that the other was better.

An `Act` on a claim of grade 0 does nothing, because nothing may act on such a text. It waits long
for other rooms, and a claim of a higher grade acts in spite of it.

A room that the broker does not answer acts on its own.
"""

import enum
import math
from collections import deque
from dataclasses import dataclass, field, replace

from appliance.house.claims import Act, Claim, Hearing, Message, Withdrawal, is_same_sentence

DECIDE_S, SLOWER_S = 0.1, 0.5
"""Time to wait for the claims of rooms that hear the same speech, from the first claim on: while it
is not known which hear it, and of those that do. Of 65 sentences, the best claim came 0.17 s
(median) and 0.45 s (90 %) after the first."""
HOPE_S = 3.0
"""The same while nothing may act on any of the claims."""
TAKE_OVER_S = 0.13
"""A room that left the sentence to a better one acts after this time without that room's Act."""
ANSWER_S = 1.0
"""If the broker has not returned one of our messages within this time, we cannot communicate."""
SETTLED_S = 15.0
"""A connection this old has shown every room's Hearing of the present sentence."""
REMEMBER_S = 60.0
"""Claims and decisions are kept for this time."""
OPEN_S = 30.0
"""A room that hears speech for longer than this without any claim is not waited for."""


class Separation(enum.Enum):
    """Why a room decided without the others."""

    NONE = ""
    OFFLINE = "no connection to the broker"
    UNANSWERED = "the broker does not answer"


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with a sentence, or (`first` False) who else turned out to have heard it."""

    id: str
    acts: bool
    node: str
    """The room that acts."""
    others: tuple[str, ...]
    """Other rooms that heard the sentence, if this one acts."""
    separation: Separation
    waited_s: float
    """Since the text was ready."""
    first: bool = True


class SentenceState(enum.Enum):
    """State of a sentence that this room has claimed."""

    WAITING = "waits for the claims or the Act of other rooms"
    ACTING = "our Act is on its way to the broker and back"
    ACTED = "we act on it"
    DEFERRED = "another room acts on it"


@dataclass(slots=True)
class ClaimedSentence:
    """A sentence that this room has claimed."""

    claim: Claim
    ready_s: float
    state: SentenceState = SentenceState.WAITING
    separation: Separation = Separation.NONE
    others: set[str] = field(default_factory=set)

    @property
    def is_open(self) -> bool:
        """True until it is decided who acts on it."""
        return self.state in (SentenceState.WAITING, SentenceState.ACTING)


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


class Arbiter:
    """Exchanges messages with the other rooms and decides. Owned by one thread.

    Times are seconds on one monotonic clock of this machine.
    """

    def __init__(self, node: str) -> None:
        self.node = node
        self.outgoing: deque[Message] = deque()
        self.decisions: deque[Decision] = deque()
        self.others = OtherRooms()
        self._connected_s = math.inf
        self._sentences: dict[str, ClaimedSentence] = {}
        self._unanswered: deque[tuple[Message, float]] = deque()
        """Our messages that the broker has not returned, the oldest first."""

    # what happens

    def set_connected(self, connected: bool, now_s: float) -> None:
        """The connection to the broker begins or ends."""
        self._unanswered.clear()
        self.others.hearers.clear()
        self.outgoing.clear()
        self._connected_s = now_s if connected else math.inf
        if connected:  # those that are online follow
            self.others.nodes.clear()
        self.poll(now_s)

    def set_online(self, node: str, online: bool, now_s: float) -> None:
        """Another room appears, or its connection ends."""
        if node == self.node:
            return
        if online:
            self.others.nodes.add(node)
        else:
            self.others.leave(node)
        self.poll(now_s)

    def hear(self, utterance: str, start_s: float, now_s: float) -> None:
        """This room begins to hear someone speak."""
        if self.rooms and self._is_connected:
            self._send(Hearing(self.node, utterance, start_s), now_s)

    def withdraw(self, utterance: str, now_s: float) -> None:
        """What this room heard gives no sentence."""
        if self.rooms and self._is_connected:
            self._send(Withdrawal(self.node, utterance), now_s)

    def claim(self, claim: Claim, now_s: float) -> None:
        """This room has the text of a sentence, and would act on it."""
        self._sentences[claim.id] = sentence = ClaimedSentence(claim, now_s)
        if self.rooms and self._separation(now_s) is Separation.NONE:
            if self._is_heard_here_alone(sentence):
                self._send(Act(claim), now_s)
                self._decide(sentence, SentenceState.ACTED, now_s)
            else:
                self._send(claim, now_s)
        self.poll(now_s)

    def receive(self, message: Message, now_s: float) -> None:
        """Take in a message of the topic, this room's own ones included, in the broker's order."""
        if message.node == self.node:
            self._receive_own(message, now_s)
        else:
            self._receive(message, now_s)
        self.poll(now_s)

    def poll(self, now_s: float) -> None:
        """Decide what can be decided; call it at `due_s` at the latest."""
        for sentence in self._sentences.values():
            self._advance(sentence, now_s)
        self.others.forget(now_s - REMEMBER_S)
        kept = self._sentences.items()
        self._sentences = {key: one for key, one in kept if one.ready_s >= now_s - REMEMBER_S}

    def due_s(self, now_s: float) -> float:
        """Return when `poll` has to be called even if nothing happens; inf if never."""
        return min((self._due_s(one) for one in self._sentences.values()), default=math.inf)

    # receiving

    def _receive_own(self, message: Message, now_s: float) -> None:
        """Our message came back, and with it everything that the broker got before it."""
        answered = _identity(message)
        places = [at for at, (one, _) in enumerate(self._unanswered) if _identity(one) == answered]
        for _ in range(places[0] + 1 if places else 0):
            self._unanswered.popleft()
        sentence = self._sentences.get(message.claim.id) if isinstance(message, Act) else None
        if sentence and sentence.state is SentenceState.ACTING:
            self._decide(sentence, SentenceState.ACTED, now_s)

    def _receive(self, message: Message, now_s: float) -> None:
        """Another room's message."""
        match message:
            case Hearing(node, utterance, start_s):
                self.others.hearers[node, utterance] = start_s
            case Withdrawal(node, utterance):
                self.others.hearers.pop((node, utterance), None)
            case Claim():
                self._add_claim(message, now_s)
            case Act(claim):
                act = replace(message, claim=self._add_claim(claim, now_s))
                self.others.acts.append((act, now_s))
                for sentence in self._sentences.values():
                    if self._yields(sentence, act) and self.others.is_about(act, sentence.claim):
                        self._decide(sentence, SentenceState.DEFERRED, now_s, claim.node)

    def _yields(self, sentence: ClaimedSentence, act: Act) -> bool:
        """Return True if another room's Act ends what we do about a sentence."""
        if sentence.state is SentenceState.ACTED:
            alone = sentence.separation is not Separation.NONE
            return sentence.claim.grade == 0 < act.claim.grade and not alone
        return sentence.is_open and act.counts_for(sentence.claim)

    def _add_claim(self, found: Claim, now_s: float) -> Claim:
        claim = self.others.add_claim(found, now_s)
        for sentence in self._sentences.values():
            is_ours = sentence.state is SentenceState.ACTED and is_same_sentence(
                claim, sentence.claim
            )
            if is_ours and claim.node not in sentence.others:
                sentence.others.add(claim.node)
                self.decisions.append(self._decision(sentence, now_s, first=False))
        return claim

    # deciding

    def _advance(self, sentence: ClaimedSentence, now_s: float) -> None:
        """Decide about a sentence if everything for that is known, or if it is time."""
        if not sentence.is_open:
            return
        waits = sentence.state is SentenceState.WAITING
        if waits and (node := self.others.act_on(sentence.claim)):  # even if it has gone since
            self._decide(sentence, SentenceState.DEFERRED, now_s, node)
            return
        if not self.rooms:
            self._decide(sentence, SentenceState.ACTED, now_s)
            return
        sentence.separation = self._separation(now_s)
        if sentence.separation is not Separation.NONE:
            self._decide(sentence, SentenceState.ACTED, now_s)
        elif waits:
            self._choose(sentence, now_s)

    def _choose(self, sentence: ClaimedSentence, now_s: float) -> None:
        """Publish our Act if we are the best, or if the best has not published one in time."""
        if now_s < self._decide_s(sentence):
            return
        if self._is_best(sentence) or now_s >= self._take_over_s(sentence):
            sentence.state = SentenceState.ACTING
            known = replace(sentence.claim, sketch=b"")  # from our claim
            over = (claim.id for claim, _ in self.others.group(sentence.claim))
            self._send(Act(known, tuple(over)), now_s)

    def _is_best(self, sentence: ClaimedSentence) -> bool:
        """Return True if our claim goes before those of all other rooms."""
        group = self.others.group(sentence.claim)
        return all(sentence.claim.order < claim.order for claim, _ in group)

    def _decide(
        self, sentence: ClaimedSentence, state: SentenceState, now_s: float, node: str = ""
    ) -> None:
        sentence.state = state
        sentence.others = {claim.node for claim, _ in self.others.group(sentence.claim)} - {node}
        self.decisions.append(self._decision(sentence, now_s, node))

    def _decision(
        self, sentence: ClaimedSentence, now_s: float, node: str = "", *, first: bool = True
    ) -> Decision:
        return Decision(
            sentence.claim.id,
            acts=not node,
            node=node or self.node,
            others=() if node else tuple(sorted(sentence.others)),
            separation=sentence.separation,
            waited_s=now_s - sentence.ready_s,
            first=first,
        )

    # what is known

    @property
    def rooms(self) -> list[str]:
        """The other rooms that are online, or may be."""
        return sorted(self.others.nodes)

    @property
    def must_ask(self) -> bool:
        """True if another room may act on a sentence, or has just acted on one and gone."""
        return bool(self.others.nodes or self.others.acts)

    @property
    def _is_connected(self) -> bool:
        return self._connected_s < math.inf

    def _separation(self, now_s: float) -> Separation:
        """Return why we cannot communicate."""
        if not self._is_connected:
            return Separation.OFFLINE
        if self._unanswered and now_s - self._unanswered[0][1] >= ANSWER_S:
            return Separation.UNANSWERED
        return Separation.NONE

    def _is_heard_here_alone(self, sentence: ClaimedSentence) -> bool:
        """Return True if no other room hears the sentence, and none can have said so unheard."""
        return (
            self._is_settled(sentence)
            and not self._unanswered
            and not self.others.hear(sentence.claim)
            and not self.others.group(sentence.claim)
            and not self.others.act_on(sentence.claim)
        )

    def _is_settled(self, sentence: ClaimedSentence) -> bool:
        """Return True if we are connected since long before the sentence."""
        return self._connected_s < sentence.claim.start_s - SETTLED_S

    def _decide_s(self, sentence: ClaimedSentence) -> float:
        """Return when to choose: at once if every room that hears the speech has claimed it."""
        if not self._is_settled(sentence):
            return sentence.ready_s + DECIDE_S
        if not self.others.hear(sentence.claim):
            return sentence.ready_s
        claims = [(sentence.claim, sentence.ready_s), *self.others.group(sentence.claim)]
        wait_s = SLOWER_S if any(claim.grade for claim, _ in claims) else HOPE_S
        return min(came_s for _, came_s in claims) + wait_s

    def _take_over_s(self, sentence: ClaimedSentence) -> float:
        """Return when we act even if another room is better, because it does not."""
        better = [
            came_s
            for claim, came_s in self.others.group(sentence.claim)
            if claim.order < sentence.claim.order
        ]
        return max(sentence.ready_s, self._decide_s(sentence), *better) + TAKE_OVER_S

    def _due_s(self, sentence: ClaimedSentence) -> float:
        if not sentence.is_open:
            return math.inf
        due_s = self._unanswered[0][1] + ANSWER_S if self._unanswered else math.inf
        if sentence.state is SentenceState.WAITING:
            wait_s = self._decide_s(sentence) if self._is_best(sentence) else math.inf
            due_s = min(due_s, wait_s, self._take_over_s(sentence))
        return due_s

    def _send(self, message: Message, now_s: float) -> None:
        self.outgoing.append(message)
        self._unanswered.append((message, now_s))


def _identity(message: Message) -> tuple[type, str]:
    """Return what identifies one of our messages when it comes back."""
    claim = message.claim if isinstance(message, Act) else message
    return type(message), getattr(claim, "id", "") or getattr(claim, "utterance", "")
