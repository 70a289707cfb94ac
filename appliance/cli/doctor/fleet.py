"""Several rooms together: the server, what it lets this node do, and who transcribes."""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from appliance.cli.doctor.daemon import ENCRYPTED, PLAIN
from appliance.cli.doctor.model import compare_text, spoken_window, words
from appliance.cli.doctor.outcome import Check, Outcome, Surroundings, failed, ok, skipped
from appliance.config import Settings, fleet_server, is_loopback, node_name
from appliance.fleet import Probe, messages

SERVER = "fleet's server"
APART_S = 2.0
"""Times in events are the satellite's own; beyond this two rooms' events cannot be put in order."""
FOREIGN = "roomscribe.foreign"
CREDENTIAL = "roomscribe.fleet"
LONGEST_S = 10.0
WITHIN_S = 20.0
"""For a sentence of two seconds at a worker that has its own room first."""


def server(around: Surroundings) -> Outcome:
    """A server lets us in, encrypted, to what is ours, and to nothing else."""
    if why := _none(around):
        return skipped(why)
    fleet = around.settings.fleet
    around.doing("connecting to the fleet's server")
    with Probe(fleet, node_name(around.settings)) as probe:
        scheme, host, _ = fleet_server(probe.address)
        found = f"{probe.address} lets in {probe.node}; nats-server {probe.version}"
        own = messages.Subjects(probe.node)
        wanted = own.answer if fleet.role == "satellite" else messages.WORKERS
        around.doing("trying what it allows")
        lacks = not probe.may_read(wanted)
        everything = probe.may_read("roomscribe.>") or probe.may_send(FOREIGN)
    fix = f"`sudo roomscribe fleet invite {own.node} --role {fleet.role}` on the server's machine"
    if lacks:
        return failed(f"{found}; {own.node} may not read {wanted}", fix)
    if scheme != "tls" and not is_loopback(host):
        return failed(f"{found}; the connection is not encrypted", "let it begin with tls://")
    if everything and not is_loopback(host):
        return failed(f"{found}; {own.node} may read what is said in other rooms", fix)
    encrypted = ["encrypted"] if scheme == "tls" else []
    limited = [] if everything else ["what is others' is refused"]
    return ok("; ".join([found, *encrypted, *limited]))


def workers(around: Surroundings) -> Outcome:
    """Somebody transcribes, and their clocks agree with ours."""
    if why := _none(around):
        return skipped(why)
    around.doing("asking who transcribes")
    with Probe(around.settings.fleet, node_name(around.settings)) as probe:
        now_s = time.time()  # they answer within milliseconds
        found = probe.find_workers()
    if probe.misfits:
        return failed(*probe.misfits[0].split("; ", 1))
    if not found:
        return failed("no worker", "start the daemon of a worker ([fleet] role)")
    fits = [
        one for one in found if around.settings.fleet.model in ("", messages.token(one.name))
    ]  # fmt: skip
    who = ", ".join(f"{one.node} ({one.name}, {one.version})" for one in found)
    if not fits:
        return failed(f"{who}; none has {around.settings.fleet.model}", "see fleet.model")
    apart = [
        f"{one.node}'s clock is {abs(one.clock_s - now_s):.0f} s "
        f"{'ahead of' if one.clock_s > now_s else 'behind'} ours"
        for one in found
        if math.isfinite(one.clock_s) and abs(one.clock_s - now_s) > APART_S
    ]
    if apart:
        return failed(f"{who}; {', '.join(apart)}", "`timedatectl` on both shows which has no NTP")
    return ok(f"{who}; clocks agree")


def sentence(around: Surroundings) -> Outcome:
    """A worker reads a known sentence."""
    if why := _none(around):
        return skipped(why)
    fleet = around.settings.fleet
    if fleet.role != "satellite":
        return skipped(f"fleet.role is {fleet.role}: the satellites ask, and it answers")
    window = replace(spoken_window(LONGEST_S), id=f"doctor-{secrets.token_hex(8)}")
    around.doing("having a worker transcribe the packaged sentence")
    with Probe(fleet, node_name(around.settings)) as probe:
        job = messages.Job(window, probe.node, 1, patience_s=WITHIN_S)
        answer, took_ms = probe.transcribe(job, WITHIN_S)
    if isinstance(answer.result, messages.Refusal):
        return failed(
            f"{answer.worker} refuses: {answer.result.text} ({answer.result.code})",
            "see that worker's log (`journalctl -u roomscribe`)",
        )
    found = f"{answer.worker} {compare_text(answer.result.text)}; {took_ms:.0f} ms"
    if not words(answer.result.text):
        return failed(found, "another model there may read it")
    return ok(found)


def _none(around: Surroundings) -> str:
    """Why there is nothing to ask; empty when there is."""
    fleet = around.settings.fleet
    if fleet.role == "alone":
        return "fleet.role is alone"
    if hidden(around.settings, os.geteuid()):
        return "the credential is not for this user: sudo roomscribe doctor"
    return ""


def hidden(
    settings: Settings,
    user: int,
    readable: Callable[[Path], bool] = lambda file: os.access(file, os.R_OK),
) -> bool:
    """True when the daemon may have a credential that `user` may not read."""
    if user == 0:
        return False
    named = settings.fleet.credential
    places = [Path(named)] if named else [one / CREDENTIAL for one in (PLAIN, ENCRYPTED)]
    for place in places:
        try:
            if place.expanduser().exists() and not readable(place.expanduser()):
                return True
        except (OSError, RuntimeError):  # PermissionError: not even its folder is for this user
            return True
    return False


NEEDS = ("[fleet]", "[appliance]")
CHECKS = (
    Check(SERVER, server, "see fleet.server and fleet.credential", within_s=30, needs=NEEDS),
    Check("workers", workers, "see fleet.server", within_s=15, needs=(*NEEDS, SERVER)),
    Check(
        "a sentence from afar",
        sentence,
        "see the workers' logs",
        within_s=WITHIN_S + 15,
        needs=(*NEEDS, SERVER, "workers"),
    ),
)
