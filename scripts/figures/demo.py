"""Show the main job: five sentences played into a microphone, received by an MQTT subscriber.

Starts a private Mosquitto and a private PulseAudio microphone, runs the daemon as systemd would,
plays five recorded sentences, prints each transcript as `mosquitto_sub` receives it, shows
`roomscribe log`, and stops everything. The sentences are drawn anew each time, from 40 whose voices
and words the model was not trained on. Exit status 0 only if all five came.

    scripts/demo --seed 7       the same five again
    scripts/demo --measure      all 40, and the CPU used while nobody speaks
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import soundfile
from rigs import broker as rig_broker, microphone
from rigs.command import start
from rigs.daemon import write_config
from rigs.recordings import Sentence, sentences as all_sentences

NODE = "demo"
DRAWN = 5
IDLE_S = 30.0
READY_WITHIN_S = 30.0
ANSWER_WITHIN_S = 15.0
PAUSE_S = 3.0
"""From an answer to the next sentence. Speech in a row is taken for talk, or for more of the
sentence before, and closes later."""


def main() -> int:
    """Run the demonstration and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true", help="all sentences, and the idle CPU")
    parser.add_argument("--seed", type=int, help="whole number that says which five are drawn")
    options = parser.parse_args()
    measure, seed = options.measure, options.seed
    everything = sentences = all_sentences()
    if not measure:
        seed = random.randrange(1000) if seed is None else seed
        sentences = random.Random(seed).sample(everything, DRAWN)
        say(f"{DRAWN} of {len(everything)} sentences, drawn with --seed {seed}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="roomscribe-demo-")))
        broker = stack.enter_context(rig_broker.Broker())
        say(f"a private Mosquitto listens on port {broker.port}")
        heard = subscribe(broker, stack)
        config = write_config(
            folder,
            broker.port,
            appliance={"node": NODE},
            journal={"level": "warning"},
            phrases={"file": "bundle"},
        )
        spoken: microphone.PulseMicrophone | None = None
        arguments = ["run", "--config", str(config)]
        environment = dict(os.environ)
        why_not = ", ".join(microphone.missing_packages())
        if not why_not:
            try:
                rig = microphone.PulseMicrophone(folder / "microphone")
                spoken = stack.enter_context(rig)
                environment |= spoken.environment
                say("a private PulseAudio is the microphone")
            except RuntimeError as error:
                why_not = str(error)
        if spoken is None:
            say(f"no PulseAudio microphone ({why_not}): a recording stands in for it")
            arguments += ["--recording", str(joined(sentences, folder))]
        begun_s = time.monotonic()
        daemon = start(*arguments, environment=environment)
        stack.callback(daemon.kill)
        try:
            wait_for(heard, "availability", READY_WITHIN_S)
        except TimeoutError as error:
            say(f"the daemon does not come up: {error}")
            return 1
        say(f"the daemon is up after {time.monotonic() - begun_s:.2f} s")
        if measure and spoken:
            say(f"CPU of one core while nobody speaks: {idle_percent(daemon.pid):.2f} %")
        events = listen(sentences, spoken, heard)
        usage = resident_mb(daemon.pid)
        begun_s = time.monotonic()
        daemon.send_signal(signal.SIGTERM)
        status = daemon.wait(10)
        say(f"the daemon used {usage:.0f} MB; stopped with status {status} "
            f"after {time.monotonic() - begun_s:.2f} s")  # fmt: skip
        print("\n$ roomscribe log", flush=True)
        subprocess.run([*roomscribe(), "log", "--config", str(config)], check=True)
    return report(sentences, events, status)


def roomscribe() -> list[str]:
    """The command of this environment."""
    beside = Path(sys.executable).parent / "roomscribe"
    return [str(beside)] if beside.exists() else [sys.executable, "-m", "appliance"]


def listen(
    sentences: list[Sentence],
    spoken: microphone.PulseMicrophone | None,
    heard: queue.Queue[Heard],
) -> list[Heard]:
    """Play the sentences one by one and print what the subscriber receives."""
    events: list[Heard] = []
    if spoken:
        time.sleep(1.0)
    for number, sentence in enumerate(sentences):
        if spoken:
            if number:
                time.sleep(PAUSE_S)
            while not heard.empty():
                heard.get()
            spoken.speak(sentence.file)
        print(f'\nsaid   "{sentence.text}"')
        try:
            message = wait_for(heard, "transcript", ANSWER_WITHIN_S)
        except TimeoutError as error:
            print(f"heard  nothing: {error}")
            continue
        event = json.loads(message.payload)
        delay_ms = latency_ms(message)
        print(
            f'heard  "{event["text"]}"  ({delay_ms:.0f} ms after the end of speech; encoder '
            f"{event['encode_ms']} ms, decoder {event['decode_ms']} ms)"
        )
        if phrase := event.get("phrase"):
            print(f'means  "{phrase}"  ({event["phrase_confidence"]:.0%})')
        events.append(message)
    return events


def joined(sentences: list[Sentence], folder: Path) -> Path:
    """One recording of all sentences with pauses between them."""
    pause = np.zeros(int(PAUSE_S * 16_000), np.int16)
    parts = [pause]
    for sentence in sentences:
        samples, _rate = soundfile.read(sentence.file, dtype="int16")
        parts += [samples, pause]
    path = folder / "sentences.wav"
    soundfile.write(path, np.concatenate(parts), 16_000)
    return path


def resident_mb(pid: int) -> float:
    """Resident memory of a process, MB; nan when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return float("nan")
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), 0.0)


def idle_percent(pid: int) -> float:
    """Share of one core that a process uses over IDLE_S, percent."""

    def used_s() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    time.sleep(2)
    before_s = used_s()
    time.sleep(IDLE_S)
    return 100 * (used_s() - before_s) / IDLE_S


def report(sentences: list[Sentence], events: list[Heard], status: int) -> int:
    """The last lines; 0 when everything came."""
    delays = sorted(latency_ms(message) for message in events)
    if delays:
        p95 = delays[min(len(delays) - 1, round(0.95 * (len(delays) - 1)))]
        middle = statistics.median(delays)
        say(f"from the end of speech to the subscriber: p50 {middle:.0f} ms, p95 {p95:.0f} ms")
        say(f"computing per second of sound (real-time factor): {real_time_factor(events):.3f}")
    same = sum(
        json.loads(message.payload)["text"].lower().strip(" .") == sentence.text
        for message, sentence in zip(events, sentences, strict=False)
    )
    say(f"{len(events)} of {len(sentences)} sentences came, {same} of them word for word")
    return 0 if len(events) == len(sentences) and status == 0 else 1


@dataclass(frozen=True)
class Heard:
    """A message as the subscriber got it, `at_s` Unix time."""

    at_s: float
    topic: str
    payload: str


def subscribe(broker: rig_broker.Broker, stack: ExitStack) -> queue.Queue[Heard]:
    """Everything that the appliance publishes, as a subscriber of its own hears it."""
    command = ["mosquitto_sub", "-h", broker.host, "-p", str(broker.port), "-q", "1"]
    command += ["-V", "mqttv5", "-t", f"roomscribe/{NODE}/#", "-F", "%U\t%t\t%p"]
    subscriber = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    stack.callback(subscriber.terminate)
    heard: queue.Queue[Heard] = queue.Queue()

    def read() -> None:
        assert subscriber.stdout is not None
        for line in subscriber.stdout:
            at, topic, payload = line.rstrip("\n").split("\t", 2)
            heard.put(Heard(float(at), topic.rsplit("/", 1)[1], payload))

    threading.Thread(target=read, daemon=True).start()
    return heard


def wait_for(heard: queue.Queue[Heard], topic: str, within_s: float) -> Heard:
    """The next message of a topic; TimeoutError when none comes."""
    deadline_s = time.monotonic() + within_s
    while (left_s := deadline_s - time.monotonic()) > 0:
        try:
            message = heard.get(timeout=left_s)
        except queue.Empty:
            break
        if message.topic == topic:
            return message
    raise TimeoutError(f"nothing on {topic} within {within_s:g} s")


def latency_ms(message: Heard) -> float:
    """From the end of speech, as the voice detector found it, to the subscriber."""
    event = json.loads(message.payload)
    return (message.at_s - datetime.fromisoformat(event["end"]).timestamp()) * 1000


def real_time_factor(events: list[Heard]) -> float:
    """Seconds of encoder and decoder for each second of the windows heard."""
    parsed = [json.loads(message.payload) for message in events]
    computed_ms = sum(event["encode_ms"] + event["decode_ms"] for event in parsed)
    return float(computed_ms / 1000 / sum(event["duration_s"] for event in parsed))


def say(line: str) -> None:
    """Print a line of the demonstration itself."""
    print(f"== {line}", flush=True)


if __name__ == "__main__":
    if not shutil.which("mosquitto_sub"):
        sys.exit("demo: mosquitto_sub not installed (apt install mosquitto-clients)")
    sys.exit(main())
