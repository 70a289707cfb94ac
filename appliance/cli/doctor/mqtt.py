"""Check the broker, the files with secrets, the systemd unit and the daemon's state."""

import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from appliance.capture import public_name
from appliance.cli.doctor.daemon import UNIT, ask_daemon, is_hidden, output
from appliance.cli.doctor.outcome import Check, Outcome, Surroundings, failed, ok, skipped
from appliance.config import DEFAULT_PATH, node_name
from appliance.mqtt import PASSWORD_CREDENTIAL, BrokerProbe


def broker(around: Surroundings, connect_s: float = 5.0) -> Outcome:
    """Check that the broker lets us in and returns a message of this appliance; also of others?"""
    mqtt, node = around.settings.mqtt, node_name(around.settings)
    if not mqtt.enabled:
        return skipped("mqtt.enabled is false")
    if mqtt.username and is_hidden(mqtt.password_file, PASSWORD_CREDENTIAL, around.daemon):
        return skipped("this user cannot read the broker's password: run `sudo roomscribe doctor`")
    topic, message = mqtt.topic(node, "doctor"), secrets.token_hex(4).encode()
    other = mqtt.topic(secrets.token_hex(4), "doctor")
    who = repr(mqtt.username) if mqtt.username else "clients without a user name"
    fix = f"allow {who} to read and write {topic} in the broker's access list"
    around.doing(f"connecting to the broker {mqtt.host}:{mqtt.port}")
    with BrokerProbe(mqtt, node, connect_s) as probe:
        around.doing("waiting for the broker")
        refused = probe.subscribe([topic, other])
        if topic in refused:
            return failed(f"the broker does not allow reading {topic}", fix)
        kept = refused or probe.publish(other, b"")
        begun_s = time.monotonic()
        if code := probe.publish(topic, message):
            return failed(f"the broker does not allow writing {topic} (reason code {code})", fix)
        payloads = [one.payload for one in probe.receive(count=1 if kept else 2)]
        if message not in payloads:
            return failed(f"a message to {topic} did not come back", fix)
        took_ms = 1000 * (time.monotonic() - begun_s)
    where = f"{mqtt.host}:{mqtt.port}{f' as {mqtt.username!r}' if mqtt.username else ''}"
    open_to_all = "; no access list keeps it from other rooms' topics" if b"" in payloads else ""
    return ok(f"{where}: a message came back after {took_ms:.1f} ms{open_to_all}")


def secret_files(around: Surroundings) -> Outcome:
    """Check that not every user can read the configured files with a password, key or token."""
    mqtt, home, capture = (
        around.settings.mqtt, around.settings.homeassistant, around.settings.capture
    )  # fmt: skip
    secret = (mqtt.password_file, home.token_file, capture.device_file)
    named = [Path(file).expanduser() for file in secret if file]
    device, config = capture.device, around.config or DEFAULT_PATH
    if "@" in device and public_name(device) != device and _is_open_to_all(config):
        return failed(
            f"every user can read the password of {public_name(device)} in {config}",
            "write the address into a file that only root and the daemon's user may read, and "
            "name that with capture.device_file",
        )
    if not named:
        return skipped("the configuration names no file with a password or a token")
    exposed = [file for file in named if _is_open_to_all(file)]
    if exposed:
        files = " ".join(map(str, exposed))
        return failed(f"every user can read {files}", f"run `sudo chmod o= {files}`")
    return ok("files with a password or a token are protected")


def _is_open_to_all(file: Path) -> bool:
    """Return True if others can read the file; False if this user cannot see it."""
    with suppress(OSError):
        return bool(file.stat().st_mode & 0o004 and file.parent.stat().st_mode & 0o001)
    return False


def unit(around: Surroundings) -> Outcome:
    """Check that systemd runs the daemon."""
    running = f"; running without it: {around.daemon}" if around.daemon else ""
    if not (around.root / "run/systemd/system").exists():
        return skipped(f"this machine does not use systemd{running}")
    names = "LoadState,ActiveState,SubState,Result,NRestarts"
    shown = output("systemctl", "show", UNIT, f"--property={names}")
    return judge_unit(dict(line.partition("=")[::2] for line in shown.splitlines()), running)


def judge_unit(facts: dict[str, str], running: str = "") -> Outcome:
    """Return the outcome for the unit's properties; `running` names a daemon that was found."""
    if (loaded := facts.get("LoadState", "no answer")) != "loaded":
        return skipped(f"{UNIT} is not installed ({loaded}){running}")
    state = f"{facts.get('ActiveState')} ({facts.get('SubState')})"
    restarts = int(facts.get("NRestarts") or 0)
    found = f"{UNIT} is {state}" + (f", restarted {restarts} times" if restarts else "")
    if facts.get("ActiveState") in ("active", "reloading"):
        return ok(found)
    return failed(
        f"{found}, last result: {facts.get('Result')}",
        "find the reason with `journalctl -u roomscribe -n 50`, then run `sudo systemctl start "
        "roomscribe`",
    )


def state(around: Surroundings) -> Outcome:
    """Check the daemon's state."""
    if around.daemon is None:
        return skipped("the daemon does not run")
    found = ask_daemon(around.settings, "state")
    return judge_state(found) if found else skipped("it does not answer this user")


def judge_state(state: dict[str, Any]) -> Outcome:
    """Return the outcome for the daemon's `state`."""
    status, assist = str(state["status"]), state.get("assist", {})
    found = ", ".join([
        status,
        f"encoder {state['encoder']}",
        f"model {state['model']}",
        f"version {state['version']}",
        f"{state['queue_depth']} windows and {state['outbox_depth']} transcripts waiting",
        *(["other rooms: " + " ".join(rooms)] if (rooms := state.get("rooms")) else []),
        *([f"Assist gets {way}"] if (way := assist.get("way")) else []),
        *([f"the satellite has {assist['home'] or 'no Home Assistant yet'}"] if assist else []),
    ])  # fmt: skip
    if status not in ("running", "muted"):
        return failed(f"{found}: {'; '.join(state['reasons'])}", "see `journalctl -u roomscribe`")
    return ok(found)


CHECKS = (
    Check(
        "broker",
        broker,
        "check mqtt.host and mqtt.port, and that a broker runs there",
        within_s=20,
        needs=("[mqtt]", "[appliance]"),
    ),
    Check("secret files", secret_files, "check their modes", needs=("[mqtt]", "[homeassistant]")),
)
SERVICE_CHECKS = (
    Check("unit", unit, "see `systemctl status roomscribe`"),
    Check("daemon state", state, "see `journalctl -u roomscribe`"),
)
