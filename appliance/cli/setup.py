"""`roomscribe setup`: five questions, each answered by a live proof, while the daemon runs on.

Nothing is changed before the end: what is to be changed is shown, written whole into the
configuration, comments and all, and the daemon reads it again.

Over 500 lines because it is one conversation.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import getpass
import json
import math
import os
import re
import select
import shutil
import socket
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance import config
from appliance.cli import model as models
from appliance.cli.discovery import announced
from appliance.config import DEFAULT_PATH, ModelSettings, Settings, node_name, slug
from appliance.control import SOCKET_NAME, Client
from appliance.errors import (
    BrokerError,
    ConfigError,
    DaemonError,
    DeviceError,
    RoomscribeError,
    StoreError,
)
from appliance.system import require_writable, shorten, write_whole

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from appliance.capture import Recorder
    from appliance.config import MqttSettings

FLAGS = "--node, --device, --broker and --model"
MQTT_PORT = 1883
SHOWN_DEVICES = 8
FLOOR_DB, QUIET_DB = -60.0, -30.0
"""The meters' left end; the peak below which speech is too quiet (as of the control socket)."""
BAR = 24
ZEROS_S = 1.0
"""Nothing but zeros for so long is a microphone that is off."""
LOOK_S = 0.1
REACH_S, BROWSE_S = 1.5, 4.0
SENTENCE_S = 30.0
"""So long a sentence is waited for."""
TOLD_S = 10.0
"""So long the broker may take to tell it: it may not have known before that somebody listens."""
BACK_S = 30.0
"""So long the daemon may take to read its configuration again."""
WARNING = "yellow"
PASSWORD_FILE = "mqtt-password"
TRIES = 3

Changes = dict[str, Any]
"""Keys (section.key) with their new values."""


def add_setup(add: Callable[..., argparse.ArgumentParser]) -> None:
    """`roomscribe setup`"""
    sub = add(
        "setup",
        help="answer five questions, see each work, and have them written down",
        description="Asks for the room's name, the microphone, the broker and the model, shows "
        "that each works, hears a sentence, and writes what has changed into the configuration, "
        "whose comments stay. The daemon runs on meanwhile. It can be run again at any time. What "
        "an option answers is not asked; without a terminal, --yes keeps the rest as it is.",
    )
    sub.add_argument("--node", metavar="NAME", help="the room's name, such as kitchen")
    sub.add_argument(
        "--device", metavar="NAME", help="microphone: a name as `roomscribe devices` shows it"
    )
    sub.add_argument(
        "--broker", metavar="HOST[:PORT]", help="the MQTT broker; none: publish nothing"
    )
    sub.add_argument("--username", metavar="NAME", help="user name at the broker")
    sub.add_argument(
        "--password-file", metavar="FILE", help="file that holds the broker's password"
    )
    sub.add_argument(
        "--model", metavar="NAME", help="home-en, an installed model, or one to add, such as tiny"
    )
    sub.add_argument(
        "--page",
        action="store_true",
        help="switch the page for a browser on, too, and print a link to it",
    )
    sub.add_argument("--yes", action="store_true", help="ask nothing, and write what has changed")
    sub.set_defaults(command=setup, usage_error=sub.error)


def setup(options: argparse.Namespace, settings: Settings) -> int:
    """`roomscribe setup`; 0 when all is as it was wanted, 1 when the changes were declined."""
    if not options.yes and not (sys.stdin.isatty() and sys.stdout.isatty()):
        options.usage_error(
            f"setup asks on a terminal, and there is none: add --yes, and of {FLAGS} those that "
            "are to change"
        )
    from rich.console import Console

    from appliance.store import runtime_folders

    class Terminal(Console):
        """Rich's own ends the command with status 1 when nobody reads any more."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    file = options.config or DEFAULT_PATH
    require_writable(file, "run `sudo roomscribe setup`")
    places = [folder / SOCKET_NAME for folder in runtime_folders(settings)]
    return _Setup(options, settings, file, places, Terminal(highlight=False)).run()


class _Setup:
    """One run of the command."""

    def __init__(
        self,
        options: argparse.Namespace,
        settings: Settings,
        file: Path,
        places: list[Path],
        console: Console,
    ) -> None:
        self._options, self._settings, self._file = options, settings, file
        self._places, self._console = places, console
        self._asks = not options.yes
        self._changes: Changes = {}
        self._password = ""
        """To be written beside the configuration."""

    def run(self) -> int:
        """All questions, then the changes, then the sentence and the doctor's page."""
        steps = (
            ("The room", self._room),
            ("The microphone", self._microphone),
            ("The broker", self._broker),
            ("The model", self._model),
        )
        for number, (title, step) in enumerate(steps, 1):
            self._say(f"\n{number} of 5  {title}", "bold")
            step()
        if not self._write():
            return 1
        if self._options.page:
            self._page()
        self._say("\n5 of 5  A sentence", "bold")
        self._sentence()
        self._say("\nHow it stands", "bold")
        self._doctor()
        if not (self._options.page or self._settings.web.enabled):
            self._say("\n`sudo roomscribe setup --page` shows what is said in a browser, too")
        return 0

    # 1: the room

    def _room(self) -> None:
        present = node_name(self._settings)
        name = self._options.node
        if name is None:
            name = self._ask("What is this room called?", present)
        node = slug(name)
        if not node:
            if self._options.node is None:
                self._say("a name has letters or digits; it stays as it is")
            else:
                raise ConfigError(f"--node: expected a name of letters or digits, found {name!r}")
        elif node != present:
            self._changes["appliance.node"] = node
            if name != node and not self._settings.homeassistant.area and self._asks:
                self._changes["homeassistant.area"] = name
        self._say(f"its topics begin with roomscribe/{node or present}/")

    # 2: the microphone

    def _microphone(self) -> None:
        if self._options.device is None and not self._asks:
            self._say(self._settings.capture.device or "the default one")
            return
        with ExitStack() as opened:
            meters = self._meters(opened)
            if self._options.device is not None:
                self._take_device(self._options.device, meters)
                return
            if not meters:
                self._say("none is there now; the daemon takes one when it is plugged in")
                return
            self._say("Say something in a normal voice; Enter when you have seen enough.")
            self._show(meters)
        present = next((one for one in meters if one.present), meters[0])
        names = [one.name for one in meters]
        answer = names[0]
        if len(names) > 1:
            answer = self._choose("Which one?", names, names.index(present.name))
        self._say(f"{answer}: {meters[names.index(answer)].verdict()}")
        if answer != present.name or not present.present:
            self._changes["capture.device"] = answer

    def _take_device(self, wanted: str, meters: list[_Meter]) -> None:
        """What --device names. Raises DeviceError when it is not there, or several are."""
        whole = [one.name for one in meters if one.name.casefold() == wanted.casefold()]
        parts = [one.name for one in meters if wanted.casefold() in one.name.casefold()]
        found = whole or parts
        if wanted and len(found) != 1:
            there = ", ".join(repr(one) for one in found or [one.name for one in meters])
            raise DeviceError(
                f"--device: expected one microphone with {wanted!r} in its name, found "
                f"{there or 'none at all'}; nothing was changed"
            )
        if wanted != self._settings.capture.device:
            self._changes["capture.device"] = wanted
        self._say(found[0] if wanted else "the default one")

    def _meters(self, opened: ExitStack) -> list[_Meter]:
        """All microphones, each heard: the daemon's by it, the others here."""
        from appliance.capture import Recorder, list_microphones, names_to_configure

        heard: list[_Meter] = []
        with suppress(DaemonError):
            daemon = opened.enter_context(Client(self._places))
            state = daemon.ask("state")
            if state["microphone"] != "none":
                daemon.subscribe("level")
                heard.append(_Meter(state["microphone"], daemon=daemon, present=True))
            elif state["status"] == "muted":
                self._say("it is muted: `roomscribe mute off` opens the microphone")
        try:
            devices = list_microphones()
        except DeviceError as error:
            self._say(str(error))
            return heard
        for one, name in zip(devices, names_to_configure(devices), strict=True):
            if len(heard) >= SHOWN_DEVICES or name in [known.name for known in heard]:
                continue
            meter = _Meter(name, recorder=opened.enter_context(Recorder()))
            meter.open(self._settings.capture.block_ms)
            wanted = self._settings.capture.device
            named = bool(wanted) and wanted.casefold() in name.casefold()
            meter.present = not any(known.present for known in heard) and (
                named or (not wanted and one.default)
            )
            heard.append(meter)
        return heard

    def _show(self, meters: list[_Meter]) -> None:
        """Moving meters until Enter."""

        def table() -> RenderableType:
            from rich.table import Table
            from rich.text import Text

            shown = Table(box=None, pad_edge=False)
            for title in ("", "microphone", "level", "loudest", ""):
                shown.add_column(title)
            for number, one in enumerate(meters, 1):
                peak = "" if one.peak_db is None else f"{one.peak_db:.0f} dB"
                cells = (str(number), one.name[:40], one.bar(), peak, one.verdict())
                shown.add_row(*map(Text, cells))
            return shown

        with self._moving(table) as again:
            while not _entered(LOOK_S):
                for one in meters:
                    one.listen()
                again()

    # 3: the broker

    def _broker(self) -> None:
        mqtt, wanted = self._settings.mqtt, self._options.broker
        if wanted is None and not self._asks:
            self._say(f"{mqtt.host}:{mqtt.port}" if mqtt.enabled else "none")
            return
        if wanted is None:
            found = list(self._brokers())
            for one in found:
                self._say(f"found {one}")
            present = f"{mqtt.host}:{mqtt.port}" if mqtt.enabled else "none"
            best = present if present in found or mqtt.host != "localhost" else None
            wanted = self._ask(
                "Where is the broker? HOST, HOST:PORT, or none",
                best or (found[0] if found else present),
            )
        if wanted.strip() in ("", "none"):
            if mqtt.enabled:
                self._changes["mqtt.enabled"] = False
            self._say("nothing is published; the log on this machine has everything")
            return
        chosen = replace(mqtt, enabled=True, **_host_and_port(wanted))
        if self._options.username is not None:
            chosen = replace(chosen, username=self._options.username)
        if self._options.password_file is not None:
            place = str(Path(self._options.password_file).expanduser().absolute())
            chosen = replace(chosen, password_file=place)
        chosen = self._connected(chosen)
        for key in ("enabled", "host", "port", "username", "password_file"):
            if getattr(chosen, key) != getattr(mqtt, key):
                self._changes[f"mqtt.{key}"] = getattr(chosen, key)

    def _brokers(self) -> Iterator[str]:
        """Brokers that answer: the configured one, what the network announces, Home Assistant's
        usual name, this machine."""
        mqtt = self._settings.mqtt
        places = [
            (mqtt.host, mqtt.port),
            *announced("_mqtt._tcp", BROWSE_S),
            ("homeassistant.local", MQTT_PORT),
        ]
        for host, port in dict.fromkeys([*places, ("localhost", MQTT_PORT)]):
            with suppress(OSError), socket.create_connection((host, port), REACH_S):
                yield f"{host}:{port}"

    def _connected(self, mqtt: MqttSettings) -> MqttSettings:
        """`mqtt` as the broker lets it in. Raises BrokerError, and ConfigError for a file."""
        from appliance.cli.doctor.daemon import with_credentials
        from appliance.mqtt import Probe

        node = self._changes.get("appliance.node", node_name(self._settings))
        tried = mqtt if self._file != DEFAULT_PATH else with_credentials(mqtt)
        for left in reversed(range(TRIES)):
            try:
                with Probe(tried, node) as probe:
                    self._say(f"{mqtt.host}:{mqtt.port} lets it in")
                    self._look_around(probe, mqtt, node)
                return mqtt
            except BrokerError as error:
                refused = "refuses user" in str(error) or "refuses a client" in str(error)
                if not (self._asks and left and refused):
                    raise
                self._say(str(error).partition(";")[0])
            name = self._ask("User name at the broker?", mqtt.username)
            self._password = getpass.getpass("Its password (not shown): ")
            place = self._file.absolute().with_name(PASSWORD_FILE)
            mqtt = replace(mqtt, username=name, password_file=str(place))
            draft = os.memfd_create(PASSWORD_FILE)
            os.write(draft, self._password.encode())
            tried = replace(mqtt, password_file=f"/proc/self/fd/{draft}")
        raise BrokerError(f"broker {mqtt.host}:{mqtt.port} lets nobody in")

    def _look_around(self, probe: Any, mqtt: MqttSettings, node: str) -> None:
        """Says who else is there: Home Assistant, and another appliance of that name."""
        if mqtt.protocol == "5" and self._settings.homeassistant.enabled:
            prefix = self._settings.homeassistant.prefix
            there = probe.reaches(f"{prefix}/device/roomscribe_setup_{os.getpid()}/config")
            told = "Home Assistant is listening" if there else "no Home Assistant listens there yet"
            self._say(told)
        if "appliance.node" in self._changes:
            probe.subscribe([f"roomscribe/{node}/availability"])
            if any(one.payload == b"online" for one in probe.receive(1.0, count=1)):
                self._say(
                    f"another appliance there is called {node}: give this one another", WARNING
                )

    # 4: the model

    def _model(self) -> None:
        from appliance.infer import find_chip
        from appliance.model import installed_bundles, library

        present = models._in_use(self._settings)
        wanted = self._options.model
        if wanted is None and not self._asks:
            self._say(present)
            return
        there = list(installed_bundles())
        if wanted is None:
            with suppress(OSError, RoomscribeError):
                chip = find_chip()
                self._say(f"NPU: {chip or 'none, the CPU encodes'}")
            choices = list(dict.fromkeys([*there, *library.PUBLISHED]))
            for name in choices:
                self._say(f"  {name:12} {_about(name, there)}")
            wanted = self._choose("Which one?", choices, _index(choices, present))
        if wanted not in there and wanted != present:
            self._add_model(wanted)
        if wanted != present:
            self._changes["model.bundle"] = wanted
        self._say(self._prove(wanted))

    def _add_model(self, name: str) -> None:
        """Downloads and builds it. Raises RoomscribeError."""
        from appliance.cli.main import parser

        self._say(f"adding {name}: a download, then a minute of work")
        add = parser().parse_args(["model", "add", name, "--no-use"])
        status = add.command(add, self._settings)
        if status:
            raise ConfigError(f"--model: expected a model, found none called {name!r}")

    def _prove(self, name: str) -> str:
        """What the model makes of a known sentence on this machine, and how long it takes."""
        from appliance.cli.doctor.main import look
        from appliance.cli.doctor.model import CHECKS, self_test
        from appliance.cli.doctor.outcome import FAILED, Surroundings

        settings = replace(self._settings, model=ModelSettings(bundle=name))
        check = next(one for one in CHECKS if one.look is self_test)
        outcome = look(check, Surroundings(settings, self._file))
        if outcome.status == FAILED:
            return f"{name}: {outcome.found}; {outcome.cure}"
        return f"{name}: {outcome.found}"

    # the changes

    def _write(self) -> bool:
        """Shows what changes and writes it; the daemon reads it. False when that is declined."""
        if not self._changes and not self._password:
            self._say("\nnothing is to be changed")
            return True
        before = self._file.read_text(encoding="utf-8-sig") if self._file.exists() else ""
        after = edited(before, self._changes)
        self._say(f"\n{self._file}", "bold")
        for line in difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""):
            if line[:3] not in ("---", "+++") and line[:2] != "@@":
                self._console.print(line, markup=False, style="green" if line[0] == "+" else "red")
        if self._asks and self._ask("Write it?", "yes").casefold() not in ("y", "yes"):
            self._say("nothing was changed")
            return False
        config.parse(after, str(self._file))
        try:
            if self._password:
                self._keep_password()
            replace_whole(self._file, after)
        except OSError as error:
            raise StoreError(
                f"{self._file}: cannot be written: {error.strerror}; nothing was changed"
            ) from error
        self._clear_overlay()
        self._reload()
        return True

    def _keep_password(self) -> None:
        """Into a file beside the configuration, for root and the daemon alone. Raises OSError."""
        place = self._file.with_name(PASSWORD_FILE)
        write_whole(place, f"{self._password}\n", 0o600)
        with suppress(LookupError, PermissionError):
            shutil.chown(place, group="roomscribe")
            place.chmod(0o640)

    def _clear_overlay(self) -> None:
        """What was answered here does not go on being overridden by what was chosen before."""
        file = config.overlay_file(self._settings)
        with suppress(OSError, ValueError):
            owner, tables = file.stat(), tomllib.loads(file.read_text(encoding="utf-8"))
            for name in self._changes:
                section, _, key = name.partition(".")
                tables.get(section, {}).pop(key, None)
            left = {section: keys for section, keys in tables.items() if keys}
            if left:
                write_whole(file, config.as_toml(left), 0o600)
                os.chown(file, owner.st_uid, owner.st_gid)
            else:
                file.unlink()

    def _reload(self) -> None:
        try:
            with Client(self._places) as daemon:
                changed = daemon.ask("reload")["changed"]
                with suppress(DaemonError):  # it starts again, and ends every connection
                    deadline_s = time.monotonic() + BACK_S
                    while changed and time.monotonic() < deadline_s:
                        daemon.next(1.0)
        except DaemonError as error:
            self._say(f"written; {error}")
        else:
            self._say("written, and the daemon has read it")

    def _page(self) -> None:
        """Switches the page on and prints a link to it. Raises ConfigError and StoreError."""
        from appliance.cli.web import enable_page, print_link

        self._say("\nThe page", "bold")
        now = config.read(self._file).settings
        if not now.web.enabled:
            self._changes["web.enabled"] = True  # the daemon starts again with it
        enable_page(self._options, now)
        print_link(self._options, config.read(self._file).settings)

    # 5: the sentence

    def _sentence(self) -> None:
        """Waits for a sentence: its text, its latency, and where it went."""
        if not self._asks:
            self._say("left out: nobody is there to say one")
            return
        try:
            with ExitStack() as opened:
                daemon = self._back(opened)
                self._say("Say a sentence. Enter: leave that out.")
                said = self._hear(daemon, self._subscriber(opened))
        except DaemonError as error:
            self._say(str(error))
            return
        if not said:
            self._say("nothing was heard: `roomscribe doctor` says what may be wrong")

    def _back(self, opened: ExitStack) -> Client:
        """Return the daemon, subscribed to what `_hear` needs, once it answers again.

        While it starts again it may accept a connection and end it at once. Raises DaemonError.
        """
        deadline_s = time.monotonic() + BACK_S
        while True:
            try:
                with ExitStack() as attempt:
                    daemon = attempt.enter_context(Client(self._places))
                    daemon.subscribe("transcript", "level", "discarded", "state")
                    opened.push(attempt.pop_all())
                    return daemon
            except DaemonError:
                if time.monotonic() > deadline_s or not self._changes:
                    raise
                time.sleep(0.2)

    def _subscriber(self, opened: ExitStack) -> Any:
        """A reader of the broker's, where the daemon publishes to one; else None."""
        from appliance.cli.doctor.daemon import with_credentials
        from appliance.mqtt import Probe

        now = config.read(self._file).settings
        if not now.mqtt.enabled:
            return None
        with suppress(RoomscribeError):
            chosen = with_credentials(now.mqtt) if self._file == DEFAULT_PATH else now.mqtt
            probe = opened.enter_context(Probe(chosen, node_name(now)))
            probe.subscribe([f"roomscribe/{node_name(now)}/transcript"])
            return probe
        return None

    def _hear(self, daemon: Client, probe: Any) -> bool:
        """Shows the level until a sentence has come; False when none did."""
        meter = _Meter("", daemon=daemon)
        told: list[dict[str, Any]] = []
        deadline_s = time.monotonic() + SENTENCE_S
        with self._moving(lambda: f"  {meter.bar()} {meter.verdict()}") as again:
            while not told and time.monotonic() < deadline_s and not _entered(LOOK_S):
                for event, data in meter.listen():
                    if event == "transcript":
                        told.append(data)
                    elif event == "state" and data["status"] == "muted":
                        raise DaemonError("it is muted: `roomscribe mute off` opens the microphone")
                again()
        for one in told[:1]:
            self._console.print(f"  {one['text']}", markup=False, style="bold")
            self._say(f"its text was there {one['latency_ms'] / 1000:.2f} s after it was said")
            went = f"it is number {one['seq']} in the log"
            if probe and _told(probe, one["id"]):
                went += f", and the broker told it on roomscribe/{one['node']}/transcript"
            elif probe:
                went += "; the broker has not told it yet"
            self._say(went)
        return bool(told)

    def _doctor(self) -> None:
        from appliance.cli.doctor.main import run

        asked = argparse.Namespace(config=self._options.config, json=False, recordings=None)
        run(asked, config.read(self._options.config).settings)

    # the terminal

    def _say(self, line: str, style: str = "") -> None:
        self._console.print(line, style=style, markup=False, soft_wrap=True)

    def _ask(self, question: str, default: str) -> str:
        """The answer; `default` for none. Without a terminal, `default`."""
        if not self._asks:
            return default
        self._console.print(f"{question} [{default}] ", markup=False, end="")
        return self._input() or default

    def _input(self) -> str:
        try:
            return input().strip()
        except EOFError:
            raise ConfigError(
                "setup: expected an answer, found the end of input; nothing was changed"
            ) from None

    def _choose(self, question: str, names: list[str], default: int) -> str:
        """One of `names`: its number, or a part of its name that no other has."""
        while True:
            answer = self._ask(question, names[default])
            if answer.isdigit() and 0 < int(answer) <= len(names):
                return names[int(answer) - 1]
            if answer in names:
                return answer
            parts = [one for one in names if answer.casefold() in one.casefold()]
            if len(parts) == 1:
                return parts[0]
            self._say(f"expected a number or a name from above, found {shorten(answer)}")

    @contextmanager
    def _moving(self, show: Callable[[], RenderableType]) -> Iterator[Callable[[], None]]:
        """A part of the terminal that is drawn again and again."""
        from rich.live import Live

        with Live(show(), console=self._console, auto_refresh=False) as live:
            yield lambda: live.update(show(), refresh=True)


def _told(probe: Any, wanted: str) -> bool:
    """True when the broker tells the transcript of that id within TOLD_S."""
    deadline_s = time.monotonic() + TOLD_S
    while (left_s := deadline_s - time.monotonic()) > 0:
        if any(wanted.encode() in one.payload for one in probe.receive(left_s, count=1)):
            return True
    return False


@dataclass
class _Meter:
    """One microphone's level."""

    name: str
    recorder: Recorder | None = None
    daemon: Client | None = None
    present: bool = False
    """It is the one in use."""
    trouble: str = ""
    now_db: float | None = None
    peak_db: float | None = None
    """The loudest so far."""
    clipped: bool = False
    zeros_s: float = 0.0
    heard: bool = False
    _channels: int = field(default=1, repr=False)
    _rate_hz: float = field(default=16_000.0, repr=False)

    def open(self, block_ms: int) -> None:
        """Opens it; what is wrong is its trouble."""
        if self.recorder:
            try:
                opened = self.recorder.open(self.name, block_ms)
                self._channels, self._rate_hz = opened.channels, opened.rate_hz
            except DeviceError as error:
                self.trouble = shorten(str(error), 60)

    def listen(self) -> list[tuple[str, dict[str, Any]]]:
        """Takes what has come since; the daemon's other events."""
        from appliance.capture import EndError

        others = list[tuple[str, dict[str, Any]]]()
        if self.daemon:
            while event := self.daemon.next(0.0):
                if event[0] == "level":
                    self._push(event[1]["peak_db"], event[1]["clipped"], LOOK_S)
                else:
                    others.append(event)
        elif self.recorder and not self.trouble:
            try:
                for block in self.recorder.waiting():
                    peak_db, clipped = _loudest(block.data)
                    length_s = len(block.data) / 2 / self._channels / self._rate_hz
                    self._push(peak_db, clipped, length_s)
            except EndError as error:
                self.trouble = shorten(str(error), 60)
        return others

    def _push(self, peak_db: float | None, clipped: bool, length_s: float) -> None:
        self.heard, self.now_db = True, peak_db
        self.clipped = self.clipped or clipped
        self.zeros_s = self.zeros_s + length_s if peak_db is None else 0.0
        if peak_db is not None:
            self.peak_db = max(peak_db, self.peak_db if self.peak_db is not None else peak_db)

    def bar(self) -> str:
        """The level now."""
        db = FLOOR_DB if self.now_db is None else self.now_db
        filled = round(BAR * min(1.0, max(0.0, 1 - db / FLOOR_DB)))
        return "#" * filled + "." * (BAR - filled)

    def verdict(self) -> str:
        """What is to be said of it."""
        if self.trouble:
            return self.trouble
        if not self.heard:
            return "nothing yet"
        if self.zeros_s >= ZEROS_S:
            return "nothing but zeros: off, or muted in the mixer"
        if self.clipped:
            return "it clips: turn its gain down"
        if self.peak_db is None or self.peak_db < QUIET_DB:
            return "too quiet: speak, or turn it up"
        return "good"


def _loudest(data: bytes) -> tuple[float | None, bool]:
    """Peak of int16 samples in dB of full scale (None: zeros), and whether it is at full scale."""
    import numpy as np

    peak = int(np.abs(np.frombuffer(data, np.int16).astype(np.int32)).max(initial=0))
    return (20 * math.log10(peak / 32768) if peak else None), peak >= 32767


def _entered(within_s: float) -> bool:
    """True when a line was entered; it is taken."""
    if not select.select([sys.stdin], [], [], within_s)[0]:
        return False
    sys.stdin.readline()
    return True


def _host_and_port(wanted: str) -> dict[str, Any]:
    """HOST, HOST:PORT or [ADDRESS]:PORT. Raises ConfigError."""
    found = re.fullmatch(r"\[?([^\[\]]+?)\]?(?::(\d+))?", wanted.strip())
    host = found[1] if found else ""
    port = int(found[2] or MQTT_PORT) if found else 0
    for name, value in (("mqtt.host", host), ("mqtt.port", port)):
        if trouble := config.mistake(name, value):
            raise ConfigError(f"--broker: expected HOST or HOST:PORT, found {wanted!r} ({trouble})")
    return {"host": host, "port": port}


def _index(names: list[str], wanted: str) -> int:
    return names.index(wanted) if wanted in names else 0


def _about(name: str, there: list[str]) -> str:
    """A model in a few words: what it is, its size, whether there is memory for it."""
    from appliance.model import BUILT_IN, library, load_bundle
    from appliance.system import free_memory

    if name == BUILT_IN:
        return "built in; a few hundred words of the home, for a first look"
    if name in there:
        try:
            bundle = load_bundle(name)
        except RoomscribeError as error:
            return shorten(str(error), 80)
        size = models._size(bundle.folder) / 1e6
        npu = ", with an encoder for the NPU" if "encoder.hef" in bundle.files else ""
        return f"installed, {size:.0f} MB{npu}; {bundle.source or bundle.description}"
    found = library.PUBLISHED[name]
    fits = "" if free_memory() > found.memory_gb * 1e9 else "; more than the memory that is free"
    return (
        f"to be downloaded, {found.download_mb} MB; {found.disk_mb} MB on the disk, "
        f"{found.memory_gb:.2f} GB of memory{fits}"
    )


def edited(text: str, changes: Mapping[str, Any]) -> str:
    """The TOML `text` with these keys (section.key) set, and everything else as it was.

    A key goes where the file shows it commented out, else to the end of its section.
    """
    import tomlkit

    for name, value in changes.items():
        section, _, key = name.partition(".")
        shown = json.dumps(value, ensure_ascii=False)
        document = tomlkit.parse(text)
        table = document.get(section)
        if table is not None and key in table:
            table[key] = value
            text = tomlkit.dumps(document)
            continue
        body = re.search(rf"(?ms)^\[{section}\][^\n]*\n(.*?)(?=^\s*\[|\Z)", text)
        line = body and re.search(rf"(?m)^#\s?{key}\s*=.*$", body[1])
        if body and line:
            at = body.start(1) + line.start()
            tried = text[:at] + f"{key} = {shown}" + text[body.start(1) + line.end() :]
            if _says(tried, section, key, value):
                text = tried
                continue
        if table is None:
            document[section] = table = tomlkit.table()
        table[key] = value
        text = tomlkit.dumps(document)
    return text


def _says(text: str, section: str, key: str, value: Any) -> bool:
    """True when `text` is TOML that sets the key."""
    with suppress(ValueError):
        return bool(tomllib.loads(text).get(section, {}).get(key) == value)
    return False


def replace_whole(file: Path, text: str) -> None:
    """Writes the file whole, with the owner and mode that it had. Raises OSError."""
    real = Path(os.path.realpath(file))
    if not real.exists():
        write_whole(real, text, 0o644)
        return
    found = real.stat()
    write_whole(real, text, found.st_mode & 0o7777)
    with suppress(PermissionError):
        os.chown(real, found.st_uid, found.st_gid)
