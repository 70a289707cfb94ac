"""Compare a model's tokens with CTranslate2's, in float32: one line for each recording.

    scripts/measure model [--weights FOLDER] [--recordings FOLDER]

Both get the same log-mel of 30 s and the same prompt, and decode greedily. --weights: a folder of
CTranslate2's (default: Whisper tiny.en, as scripts/setup.sh fetched it). --recordings (default:
$ROOMSCRIBE_SHARED/data/audio): those of at most 30 s whose text is in the folder's list. The exit
status is 1 if a sequence differs. Word errors: `roomscribe benchmark`.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

import ctranslate2
import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray
from rigs.recordings import SHARED_AUDIO
from rigs.weights import find_weights
from rigs.word_errors import words

from appliance.capture.frames import Framer
from appliance.capture.segmenter import Segmenter
from appliance.capture.voice import VoiceDetector
from appliance.config import Settings
from appliance.convert.build import Recipe, build_bundle
from appliance.infer.decoder import Decoder
from appliance.infer.encoder import CpuEncoder
from appliance.infer.mel import window_mel
from appliance.infer.phrases import in_words
from appliance.lab.recordings import listed_texts
from appliance.lab.words import read_recordings
from appliance.model import Bundle, load_bundle
from appliance.records import SAMPLE_RATE, Discarded, Mel, Samples, Window

Sound = NDArray[np.float32]

NOT_SPEECH = {"beep", "music", "noise", "silence"}
COMMANDS = {"speech-home-automation", "tts-home-automation"}
SEED = 7
WINDOW_S = 30.0
"""Of Whisper's training; CTranslate2 has no other."""
THREADS = 1
"""CTranslate2's threads wait busily, which is slow on a machine that does other things."""


def main() -> int:
    """Print the comparison; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, default=find_weights())
    parser.add_argument("--recordings", type=Path, default=SHARED_AUDIO)
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
            ours, theirs = pair.tokens(recorded.samples)
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
        self._decoder = Decoder(bundle, bundle.guards, THREADS)
        self._other = ctranslate2.models.Whisper(
            str(weights), compute_type="float32", intra_threads=THREADS
        )

    def tokens(self, samples: Samples) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return our tokens and CTranslate2's for (n,) int16, at most 30 s."""
        mel = window_mel(samples, self.bundle.n_mels, self.bundle.frames)
        ours = self._decoder.decode(self._encoder.encode(mel), WINDOW_S).tokens
        return ours, self._others(mel)

    def _others(self, mel: Mel) -> tuple[int, ...]:
        features = np.ascontiguousarray(mel.T[None])
        [result] = self._other.generate(
            self._other.encode(ctranslate2.StorageView.from_array(features)),
            [list(self.bundle.prompt)],
            beam_size=1,
            suppress_tokens=list(self.bundle.suppressed),
        )
        return tuple(result.sequences_ids[0])


def cut(samples: Samples, settings: Settings, window_s: float) -> list[Window | Discarded]:
    """What detector and segmenter make of a stream, (n,) int16 at 16 kHz."""
    segmenter = Segmenter(VoiceDetector(settings.voice), settings.segmenter, window_s)
    found = [one for frame in Framer().push(samples, 0.0) for one in segmenter.push(frame)]
    return [*found, *segmenter.flush()]


def read(path: Path) -> Sound:
    """A recording as (n,) float32 at 16 kHz mono."""
    sound, rate_hz = soundfile.read(path, dtype="float32", always_2d=True)
    mono = sound.mean(axis=1)
    if rate_hz != SAMPLE_RATE:
        mono = soxr.resample(mono, rate_hz, SAMPLE_RATE)
    return np.asarray(mono, np.float32)


def said_texts(folder: Path) -> dict[str, str]:
    """What is said in each recording of the folder's list; those that have only what was meant
    (SLOTS:) are left out. Exits where there is no list."""
    texts = listed_texts(folder)
    if texts is None:
        sys.exit(f"{folder}: expected MANIFEST.tsv or transcripts.tsv in it, found neither")
    return {name: text for name, text in texts.items() if not text.startswith("SLOTS:")}


def alike(text: str) -> list[str]:
    """The words of a text, as they are compared."""
    spelled = re.sub(r"\d{1,3}", lambda number: f" {in_words(int(number[0]))} ", text)
    return words(spelled.lower().replace("what's", "what is"))


def to_int16(sound: Sound) -> NDArray[np.int16]:
    """(n,) float32 in -1..1 as int16."""
    return np.clip(np.rint(sound * 32767), -32768, 32767).astype(np.int16)


def quiet(rng: np.random.Generator, seconds: float) -> Sound:
    """Room tone: white noise at -66 dBFS."""
    return (rng.standard_normal(int(seconds * SAMPLE_RATE)) * 5e-4).astype(np.float32)


def with_noise(rng: np.random.Generator, sound: Sound, snr_db: float) -> Sound:
    """`sound` in pink noise; the ratio is that of the mean powers."""
    noise = coloured(rng, len(sound), 1.0)
    gain = np.sqrt(np.mean(sound**2) / np.mean(noise**2)) * 10 ** (-snr_db / 20)
    return np.asarray(sound + gain * noise, np.float32)


def coloured(rng: np.random.Generator, length: int, slope: float) -> Sound:
    """Noise (length,) whose power falls with frequency to the power of `slope`, RMS 1."""
    spectrum = np.fft.rfft(rng.standard_normal(length))
    spectrum[1:] /= np.arange(1, len(spectrum)) ** (slope / 2)
    spectrum[0] = 0
    noise = np.fft.irfft(spectrum, length)
    return np.asarray(noise / np.sqrt(np.mean(noise**2)), np.float32)


def synthetic_noises() -> list[tuple[str, Sound]]:
    """Silence and noise of several colours and levels, 10 s each."""
    rng = np.random.default_rng(SEED)
    length = 10 * SAMPLE_RATE
    found: list[tuple[str, Sound]] = [("silence", np.zeros(length, np.float32))]
    for slope, name in ((0.0, "white"), (1.0, "pink"), (2.0, "brown")):
        for dbfs in (-60, -40, -30, -20):
            gain = np.float32(10 ** (dbfs / 20))
            noise = np.asarray(coloured(rng, length, slope) * gain, np.float32)
            found.append((f"{name} noise at {dbfs} dBFS", noise))
    hum = np.sin(2 * np.pi * 50 * np.arange(length) / SAMPLE_RATE).astype(np.float32) * 0.05
    return [*found, ("50 Hz hum", hum)]


if __name__ == "__main__":
    sys.exit(main())
