"""The broker: reachable, lets us in, brings our own message back; what is retained there.

A client of its own for each check, with an id that is never the daemon's and without a last will:
nothing that it does is told to the daemon's subscribers.

The service: what systemd says of it, and what it says of itself.

The local log and the disk that it is on. Opened read-only.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from appliance.cli.doctor.daemon import UNIT
from appliance.cli.doctor.outcome import Outcome, Surroundings, failed, ok, skipped
from appliance.config import MqttSettings, Settings, node_name
from appliance.mqtt import Probe, events, password
from appliance.store import FILE_NAME, SCHEMA, Store, files, folders, repair, store as log_sources

LATE_S = 0.5
"""Retained messages come at once behind the SUBACK; so long is waited for them all the same."""

BIRTH = "homeassistant/status"


def reachable(around: Surroundings, connect_s: float = 5.0) -> Outcome:
    """The broker is there and lets us in."""
    mqtt = around.settings.mqtt
    if not mqtt.enabled:
        return skipped("mqtt.enabled is false")
    if why := _unreadable_password(mqtt):
        return skipped(why)
    around.doing(f"connecting to the broker {mqtt.host}:{mqtt.port}")
    begun_s = time.monotonic()
    with Probe(mqtt, node_name(around.settings), connect_s):
        took_ms = 1000 * (time.monotonic() - begun_s)
    who = f"user {mqtt.username!r}" if mqtt.username else "without a user name"
    return ok(f"{mqtt.host}:{mqtt.port} lets us in {who}, {took_ms:.0f} ms")


def round_trip(around: Surroundings) -> Outcome:
    """A message on a topic of our own comes back."""
    mqtt, node = around.settings.mqtt, node_name(around.settings)
    if why := _no_broker(around):
        return skipped(why)
    topic = events.topic(node, f"doctor/{secrets.token_hex(4)}")
    cure = _allow(mqtt, node)
    around.doing("waiting for the broker")
    with Probe(mqtt, node) as probe:
        if probe.subscribe([topic]):
            return failed(f"the broker refuses to let us read {topic}", cure)
        begun_s = time.monotonic()
        if code := probe.publish(topic, b"doctor"):
            return failed(f"the broker refuses to let us write {topic} (reason code {code})", cure)
        if not probe.receive(count=1):
            return failed(f"what we write to {topic} does not come back", cure)
        took_ms = 1000 * (time.monotonic() - begun_s)
    return ok(f"a message came back after {took_ms:.1f} ms")


def home_assistant(around: Surroundings) -> Outcome:
    """What Home Assistant left at its birth topic; for information."""
    if why := _no_broker(around):
        return skipped(why)
    around.doing("waiting for the broker")
    told = _retained(around.settings, [BIRTH]).get(BIRTH)
    if told is None:
        return skipped(f"nothing retained at {BIRTH}, which is usual; nothing to conclude from it")
    if told == "online":
        return ok(f"{BIRTH} says online")
    return skipped(f"{BIRTH} says {told!r}: Home Assistant is down or restarting")


def retained(settings: Settings, names: Iterable[str], within_s: float) -> dict[str, str]:
    """What is retained on these topics of the node. Raises BrokerError and ConfigError."""
    topics = {events.topic(node_name(settings), name): name for name in names}
    found = _retained(settings, topics, within_s)
    return {topics[topic]: payload for topic, payload in found.items()}


def _retained(
    settings: Settings, topics: Iterable[str], within_s: float = LATE_S
) -> dict[str, str]:
    topics = list(topics)
    with Probe(settings.mqtt, node_name(settings)) as probe:
        probe.subscribe(topics)
        found = probe.receive(LATE_S, len(topics))
        return {message.topic: message.payload.decode(errors="replace") for message in found}


def _no_broker(around: Surroundings) -> str:
    """Why there is nothing to ask; empty when there is."""
    if not around.settings.mqtt.enabled:
        return "mqtt.enabled is false"
    return _unreadable_password(around.settings.mqtt)


def _unreadable_password(mqtt: MqttSettings) -> str:
    """Why the daemon's password is not to be had by this user; empty when it is or none is used."""
    if not mqtt.username or os.geteuid() == 0:
        return ""
    file = Path(mqtt.password_file).expanduser()
    if mqtt.password_file:
        hidden = file.exists() and not os.access(file, os.R_OK)
    else:
        hidden = password(mqtt) is None
    return "the broker's password is not for this user: sudo roomscribe doctor" if hidden else ""


def _allow(mqtt: MqttSettings, node: str) -> str:
    who = repr(mqtt.username) if mqtt.username else "clients without a user name"
    return f"allow {who} to read and write roomscribe/{node}/# in the broker's access list"


ASK_S = 5.0
"""systemctl answers at once, or systemd is in trouble."""


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
    """What the daemon tells its subscribers about itself."""
    if not around.settings.mqtt.enabled:
        return skipped("mqtt.enabled is false")
    around.doing("waiting for the broker")
    told = retained(around.settings, ("availability", "state"), LATE_S)
    return judge_state(told.get("availability", ""), told.get("state", ""))


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


LEAST_FREE_MB = 200
"""The log grows by about 1 kB a sentence; the rest of the system needs room, too."""
DEEP = 100
"""More transcripts than this that no broker has: worth saying."""


def log(around: Surroundings) -> Outcome:
    """The store opens, its schema is known, its pages are whole."""
    settings = around.settings.store
    file = folders.store_folder(settings) / FILE_NAME
    with log_sources.in_memory(around.settings) as kept:
        if kept is not None:
            return failed(
                f"the log goes on in memory, lost with the power: {file} cannot be written",
                "make its disk writable, or free some space; then it is put there by itself",
            )
    try:
        there = file.exists()
    except PermissionError:
        return skipped(f"{file.parent} is not for this user: sudo roomscribe doctor")
    if not there:
        return skipped(f"{file} is not there: the daemon has not run yet, or keeps it elsewhere")
    around.doing(f"opening {file}")
    with Store.open(settings, read_only=True) as opened:
        around.doing(f"checking every page of {file}")
        if (trouble := _quick_check(file)) != "ok":
            cure = (
                "restart the daemon (`systemctl restart roomscribe`): it sets the file aside and "
                "goes on with what can be read of it"
            )
            return failed(f"{file} is damaged: {trouble}", cure)
        waiting = opened.depth()
    size_mb = file.stat().st_size / 1e6
    damaged = len(repair.asides(file))
    aside = f"; {damaged} damaged files are set aside beside it" if damaged else ""
    waits = f"{waiting} transcripts wait for the broker" if waiting else "nothing waits"
    note = ": see the broker's checks" if waiting > DEEP else ""
    return ok(f"{file}: schema {SCHEMA}, {size_mb:.1f} MB, whole; {waits}{note}{aside}")


def disk(around: Surroundings) -> Outcome:
    """There is room where the log is, or will be."""
    place = folders.store_folder(around.settings.store)
    while not _exists(place):
        place = place.parent
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        return failed(
            f"the disk of {place} is read-only",
            "see `dmesg` for why: after an error of the card, replace it",
        )
    free_mb = shutil.disk_usage(place).free / 1e6
    found = f"{free_mb:,.0f} MB free where the log is".replace(",", " ")
    if free_mb < LEAST_FREE_MB:
        return failed(
            f"{found}; wanted are {LEAST_FREE_MB}", "free some space (`du -xh / | sort -h`)"
        )
    return ok(found)


def _quick_check(file: Path) -> str:
    """ok, or SQLite's first complaint."""
    connection = None
    try:
        connection, _ = files.connect(file, write=False, busy_s=5)
        return str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.DatabaseError as error:
        return str(error)
    finally:
        if connection:
            connection.close()


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False
