"""What guards on the logits do: a penalty for tokens already written, a bonus for end-of-text.

The product has neither. The presets are those that came with zeros behind the window; here they
stand also in front of what the product has there, states of silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from appliance.infer import Network
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
from appliance.records import SAMPLE_RATE

COLUMNS = ("penalty, bonus", *PADDING_COLUMNS[1:], "said twice: words wrong %", "its loops")
PAUSE_S = 0.2
TWICE, SHORT_S = 24, 4.0
"""Recordings that are said twice, and how long one may be."""


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
        heard = _hear(guard, bundles, [*recordings, *twice])
        once, again = heard[: len(recordings)], heard[len(recordings) :]
        words = count_words(again, twice)
        repeated = f"{words.wer:.1f}", str(words.loops)
        yield [guard.name, *judged(once, recordings), *repeated]


def said_twice(recordings: Sequence[Recorded]) -> Iterator[Recorded]:
    """Yield some of the short recordings, each said twice in a row: a real repetition."""
    short = [one for one in recordings if len(one.samples) <= SHORT_S * SAMPLE_RATE]
    pause = np.zeros(round(PAUSE_S * SAMPLE_RATE), np.int16)
    for one in short[:: max(1, len(short) // TWICE)][:TWICE]:
        yield Recorded(np.concatenate((one.samples, pause, one.samples)), f"{one.text} {one.text}")


def _hear(
    guard: Guard, bundles: dict[int, Bundle], recordings: Sequence[Recorded]
) -> list[Recognised]:
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
        return [recogniser.hear(one.samples) for one in recordings]
