"""Pictures of the page for the README: the real daemon, a few spoken sentences, a real browser.

    PYTHONPATH=.:tests:scripts .venv/bin/python -m generate.screenshots

Writes docs/page.png (1280 px, light) and docs/page-phone.png (390 px, dark). It starts its own
Mosquitto, PulseAudio microphone, daemon, page and Chromium, and takes about a minute. Run it on an
idle machine: the pictures show the latency of each sentence.
"""

import io
import tempfile
import threading
import time
from pathlib import Path

from PIL import Image
from rigs.broker import Broker
from rigs.browser import PHONE, browser
from rigs.checkout import ROOT, SPEECH
from rigs.daemon import daemon
from rigs.microphone import PulseMicrophone
from rigs.mqtt_client import Subscriber
from rigs.page import page
from rigs.waiting import until

SENTENCES = ("02.flac", "19.flac", "21.flac", "34.flac", "30.flac")
"""Of tests/speech, spoken before the pictures."""
DESK = (1280, 800)
PICTURES = (("page.png", "23.flac", DESK, "light"), ("page-phone.png", "07.flac", PHONE, "dark"))
"""File in docs/, the sentence that is being spoken in it, size in CSS pixels, theme."""
PAUSE_S = 3.0
"""From a text to the next sentence."""
SPEAKING_S = 1.2
"""From the start of the last sentence to the picture."""


def main() -> None:
    """Write both pictures."""
    with (
        tempfile.TemporaryDirectory() as name,
        Broker() as broker,
        Subscriber(broker.port) as heard,
        PulseMicrophone(Path(name) / "microphone") as microphone,
        browser() as tab,
    ):
        folder = Path(name)
        environment = {
            "RUNTIME_DIRECTORY": str(folder), "STATE_DIRECTORY": str(folder / "state"),
            **microphone.environment,
        }  # fmt: skip
        mqtt = {"host": "127.0.0.1", "port": broker.port, "enabled": True}
        with page(folder, mqtt=mqtt) as home, daemon(home.config, environment=environment):
            until(lambda: microphone.listeners() == 1, 60)
            time.sleep(1)
            for count, sentence in enumerate(SENTENCES, 1):
                microphone.speak(SPEECH / sentence)
                wait_for_texts(heard, count)
            tab.resize(DESK)
            tab.enter(home)
            for count, (file, speech, size, theme) in enumerate(PICTURES, len(SENTENCES) + 1):
                tab.resize(size, theme)
                spoken = threading.Thread(target=microphone.speak, args=(SPEECH / speech,))
                spoken.start()
                until(lambda: tab.text(".now strong") == "Someone is speaking", 10)
                time.sleep(SPEAKING_S)
                save(tab.driver.get_screenshot_as_png(), ROOT / "docs" / file)
                spoken.join()
                wait_for_texts(heard, count)


def wait_for_texts(heard: Subscriber, count: int) -> None:
    """Wait for `count` transcripts in all, and so long that the next sentence is one of its own."""
    until(lambda: len(heard.texts()) >= count, 30)
    time.sleep(PAUSE_S)


def save(png: bytes, file: Path) -> None:
    """Write a picture with few colours."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture.quantize(128, dither=Image.Dither.NONE).save(file, optimize=True)
    size_kb = file.stat().st_size / 1000
    print(f"{file.relative_to(ROOT)}: {picture.width} x {picture.height}, {size_kb:.0f} kB")


if __name__ == "__main__":
    main()
