"""Echo cancellation: removes from the microphone's sound what the room's loudspeakers play.

The reference is that sound as it is sent to the loudspeakers. `Alignment` finds where it is in the
microphone's sound; libspeexdsp subtracts it (an adaptive filter in the frequency domain, MDF) and
suppresses what is left. While the reference is absent or silent, every frame passes unchanged.
"""

import ctypes
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from appliance.capture.alignment import (
    EARLY_S,
    FOLLOW_LENGTH,
    LATE_S,
    LEAD,
    LOCATE_RANGE,
    LOCATED_S,
    SEARCH_S,
    Alignment,
)
from appliance.capture.clock import SampleClock
from appliance.capture.frames import FRAME_SAMPLES
from appliance.capture.loudness import power_of
from appliance.errors import DeviceError
from appliance.records import SAMPLE_RATE, EchoState, Frame, Samples

LIBRARY = "libspeexdsp.so.1"
BLOCK = FRAME_SAMPLES // 2
"""Samples that libspeexdsp processes at once: 15 ms. 10 ms cost a fifth more CPU; 30 ms a sixth
less, and the sound would come 15 ms later."""
FILTER_MS = 240
"""Length of the filter. In a room with RT60 0.75 s, 200 ms remove 3 dB less, and 100 ms 10 dB."""
(SET_NOISE_SUPPRESS, SET_ECHO_SUPPRESS, SET_ECHO_SUPPRESS_ACTIVE, SET_ECHO_STATE) = (18, 20, 22, 24)
"""speex/speex_preprocess.h."""
SET_SAMPLING_RATE = 24
"""speex/speex_echo.h."""
NOISE_DB, ECHO_DB, ECHO_WHILE_SPEAKING_DB = 0, -30, -12
"""Suppression of noise (none), and of the echo that the filter leaves."""

TAPS, PHASES = 32, 256
"""Of the filter that reads the reference between two samples."""
AUDIBLE = 20.0
"""RMS from which the reference counts as sound: -64 dBFS, above the noise of a line input."""
TAIL_S = 1.0
"""The echo of the reference's last sound has died away after this."""
LOCATE_WITHIN_S = 1.5
"""After a pause, frames wait so long at most until the delay of the reference is known: somebody
may already speak over it."""
HELD_FRAMES = 3
"""Frames of the microphone that may wait for the reference (90 ms)."""
BUFFER = 1 << 17
"""Samples of the reference that are kept (8 s)."""

SMOOTHING = 0.35
"""Share of the newest frame in the powers that are compared: about 70 ms."""
MOST_REDUCED_DB, LEAST_REDUCED_DB = 12.0, 3.0
"""The reference explains sound that cancellation makes softer by this, at most and at least, ..."""
REDUCED_SHARE = 0.5
"""... and by this share of the usual reduction."""
LEARNED_S = 3.0
"""The first sound of the reference counts as explained for this long: nothing is known yet."""
FORGOTTEN_DB_PER_S = 0.1
"""The usual reduction is its recent maximum, which is lowered by this."""


class ReferenceBuffer:
    """The newest seconds of the reference, counted in samples. One thread."""

    def __init__(self) -> None:
        self._ring: Samples = np.zeros(BUFFER, np.int16)
        self._clock = SampleClock()
        self.count = 0
        """Samples received, lost ones included."""
        self.audible_until = -BUFFER
        """Count at the end of the last block that was not silent."""
        self.interruptions = self.pauses = 0
        """How often the stream began again, with another delay or with the same."""

    def restart(self, *, resumed: bool = False) -> None:
        """The stream begins again, and its clock with it; `resumed`: with the same delay."""
        self._clock = SampleClock()
        self._ring[:] = 0
        self.count, self.audible_until = 0, -BUFFER
        self.interruptions += not resumed
        self.pauses += resumed

    def push(self, samples: Samples, end_s: float, *, lost: bool = False) -> None:
        """Append samples (n,) int16 whose last one was played at `end_s`."""
        if not len(samples):
            return
        began_s = self._clock.began_s
        received_s = (self.count + len(samples)) / SAMPLE_RATE
        if self._clock.follow(end_s, received_s, lost=lost) and self.count:
            missing = round((self._clock.began_s - began_s) * SAMPLE_RATE)
            self._clock.began_s = began_s
            self._append(np.zeros(min(max(missing, 0), BUFFER), np.int16))
        if power_of(samples) >= AUDIBLE**2:
            self.audible_until = self.count + len(samples)
        self._append(samples[-BUFFER:])

    def position_at(self, time_s: float) -> float:
        """Return the count of samples at a time of time.monotonic()."""
        return (time_s - self._clock.began_s) * SAMPLE_RATE

    def read(self, start: int, count: int) -> Samples:
        """Return samples (count,) int16 from position `start`; zeros where there are none."""
        samples: Samples = np.zeros(count, np.int16)
        begin = max(start, 0, self.count - BUFFER)
        end = min(start + count, self.count)
        if begin < end:
            first = begin % BUFFER
            part = self._ring[first : first + end - begin]
            rest = self._ring[: end - begin - len(part)]
            samples[begin - start : end - start] = np.concatenate((part, rest))
        return samples

    def _append(self, samples: Samples) -> None:
        first = self.count % BUFFER
        part = self._ring[first : first + len(samples)]
        part[:] = samples[: len(part)]
        self._ring[: len(samples) - len(part)] = samples[len(part) :]
        self.count += len(samples)


class EchoCanceller:
    """Removes the reference from a stream of frames. One thread; any thread reads `state`."""

    def __init__(self, reference: ReferenceBuffer, filter_ms: int = FILTER_MS) -> None:
        """Raises DeviceError without libspeexdsp."""
        self._reference = reference
        self._speex = _Speex(filter_ms)
        self._alignment = Alignment()
        self._held: deque[Frame] = deque()
        self._position = 0
        """Samples of the microphone up to the next frame."""
        self._end_s: float | None = None
        self._interruptions, self._pauses = reference.interruptions, reference.pauses
        self._locate_left = 0
        """Samples after a pause in which the delay may still be corrected."""
        self._waiting_for_delay: list[Frame] = []
        """Frames that wait until it is known."""
        self._lag = 0.0
        """Samples from where the clocks expect the reference to where it was."""
        self._past = _Past(int(max(SEARCH_S) * SAMPLE_RATE))
        self._aligned = _Past(FOLLOW_LENGTH)
        self._since_check = 0
        """Samples since the last search, or the last comparison of the two streams."""
        self._processing = False
        self._learn_left = int(LEARNED_S * SAMPLE_RATE)
        self._gate = _Gate()
        self._delay_s = 0.0
        """From the reference to the microphone, when a frame was last processed."""

    @property
    def state(self) -> EchoState:
        """What the canceller does now."""
        if not self._alignment.locked:
            return EchoState()
        return EchoState(
            reduction_db=round(self._gate.usual_db, 1) if self._gate.usual_db else None,
            delay_ms=round(self._delay_s * 1000),
            drift_ppm=round(self._alignment.rate * 1e6),
            active=self._processing,
        )

    def push(self, frame: Frame) -> Iterator[Frame]:
        """Yield the frames that are ready, in their order; some wait for the reference."""
        self._held.append(frame)
        while self._held:
            if self._must_wait():
                return
            yield from self._process(self._held.popleft())

    def _must_wait(self) -> bool:
        """True while the reference for the oldest held frame has not come but may still come."""
        if not self._alignment.locked or len(self._held) > HELD_FRAMES:
            return False
        shift = self._alignment.shift
        end = self._position + shift + len(self._held[0].samples) + TAPS
        late = end - self._reference.count
        return self._is_audible(shift) and 0 < late <= LATE_S * SAMPLE_RATE

    def _is_audible(self, shift: float) -> bool:
        """True while the loudspeakers play, or their echo lasts."""
        until = self._reference.audible_until + TAIL_S * SAMPLE_RATE
        return bool(self._reference.count) and self._position + shift < until

    def _process(self, frame: Frame) -> list[Frame]:
        """Return the frames that are ready with this one, without the reference's sound."""
        expected = self._reference.position_at(frame.start_s) - self._position
        ready = self._resume(frame, expected)
        shift = self._alignment.shift if self._alignment.locked else expected
        audible = self._is_audible(shift)
        if audible and self._locate_left:
            ready += self._locate(frame)
        elif audible and self._alignment.locked:
            self._lag = shift - expected
            self._delay_s = (LEAD - self._lag) / SAMPLE_RATE
            ready.append(self._cancel(frame, self._position))
        else:
            self._processing = False
            ready += [*self._give_up(), frame]
        size = len(frame.samples)
        self._position += size
        self._alignment.advance(size)
        self._end_s = frame.end_s
        if audible:
            if self._learn_left > 0:
                self._learn_left -= size
                ready = [replace(one, explained=True) for one in ready]
            self._past.push(frame.samples)
            self._since_check += size
            self._align(expected)
        return ready

    def _give_up(self) -> list[Frame]:
        """Return the frames that have waited for the delay in vain."""
        waited, self._waiting_for_delay = self._waiting_for_delay, []
        return [replace(one, explained=True) for one in waited]

    def _resume(self, frame: Frame, expected: float) -> list[Frame]:
        """Begin again if one of the streams was interrupted; return the frames that waited. After a
        pause of the reference its delay is the one before."""
        paused = self._reference.pauses != self._pauses and self._reference.count
        gap_s = 0.0 if self._end_s is None else frame.start_s - self._end_s
        interrupted = self._reference.interruptions != self._interruptions
        interrupted |= frame.after_gap or abs(gap_s) > LATE_S
        if not paused and not interrupted:
            return []
        if paused:
            self._pauses = self._reference.pauses
            self._alignment.move(expected + self._lag)
            self._locate_left = int(LOCATE_WITHIN_S * SAMPLE_RATE) if self._alignment.locked else 0
        if interrupted:
            self._interruptions = self._reference.interruptions
            self._alignment.reset()
            self._since_check = 0
        self._past.clear()
        self._aligned.clear()
        return self._give_up()

    def _locate(self, frame: Frame) -> list[Frame]:
        """Return this frame and those before it that waited, once the first sound after a pause has
        told the delay; they wait at most for LOCATE_WITHIN_S."""
        self._locate_left = max(0, self._locate_left - len(frame.samples))
        self._waiting_for_delay.append(frame)
        if self._finds_delay(len(self._past)):
            self._locate_left = 0
            waited, self._waiting_for_delay = self._waiting_for_delay, []
            first = self._position - sum(len(one.samples) for one in waited[:-1])
            starts = accumulate((len(one.samples) for one in waited[:-1]), initial=first)
            return [self._cancel(one, at) for one, at in zip(waited, starts, strict=True)]
        if self._locate_left:
            return []
        self._alignment.reset()
        return self._give_up()

    def _finds_delay(self, length: int) -> bool:
        """Return True once the newest samples, so many, tell the reference's delay."""
        if length < LOCATED_S * SAMPLE_RATE:
            return False
        start = self._position - length + round(self._alignment.shift) - LOCATE_RANGE
        reference = self._reference.read(start, length + 2 * LOCATE_RANGE)
        if power_of(reference[LOCATE_RANGE:-LOCATE_RANGE]) < AUDIBLE**2:
            return False
        sound = self._past.newest(length)
        return self._alignment.locate(sound, reference.astype(np.float32), LOCATE_RANGE)

    def _cancel(self, frame: Frame, start: int) -> Frame:
        """Return the frame, which begins at sample `start`, with the aligned reference removed."""
        since = self._position - start
        first = start + self._alignment.shift - self._alignment.rate * since
        whole = math.floor(first)
        size = len(frame.samples)
        spare = TAPS // 2
        source = self._reference.read(whole - spare + 1, size + TAPS).astype(np.float32)
        out, played = np.empty(size, np.int16), np.empty(size, np.int16)
        for at in range(0, size, BLOCK):
            offset = first - whole + self._alignment.rate * at
            step = math.floor(offset)
            taps = FRACTIONS[int((offset - step) * PHASES)]
            segment = source[at + step : at + step + BLOCK + TAPS - 1]
            block = np.rint(np.convolve(segment, taps, "valid"))
            played[at : at + BLOCK] = block.clip(-32768, 32767, out=block)
            self._speex.cancel(frame.samples, played, out, at)
        self._aligned.push(played)
        if not self._processing:  # what libspeexdsp returns is a block late
            self._processing = True
            ramp = np.linspace(0, 1, BLOCK)
            out[:BLOCK] = frame.samples[:BLOCK] * (1 - ramp) + out[:BLOCK] * ramp
        power = power_of(frame.samples)
        explained = self._gate.push(power, power_of(out), size / SAMPLE_RATE)
        return Frame(out, frame.start_s, frame.after_gap, explained, power)

    def _learn(self, length: int) -> None:
        """Let the filter hear the newest samples, from before the delay was known."""
        sound, start = self._past.newest(length), self._position - length
        played = self._reference.read(start + round(self._alignment.shift), length)
        samples, out = sound.astype(np.int16), np.empty(length, np.int16)
        for at in range(0, length - BLOCK + 1, BLOCK):
            self._speex.cancel(samples, played, out, at)

    def _align(self, expected: float) -> None:
        """Search the delay, or follow it, once a second."""
        alignment = self._alignment
        if not alignment.locked:
            length = alignment.search_length
            if self._since_check < SAMPLE_RATE or len(self._past) < length:
                return
            self._since_check = 0
            early, late = int(EARLY_S * SAMPLE_RATE), int(LATE_S * SAMPLE_RATE)
            start = self._position - length + round(expected) - early
            reference = self._reference.read(start, length + early + late)
            sound = self._past.newest(length)
            if alignment.search(sound, reference.astype(np.float32), round(expected)):
                self._speex.reset()
                self._learn(length)
                self._gate.reset()
                self._aligned.clear()
        elif self._since_check >= SAMPLE_RATE and len(self._aligned) >= FOLLOW_LENGTH:
            self._since_check = 0
            aligned, sound = (one.newest(FOLLOW_LENGTH) for one in (self._aligned, self._past))
            lost = not alignment.follow(self._position, sound, aligned) and alignment.locked
            if lost and self._finds_delay(FOLLOW_LENGTH):
                self._aligned.clear()


class _Past:
    """The newest samples of a stream."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._parts: deque[Samples] = deque()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def push(self, samples: Samples) -> None:
        self._parts.append(samples)
        self._length += len(samples)
        while self._length - len(self._parts[0]) >= self._most:
            self._length -= len(self._parts.popleft())

    def newest(self, count: int) -> NDArray[np.float32]:
        return np.concatenate(self._parts)[-count:].astype(np.float32)

    def clear(self) -> None:
        self._parts.clear()
        self._length = 0


class _Gate:
    """Decides which frames the reference explains."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._before = self._after = 0.0
        self.usual_db = 0.0

    def push(self, before: float, after: float, length_s: float) -> bool:
        """Return True if the reference explains a frame with these powers before and after
        cancellation."""
        self._before += SMOOTHING * (before - self._before)
        self._after += SMOOTHING * (after - self._after)
        reduced_db = 10 * math.log10((self._before + 1) / (self._after + 1))
        if reduced_db > self.usual_db:
            self.usual_db += 0.1 * (reduced_db - self.usual_db)
        else:
            self.usual_db = max(0.0, self.usual_db - FORGOTTEN_DB_PER_S * length_s)
        share_db = REDUCED_SHARE * self.usual_db
        return reduced_db >= min(max(share_db, LEAST_REDUCED_DB), MOST_REDUCED_DB)


def fractional_taps(taps_each: int, phases: int) -> NDArray[np.float32]:
    """Return taps (phases, taps_each) that read a signal at so many parts of a sample."""
    at = np.arange(taps_each) - taps_each // 2 + 1
    offsets = at[None, :] - (np.arange(phases) / phases)[:, None]
    window = np.cos(np.pi * offsets / (taps_each + 2)) ** 2
    taps: NDArray[np.float32] = (np.sinc(offsets) * window)[:, ::-1].astype(np.float32)
    return taps


FRACTIONS = fractional_taps(TAPS, PHASES)


class _Speex:
    """libspeexdsp's echo canceller."""

    def __init__(self, filter_ms: int) -> None:
        """Raises DeviceError if the library is not installed."""
        try:
            self._library = library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise DeviceError(
                "capture.reference needs libspeexdsp: `sudo apt install libspeexdsp1`"
            ) from error
        library.speex_echo_state_init.restype = ctypes.c_void_p
        library.speex_preprocess_state_init.restype = ctypes.c_void_p
        library.speex_echo_cancellation.argtypes = (ctypes.c_void_p,) * 4
        library.speex_preprocess_run.argtypes = (ctypes.c_void_p,) * 2
        taps = filter_ms * SAMPLE_RATE // 1000
        self._filter = ctypes.c_void_p(library.speex_echo_state_init(BLOCK, taps))
        rate = ctypes.c_int(SAMPLE_RATE)
        library.speex_echo_ctl(self._filter, SET_SAMPLING_RATE, ctypes.byref(rate))
        self._suppressor = ctypes.c_void_p(library.speex_preprocess_state_init(BLOCK, rate))
        library.speex_preprocess_ctl(self._suppressor, SET_ECHO_STATE, self._filter)
        for what, decibels in (
            (SET_NOISE_SUPPRESS, NOISE_DB),
            (SET_ECHO_SUPPRESS, ECHO_DB),
            (SET_ECHO_SUPPRESS_ACTIVE, ECHO_WHILE_SPEAKING_DB),
        ):
            value = ctypes.byref(ctypes.c_int(decibels))
            library.speex_preprocess_ctl(self._suppressor, what, value)

    def cancel(self, sound: Samples, played: Samples, out: Samples, at: int) -> None:
        """Write into `out` from `at` a block of the sound without what was played, a block late."""
        first = 2 * at
        target = out.ctypes.data + first
        self._library.speex_echo_cancellation(
            self._filter, sound.ctypes.data + first, played.ctypes.data + first, target
        )
        self._library.speex_preprocess_run(self._suppressor, target)

    def reset(self) -> None:
        """Forget the room."""
        self._library.speex_echo_state_reset(self._filter)

    def __del__(self) -> None:
        if hasattr(self, "_suppressor"):
            self._library.speex_preprocess_state_destroy(self._suppressor)
            self._library.speex_echo_state_destroy(self._filter)
