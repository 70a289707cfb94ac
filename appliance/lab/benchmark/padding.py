"""What stands behind a window of 10 s where Whisper was trained on 30: zeros, or silence's states.

The product puts a few virtual positions there. Here they are all really computed, so the decoder is
one of a longer window, and the encoder that of 10 s with states behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np

from appliance.config import PhrasesSettings, Settings
from appliance.convert import Recipe, build_bundle
from appliance.infer import CpuEncoder, Decoder, Encoder, open_transcriber
from appliance.lab.words import ProductRecogniser, Recorded, count_words
from appliance.model import (
    FRAMES_PER_POSITION,
    LONGEST_WINDOW_S,
    SILENT_MEL,
    WINDOW_S,
    Bundle,
    load_bundle,
)
from appliance.records import Mel, States

WINDOWS = {500: WINDOW_S, 700: 14.0, 1500: LONGEST_WINDOW_S}
"""Seconds of the windows with so many positions."""
ROWS = ((500, "nothing"), (700, "zeros"), (700, "silence"), (1500, "zeros"), (1500, "silence"))


class PaddedEncoder(Encoder):
    """An encoder of 10 s, with states behind. One thread."""

    name = "cpu"

    def __init__(self, sound: Bundle, behind: States) -> None:
        """`behind`: (n, d_model). Raises ModelError."""
        self._inner, self._computed, self._behind = CpuEncoder(sound, 1), sound.positions, behind

    def encode(self, mel: Mel) -> States:
        """Return states (P, d_model) of `mel` (2 P, n_mels), whose end is silent."""
        states = self._inner.encode(mel[: self._computed * FRAMES_PER_POSITION])
        return np.concatenate((states, self._behind))


def padding_table(checkpoint: Path, recordings: Sequence[Recorded], scratch: Path) -> Iterator[str]:
    """Yield the lines of the table, bundles written into `scratch`. Raises ModelError."""
    bundles = {}
    for positions, window_s in WINDOWS.items():
        folder = scratch / str(positions)
        build_bundle(checkpoint, folder, Recipe("padding", window_s, quantize="int8"))
        bundles[positions] = load_bundle(folder)
    longest = bundles[1500]
    mel = np.full((longest.frames, longest.n_mels), SILENT_MEL, np.float32)
    silent = CpuEncoder(longest, 1).encode(mel)
    # the search of expected sentences is no part of Whisper
    settings = replace(Settings(), phrases=PhrasesSettings(file=""))
    yield "positions and what is behind the window  WER  right  loops  discarded"
    for positions, behind in ROWS:
        padded = silent[bundles[500].positions : positions] * (behind == "silence")
        with open_transcriber(settings, bundle=bundles[positions]) as transcriber:
            transcriber.encoder.close()
            transcriber.encoder = PaddedEncoder(bundles[500], padded)
            cast(Decoder, transcriber.decoder).positions = positions  # and nothing behind them
            recogniser = ProductRecogniser(transcriber, window_s=WINDOW_S)
            heard = [recogniser.hear(one.samples) for one in recordings]
        words = count_words(heard, recordings)
        yield (
            f"{positions:4} {behind:35} {words.wer:.1f} {words.right:5} {words.loops:6} "
            f"{words.discarded:10}"
        )
