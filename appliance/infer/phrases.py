"""Which of the expected sentences a window is likely to say.

The decoder scores what may follow a prefix in one step, and the prefix that keeps up best with the
free text is continued first (best-first search). Words that the network of `sentences` does not
allow are never scored. The probability of the best sentence is weighed against the other sentences
found, and against something else that was said: by the free text, by the words in which the two
differ, and by whether the sound says a report ("turned") in place of the order ("turn").
"""

from __future__ import annotations

import heapq
import logging
import math
import unicodedata
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from appliance.errors import ConfigError, ModelError
from appliance.infer.sentences import (
    END,
    HOME_SLOTS,
    MARKS,
    START,
    State,
    WordNetwork,
    plain,
    spoken,
)
from appliance.infer.tokenizer import Tokenizer
from appliance.infer.wording import Wording, compare, compare_letters, past
from appliance.model import Bundle
from appliance.records import EXPECTED_FROM, Name, NoAct, Phrase, Tier

if TYPE_CHECKING:
    from appliance.infer.decoder import Decoded, Decoder

log = logging.getLogger("roomscribe.infer")

STEPS_AT_MOST = 12
"""Steps of the decoder in a search. Of 80 texts of tiny.en, one reaches them."""
BEHIND = 5.0
"""A prefix whose tokens are so much less likely (natural logarithm) than those of the free text are
on average is dropped. With 6, the same sentences of at least 50 % take 2.7 steps for a text in
place of 2.0."""
REST = 0.2
"""A search ends when all prefixes that wait are together at most so likely, in comparison with the
best sentence: most of what begins so is no sentence."""
LISTED_SURE = 0.8
"""A text that is one of the sentences needs no search if its tokens have this mean probability."""
FLOOR = 0.02
"""A sentence of less confidence is not reported."""
CANDIDATES = 3
"""Likeliest sentences that a search reports."""
ENDS = (".", "?", "!")
"""What models with punctuation may put after a sentence, in place of ending the text. The text is
taken to end behind it."""

MOST_ODDS = 4.0
"""Log-odds (98 %) up to which a sentence's share counts: in a short list, one sentence is by far
the likeliest whatever was spoken."""
LEADS = (-4.0, 5.0)
"""Least and largest lead of the free text over an expected sentence that counts."""
NO_REPORT, REPORT = -4.0, 4.0
"""Least and largest log-odds of a report."""
SOMEBODY, REPORT_FROM = "She", 3.0
"""Before a verb, this makes the model expect a report ("She turned"), so that what it hears of an
order counts; and the log-odds that orders often have there, chosen on four of eight voices."""
GUARDED_FROM, DOUBTED = 0.95, 0.5
"""A guarded sentence of less confidence, or whose words differ from the text, gets at most DOUBTED;
so does one that opens something, without the address phrase, if a report may sound the same."""
SECURING = ("lock", "close", "shut", "lower", "pull down", "stop", "cancel", "delete", "snooze")
"""Beginnings of orders that a report does not turn into harm."""
LIKELIER = 3.0
"""Lead of a text with one other word ("barn" for "garden") from which on that was said."""
ALIKE = 0.5
"""Share of letters that text and sentence must have in common. Of people's commands the least is
0.8; "thank you" for "Right." has 0.15."""
BEGUN = 2
"""Letters of a word by which one is known that breaks off."""

Tokens = tuple[int, ...]
Items = frozenset[tuple[State, Tokens]]
"""States of the network, each with the tokens that are left of the word that leads there."""


class Evidence(NamedTuple):
    """What the confidence of the likeliest sentence is made of."""

    sentence: str
    share: float
    """Of the probability of all sentences that were found, 0..1."""
    mean: float
    """Mean natural log-probability of its tokens."""
    lead: float
    """Natural log-probability of the free text minus the sentence's."""
    text: float
    """Confidence of the free text, 0..1."""
    wording: Wording
    """How the free text differs from it."""
    report: float = NO_REPORT
    """Log-odds (natural) that the sound says its first verb in the past, minus REPORT_FROM."""

    def values(self) -> dict[str, float]:
        """Return what the fields of PhraseCalibration weigh."""
        return {
            "share": log_odds(self.share),
            "mean": self.mean,
            "lead": min(max(self.lead, LEADS[0]), LEADS[1]),
            "text": log_odds(self.text),
            "report": max(0.0, self.report),
            **self.wording._asdict(),
        }


def log_odds(share: float) -> float:
    """Return the log-odds of a probability 0..1, cut at MOST_ODDS."""
    least = 1.0 / (1.0 + math.exp(MOST_ODDS))
    share = min(1.0 - least, max(least, share))
    return math.log(share / (1.0 - share))


class _Heard(NamedTuple):
    """The free text that sentences are compared with."""

    text: str
    """As `plain` gives it."""
    logprob: float
    """Natural log-probability."""
    confidence: float


class _Prefix(NamedTuple):
    """A beginning of sentences that waits to be continued. The least goes first."""

    rank: float
    number: int
    """Unique, to break ties."""
    score: float
    """Natural log-probability up to the first token of the chain."""
    tokens: Tokens
    chain: Tokens
    """Tokens behind them whose steps have not been computed."""
    items: Items
    """Where the sentences continue."""


class Phrases:
    """The sentences of a network in a bundle's tokens. One thread, the decoder's."""

    def __init__(
        self, network: WordNetwork, bundle: Bundle, tokenizer: Tokenizer, decoder: Decoder
    ) -> None:
        """Raises ConfigError for a word that the bundle cannot write."""
        from appliance.infer.network import SHARED_ROWS  # loads ONNX Runtime

        self._rows_at_most = SHARED_ROWS
        self._network, self._bundle, self._tokenizer = network, bundle, tokenizer
        self._decoder = decoder
        self._cased = tokenizer.cased
        self._tokens: dict[tuple[str, bool], list[tuple[int, ...]]] = {}
        self._followers: dict[Items, tuple[dict[Items, Tokens], bool]] = {}
        marks = ENDS if self._cased else ()
        self._ends = (bundle.tokens.end_of_text, *(tokenizer.tokenize(mark)[0] for mark in marks))
        self.steps = STEPS_AT_MOST
        """Most steps of the decoder for a window, each of one or several tokens."""
        self.evidence: Evidence | None = None
        """Of the sentence that the last `find` found, reported or not."""
        self.candidates: tuple[Phrase, ...] = ()
        """The likeliest sentences that the last `find` found, however unlikely."""
        self.guard: NoAct | None = None
        """Why nothing may act on the likeliest one, nor on a text that says it."""
        self._suppressed = frozenset(bundle.suppressed)
        self._renewed: WordNetwork | None = None
        for word in {word for edges in network.edges for word, _ in edges}:
            if not self._can_write(word):
                key = "[phrases] file"
                if word.lower() in network.address.split():
                    key = "[assist] phrase"
                raise ConfigError(
                    f"{key}: expected words that model {bundle.name} can write "
                    f"({', '.join(bundle.languages[:3])}), found {word[:40]!r}"
                )

    def _can_write(self, word: str) -> bool:
        strange = set(self._bundle.languages) <= {"en"} and any(
            letter.isalpha() and "LATIN" not in unicodedata.name(letter, "") for letter in word
        )
        return not strange and all(
            self._suppressed.isdisjoint(tokens) for tokens in self._write(word, False)
        )

    def set_names(self, names: Sequence[Name]) -> None:
        """Set the names of the home for HOME_SLOTS, from the next window on. Names that the bundle
        cannot write are left out. Any thread."""
        if self._network.rebuild is None:
            return
        home: dict[str, list[str]] = {}
        guarded = {name for name, tier in names if tier is Tier.GUARDED}
        for name, tier in names:
            words = spoken(name).split()
            if words and all(map(self._can_write, words)):
                for slot in (slot for slot, tiers in HOME_SLOTS.items() if tier in tiers):
                    home.setdefault(slot, []).append(name)
        try:
            renewed = self._network.rebuild(home)
            renewed.guarded |= guarded
            self._renewed = renewed
        except ConfigError as error:
            log.warning("the names of the home are left out of the expected sentences: %s", error)

    def warm_up(self) -> None:
        """Search once: the first search is slower, because it allocates arrays."""
        self._search((), 0.0)

    def find(
        self, written: Decoded, should_continue: Callable[[], bool] = lambda: True
    ) -> Phrase | None:
        """Return the likeliest sentence for the states of which the decoder just wrote `written`,
        or None if none was found.

        `should_continue` is called before each step and may end the search. Raises ModelError.
        """
        if renewed := self._renewed:
            self._network, self._renewed, self._followers = renewed, None, {}
        self.evidence, self.candidates, self.guard = None, (), None
        free = sum(written.logprobs)
        mean = free / len(written.logprobs)
        text = plain(self._tokenizer.detokenize(written.tokens))
        heard = _Heard(text, free, self._bundle.calibration.confidence(written.logprobs))
        if mean >= math.log(LISTED_SURE) and self.holds(text):
            return self._report({text: (free, len(written.tokens))}, heard)
        scores = self._search(written.tokens, -mean, should_continue)
        # add up the ways to write one sentence: case, punctuation, digits
        ways: dict[str, list[tuple[float, str, int]]] = {}
        for tokens, score in scores.items():
            words = plain(self._tokenizer.detokenize(tokens))
            way = score, words, len(tokens)
            ways.setdefault(self._network.with_digits(words), []).append(way)
        sentences = {
            max(same)[1]: (
                float(np.logaddexp.reduce([score for score, _, _ in same])),
                min(length for _, _, length in same),
            )
            for same in ways.values()
        }
        return self._report(sentences, heard)

    def _report(self, sentences: dict[str, tuple[float, int]], heard: _Heard) -> Phrase | None:
        """Keep the likeliest of some sentences, each with its log-probability and its tokens, and
        return the best."""
        within = float(np.logaddexp.reduce([score for score, _ in sentences.values()]))
        found = list[Phrase]()
        for words in sorted(sentences, key=sentences.__getitem__, reverse=True)[:CANDIDATES]:
            slots = self._network.parse(words.split())
            if slots is None:
                break
            score, length = sentences[words]
            share = min(1.0, math.exp(score - within))
            mean, lead = score / (length + 1), heard.logprob - score
            wording = compare(heard.text, words)
            evidence = Evidence(words, share, mean, lead, heard.confidence, wording)
            confidence = self._confidence(evidence)
            if not found:
                if confidence >= EXPECTED_FROM:
                    evidence = evidence._replace(report=self._report_odds(words))
                    confidence = self._confidence(evidence)
                    if confidence < EXPECTED_FROM:  # the text may still be the order
                        self.guard = NoAct.UNSURE
                self.evidence = evidence
            name = str(slots.pop(""))
            alike = compare_letters(*map(self._without_address, (heard.text, words)))
            if alike < ALIKE or (0 < wording.changed < 1 and lead > LIKELIER):
                confidence = min(confidence, DOUBTED)
            means = {name, *map(str, slots.values()), *(f"{a}={b}" for a, b in slots.items())}
            if guard := self._find_guard(words, means, evidence):
                confidence = min(confidence, DOUBTED)
                if not found and confidence >= FLOOR:
                    self.guard = guard
            found.append(Phrase(words, name, slots, confidence))
        self.candidates = tuple(found)
        return found[0] if found and found[0].confidence >= FLOOR else None

    def _find_guard(self, words: str, means: set[str], evidence: Evidence) -> NoAct | None:
        """Return why an order with these meanings may not act if it is guarded: it is less sure
        than GUARDED_FROM; or it opens something, and a report ("unlocked") may sound the same."""
        if self._network.guarded.isdisjoint(means):
            return None
        order = self._without_address(words)
        report = NO_REPORT if order.startswith(SECURING) else evidence.report
        sure = self._confidence(evidence._replace(report=report))
        if any(evidence.wording) or report > 0 or sure < GUARDED_FROM:
            return NoAct.GUARDED
        may_be_report = report > NO_REPORT and past(order.split()[0]).endswith("ed")
        return NoAct.UNSURE if may_be_report and order == words else None

    def _confidence(self, evidence: Evidence) -> float:
        """The probability that a sentence was said, and not something else."""
        return self._bundle.phrase_calibration.confidence(evidence.values())

    def _report_odds(self, sentence: str) -> float:
        """Return the log-odds that the sound says the first verb of a sentence in the past, in two
        steps of the decoder. One word behind the verb tells all that the sound has."""
        words = self._without_address(sentence).split()
        somebody, behind, scores = SOMEBODY if self._cased else SOMEBODY.lower(), words[1:2], []
        for verb in (words[0], past(words[0])):
            try:
                tokens = self._tokenizer.tokenize(f" {' '.join((somebody, verb, *behind))}")
            except ModelError:  # a vocabulary without some letters
                return NO_REPORT
            tokens = tokens[: self._rows_at_most + 1]
            odds = self._decoder.odds((*self._decoder.prompt, *tokens[:-1]), len(tokens) - 1)
            scores.append(sum(odds.at(at, (token,))[0] for at, token in enumerate(tokens[1:])))
        return min(max(scores[1] - scores[0] - REPORT_FROM, NO_REPORT), REPORT)

    def _without_address(self, text: str) -> str:
        """A text without the address phrase in front, if something follows that."""
        address = self._network.address
        return text.removeprefix(f"{address} ") if address else text

    def holds(self, text: str) -> bool:
        """True if a text is one of the sentences, but for case and punctuation."""
        return self._network.parse(plain(text).split()) is not None

    def continues(self, text: str) -> bool:
        """True if a longer sentence begins with a text."""
        return bool(self._network.following(plain(text).split()))

    def breaks_off(self, text: str) -> bool:
        """True if a text is only the beginning of sentences, perhaps up to within a word: "turn on
        the lip" for "turn on the living room lamp"."""
        *words, last = plain(text).split() or [""]
        if not last or self.holds(text):
            return False
        following, begun = self._network.following(words) if words else (), last[:BEGUN]
        longer = any(len(last) < len(one) and one.startswith(begun) for one in following)
        return longer or self.continues(text)

    def _search(
        self,
        written: Tokens,
        hope: float,
        should_continue: Callable[[], bool] = lambda: True,
    ) -> dict[Tokens, float]:
        """Tokens of complete sentences with their natural log-probability, end-of-text's included.

        `written` is the free text, and `hope` the cost of each of its tokens. Best-first search:
        the prefix whose tokens cost least in comparison with `hope` is continued first. If it is
        the beginning of the free text, its pass computes the next tokens of that, too.
        """
        decoder, prompt = self._decoder, self._decoder.prompt
        decoder.restart()
        found: dict[Tokens, float] = {}
        waiting = [_Prefix(0.0, 0, 0.0, (), (), frozenset([(START, ())]))]
        number = steps = 0
        while waiting and steps < self.steps and should_continue():
            rest = float(np.logaddexp.reduce([one.score for one in waiting]))
            if found and rest < max(found.values()) + math.log(REST):
                break
            _, _, score, known, chain, items = heapq.heappop(waiting)
            tokens, rows = (*known, *chain), max(1, len(chain))
            ahead = self._shared(written, tokens, items)[: self._rows_at_most - rows]
            if len(prompt) + len(tokens) + len(ahead) >= decoder.capacity:
                continue
            # one pass computes chain and free text: row n tells what follows its token n
            odds = decoder.odds((*prompt, *tokens, *ahead), rows + len(ahead))
            steps += 1
            score += sum(odds.at(row, (token,))[0] for row, token in enumerate(chain[1:]))
            for row, next_one in enumerate((*ahead, None), rows - 1):
                followers, whole = self._follow(items)
                if whole:
                    found[tokens] = score + float(np.logaddexp.reduce(odds.at(row, self._ends)))
                every = tuple(token for same in followers.values() for token in same)
                chances = dict(zip(every, odds.at(row, every), strict=True))
                keeps_up = -BEHIND - score - hope * (len(tokens) + 1)
                for behind, same in followers.items():
                    chance = float(np.logaddexp.reduce([chances[token] for token in same]))
                    if next_one in same:
                        items, gained = behind, chance
                    elif chance >= keeps_up:
                        number += 1
                        after = self._chain(max(same, key=chances.__getitem__), behind)
                        ranked = keeps_up - chance, number, score + chance, tokens
                        heapq.heappush(waiting, _Prefix(*ranked, *after))
                if next_one is not None:
                    score, tokens = score + gained, (*tokens, next_one)
        return found

    def _shared(self, written: Tokens, tokens: Tokens, items: Items) -> Tokens:
        """The tokens of the free text behind `tokens` that sentences may continue with."""
        if written[: len(tokens)] != tokens:
            return ()
        for at in range(len(tokens), len(written)):
            followers, _ = self._follow(items)
            fitting = [one for one, same in followers.items() if written[at] in same]
            if not fitting:
                return written[len(tokens) : at]
            (items,) = fitting
        return written[len(tokens) :]

    def _chain(self, token: int, items: Items) -> tuple[Tokens, Items]:
        """A token and those that must follow it, up to where sentences part or end; and the items
        there."""
        chain = [token]
        while len(chain) < self._rows_at_most:
            followers, whole = self._follow(items)
            if whole or sum(map(len, followers.values())) != 1:
                break
            ((items, (token,)),) = followers.items()
            chain.append(token)
        return tuple(chain), items

    def _follow(self, items: Items) -> tuple[dict[Items, Tokens], bool]:
        """The items that may come next, each with the tokens that lead there, which are ways to
        write one word; and whether a sentence may end here."""
        if (known := self._followers.get(items)) is not None:
            return known
        after: dict[int, set[tuple[State, Tokens]]] = {}
        states = set()
        for state, left in items:
            if left:  # within a word
                after.setdefault(left[0], set()).add((state, left[1:]))
            else:
                states.add(state)
        reached = self._network.closure(states)
        for state in reached:
            for word, end in self._network.words(state):
                for tokens in self._write(word, START in states):
                    after.setdefault(tokens[0], set()).add((end, tokens[1:]))
        followers: dict[Items, Tokens] = {}
        for token, more in after.items():
            behind = frozenset(more)
            followers[behind] = (*followers.get(behind, ()), token)
        self._followers[items] = followers, END in reached
        return self._followers[items]

    def _write(self, word: str, first: bool) -> list[tuple[int, ...]]:
        """The tokens of a word, in each way that the model may write it."""
        known = self._tokens.get((word, first))
        if known is None:
            forms = {word.lower()}
            if self._cased:
                forms |= {word} | ({word[:1].upper() + word[1:]} if first else set())
                if word.lower() == self._network.address.rpartition(" ")[2]:
                    forms |= {f"{form}," for form in forms}
            known = [self._tokenizer.tokenize(f" {form}") for form in sorted(forms)]
            if self._cased and (mark := MARKS.get(word.lower())):
                known.append(self._tokenizer.tokenize(mark))
            self._tokens[word, first] = known
        return known
