"""Beam search: the likeliest text among many; a greedy decode takes the likeliest token each time.

The texts share one KV cache: each keeps the steps that it has in common with the one before it.
"""

from __future__ import annotations

import heapq
import math
from typing import Any

import numpy as np

from appliance.infer.decoder import Cache, Decoder
from appliance.model import Bundle

Tokens = tuple[int, ...]


class BeamSearch:
    """Follows `width` texts at once. One thread, the decoder's."""

    def __init__(self, bundle: Bundle, decoder: Decoder, width: int) -> None:
        self._decoder, self._width = decoder, width
        self._end = bundle.tokens.end_of_text
        self._barred_first = np.array(bundle.suppressed_first, np.intp)

    def best(self, cache: Cache, duration_s: float) -> tuple[Tokens, tuple[float, ...]] | None:
        """Return the tokens of the likeliest text for `duration_s` of sound, and their natural
        log-probabilities, end-of-text's last; None if only the empty text ended.

        `cache` is the decoder's newest and has no tokens. Raises ModelError.
        """
        decoder, prompt = self._decoder, self._decoder.prompt
        found: tuple[float, Tokens, tuple[float, ...]] = (-math.inf, (), ())
        alive: list[tuple[float, Tokens, tuple[float, ...]]] = [(0.0, (), ())]
        for length in range(decoder.token_limit(duration_s)):
            longer = []
            for score, tokens, logprobs in sorted(alive, key=lambda text: text[1]):
                odds = decoder.odds(cache, (*prompt, *tokens)).row(0)
                if length == 0:
                    odds[self._barred_first] = -math.inf
                ended = float(odds[self._end])
                if tokens:
                    found = max(found, (score + ended, tokens, (*logprobs, ended)))
                odds[self._end] = -math.inf
                # Any: numpy before 2.3 declares a list or a single number
                columns: Any = np.argpartition(odds, -self._width)[-self._width :]
                for token in columns.tolist():
                    chance = float(odds[token])
                    longer.append((score + chance, (*tokens, token), (*logprobs, chance)))
            alive = heapq.nlargest(self._width, longer)
            if alive[0][0] <= found[0]:  # longer texts are only less likely
                break
        return found[1:] if found[2] else None
