"""Show the main job: five sentences played into a microphone, received by an MQTT subscriber.

Starts a private Mosquitto and a private PulseAudio microphone, runs the daemon with Whisper tiny.en
as systemd would, plays five recorded sentences, prints each transcript as a subscriber receives it,
shows `roomscribe log`, and stops everything. Exit status 0 only if all five came and at least
four of five words are right; capitals, punctuation and the spelling of numbers do not count.

    scripts/demo --seed 7       the same five again

The sentences are drawn anew each time, from those of tests/speech without five. 08 and 11 have
"cellar", which sounds like "seller" in English; 12 ("play the flat song by rosa"), 22 ("set the all
the lights to black") and 33 ("close the garage door in the balcony") are random combinations that
nobody would say. What Whisper mishears of the others, such as "lamp" as "lump", is left in.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

import numpy as np
import soundfile
from evening_run.processes import usage
from evening_run.score import percentile
from paho.mqtt.client import MQTTMessage
from rigs import broker as rig_broker, microphone
from rigs.command import start
from rigs.daemon import write_config
from rigs.mqtt_client import Subscriber
from rigs.recordings import Sentence, sentences as all_sentences
from rigs.waiting import holds
from rigs.word_errors import word_errors

from appliance.model import BUILT_IN, load_bundle

DRAWN = 5
LEFT_OUT = {"08.flac", "11.flac", "12.flac", "22.flac", "33.flac"}
RIGHT_PERCENT = 80.0
"""Fewer words that are right are a failure."""
READY_WITHIN_S = 60.0
ANSWER_WITHIN_S = 15.0
PAUSE_S = 3.0
"""From an answer to the next sentence. Speech in a row is taken for talk, or for more of the
sentence before, and closes later."""


def main() -> int:
    """Run the demonstration and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="whole number that says which five are drawn")
    seed = parser.parse_args().seed
    seed = random.randrange(1000) if seed is None else seed
    everything = [each for each in all_sentences() if each.file.name not in LEFT_OUT]
    sentences = random.Random(seed).sample(everything, DRAWN)
    say(f"{DRAWN} of {len(everything)} sentences, drawn with --seed {seed}")
    say(f"the model is {load_bundle(BUILT_IN).description}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="roomscribe-demo-")))
        broker = stack.enter_context(rig_broker.Broker())
        say(f"a private Mosquitto listens on port {broker.port}")
        heard = stack.enter_context(Subscriber(broker.port))
        journal, model = {"level": "warning"}, {"bundle": BUILT_IN}
        config = write_config(folder, broker.port, journal=journal, model=model)
        environment = dict(os.environ)
        arguments = ["run", "--config", str(config)]
        spoken, why_not = open_microphone(folder / "microphone", stack)
        if spoken is None:
            say(f"no PulseAudio microphone ({why_not}): a recording stands in for it")
            arguments += ["--recording", str(joined(sentences, folder))]
        else:
            say("a private PulseAudio is the microphone")
            environment |= spoken.environment
        begun_s = time.monotonic()
        daemon = start(*arguments, environment=environment)
        stack.callback(daemon.kill)
        try:
            wait_for(heard, "availability", 0, READY_WITHIN_S)
        except TimeoutError as error:
            say(f"the daemon does not come up: {error}")
            return 1
        say(f"the daemon is up after {time.monotonic() - begun_s:.2f} s")
        came = listen(sentences, spoken, heard)
        memory_mb = usage(daemon.pid).pss_mb
        begun_s = time.monotonic()
        daemon.send_signal(signal.SIGTERM)
        status = daemon.wait(10)
        say(f"the daemon used {memory_mb:.0f} MB; stopped with status {status} "
            f"after {time.monotonic() - begun_s:.2f} s")  # fmt: skip
        print("\n$ roomscribe log", flush=True)
        subprocess.run([sys.executable, "-m", "appliance", "log", "--config", config], check=True)
    return report(sentences, came, status)


def open_microphone(
    folder: Path, stack: ExitStack
) -> tuple[microphone.PulseMicrophone | None, str]:
    """Return a private microphone, or None and why there is none."""
    if missing := microphone.missing_packages():
        return None, ", ".join(missing)
    try:
        return stack.enter_context(microphone.PulseMicrophone(folder)), ""
    except RuntimeError as error:
        return None, str(error)


def listen(
    sentences: list[Sentence], spoken: microphone.PulseMicrophone | None, heard: Subscriber
) -> list[tuple[Sentence, MQTTMessage]]:
    """Play the sentences one by one, print what the subscriber receives, and return what came."""
    heard_all: list[tuple[Sentence, MQTTMessage]] = []
    for number, sentence in enumerate(sentences):
        before = number
        if spoken:
            time.sleep(PAUSE_S if number else 1.0)
            before = len(heard.payloads("transcript"))
            spoken.speak(sentence.file)
        print(f'\nsaid   "{sentence.text}"', flush=True)
        try:
            message = wait_for(heard, "transcript", before, ANSWER_WITHIN_S)
        except TimeoutError as error:
            print(f"heard  nothing: {error}")
            continue
        event = json.loads(message.payload)
        delay_ms = latency_ms(message)
        print(
            f'heard  "{event["text"]}"  ({delay_ms:.0f} ms after the end of speech; encoder '
            f"{event['encode_ms']} ms, decoder {event['decode_ms']} ms)",
            flush=True,
        )
        heard_all.append((sentence, message))
    return heard_all


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


def report(sentences: list[Sentence], came: list[tuple[Sentence, MQTTMessage]], status: int) -> int:
    """Print the last lines; return 0 when everything came and enough words are right."""
    delays = [latency_ms(message) for _, message in came]
    if delays:
        middle, p95 = percentile(delays, 50), percentile(delays, 95)
        say(f"from the end of speech to the subscriber: p50 {middle:.0f} ms, p95 {p95:.0f} ms")
    texts = {sentence.text: json.loads(message.payload)["text"] for sentence, message in came}
    counts = [word_errors(each.text, texts.get(each.text, "")) for each in sentences]
    said = sum(words for _, words in counts)
    right = said - sum(min(wrong, words) for wrong, words in counts)
    percent = 100 * right / said
    say(
        f"{len(came)} of {len(sentences)} sentences came; {right} of {said} words are right "
        f"({percent:.0f} %)"
    )
    if percent < RIGHT_PERCENT:
        say(f"fewer than {RIGHT_PERCENT:.0f} % of the words are right: something is wrong")
    return int(len(came) < len(sentences) or status != 0 or percent < RIGHT_PERCENT)


def wait_for(heard: Subscriber, name: str, before: int, within_s: float) -> MQTTMessage:
    """The message of a topic behind `before` others; TimeoutError when none comes."""

    def found() -> list[MQTTMessage]:
        return [one for one in list(heard.messages) if one.topic.endswith(f"/{name}")][before:]

    if not holds(found, within_s):
        raise TimeoutError(f"nothing on {name} within {within_s:g} s")
    return found()[0]


def latency_ms(message: MQTTMessage) -> float:
    """From the end of speech, as the voice detector found it, to the subscriber."""
    end_s = datetime.fromisoformat(json.loads(message.payload)["end"]).timestamp()
    return (message.timestamp + time.time() - time.monotonic() - end_s) * 1000


def say(line: str) -> None:
    """Print a line of the demonstration itself."""
    print(f"== {line}", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
