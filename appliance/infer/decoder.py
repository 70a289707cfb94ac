"""Encoder states to tokens: the decode loop, its guards, and what rescoring needs of its KV cache.

The loop is the same for a network on the CPU and one on a Hailo. A column is a token's index among
the logits; suppressed tokens have none.

Over 500 lines because rescoring and expected sentences use the loop's own steps and candidates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.config import DecoderSettings
from appliance.errors import ConfigError, ModelError
from appliance.infer.languages import Languages
from appliance.infer.network import Network, Step, StepNetwork
from appliance.model import STEP_FILE, Bundle, Guards
from appliance.records import Logits, States

TOKENS_PER_SECOND = 15
TOKENS_AT_LEAST = 24
"""Most tokens of a text: this many, plus TOKENS_PER_SECOND of sound. Whisper's own limit is 224 in
30 s, half as many; the fastest English speech has about 8 per second."""
SEED = 0
"""Of the random draws at temperatures above 0, for each decode: same sound, same text."""
BALANCED_SHARE = 0.2
"""Share of the positions that the model was trained on and the window does not fill."""
AHEAD = 8
"""Tokens of a text that `logprobs` scores in one pass."""


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """One window's tokens."""

    tokens: tuple[int, ...]
    """Without prompt and end-of-text."""
    logprobs: tuple[float, ...]
    """Natural log-probability of each token, then end-of-text's if it was reached; after
    suppression, before penalty, boost and temperature."""
    no_speech_prob: float
    ended: bool
    """True if end-of-text was reached."""
    language: str = ""
    """The language, if the decoder had to recognise it."""
    language_probability: float = math.nan

    @property
    def avg_logprob(self) -> float:
        """Whisper's: the sum of the log-probabilities over the number of tokens plus one."""
        return sum(self.logprobs) / (len(self.tokens) + 1)


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Tokens that may be written next; minus infinity: impossible."""

    columns: NDArray[np.intp]
    logits: Logits
    """One per column."""
    written: NDArray[np.intp]
    """Indices, into `columns`, of tokens to penalise."""
    end: int
    """Index of end-of-text."""
    total: float
    """Logarithm of the sum of exp(logit) of all tokens, not only of these."""


@dataclass(frozen=True, slots=True, eq=False)
class LogOdds:
    """Natural log-probabilities of all tokens after each of n tokens, minus infinity for suppressed
    ones. Overwritten by the decoder's next step."""

    logits: NDArray[np.float32]
    """(n, K), of the tokens that are not suppressed."""
    totals: NDArray[np.float64]
    """(n,), logarithms of the sum of exp(logit)."""
    column_of: NDArray[np.intp]
    """(vocabulary,), each token's column; K for a suppressed one."""

    def at(self, row: int, tokens: Sequence[int]) -> list[float]:
        """Return those of some tokens after one of the n."""
        columns = self.column_of[list(tokens)]
        kept = columns < self.logits.shape[1]
        found = np.full(len(columns), -math.inf)
        found[kept] = self.logits[row, columns[kept]]
        chances: list[float] = (found - self.totals[row]).tolist()
        return chances

    def row(self, row: int) -> NDArray[np.float64]:
        """Return those of all tokens after one of the n, (vocabulary,); a copy."""
        every = np.append(self.logits[row], np.float32(-math.inf)).astype(np.float64)
        every -= self.totals[row]
        return every[self.column_of]


@dataclass(slots=True)
class Cache:
    """Handle of the window being decoded, whose keys and values the decoder holds."""

    length: int = 0
    """Tokens so far."""
    tokens: tuple[int, ...] = ()
    """The text, prompt included, whose steps are in the cache."""


def suppress(logits: Logits, columns: NDArray[np.intp]) -> Logits:
    """Return logits (n,) with minus infinity at `columns`; a copy."""
    result = logits.copy()
    result[columns] = -np.inf
    return result


def penalise(logits: Logits, written: NDArray[np.intp], penalty: float) -> Logits:
    """Return logits with a repetition penalty on the columns already `written`, once each.

    Positive logits are divided by `penalty`, negative ones multiplied (Keskar et al. 2019, CTRL);
    1 is off.
    """
    if penalty == 1.0 or not len(written):
        return logits
    result, columns = logits.copy(), np.unique(written)
    chosen = result[columns]
    result[columns] = np.where(chosen > 0, chosen / penalty, chosen * penalty)
    return result


def boost_end(logits: Logits, end_of_text: int, boost: float) -> Logits:
    """Return logits with `boost` added to end-of-text's, so that it wins if it is that close."""
    if boost == 0.0:
        return logits
    result = logits.copy()
    result[end_of_text] += boost
    return result


def sample(logits: Logits, temperature: float, rng: np.random.Generator) -> int:
    """Return a column drawn from softmax(logits / temperature); the best one at 0."""
    if temperature == 0.0:
        return int(np.argmax(logits))
    # Gumbel-max: the greatest of logits with Gumbel noise is a draw from their softmax
    return int(np.argmax(logits / np.float32(temperature) + rng.gumbel(size=logits.shape)))


def best_except(logits: Logits, columns: NDArray[np.intp]) -> int:
    """Return the column of the greatest logit that is not among `columns`. They are overwritten
    for a moment: copying 50,000 numbers per token would take longer than all the guards."""
    hidden = logits[columns]
    logits[columns] = -np.inf
    best = int(np.argmax(logits))
    logits[columns] = hidden
    return best


def log_sum(logits: Logits) -> float:
    """Return the logarithm of the sum of exp(logits)."""
    peak = float(np.max(logits))
    return peak + math.log(float(np.exp(logits - np.float32(peak)).sum()))


class Decoder:
    """The decoder with its network on the CPU. One thread."""

    def __init__(self, bundle: Bundle, rules: Guards, threads: int) -> None:
        """Loads the graphs; `threads` 0: one per core. Raises ModelError."""
        self.rules = rules
        """May be changed between windows; all cost the same time."""
        self._bundle, self._network = bundle, Network(bundle, threads)
        self._kept, self._left_out = bundle.kept, bundle.left_out
        self._end = int(self._columns_of([bundle.tokens.end_of_text])[0])
        self._barred_first = self._columns_of(bundle.suppressed_first)
        self._start = bundle.prompt.index(bundle.tokens.start)
        self.prompt = bundle.prompt
        """The bundle's prompt, with the language of the last window."""
        self.languages: Languages | None = None
        """The languages to recognise; None: the prompt's language is spoken."""
        self._every = np.arange(len(self._kept))
        self._column_of = np.full(bundle.vocabulary_size, len(self._kept))
        self._column_of[self._kept] = self._every
        self._cache = Cache()

    def decode(
        self,
        states: States,
        duration_s: float,
        temperature: float = 0.0,
        network: StepNetwork | None = None,
        language: str = "",
    ) -> Decoded:
        """Return the tokens for states (P, d_model) of `duration_s` of sound; greedy at
        temperature 0.

        `network` replaces the CPU's; `language` is what this room spoke before. Raises ModelError,
        and what `network` raises.
        """
        network = network or self._network
        self._cache = Cache()  # invalidates the handle of the window before
        rng = np.random.Generator(np.random.PCG64(SEED))
        network.begin(states, self.rules.positions)
        step, row = self._begin(network), 1
        no_speech_prob = self._no_speech_prob(step)
        language, probability = self._recognise(step, language)
        if self._set_language(language):  # the prompt has changed: its steps are computed again
            self._network.rewind(0)
            step = self._begin(network)
        prompt = self.prompt
        columns: list[int] = []
        tokens: list[int] = []
        logprobs: list[float] = []
        limit = min(network.capacity - len(prompt), self.token_limit(duration_s))
        for _ in range(limit):
            found = self._candidates(step, row, columns, everything=temperature > 0)
            scores = penalise(found.logits, found.written, self.rules.repetition_penalty)
            scores = boost_end(scores, found.end, self.rules.eot_boost)
            best = sample(scores, temperature, rng)
            logprobs.append(self._finite(float(found.logits[best]) - found.total))
            column = int(found.columns[best])
            if column == self._end:
                break
            columns.append(column)
            tokens.append(int(self._kept[column]))
            if len(columns) < limit:
                step, row = network.advance((tokens[-1],), (0,)), 0
        self._cache = Cache(tokens=(*prompt, *tokens) if network is self._network else ())
        ended = len(logprobs) > len(tokens)
        return Decoded(tuple(tokens), tuple(logprobs), no_speech_prob, ended, language, probability)

    def logprobs(self, tokens: Sequence[int], begin: int) -> tuple[float, ...]:
        """Return the natural log-probabilities of a text's tokens from index `begin` on, then of
        its end, as in `Decoded`, for the states of the last `decode` or `start` on the CPU.

        They differ a little from a decode's if 8-bit products of several tokens share one scale.
        Raises ModelError.
        """
        written = (*self.prompt, *tokens)
        first = len(self.prompt) + begin - 1  # the token whose step gives the first wanted one
        known = self._known(written[:first])
        self._cache, found = Cache(tokens=written), list[float]()
        following = (*written[1:], self._bundle.tokens.end_of_text)
        if known < len(self.prompt):  # prompt steps have a shape of their own
            known = len(self.prompt)
            self._network.rewind(0)
            step = self._begin(self._network)
            found += [self._logprob(step, 1, following[first], first=True)] * (begin == 0)
        while known < len(written):
            step = self._steps(known, ahead := written[known : known + AHEAD])
            for row in range(max(0, first - known), len(ahead)):
                found.append(self._logprob(step, row, following[known + row]))
            known += len(ahead)
        return tuple(found)

    def _known(self, written: Sequence[int]) -> int:
        """Count the first tokens of a text, prompt included, whose steps are in the cache."""
        known = 0
        for token, held in zip(written, self._cache.tokens, strict=False):
            if token != held:
                break
            known += 1
        return known

    def _steps(self, known: int, tokens: Sequence[int]) -> Step:
        """The steps of at most AHEAD tokens after the `known` ones, in one pass."""
        network = self._network
        network.rewind(known)
        # padded to one length, since each length would have its own arrays
        behind = min(AHEAD, network.capacity - known) - len(tokens)
        ahead = (*tokens, *[tokens[-1]] * behind)
        return network.advance(ahead, range(len(ahead)))

    def _begin(self, network: StepNetwork) -> Step:
        """The steps of start-of-transcript and of the last token of the prompt."""
        return network.advance(self.prompt, (self._start, len(self.prompt) - 1), (0,))

    def _logprob(self, step: Step, row: int, token: int, *, first: bool = False) -> float:
        """Log-probability of a token after the step's row."""
        found = self._candidates(step, row, () if first else (0,), everything=True)
        column = int(self._columns_of([token])[0])
        index = np.flatnonzero(found.columns == column)
        logit = found.logits[index[0]] if len(index) else step.logits[row, column]
        return float(logit) - found.total

    def _recognise(self, step: Step, before: str) -> tuple[str, float]:
        """The language and its probability, by the first row of a step; "" and NaN if there is
        nothing to recognise."""
        if self.languages is None:
            return "", math.nan
        logits = np.empty(self._bundle.vocabulary_size, np.float32)
        logits[self._kept], logits[self._left_out] = step.logits[0], step.left_out[0]
        return self.languages.choose(logits, before)

    def _set_language(self, language: str) -> bool:
        """Put a language into the prompt; True if that changed it."""
        if self.languages is None:
            return False
        before, index = self.prompt, self._start + 1
        self.prompt = (*before[:index], self.languages.tokens[language], *before[index + 1 :])
        return self.prompt != before

    def token_limit(self, duration_s: float) -> int:
        """Return the most tokens that a text of `duration_s` may have."""
        sane = TOKENS_AT_LEAST + math.ceil(TOKENS_PER_SECOND * duration_s)
        return min(self._bundle.max_tokens - len(self._bundle.prompt), sane)

    def start(self, states: States) -> Cache:
        """Begin a window with states (P, d_model) float32 and silence behind, up to the rules'
        positions; the last cache becomes invalid. Raises ModelError."""
        self._network.begin(states, self.rules.positions)
        self._cache = Cache()
        return self._cache

    @property
    def capacity(self) -> int:
        """Most tokens of a text, prompt included."""
        return self._network.capacity

    def restart(self) -> Cache:
        """Begin again with the states of the last `decode` or `start` on the CPU; the last cache
        becomes invalid."""
        self._network.rewind(0)
        self._cache = Cache()
        return self._cache

    def step(self, cache: Cache, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return logits (n, vocabulary) float32 after each of n tokens, which are added to the
        cache. Raises ValueError for an invalid cache.
        """
        if cache is not self._cache:
            raise ValueError("the cache is of an earlier window")
        every = range(len(tokens))
        step = self._network.advance(tokens, every, every)
        cache.length = self._network.length
        logits = np.empty((len(tokens), self._bundle.vocabulary_size), np.float32)
        logits[:, self._kept] = step.logits
        logits[:, self._left_out] = step.left_out
        return logits

    def odds(self, cache: Cache, tokens: tuple[int, ...], rows: int = 1) -> LogOdds:
        """Return what may follow each of the last `rows` tokens of a text, prompt included.

        The cache becomes that of this text; steps that it shares with the last one are not computed
        again. Raises ValueError for an invalid cache.
        """
        if cache is not self._cache:
            raise ValueError("the cache is of an earlier window")
        known = self._known(tokens[:-rows])
        self._network.rewind(known)
        new = len(tokens) - known
        step = self._network.advance(tokens[known:], range(new - rows, new))
        cache.length, cache.tokens = self._network.length, tokens
        totals = np.array([_total(*each) for each in zip(step.logits, step.odds, strict=True)])
        return LogOdds(step.logits, totals, self._column_of)

    def _candidates(
        self, step: Step, row: int, columns: Sequence[int], *, everything: bool
    ) -> Candidates:
        """The tokens that may follow that of a step's `row`; `columns` are written already.

        Unless `everything` is wanted, only tokens that can be the best one: those that the guards
        change, and the best of the others.
        """
        penalised = self.rules.repetition_penalty != 1.0
        written = np.unique(np.array(columns if penalised else (), np.intp))
        logits: Logits = step.logits[row]
        if first := not columns and len(self._barred_first) > 0:
            logits = suppress(logits, self._barred_first)
        if everything:
            return Candidates(self._every, logits, written, self._end, log_sum(logits))
        changed = np.append(written, self._end)
        possible = np.append(changed, best_except(logits, changed))
        values = logits[possible]
        total = log_sum(logits) if first else _total(values, step.odds[row, possible])
        return Candidates(possible, values, np.arange(len(written)), len(written), total)

    def _no_speech_prob(self, step: Step) -> float:
        """Probability of the no-speech token after start-of-transcript; 0 if the model has none."""
        token = self._bundle.tokens.no_speech
        if token is None:
            return 0.0
        logits = step.logits[0]
        best = int(np.argmax(logits))
        kept = _total(logits[best : best + 1], step.odds[0, best : best + 1])
        with np.errstate(invalid="ignore"):  # NaN is found by `_finite`
            total = float(np.logaddexp(kept, log_sum(step.left_out[0])))
        if token in self._left_out:
            logit = step.left_out[0, np.searchsorted(self._left_out, token)]
        else:
            logit = logits[self._columns_of([token])[0]]
        return math.exp(float(logit) - total)

    def _columns_of(self, tokens: Sequence[int]) -> NDArray[np.intp]:
        """Columns of token ids; suppressed ones are dropped."""
        wanted = np.array(tokens, np.intp)
        return np.searchsorted(self._kept, wanted[np.isin(wanted, self._kept)])

    def _finite(self, logprob: float) -> float:
        if not math.isfinite(logprob):
            raise ModelError(
                f"{self._bundle.folder / STEP_FILE}: expected finite logits, found NaN; "
                "the encoder or the bundle is at fault"
            )
        return logprob


def _total(logits: Logits, odds: NDArray[np.float32]) -> float:
    """Logarithm of the sum of exp(logit) of all tokens, from some logits and their softmax."""
    best = int(np.argmax(logits))
    return float(logits[best]) - math.log(float(odds[best]) or math.nan)


def preset_guards(bundle: Bundle, preset: str) -> Guards:
    """Return the guards of a preset for the bundle's window.

    For a 10 s window (500 positions) of a model trained on 30 s (1500):

    conservative   1500 positions, no penalty, no boost: as the model was trained
    balanced        700 positions, penalty 1.1, boost 0.2: a fifth of the missing positions
    aggressive      500 positions, penalty 1.2, boost 0.5: the window's own, nothing added

    A 5 s window (250) has 1500, 500 and 250; a model trained on its window's length never pads.
    """
    if preset == "bundle":
        return bundle.guards
    missing = bundle.trained_positions - bundle.positions
    return {
        "conservative": Guards(bundle.trained_positions, 1.0, 0.0),
        "balanced": Guards(bundle.positions + round(BALANCED_SHARE * missing), 1.1, 0.2),
        "aggressive": Guards(bundle.positions, 1.2, 0.5),
    }[preset]


def choose_guards(bundle: Bundle, settings: DecoderSettings) -> Guards:
    """Return the configured guards, the preset's where the configuration leaves them to it.

    Raises ConfigError for fewer positions than the encoder gives.
    """
    if 0 < settings.positions < bundle.positions:
        raise ConfigError(
            f"[decoder] positions: expected 0 or at least {bundle.positions} (what the encoder of "
            f"bundle {bundle.name} gives), found {settings.positions}"
        )
    advice = preset_guards(bundle, settings.preset)
    return Guards(
        positions=settings.positions or advice.positions,
        repetition_penalty=settings.repetition_penalty or advice.repetition_penalty,
        eot_boost=advice.eot_boost if settings.eot_boost < 0 else settings.eot_boost,
    )
