"""The rules of the beam search, with networks of a few tokens."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from appliance.infer.beam import CHUNK, Text, search
from appliance.infer.network import Step

A, B, C, END = range(4)
Odds = Callable[[tuple[int, ...]], Sequence[float]]
"""Probabilities of what follows a text."""

EMPTY = np.zeros((0, 0), np.float32)


class Texts:
    """A network that keeps its texts in rows, as the real one keeps their keys and values."""

    def __init__(self, odds: Odds) -> None:
        self._odds, self.steps = odds, 0
        self.rows: list[tuple[int, ...]] = [()]

    def ahead(self) -> Step:
        odds = np.array([self._odds(row) for row in self.rows])
        with np.errstate(divide="ignore"):
            logits = np.log(odds).astype(np.float32)
        return Step(logits + 1, np.log(odds.sum(axis=1)) + 1, EMPTY)

    def follow(self, parents: Sequence[int], columns: Sequence[int]) -> Step:
        self.steps += 1
        pairs = zip(parents, columns, strict=True)
        self.rows = [(*self.rows[parent], column) for parent, column in pairs]
        return self.ahead()

    def search(self, size: int, limit: int = 10, **others: Callable[[], bool]) -> Text | None:
        return search(self.ahead(), self.follow, end=END, size=size, limit=limit, **others)


def table(odds: Mapping[tuple[int, ...], Sequence[float]]) -> Odds:
    """Of the texts in the table; all others are at their end."""
    return lambda text: odds.get(text, (0, 0, 0, 1))


GARDEN_PATH = table({(): (0.5, 0.4, 0.1, 0), (A,): (0.4, 0.3, 0.3, 0), (B,): (0, 0, 0.9, 0.1)})


def test_a_text_whose_first_token_is_not_the_likeliest_can_win() -> None:
    greedy, best = (Texts(GARDEN_PATH).search(size) for size in (1, 2))
    assert greedy and greedy.columns == (A, A)
    assert best and best.columns == (B, C) and best.ended
    assert best.logprobs == pytest.approx((math.log(0.4), math.log(0.9), 0), abs=1e-6)


def test_the_best_mean_wins_although_its_sum_is_less() -> None:
    odds = table({(): (0.6, 0.4, 0, 0), (A,): (0.6, 0, 0, 0.4), (A, A): (0, 0, 1, 0)})
    best = Texts(odds).search(3)
    # sums: a -1.43, b -0.92, aac -1.02; means for each token: -1.43, -0.92, -0.34
    assert best and best.columns == (A, A, C)


def test_the_search_ends_as_soon_as_enough_texts_are_finished() -> None:
    texts = Texts(lambda _: (0.3, 0.2, 0.1, 0.4))
    texts.search(2)
    # the end is likelier than all else: the empty text ends first, then two of one token
    assert texts.steps == 1


def test_an_end_that_is_not_among_the_first_candidates_is_not_finished() -> None:
    odds = table({(): (0.5, 0.4, 0.1, 0), (A,): (0.9, 0, 0, 0.1), (B,): (0.8, 0, 0, 0.2)})
    best = Texts(odds).search(2)
    # 0.45 a a, 0.32 b a, then 0.08 b end and 0.05 a end
    assert best and best.columns == (A, A)


@pytest.mark.parametrize("size", [1, 3])
def test_a_text_that_never_ends_has_the_most_tokens_allowed(size: int) -> None:
    best = Texts(lambda _: (0.5, 0.3, 0.2, 0)).search(size, limit=7)
    assert best and best.columns == (A,) * 7
    assert not best.ended


def test_a_search_without_time_gives_nothing() -> None:
    answers = iter([True, True, False])
    texts = Texts(lambda _: (0.5, 0.3, 0.2, 0))
    assert texts.search(2, should_continue=lambda: next(answers)) is None
    assert texts.steps == 2


def test_a_network_without_a_possible_token_gives_nothing() -> None:
    nothing = Step(np.full((1, 4), np.nan, np.float32), np.array([math.nan]), EMPTY)
    assert search(nothing, lambda *_: nothing, end=END, size=2, limit=5) is None


@pytest.mark.parametrize("seed", range(20))
def test_texts_in_rows_are_those_of_a_search_that_computes_each_again(seed: int) -> None:
    tokens = 3 * CHUNK + 5

    def odds(text: tuple[int, ...]) -> Sequence[float]:
        drawn = np.random.default_rng([seed, *text]).exponential(size=tokens) ** 4
        drawn[END] += 40 * len(text)
        found: list[float] = (drawn / drawn.sum()).tolist()
        return found

    found = Texts(odds).search(5, limit=6)
    assert found and (found.columns, found.ended) == _searched_plainly(odds, 5, 6)


def _searched_plainly(odds: Odds, size: int, limit: int) -> tuple[tuple[int, ...], bool]:
    """The same rules, with every continuation of every text written out and sorted."""
    alive: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished: list[tuple[float, tuple[int, ...], bool]] = []
    for length in range(1, limit + 1):
        every = sorted(
            (total + math.log(chance), (*text, column))
            for total, text in alive
            for column, chance in enumerate(odds(text))
            if chance
        )[::-1][: 2 * size]
        done = [(total, text[:-1]) for total, text in every[:size] if text[-1] == END]
        finished += [(total / max(1, len(text)), text, True) for total, text in done]
        alive = [(total, text) for total, text in every if text[-1] != END][:size]
        if len(finished) >= size:
            break
        if length == limit:
            left = alive[: size - len(finished)]
            finished += [(total / len(text), text, False) for total, text in left]
    _, text, ended = max(finished)
    return text, ended
