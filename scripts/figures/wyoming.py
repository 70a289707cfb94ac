"""Measure Wyoming requests: latency, throughput, and their cost for the microphone.

    scripts/measure wyoming [--bundle tiny.en] [--sentences 20]

Sentences are those of tests/speech, sent in real time in chunks of 10 ms as Home Assistant sends
them, against `roomscribe run`.

spoken as to Home Assistant    0.7 s of silence before audio-stop: the text is transcribed ahead
stopped at once                100 ms of silence: nothing is known before; shown beside it is what
                               encoding and decoding took
eight at once                  each client sends sentence after sentence as fast as it is taken;
                               beside it one process that transcribes the same from a file
memory                         of the daemon after its own sentences, with the server and without
microphone                     latency of the daemon's own sentences, alone, while two talk, and
                               while eight send as fast as it is taken
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import threading
import time
import wave
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rigs.daemon import daemon, log_of, write_config
from rigs.recordings import Sentence, sentences
from rigs.waiting import until
from rigs.wyoming import AUDIO_16K, Talk, free_port, sound_of, wait_for_port

from appliance.capture.frames import Framer
from appliance.capture.segmenter import Segmenter
from appliance.capture.voice import VoiceDetector
from appliance.config import Settings, StoreSettings
from appliance.infer.gates import Gates
from appliance.infer.opening import open_transcriber
from appliance.records import HEARD_HERE, SAMPLE_RATE, Samples, Window
from appliance.store.store import Store

CLIENTS = 8
CHUNK = SAMPLE_RATE // 100
QUIET_S = 1.5
"""Between two sentences that the microphone hears."""


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", default="tiny.en")
    parser.add_argument("--sentences", type=int, default=20)
    options = parser.parse_args()
    chosen = sentences()[: options.sentences]
    with tempfile.TemporaryDirectory() as name:
        measure(Path(name), options.bundle, chosen)


def measure(folder: Path, bundle: str, chosen: Sequence[Sentence]) -> None:
    """Print the figures of these sentences."""
    spoken = [sound_of(one.file, 0.3, 0.7) for one in chosen]
    with serving(folder / "latency", bundle) as house:
        for each in spoken[:3]:
            ask(house.port, each, real_time=False)
        taken = [ask(house.port, one, real_time=True) for one in spoken]
        print(f"spoken as to Home Assistant: audio-stop to text {of(taken)}")
        taken = [ask(house.port, sound_of(one.file, 0.3, 0.1), real_time=True) for one in chosen]
        work = [row.encode_ms + row.decode_ms for row in house.transcripts("wyoming")][
            -len(taken) :
        ]
        print(f"stopped at once: audio-stop to text {of(taken)}; encoding and decoding {of(work)}")
    with serving(folder / "crowd", bundle, log=False) as house:
        crowd(house.port, spoken[:1])
        seconds, windows = crowd(house.port, spoken), CLIENTS * len(spoken)
        print(f"eight at once: {windows / seconds:.1f} sentences/s", end="")
    alone = from_file(bundle, spoken)
    print(f"; one process from a file {alone:.1f}")
    recording = folder / "room.wav"
    write(recording, spoken)
    plain = heard(folder / "alone", bundle, recording, talking=None)
    busy = heard(folder / "busy", bundle, recording, talking=spoken)
    crowded = heard(folder / "crowded", bundle, recording, talking=spoken, clients=CLIENTS)
    print(f"microphone alone: {of(plain.latencies_ms)}, {plain.memory_mb:.0f} MB")
    print(f"microphone while two talk: {of(busy.latencies_ms)}, {busy.memory_mb:.0f} MB")
    print(f"microphone while eight send: {of(crowded.latencies_ms)}, {crowded.memory_mb:.0f} MB")


@dataclass(frozen=True)
class House:
    """A daemon that serves."""

    port: int
    config: Path
    running: subprocess.Popen[bytes]

    @property
    def memory_mb(self) -> float:
        """Its resident memory."""
        status = Path(f"/proc/{self.running.pid}/status").read_text(encoding="ascii")
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def transcripts(self, source: str) -> list[Row]:
        """What the log has of that source, in the order in which it was said."""
        place = StoreSettings(path=str(self.config.parent / "state"))
        with Store.open(place, read_only=True) as store:
            rows = [row.transcript for row in reversed(store.query(limit=10_000))]
        return [
            Row(one.encode_ms, one.decode_ms, one.latency_ms)
            for one in rows
            if one.source == source
        ]


@dataclass(frozen=True)
class Row:
    """A transcript's times, ms."""

    encode_ms: float
    decode_ms: float
    latency_ms: float


@dataclass(frozen=True)
class Heard:
    """What a daemon made of a room."""

    latencies_ms: list[float]
    memory_mb: float


@contextmanager
def serving(
    folder: Path,
    bundle: str,
    recording: Path | None = None,
    *,
    serve: bool = True,
    log: bool = True,
) -> Iterator[House]:
    """A daemon that hears a recording, or silence, and serves; with `log` it keeps those texts."""
    folder.mkdir()
    port = free_port()
    config = write_config(
        folder,
        wyoming={"enabled": serve, "listen": "127.0.0.1", "port": port, "log": log},
        model={"bundle": bundle},
        spool={"path": f"/dev/shm/{folder.parent.name}-{folder.name}"},
    )
    with (
        Path("/dev/zero").open("rb") as silence,
        daemon(config, "--recording", recording or "-", stdin=silence) as running,
    ):
        if serve:
            wait_for_port(port)
        yield House(port, config, running)
        running.terminate()
        running.wait(20)


def ask(port: int, sound: Samples, *, real_time: bool) -> float:
    """Milliseconds from audio-stop to the text."""
    return request(port, sound, real_time=real_time)[0]


def request(port: int, sound: Samples, *, real_time: bool) -> tuple[float, str]:
    """Return the milliseconds from audio-stop to the text, and the text."""
    with Talk(port) as talk:
        talk.send("audio-start", **AUDIO_16K)
        begun_s = time.monotonic()
        for number, at in enumerate(range(0, len(sound), CHUNK), 1):
            talk.sound(sound[at : at + CHUNK])
            if real_time:
                time.sleep(max(0.0, begun_s + number * CHUNK / SAMPLE_RATE - time.monotonic()))
        stopped_s = time.monotonic()
        talk.send("audio-stop")
        text = talk.text()
        return 1000 * (time.monotonic() - stopped_s), text


def crowd(port: int, spoken: Sequence[Samples]) -> float:
    """Seconds in which CLIENTS get the text of every sentence, each of them."""

    def client() -> None:
        with Talk(port) as talk:
            for each in spoken:
                talk.speak(each, chunk=3200)
                if talk.text() == "busy":
                    raise RuntimeError("expected room for every client, found none")

    clients = [threading.Thread(target=client) for _ in range(CLIENTS)]
    begun_s = time.monotonic()
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    return time.monotonic() - begun_s


def from_file(bundle: str, spoken: Sequence[Samples]) -> float:
    """Sentences a second of one process that does one thing after the other."""
    settings = replace(Settings(), model=replace(Settings().model, bundle=bundle))
    with open_transcriber(settings) as transcriber:
        transcriber.warm_up()
        begun_s = time.monotonic()
        for each in spoken:
            gates, window_s = Gates(transcriber.gates), transcriber.bundle.window_s
            segmenter = Segmenter(VoiceDetector(settings.voice), settings.segmenter, window_s)
            found = [one for frame in Framer().push(each, 0.0) for one in segmenter.push(frame)]
            for window in (*found, *segmenter.flush()):
                if isinstance(window, Window):
                    gates.apply(window, transcriber.transcribe(window))
        return len(spoken) / (time.monotonic() - begun_s)


def heard(
    folder: Path,
    bundle: str,
    recording: Path,
    *,
    talking: Sequence[Samples] | None,
    clients: int = 2,
) -> Heard:
    """Latencies of what a room says, and the daemon's memory then; `clients` talk meanwhile, in
    real time if they are two."""
    over = threading.Event()
    with serving(folder, bundle, recording, serve=talking is not None) as house:

        def talk() -> None:
            while not over.is_set():
                for each in talking or ():
                    if not over.is_set():
                        ask(house.port, each, real_time=clients == 2)

        threads = [threading.Thread(target=talk) for _ in range(clients if talking else 0)]
        for one in threads:
            one.start()
        with wave.open(str(recording), "rb") as opened:
            length_s = opened.getnframes() / SAMPLE_RATE
        until(lambda: "listening to" in log_of(house.config), 30)
        time.sleep(length_s - 3)
        memory_mb = house.memory_mb
        over.set()
        for one in threads:
            one.join()
        house.running.wait(30)
        return Heard([one.latency_ms for one in house.transcripts(HEARD_HERE)], memory_mb)


def write(file: Path, spoken: Sequence[Samples]) -> None:
    """The sentences, one after the other, as a WAV file."""
    quiet = np.zeros(int(QUIET_S * SAMPLE_RATE), np.int16)
    with wave.open(str(file), "wb") as written:
        written.setparams((1, 2, SAMPLE_RATE, 0, "NONE", ""))
        for each in spoken:
            written.writeframes(np.concatenate((each, quiet)).tobytes())


def of(taken_ms: Sequence[float]) -> str:
    """Median and 95th percentile."""
    ninety_fifth = sorted(taken_ms)[max(0, int(len(taken_ms) * 0.95 + 0.5) - 1)]
    return f"p50 {statistics.median(taken_ms):.1f} ms, p95 {ninety_fifth:.1f} ms of {len(taken_ms)}"


if __name__ == "__main__":
    main()
