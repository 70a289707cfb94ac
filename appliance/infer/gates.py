"""Gates: rules that discard or flag a window's transcription, without what it repeats."""

import copy
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from appliance.config import GateSettings
from appliance.infer.overlap import OverlapJoiner, last_words
from appliance.records import Transcription, Window

LOOP_REPEATS = 5
LOOP_TOKENS = 12
"""A loop: the same tokens this many times in a row, and this many tokens in all. People do say "no
no no no", but not for 12 tokens; a decoder that loops goes on for dozens."""
STUTTER_REPEATS, STUTTER_TOKENS = 3, 6
"""Fewer repeats than a loop, but more than people make: flagged and kept."""
NOISE = 1.05
"""A text is noise if its no-speech probability, and half of how far the mean log-probability of its
tokens lies below 0, are this much together. Of tiny.en and base, right texts of people have at most
1.00, texts of noise and music at least 1.10."""
MOST_COMPRESSED = 2.4
"""Text with a greater compression_ratio is a loop (openai/whisper, transcribe.py)."""


def compression_ratio(text: str) -> float:
    """Return the UTF-8 length over the zlib size (Whisper's measure of repetition); 0 if empty."""
    data = text.encode()
    return len(data) / len(zlib.compress(data)) if data else 0.0


def is_loop(tokens: Sequence[int], least: int = LOOP_REPEATS, in_all: int = LOOP_TOKENS) -> bool:
    """True if anywhere the same run of tokens comes `least` times in a row, `in_all` tokens in all.

    Tokens, not words: Chinese, Japanese and Thai have no spaces.
    """
    for length in range(1, len(tokens) // least + 1):
        matching = 0
        for here in range(len(tokens) - length):
            matching = matching + 1 if tokens[here] == tokens[here + length] else 0
            repeats = matching // length + 1
            if repeats >= least and matching + length >= in_all:
                return True
    return False


def first_round(tokens: Sequence[int]) -> int:
    """Return how many tokens a text has without the later rounds of the loop in which it ends."""
    for length in range(1, len(tokens) // STUTTER_REPEATS + 1):
        kept = len(tokens)
        while kept > length and tokens[kept - 1] == tokens[kept - 1 - length]:
            kept -= 1
        if len(tokens) - kept >= max((STUTTER_REPEATS - 1) * length, LOOP_TOKENS - length):
            return kept
    return len(tokens)


def judge(transcription: Transcription) -> str | None:
    """Return why a transcription is discarded (no_speech, repetition, low_confidence); None: kept.

    Each rule needs evidence that real speech does not give. Short answers often have low
    confidence, and are flagged (`find_flags`). Loops, of which the decoder is very sure, are
    discarded unless they are one word (`find_single_word`) or follow others (`first_round`).
    """
    doubt = -transcription.avg_logprob / 2
    if not transcription.text:
        return "no_speech"
    if transcription.no_speech_prob + doubt >= NOISE:
        return "no_speech" if transcription.no_speech_prob >= doubt else "low_confidence"
    if transcription.compression_ratio > MOST_COMPRESSED or is_loop(transcription.tokens):
        return "repetition"
    return None


def find_single_word(transcription: Transcription) -> str:
    """Return the word of a text that says one word again and again and then ends, as people do ("no
    no no no no no"); "" for any other. A decoder that loops reaches the token limit instead."""
    words = transcription.text.split()
    plain = {re.sub(r"\W+$", "", word).casefold() for word in words}
    if not transcription.ended or len(words) < 2 or len(plain) != 1 or not any(plain):
        return ""
    mark = transcription.text.rstrip()[-1:]
    return re.sub(r"\W+$", "", words[0]) + (mark if mark in ".!?" else "")


def fill_gates(gates: GateSettings, recommended: Mapping[str, float]) -> GateSettings:
    """Return the gates with the limits that a model recommends where they leave them to it."""
    left = {name: value for name, value in recommended.items() if getattr(gates, name) < 0}
    return replace(gates, **left) if left else gates


def find_flags(transcription: Transcription, gates: GateSettings) -> tuple[str, ...]:
    """Return the flags of a transcription that is kept: low_confidence, unsure_to_act (more likely
    right than wrong), repetition (it repeats itself)."""
    gates = fill_gates(gates, transcription.recommended)
    doubtful = transcription.confidence < gates.low_confidence
    sure = gates.act_confidence == 0 or transcription.confidence >= gates.act_confidence
    found = {
        "low_confidence": doubtful,
        "unsure_to_act": not doubtful and not sure,
        "repetition": is_loop(transcription.tokens, STUTTER_REPEATS, STUTTER_TOKENS),
    }
    return tuple(flag for flag, raised in found.items() if raised)


class Gates:
    """Applies the gates to the transcriptions of windows, in their order. One thread."""

    def __init__(self, gates: GateSettings) -> None:
        self._gates, self._joiner = gates, OverlapJoiner()

    def apply(
        self, window: Window, result: Transcription, recall: Callable[[], str] = str
    ) -> tuple[Transcription, str | None]:
        """Return the transcription with its flags and without what it repeats of the window before;
        and why it is discarded, if it is (`judge`).

        A window that says nothing new is a `repetition`. `recall` returns the text of the window
        before if this process has not seen it.
        """
        reason = judge(result)
        repeated: tuple[str, ...] = ()
        if reason == "repetition" and (word := find_single_word(result)):
            result = replace(result, text=word, words=result.words[:1])
            reason, repeated = None, ("repetition",)
        if reason:
            return result, reason
        text = self._joiner.remove_overlap(window, result.text, recall)
        found = (*result.flags, *find_flags(result, self._gates), *repeated)
        flags = tuple(dict.fromkeys(found))
        words = last_words(result.words, text)
        result = replace(result, text=text, flags=flags, words=words)
        return result, None if text else "repetition"

    def preview(
        self, window: Window, result: Transcription, recall: Callable[[], str] = str
    ) -> str:
        """Return the text that `apply` would give, "" if it would discard it, without remembering
        it: the window may not be the next one."""
        trial = copy.copy(self)
        trial._joiner = copy.copy(self._joiner)
        kept, reason = trial.apply(window, result, recall)
        return "" if reason else kept.text
