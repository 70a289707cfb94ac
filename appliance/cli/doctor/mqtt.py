"""The broker: reachable, lets us in, brings our message back; the service and what it publishes."""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from appliance.cli.doctor.daemon import UNIT, password_is_hidden
from appliance.cli.doctor.outcome import BROKER, Check, Outcome, Surroundings, failed, ok, skipped
from appliance.config import MqttSettings, Settings, node_name
from appliance.mqtt import BrokerProbe, events

LATE_S = 0.5
"""Retained messages come at once behind the SUBACK; so long is waited for them all the same."""
BIRTH = "homeassistant/status"
ASK_S = 5.0
"""systemctl answers at once, or systemd is in trouble."""


def reachable(around: Surroundings, connect_s: float = 5.0) -> Outcome:
    """The broker is there and lets us in."""
    mqtt = around.settings.mqtt
    if why := _no_broker(around):
        return skipped(why)
    around.doing(f"connecting to the broker {mqtt.host}:{mqtt.port}")
    begun_s = time.monotonic()
    with BrokerProbe(mqtt, node_name(around.settings), connect_s):
        took_ms = 1000 * (time.monotonic() - begun_s)
    who = f"user {mqtt.username!r}" if mqtt.username else "without a user name"
    return ok(f"{mqtt.host}:{mqtt.port} lets us in {who}, {took_ms:.0f} ms")


def round_trip(around: Surroundings) -> Outcome:
    """A message on a topic of our own comes back."""
    mqtt, node = around.settings.mqtt, node_name(around.settings)
    if why := _no_broker(around):
        return skipped(why)
    topic = events.topic(node, f"doctor/{secrets.token_hex(4)}")
    fix = _allow(mqtt, node)
    around.doing("waiting for the broker")
    with BrokerProbe(mqtt, node) as probe:
        if probe.subscribe([topic]):
            return failed(f"the broker refuses to let us read {topic}", fix)
        begun_s = time.monotonic()
        if code := probe.publish(topic, b"doctor"):
            return failed(f"the broker refuses to let us write {topic} (reason code {code})", fix)
        if not probe.receive(count=1):
            return failed(f"what we write to {topic} does not come back", fix)
        took_ms = 1000 * (time.monotonic() - begun_s)
    return ok(f"a message came back after {took_ms:.1f} ms")


def home_assistant(around: Surroundings) -> Outcome:
    """Home Assistant's retained birth message; for information."""
    if why := _no_broker(around):
        return skipped(why)
    around.doing("waiting for the broker")
    birth = _retained(around.settings, [BIRTH]).get(BIRTH)
    if birth is None:
        return skipped(f"nothing retained at {BIRTH}, which is usual; nothing to conclude from it")
    if birth == "online":
        return ok(f"{BIRTH} says online")
    return skipped(f"{BIRTH} says {birth!r}: Home Assistant is down or restarting")


def secret_files(around: Surroundings) -> Outcome:
    """No file that the configuration names for a password, a key or a token is for every user."""
    mqtt, home = around.settings.mqtt, around.settings.homeassistant
    named = [
        Path(file).expanduser()
        for file in (mqtt.password_file, mqtt.key_file, home.token_file)
        if file
    ]
    if not named:
        return skipped("the configuration names no file with a password, a key or a token")
    exposed = [file for file in named if _is_open_to_all(file)]
    if exposed:
        files = " ".join(map(str, exposed))
        return failed(f"every user can read {files}", f"`sudo chmod o= {files}`")
    return ok("no file with a password, a key or a token is readable for every user")


def _is_open_to_all(file: Path) -> bool:
    """Whether others may read the file and enter its folder; False if this user cannot see it."""
    with suppress(OSError):
        return bool(file.stat().st_mode & 0o004 and file.parent.stat().st_mode & 0o001)
    return False


def retained(settings: Settings, names: Iterable[str]) -> dict[str, str]:
    """What is retained on these topics of the node. Raises BrokerError and ConfigError."""
    topics = {events.topic(node_name(settings), name): name for name in names}
    return {topics[topic]: text for topic, text in _retained(settings, topics).items()}


def _retained(settings: Settings, topics: Iterable[str]) -> dict[str, str]:
    topics = list(topics)
    with BrokerProbe(settings.mqtt, node_name(settings)) as probe:
        probe.subscribe(topics)
        found = probe.receive(LATE_S, len(topics))
    return {message.topic: message.payload.decode(errors="replace") for message in found}


def _no_broker(around: Surroundings) -> str:
    """Why there is nothing to ask; empty when there is."""
    if not around.settings.mqtt.enabled:
        return "mqtt.enabled is false"
    if password_is_hidden(around.settings.mqtt, around.daemon):
        return "the broker's password is not for this user: sudo roomscribe doctor"
    return ""


def _allow(mqtt: MqttSettings, node: str) -> str:
    who = repr(mqtt.username) if mqtt.username else "clients without a user name"
    return f"allow {who} to read and write roomscribe/{node}/# in the broker's access list"


def unit(around: Surroundings) -> Outcome:
    """systemd runs it."""
    if not (around.root / "run/systemd/system").exists() or not shutil.which("systemctl"):
        running = f"; a daemon runs all the same: {around.daemon}" if around.daemon else ""
        return skipped(f"systemd does not run this machine{running}")
    around.doing("asking systemctl")
    names = ("LoadState", "ActiveState", "SubState", "Result", "NRestarts")
    answer = subprocess.run(
        ["systemctl", "show", UNIT, f"--property={','.join(names)}"],
        capture_output=True, text=True, timeout=ASK_S, check=False,
    )  # fmt: skip
    facts = dict(line.partition("=")[::2] for line in answer.stdout.splitlines())
    return judge_unit(facts, running=str(around.daemon or ""))


def judge_unit(facts: dict[str, str], *, running: str = "") -> Outcome:
    """The outcome for the unit's properties; `running` is a daemon that was found, if any."""
    if facts.get("LoadState") != "loaded":
        also = f"; a daemon runs all the same: {running}" if running else ""
        return skipped(f"{UNIT} is not installed ({facts.get('LoadState') or 'no answer'}){also}")
    state = f"{facts.get('ActiveState')} ({facts.get('SubState')})"
    restarts = int(facts.get("NRestarts") or 0)
    found = f"{UNIT} is {state}" + (f", restarted {restarts} times" if restarts else "")
    if facts.get("ActiveState") in ("active", "reloading"):
        return ok(found)
    result = facts.get("Result", "success")
    because = "" if result == "success" else f", last result: {result}"
    return failed(
        found + because, "`journalctl -u roomscribe -n 50` says why; `systemctl start roomscribe`"
    )


def own_word(around: Surroundings) -> Outcome:
    """What the daemon publishes about itself."""
    if why := _no_broker(around):
        return skipped(why)
    around.doing("waiting for the broker")
    found = retained(around.settings, ("availability", "state"))
    return judge_state(found.get("availability", ""), found.get("state", ""))


def judge_state(availability: str, payload: str) -> Outcome:
    """The outcome for the retained `availability` and `state`."""
    if availability != "online":
        return skipped(f"the broker has the daemon as {availability or 'never seen'}")
    state = {}
    with suppress(ValueError):
        state = json.loads(payload)
    status = str(state.get("status", "unknown"))
    found = ", ".join([
        status,
        f"encoder {state.get('encoder')}",
        f"model {state.get('model')}",
        f"version {state.get('version')}",
        f"{state.get('queue_depth')} windows and {state.get('outbox_depth')} transcripts waiting",
    ])  # fmt: skip
    if status not in ("running", "muted"):
        reasons = "; ".join(map(str, state.get("reasons", []))) or "no reason given"
        return failed(f"{found}: {reasons}", "`journalctl -u roomscribe` has the whole story")
    return ok(found)


MQTT = ("[mqtt]", "[appliance]")
CHECKS = (
    Check(
        BROKER,
        reachable,
        "see mqtt.host and mqtt.port, and that a broker runs there",
        within_s=15,
        needs=MQTT,
    ),
    Check(
        "round trip",
        round_trip,
        "see the broker's log",
        within_s=20,
        needs=(*MQTT, BROKER),
    ),
    Check(
        "Home Assistant",
        home_assistant,
        "see the broker's log",
        within_s=15,
        needs=(*MQTT, BROKER),
    ),
    Check("secret files", secret_files, "see their modes", needs=("[mqtt]", "[homeassistant]")),
)
SERVICE_CHECKS = (
    Check("unit", unit, "see `systemctl status roomscribe`"),
    Check(
        "its own word",
        own_word,
        "`journalctl -u roomscribe` has the whole story",
        within_s=15,
        needs=(*MQTT, BROKER),
    ),
)
