"""Recognises which of a few languages is spoken, by the decoder's first step."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from appliance.errors import ConfigError
from appliance.infer.gates import judge
from appliance.infer.tokenizer import Tokenizer
from appliance.model import Bundle
from appliance.records import Logits, Transcription

STAYS_PROBABILITY = 0.8
"""Prior probability that a room keeps the language that it spoke last."""
ROOMS = 64
"""Most rooms whose language is remembered: those that spoke last."""
SURE_PROBABILITY = 0.5
"""Probability from which a language is remembered for its room."""


class Languages:
    """The languages that may be spoken, by their ISO 639 codes."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        """`tokens` are the model's language tokens, which follow start-of-transcript."""
        self.tokens = dict(tokens)

    def choose(self, logits: Logits, before: str = "") -> tuple[str, float]:
        """Return the likeliest language and its probability among these (NaN if there is only one).

        `logits` (vocabulary,) are those after start-of-transcript; `before` is the language that
        the room spoke last, if known.
        """
        names = list(self.tokens)
        if len(names) == 1:
            return names[0], math.nan
        scores = logits[list(self.tokens.values())].astype(np.float64)
        if before in self.tokens and len(names) > 1:
            others = (1.0 - STAYS_PROBABILITY) / (len(names) - 1)
            scores += np.log([STAYS_PROBABILITY if name == before else others for name in names])
        odds = np.exp(scores - scores.max())
        best = int(np.argmax(odds))
        return names[best], float(odds[best] / odds.sum())


def language_tokens(bundle: Bundle, tokenizer: Tokenizer) -> dict[str, int]:
    """Return the tokens of the languages that a bundle writes, by their codes; none if its prompt
    names no language."""
    tokens = {code: tokenizer.specials.get(f"<|{code}|>", -1) for code in bundle.languages}
    tokens = {code: token for code, token in tokens.items() if token >= 0}
    place = bundle.prompt.index(bundle.tokens.start) + 1
    named = set(tokens.values()).intersection(bundle.prompt[place : place + 1])
    return tokens if named and len(tokens) > 1 else {}


class RoomLanguages:
    """The language that each room spoke last. One thread."""

    def __init__(self) -> None:
        self._codes: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._codes)

    def last(self, room: str | None) -> str:
        """Return the language that a room spoke last; "" if that or the room is unknown."""
        return self._codes.get(room, "") if room is not None else ""

    def remember(self, room: str | None, result: Transcription) -> None:
        """Remember which language a room speaks, if that is sure, and no noise."""
        if room is None or not result.language_probability >= SURE_PROBABILITY or judge(result):
            return
        self._codes.pop(room, None)
        self._codes[room] = result.language
        if len(self._codes) > ROOMS:
            del self._codes[next(iter(self._codes))]


def choose_languages(
    bundle: Bundle, tokenizer: Tokenizer, language: str, allowed: Sequence[str]
) -> tuple[Languages | None, str]:
    """Return the languages to recognise, if any, and the language to begin with, for the settings
    `language` ("", "auto" or a code) and `allowed`. Raises ConfigError."""
    if language in ("", bundle.language):
        return None, bundle.language
    tokens = language_tokens(bundle, tokenizer)
    if not tokens:
        raise ConfigError(
            f"[decoder] language: expected a model of several languages, found {bundle.name} "
            f"({', '.join(bundle.languages[:3])}); leave the key out, or choose another model"
        )
    wanted = list(allowed) if language == "auto" else [language]
    wanted = wanted or list(tokens)
    if strange := [code for code in wanted if code not in tokens]:
        key = "languages" if language == "auto" else "language"
        raise ConfigError(
            f"[decoder] {key}: expected languages of model {bundle.name} "
            f"({', '.join(list(tokens)[:8])}{' ...' if len(tokens) > 8 else ''}), found "
            f"{strange[0]!r}"
        )
    first = bundle.language if bundle.language in wanted else wanted[0]
    return Languages({code: tokens[code] for code in wanted}), first
