"""Encoder states to tokens: the decode loop, and what rescoring needs of its KV cache.

The loop is the same for a network on the CPU and one on a Hailo. A column is a token's index among
the logits; suppressed tokens have none.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from appliance.errors import ModelError
from appliance.infer.beam import search
from appliance.infer.languages import Languages
from appliance.infer.network import Network, Step, StepNetwork, log_sum
from appliance.model import STEP_FILE, Bundle
from appliance.records import Logits, States

TOKENS_PER_SECOND = 15
TOKENS_AT_LEAST = 24
"""Most tokens of a text: this many, plus TOKENS_PER_SECOND of sound. Whisper's own limit is 224 in
30 s, half as many; the fastest English speech has about 8 per second."""
AHEAD = 8
"""Tokens of a text that `logprobs` scores in one pass."""


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """One window's tokens."""

    tokens: tuple[int, ...]
    """Without prompt and end-of-text."""
    logprobs: tuple[float, ...]
    """Natural log-probability of each token, then end-of-text's if it was reached; after
    suppression."""
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


def suppress(logits: Logits, columns: NDArray[np.intp]) -> Logits:
    """Return logits (n,) with minus infinity at `columns`; a copy."""
    result = logits.copy()
    result[columns] = -np.inf
    return result


class Decoder:
    """The decoder with its network on the CPU. One thread."""

    def __init__(self, bundle: Bundle, threads: int) -> None:
        """Loads the graphs; `threads` 0: one per core. Raises ModelError."""
        self.positions = bundle.trained_positions
        """The window's positions and those that silence fills. Comparisons change it between
        windows."""
        self._bundle, self._network = bundle, Network(bundle, threads)
        self._kept, self._left_out = bundle.kept, bundle.left_out
        self._end = int(self._columns_of([bundle.tokens.end_of_text])[0])
        self._barred_first = self._columns_of(bundle.suppressed_first)
        self._start = bundle.prompt.index(bundle.tokens.start)
        self.prompt = bundle.prompt
        """The bundle's prompt, with the language of the last window."""
        self.languages: Languages | None = None
        """The languages to recognise; None: the prompt's language is spoken."""
        self.known_languages: Mapping[str, int] = {}
        """Tokens of the languages that a caller of `decode` may name."""
        self._column_of = np.full(bundle.vocabulary_size, len(self._kept))
        self._column_of[self._kept] = np.arange(len(self._kept))
        self._computed: tuple[int, ...] = ()
        """The text, prompt included, whose keys and values the network holds."""

    def decode(
        self,
        states: States,
        duration_s: float,
        network: StepNetwork | None = None,
        language: str = "",
        only: str = "",
    ) -> Decoded:
        """Return the likeliest token after each for states (P, d_model) of `duration_s` of sound.

        `network` replaces the CPU's; `language` is what this room spoke before, and `only` one of
        `known_languages` that is spoken for certain. Raises ModelError, and what `network` raises.
        """
        network = network or self._network
        self._computed = ()
        network.begin(states, self.positions)
        step, row = self._begin(network), 1
        no_speech_prob = self._no_speech_prob(step)
        probability = math.nan
        if only in self.known_languages:
            language = only
        else:
            language, probability = self._recognise(step, language)
        if self._set_language(language):  # the prompt has changed: its steps are computed again
            self._network.rewind(0)
            step = self._begin(network)
        prompt = self.prompt
        limit = min(network.capacity - len(prompt), self.token_limit(duration_s))
        tokens, logprobs = self._write(network, step, row, limit, first=True)
        self._computed = (*prompt, *tokens) if network is self._network else ()
        ended = len(logprobs) > len(tokens)
        return Decoded(tuple(tokens), tuple(logprobs), no_speech_prob, ended, language, probability)

    def decode_behind(self, beginning: Sequence[int], known: Decoded, duration_s: float) -> Decoded:
        """Return the likeliest text that begins with some tokens, for the states of the last
        `decode` on the CPU, which gave `known`; `known` itself if nothing follows them.

        The last of these tokens counts as certain: nobody can hear a mark. Raises ModelError.
        """
        network = self._network
        self.restart()
        self._begin(network)
        step = network.advance(beginning, (len(beginning) - 1,))
        room = min(network.capacity - len(self.prompt), self.token_limit(duration_s))
        tokens, _ = self._write(network, step, 0, room - len(beginning))
        if not tokens:
            return known
        whole = (*beginning, *tokens)
        logprobs = list(self.logprobs(whole, 0))
        logprobs[len(beginning) - 1] = 0.0
        return replace(known, tokens=whole, logprobs=tuple(logprobs), ended=len(whole) < room)

    def _write(
        self, network: StepNetwork, step: Step, row: int, limit: int, *, first: bool = False
    ) -> tuple[list[int], list[float]]:
        """Return the likeliest token after each, at most `limit`, and their log-probabilities, then
        end-of-text's if it was reached. The step's row tells what comes first; `first`: of the
        text."""
        tokens: list[int] = []
        logprobs: list[float] = []
        for _ in range(limit):
            column, logprob = self._best(step, row, first=first and not tokens)
            logprobs.append(logprob)
            if column == self._end:
                break
            tokens.append(int(self._kept[column]))
            if len(tokens) < limit:
                step, row = network.advance((tokens[-1],), (0,)), 0
        return tokens, logprobs

    def search(
        self,
        size: int,
        greedy: Decoded,
        duration_s: float,
        should_continue: Callable[[], bool] = lambda: True,
    ) -> Decoded:
        """Return the best text of a beam of `size` for the states of the last `decode` on the CPU,
        which gave `greedy`; `greedy` itself if `should_continue` became False.

        Log-probabilities are as in a greedy text, so its confidence is made in the same way. Raises
        ModelError.
        """
        network = self._network
        self.restart()  # the first text of the beam overwrites that of `greedy`
        step = self._begin(network)
        logits = suppress(step.logits[1], self._barred_first)
        text = search(
            replace(step, logits=logits[None], totals=np.array([log_sum(logits)])),
            lambda parents, columns: network.advance_texts(parents, self._kept[columns].tolist()),
            end=self._end,
            size=size,
            limit=min(network.capacity - len(self.prompt), self.token_limit(duration_s)),
            should_continue=should_continue,
        )
        if text is None:
            return greedy
        tokens = tuple(int(self._kept[column]) for column in text.columns)
        return replace(greedy, tokens=tokens, logprobs=text.logprobs, ended=text.ended)

    def logprobs(self, tokens: Sequence[int], begin: int) -> tuple[float, ...]:
        """Return the natural log-probabilities of a text's tokens from index `begin` on, then of
        its end, as in `Decoded`, for the states of the last `decode` on the CPU.

        They differ a little from a decode's if 8-bit products of several tokens share one scale.
        Raises ModelError.
        """
        written = (*self.prompt, *tokens)
        first = len(self.prompt) + begin - 1  # the token whose step gives the first wanted one
        known = self._known(written[:first])
        self._computed, found = written, list[float]()
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

    def attention(self, states: States, tokens: Sequence[int]) -> tuple[NDArray[np.float32], int]:
        """Return the weights (A, n, P) with which the bundle's A alignment heads look at the
        window's P positions, from each of n tokens, prompt included; and the place of the prompt's
        last token. Raises ModelError."""
        self._computed = ()
        self._network.begin(states, self.positions)
        return self._network.attention((*self.prompt, *tokens)), len(self.prompt) - 1

    def _known(self, written: Sequence[int]) -> int:
        """Count the first tokens of a text, prompt included, whose steps are in the cache."""
        pairs = zip(written, self._computed, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

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
        """Log-probability of a token after the step's row; `first`: the first of the text."""
        logits, total = self._after(step, row, first=first)
        return float(logits[self._columns_of([token])[0]]) - total

    def _after(self, step: Step, row: int, *, first: bool) -> tuple[Logits, float]:
        """What may follow a step's row, and the logarithm of the sum of exp(logit); `first`: as the
        first token of the text."""
        if not (first and len(self._barred_first)):
            return step.logits[row], float(step.totals[row])
        logits = suppress(step.logits[row], self._barred_first)
        return logits, log_sum(logits)

    def _recognise(self, step: Step, before: str) -> tuple[str, float]:
        """The language and its probability, by the first row of a step; "" and NaN if there is
        nothing to recognise."""
        if self.languages is None:
            return "", math.nan
        logits = np.empty(self._bundle.vocabulary_size, np.float32)
        logits[self._kept], logits[self._left_out] = step.logits[0], step.left_out[0]
        return self.languages.choose(logits, before)

    def _set_language(self, language: str) -> bool:
        """Put a language into the prompt, the bundle's for ""; True if that changed it."""
        before, index, prompt = self.prompt, self._start + 1, self._bundle.prompt
        tokens = {**self.known_languages, **(self.languages.tokens if self.languages else {})}
        if language:
            prompt = (*prompt[:index], tokens[language], *prompt[index + 1 :])
        self.prompt = prompt
        return prompt != before

    def token_limit(self, duration_s: float) -> int:
        """Return the most tokens that a text of `duration_s` may have."""
        sane = TOKENS_AT_LEAST + math.ceil(TOKENS_PER_SECOND * duration_s)
        return min(self._bundle.max_tokens - len(self._bundle.prompt), sane)

    @property
    def capacity(self) -> int:
        """Most tokens of a text, prompt included."""
        return self._network.capacity

    def restart(self) -> None:
        """Begin again with the states of the last `decode` on the CPU."""
        self._network.rewind(0)
        self._computed = ()

    def odds(self, tokens: tuple[int, ...], rows: int = 1) -> LogOdds:
        """Return what may follow each of the last `rows` tokens of a text, prompt included.

        Steps that it shares with the text before are not computed again.
        """
        known = self._known(tokens[:-rows])
        self._network.rewind(known)
        new = len(tokens) - known
        step = self._network.advance(tokens[known:], range(new - rows, new))
        self._computed = tokens
        return LogOdds(step.logits, step.totals, self._column_of)

    def _best(self, step: Step, row: int, *, first: bool) -> tuple[int, float]:
        """The likeliest column after a step's row and its log-probability. Raises ModelError."""
        logits, total = self._after(step, row, first=first)
        column = int(np.argmax(logits))
        logprob = float(logits[column]) - total
        if not math.isfinite(logprob):
            raise ModelError(
                f"{self._bundle.folder / STEP_FILE}: expected finite logits, found NaN; "
                "the encoder or the bundle is at fault"
            )
        return column, logprob

    def _no_speech_prob(self, step: Step) -> float:
        """Probability of the no-speech token after start-of-transcript; 0 if the model has none."""
        token = self._bundle.tokens.no_speech
        if token is None:
            return 0.0
        with np.errstate(invalid="ignore"):  # `_best` finds NaN
            total = float(np.logaddexp(step.totals[0], log_sum(step.left_out[0])))
        if token in self._left_out:
            logit = step.left_out[0, np.searchsorted(self._left_out, token)]
        else:
            logit = step.logits[0, self._columns_of([token])[0]]
        return math.exp(float(logit) - total)

    def _columns_of(self, tokens: Sequence[int]) -> NDArray[np.intp]:
        """Columns of token ids; suppressed ones are dropped."""
        wanted = np.array(tokens, np.intp)
        return np.searchsorted(self._kept, wanted[np.isin(wanted, self._kept)])
