"""Compare a model's tokens with CTranslate2's, in float32: one line for each that differs.

    scripts/measure model [--weights FOLDER] [--recordings FOLDER] [--beam-size 5]

Both get the same log-mel of 30 s and the same prompt, and decode greedily, or search a beam.
--weights: a folder of CTranslate2's (default: Whisper tiny.en, as scripts/setup.sh fetched it).
--recordings (default: $ROOMSCRIBE_SHARED/data/audio): those of at most 30 s whose text is in the
folder's list. The exit status is 1 if a sequence differs. Word errors: `roomscribe benchmark`.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import ctranslate2
import numpy as np
from rigs.recordings import SHARED_AUDIO
from rigs.weights import find_weights

from appliance.convert.build import Recipe, build_bundle
from appliance.infer.decoder import Decoder
from appliance.infer.encoder import CpuEncoder
from appliance.infer.mel import window_mel
from appliance.infer.network import TEXTS
from appliance.lab.words import read_recordings
from appliance.model import Bundle, load_bundle
from appliance.records import SAMPLE_RATE, Mel, Samples

WINDOW_S = 30.0
"""Of Whisper's training; CTranslate2 has no other."""
THREADS = 1
"""CTranslate2's threads wait busily, which is slow on a machine that does other things."""


def main() -> int:
    """Print the comparison; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, default=find_weights())
    parser.add_argument("--recordings", type=Path, default=SHARED_AUDIO)
    parser.add_argument("--beam-size", type=int, default=1, choices=range(1, TEXTS + 1))
    options = parser.parse_args()
    if options.weights is None:
        parser.error("no weights of tiny.en: run scripts/setup.sh, or give --weights FOLDER")
    same = all_tokens = count = 0
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        folder = Path(scratch) / "bundle"
        build_bundle(options.weights, folder, Recipe("exact", WINDOW_S))
        pair = TokenComparison(options.weights, load_bundle(folder))
        for recorded in read_recordings(options.recordings):
            if len(recorded.samples) > WINDOW_S * SAMPLE_RATE:
                continue
            ours, theirs = pair.tokens(recorded.samples, options.beam_size)
            count, same, all_tokens = count + 1, same + (ours == theirs), all_tokens + len(theirs)
            if ours != theirs:
                print(f"{recorded.text!r}: ours {ours}, CTranslate2's {theirs}")
    print(f"{same} of {count} sequences are identical, {all_tokens} tokens")
    return int(same < count or not count)


class TokenComparison:
    """The same weights in float32 twice: in this program and in CTranslate2."""

    def __init__(self, weights: Path, bundle: Bundle) -> None:
        """`weights`: CTranslate2's folder. `bundle`: made of it, with windows of 30 s, float32."""
        self.bundle = bundle
        self._encoder = CpuEncoder(bundle, THREADS)
        self._decoder = Decoder(bundle, THREADS)
        self._other = ctranslate2.models.Whisper(
            str(weights), compute_type="float32", intra_threads=THREADS
        )

    def tokens(
        self, samples: Samples, beam_size: int = 1
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return our tokens and CTranslate2's for (n,) int16, at most 30 s."""
        mel = window_mel(samples, self.bundle.n_mels, self.bundle.frames)
        ours = self._decoder.decode(self._encoder.encode(mel), WINDOW_S)
        if beam_size > 1:
            ours = self._decoder.search(beam_size, ours, WINDOW_S)
        return ours.tokens, self._others(mel, beam_size)

    def _others(self, mel: Mel, beam_size: int) -> tuple[int, ...]:
        features = np.ascontiguousarray(mel.T[None])
        [result] = self._other.generate(
            self._other.encode(ctranslate2.StorageView.from_array(features)),
            [list(self.bundle.prompt)],
            beam_size=beam_size,
            suppress_tokens=list(self.bundle.suppressed),
        )
        return tuple(result.sequences_ids[0])


if __name__ == "__main__":
    sys.exit(main())
