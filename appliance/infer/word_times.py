"""When each word of a finished text was spoken, by the decoder's attention to the sound.

Some heads of the cross-attention look at the sound of the token that they are about to write; the
checkpoint names them. Their weights for the whole text, computed in one pass, are made comparable,
and the likeliest way through them that only goes forward (dynamic time warping) gives each token
its positions (openai/whisper, timing.py).
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from appliance.infer.overlap import is_unspaced
from appliance.infer.tokenizer import Tokenizer
from appliance.model import POSITIONS_PER_SECOND
from appliance.records import SAMPLE_RATE, Samples, Word

SMOOTHED = 7
"""Positions of 20 ms over which the weights' median is taken, as Whisper does."""
POSITION = SAMPLE_RATE // POSITIONS_PER_SECOND
"""Samples of an encoder position."""
PAUSE = 6
"""Positions of the shortest pause; within words there are shorter ones, before a plosive."""
VOICE_DB, NOISE_SHARE = 30.0, 0.1
"""Speech is at most so much softer than its loudest moment; the quietest positions are noise."""

Floats = NDArray[np.float32]


def time_words(
    weights: Floats, first: int, tokens: Sequence[int], tokenizer: Tokenizer, samples: Samples
) -> tuple[Word, ...]:
    """Return the words of `tokens`, in seconds from the begin of the window's `samples`.

    `weights` (A, n, P) are those of A heads to P positions, from each of the n tokens of prompt and
    text; token `first` is the prompt's last, which writes the text's first. The attention tells
    where a word is most; if there is a pause between two such places, the words end and begin
    there, otherwise where the way goes from one to the other.
    """
    positions = max(1, min(weights.shape[2], len(samples) // POSITION))
    gains = _comparable(weights[:, :, :positions])[first:]
    begins = [*_begins(gains), positions]
    words = [word for word in _words(tokens, tokenizer) if word]
    spoken = [[place for place in word if _is_spoken(tokens[place], tokenizer)] for word in words]
    peaks = [_peak(gains, begins, some or word) for some, word in zip(spoken, words, strict=True)]
    peaks = [0, *peaks, positions]
    edges = [0, *(begins[word[0]] for word in words[1:]), begins[words[-1][-1] + 1]]
    pauses = _pauses(samples[: positions * POSITION])
    seams = [
        _seam(edge, pauses, *around) for edge, around in zip(edges, pairwise(peaks), strict=True)
    ]
    found = list[Word]()
    for word, ((_, start), (end, _)) in zip(words, pairwise(seams), strict=True):
        text = tokenizer.detokenize([tokens[place] for place in word]).strip()
        times = (at / POSITIONS_PER_SECOND for at in (start, max(start, end)))
        found += [Word(text, *times)] if text else []
    return tuple(found)


def _is_spoken(token: int, tokenizer: Tokenizer) -> bool:
    """Return False for punctuation, which looks at the pause."""
    return any(letter.isalnum() for letter in tokenizer.detokenize([token]))


def _peak(gains: Floats, begins: Sequence[int], word: Sequence[int]) -> int:
    """Return the position of a word's strongest attention on the way through its tokens."""
    best, found = -np.inf, begins[word[0]]
    for token in word:
        span = gains[token, begins[token] : begins[token + 1]]
        if span.size and span.max() > best:
            best, found = float(span.max()), begins[token] + int(span.argmax())
    return found


def _seam(edge: int, pauses: Sequence[tuple[int, int]], before: int, after: int) -> tuple[int, int]:
    """Return where the word before ends and the next one begins: at the longest of the pauses that
    lie between their peaks, or at `edge`."""
    between = [pause for pause in pauses if before <= pause[1] <= after]
    return max(between, key=lambda pause: pause[1] - pause[0], default=(edge, edge))


def _pauses(samples: Samples) -> list[tuple[int, int]]:
    """Return where each pause begins and ends, in positions."""
    powers = np.square(samples.reshape(-1, POSITION), dtype=np.float32).mean(axis=1)
    decibels = 10 * np.log10(np.maximum(powers, 1.0))
    noise, loud = np.quantile(decibels, NOISE_SHARE), decibels.max()
    quiet = decibels < max(loud - VOICE_DB, noise + (loud - noise) / 4)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], quiet, [0]))))
    runs = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    return [(begin, end) for begin, end in runs if end - begin >= PAUSE]


def _words(tokens: Sequence[int], tokenizer: Tokenizer) -> list[list[int]]:
    """Return the places of each word's tokens: a word begins with a space; without spaces, with a
    whole character that is no punctuation."""
    unspaced = is_unspaced(tokenizer.detokenize(tokens))
    words: list[list[int]] = []
    for place, token in enumerate(tokens):
        data = tokenizer.token_bytes(token)
        if unspaced:
            letters = data.decode("utf-8", "replace")
            begins = data[:1] != b"" and data[0] & 0xC0 != 0x80 and letters.strip()[:1].isalnum()
        else:
            begins = data.startswith(b" ")
        if begins or not words:
            words.append([])
        words[-1].append(place)
    return words


def _comparable(weights: Floats) -> Floats:
    """Return the heads' mean (n, P) of their weights, each position's relative to those of all
    tokens, and smoothed."""
    shares = weights / weights.sum(axis=2, keepdims=True)
    spread = shares.std(axis=1, keepdims=True)
    relative = (shares - shares.mean(axis=1, keepdims=True)) / np.maximum(spread, 1e-9)
    around = SMOOTHED // 2
    if relative.shape[2] > around:
        padded = np.pad(relative, ((0, 0), (0, 0), (around, around)), mode="reflect")
        windows = np.lib.stride_tricks.sliding_window_view(padded, SMOOTHED, axis=2)
        relative = np.median(windows, axis=3)
    mean: Floats = relative.mean(axis=0)
    return mean


def _begins(gains: Floats) -> list[int]:
    """Return the position at which the best way through (n, P) comes to each of the n tokens. A
    step goes to the next token, the next position, or both."""
    tokens, positions = gains.shape
    best = np.empty((tokens, positions), np.float64)
    best[0] = np.cumsum(gains[0])
    for token in range(1, tokens):
        come = best[token - 1].copy()
        come[1:] = np.maximum(come[1:], best[token - 1, :-1])
        total = np.cumsum(gains[token], dtype=np.float64)
        best[token] = total + np.maximum.accumulate(come - total + gains[token])
    begins = [0] * tokens
    token, position = tokens - 1, positions - 1
    while token or position:
        begins[token] = position
        ways = [
            (best[one], one)
            for one in ((token - 1, position - 1), (token - 1, position), (token, position - 1))
            if min(one) >= 0
        ]
        token, position = max(ways)[1]
    begins[0] = 0
    return begins
