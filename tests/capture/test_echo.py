"""The loudspeakers' sound is removed, whatever its delay and clock; without it nothing changes."""

from ctypes.util import find_library
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray
from rigs.checkout import TESTS
from rigs.recordings import sentences

from appliance.capture.echo import BLOCK, EchoCanceller, ReferenceBuffer
from appliance.capture.frames import FRAME_SAMPLES, Framer
from appliance.capture.portaudio import SOUND, Message
from appliance.capture.recording import Recording
from appliance.capture.reference import PlayedSound
from appliance.capture.segmenter import Segmenter
from appliance.capture.voice import VoiceDetector
from appliance.config import Settings
from appliance.records import SAMPLE_RATE, Discarded, EchoState, Frame, Samples, Window

pytestmark = pytest.mark.skipif(
    not find_library("speexdsp"), reason="not installed: libspeexdsp1 (apt install libspeexdsp1)"
)
Sound = NDArray[np.float64]
BEGAN_S = 100.0


def read(name: str) -> Sound:
    with Recording(str(TESTS / "speech" / name), real_time=False) as recording:
        return np.concatenate([frame.samples for frame in recording.frames()]).astype(np.float64)


def television(seconds: float) -> Sound:
    """Sentences without an end, RMS 1500."""
    said = np.concatenate([read(one.file.name) for one in sentences()[:12]])
    return np.resize(said / said.std() * 1500, int(seconds * SAMPLE_RATE))


def in_room(sound: Sound, delay_s: float) -> Sound:
    """What a microphone hears of it: late, softer, with the echo of a small room."""
    rng = np.random.default_rng(5)
    response = rng.normal(size=SAMPLE_RATE // 5) * np.exp(-np.arange(SAMPLE_RATE // 5) / 400) * 0.1
    response[0] = 1.0
    size = 1 << (len(sound) + len(response)).bit_length()
    spectrum = np.fft.rfft(sound, size) * np.fft.rfft(response, size)
    echo = 0.5 * np.fft.irfft(spectrum)[: len(sound)]
    late = np.concatenate((np.zeros(int(delay_s * SAMPLE_RATE)), echo))[: len(sound)]
    return np.asarray(late + rng.normal(size=len(sound)) * 3)


def by_other_clock(sound: Sound, ppm: float) -> Sound:
    """The sound as a clock that is so much slower samples it."""
    at = np.arange(len(sound) - 100) * (1 + ppm * 1e-6)
    spectrum = np.fft.rfft(sound)
    double = np.fft.irfft(np.pad(spectrum, (0, 3 * len(spectrum))), 4 * len(sound)) * 4
    return np.asarray(np.interp(at * 4, np.arange(len(double)), double))


def to_samples(sound: Sound) -> Samples:
    return np.clip(np.rint(sound), -32768, 32767).astype(np.int16)


@dataclass
class Run:
    before: list[Frame]
    after: list[Frame]
    state: EchoState

    def reduction_db(self, last_s: float) -> float:
        """How much softer the end of the sound is afterwards."""
        count = int(last_s / 0.03)
        powers = [
            np.mean(np.concatenate([one.samples for one in frames[-count:]]).astype(float) ** 2)
            for frames in (self.before, self.after)
        ]
        return float(10 * np.log10(powers[0] / (powers[1] + 1)))


def run(sound: Sound, reference: Sound | None) -> Run:
    """Cancel the reference, which comes block by block as the sound does."""
    buffer, framer = ReferenceBuffer(), Framer()
    canceller = EchoCanceller(buffer)
    before, after = list[Frame](), list[Frame]()
    samples = to_samples(sound)
    played = None if reference is None else to_samples(reference)
    for at in range(0, len(samples), FRAME_SAMPLES):
        if played is not None:
            part = played[at : at + FRAME_SAMPLES]
            buffer.push(part, BEGAN_S + (at + len(part)) / SAMPLE_RATE)
        for frame in framer.push(samples[at : at + FRAME_SAMPLES], BEGAN_S + at / SAMPLE_RATE):
            before.append(frame)
            after += canceller.push(frame)
    return Run(before, after, canceller.state)


@pytest.mark.parametrize("reference", [None, np.zeros(4 * SAMPLE_RATE)], ids=["absent", "silent"])
def test_without_sound_in_the_reference_every_frame_passes_as_it_is(
    reference: Sound | None,
) -> None:
    done = run(in_room(television(4), 0.02), reference)
    assert len(done.before) > 100
    assert all(one is other for one, other in zip(done.before, done.after, strict=True))
    assert done.state == EchoState()


@pytest.mark.parametrize("delay_s", [0.02, 0.4, 2.0, -0.05])
def test_the_television_is_removed_whatever_the_delay(delay_s: float) -> None:
    played = television(9 + max(0.0, delay_s))
    lead = np.zeros(int(max(0.0, -delay_s) * SAMPLE_RATE))
    reference = np.concatenate((lead, played))[: len(played)]
    done = run(in_room(played, max(0.0, delay_s)), reference)
    assert done.reduction_db(3.0) > 20
    assert done.state.active and done.state.delay_ms == pytest.approx(delay_s * 1000, abs=10)
    ends = [frame.end_s for frame in done.after]
    assert np.allclose(np.diff(ends), 0.03)


def test_after_a_pause_of_our_own_loudspeaker_its_first_sound_is_removed() -> None:
    buffer, framer, length = ReferenceBuffer(), Framer(), 6 * SAMPLE_RATE
    canceller = EchoCanceller(buffer)
    played = television(12)
    # the pause is longer than the buffer; the second sound comes from another clock's start
    parts = [(0, played[:length]), (length + 12 * SAMPLE_RATE, played[length:])]
    whole = np.zeros(parts[1][0] + length)
    for start, loud in parts:
        whole[start : start + length] = loud
    samples = to_samples(in_room(whole, 0.15))
    starts = {start: to_samples(loud) for start, loud in parts}
    after = list[Frame]()
    for at in range(0, len(samples), FRAME_SAMPLES):
        if at + 10 * FRAME_SAMPLES in starts or not at:  # the device opens before it plays
            buffer.restart(resumed=True)
        for start, known in starts.items():
            if start <= at < start + length:
                part = known[at - start : at - start + FRAME_SAMPLES]
                late_s = 0.25 if start else 0.0  # as if the sound server had begun otherwise
                buffer.push(part, BEGAN_S + late_s + (at + len(part)) / SAMPLE_RATE)
        for frame in framer.push(samples[at : at + FRAME_SAMPLES], BEGAN_S + at / SAMPLE_RATE):
            after += canceller.push(frame)
    assert np.allclose(np.diff([one.start_s for one in after]), 0.03), "some had to wait"
    for low, high in ((18.2, 18.7), (18.7, 19.7)):
        heard = samples[int(low * SAMPLE_RATE) : int(high * SAMPLE_RATE)].astype(float)
        frames = [one.samples for one in after if low < one.start_s - BEGAN_S < high]
        left = np.concatenate(frames).astype(float)
        assert 10 * np.log10(np.mean(heard**2) / np.mean(left**2)) > 15


def test_a_loudspeaker_that_stutters_is_found_again() -> None:
    played, lost = television(18), 6 * SAMPLE_RATE
    late = np.concatenate((played[:lost], np.zeros(SAMPLE_RATE // 20), played[lost:]))
    done = run(in_room(late[: len(played)], 0.1), played)
    assert done.reduction_db(4.0) > 15
    assert done.state.delay_ms == pytest.approx(150, abs=10)


@pytest.mark.parametrize("ppm", [100, -100])
def test_clocks_that_are_100_ppm_apart_are_followed(ppm: int) -> None:
    played = television(22)
    done = run(in_room(played, 0.1), by_other_clock(played, ppm))
    assert done.state.drift_ppm == pytest.approx(-ppm, abs=20)
    assert done.reduction_db(4.0) > 15


def test_a_sound_that_is_not_in_the_reference_stays() -> None:
    played, person = television(14), np.zeros(14 * SAMPLE_RATE)
    voice = read(sentences()[30].file.name)
    at = 10 * SAMPLE_RATE
    person[at : at + len(voice)] = voice / voice.std() * 1500
    done = run(in_room(played, 0.1) + person, played)
    said = slice(at // FRAME_SAMPLES, (at + len(voice)) // FRAME_SAMPLES)
    left = np.concatenate([one.samples for one in done.after[said]]).astype(float)
    wanted = person[said.start * FRAME_SAMPLES :][: len(left)]
    late = np.roll(wanted, BLOCK)
    assert np.corrcoef(left, late)[0, 1] > 0.8
    assert np.mean([one.explained for one in done.after[said]]) < 0.4
    assert np.mean([one.explained for one in done.after[150 : said.start]]) > 0.7


def test_the_television_opens_no_utterance_and_a_person_beside_it_does() -> None:
    played, person = television(16), np.zeros(16 * SAMPLE_RATE)
    voice = read(sentences()[30].file.name)
    at = 10 * SAMPLE_RATE
    person[at : at + len(voice)] = voice / voice.std() * 1500
    done = run(in_room(played, 0.1) + person, played)
    settings = Settings()
    found = {}
    for name, frames in (("microphone", done.before), ("cancelled", done.after)):
        segmenter = Segmenter(VoiceDetector(settings.voice), settings.segmenter, 10.0)
        found[name] = [one for frame in frames[100:] for one in segmenter.push(frame)]
        found[name] += segmenter.flush()
    (window,) = [one for one in found["cancelled"] if isinstance(one, Window)]
    assert window.start_s == pytest.approx(BEGAN_S + 10, abs=1)
    assert window.speech_end_s < BEGAN_S + (at + len(voice)) / SAMPLE_RATE + 0.3
    reasons = {one.reason for one in found["cancelled"] if isinstance(one, Discarded)}
    assert reasons <= {"reference"}
    heard = [one for one in found["microphone"] if isinstance(one, Window)]
    assert sum(one.duration_s for one in heard) > 10, "without it, the television is transcribed"


def test_samples_that_the_reference_lost_leave_the_rest_where_it_was() -> None:
    played = television(12)
    samples = to_samples(played)
    buffer = ReferenceBuffer()
    canceller = EchoCanceller(buffer)
    sound = to_samples(in_room(played, 0.1))
    after = list[Frame]()
    for at in range(0, len(sound) - FRAME_SAMPLES, FRAME_SAMPLES):
        lost = 6 * SAMPLE_RATE <= at < 6.5 * SAMPLE_RATE
        if not lost:
            first = at - FRAME_SAMPLES < 6.5 * SAMPLE_RATE <= at
            end_s = BEGAN_S + (at + FRAME_SAMPLES) / SAMPLE_RATE
            buffer.push(samples[at : at + FRAME_SAMPLES], end_s, lost=first)
        after += canceller.push(Frame(sound[at : at + FRAME_SAMPLES], BEGAN_S + at / SAMPLE_RATE))
    last = np.concatenate([one.samples for one in after[-60:]]).astype(float)
    assert (
        10 * np.log10(np.mean(sound[-60 * FRAME_SAMPLES :].astype(float) ** 2 / np.mean(last**2)))
        > 15
    )


def test_until_it_is_removed_well_what_is_heard_while_it_speaks_is_our_own() -> None:
    played = PlayedSound()
    played.push(Message(SOUND, b"", 10.0), speaks=True)
    assert played.is_heard(10.4)
    assert not played.is_heard(10.6)
    played.push(Message(SOUND, b"", 20.0), speaks=False)
    assert not played.is_heard(19.0), "a ring has no words"
    played.is_removed = True
    assert not played.is_heard(9.0)
