"""Play a block of an evening to a stand and record the result of each sound."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from evening_run.matching import Discard, Event, Received, Span, assign, read
from evening_run.processes import usage
from evening_run.programme import Block, Item, Step
from evening_run.stand import Stand
from rigs.recordings import sentences
from rigs.wyoming import sound_of

from appliance.records import SAMPLE_RATE

SETTLE_S = 5.0
"""An answer that comes later than this is not counted."""
QUIET_AFTER_S, QUIET_AT_LEAST_S = 3.0, 1.0
"""CPU of silence is measured from so long after a sound, in stretches of at least so long."""
WORK_S = 1.5
"""CPU of speech is measured until so long after its end."""

Record = dict[str, Any]
Say = Callable[[str], None]


class Player:
    """Plays blocks to one stand."""

    def __init__(self, stand: Stand, say: Say) -> None:
        self._stand, self._say = stand, say
        self._asked = sentences()
        """What the Wyoming client says."""
        self.memory: list[Record] = []
        self.interrupted = False
        self._offsets: list[tuple[int, int]] = []
        """The first sample of each part of the block that was played, and how much later it is in
        the stream."""
        self._played = 0
        """Samples of the block that were given to the stream."""

    def play(self, block: Block) -> Record:
        """Return what became of a block; of what was heard of it before Ctrl-C."""
        stand = self._stand
        before = len(stand.messages())
        self.memory = []
        self._offsets, self._played = [], 0
        try:
            self._walk(block)
            stand.stream.wait_for(self._at(block.length) + int(SETTLE_S * SAMPLE_RATE))
        except KeyboardInterrupt:
            self.interrupted = True
        received = read(stand.messages()[before:], time.time() - time.monotonic())
        result = self._collect(block, received)
        stand.stream.forget(self._at(block.length))
        return result

    def _walk(self, block: Block) -> None:
        """Play the block and do each step when it is due; print where the evening is."""
        steps = [*block.steps, *(Step(at, "item", n) for n, at in enumerate(block.places))]
        steps.sort(key=lambda one: one.at)
        sound = block.render()
        for begin, end in block.segments():
            at = self._stand.stream.play(sound[begin:end])
            self._offsets.append((begin, at - begin))
            self._played = end
            for step in steps:
                if begin <= step.at < end or step.at == end == block.length:
                    self._stand.stream.wait_for(self._at(step.at))
                    self._do(block, step)
            self._stand.stream.wait_for(self._at(end - 1))

    def _at(self, place: int) -> int:
        """Return where a sample of the block is in the stream."""
        return place + next(by for begin, by in reversed(self._offsets) if begin <= place)

    def _do(self, block: Block, step: Step) -> None:
        stand = self._stand
        if step.what == "item":
            item = block.items[step.item]
            self._say(f"{item.group}: {item.text or item.name}")
        elif step.what == "wyoming":
            said = self._asked[step.item % len(self._asked)]
            stand.ask(said.text, sound_of(said.file))
        elif step.what == "reload":
            self._measure_usage("reload")
            stand.reload()
        else:
            self._measure_usage(step.what)

    def _measure_usage(self, label: str) -> None:
        """Measure memory, threads and descriptors."""
        page = self._stand.page
        found = asdict(usage(self._stand.daemon.pid))
        found["page_uss_mb"] = usage(page.process.pid).uss_mb if page else None
        self.memory.append({"label": label, **found})

    def _collect(self, block: Block, received: Received) -> Record:
        """Return the block's record: its sounds, what belongs to none, CPU and counts."""
        records, speech, wholes = [], [], []
        for item, place in zip(block.items, block.places, strict=True):
            if not self.interrupted or self._is_over(place + item.end):
                record, spoken, whole = self._measure(item, self._at(place))
                records.append(record)
                speech.append(spoken)
                wholes.append(whole)
        stray = deal(records, received, speech, wholes)
        return {
            "items": records,
            "stray": stray,
            "memory": self.memory,
            "quiet": self._quiet(block, wholes, records),
            "repeated": received.repeated,
            "disorder": received.disorder,
            "partials": received.partials,
            "broken_partials": received.broken_partials,
        }

    def _measure(self, item: Item, place: int) -> tuple[Record, Span, Span]:
        """Return the record of a sound, without events; when its speech, and when all of it was."""
        stream, begin, end = self._stand.stream, place + item.begin, place + item.end
        intact = stream.is_intact(begin, end)  # and finds the sound again after a stutter
        spoken = Span(stream.moment_s(begin), stream.moment_s(end))
        whole = Span(stream.moment_s(place), stream.moment_s(place + len(item.sound)))
        record: Record = {
            "name": item.name, "family": item.family, "group": item.group, "kind": item.kind,
            "text": item.text, "unrelated": item.unrelated,
            "begin_s": spoken.begin_s, "end_s": spoken.end_s,
            "seconds": len(item.sound) / SAMPLE_RATE, "intact": intact, "dated": item.dated,
            "cpu_s": self._stand.clock.used_s(spoken.begin_s, spoken.end_s + WORK_S),
            "heard": [], "discarded": [], "beside": [],
        }  # fmt: skip
        return record, spoken, whole

    def _is_over(self, place: int) -> bool:
        """True when the microphone has given that sample, and the answer has had its time."""
        place += int(2 * SAMPLE_RATE)
        return place < self._played and self._stand.stream.has_given(self._at(place))

    def _quiet(self, block: Block, wholes: Sequence[Span], records: Sequence[Record]) -> Record:
        """Return seconds and CPU seconds of the stretches in which nothing was heard or done, and
        the seconds between the sounds."""
        stream, clock = self._stand.stream, self._stand.clock
        between_s = sum(max(0.0, b.begin_s - a.end_s) for a, b in pairwise(wholes))
        loud = [
            one
            for one, record in zip(wholes, records, strict=True)
            if record["family"] != "silence"
        ]
        steps_s = [
            stream.moment_s(self._at(step.at))
            for step in block.steps
            if step.what == "reload" and self._is_over(step.at)
        ]
        seconds = used_s = 0.0
        for before, behind in pairwise(loud):
            begin_s, end_s = before.end_s + QUIET_AFTER_S, behind.begin_s
            disturbed = any(before.end_s < one < end_s for one in steps_s)
            if end_s - begin_s > QUIET_AT_LEAST_S and not disturbed:
                seconds += end_s - begin_s
                used_s += clock.used_s(begin_s, end_s)
        return {"seconds": seconds, "cpu_s": used_s, "between_s": between_s}


def deal(
    records: Sequence[Record], received: Received, speech: Sequence[Span], wholes: Sequence[Span]
) -> list[Record]:
    """Give each record its events: those of its speech, and those of what is heard beside it.
    Returns the events that belong to none."""
    stray: list[Record] = []
    found: list[Event | Discard] = [*received.events, *received.discards]
    for one, owner, near in zip(found, assign(speech, found), assign(wholes, found), strict=True):
        if isinstance(one, Discard):
            if owner is not None:
                records[owner]["discarded"].append(one.reason)
        elif owner is not None:
            records[owner]["heard"].append(asdict(one))
        else:
            (stray if near is None else records[near]["beside"]).append(asdict(one))
    for record in records:
        record["heard"].sort(key=lambda one: one["begin_s"])
    return stray
