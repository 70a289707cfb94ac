"""Vocal tract length normalisation (VTLN): throats of other lengths, for a text that is not sure.

A longer vocal tract has lower formants: the spectrum of a child is that of a man, stretched. Where
a model has heard few throats, a text that it is not sure of is written twice more, from the window
as a longer and as a shorter throat would have said it, and the likeliest of the three counts
(maximum likelihood over warp factors: Lee and Rose, ICASSP 1996).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from appliance.infer.decoder import Decoded, Decoder
from appliance.infer.encoder import Encoder
from appliance.infer.mel import warp
from appliance.model import Vtln
from appliance.records import Mel, States


class OtherThroats:
    """Hears a window again, as two others would have said it. One thread, the decoder's."""

    def __init__(self, vtln: Vtln, encoder: Encoder, decoder: Decoder) -> None:
        """`encoder` may be in use by another thread, as a CpuEncoder may."""
        self._vtln, self._encoder, self._decoder = vtln, encoder, decoder

    def best(
        self, first: Decoded, mel: Mel, states: States, decode: Callable[[States], Decoded]
    ) -> tuple[Decoded, float]:
        """The likeliest text of a window with this `mel`, of whose `states` the decoder wrote
        `first` just before, and the milliseconds that the encoder took for the others.

        The decoder is left with the states of what was chosen. An empty text is not heard again,
        and none is chosen. Raises ModelError.
        """
        if not first.tokens or first.avg_logprob >= self._vtln.below:
            return first, 0.0
        found, encode_ms = [(first, states)], 0.0
        for factor in (1 - self._vtln.warp, 1 + self._vtln.warp):
            begun_s = time.perf_counter()
            states = self._encoder.encode(warp(mel, factor))
            encode_ms += 1000 * (time.perf_counter() - begun_s)
            found.append((decode(states), states))
        likely, chosen = max(
            (one for one in found if one[0].tokens), key=lambda one: sum(one[0].logprobs)
        )
        if chosen is not states:
            self._decoder.start(chosen)
        return replace(likely, no_speech_prob=first.no_speech_prob), encode_ms
