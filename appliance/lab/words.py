"""Counts a model's word errors on recordings whose texts are known.

A recording passes voice detector, segmenter and gates as if it came from the microphone. Texts are
compared after Whisper's own normaliser (Radford and others 2022, appendix C).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from appliance.capture import Framer, JoiningSegmenter, Recording, Segmenter, VoiceDetector
from appliance.config import Settings
from appliance.errors import ConfigError
from appliance.infer import Gates, Request, Transcriber, is_loop
from appliance.lab.recordings import LISTS, read_list
from appliance.records import SAMPLE_RATE, Samples, Window

if TYPE_CHECKING:
    from jiwer import AlignmentChunk

NEEDED = {"jiwer": "jiwer", "whisper_normalizer": "whisper-normalizer"}
"""Modules that count words, and their packages."""
BOOTSTRAPS = 2000
NO_TEXT = ("SLOTS:", "(")
"""How an entry of a list begins that describes what is said, and is not its text."""


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """A recording, (n,) int16 at 16 kHz, and what is said in it."""

    samples: Samples
    text: str
    speaker: str = ""
    """Who says it; "" if that is not known."""


@dataclass(frozen=True, slots=True)
class Recognised:
    """What a model makes of a recording. Times are the processor's, all threads together."""

    text: str
    loops: int
    """Windows in which the decoder repeats itself or never ends."""
    discarded: int
    """Windows whose text the gates discard."""
    encoder_ms: float
    """Mel and encoder."""
    decoder_ms: float
    total_ms: float
    """All, voice detector and segmenter included."""
    encoder: str = ""
    """What encoded last: cpu, hailo8 ...; "" where nothing did, and for other programs."""
    tokens: int = 0
    """Of all windows, without prompts and ends; 0 for other programs."""


@dataclass(frozen=True, slots=True)
class WordCounts:
    """Errors over all recordings together."""

    recordings: int
    words: int
    word_errors: int
    letters: int
    letter_errors: int
    right: int
    """Recordings whose text is right word for word."""
    loops: int
    discarded: int
    interval: tuple[float, float]
    """Between which the word errors in percent are with 95 % probability, by BOOTSTRAPS draws of
    the speakers, or of the recordings where those are not known."""

    @property
    def wer(self) -> float:
        """Word errors in percent."""
        return 100 * self.word_errors / max(1, self.words)

    @property
    def cer(self) -> float:
        """Letter errors in percent."""
        return 100 * self.letter_errors / max(1, self.letters)


class Recogniser(Protocol):
    """A speech recogniser."""

    def hear(self, samples: Samples) -> Recognised:
        """Transcribe a recording, (n,) int16 at 16 kHz."""


class ProductRecogniser:
    """A transcriber of this program, with the windows and gates of its microphone's path."""

    def __init__(
        self,
        transcriber: Transcriber,
        settings: Settings | None = None,
        *,
        search: bool = False,
        window_s: float = 0.0,
    ) -> None:
        """`search`: as for files. `window_s`: the longest window; 0: the model's."""
        self._window_s = window_s or transcriber.bundle.window_s
        self._transcriber, self._settings = transcriber, settings or Settings()
        self._search = search

    def hear(self, samples: Samples) -> Recognised:
        """Transcribe a recording. Raises ModelError."""
        transcriber, settings = self._transcriber, self._settings
        gates, texts, loops, discarded = Gates(transcriber.gates), list[str](), 0, 0
        encoder, tokens = "", 0
        encoder_s = decoder_s = 0.0
        begun_s = time.process_time()
        for window in cut_windows(samples, settings, self._window_s, join=self._search):
            started_s = time.process_time()
            encoded = transcriber.begin(Request(window, search=self._search))
            encoded_s = time.process_time()
            result = transcriber.decode(encoded)
            decoder_s += time.process_time() - encoded_s
            encoder_s += encoded_s - started_s
            encoder = result.encoder
            tokens += len(result.tokens)
            loops += is_loop(result.tokens) or not result.ended
            result, reason = gates.apply(window, result)
            discarded += reason is not None
            texts += [] if reason else [result.text]
        total_s = time.process_time() - begun_s
        encoder_ms, decoder_ms, total_ms = (1000 * s for s in (encoder_s, decoder_s, total_s))
        times = encoder_ms, decoder_ms, total_ms
        return Recognised(" ".join(texts), loops, discarded, *times, encoder, tokens)


def cut_windows(
    samples: Samples, settings: Settings, window_s: float, *, join: bool = False
) -> list[Window]:
    """Return the windows of at most `window_s` that the microphone's path makes of a sound;
    `join`: that a file's does."""
    kind = JoiningSegmenter if join else Segmenter
    segmenter = kind(VoiceDetector(settings.voice), settings.segmenter, window_s)
    framer = Framer()
    frames = [*framer.push(samples, 0.0), *framer.rest(len(samples) / SAMPLE_RATE)]
    found = [window for frame in frames for window in segmenter.push(frame)]
    return [window for window in (*found, *segmenter.flush()) if isinstance(window, Window)]


def read_recordings(folder: Path, most: int = 0) -> list[Recorded]:
    """Return the recordings that the folder's list has a text for; with `most` only that many,
    evenly chosen.

    Raises ConfigError if there is no such list, and AudioError for a bad file.
    """
    listed = read_list(folder)
    if listed is None:
        raise ConfigError(
            f"{folder}: expected {' or '.join(LISTS)} in it, found neither; write one with the "
            "columns file and text, separated by tabs"
        )
    chosen = [name for name, one in listed.items() if not one.text.startswith(NO_TEXT)]
    if most and len(chosen) > most:
        chosen = [chosen[index * len(chosen) // most] for index in range(most)]
    return [Recorded(read_sound(folder / name), *listed[name]) for name in chosen]


def missing_packages() -> list[str]:
    """Return the packages that must be installed to count words."""
    return [package for module, package in NEEDED.items() if find_spec(module) is None]


def count_words(
    heard: Sequence[Recognised], recordings: Sequence[Recorded], *, normalised: bool = True
) -> WordCounts:
    """Return the errors of what was heard in each recording; capitals, punctuation and spelling
    count only if not `normalised`."""
    import jiwer
    from whisper_normalizer.english import EnglishTextNormalizer

    normalize = EnglishTextNormalizer() if normalised else str.strip
    spoken = [normalize(recorded.text) for recorded in recordings]
    written = [normalize(one.text) for one in heard]
    found = jiwer.process_words(spoken, written)
    letters = jiwer.process_characters(spoken, written)
    return WordCounts(
        recordings=len(recordings),
        words=found.hits + found.substitutions + found.deletions,
        word_errors=found.substitutions + found.deletions + found.insertions,
        letters=letters.hits + letters.substitutions + letters.deletions,
        letter_errors=letters.substitutions + letters.deletions + letters.insertions,
        right=sum(text == other for text, other in zip(spoken, written, strict=True)),
        loops=sum(one.loops for one in heard),
        discarded=sum(one.discarded for one in heard),
        interval=find_interval(
            [one.speaker or str(number) for number, one in enumerate(recordings)],
            [sum(map(_words_wrong, alignment)) for alignment in found.alignments],
            [len(text.split()) for text in spoken],
        ),
    )


def _words_wrong(chunk: "AlignmentChunk") -> int:
    wrong = chunk.ref_end_idx - chunk.ref_start_idx, chunk.hyp_end_idx - chunk.hyp_start_idx
    return 0 if chunk.type == "equal" else max(wrong)


def find_interval(
    speakers: Sequence[str], errors: Sequence[int], words: Sequence[int]
) -> tuple[float, float]:
    """Return the 95 % interval of the word errors in percent, of each recording's speaker, errors
    and words."""
    names, of = np.unique(speakers, return_inverse=True)
    wrong, whole = (np.bincount(of, counts) for counts in (errors, words))
    drawn = np.random.default_rng(0).integers(len(names), size=(BOOTSTRAPS, len(names)))
    shares = 100 * wrong[drawn].sum(axis=1) / np.maximum(whole[drawn].sum(axis=1), 1)
    low, high = np.percentile(shares, (2.5, 97.5))
    return float(low), float(high)


def read_sound(file: Path) -> Samples:
    """Return (n,) int16 at 16 kHz of a sound file. Raises AudioError."""
    with Recording(str(file), real_time=False) as recording:
        return np.concatenate([frame.samples for frame in recording.frames()])
