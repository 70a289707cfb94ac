"""This room among the others: what it claims, and what happens once it is decided who acts.

Other threads put in what this room hears. The publisher's thread does the rest: it passes in
connections and messages, and publishes what `poll` returns. While no other room is online, a
sentence is handed over at once, in the thread that reports it, and nothing is measured or sent.
"""

import json
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeVar

from appliance.house.acoustics import Measurement, measure_window, score
from appliance.house.arbiter import Arbiter, Decision, Separation
from appliance.house.claims import Claim, Hearing, Message, Saying
from appliance.house.messages import ClockOffsets, decode, encode, shift, short_id
from appliance.records import (
    HEARD_HERE,
    Discarded,
    HeardIn,
    Listener,
    OutgoingMessage,
    Transcript,
    Window,
    why_not_act,
)

log = logging.getLogger("roomscribe.house")
Value = TypeVar("Value")

MINUTE_S, MOST_MESSAGES = 60.0, 200
"""A room sends three messages for a sentence, and nobody says 60 in a minute."""
KEPT = 100
"""Sentences and windows that are remembered."""
LOST_FOR_S, LOST_SENTENCES = 3600.0, 5
"""If another room acts on all sentences for so long, and on so many, something may be wrong."""
OLD = timedelta(seconds=30)
"""Sentences whose speech ended longer ago are not claimed; nothing acts on them."""
ACT_EXPIRY_S = 10
"""The broker discards an `act` that it could not deliver within this time."""
EMPTY = Measurement(b"", None)


class Assistant(Protocol):
    """Acts on sentences with the address phrase: Home Assistant's Assist."""

    def find_command(self, transcript: Transcript) -> str:
        """Return what is to be handed over of a transcript; "" if nothing is."""

    def hand_over(self, transcript: Transcript, text: str) -> None:
        """Hand a found command over. Must not wait."""


@dataclass(frozen=True, slots=True)
class _Spoken:
    transcript: Transcript
    command: str


class House(Listener):
    """Decides with other rooms whether this one acts. See the module for the threads."""

    def __init__(
        self,
        node: str,
        *,
        prefix: str = "roomscribe",
        report: Callable[[HeardIn], object] = lambda _: None,
        muted: Callable[[], bool] = lambda: False,
        complain: Callable[[str | None], object] = lambda _: None,
        on_change: Callable[[], object] = lambda: None,
        assistant: Assistant | None = None,
        note: Callable[[str, float], object] = lambda *_: None,
    ) -> None:
        """`prefix` begins all topics. `report` is called when it is known who else heard a
        sentence, `complain` with what may be wrong between the rooms (None: nothing). `on_change`
        wakes the publisher's thread, and tells that `rooms` has changed. `note` gets what another
        room's loudspeaker says, and until when."""
        self._node, self._prefix = node, prefix
        self.topics: tuple[str, ...] = (f"{prefix}/+/claim", f"{prefix}/+/availability")
        """To subscribe to, with what is retained there. A room writes below its own name, which an
        access list ensures."""
        self._report, self._muted, self._complain = report, muted, complain
        self._lost: tuple[str, float, int] = "", 0.0, 0
        """The room that acted on this one's last sentences, since when, and on how many."""
        self._on_change, self._assistant, self._note = on_change, assistant, note
        self._arbiter = Arbiter(node)
        self._clocks = ClockOffsets()
        self.rooms: tuple[str, ...] = ()
        """Other rooms that are online, or may be."""
        self._seen = set[str]()
        self._must_ask = False
        """Whether another room may act on a sentence, or has just acted on one and gone."""
        self._inbox: deque[_Spoken | Hearing | Discarded | Saying] = deque(maxlen=KEPT)
        self._lock = threading.Lock()
        self._arbitrated = _Recent[bool]()
        """Whether the rooms decide about a transcript, by its id. With the lock."""
        self._measured = _Recent[Measurement]()
        self._spoken = _Recent[_Spoken]()
        self._events = _Recent[dict[str, Any]]()
        """Published transcripts about which the rooms decide."""
        self._decisions = _Recent[Decision]()
        self._posts: deque[OutgoingMessage] = deque()
        self._messages: dict[str, tuple[float, int]] = {}
        """When each node's minute began, and how many messages came in it."""

    # other threads

    def on_begin(self, utterance_id: str) -> None:
        """Tell the other rooms that this one hears someone speak. The segmenter's thread."""
        if self.rooms:
            self._put(Hearing(self._node, short_id(utterance_id), time.monotonic()))

    def on_window(self, window: Window) -> None:
        """Measure a window that is being transcribed. The segmenter's thread."""
        if self.rooms:
            self._measured[window.id] = measure_window(window)

    def on_discarded(self, discarded: Discarded) -> None:
        """Tell the other rooms that an utterance gives no sentence."""
        if self.rooms:
            self._put(discarded)

    def on_transcript(self, transcript: Transcript) -> None:
        """Act on a sentence, or let the rooms decide who does. The transcriber's thread."""
        command = self._assistant.find_command(transcript) if self._assistant else ""
        if self._is_arbitrated(transcript):
            self._put(_Spoken(transcript, command))
        elif command and self._assistant:
            self._assistant.hand_over(transcript, command)

    def _is_arbitrated(self, transcript: Transcript) -> bool:
        """Return whether the rooms decide; the same at each call for one transcript."""
        if transcript.source != HEARD_HERE:
            return False
        with self._lock:
            return self._arbitrated.setdefault(transcript.id, self._must_ask)

    def on_saying(self, text: str, until_s: float) -> None:
        """Tell the other rooms what this one's loudspeaker says."""
        if self.rooms and text:
            self._put(Saying(self._node, text, until_s))

    def _put(self, item: _Spoken | Hearing | Discarded | Saying) -> None:
        self._inbox.append(item)
        self._on_change()

    # the publisher's thread

    def connected(self, now_s: float) -> None:
        """The connection to the broker begins; subscriptions to `topics` follow."""
        self._arbiter.set_connected(True, now_s)

    def lost(self, now_s: float) -> None:
        """The connection to the broker has ended."""
        self._arbiter.set_connected(False, now_s)

    def take(self, topic: str, payload: bytes, *, retained: bool, now_s: float) -> bool:
        """Take in a message; return False if it is on none of `topics`."""
        below = topic.removeprefix(f"{self._prefix}/").split("/")
        node, name = below if len(below) == 2 else ("", "")
        if name == "claim" and not retained and (found := decode(payload)):
            self._take_message(node, *found, now_s)
        elif name == "availability" and node != self._node:
            self._arbiter.set_online(node, payload == b"online", now_s)
        return name in ("claim", "availability")

    def _take_message(self, node: str, message: Message, sent_s: float, now_s: float) -> None:
        """Take in what a room published, unless another room is named as its sender."""
        if message.node != node:
            return
        if node != self._node:
            if not self._listens_to(node, now_s):
                return
            message = shift(message, self._clocks.observe(node, sent_s, now_s))
        if not isinstance(message, Saying):
            self._arbiter.receive(message, now_s)
        elif node != self._node:
            self._note(message.text, message.until_s)

    def _listens_to(self, node: str, now_s: float) -> bool:
        """Return whether messages of a node count: it is online, and does not send too many."""
        if node not in self._arbiter.rooms:
            return False
        self._messages = {
            name: count for name, count in self._messages.items() if count[0] > now_s - MINUTE_S
        }
        since_s, count = self._messages.get(node, (now_s, 0))
        self._messages[node] = since_s, count + 1
        if count == MOST_MESSAGES:
            log.warning("%s sends too many claims; the rest of this minute's are ignored", node)
        return count < MOST_MESSAGES

    def on_publish(self, transcript: Transcript, event: dict[str, Any]) -> None:
        """Complete the event of a transcript that is about to be published."""
        if event["late"] or not self._is_arbitrated(transcript):
            return
        event["arbitrated"] = True
        self._events[short_id(transcript.id)] = event
        if decision := self._decisions.get(short_id(transcript.id)):
            self._post_act(decision)

    def poll(self, now_s: float) -> Iterator[OutgoingMessage]:
        """Do what is due, and yield what to send. Call it often."""
        while self._inbox:
            match self._inbox.popleft():
                case Hearing(_, utterance, start_s):
                    self._arbiter.hear(utterance, start_s, now_s)
                case Discarded(_, utterance_id, _):
                    self._arbiter.withdraw(short_id(utterance_id), now_s)
                case _Spoken() as spoken:
                    self._claim(spoken, now_s)
                case Saying() as saying:
                    self._posts.append(self._outgoing("claim", encode(saying, now_s)))
        self._arbiter.poll(now_s)
        while self._arbiter.decisions:
            self._obey(self._arbiter.decisions.popleft(), now_s)
        while self._arbiter.outgoing:
            yield self._outgoing("claim", encode(self._arbiter.outgoing.popleft(), now_s))
        while self._posts:
            yield self._posts.popleft()
        self._must_ask = self._arbiter.must_ask
        if self.rooms != (rooms := tuple(self._arbiter.rooms)):
            self._set_rooms(rooms)

    def due_s(self, now_s: float) -> float:
        """Return when `poll` has something to do even if nothing happens."""
        waits = self._inbox or self._posts or self._arbiter.decisions or self._arbiter.outgoing
        return now_s if waits else self._arbiter.due_s(now_s)

    def _claim(self, spoken: _Spoken, now_s: float) -> None:
        """Claim a sentence, unless it is old or this room is muted."""
        transcript, key = spoken.transcript, short_id(spoken.transcript.id)
        now = datetime.now(UTC)
        if not -OLD < now - transcript.end < OLD:
            self._hand_over(spoken)
        elif self._muted():
            log.info("muted: this room does not act on its last sentence")
            self._arbiter.withdraw(short_id(transcript.utterance_id), now_s)
        else:
            self._spoken[key] = spoken
            measured = self._measured.get(transcript.id) or EMPTY
            claim = Claim(
                self._node,
                key,
                short_id(transcript.utterance_id),
                now_s - (now - transcript.start).total_seconds(),
                now_s - (now - transcript.end).total_seconds(),
                grade=2 if spoken.command else int(why_not_act(transcript) is None),
                score=score(transcript, measured.decay_db),
                sketch=measured.sketch,
                last=transcript.windows is not None,
            )
            self._arbiter.claim(claim, now_s)

    def _obey(self, decision: Decision, now_s: float) -> None:
        """Act on a sentence or not, and report which other rooms heard it."""
        if not (spoken := self._spoken.get(decision.id)):
            return
        if decision.first:
            self._log(decision)
            self._watch(decision, now_s)
            if decision.acts:
                self._hand_over(spoken)
                self._decisions[decision.id] = decision
                self._post_act(decision)
        if not decision.acts or decision.others:
            better = "" if decision.acts else decision.node
            self._report(HeardIn(spoken.transcript.id, better, decision.others))

    def _hand_over(self, spoken: _Spoken) -> None:
        if spoken.command and self._assistant:
            self._assistant.hand_over(spoken.transcript, spoken.command)

    def _log(self, decision: Decision) -> None:
        if decision.separation is not Separation.NONE:
            why = decision.separation.value
            log.warning("this room acts without asking %s: %s", ", ".join(self.rooms), why)
        elif not decision.acts:
            log.info("%s heard the sentence better and acts on it", decision.node)

    def _watch(self, decision: Decision, now_s: float) -> None:
        """Complain if one other room has acted on all sentences of this one for an hour: its login
        may be stolen, or the microphones hear the same."""
        node, since_s, count = self._lost
        if decision.acts or decision.node != node:
            self._complain(None)
            self._lost = "" if decision.acts else decision.node, now_s, 1
            return
        self._lost = node, since_s, count + 1
        if now_s - since_s >= LOST_FOR_S and count + 1 >= LOST_SENTENCES:
            self._complain(
                f"{node} has acted on all {count + 1} sentences of this room for "
                f"{(now_s - since_s) / 3600:.0f} h. If nobody speaks nearer to {node}, move a "
                f"microphone, or give {node} another password at the broker"
            )

    def _post_act(self, decision: Decision) -> None:
        """Publish that this room acts, once the transcript is published, if something may act."""
        event = self._events.pop(decision.id, None)
        if not event or not event["acts"]:
            return
        fields = {name: value for name, value in event.items() if name != "arbitrated"}
        fields |= {"event_type": "act", "heard_also": list(decision.others)}
        payload = json.dumps(fields, ensure_ascii=False, allow_nan=False).encode()
        self._posts.append(self._outgoing("act", payload))

    def _outgoing(self, name: str, payload: bytes) -> OutgoingMessage:
        return OutgoingMessage(
            f"{self._prefix}/{self._node}/{name}", payload, expiry_s=ACT_EXPIRY_S
        )

    def _set_rooms(self, rooms: tuple[str, ...]) -> None:
        """Note which rooms are online; report each one the first time."""
        if new := set(rooms) - self._seen:
            log.info(
                "other rooms are online: %s. If several rooms hear one sentence, the best one acts "
                "on it",
                ", ".join(sorted(new)),
            )
            self._seen |= new
        self.rooms = rooms
        self._on_change()


class _Recent(OrderedDict[str, Value]):
    """The values of the last KEPT keys."""

    def __setitem__(self, key: str, value: Value) -> None:
        super().__setitem__(key, value)
        if len(self) > KEPT:
            self.popitem(last=False)
