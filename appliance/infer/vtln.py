"""Vocal tract length normalisation (VTLN): a second pass over windows with a doubtful text.

A longer vocal tract has lower formants: a child's spectrum is a man's, stretched. A model that was
trained on few voices decodes a doubtful window again: as it is, and with the spectrum of a longer
and a shorter vocal tract. The likeliest text counts (maximum likelihood over warp factors: Lee and
Rose, ICASSP 1996). Each decode is a beam search.
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


class VtlnRescorer:
    """Decodes a doubtful window again with other warp factors. One thread, the decoder's."""

    def __init__(self, bundle: Bundle, vtln: Vtln, encoder: Encoder, decoder: Decoder) -> None:
        """`encoder` may be in use by another thread, as a CpuEncoder may."""
        self._vtln, self._encoder, self._decoder = vtln, encoder, decoder
        self._beam = BeamSearch(bundle, decoder, vtln.beam)

    def rescore(
        self,
        first: Decoded,
        mel: Mel,
        states: States,
        duration_s: float,
        should_continue: Callable[[], bool] = lambda: True,
    ) -> tuple[Decoded, float]:
        """Return the likeliest text of a window, and the milliseconds of the encoder for it.

        `first` is what the decoder just wrote for `states`, the encoder's output for `mel`. Returns
        `first` and 0 if that is sure or empty. Afterwards the decoder holds the states of the
        chosen text. No further warp factor is tried once `should_continue` is False. Raises
        ModelError.
        """
        if not first.tokens or first.avg_logprob >= self._vtln.below:
            return first, 0.0
        likely, chosen, encode_ms = first, states, 0.0
        cache = self._decoder.restart()
        warped = (1 - self._vtln.warp, 1 + self._vtln.warp) if self._vtln.warp else ()
        for factor in (None, *warped):
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
