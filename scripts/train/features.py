"""Training windows: their sound, how it is distorted, its mel and its targets.

`Renderer.render` makes them of a `Plan`, which says what a window holds. Windows are either full
(10 s, as at run time) or cut to the clip, which costs less.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import soxr
from numpy.typing import NDArray
from scipy import signal
from train.disguise import follow, mask, revoice, rhythm, sharpen, smear, warp_frequency
from train.plans import Plan
from train.shards import SAMPLE_RATE, SILENCE_PHONE, Bank
from train.sounds import Generator, Sound
from train.wordpieces import Wordpieces

from appliance.infer.mel import log_mel

HOP = 160
POSITION_S = 0.02
PRE_ROLL_S = 0.6
"""Room sound in front of speech at run time."""
FILTER_DELAY = 127
"""Samples by which the impulse responses of `sounds` are late."""
CHANNEL_SHARE, ROOM_SHARE = 0.8, 0.65
"""Of the hardest windows that sound through a response at all, and of these through a room's."""
IGNORED = -100
"""Target that costs nothing, as PyTorch's cross_entropy has it."""


@dataclass(frozen=True, slots=True, eq=False)
class Rendered:
    """A window's mel (T, 80), phone of each position (T / 2,), and text ids without prompt.

    `places`: about where each of text_ids and the end is spoken, in encoder positions.
    """

    mel: NDArray[np.float32]
    phones: NDArray[np.int64]
    text_ids: list[int]
    places: list[float]
    speech: bool


def decibels(db: float) -> float:
    """Amplitude ratio of `db`."""
    return float(10 ** (db / 20))


def level(sound: Sound) -> float:
    """RMS of `sound`, never 0."""
    return float(np.sqrt(np.mean(np.square(sound), dtype=np.float64))) + 1e-7


class Renderer:
    """Makes windows from plans, with banks of synthetic sounds and impulse responses."""

    def __init__(
        self, bank: Bank, pieces: Wordpieces, sounds: NDArray[np.int16], channels: list[Sound]
    ) -> None:
        self.bank = bank
        self.pieces = pieces
        self.sounds = sounds
        self.channels = channels

    def background(self, rng: Generator, n: int) -> Sound:
        """A random stretch of a random synthetic sound, (n,) float32."""
        sound = self.sounds[int(rng.integers(len(self.sounds)))]
        at = int(rng.integers(len(sound) - n + 1))
        part: Sound = sound[at : at + n].astype(np.float32) / np.float32(32768)
        return part

    def speak(
        self, rng: Generator, plan: Plan, limit: int
    ) -> tuple[Sound, NDArray[np.int64], list[int], list[float], int]:
        """Speech alone (T * 160,), phones, text ids and places, and the sample it ends at."""
        audio = np.zeros(plan.frames * HOP, np.float32)
        phones = np.full(plan.frames // 2, SILENCE_PHONE, np.int64)
        ids: list[int] = []
        places: list[float] = []
        at = int(plan.lead_s * SAMPLE_RATE)
        end = at
        for index in plan.utterances:
            spoken = self.bank.utterance(index)
            sound = spoken.audio.astype(np.float32) / 32768
            if plan.tempo != 1.0:
                sound = soxr.resample(sound, SAMPLE_RATE * plan.tempo, SAMPLE_RATE, quality="LQ")
            more = self.pieces.encode(spoken.text)
            room = len(audio) - at
            if len(ids) + len(more) > limit or (ids and len(sound) > room):
                break
            ids += more
            spoken_s = at / SAMPLE_RATE + spoken.piece_times(self.pieces.lengths(more)) / plan.tempo
            places += map(float, spoken_s / POSITION_S)
            sound = sound[:room]
            audio[at : at + len(sound)] = sound
            first = int(np.ceil(at / SAMPLE_RATE / POSITION_S))
            last = min(len(phones), int((at + len(sound)) / SAMPLE_RATE / POSITION_S))
            times = np.arange(first, last) * POSITION_S - at / SAMPLE_RATE
            which = np.searchsorted(spoken.phone_ends / plan.tempo, times, side="right")
            known = which < len(spoken.phones)
            phones[first:last][known] = spoken.phones[which[known]]
            if not len(spoken.phones):
                phones[first:last] = IGNORED
            end = at + len(sound)
            at = end + int(rng.uniform(0.0, 0.7) * SAMPLE_RATE)
        return audio, phones, ids, [*places, end / SAMPLE_RATE / POSITION_S], end

    def across_the_room(self, rng: Generator, sound: Sound) -> Sound:
        """`sound` in a random room, as long and as loud as before."""
        response = self.channels[int(rng.integers(len(self.channels) // 2)) * 2 + 1]
        heard = signal.oaconvolve(sound, response)[FILTER_DELAY : FILTER_DELAY + len(sound)]
        quieter: Sound = (heard * (level(sound) / level(heard))).astype(np.float32)
        return quieter

    def distort(self, rng: Generator, audio: Sound, end: int, strength: float) -> Sound:
        """Speech through a room and microphone, with background until sample `end`."""
        speech_level = level(audio[audio != 0]) if np.any(audio) else decibels(-20)
        if rng.random() < CHANNEL_SHARE * strength:
            in_a_room = strength >= 0.5 and rng.random() < ROOM_SHARE
            number = int(rng.integers(len(self.channels) // 2)) * 2 + in_a_room
            through = signal.oaconvolve(audio, self.channels[number])
            audio = through[FILTER_DELAY : FILTER_DELAY + len(audio)].astype(np.float32)
            audio[end:] = 0
        if rng.random() < 0.35 + 0.5 * strength:
            snr_db = rng.uniform(32 - 30 * strength, 45)
            noise = self.background(rng, end)
            audio[:end] += noise * (speech_level / level(noise) * decibels(-snr_db))
        if rng.random() < 0.1 * strength:
            voice = self.bank.utterance(int(rng.integers(len(self.bank)))).audio[:end]
            babble = voice.astype(np.float32) / np.float32(32768)
            at = int(rng.integers(end - len(babble) + 1))
            scale = speech_level / level(babble) * decibels(-rng.uniform(12, 25))
            audio[at : at + len(babble)] += babble * scale
        return audio

    def finish(self, rng: Generator, audio: Sound, strength: float) -> Sound:
        """`audio` at a random loudness, now and then clipped, as 16 bit numbers give it."""
        if strength > 0:
            loudest = float(np.abs(audio).max()) + 1e-9
            peak_db = rng.uniform(-26, -1) if rng.random() < 0.9 else rng.uniform(-40, 6)
            audio = audio * (decibels(peak_db) / loudest)
        return np.clip(np.round(audio * 32768), -32768, 32767).astype(np.float32) / np.float32(
            32768
        )

    def without_speech(self, rng: Generator, plan: Plan) -> Sound:
        """A window in which nobody speaks: silence, noise, music, distant reversed babble."""
        n = plan.frames * HOP
        audio = np.zeros(n, np.float32)
        if rng.random() < 0.08:
            return audio
        end = n if rng.random() < 0.5 else int(rng.uniform(0.15, 1.0) * n)
        for _ in range(int(rng.choice([1, 1, 2]))):
            sound = self.background(rng, end) * decibels(rng.uniform(-20, 0))
            audio[:end] += self.across_the_room(rng, sound) if rng.random() < 0.5 else sound
        if rng.random() < 0.15:
            for _ in range(int(rng.integers(2, 6))):
                voice = self.bank.utterance(int(rng.integers(len(self.bank)))).audio[::-1][:end]
                at = int(rng.integers(end - len(voice) + 1))
                babble = voice.astype(np.float32) / np.float32(32768)
                audio[at : at + len(voice)] += self.across_the_room(rng, babble) * 0.1
        quiet = decibels(rng.uniform(-60, -3)) / (float(np.abs(audio).max()) + 1e-9)
        return np.clip(np.round(audio * quiet * 32768), -32768, 32767).astype(
            np.float32
        ) / np.float32(32768)

    def render(self, plan: Plan, limit: int = 106) -> Rendered:
        """The window of `plan`; its text has at most `limit` pieces."""
        rng = np.random.default_rng(plan.seed)
        if not plan.utterances:
            audio = self.without_speech(rng, plan)
            phones: NDArray[np.int64] = np.full(plan.frames // 2, SILENCE_PHONE, np.int64)
            return Rendered(log_mel(audio, frames=plan.frames), phones, [], [], speech=False)
        audio, phones, ids, places, end = self.speak(rng, plan, limit)
        if plan.strength > 0:
            end = min(len(audio), end + int(plan.tail_s * SAMPLE_RATE))
            audio = self.distort(rng, audio, end, plan.strength)
        mel = log_mel(self.finish(rng, audio, plan.strength), frames=plan.frames)
        if rng.random() < 0.5 * plan.strength:
            mel = revoice(rng, mel)
        if rng.random() < 0.5 * plan.strength:
            mel = warp_frequency(rng, mel)
        if rng.random() < 0.3 * plan.strength:
            mel = smear(rng, mel)
        if rng.random() < 0.4 * plan.strength:
            mel = sharpen(rng, mel)
        if rng.random() < 0.45 * plan.strength:
            old = rhythm(rng, len(mel))
            mel = follow(mel, old)
            phones = phones[np.minimum(old[::2] / 2 + 0.5, len(phones) - 1).astype(np.int64)]
            places = np.interp(np.array(places) * 2, old, np.arange(len(old)) / 2).tolist()
        if rng.random() < 0.55 * plan.strength:
            mel = mask(rng, mel)
        return Rendered(mel, phones, ids, places, speech=True)
