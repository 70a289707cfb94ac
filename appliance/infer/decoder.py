"""Encoder states to tokens: greedy, with every key and value computed once.

The graphs are the bundle's cross.onnx (states -> keys and values of the cross-attention, once a
window) and step.onnx (tokens -> logits, and the self-attention's keys and values grown by them).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from appliance.errors import ConfigError, ModelError
from appliance.infer import guards
from appliance.infer.bundle import CROSS, STEP, Bundle, Guards
from appliance.infer.sessions import Session, Shape
from appliance.records import Logits, States
from appliance.settings import DecoderSettings

TOKENS_PER_SECOND = 15
TOKENS_AT_LEAST = 24
"""A decode ends after this many tokens, plus TOKENS_PER_SECOND of sound. Whisper's own limit is
224 in 30 s, half as many; the fastest English speech gives about 8."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """One window's tokens."""

    tokens: tuple[int, ...]
    """Without prompt and end-of-text."""
    logprobs: tuple[float, ...]
    """Natural log-probability of each token, then end-of-text's if it came; after suppression,
    before penalty and boost."""
    no_speech_prob: float
    ended: bool
    """True when end-of-text was reached."""

    @property
    def avg_logprob(self) -> float:
        """Whisper's: the sum of the log-probabilities over the number of tokens plus one."""
        return sum(self.logprobs) / (len(self.tokens) + 1)


@dataclass(slots=True)
class Cache:
    """All that changes while a window is decoded; L layers, H heads of size h, n tokens so far."""

    cross: dict[str, NDArray[np.float32]]
    """For each layer cross_keys (H, h, positions) and cross_values (H, positions, h)."""
    grown: dict[str, NDArray[np.float32]]
    """For each layer self_keys (H, h, n) and self_values (H, n, h)."""
    length: int = field(default=0)
    """n."""


class Decoder:
    """The decoder on the CPU. One thread."""

    def __init__(self, bundle: Bundle, rules: Guards, threads: int) -> None:
        """Loads both graphs; `threads` 0 is one for each core. Raises ModelError."""
        self._bundle, self._rules = bundle, rules
        self._suppressed = np.array(bundle.suppressed, np.intp)
        self._suppressed_first = np.array([*bundle.suppressed, *bundle.suppressed_first], np.intp)
        heads, size = bundle.heads, bundle.head_size
        cross = _layered(bundle, "cross", (heads, size, None), (heads, None, size))
        grown = _layered(bundle, "self", (heads, size, None), (heads, None, size))
        self._cross = Session(
            bundle.folder / CROSS, threads, {"states": (1, None, bundle.d_model)}, cross
        )
        self._step = Session(
            bundle.folder / STEP,
            threads,
            {"tokens": (None,), "places": (None,)} | cross | grown,
            {"logits": (None, bundle.vocabulary_size)}
            | {f"grown_{name}": shape for name, shape in grown.items()},
        )
        self._cross_names, self._grown_names = list(cross), list(grown)
        self._empty = {
            name: np.zeros([size or 0 for size in shape], np.float32)
            for name, shape in grown.items()
        }

    def decode(self, states: States, duration_s: float) -> Decoded:
        """Tokens for states (P, d_model) of `duration_s` of sound. Raises ModelError."""
        tokens: list[int] = []
        logprobs: list[float] = []
        end = self._bundle.tokens.end_of_text
        limit = self.token_limit(duration_s)
        cache = self.start(states)
        rows = self.step(cache, self._bundle.prompt)
        no_speech_prob = self._no_speech_prob(rows)
        while len(tokens) < limit:
            logits = guards.suppress(
                rows[-1], self._suppressed if tokens else self._suppressed_first
            )
            scores = guards.penalise(logits, tokens, self._rules.repetition_penalty)
            scores = guards.boost_end(scores, end, self._rules.eot_boost)
            token = int(np.argmax(scores))
            logprobs.append(float(guards.log_softmax(logits)[token]))
            if token == end:
                break
            tokens.append(token)
            rows = self.step(cache, (token,))
        self._check(logprobs)
        return Decoded(tuple(tokens), tuple(logprobs), no_speech_prob, len(logprobs) > len(tokens))

    def token_limit(self, duration_s: float) -> int:
        """The most tokens that `duration_s` of sound may give."""
        sane = TOKENS_AT_LEAST + math.ceil(TOKENS_PER_SECOND * duration_s)
        return min(self._bundle.max_tokens - len(self._bundle.prompt), sane)

    def start(self, states: States) -> Cache:
        """A cache for states (P, d_model) float32, padded to the guards' positions."""
        padded = guards.pad_positions(states, self._rules.positions)
        cross = self._cross.run({"states": padded[None]})
        return Cache(dict(zip(self._cross_names, cross, strict=True)), self._empty)

    def step(self, cache: Cache, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Logits (n, vocabulary) float32 after each of n tokens; the cache grows by them."""
        places = np.arange(cache.length, cache.length + len(tokens), dtype=np.int64)
        text = {"tokens": np.array(tokens, np.int64), "places": places}
        logits, *grown = self._step.run({**text, **cache.cross, **cache.grown})
        cache.grown = dict(zip(self._grown_names, grown, strict=True))
        cache.length += len(tokens)
        return logits

    def _no_speech_prob(self, rows: NDArray[np.float32]) -> float:
        """Probability of the no-speech token after start-of-transcript, 0 where there is none."""
        if self._bundle.tokens.no_speech is None:
            return 0.0
        row: Logits = rows[self._bundle.prompt.index(self._bundle.tokens.start)]
        return float(np.exp(guards.log_softmax(row)[self._bundle.tokens.no_speech]))

    def _check(self, logprobs: Sequence[float]) -> None:
        if not all(map(math.isfinite, logprobs)):
            raise ModelError(
                f"{self._bundle.folder / STEP}: expected finite logits, found NaN; "
                "the encoder or the bundle is at fault"
            )


def choose_guards(bundle: Bundle, settings: DecoderSettings) -> Guards:
    """The configured guards, the bundle's where the configuration leaves the choice to it.

    Raises ConfigError when fewer positions are asked for than the encoder gives.
    """
    if 0 < settings.positions < bundle.positions:
        raise ConfigError(
            f"[decoder] positions: expected 0 or at least {bundle.positions} (what the encoder of "
            f"bundle {bundle.name} gives), found {settings.positions}"
        )
    advice = bundle.guards
    return Guards(
        positions=settings.positions or advice.positions,
        repetition_penalty=settings.repetition_penalty or advice.repetition_penalty,
        eot_boost=advice.eot_boost if settings.eot_boost < 0 else settings.eot_boost,
    )


def _layered(bundle: Bundle, kind: str, keys: Shape, values: Shape) -> dict[str, Shape]:
    """Names and shapes of the keys and values of every layer."""
    return {
        f"{kind}_{part}_{layer}": shape
        for layer in range(bundle.decoder_layers)
        for part, shape in (("keys", keys), ("values", values))
    }
