"""Checks of the local page: systemd listens, the page answers."""

from __future__ import annotations

import http.client
import shutil
import subprocess

from appliance.cli.doctor.outcome import Check, Outcome, Surroundings, failed, ok, skipped
from appliance.config import WebSettings

SOCKET_UNIT = "roomscribe-web.socket"
EVERY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
ANSWER_S = 8.0
"""systemd starts the page for the first request, which takes a second or two on a Pi."""
ENABLE = "`sudo roomscribe web enable`"


def unit(around: Surroundings) -> Outcome:
    """Check that systemd listens."""
    if not around.settings.web.enabled:
        return skipped("web.enabled is false")
    if not (around.root / "run/systemd/system").exists() or not shutil.which("systemctl"):
        return skipped("systemd does not run this machine")
    around.doing("asking systemctl")
    command = ["systemctl", "show", SOCKET_UNIT, "--property=ActiveState,Listen,LoadState"]
    answer = subprocess.run(
        command, capture_output=True, text=True, timeout=ANSWER_S, check=False
    ).stdout
    facts = dict(line.partition("=")[::2] for line in answer.splitlines())
    return judge_unit(facts, around.settings.web)


def judge_unit(facts: dict[str, str], web: WebSettings) -> Outcome:
    """Return the outcome for the unit's properties."""
    if facts.get("LoadState") != "loaded":
        return skipped(f"{SOCKET_UNIT} is not installed: `roomscribe web serve` serves the page")
    state, listens = facts.get("ActiveState"), facts.get("Listen", "").partition(" (")[0]
    if state != "active":
        return failed(f"{SOCKET_UNIT} is {state}", f"run {ENABLE}")
    host = f"[{web.listen}]" if ":" in web.listen else web.listen
    wanted = web.listen if web.listen.startswith("/") else f"{host}:{web.port}"
    if listens != wanted:
        found = f"systemd listens on {listens}, the configuration says {wanted}"
        return failed(found, f"run {ENABLE} again, because [web] has changed")
    return ok(f"systemd listens on {listens}")


def answers(around: Surroundings) -> Outcome:
    """Check that the page answers on this machine."""
    web = around.settings.web
    if not web.enabled:
        return skipped("web.enabled is false")
    if web.listen.startswith("/"):
        return skipped(f"a proxy connects to {web.listen}")
    host = EVERY.get(web.listen, web.listen)
    around.doing(f"opening the page at {host}, port {web.port}")
    try:
        connection = http.client.HTTPConnection(host, web.port, timeout=ANSWER_S)
        connection.request("GET", "/", headers={"Host": f"localhost:{web.port}"})
        answer = connection.getresponse()
        server = answer.headers.get("Server", "")
        connection.close()
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        fix = f"run {ENABLE}, or see `journalctl -u roomscribe-web -n 50`"
        return failed(f"{host}, port {web.port}, does not answer: {why}", fix)
    if (answer.status, server) != (200, "roomscribe"):
        found = f"another program answers on port {web.port} ({answer.status} {server})"
        return failed(found, "stop it, or set web.port to another port")
    return ok(f"http://localhost:{web.port}/ answers; `sudo roomscribe web open` prints a link")


NEEDS = ("[web]",)
CHECKS = (
    Check("unit of the page", unit, f"see `systemctl status {SOCKET_UNIT}`", needs=NEEDS),
    Check(
        "answer of the page",
        answers,
        "see `journalctl -u roomscribe-web`",
        within_s=ANSWER_S + 7,
        needs=(*NEEDS, "unit of the page"),
    ),
)
