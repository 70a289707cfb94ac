"""Measures whether a model may encode short windows: whether its texts stay the same.

`model fit` decides by the package's sentences, with the second pass that the bundle has and windows
as the microphone's path cuts them: without a second pass, or without the silence around a sentence,
more texts change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from appliance.config import Settings
from appliance.infer import Transcriber, judge, open_transcriber
from appliance.model import Bundle
from appliance.records import SAMPLE_RATE, Samples, Window

SAME_TEXT = 0.95
"""Share of clips whose text must stay the same."""
FEWEST = 20
"""Clips below which nothing is proven."""


class Comparison(NamedTuple):
    """What short windows change in one clip."""

    same: bool
    """True if the text stays the same."""
    worse: bool
    """True for speech that only short windows discard, and for noise that only they keep."""
    encode_ms: tuple[float, float] = (0.0, 0.0)
    """Wall time of the encoder, second pass included: whole windows, short ones."""


@dataclass(frozen=True, slots=True)
class ShortWindows:
    """What short windows change: counts of clips."""

    speech: int
    same_text: int
    """Clips of speech with the same text."""
    sounds: int
    """Clips without speech."""
    changed_gates: int
    """Changes for the worse, see `Comparison`."""
    encode_ms: tuple[float, float]
    """Mean of the comparisons."""

    @property
    def safe(self) -> bool:
        """True if the bundle may have `short_windows`."""
        enough = self.speech >= FEWEST and self.same_text >= SAME_TEXT * self.speech
        return enough and not self.changed_gates


class ShortWindowsTrial:
    """Transcribes windows with a bundle on the CPU, whole and short, whatever its manifest says of
    them. One thread."""

    def __init__(self, bundle: Bundle) -> None:
        """Raises ModelError, also for an encoder.onnx that takes windows of one length only: see
        convert's `accept_short_windows`."""
        self._whole = _open(bundle, short=False)
        try:
            self._short = _open(bundle, short=True)
        except BaseException:
            self._whole.encoder.close()
            raise

    def compare(self, window: Window, *, is_speech: bool) -> Comparison:
        """Return what short windows change in one window. One that fills the model's proves
        nothing. Raises ModelError."""
        texts = [each.transcribe(window) for each in (self._whole, self._short)]
        whole, short = (
            judge(text, each.gates, window.voiced_s) is None
            for text, each in zip(texts, (self._whole, self._short), strict=True)
        )
        return Comparison(
            same=texts[0].text == texts[1].text,
            worse=whole is is_speech and short is not is_speech,
            encode_ms=(texts[0].encode_ms, texts[1].encode_ms),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._whole, self._short):
            each.encoder.close()


def measure_short_windows(
    bundle: Bundle, speech: Iterable[Window], sounds: Iterable[Window] = ()
) -> ShortWindows:
    """Return what short windows change in a bundle; `sounds` are noise and music. Raises
    ModelError."""
    with ShortWindowsTrial(bundle) as trial:
        return count_changes(
            [trial.compare(window, is_speech=True) for window in speech],
            [trial.compare(window, is_speech=False) for window in sounds],
        )


def count_changes(speech: Sequence[Comparison], sounds: Sequence[Comparison]) -> ShortWindows:
    """Return the counts of comparisons."""
    found = [*speech, *sounds]
    whole_ms, short_ms = (sum(one.encode_ms[at] for one in found) for at in (0, 1))
    number = max(1, len(found))
    return ShortWindows(
        speech=len(speech),
        same_text=sum(one.same for one in speech),
        sounds=len(sounds),
        changed_gates=sum(one.worse for one in found),
        encode_ms=(whole_ms / number, short_ms / number),
    )


def noise_window(samples: Samples, bundle: Bundle) -> Window:
    """Return (n,) int16 as a window that counts as voice throughout; longer ones are cut."""
    samples = samples[: round(bundle.window_s * SAMPLE_RATE)]
    return Window("", 1, True, samples, 0.0, 0.0, len(samples) / SAMPLE_RATE)


def _open(bundle: Bundle, *, short: bool) -> Transcriber:
    """The bundle's transcriber on the CPU, with or without short windows."""
    settings = Settings()
    settings = replace(
        settings,
        encoder=replace(settings.encoder, backend="cpu", threads=1),
        phrases=replace(settings.phrases, file=""),
    )
    return open_transcriber(settings, bundle=replace(bundle, short_windows=short))
