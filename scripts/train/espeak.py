"""espeak-ng through its library: text in, samples and phone times out (speak_lib.h).

One engine per process and one thread: the library holds its state in globals.
"""

import ctypes as c
import random
from typing import Any

import numpy as np
import numpy.typing as npt
from train.engines import PACKAGES, EngineError, Take, load_library
from train.phones import Segment, from_espeak


class _EspeakEvent(c.Structure):
    _fields_ = (
        ("type", c.c_int),
        ("unique_identifier", c.c_uint),
        ("text_position", c.c_int),
        ("length", c.c_int),
        ("audio_position", c.c_int),
        ("sample", c.c_int),
        ("user_data", c.c_void_p),
        ("string", c.c_char * 8),
    )


_ESPEAK_CALLBACK = c.CFUNCTYPE(c.c_int, c.POINTER(c.c_short), c.c_int, c.POINTER(_EspeakEvent))
_SYNCHRONOUS, _PHONEME_EVENTS, _DONT_EXIT, _UTF8 = 2, 1, 0x8000, 1
_RATE, _PITCH, _RANGE, _WORD_GAP = 1, 3, 4, 7
_EVENT_PHONEME = 7


class Espeak:
    """espeak-ng; a voice name is "accent+variant", with variant "plain" for none."""

    def __init__(self) -> None:
        self._lib = load_library("espeak", "libespeak-ng.so.1")
        self._rate: int = self._lib.espeak_Initialize(
            _SYNCHRONOUS, 500, None, _PHONEME_EVENTS | _DONT_EXIT
        )
        if self._rate <= 0:
            raise EngineError(f"espeak-ng has no data; install {PACKAGES['espeak']}")
        self._callback = _ESPEAK_CALLBACK(self._receive)  # kept alive: the library holds it
        self._lib.espeak_SetSynthCallback(self._callback)
        self._blocks: list[npt.NDArray[np.int16]] = []
        self._events: list[tuple[str, float]] = []

    def _receive(self, block: Any, count: int, events: Any) -> int:
        if count > 0:
            self._blocks.append(np.ctypeslib.as_array(block, (count,)).copy())
        i = 0
        while events[i].type:
            if events[i].type == _EVENT_PHONEME:
                self._events.append((events[i].string.decode(), events[i].sample / self._rate))
            i += 1
        return 0

    def say(self, name: str, text: str, stretch: float, rng: random.Random) -> Take:
        """Give one take with drawn pitch, melody and pauses between words."""
        accent, variant = name.split("+")
        self._blocks, self._events = [], []
        voice = accent if variant == "plain" else f"{accent}+{variant}"
        if self._lib.espeak_SetVoiceByName(voice.encode()) != 0:
            raise EngineError(f"espeak-ng has no voice {voice}; install {PACKAGES['espeak']}")
        for parameter, value in (
            (_RATE, round(165 / stretch)),
            (_PITCH, rng.randint(25, 75)),
            (_RANGE, rng.randint(25, 80)),
            (_WORD_GAP, rng.choice((0, 0, 0, 0, 1, 2))),
        ):
            self._lib.espeak_SetParameter(parameter, value, 0)
        data = text.encode()
        self._lib.espeak_Synth(data, len(data) + 1, 0, 1, 0, _UTF8, None, None)
        samples = np.concatenate([*self._blocks, np.zeros(0, np.int16)])
        return Take(samples, self._rate, self._segments(accent, samples))

    def _segments(self, accent: str, samples: npt.NDArray[np.int16]) -> list[Segment]:
        starts = [self._pull_start(samples, t, name) for name, t in self._events]
        _lengthen_liquids([name for name, _ in self._events], starts)
        ends = [*starts[1:], len(samples) / self._rate]
        out: list[Segment] = []
        for (name, _), start, end in zip(self._events, starts, ends, strict=True):
            if name == ";" and out:  # palatal glide mark: part of the sound before it
                out[-1] = Segment(out[-1].phone, out[-1].start, end)
            elif name != ";":
                out += from_espeak(accent, name, start, end)
        return out

    def _pull_start(self, samples: npt.NDArray[np.int16], start: float, name: str) -> float:
        """Give `start` moved to where the closure before a stop begins.

        espeak tells of a stop at its burst; the silence before it belongs to the stop, as the
        other engines have it. At most 60 ms, and not for pauses.
        """
        if not name or name[0] not in "ptkbdg":
            return start
        end = round(start * self._rate)
        quiet = np.abs(samples[max(0, end - round(0.06 * self._rate)) : end].astype(np.int32)) < 40
        loud = np.flatnonzero(~quiet)
        closure = len(quiet) - 1 - int(loud[-1]) if loud.size else len(quiet)
        return start - closure / self._rate


def _lengthen_liquids(names: list[str], starts: list[float]) -> None:
    """Move the start of each l and r that ends a syllable into the vowel before it, in place.

    espeak sounds the "l" of "bell" inside the vowel and tells of it at its very end.
    """
    for i in range(1, len(names) - 1):
        vowel_before = names[i - 1][:1] in "aeiouAEIOUV03@"
        if names[i] in {"l", "r"} and vowel_before and names[i + 1][:1] not in "aeiouAEIOUV03@":
            span = starts[i + 1] - starts[i - 1]
            starts[i] = min(starts[i], starts[i - 1] + 0.6 * span)
