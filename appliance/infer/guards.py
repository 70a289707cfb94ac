"""What keeps the decoder from running on, and invented text from being believed.

Pure functions: the first ones act on the logits of every step, `judge`, `is_failed` and
`is_doubtful` on the finished transcription. A column is where a token stands among the logits.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from appliance.config import GateSettings
from appliance.infer.phrases import is_known
from appliance.records import Logits, Transcription

LOOP_REPEATS = 5
LOOP_TOKENS = 12
"""The same tokens so often in a row, and so many in all, are a loop. People do say "no no no no";
they do not say it through 12 tokens, and a decoder that loops goes on for dozens."""
STUTTER_REPEATS, STUTTER_TOKENS = 3, 6
"""So much is no loop yet, and more than people repeat themselves: it is marked and kept."""
LONE_LOGPROB = -0.6
"""Mean log-probability (55 %) below which a lone word is doubted."""
HOPELESS_LOGPROB = 1.5
"""So far below GateSettings.avg_logprob nothing is text any more: at the default -1, a mean
probability of 8 % for each token."""


def suppress(logits: Logits, columns: NDArray[np.intp]) -> Logits:
    """Logits (n,) with minus infinity at `columns`; a copy."""
    result = logits.copy()
    result[columns] = -np.inf
    return result


def penalise(logits: Logits, written: NDArray[np.intp], penalty: float) -> Logits:
    """Logits with those at the columns already `written` made less, once for each distinct one.

    Positive ones are divided by `penalty`, negative ones multiplied (Keskar et al. 2019, CTRL);
    1 is off.
    """
    if penalty == 1.0 or not len(written):
        return logits
    result, columns = logits.copy(), np.unique(written)
    chosen = result[columns]
    result[columns] = np.where(chosen > 0, chosen / penalty, chosen * penalty)
    return result


def boost_end(logits: Logits, end_of_text: int, boost: float) -> Logits:
    """Logits with `boost` added to end-of-text's, so that it wins when it comes that close."""
    if boost == 0.0:
        return logits
    result = logits.copy()
    result[end_of_text] += boost
    return result


def sample(logits: Logits, temperature: float, rng: np.random.Generator) -> int:
    """A column drawn with the probabilities softmax(logits / temperature); the best one at 0."""
    if temperature == 0.0:
        return int(np.argmax(logits))
    # the greatest of logits with Gumbel noise is a draw from their softmax
    return int(np.argmax(logits / np.float32(temperature) + rng.gumbel(size=logits.shape)))


def best_besides(logits: Logits, columns: NDArray[np.intp]) -> int:
    """The column of the greatest logit that is not among `columns`. They are hidden for a moment:
    copying 50,000 numbers for each token would take longer than all the rules."""
    hidden = logits[columns]
    logits[columns] = -np.inf
    best = int(np.argmax(logits))
    logits[columns] = hidden
    return best


def log_sum(logits: Logits) -> float:
    """Logarithm of the sum of exp(logits)."""
    peak = float(np.max(logits))
    return peak + math.log(float(np.exp(logits - np.float32(peak)).sum()))


def compression_ratio(text: str) -> float:
    """Length of the UTF-8 text over its zlib size (Whisper's measure of repetition); 0 if empty."""
    data = text.encode()
    return len(data) / len(zlib.compress(data)) if data else 0.0


def is_loop(tokens: Sequence[int], least: int = LOOP_REPEATS, in_all: int = LOOP_TOKENS) -> bool:
    """True when the same run of tokens comes `least` times in a row, `in_all` in all, anywhere.

    Tokens, not words: Chinese, Japanese and Thai have no spaces.
    """
    for length in range(1, len(tokens) // least + 1):
        matching = 0
        for here in range(len(tokens) - length):
            matching = matching + 1 if tokens[here] == tokens[here + length] else 0
            repeats = matching // length + 1
            if repeats >= least and matching + length >= in_all:
                return True
    return False


def judge(transcription: Transcription, gates: GateSettings) -> str | None:
    """Why a transcription is discarded (no_speech, repetition, low_confidence); None: it is kept.

    A false text acts on somebody's home and a lost "yes" annoys, so each test needs evidence that
    real speech does not give:
    - empty text: the model itself heard nothing;
    - a no-speech probability above `no_speech_sure` counts alone: where its token is reliable;
    - from `no_speech_prob` on it counts only with low confidence, as in Whisper: the token alone
      is often wrong about short words in noise;
    - from `no_speech_lone` on it counts against a single word that the model doubts: a chime is one
      word to it, and a real "yes" has either a surer word or a lower probability;
    - loops are discarded whatever their confidence: a looping decoder is very sure of itself;
    - low confidence alone discards only far below the limit; above that it is a mark
      (`is_doubtful`) and the reader decides: short answers are often of low confidence.
    """
    if not transcription.text or _is_no_speech(transcription, gates):
        return "no_speech"
    if transcription.compression_ratio > gates.compression_ratio or is_loop(transcription.tokens):
        return "repetition"
    if transcription.avg_logprob < gates.avg_logprob - HOPELESS_LOGPROB:
        return "low_confidence"
    return None


def _is_no_speech(transcription: Transcription, gates: GateSettings) -> bool:
    """True when the no-speech probability counts, alone or with what else speaks against a text."""
    probability, logprob = transcription.no_speech_prob, transcription.avg_logprob
    if 0 <= gates.no_speech_sure < probability:
        return True
    if probability >= gates.no_speech_prob and logprob < gates.avg_logprob:
        return True
    lone = len(transcription.text.split()) == 1 and logprob < LONE_LOGPROB
    return lone and 0 <= gates.no_speech_lone <= probability


def is_doubtful(transcription: Transcription, gates: GateSettings) -> bool:
    """True for a transcription to be marked low_confidence: kept, not to be acted on blindly."""
    return transcription.avg_logprob < gates.avg_logprob


def marks(transcription: Transcription, gates: GateSettings) -> tuple[str, ...]:
    """What is doubtful about a transcription that is kept: low_confidence, repetition (it says the
    same several times over), known_hallucination (nothing but a phrase that Whisper invents)."""
    doubtful = is_doubtful(transcription, gates)
    silent = transcription.no_speech_prob >= gates.no_speech_prob
    found = {
        "low_confidence": doubtful,
        "repetition": is_loop(transcription.tokens, STUTTER_REPEATS, STUTTER_TOKENS),
        "known_hallucination": is_known(transcription.text, doubtful=doubtful or silent),
    }
    return tuple(mark for mark, raised in found.items() if raised)


def is_failed(transcription: Transcription, gates: GateSettings) -> bool:
    """True for a transcription to be tried again at a higher temperature, as Whisper does
    (openai/whisper, transcribe.py, decode_with_fallback): a repetition, or of low confidence
    where somebody seems to speak.
    """
    if transcription.avg_logprob >= gates.avg_logprob:
        return transcription.compression_ratio > gates.compression_ratio
    return transcription.no_speech_prob <= gates.no_speech_prob
