"""Score an evening: the figures of each group and of all."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from evening_run.home import ASSIST_PHRASE
from evening_run.programme import NOISE, SENTENCE, TALK
from rigs.word_errors import word_errors, words

from appliance.records import EXPECTED_FROM, JOINED

Record = dict[str, Any]

ARTICLES = {"a", "an", "the"}
EDGE_S = 0.1
"""The same moment in two transcripts differs by less."""


@dataclass(frozen=True, slots=True)
class Row:
    """A group's figures; None where there is nothing to measure."""

    group: str
    said: int
    p50_ms: float | None
    p95_ms: float | None
    no_trace: int
    texts: int
    """Of `verbatim`, right by the text."""
    sentences: int
    """Right by the expected sentence, if that is sure enough."""
    either: int
    verbatim: int
    """Sentences of which the words are known."""
    errors: int
    words: int
    split: int
    wrong: int
    """Sentences after which Home Assistant would have done something else than was said."""

    @property
    def wer(self) -> float | None:
        """Word errors, percent."""
        return 100 * self.errors / self.words if self.words else None


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Return a percentile (linear between the values beside it); None of nothing."""
    return float(np.percentile(values, percent)) if values else None


def answer_ms(record: Record) -> float | None:
    """Return the milliseconds from the end of the speech to its last transcript, joined ones left
    out; None without one, if that came before the end, or if nobody knows when the speech ended."""
    heard = [one for one in record["heard"] if JOINED not in one["flags"]]
    arrivals = [one["arrival_s"] for one in heard if not one["late"]]
    if not arrivals or not record["dated"] or max(arrivals) < record["end_s"]:
        return None
    return 1000 * float(max(arrivals) - record["end_s"])


def text_of(record: Record) -> str:
    """Return what was heard of a sentence, its pieces joined, without those that a joined
    transcript replaces."""
    joined = [one for one in record["heard"] if JOINED in one["flags"]]
    return " ".join(
        one["text"]
        for one in record["heard"]
        if not any(
            whole["seq"] > one["seq"]
            and whole["begin_s"] <= one["begin_s"] + EDGE_S
            and one["end_s"] <= whole["end_s"] + EDGE_S
            for whole in joined
        )
    )


def is_split(record: Record) -> bool:
    """Return True when the sentence came as two utterances or more."""
    return len({one["utterance_id"] for one in record["heard"]}) > 1


def action(event: Record) -> list[str]:
    """Return the words of the expected sentence that Home Assistant acts on; empty: it does not."""
    done = words(event["acts_on"])
    return done if done == words(event["phrase"]) else []


def same_action(done: Sequence[str], said: str) -> bool:
    """Return True when these words do what was said: articles make no difference."""
    ours, theirs = ([one for one in each if one not in ARTICLES] for each in (done, words(said)))
    return ours == theirs


def acts_wrongly(record: Record) -> bool:
    """Return True when something else would have been done than was said."""
    actions = map(action, record["heard"])
    return any(one and not same_action(one, record["text"]) for one in actions)


def is_sentence_right(record: Record) -> bool:
    """Return True when the expected sentence is what was said, and sure enough."""
    return any(
        one["phrase_confidence"] >= EXPECTED_FROM and words(one["phrase"]) == words(record["text"])
        for one in record["heard"]
    )


def row(group: str, records: Sequence[Record]) -> Row:
    """Return the figures of these sentences."""
    times = [one for one in map(answer_ms, records) if one is not None]
    known = [one for one in records if one["text"]]
    pairs = [(words(one["text"]), words(text_of(one))) for one in known]
    counts = [word_errors(" ".join(said), " ".join(heard)) for said, heard in pairs]
    texts = [said == heard for said, heard in pairs]
    phrases = [is_sentence_right(one) for one in known]
    return Row(
        group=group,
        said=len(records),
        p50_ms=percentile(times, 50),
        p95_ms=percentile(times, 95),
        no_trace=sum(not one["heard"] and not one["discarded"] for one in records),
        texts=sum(texts),
        sentences=sum(phrases),
        either=sum(map(max, texts, phrases)),
        verbatim=len(known),
        errors=sum(errors for errors, _ in counts),
        words=sum(count for _, count in counts),
        split=sum(map(is_split, records)),
        wrong=sum(map(acts_wrongly, records)),
    )


def rows(records: Iterable[Record]) -> list[Row]:
    """Return the figures of each group of sentences, and of all of them."""
    counted = [one for one in records if one["kind"] == SENTENCE and one["intact"]]
    groups = sorted({one["group"] for one in counted}, key=order)
    found = [row(group, [one for one in counted if one["group"] == group]) for group in groups]
    return [*found, row("all", counted)]


def order(group: str) -> tuple[int, str]:
    """Return what groups are sorted by: clean ones first."""
    first = ("speech", "commands", "orders", "reading", "room", "kitchen", "television")
    number = next((n for n, one in enumerate(first) if group.startswith(one)), len(first))
    return number, f"{group:>20}"


@dataclass(frozen=True, slots=True)
class Whole:
    """Figures of the whole evening."""

    talk_h: float
    phantoms: int
    """Actions on what was no command."""
    handed_right: int
    """Sentences that Assist was really given, and that were said so."""
    handed_wrong: int
    handed_phantom: int
    noise_h: float
    false_texts: int
    """Transcripts where nobody spoke."""
    cpu_silence: float | None
    """CPU seconds a second."""
    cpu_speech: float | None
    disturbed: int
    """Sentences that the rig stuttered in; they are not counted."""


def whole(records: Sequence[Record], strays: Sequence[Record], quiet: Sequence[Record]) -> Whole:
    """Return the figures of all sounds, of events that belong to none, and of silence."""
    intact = [one for one in records if one["intact"]]
    sentences = [one for one in intact if one["kind"] == SENTENCE]
    noises = [one for one in intact if one["kind"] == NOISE]
    actions, handed = of_talk(intact), handed_over(intact)
    between_s = sum(one["between_s"] for one in quiet)
    silence_s = sum(one["seconds"] for one in quiet)
    speech_s = sum(map(spoken_s, sentences))
    return Whole(
        talk_h=talk_s(intact) / 3600,
        phantoms=sum(bool(action(one)) for one in actions),
        handed_right=handed.count("right"),
        handed_wrong=handed.count("wrong"),
        handed_phantom=handed.count("phantom"),
        noise_h=(sum(one["seconds"] for one in noises) + between_s) / 3600,
        false_texts=len(strays) + sum(len(one["heard"]) + len(one["beside"]) for one in noises),
        cpu_silence=sum(one["cpu_s"] for one in quiet) / silence_s if silence_s else None,
        cpu_speech=sum(one["cpu_s"] for one in sentences) / speech_s if speech_s else None,
        disturbed=sum(not one["intact"] for one in records if one["kind"] == SENTENCE),
    )


def spoken_s(record: Record) -> float:
    """Return the seconds of a sound's speech."""
    return float(record["end_s"] - record["begin_s"])


def is_talk(record: Record) -> bool:
    """Return True if people say something that is no command."""
    return bool(record["unrelated"]) and record["kind"] in (TALK, SENTENCE)


def of_talk(records: Sequence[Record]) -> list[Record]:
    """Return the events of talk, and of the television beside a command."""
    talk = [event for one in records if is_talk(one) for event in one["heard"]]
    return talk + [e for one in records if one["family"] == "television" for e in one["beside"]]


def talk_s(records: Sequence[Record]) -> float:
    """Return the seconds of talk, and of the television beside a command."""
    beside = [one for one in records if one["family"] == "television"]
    alone_s = sum(map(spoken_s, filter(is_talk, records)))
    return alone_s + sum(float(one["seconds"]) - spoken_s(one) for one in beside)


def handed_over(records: Sequence[Record]) -> list[str]:
    """Return what Assist got of each sentence that was handed to it: right, wrong or phantom."""
    found = []
    for one in records:
        for event in (*one["heard"], *one["beside"]):
            if event["assist"]:
                asked = words(f"{ASSIST_PHRASE} {event['assist']}")
                right = "right" if same_action(asked, one["text"]) else "wrong"
                found.append("phantom" if one["unrelated"] else right)
    return found


def actions_not_asked_for(records: Sequence[Record]) -> list[str]:
    """Return the actions that nobody asked for, one line each."""
    found = []
    for one in records:
        for event in (*one["heard"], *one["beside"]):
            done = action(event)
            if done and (one["unrelated"] or not same_action(done, one["text"])):
                found.append(
                    f"{'PHANTOM' if one['unrelated'] else 'WRONG'}: {' '.join(done)!r} "
                    f"({event['phrase_confidence']:.0%}) for {one['text'] or one['name']!r}, "
                    f"{one['group']}, heard as {event['text']!r}"
                )
    return found
