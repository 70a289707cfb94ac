"""Utterances of sound that is complete, joined where they fit into one window."""

from collections import deque
from dataclasses import replace

import numpy as np

from appliance.capture.endpoint import is_same_voice
from appliance.capture.loudness import measure_speech
from appliance.capture.segmenter import Segmenter
from appliance.capture.voice import VoiceDetector
from appliance.config import SegmenterSettings
from appliance.records import SAMPLE_RATE, Discarded, Frame, Window

KEPT_S = 4.0
"""So long after it would be full, a window can still be joined to: an utterance is complete after a
hang-over."""
EDGE_S = 0.001
"""Times of frames that differ by less are the same."""


class JoiningSegmenter(Segmenter):
    """A segmenter for sound that is complete, such as a file: utterances that fit into one window,
    with the pauses between them, become one, unless their levels are those of two voices. The model
    makes fewer errors in a whole sentence, and no answer is waited for. One thread."""

    joins = True
    """Whether utterances are joined from now on. False while a client wants each text at once."""

    def __init__(self, voice: VoiceDetector, settings: SegmenterSettings, window_s: float) -> None:
        super().__init__(voice, settings, window_s)
        self._held: Window | None = None
        """The window that the next utterance may continue."""
        self._sound = deque[Frame]()
        """The newest frames: those of a window, and of the silence that ends it."""

    def push(self, frame: Frame) -> list[Window | Discarded]:
        """Take in the next frame; return what it completes."""
        self._sound.append(frame)
        begin_s = frame.end_s - self._lengths.longest / SAMPLE_RATE - KEPT_S
        while self._sound[0].start_s < begin_s:
            self._sound.popleft()
        results = self._join(super().push(frame))
        if self._held and (not self.joins or self._held.start_s < begin_s):
            results += self._release()
        return results

    def flush(self, *, interrupted: bool = False) -> list[Window | Discarded]:
        """Close the open utterance, if any, and return what is left."""
        return [*self._join(super().flush(interrupted=interrupted)), *self._release()]

    def _join(self, found: list[Window | Discarded]) -> list[Window | Discarded]:
        """Return what is complete of a window that was held and of what follows it."""
        results: list[Window | Discarded] = []
        for one in found:
            if isinstance(one, Discarded):
                results.append(one)
                continue
            joined = self._joined(self._held, one) if self._held else None
            results += [] if joined else self._release()
            self._held = joined or one
            if not (one.last and self.joins):
                results += self._release()
        return results

    def _joined(self, first: Window, second: Window) -> Window | None:
        """Return two utterances as one window; None if they do not fit."""
        if not (second.index == 1 and second.last):
            return None
        begin_s, end_s = first.start_s + first.duration_s - EDGE_S, second.start_s - EDGE_S
        gap = [frame.samples for frame in self._sound if begin_s < frame.start_s < end_s]
        samples = np.concatenate([first.samples, *gap, second.samples])
        if len(samples) > self._lengths.longest:
            return None
        if not is_same_voice(*(measure_speech(one.samples)[0] for one in (first, second))):
            return None
        return replace(
            first,
            samples=samples,
            speech_end_s=second.speech_end_s,
            voiced_s=first.voiced_s + second.voiced_s,
            flags=tuple(dict.fromkeys(first.flags + second.flags)),
        )

    def _release(self) -> list[Window | Discarded]:
        held, self._held = self._held, None
        return [held] if held else []
