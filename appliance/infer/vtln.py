"""Vocal tract length normalisation (VTLN): throats of other lengths, for a text that is not sure.

A longer vocal tract has lower formants: the spectrum of a child is that of a man, stretched. Where
a model has heard few throats, a text that it is not sure of is written anew, from the window as it
is and as a longer and as a shorter throat would have said it, and the likeliest counts (maximum
likelihood over warp factors: Lee and Rose, ICASSP 1996). Each time many texts are followed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from appliance.infer.beam import BeamSearch
from appliance.infer.decoder import Decoded, Decoder
from appliance.infer.encoder import Encoder
from appliance.infer.mel import warp
from appliance.model import Bundle, Vtln
from appliance.records import Mel, States


class OtherThroats:
    """Hears a window again, as two others would have said it. One thread, the decoder's."""

    def __init__(self, bundle: Bundle, vtln: Vtln, encoder: Encoder, decoder: Decoder) -> None:
        """`encoder` may be in use by another thread, as a CpuEncoder may."""
        self._vtln, self._encoder, self._decoder = vtln, encoder, decoder
        self._beam = BeamSearch(bundle, decoder, vtln.beam)

    def best(
        self,
        first: Decoded,
        mel: Mel,
        states: States,
        duration_s: float,
        should_continue: Callable[[], bool] = lambda: True,
    ) -> tuple[Decoded, float]:
        """The likeliest text of a window with this `mel`, of whose `states` the decoder wrote
        `first` just before, and the milliseconds that the encoder took for the others.

        The decoder is left with the states of what was chosen. An empty text is not heard again,
        and none is chosen. Where it should not continue, no other warp factor is tried. Raises
        ModelError.
        """
        if not first.tokens or first.avg_logprob >= self._vtln.below:
            return first, 0.0
        likely, chosen, encode_ms = first, states, 0.0
        cache = self._decoder.again()
        for factor in (None, 1 - self._vtln.warp, 1 + self._vtln.warp):
            if not should_continue():
                break
            if factor:
                begun_s = time.perf_counter()
                states = self._encoder.encode(warp(mel, factor))
                encode_ms += 1000 * (time.perf_counter() - begun_s)
                cache = self._decoder.start(states)
            found = self._beam.best(cache, duration_s)
            if found and sum(found[1]) > sum(likely.logprobs):
                likely = replace(first, tokens=found[0], logprobs=found[1], ended=True)
                chosen = states
        if chosen is not states:
            self._decoder.start(chosen)
        return likely, encode_ms
