"""The service: what systemd says of it, and what it says of itself."""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import suppress

from appliance.doctor import broker
from appliance.doctor.daemon import UNIT
from appliance.doctor.outcome import Outcome, Surroundings, failed, ok, skipped

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
    told = broker.retained(around.settings, ("availability", "state"), broker.LATE_S)
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
