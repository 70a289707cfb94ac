"""What stands behind a window of 10 s where Whisper was trained on 30: zeros, or silence's states.

The product puts a few virtual positions there (the first row). In the others all are really
computed, so the decoder is one of a longer window, and the encoder that of 10 s with states behind.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from appliance.convert import Recipe, build_bundle
from appliance.infer import CpuEncoder, Encoder
from appliance.lab.benchmark.steps import open_plain
from appliance.lab.words import ProductRecogniser, Recognised, Recorded, count_words
from appliance.model import (
    FRAMES_PER_POSITION,
    LONGEST_WINDOW_S,
    POSITIONS_PER_SECOND,
    SILENT_MEL,
    WINDOW_S,
    Bundle,
    load_bundle,
)
from appliance.records import Mel, States

SOUND, TRAINED = (round(s * POSITIONS_PER_SECOND) for s in (WINDOW_S, LONGEST_WINDOW_S))
PLACES = (600, 650, 700, TRAINED)
ROWS = (
    (SOUND, "nothing"),
    *((places, what) for what in ("zeros", "silence") for places in PLACES),
)
COLUMNS = (
    "positions, and what is behind the window",
    *("words wrong %", "texts right", "loops", "discarded", "tokens", "decoder ms"),
)


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


def build_padded(checkpoint: Path, scratch: Path, places: Sequence[int]) -> dict[int, Bundle]:
    """Return bundles of so many positions, written into `scratch`. Raises ModelError."""
    bundles = {}
    for positions in places:
        folder, window_s = scratch / f"padded-{positions}", positions / POSITIONS_PER_SECOND
        if not folder.exists():
            build_bundle(checkpoint, folder, Recipe("padding", window_s, quantize="int8"))
        bundles[positions] = load_bundle(folder)
    return bundles


def padding_table(
    checkpoint: Path, recordings: Sequence[Recorded], scratch: Path
) -> Iterator[list[str]]:
    """Yield the rows of the table. Raises ModelError."""
    bundles = build_padded(checkpoint, scratch, (SOUND, *PLACES))
    sound, longest = bundles[SOUND], bundles[TRAINED]
    mel = np.full((longest.frames, longest.n_mels), SILENT_MEL, np.float32)
    silent = CpuEncoder(longest, 1).encode(mel)
    with open_plain(sound, TRAINED) as transcriber:
        recogniser = ProductRecogniser(transcriber)
        heard = [recogniser.hear(one.samples) for one in recordings]
    name = f"{SOUND}, {sound.silences} virtual ones of silence (as configured)"
    yield [name, *judged(heard, recordings)]
    for positions, behind in ROWS:
        padded = silent[sound.positions : positions] * (behind == "silence")
        with open_plain(bundles[positions], positions) as transcriber:
            transcriber.encoder.close()
            transcriber.encoder = PaddedEncoder(sound, padded)
            recogniser = ProductRecogniser(transcriber, window_s=WINDOW_S)
            heard = [recogniser.hear(one.samples) for one in recordings]
        yield [f"{positions}, {behind}", *judged(heard, recordings)]


def judged(heard: Sequence[Recognised], recordings: Sequence[Recorded]) -> list[str]:
    """Return the cells of COLUMNS behind the name."""
    words = count_words(heard, recordings)
    tokens, decoder_ms = (
        sum(getattr(one, name) for one in heard) / len(heard) for name in ("tokens", "decoder_ms")
    )
    counts = map(str, (words.right, words.loops, words.discarded))
    return [f"{words.wer:.1f}", *counts, f"{tokens:.1f}", f"{decoder_ms:.0f}"]
