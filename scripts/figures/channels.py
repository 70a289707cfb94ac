"""Measure what a microphone with two channels gains: the better channel, or delay-and-sum.

    scripts/measure channels

People's commands ($ROOMSCRIBE_SHARED/data/audio), -27 dBFS at 1 m, in simulated rooms (RT60 0.3 and
0.6 s; 1, 3 and 5 m). Each is spoken from another side of the two microphones: 0 (in front of both),
30, 60 and 90 degrees in turn. Each channel has pink noise of its own, -67 dBFS; `unequal`: the
second one is 10 dB less sensitive.

first     the first channel alone
mean      the mean of both
better    the channel of each window whose speech is further above its noise (found in the mean)
delay     delay-and-sum: the second channel is shifted, by at most 10 samples, to where the
          cross-correlation of the whitened channels is highest (GCC-PHAT; Knapp and Carter 1976)

Columns: words wrong (%), expected sentences found with a confidence of 70 % and more, sentences
without a text. ms/s: CPU time for a second of sound.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from evening_run.acoustics import Sound, in_room, pair
from evening_run.programme import ROOMS, Item
from figures.frontends import SEED, Listener, Score, commands, dry
from figures.pause_set import pink
from figures.reference import NOISE_RMS, to_samples
from numpy.typing import NDArray

from appliance.capture import measure_speech
from appliance.capture.echo import fractional_taps
from appliance.records import SAMPLE_RATE, Samples, Window

ANGLES_DEG = (0.0, 30.0, 60.0, 90.0)
PAIRS = (("6 cm apart", 0.06, 0.0), ("20 cm apart", 0.20, 0.0), ("6 cm apart, unequal", 0.06, 10.0))
"""Name, distance of the microphones (m), and how much less sensitive the second one is (dB)."""
METHODS = ("first", "mean", "better", "delay")
STEP = 480

WIDEST = 10
"""Largest shift, in samples: capsules that are 20 cm apart, and a speaker at their side."""
STEPS = 4
"""Shifts for each sample."""
TAPS = 16
"""Of the filter that reads a channel between two samples."""
MARGIN = WIDEST + TAPS // 2
"""Samples that the output is late: 1.1 ms."""
BLOCK = 1024
"""Samples that are compared at once: 64 ms."""
LOW_HZ, HIGH_HZ = 300.0, 5000.0
"""Speech; below, both channels are alike, wherever it comes from."""
KEPT = 0.7
"""Share of the older blocks in the cross-spectrum: 0.2 s. Loud blocks count more than soft ones."""


def main() -> None:
    """Print a table for each pair."""
    people, listener = commands(), Listener()
    print(f"{len(people)} of people's commands: words wrong %, sentences found, no text")
    rooms = " ".join(f"{f'{rt60_s:g} s {metres} m':>13}" for rt60_s, metres in ROOMS)
    for name, spacing_m, weaker_db in PAIRS:
        print(f"\n{name:20} {rooms} {'all':>13}")
        rows = [heard_in(listener, people, spacing_m, weaker_db, one) for one in ROOMS]
        for method in METHODS:
            total = Score()
            for row in rows:
                total.join(row[method])
            cells = " ".join(str(row[method]) for row in rows)
            print(f"{method:20} {cells} {total}", flush=True)
    sound = np.random.default_rng(SEED).normal(size=(2, 60 * SAMPLE_RATE)) * 500
    began_s = time.process_time()
    joined(*map(to_samples, sound))
    print(f"\ndelay-and-sum: {1000 * (time.process_time() - began_s) / 60:.1f} ms/s")


def heard_in(
    listener: Listener,
    people: Sequence[Item],
    spacing_m: float,
    weaker_db: float,
    where: tuple[float, int],
) -> dict[str, Score]:
    """Return what becomes of the sentences, for each method."""
    scores = {name: Score() for name in METHODS}
    for number, item in enumerate(people):
        angle_deg = ANGLES_DEG[number % len(ANGLES_DEG)]
        responses = pair(where[0], float(where[1]), spacing_m, angle_deg)
        rng = np.random.default_rng(SEED + number)
        clean = [in_room(dry(item), one) for one in responses]
        clean[1] *= 10 ** (-weaker_db / 20)
        first, second = (to_samples(one + pink(rng, len(one)) * NOISE_RMS) for one in clean)
        mean = (first.astype(np.float64) + second) / 2
        windows = {
            "first": listener.windows(first.astype(np.float64)),
            "mean": listener.windows(mean),
            "delay": listener.windows(joined(first, second)),
        }
        windows["better"] = [
            replace(one, samples=better(*(of(channel, one) for channel in (first, second))))
            for one in windows["mean"]
        ]
        for method, found in windows.items():
            scores[method].add(item.text, *listener.listen(found))
    return scores


def of(channel: Samples, window: Window) -> Samples:
    """Return a window's part of a channel."""
    begin = round(window.start_s * SAMPLE_RATE)
    return channel[begin : begin + len(window.samples)]


def better(first: Samples, second: Samples) -> Samples:
    """Return the channel whose speech is further above its noise."""
    above = [measure_speech(one)[1] or 0.0 for one in (first, second)]
    return first if above[0] >= above[1] else second


def joined(first: Samples, second: Samples) -> Sound:
    """Return what delay-and-sum makes of a stream."""
    method = DelayAndSum()
    blocks = range(0, len(first), STEP)
    parts = [method.push(first[at : at + STEP], second[at : at + STEP]) for at in blocks]
    return np.concatenate(parts).astype(np.float64)


class DelayAndSum:
    """Joins two channels. One thread."""

    def __init__(self) -> None:
        self.shift = 0.0
        """Samples by which the second channel is later than the first."""
        self._past: NDArray[np.float32] = np.zeros((2, 2 * MARGIN), np.float32)
        """The newest samples of both channels, of which MARGIN were not given yet."""
        self._block: NDArray[np.float32] = np.zeros((2, 0), np.float32)
        self._cross: NDArray[np.complex64] = np.zeros(len(BINS), np.complex64)

    def push(self, first: Samples, second: Samples) -> Samples:
        """Return as many samples as both channels have, (n,) int16, MARGIN samples late."""
        size = len(first)
        if not size:
            return first
        both = np.array((first, second), np.float32)
        alike = np.array_equal(first, second)  # one capsule on both channels
        before, self.shift = self.shift, 0.0 if alike else self._find_shift(both)
        sound = np.concatenate((self._past, both), axis=1)
        self._past = sound[:, size:]
        late = self._read(sound[1], self.shift, size)
        if before != self.shift:
            fade = np.linspace(0, 1, size, dtype=np.float32)
            late = fade * late + (1 - fade) * self._read(sound[1], before, size)
        mean = (sound[0, MARGIN : MARGIN + size] + late) / 2
        result: Samples = np.clip(np.rint(mean), -32768, 32767).astype(np.int16)
        return result

    def _read(self, channel: NDArray[np.float32], shift: float, size: int) -> NDArray[np.float32]:
        """Return `size` samples of the channel, so much later than the first one's."""
        whole, part = divmod(round(shift * STEPS), STEPS)
        begin = MARGIN + whole - TAPS // 2 + 1
        samples = channel[begin : begin + size + TAPS - 1]
        return np.asarray(np.convolve(samples, FRACTIONS[part], "valid"), np.float32)

    def _find_shift(self, both: NDArray[np.float32]) -> float:
        """Compare whole blocks; return the shift that fits best."""
        self._block = np.concatenate((self._block, both), axis=1)
        found = False
        while self._block.shape[1] >= BLOCK:
            part, self._block = self._block[:, :BLOCK], self._block[:, BLOCK:]
            one, other = np.fft.rfft(part * TAPER, axis=1)[:, BINS].astype(np.complex64)
            self._cross = KEPT * self._cross + one * other.conj()
            found = True
        size = np.abs(self._cross)
        if not found or not size.any():
            return self.shift
        heights = (STEERING @ (self._cross / np.maximum(size, 1e-6))).real
        return float(SHIFTS[int(np.argmax(heights))])


FRACTIONS = fractional_taps(TAPS, STEPS)
TAPER = np.sin(np.pi * (np.arange(BLOCK, dtype=np.float32) + 0.5) / BLOCK)
BINS = np.arange(int(LOW_HZ * BLOCK / SAMPLE_RATE), int(HIGH_HZ * BLOCK / SAMPLE_RATE), 2)
SHIFTS = np.arange(-WIDEST * STEPS, WIDEST * STEPS + 1) / STEPS
STEERING: NDArray[np.complex64] = np.exp(-2j * np.pi * np.outer(SHIFTS, BINS) / BLOCK).astype(
    np.complex64
)


if __name__ == "__main__":
    main()
