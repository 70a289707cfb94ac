"""The test stand: the shipped appliance with everything switched on, and a simulated home.

A real daemon, page, browser, Mosquitto and PulseAudio; a stand-in for Home Assistant's websocket.
"""

import json
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from evening_run.home import ASSIST_PHRASE, home
from evening_run.processes import Clock
from evening_run.stream import Samples, Stream
from paho.mqtt.client import MQTTMessage
from rigs.broker import Broker, free_port
from rigs.browser import DESK, Browser, browser
from rigs.command import start
from rigs.daemon import log_of
from rigs.home_websocket import TOKEN
from rigs.microphone import PulseMicrophone
from rigs.mqtt_client import Subscriber
from rigs.page import Page
from rigs.waiting import holds
from rigs.wyoming import AUDIO_16K, Talk

from appliance.records import SAMPLE_RATE

NODE = "kitchen"
READY_WITHIN_S, ON_PAGE_WITHIN_S = 60.0, 10.0
BROKEN = re.compile(r"Traceback|Error: |CRITICAL")
"""What no line of the daemon's log has."""
CHUNK = SAMPLE_RATE // 100
"""Samples that a Wyoming client sends at once, as Home Assistant does."""


@dataclass
class Tally:
    """What happened beside the sentences."""

    reload_s: list[float] = field(default_factory=list)
    wyoming_ms: list[float] = field(default_factory=list)
    wyoming_texts: list[tuple[str, str]] = field(default_factory=list)
    """What was said and what the client got."""
    trouble: list[str] = field(default_factory=list)


class Stand:
    """A running appliance of a checkout; use as `with Stand(root, folder) as stand:`."""

    def __init__(self, root: Path, folder: Path, model: Path, *, seed: int) -> None:
        """`root` has the appliance's code; `folder` gets its log and its configuration."""
        self._root, self._folder, self._seed = root, folder, seed
        self._model = model
        self._stack = ExitStack()
        self._keys: dict[str, dict[str, Any]] = {}
        self.config = folder / "roomscribe.toml"
        self.clock, self.tally = Clock(), Tally()
        self.tab: Browser | None = None
        self.page: Page | None = None
        self._clients: list[threading.Thread] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._open(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.join(20)
        self._stack.close()

    def _open(self, stack: ExitStack) -> None:
        """Start everything, the daemon last but for those who look at it."""
        stack.callback(self.clock.stop)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        in_memory = tempfile.mkdtemp(prefix="evening-", dir="/dev/shm")
        stack.callback(shutil.rmtree, in_memory, ignore_errors=True)
        self._run_folder = Path(in_memory)
        microphone = PulseMicrophone(self._run_folder / "microphone")
        self.microphone = stack.enter_context(microphone)
        self.broker = stack.enter_context(Broker(persistent=True))
        self.hub = stack.enter_context(home())
        self.heard = stack.enter_context(Subscriber(self.broker.port))
        self.stream = stack.enter_context(Stream(self.microphone, self._seed))
        self._configure()
        self.daemon = self._start("run", self.microphone.environment)
        stack.callback(self._end)
        self.clock.pid = self.daemon.pid
        self._wait_until_ready(1)
        if not holds(lambda: self.hub.count("config/floor_registry/list"), READY_WITHIN_S):
            raise RuntimeError("the daemon does not ask Home Assistant for its names")
        if shutil.which("chromedriver"):
            self._open_page(stack)

    def _configure(self) -> None:
        """Write the shipped configuration with what a user of everything changes in it."""
        token = self._folder / "token"
        token.write_text(TOKEN, encoding="utf-8")
        token.chmod(0o600)
        self.wyoming_port, web_port = free_port(), free_port()
        self._keys = {
            "appliance": {"node": NODE},
            "model": {"bundle": str(self._model)},
            "store": {"retention_days": 30},
            "spool": {"path": str(self._run_folder / "spool")},
            "mqtt": {"host": "127.0.0.1", "port": self.broker.port, "partials": True},
            "homeassistant": {"url": self.hub.url, "token_file": str(token), "area": "Kitchen"},
            "assist": {"phrase": ASSIST_PHRASE},
            "web": {"enabled": True, "port": web_port, "path": str(self._folder / "page")},
            "wyoming": {"enabled": True, "listen": "127.0.0.1", "port": self.wyoming_port},
        }
        self._write_config()

    def _write_config(self) -> None:
        shipped = (self._root / "config" / "roomscribe.toml").read_text(encoding="utf-8")
        self.config.write_text(with_keys(shipped, self._keys), encoding="utf-8")

    def _start(
        self, command: str, environment: Mapping[str, str], stdout: int | None = None
    ) -> subprocess.Popen[bytes]:
        """A process of the checkout; its output goes to the log that `log_of` reads."""
        folders = [self._root, self._root / "tests", self._root / "scripts"]
        given = {
            **environment,
            "PYTHONPATH": ":".join(map(str, folders)),
            "RUNTIME_DIRECTORY": str(self._run_folder),
            "STATE_DIRECTORY": str(self._folder / "state"),
        }
        with (self._folder / "log").open("ab") as log:
            words: list[str | Path] = [*command.split(), "--config", self.config]
            out = log if stdout is None else stdout
            return start(*words, stdout=out, stderr=log, environment=given, root=self._root)

    def _wait_until_ready(self, times: int) -> None:
        """Wait until the daemons have said so often that they listen."""

        def ready() -> bool:
            if self.daemon.poll() is not None:
                raise RuntimeError(f"the daemon ended:\n{log_of(self.config)[-2000:]}")
            return self._ready_count() >= times

        if not holds(ready, READY_WITHIN_S):
            raise RuntimeError(f"the daemon does not listen:\n{log_of(self.config)[-2000:]}")

    def _ready_count(self) -> int:
        return len(re.findall(r"listening to .* ready after", log_of(self.config)))

    def _open_page(self, stack: ExitStack) -> None:
        process = self._start("web serve", {})
        stack.callback(_stop, process)
        page = Page(self.config, self._keys["web"]["port"], process)
        self.tab = stack.enter_context(browser())

        def enter() -> bool:
            with suppress(OSError):
                page.log_in()
            return bool(page.cookie)

        if not holds(enter, READY_WITHIN_S, 0.2):
            raise RuntimeError("the page does not let anybody in")
        self.page = page
        self.tab.resize(DESK)
        self.tab.enter(page)

    def reload(self) -> None:
        """Changes a key and has the daemon read its configuration again; back when it listens."""
        keys = self._keys["store"]
        keys["retention_days"] = 61 - int(keys["retention_days"])
        self._write_config()
        times, begun_s = self._ready_count(), time.monotonic()
        self.daemon.send_signal(signal.SIGHUP)
        self._wait_until_ready(times + 1)
        self.tally.reload_s.append(round(time.monotonic() - begun_s, 2))

    def ask(self, said: str, sound: Samples) -> None:
        """Has a Wyoming client send a sentence in real time, from now on."""

        def work() -> None:
            try:
                took_ms, text = request(self.wyoming_port, sound)
            except (OSError, IndexError, KeyError) as error:
                self.tally.trouble.append(f"a Wyoming request failed: {error!r}")
                return
            self.tally.wyoming_ms.append(round(took_ms))
            self.tally.wyoming_texts.append((said, text))

        self._clients.append(threading.Thread(target=work, daemon=True))
        self._clients[-1].start()

    def newest_shown(self) -> int:
        """Return the number of the newest transcript on the page; 0 without one."""
        found = self.tab and self.tab.run(
            "const one = document.querySelector('.sentences li[data-seq]');"
            "return one ? one.dataset.seq : 0"
        )
        return int(found or 0)

    def messages(self) -> list[MQTTMessage]:
        """Return everything that the appliance published so far."""
        prefix = f"roomscribe/{NODE}/"
        return [one for one in list(self.heard.messages) if one.topic.startswith(prefix)]

    def logged(self) -> list[dict[str, Any]]:
        """Return the transcripts in the appliance's log, oldest first."""
        command = self._start("log --json --limit 0", {}, subprocess.PIPE)
        return [json.loads(line) for line in command.communicate(timeout=60)[0].splitlines()]

    def take_tally(self) -> dict[str, Any]:
        """Return what happened beside the sentences since the last time."""
        tally, self.tally = self.tally, Tally()
        return asdict(tally)

    def closing(self) -> dict[str, Any]:
        """Return where log, broker, page and Assist disagree at the end, and errors in the log."""
        transcripts = [one for one in self.logged() if not one.get("source")]
        logged = {one["id"]: one["seq"] for one in transcripts}
        messages = [(one.topic.split("/", 2)[2], one.payload) for one in self.messages()]
        events = [json.loads(payload) for topic, payload in messages if topic == "transcript"]
        sent = {one["id"] for one in events if not one.get("source")}
        runs = [json.loads(payload) for topic, payload in messages if topic == "assist/reply"]
        replies = sum(one["took_ms"] is not None for one in runs)  # the others were refused here
        newest = max(logged.values(), default=0)
        is_shown = not self.tab or holds(
            lambda: self.newest_shown() >= newest, ON_PAGE_WITHIN_S, 0.2
        )
        lines = log_of(self.config).splitlines()
        return {
            "unsent": sorted(set(logged) - sent),
            "unlogged": sorted(sent - set(logged)),
            "assist_astray": abs(len(self.hub.runs) - replies),
            "page_behind": int(not is_shown),
            "encode_ms": [one["encode_ms"] for one in transcripts],
            "decode_ms": [one["decode_ms"] for one in transcripts],
            "page_errors": [f"page: {one}" for one in self.tab.errors()] if self.tab else [],
            "log_errors": [f"log: {one}" for one in lines if BROKEN.search(one)],
        }

    def _end(self) -> None:
        self.clock.pid = 0
        _stop(self.daemon)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process in order, or at once where that takes too long."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)


def request(port: int, sound: Samples, host: str = "127.0.0.1") -> tuple[float, str]:
    """Send a sentence in real time. Return the ms from audio-stop to the text, and the text."""
    with Talk(port, host) as talk:
        talk.send("transcribe", language="en")
        talk.send("audio-start", **AUDIO_16K)
        begun_s = time.monotonic()
        for number, at in enumerate(range(0, len(sound), CHUNK), 1):
            talk.sound(sound[at : at + CHUNK])
            time.sleep(max(0.0, begun_s + number * CHUNK / SAMPLE_RATE - time.monotonic()))
        stopped_s = time.monotonic()
        talk.send("audio-stop")
        text = talk.text()
        return 1000 * (time.monotonic() - stopped_s), text


def with_keys(shipped: str, sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a shipped configuration, in which every key is commented out, with keys set in it.

    Raises KeyError for a key that it does not have.
    """
    left = {(section, key) for section, keys in sections.items() for key in keys}
    lines, section = [], ""
    for line in shipped.splitlines():
        if found := re.fullmatch(r"\[(\w+)\]", line):
            section = found[1]
        found = re.match(r"#(\w+) = ", line)
        if found and (section, found[1]) in left:
            left.remove((section, found[1]))
            value = json.dumps(sections[section][found[1]], ensure_ascii=False)
            line = f"{found[1]} = {value}"  # noqa: PLW2901
        lines.append(line)
    if left:
        raise KeyError(*sorted(".".join(one) for one in left))
    return "\n".join([*lines, ""])
