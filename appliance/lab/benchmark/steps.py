"""Networks that stand between the decode loop and the decoder, to time its steps or change them."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import numpy as np

from appliance.config import PhrasesSettings, Settings
from appliance.infer import (
    CpuEncoder,
    Decoded,
    Decoder,
    Step,
    StepNetwork,
    Transcriber,
    open_transcriber,
    window_mel,
)
from appliance.lab.words import Recorded, cut_windows
from appliance.model import Bundle
from appliance.records import States


class TimedNetwork:
    """A network, and the processor time of its steps."""

    def __init__(self, inner: StepNetwork) -> None:
        self._inner, self.capacity = inner, inner.capacity
        self.first_ms: list[float] = []
        """Of each text: keys and values of the sound, the prompt, and the first token."""
        self.next_ms: list[float] = []
        self._begun_s: float | None = None

    def begin(self, states: States, positions: int) -> None:
        """See StepNetwork."""
        self._begun_s = time.process_time()
        self._inner.begin(states, positions)

    def advance(
        self, tokens: Sequence[int], wanted: Sequence[int], started: Sequence[int] = ()
    ) -> Step:
        """See StepNetwork."""
        first, begun_s = self._begun_s is not None, self._begun_s or time.process_time()
        step = self._inner.advance(tokens, wanted, started)
        (self.first_ms if first else self.next_ms).append(1000 * (time.process_time() - begun_s))
        self._begun_s = None
        return step

    def means_ms(self) -> tuple[float, float]:
        """Return the mean of the first tokens, and of the others."""
        first, later = (sum(ms) / max(1, len(ms)) for ms in (self.first_ms, self.next_ms))
        return first, later


class GuardedNetwork:
    """A network whose logits a repetition penalty and a bonus for end-of-text change."""

    def __init__(self, inner: StepNetwork, bundle: Bundle, penalty: float, bonus: float) -> None:
        self._inner, self.capacity = inner, inner.capacity
        self._column_of = {int(token): column for column, token in enumerate(bundle.kept)}
        self._end = self._column_of[bundle.tokens.end_of_text]
        self._penalty, self._bonus = np.float32(penalty), np.float32(bonus)
        self._written: list[int] = []
        """Columns of the text's tokens."""

    def begin(self, states: States, positions: int) -> None:
        """See StepNetwork."""
        self._written.clear()
        self._inner.begin(states, positions)

    def advance(
        self, tokens: Sequence[int], wanted: Sequence[int], started: Sequence[int] = ()
    ) -> Step:
        """See StepNetwork. Only the last row is changed: the others are the prompt's."""
        step = self._inner.advance(tokens, wanted, started)
        if not started:
            self._written += [self._column_of[token] for token in tokens]
        logits, totals = step.logits.copy(), step.totals.copy()
        last = logits[-1]
        again = last[self._written]
        last[self._written] = np.where(again > 0, again / self._penalty, again * self._penalty)
        last[self._end] += self._bonus
        totals[-1] = np.logaddexp.reduce(last)
        return replace(step, logits=logits, totals=totals)


class SteppedDecoder:
    """A decoder that decodes with another network than its own."""

    def __init__(self, inner: Decoder, network: StepNetwork) -> None:
        self._inner, self._network = inner, network

    def decode(self, states: States, duration_s: float, **languages: str) -> Decoded:
        """See Decoder."""
        return self._inner.decode(states, duration_s, self._network, **languages)


@contextmanager
def open_plain(bundle: Bundle, positions: int) -> Iterator[Transcriber]:
    """Open Whisper alone on one thread, without expected sentences. Its decoder attends to
    `positions`: those behind the window's are silence. Raises ModelError."""
    settings = Settings()
    settings = replace(
        settings,
        encoder=replace(settings.encoder, backend="cpu", threads=1),
        decoder=replace(settings.decoder, threads=1),
        phrases=PhrasesSettings(file=""),
    )
    with open_transcriber(settings, bundle=bundle) as transcriber:
        transcriber.decoder.positions = positions
        yield transcriber


def encode_all(bundle: Bundle, recordings: Sequence[Recorded]) -> Iterator[tuple[States, float]]:
    """Yield the states of each window of the recordings, and its seconds, on one thread."""
    encoder = CpuEncoder(bundle, 1)
    for recorded in recordings:
        for window in cut_windows(recorded.samples, Settings(), bundle.window_s):
            mel = window_mel(window.samples, bundle.n_mels, bundle.frames)
            yield encoder.encode(mel), window.duration_s


def decode_through(transcriber: Transcriber, network: StepNetwork) -> None:
    """Let a transcriber decode with another network."""
    stepped = SteppedDecoder(transcriber.decoder, network)
    transcriber.decoder = cast(Decoder, stepped)
