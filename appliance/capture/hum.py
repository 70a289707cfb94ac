"""Removes a hum while there is one: lines of the mains, and what lies below speech."""

import functools
import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from appliance.records import SAMPLE_RATE

HIGH_PASS_HZ = 90.0
"""Below it lie rumble and a constant offset, and no speech."""
RUMBLE, RUMBLE_SHARE, SPEECH_FALL = 10 ** (-60 / 10), 0.25, 0.8
"""A rumble has at least so much power, of full scale, and the second share of the loudest speech's,
which is forgotten by the last factor a second."""
PIECE = 96
"""Samples that a filter takes at once."""
LOOK, LOOK_EACH = SAMPLE_RATE // 2, SAMPLE_RATE // 4
"""Samples of which a spectrum is made, and after which the next one is."""
STEADY_LOOKS, STEADY, CONSTANT, RUMBLE_LOOKS = 4, 2.0, 1.3, 10
"""Spectra in a row in which a hum must be; by which factors the power of a line may vary in them,
and that of what is below speech; and in how many the latter must be if it varies by more."""
NARROW, OFF, WANDER_HZ = 20.0, 0.004, 0.3
"""A line has this many times the power of a bin of the spectrum around it; it is at most this share
off its frequency, and wanders by so much at most."""
LINES_SHARE, FAINT, GONE = 1.0, 1e-4, 0.25
"""Lines count if they have the first share of the power of all else, and each one the second one of
theirs; one that has less than the third one of its power is gone."""
NOTCH_HZ, MOVED_HZ = 4.0, 0.05
"""Width of a notch, between its points of -3 dB; a line that has moved by so much gets a new one.
"""
FADE = SAMPLE_RATE // 10
"""Samples in which one filter replaces another."""
NOMINAL = sorted({base * number for base in (50, 60) for number in range(1, 1000 // base + 1)})
"""Frequencies of the lines, Hz."""
PLACES = np.array(NOMINAL) * LOOK // SAMPLE_RATE
AROUND = np.array([place for place in range(-8, 9) if abs(place) > 3])
LOW = int(HIGH_PASS_HZ * LOOK / SAMPLE_RATE)
"""Where they are in the spectrum, what is around such a place, and what is rumble."""


class Line(NamedTuple):
    """A line of the spectrum."""

    exact_hz: float
    power: float


class HumFilter:
    """Removes a hum from samples at 16 kHz, piece by piece: lines of the mains, 50 or 60 Hz and
    multiples, and what lies below speech. One thread.

    A line is a narrow peak of the spectrum that keeps its power and its frequency, as no voice
    does. While lines are most of the sound between words, each is removed by a notch; while what is
    below speech is loud all the time, too, by a Butterworth filter of the fourth order. Otherwise
    sound passes unchanged, since Whisper hears clean commands slightly worse through a filter. A
    look at the spectrum takes 0.3 ms.
    """

    def __init__(self) -> None:
        self._newest = np.zeros(0, np.float32)
        """The newest LOOK samples."""
        self._due = LOOK_EACH
        """Samples until the next look at the spectrum."""
        self._phases = np.zeros(0)
        """Of the spectrum in the last look."""
        self._peaks = deque[dict[int, Line]](maxlen=STEADY_LOOKS)
        """What may be lines, in the newest looks, by their nominal frequency."""
        self._low = deque[float](maxlen=RUMBLE_LOOKS)
        """Power of what is below speech in the newest looks."""
        self._loudest = 0.0
        """Power of speech in its loudest look; it falls slowly."""
        self._lines, self._rumbles = dict[int, Line](), False
        """What is removed."""
        self._filter: _Filter | None = None
        self._before: _Filter | None = None
        """What removes it now, and what did before; None: nothing."""
        self._fading = 0
        """Samples until only the first one counts."""

    @property
    def period(self) -> float:
        """Samples after which the lines repeat: their frequencies are multiples of 10 Hz."""
        loudest = max(self._lines.items(), key=lambda one: one[1].power, default=(1, Line(1.0, 0)))
        return SAMPLE_RATE / 10 * loudest[0] / loudest[1].exact_hz

    def push(self, sound: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return (n,) for (n,), without the hum."""
        passed = list[NDArray[np.float32]]()
        while sound.size >= self._due:
            passed += [self._remove(sound[: self._due])]
            sound, self._due = sound[self._due :], LOOK_EACH
            self._look()
        self._due -= sound.size
        passed += [self._remove(sound)]
        return np.concatenate(passed) if len(passed) > 1 else passed[0]

    def _remove(self, sound: NDArray[np.float32]) -> NDArray[np.float32]:
        self._newest = np.concatenate((self._newest, sound))[-LOOK:]
        now = self._filter.push(sound) if self._filter else sound
        if self._fading:
            before = self._before.push(sound) if self._before else sound
            left = np.arange(self._fading, self._fading - len(sound), -1, dtype=np.float32)
            now = now + np.maximum(left / FADE, 0) * (before - now)
            self._fading = max(0, self._fading - len(sound))
        return now

    def _look(self) -> None:
        """Find the hum in the newest sound, and change the filter if it is another one."""
        if len(self._newest) < LOOK:
            return
        spectrum = np.fft.rfft(self._newest * _hann())
        powers = np.square(np.abs(spectrum)) * (16 / 3 / LOOK**2)
        phases, before = np.angle(spectrum), self._phases
        self._phases = phases
        if not before.size:
            return
        at = PLACES + powers[PLACES[:, None] + (-1, 0, 1)].argmax(axis=1) - 1
        peaks = powers[at[:, None] + (-1, 0, 1)].sum(axis=1)
        around = np.sort(powers[at[:, None] + AROUND], axis=1)[:, len(AROUND) // 2]
        expected = at * LOOK_EACH / LOOK
        turns = (phases[at] - before[at]) / (2 * math.pi) - expected
        exact = (expected + turns - np.rint(turns)) * SAMPLE_RATE / LOOK_EACH
        fits = (np.abs(exact / NOMINAL - 1) <= OFF) & (peaks >= NARROW * around)
        found = dict(zip(NOMINAL, map(Line, exact.tolist(), peaks.tolist()), strict=True))
        self._peaks.append({one: found[one] for one in np.array(NOMINAL)[fits].tolist()})
        steady = self._steady()
        lines = {
            one: line for one, line in self._lines.items() if found[one].power >= GONE * line.power
        }
        power, whole = sum(line.power for line in steady.values()), float(powers.sum())
        if lines or power > LINES_SHARE * (whole - power):
            lines |= {one: line for one, line in steady.items() if line.power >= FAINT * power}
        low = float(powers[:LOW].sum())
        low_lines = sum(found[one].power for one in lines if one < HIGH_PASS_HZ)
        high_lines = sum(found[one].power for one in lines if one > HIGH_PASS_HZ)
        rumbles = self._follow_rumble(low - low_lines, whole - low - high_lines)
        self._remove_only(lines, rumbles=rumbles)

    def _follow_rumble(self, low: float, rest: float) -> bool:
        """Add a look's powers below and above HIGH_PASS_HZ, without lines; True if it rumbles."""
        self._low.append(low)
        fall = SPEECH_FALL ** (LOOK_EACH / SAMPLE_RATE)
        self._loudest = max(self._loudest * fall, rest)
        newest = list(self._low)[-STEADY_LOOKS:]
        if len(newest) < STEADY_LOOKS or max(newest) > CONSTANT * min(newest):
            newest = list(self._low) if len(self._low) == RUMBLE_LOOKS else [0.0]
        return min(newest) > max(RUMBLE, RUMBLE_SHARE * self._loudest)

    def _steady(self) -> dict[int, Line]:
        """Return the peaks that have been there in all of the newest looks."""
        found = dict[int, Line]()
        shared = set.intersection(*map(set, self._peaks))
        for nominal in shared if len(self._peaks) == STEADY_LOOKS else ():
            exact, power = zip(*(peaks[nominal] for peaks in self._peaks), strict=True)
            if max(power) <= STEADY * min(power) and max(exact) - min(exact) <= WANDER_HZ:
                found[nominal] = Line(sum(exact) / len(exact), power[-1])
        return found

    def _remove_only(self, lines: dict[int, Line], *, rumbles: bool) -> None:
        """Remove these lines, and what is below speech if it `rumbles`, from now on."""
        known = {
            one: Line(self._lines.get(one, line).exact_hz, line.power)
            for one, line in lines.items()
        }
        moved = any(abs(known[one].exact_hz - lines[one].exact_hz) > MOVED_HZ for one in lines)
        if moved or (lines.keys(), rumbles) != (self._lines.keys(), self._rumbles):
            known, self._rumbles = lines, rumbles
            self._before, self._fading, self._filter = self._filter, FADE, None
            if lines or rumbles:
                self._filter = _Filter([line.exact_hz for line in lines.values()], rumbles=rumbles)
                self._filter.push(self._newest)
        self._lines = known


class _Filter:
    """Notches at some frequencies and, if it `rumbles`, a high-pass of 24 dB an octave. One thread.

    By partial fractions it is a sum of filters of one pole each. The pieces of PIECE samples are
    one product of matrices, all but their states.
    """

    def __init__(self, lines_hz: Sequence[float] = (), *, rumbles: bool = False) -> None:
        angles = 2 * math.pi * np.array([*lines_hz, *np.negative(lines_hz)]) / SAMPLE_RATE
        zeros = np.exp(1j * angles)
        poles = (1 - math.pi * NOTCH_HZ / SAMPLE_RATE) * zeros
        if rumbles:  # the bilinear transform of Butterworth's poles
            angles = math.pi * (1 / 2 + np.array([1, 3, 5, 7]) / 8)
            warped = math.tan(math.pi * HIGH_PASS_HZ / SAMPLE_RATE) * np.exp(1j * angles)
            poles = np.append(poles, (1 + warped) / (1 - warped))
            zeros = np.append(zeros, [1.0] * 4)
        gain = np.prod((1 + poles) / (1 + zeros)).real  # 1 at half the rate
        upper = poles[poles.imag > 0]  # the others give the conjugates
        others = np.where(np.equal.outer(upper, poles), 1, 1 - poles / upper[:, None])
        parts = 2 * gain * np.prod(1 - zeros / upper[:, None], axis=1) / np.prod(others, axis=1)
        self._powers = upper[:, None] ** np.arange(PIECE + 1)
        """Of each pole."""
        answer = (parts @ self._powers[:, :PIECE]).real
        answer[0] += gain * np.prod(zeros / poles).real
        lag = np.subtract.outer(np.arange(PIECE), np.arange(PIECE)).T
        self._answers = np.where(lag >= 0, answer[np.maximum(lag, 0)], 0.0)
        """What a piece becomes without a state before."""
        self._shares = parts[:, None] * self._powers[:, 1:]
        """What a state adds to each sample of a piece."""
        self._state = np.zeros(len(upper), np.complex128)

    def push(self, sound: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return (n,) for the next (n,)."""
        pieces = np.zeros((-(-len(sound) // PIECE), PIECE))
        pieces.ravel()[: len(sound)] = sound
        states = np.empty((len(pieces), len(self._shares)), np.complex128)
        added = pieces @ self._powers[:, PIECE - 1 :: -1].T
        for number, state in enumerate(states):
            state[:] = self._state
            self._state = self._powers[:, PIECE] * self._state + added[number]
        if size := len(sound) % PIECE:  # the last piece is shorter
            entries = self._powers[:, size - 1 :: -1] if size < PIECE else self._powers
            self._state = self._powers[:, size] * states[-1] + entries @ pieces[-1, :size]
        passed = pieces @ self._answers + (states @ self._shares).real
        cut: NDArray[np.float32] = passed.ravel()[: len(sound)].astype(np.float32)
        return cut


@functools.cache
def _hann() -> NDArray[np.float32]:
    """Return a Hann window of LOOK samples."""
    window: NDArray[np.float32] = np.hanning(LOOK + 1)[:-1].astype(np.float32)
    return window
