"""Measure the page: first paint, latency of a sentence, memory, and the cost of clients.

    scripts/measure page [SENTENCES]

A private Mosquitto, a private PulseAudio microphone, the daemon, the page and a browser. A sentence
is seen at the first frame that has it, told when a subscriber of the broker has it, at the sizes of
a desk and of a phone. Then 200 readers come at once, of whom most are refused and some do not read,
and as many sentences are spoken again.
"""

from __future__ import annotations

import functools
import gzip
import http.client
import re
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rigs import broker as rig_broker, microphone as rig_microphone
from rigs.browser import DESK, PHONE, Browser, browser
from rigs.checkout import SPEECH
from rigs.daemon import daemon
from rigs.mqtt_client import Subscriber
from rigs.page import Page, page
from rigs.waiting import holds, until

from appliance.web.server import FILES, FOLDER

TARGET_MS, TARGET_MB = 300.0, 25.0
READERS, STALLED = 200, 10
WATCH = """
window.seen = [];
new MutationObserver(() => {
  const first = document.querySelector('.sentences li[data-seq]');
  if (first && !seen.some(([seq]) => seq === first.dataset.seq)) {
    const found = [first.dataset.seq, 0];
    seen.push(found);
    requestAnimationFrame(() => { found[1] = Date.now(); });
  }
}).observe(document.body, {subtree: true, childList: true});
"""


def main() -> int:
    """Print the figures; 1 when a target is missed."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    files = [(FOLDER / file).read_bytes() for file, _ in FILES.values()]
    sent = sum(len(gzip.compress(file)) for file in files)
    print(f"all files of the page: {sum(map(len, files)) / 1000:.1f} kB, {sent / 1000:.1f} as sent")
    with (
        tempfile.TemporaryDirectory() as name,
        rig_broker.Broker() as broker,
        Subscriber(broker.port) as heard,
        browser() as tab,
        rig_microphone.PulseMicrophone(Path(name) / "microphone") as microphone,
    ):
        folder = Path(name)
        environment = {
            "RUNTIME_DIRECTORY": str(folder), "STATE_DIRECTORY": str(folder / "state"),
            **microphone.environment,
        }  # fmt: skip
        mqtt = {"host": "127.0.0.1", "port": broker.port, "enabled": True}
        with (
            page(folder, mqtt=mqtt) as home,
            daemon(home.config, environment=environment),
        ):
            until(lambda: heard.payloads("availability") == [b"online"], 60)
            tab.resize(DESK)
            painted_ms = [paint(tab, home) for _ in range(5)]
            print(f"first paint: median {statistics.median(painted_ms):.0f} ms of 5")
            quiet = sentences(tab, heard, microphone, count)
            tab.resize(PHONE)
            tab.enter(home)
            quiet += sentences(tab, heard, microphone, count)
            with_crowd(home, lambda: sentences(tab, heard, microphone, count))
            own_mb = memory_mb(home.process.pid)
            print(f"memory of the page's process, its own: {own_mb:.1f} MB")
    return int(max(quiet) > TARGET_MS or own_mb > TARGET_MB)


def paint(tab: Browser, home: Page) -> float:
    """Milliseconds from the request to the first paint with content."""
    tab.enter(home)
    entry = "performance.getEntriesByName('first-contentful-paint')[0]"
    until(lambda: tab.run(f"return Boolean({entry})"), 10)
    return float(tab.run(f"return {entry}.startTime"))


def sentences(
    tab: Browser, heard: Subscriber, microphone: rig_microphone.PulseMicrophone, count: int
) -> list[float]:
    """Speaks; milliseconds from the broker's subscriber to the browser, each time."""
    tab.run(WATCH)
    lag_ms, latency_ms = [], []
    for number in range(count):
        before = len(heard.events())
        microphone.speak(SPEECH / f"{number % 5:02d}.flac")
        if not holds(functools.partial(has_more, heard, before), 20):
            continue
        event = heard.events()[before]
        lag_ms.append(seen_at_ms(tab, event["seq"]) - told_at(heard, before) * 1000)
        latency_ms.append(event["latency_ms"])
    print(
        f"from the broker's subscriber to the browser: median {statistics.median(lag_ms):.0f} ms, "
        f"longest {max(lag_ms):.0f} ms of {len(lag_ms)}; the sentences' latency: median "
        f"{statistics.median(latency_ms):.0f} ms, longest {max(latency_ms):.0f} ms"
    )
    return lag_ms


def has_more(heard: Subscriber, before: int) -> bool:
    """True when a transcript came after the first `before`."""
    return len(heard.events()) > before


def seen_at_ms(tab: Browser, seq: int) -> float:
    """When the browser drew the sentence, on the wall's clock."""
    find = "const one = seen.find(([seq]) => seq === arguments[0]); return one ? one[1] : 0"
    until(lambda: tab.run(find, str(seq)), 10)
    return float(tab.run(find, str(seq)))


def told_at(heard: Subscriber, number: int) -> float:
    """When the subscriber got that transcript, on the wall's clock."""
    messages = [one for one in list(heard.messages) if one.topic.endswith("/transcript")]
    return time.time() - (time.monotonic() - messages[number].timestamp)


def with_crowd(home: Page, work: Callable[[], object]) -> None:
    """Does `work` while 200 readers come, are refused, and come again."""
    ended = threading.Event()

    def stall() -> None:
        with socket.create_connection(("127.0.0.1", home.port)) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            head = f"Host: localhost\r\nCookie: {home.cookie}\r\n\r\n"
            one.sendall(f"GET /api/events?events=level HTTP/1.1\r\n{head}".encode())
            ended.wait()

    def read() -> None:
        while not ended.is_set():
            with suppress(OSError, http.client.HTTPException):
                one = http.client.HTTPConnection("127.0.0.1", home.port, timeout=5)
                head = {"Host": "localhost", "Cookie": home.cookie}
                one.request("GET", "/api/events?events=level", headers=head)
                one.getresponse().read(2000)
                one.close()
            ended.wait(5)

    crowd = [threading.Thread(target=stall) for _ in range(STALLED)]
    crowd += [threading.Thread(target=read) for _ in range(READERS - STALLED)]
    for one in crowd:
        one.start()
    print(f"with {READERS} readers more, {STALLED} of whom do not read: ", end="")
    try:
        work()
    finally:
        ended.set()
        for one in crowd:
            one.join()


def memory_mb(pid: int) -> float:
    """Memory that the process alone has (USS)."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text("utf-8")
    return sum(map(int, re.findall(r"Private_\w+:\s+(\d+)", text))) / 1024


if __name__ == "__main__":
    sys.exit(main())
