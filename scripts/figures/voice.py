"""Measure voice detection and segmentation on real recordings; print one line per figure.

    scripts/measure voice [FOLDER]

FOLDER/MANIFEST.tsv names the recordings; default: $ROOMSCRIBE_SHARED/data/audio.

Every recording is heard as a live stream would have it: 2 s of faint noise (-80 dBFS) before and
after. Silero's score of a short word swings with where its windows of 32 ms fall in it, so
commands, noise, music and chimes are heard at three more offsets, too; opens are counted over all
four, and commands missed there are listed apart. What is counted:

command missed   no window came of it (discarded ones are none)
onset            first of three 10 ms steps in a row whose level (20 ms) is 12 dB over the
                 recording's own floor (its 5th percentile) and within 35 dB of its 95th
onset cut        the first window starts more than 100 ms after the onset
recall           of the 10 ms steps between onset and end that are so loud, those in a window
end found after  from the last loud step to the moment when the last window comes out
opens/min        utterances opened, discarded ones included, per minute of noise or music
CPU              process time of detector and segmenter per second of sound
in noise         the same commands in pink noise, or in the babble of six readers, at so many dB
                 below their loud steps' mean power; the window that counts is the one with the
                 last loud step, since babble is speech, too
in a stream      commands one after the other with 2 to 20 s of room noise between them, as a
                 detector hears them that nobody resets: the noise of each recording's own pauses,
                 or the noise recordings at 25 dB below the commands; missed are those of which
                 less than half lies in windows
labelled         speech time of the labels (*.rttm, or told beside the recordings) in a window
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rigs.recordings import SHARED_AUDIO, manifest

from appliance.capture.frames import Framer
from appliance.capture.recording import Recording
from appliance.capture.segmenter import Segmenter
from appliance.capture.voice import VoiceDetector
from appliance.config import Settings
from appliance.records import SAMPLE_RATE, Discarded, Samples, Window

PAD_S = 2.0
STEP = SAMPLE_RATE // 100
WINDOW_S = 10.0
OFFSETS = (130, 260, 390)
"""Samples left out at the beginning of the padding in further hearings."""
COMMANDS = {"speech-home-automation", "tts-home-automation", "speech-slots"}
CHOSEN_ON = "ha_commands_ohf/"
"""Recordings on which the detector's RISE_DB and NOISE_S were chosen; the others are reported."""
ODD = {"speech-short", "speech-oov"}
LABELS = {
    "cobra_vad/sample.wav": [(0.896, 1.696), (3.104, 3.872), (5.216, 5.856), (7.264, 8.064)],
    "ami_60s/ES2011a.Headset-0-40s-46s.wav": [(1.46, 2.82), (3.36, 4.36)],
}
"""Begin and end of the speech in recordings whose makers label it elsewhere, s."""


def samples_of(path: Path) -> Samples:
    """A recording, (n,) int16 at 16 kHz."""
    with Recording(str(path), real_time=False) as recording:
        return np.concatenate([frame.samples for frame in recording.frames()])


def noise(seconds: float, rms: float, *, pink: bool = False, seed: int = 0) -> Samples:
    """(n,) int16 of white or pink noise."""
    white = np.random.default_rng(seed).normal(size=int(seconds * SAMPLE_RATE))
    if pink:
        spectrum = np.fft.rfft(white)
        spectrum[1:] /= np.sqrt(np.arange(1, len(spectrum)))
        white = np.fft.irfft(spectrum, len(white))
        white /= white.std()
    return np.clip(np.rint(white * rms), -32768, 32767).astype(np.int16)


def padded(samples: Samples) -> Samples:
    """The recording between two stretches of faint noise."""
    return np.concatenate((noise(PAD_S, 3.3), samples, noise(PAD_S, 3.3, seed=1)))


def loud_steps(samples: Samples) -> NDArray[np.bool_]:
    """Which 10 ms steps of a recording are speech, by their level alone."""
    power = samples.astype(np.float64) ** 2
    steps = power[: len(power) // STEP * STEP].reshape(-1, STEP).mean(axis=1)
    level = 10 * np.log10((steps[:-1] + steps[1:]) / 2 + 1e-2)
    loud = (level > np.percentile(level, 5) + 12) & (level > np.percentile(level, 95) - 35)
    three = loud[:-2] & loud[1:-1] & loud[2:]
    spoken: NDArray[np.bool_] = np.concatenate((three, [False, False]))
    spoken |= np.concatenate(([False], three, [False]))
    return spoken


def babble(voices: list[Samples], seconds: float) -> Samples:
    """(n,) int16 of several readers at once, as loud as each other, RMS 300; each of them begins
    somewhere in the middle, since all recordings begin with silence."""
    length = int(seconds * SAMPLE_RATE)
    mixed = np.zeros(length)
    for number, voice in enumerate(voices, 1):
        begun = np.roll(voice, -len(voice) * number // (len(voices) + 1))
        looped = np.resize(begun.astype(np.float64), length)
        mixed += looped / np.sqrt((looped**2).mean())
    crowd: Samples = np.rint(mixed * 300 / np.sqrt((mixed**2).mean())).astype(np.int16)
    return crowd


def in_noise(samples: Samples, snr_db: float, other: Samples | None = None) -> Samples:
    """The padded recording with pink noise, or `other`, all along."""
    steps = samples[: len(samples) // STEP * STEP].reshape(-1, STEP).astype(np.float64)
    rms = np.sqrt((steps[loud_steps(samples)[: len(steps)].nonzero()[0]] ** 2).mean())
    whole = padded(samples).astype(np.int64)
    rms /= 10 ** (snr_db / 20)
    if other is None:
        added = noise(len(whole) / SAMPLE_RATE + 0.01, rms, pink=True)
    else:
        part = other[: len(whole)].astype(np.float64)
        added = np.rint(part * rms / np.sqrt((part**2).mean())).astype(np.int16)
    heard: Samples = np.clip(whole + added[: len(whole)], -32768, 32767).astype(np.int16)
    return heard


def room_noise(samples: Samples, seconds: float, seed: int = 0) -> Samples:
    """(n,) int16 of a recording's pauses: pieces of 0.2 s of what is not speech, in random order,
    faded into each other."""
    whole = samples[: len(samples) // STEP * STEP].reshape(-1, STEP)
    loud = np.append(loud_steps(samples), [False, False])[: len(whole)]
    near = np.convolve(loud, np.ones(11), "same") > 0
    quiet = whole[~near].reshape(-1).astype(np.float64)
    half = min(len(quiet), SAMPLE_RATE // 5) // 2
    if not half:
        return noise(seconds, 3.3, seed=seed)
    length, generator = int(seconds * SAMPLE_RATE), np.random.default_rng(seed)
    fade = np.sin(np.pi * (np.arange(2 * half) + 0.5) / (2 * half))
    mixed = np.zeros(length + 2 * half)
    for at in range(0, length, half):
        begin = generator.integers(0, len(quiet) - 2 * half + 1)
        mixed[at : at + 2 * half] += quiet[begin : begin + 2 * half] * fade
    return np.clip(np.rint(mixed[:length]), -32768, 32767).astype(np.int16)


@dataclass
class Stream:
    """Commands in one sound, and where their loud steps are, seconds."""

    samples: Samples
    spoken: list[tuple[str, NDArray[np.float64]]]


def stream(clips: list[tuple[str, Samples]], others: list[Samples], seed: int = 0) -> Stream:
    """The clips in random order with 2 to 20 s between them: of their own room noise, or of faint
    noise with `others`, one after the other and equally loud, 25 dB below the clips."""
    generator = np.random.default_rng(seed)
    parts: list[Samples] = []
    spoken, length = [], 0
    for number in generator.permutation(len(clips)):
        name, clip = clips[number]
        gap_s = generator.uniform(2, 20)
        gap = noise(gap_s, 3.3, seed=length) if others else room_noise(clip, gap_s, seed=length)
        steps = np.flatnonzero(loud_steps(clip))
        spoken.append((name, (length + len(gap) + steps * STEP) / SAMPLE_RATE))
        parts += [gap, clip]
        length += len(gap) + len(clip)
    mixed = np.concatenate(parts).astype(np.float64)
    if others:
        scaled = [one / max(1.0, rms_of(one)) for one in others]
        level = float(np.median([rms_of(clip) for _, clip in clips])) / 10 ** (25 / 20)
        mixed += np.resize(np.concatenate(scaled), len(mixed)) * level
    return Stream(np.clip(np.rint(mixed), -32768, 32767).astype(np.int16), spoken)


def rms_of(samples: Samples) -> float:
    """Root mean square of samples (n,)."""
    return float(np.sqrt((samples.astype(np.float64) ** 2).mean()))


def in_stream(one: Stream, settings: Settings) -> str:
    """How many commands of a stream are missed, and which; windows without any command."""
    windows = hear(one.samples, settings).windows
    missed, used = [], set()
    for name, times_s in one.spoken:
        inside = np.zeros(len(times_s), bool)
        for number, window in enumerate(windows):
            end_s = window.start_s + window.duration_s
            within = (times_s >= window.start_s) & (times_s < end_s)
            inside |= within
            used |= {number} if within.any() else set()
        if inside.mean() < 0.5:
            missed.append(name)
    return (
        f"{len(one.spoken)}: missed {len(missed)} {missed or ''}, "
        f"{len(windows) - len(used)} windows of noise"
    )


@dataclass
class Heard:
    """What the segmenter made of one recording; seconds in the padded stream."""

    windows: list[Window] = field(default_factory=list)
    discarded: list[Discarded] = field(default_factory=list)
    out_s: float = 0.0
    when_s: list[float] = field(default_factory=list)
    """When each window came out."""
    cpu_ms_per_s: float = 0.0

    def take(self, one: Window | Discarded, now_s: float) -> None:
        """Keep what the segmenter found now."""
        self.out_s = now_s
        if isinstance(one, Window):
            self.windows.append(one)
            self.when_s.append(now_s)
        else:
            self.discarded.append(one)

    def out_after(self, moment_s: float) -> float:
        """When the window with this moment in it came out; if there is none, the last one."""
        for window, when_s in zip(self.windows, self.when_s, strict=True):
            if window.start_s <= moment_s < window.start_s + window.duration_s:
                return when_s
        return self.out_s

    @property
    def opened(self) -> int:
        """How many utterances were opened."""
        found: list[Window | Discarded] = [*self.windows, *self.discarded]
        return len({one.utterance_id for one in found})


def hear(samples: Samples, settings: Settings) -> Heard:
    """Run a stream through a fresh detector and segmenter."""
    segmenter = Segmenter(VoiceDetector(settings.voice), settings.segmenter, WINDOW_S)
    frames = list(Framer().push(samples, 0.0))
    heard = Heard()
    begun_s = time.process_time()
    for frame in frames:
        for one in segmenter.push(frame):
            heard.take(one, frame.end_s)
    heard.cpu_ms_per_s = (time.process_time() - begun_s) * 1000 / (len(samples) / SAMPLE_RATE)
    for one in segmenter.flush():
        heard.take(one, len(samples) / SAMPLE_RATE)
    return heard


@dataclass
class Tally:
    """Figures over a group of recordings."""

    missed: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)
    loud: int = 0
    covered: int = 0
    count: int = 0

    def add(self, name: str, samples: Samples, heard: Heard, *, noisy: bool = False) -> None:
        """Count one recording of speech; `samples` without the padding."""
        self.count += 1
        steps = np.flatnonzero(loud_steps(samples))
        times_s = PAD_S + steps * STEP / SAMPLE_RATE
        if not heard.windows:
            self.missed.append(name)
            return
        if heard.windows[0].start_s > times_s[0] + 0.1:
            self.cut.append(name)
        inside = np.zeros(len(times_s), bool)
        for window in heard.windows:
            end_s = window.start_s + window.duration_s
            inside |= (times_s >= window.start_s - 1e-6) & (times_s < end_s)
        self.loud += len(times_s)
        self.covered += int(inside.sum())
        out_s = heard.out_after(float(times_s[-1])) if noisy else heard.out_s
        self.ends_s.append(out_s - float(times_s[-1]) - STEP / SAMPLE_RATE)

    def __str__(self) -> str:
        middle, most = np.percentile(self.ends_s, (50, 95))
        recall = self.covered / max(1, self.loud)
        return (
            f"{self.count}: missed {len(self.missed)} {self.missed or ''}, "
            f"onset cut {len(self.cut)} {self.cut or ''}, recall {recall:.1%}, "
            f"end found after p50 {middle:.2f} s, p95 {most:.2f} s"
        )


def labels(path: Path) -> list[tuple[float, float]]:
    """Begin and end of every stretch of speech in an RTTM file, s; none without the file."""
    if not path.exists():
        return []
    rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    return [(float(row[3]), float(row[3]) + float(row[4])) for row in rows]


def labelled_recall(samples: Samples, spoken: list[tuple[float, float]], heard: Heard) -> str:
    """Seconds of labelled speech, and how many of them are in a window."""
    times_s = PAD_S + np.arange(0, len(samples), STEP) / SAMPLE_RATE
    speech, inside = np.zeros(len(times_s), bool), np.zeros(len(times_s), bool)
    for begin_s, end_s in spoken:
        speech |= (times_s >= PAD_S + begin_s) & (times_s < PAD_S + end_s)
    for one in heard.windows:
        inside |= (times_s >= one.start_s) & (times_s < one.start_s + one.duration_s)
    total = speech.sum() * STEP / SAMPLE_RATE
    return f"{(speech & inside).sum() / max(1, speech.sum()):.1%} of {total:.1f} s"


def print_streams(folder: Path, settings: Settings) -> None:
    """Print the figures of the commands shorter than 5 s, heard as streams."""
    clips: dict[str, list[tuple[str, Samples]]] = {"chosen": [], "others": []}
    noises: list[Samples] = []
    for file, row in manifest(folder):
        if row["category"] in {"noise", "silence"}:
            noises.append(samples_of(file))
        elif row["category"] in COMMANDS | ODD and float(row["duration_s"]) < 5:
            chosen = row["path"].startswith(CHOSEN_ON)
            clips["chosen" if chosen else "others"].append((row["path"], samples_of(file)))
    none: list[Samples] = []
    for name, recordings in clips.items():
        for kind, added in (("their own noise", none), ("recordings of noise", noises)):
            for seed in range(2):
                found = in_stream(stream(recordings, added, seed), settings)
                print(f"commands ({name}) in a stream of {kind} {found}")


def main() -> int:
    """Print the figures; 1 when a target is missed."""
    parser = argparse.ArgumentParser(description="Figures of voice detection and segmentation.")
    parser.add_argument("folder", nargs="?", type=Path, default=SHARED_AUDIO)
    parser.add_argument("--verbose", action="store_true", help="one line per recording")
    options = parser.parse_args()
    settings = Settings()
    libri, commands, shifted, odd = (Tally() for _ in range(4))
    noisy = {(kind, snr_db): Tally() for kind in ("pink", "babble") for snr_db in (10, 5, 0)}
    readers = sorted((options.folder / "librispeech_test_other").glob("*-0001.flac"))[:6]
    crowd = babble([samples_of(path) for path in readers], 30.0)
    meetings: list[str] = []
    opens = {"noise": 0, "music": 0, "beep": 0}
    minutes = {"noise": 0.0, "music": 0.0, "beep": 0.0}
    for file, row in manifest(options.folder):
        path, category, samples = row["path"], row["category"], samples_of(file)
        heard = hear(padded(samples), settings)
        if options.verbose:
            voiced = [round(one.voiced_s, 2) for one in heard.windows]
            print(f"{path}: {heard.opened} opened, voiced {voiced} {heard.discarded or ''}")
        kind = "noise" if category == "silence" else category
        if kind in opens:
            again = [hear(padded(samples)[offset:], settings) for offset in OFFSETS]
            opens[kind] += sum(one.opened for one in (heard, *again))
            minutes[kind] += (1 + len(OFFSETS)) * len(samples) / SAMPLE_RATE / 60
        elif category in COMMANDS:
            commands.add(path, samples, heard)
            for offset in OFFSETS:
                shifted.add(path, samples, hear(padded(samples)[offset:], settings))
            for (kind, snr_db), tally in noisy.items():
                other = crowd if kind == "babble" else None
                found = hear(in_noise(samples, snr_db, other), settings)
                tally.add(path, samples, found, noisy=True)
        elif spoken := LABELS.get(path) or labels(file.with_suffix(".rttm")):
            meetings.append(f"{path} {labelled_recall(samples, spoken, heard)}")
        elif category in ODD:
            odd.add(path, samples, heard)
        elif path.startswith("librispeech"):
            libri.add(path, samples, heard)
    quiet, pink, white = (
        hear(one, settings) for one in (noise(60, 3.3), noise(60, 300, pink=True), noise(60, 300))
    )
    print(f"LibriSpeech {libri}")
    print(f"commands {commands}")
    print(f"commands at three other offsets {shifted}")
    for (kind, snr_db), tally in noisy.items():
        print(f"commands in {kind} noise at {snr_db} dB {tally}")
    print_streams(options.folder, settings)
    print(f"labelled speech in windows: {'; '.join(meetings)}")
    print(f"single digits and unknown speech {odd}")
    per_minute = {kind: opens[kind] / minutes[kind] for kind in ("noise", "music")}
    for kind, rate in per_minute.items():
        print(f"{kind}: {opens[kind]} opens in {minutes[kind]:.1f} min, {rate:.1f} per minute")
    print(
        f"chimes: {opens['beep'] / (1 + len(OFFSETS)):.1f} opens on average; "
        f"synthetic pink, white noise: {pink.opened}, {white.opened} a minute"
    )
    print(
        f"CPU ms per s: quiet {quiet.cpu_ms_per_s:.2f}, pink noise {pink.cpu_ms_per_s:.2f}, "
        f"talk {hear(crowd, settings).cpu_ms_per_s:.2f}"
    )
    good = not commands.missed and not libri.cut and max(per_minute.values()) < 2
    print("targets met" if good else "TARGETS MISSED")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
