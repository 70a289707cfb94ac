"""Measures whether a model may encode short windows: whether its texts stay the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from appliance.config import Settings
from appliance.infer import Transcriber, judge, open_transcriber
from appliance.model import Bundle
from appliance.records import SAMPLE_RATE, Samples, Window

SAME_TEXT = 0.95
"""Share of clips whose text must stay the same."""
FEWEST = 20
"""Clips below which nothing is proven."""


@dataclass(frozen=True, slots=True)
class ShortWindows:
    """What short windows change: counts of clips."""

    speech: int
    same_text: int
    """Clips of speech with the same text."""
    sounds: int
    """Clips without speech."""
    changed_gates: int
    """Changes for the worse: clips of speech that only short windows discard, and clips without
    that only they keep."""
    encode_ms: tuple[float, float]
    """Mean wall time of the encoder per clip, second pass included: whole windows, short ones."""

    @property
    def safe(self) -> bool:
        """True if the bundle may have `short_windows`."""
        enough = self.speech >= FEWEST and self.same_text >= SAME_TEXT * self.speech
        return enough and not self.changed_gates


def measure_short_windows(
    bundle: Bundle, speech: Iterable[Samples], sounds: Iterable[Samples] = ()
) -> ShortWindows:
    """Return what short windows change in a bundle on the CPU, whatever its manifest says of them.

    `speech` and `sounds` (noise, music) are clips (n,) int16 at 16 kHz; one longer than the model's
    window is cut. Clips that fill the window prove nothing. Raises ModelError, also for an
    encoder.onnx that takes windows of one length only: see convert's `accept_short_windows`.
    """
    found, spent_ms = [], np.zeros(2)
    with _open(bundle, short=False) as whole, _open(bundle, short=True) as short:
        for is_speech, clips in ((True, speech), (False, sounds)):
            for samples in clips:
                window = _window_of(samples, bundle)
                texts = [each.transcribe(window) for each in (whole, short)]
                kept = [
                    judge(text, each.gates, window.duration_s) is None
                    for text, each in zip(texts, (whole, short), strict=True)
                ]
                spent_ms += [text.encode_ms for text in texts]
                same = texts[0].text == texts[1].text
                worse = kept[0] is is_speech and kept[1] is not is_speech
                found.append((is_speech, same, worse))
    mean_ms = spent_ms / max(1, len(found))
    spoken = [same for is_speech, same, _ in found if is_speech]
    return ShortWindows(
        speech=len(spoken),
        same_text=sum(spoken),
        sounds=len(found) - len(spoken),
        changed_gates=sum(worse for *_, worse in found),
        encode_ms=(float(mean_ms[0]), float(mean_ms[1])),
    )


def _open(bundle: Bundle, *, short: bool) -> Transcriber:
    """The bundle's transcriber on the CPU, with or without short windows."""
    settings = Settings()
    settings = replace(
        settings,
        encoder=replace(settings.encoder, backend="cpu", threads=1),
        phrases=replace(settings.phrases, file=""),
    )
    return open_transcriber(settings, bundle=replace(bundle, short_windows=short))


def _window_of(samples: Samples, bundle: Bundle) -> Window:
    samples = samples[: round(bundle.window_s * SAMPLE_RATE)]
    return Window("", 1, True, samples, 0.0, 0.0, 0.0)
