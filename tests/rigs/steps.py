"""Steps of a decoder's network on the CPU, with the logits of the whole vocabulary."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from appliance.infer.decoder import Decoder


def start(decoder: Decoder, states: NDArray[np.float32]) -> None:
    """Begin a window with encoder states (P, d_model)."""
    decoder._network.begin(states, decoder.positions)
    decoder._computed = ()


def step(decoder: Decoder, tokens: Sequence[int]) -> NDArray[np.float32]:
    """Logits (n, vocabulary) after each of n more tokens, none suppressed."""
    every = range(len(tokens))
    found = decoder._network.advance(tokens, every, every)
    logits = np.empty((len(tokens), decoder._bundle.vocabulary_size), np.float32)
    logits[:, decoder._kept] = found.logits
    logits[:, decoder._left_out] = found.left_out
    return logits


def logits_of(
    decoder: Decoder, states: NDArray[np.float32], tokens: Sequence[int]
) -> NDArray[np.float32]:
    """The same after each token of a whole text, prompt included."""
    start(decoder, states)
    return step(decoder, tokens)
