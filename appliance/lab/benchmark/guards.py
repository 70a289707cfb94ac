"""What guards on the logits do: a penalty for tokens already written, a bonus for end-of-text.

The product has neither. The presets are those that came with zeros behind the window; here they
stand also in front of what the product has there, states of silence.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from appliance.infer import Network, is_loop
from appliance.lab.benchmark.padding import (
    COLUMNS as PADDING_COLUMNS,
    SOUND,
    TRAINED,
    PaddedEncoder,
    build_padded,
    judged,
)
from appliance.lab.benchmark.steps import GuardedNetwork, decode_through, open_plain
from appliance.lab.words import ProductRecogniser, Recognised, Recorded, count_words
from appliance.model import WINDOW_S, Bundle
from appliance.records import SAMPLE_RATE, Transcription, Window

COLUMNS = ("penalty, bonus", *PADDING_COLUMNS[1:], "said twice: words wrong %", "its loops")
PAUSE_S = 0.2
TWICE, SHORT_S, LOUD = 24, 4.0, 0.05
"""Recordings that are said twice, how long one may be, and the part of its peak that is no
silence."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A row of the table."""

    name: str
    penalty: float = 1.0
    bonus: float = 0.0
    zeros: int = 0
    """Positions in all, those behind the window being zeros; 0: silence's, as the product has."""


GUARDS = (
    Guard("none (as configured)"),
    *(Guard(f"penalty {penalty:g}", penalty) for penalty in (1.1, 1.2, 1.5)),
    *(Guard(f"bonus {bonus:g}", bonus=bonus) for bonus in (0.2, 0.5)),
    Guard("conservative: none, 1500 with zeros", zeros=TRAINED),
    Guard("balanced: 1.1, 0.2, 700 with zeros", 1.1, 0.2, 700),
    Guard("aggressive: 1.2, 0.5, 500", 1.2, 0.5, SOUND),
    Guard("aggressive, with silence", 1.2, 0.5),
)


def guards_table(
    checkpoint: Path, recordings: Sequence[Recorded], scratch: Path
) -> Iterator[list[str]]:
    """Yield the rows of the table. Raises ModelError."""
    twice = list(said_twice(recordings))
    places = {guard.zeros for guard in GUARDS if guard.zeros} | {SOUND}
    bundles = build_padded(checkpoint, scratch, sorted(places))
    for guard in GUARDS:
        once, again = _hear(guard, bundles, recordings, twice)
        words = count_words(again, twice)
        repeated = f"{words.wer:.1f}", str(words.loops)
        yield [guard.name, *judged(once, recordings), *repeated]


def said_twice(recordings: Sequence[Recorded]) -> Iterator[Recorded]:
    """Yield some of the short recordings, each said twice in a row: a real repetition. The
    silence at both ends is left out."""
    short = [one for one in recordings if len(one.samples) <= SHORT_S * SAMPLE_RATE]
    pause = np.zeros(round(PAUSE_S * SAMPLE_RATE), np.int16)
    for one in short[:: max(1, len(short) // TWICE)][:TWICE]:
        level = np.abs(one.samples.astype(np.int32))
        loud = np.flatnonzero(level >= LOUD * level.max(initial=0))
        sound = one.samples[loud[0] : loud[-1] + 1]
        yield Recorded(np.concatenate((sound, pause, sound)), f"{one.text} {one.text}")


def _hear(
    guard: Guard,
    bundles: dict[int, Bundle],
    recordings: Sequence[Recorded],
    twice: Sequence[Recorded],
) -> tuple[list[Recognised], list[Recognised]]:
    """Return what is made of the recordings, and of those said twice, each of these in one window:
    the segmenter would cut between the two."""
    sound, positions = bundles[SOUND], guard.zeros or SOUND
    with open_plain(bundles[positions], guard.zeros or TRAINED) as transcriber:
        if guard.zeros > SOUND:
            zeros = np.zeros((positions - SOUND, sound.d_model), np.float32)
            transcriber.encoder.close()
            transcriber.encoder = PaddedEncoder(sound, zeros)
        bundle = transcriber.bundle
        network = GuardedNetwork(Network(bundle, 1), bundle, guard.penalty, guard.bonus)
        decode_through(transcriber, network)
        recogniser = ProductRecogniser(transcriber, window_s=WINDOW_S)
        once = [recogniser.hear(one.samples) for one in recordings]
        windows = [Window("", 1, True, one.samples, 0.0, 0.0, 0.0) for one in twice]
        return once, [_recognised(transcriber.transcribe(window)) for window in windows]


def _recognised(found: Transcription) -> Recognised:
    loops = is_loop(found.tokens) or not found.ended
    return Recognised(found.text, int(loops), 0, 0.0, 0.0, 0.0)
