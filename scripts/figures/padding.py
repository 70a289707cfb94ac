"""Compare what stands behind a window of 10 s: nothing, zeros, or states of silence.

    scripts/measure padding [--weights FOLDER] [--recordings FOLDER]

Whisper was trained on windows of 30 s, 1500 positions. The product puts a few virtual positions of
silence behind its 500; here up to 700 and 1500 are really computed. --weights: a folder of
CTranslate2's (default: Whisper tiny.en, as scripts/setup.sh fetched it).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from rigs.recordings import SHARED_AUDIO
from rigs.weights import find_weights

from appliance.config import PhrasesSettings, Settings
from appliance.convert import Recipe, build_bundle
from appliance.infer import CpuEncoder, Decoder, open_transcriber
from appliance.lab.words import ProductRecogniser, count_words, read_recordings
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


SETTINGS = replace(Settings(), phrases=PhrasesSettings(file=""))
"""The search of expected sentences is no part of Whisper."""


class PaddedEncoder:
    """An encoder of 10 s, with states behind. One thread."""

    name = "cpu"
    trouble: str | None = None

    def __init__(self, sound: Bundle, behind: States) -> None:
        """`behind`: (n, d_model). Raises ModelError."""
        self._inner, self._computed, self._behind = CpuEncoder(sound, 1), sound.positions, behind

    def encode(self, mel: Mel) -> States:
        """Return states (P, d_model) of `mel` (2 P, n_mels), whose end is silent."""
        states = self._inner.encode(mel[: self._computed * FRAMES_PER_POSITION])
        return np.concatenate((states, self._behind))

    def poll(self, now_s: float) -> None:
        """Nothing to do."""

    def facts(self) -> dict[str, Any]:
        """Return nothing: there is no chip."""
        return {}

    def close(self) -> None:
        """Nothing to free."""


def main() -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser("scripts/measure padding", description=__doc__)
    parser.add_argument("--weights", type=Path, default=find_weights())
    parser.add_argument("--recordings", type=Path, default=SHARED_AUDIO)
    options = parser.parse_args()
    if options.weights is None:
        parser.error("no weights of tiny.en: run scripts/setup.sh, or give --weights FOLDER")
    recordings = read_recordings(options.recordings)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        bundles = {}
        for positions, window_s in WINDOWS.items():
            folder = Path(scratch, str(positions))
            build_bundle(options.weights, folder, Recipe("padding", window_s, quantize="int8"))
            bundles[positions] = load_bundle(folder)
        longest = bundles[1500]
        mel = np.full((longest.frames, longest.n_mels), SILENT_MEL, np.float32)
        silent = CpuEncoder(longest, 1).encode(mel)
        print("positions, behind the window | words wrong % | texts right | loops | discarded")
        for positions, behind in ROWS:
            padded = silent[500:positions]
            encoder = PaddedEncoder(bundles[500], padded * (behind == "silence"))
            with open_transcriber(SETTINGS, bundle=bundles[positions]) as transcriber:
                transcriber.encoder.close()
                transcriber.encoder = encoder
                cast(Decoder, transcriber.decoder).positions = positions  # and nothing behind them
                recogniser = ProductRecogniser(transcriber, window_s=WINDOW_S)
                heard = [recogniser.hear(one.samples) for one in recordings]
            words = count_words(heard, recordings)
            print(f"{positions}, {behind} | {words.wer:.1f} | {words.right} of {words.recordings} "
                  f"| {words.loops} | {words.discarded}", flush=True)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
