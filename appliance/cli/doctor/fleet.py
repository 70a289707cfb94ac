"""Several rooms together: the server, who we are to it, its queue, and who transcribes."""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.cli.doctor.daemon import ENCRYPTED, PLAIN
from appliance.cli.doctor.model import compare_text, spoken_window, words
from appliance.cli.doctor.outcome import Check, Outcome, Surroundings, failed, ok, skipped
from appliance.config import Settings, fleet_server, is_loopback, node_name
from appliance.errors import ServerError
from appliance.fleet import Probe, messages
from appliance.system import shorten

if TYPE_CHECKING:
    pass

SERVER = "fleet's server"
APART_S = 2.0
"""Times in events are the satellite's own; beyond this two rooms' events cannot be put in order."""
FOREIGN = "roomscribe.foreign"
CREDENTIAL = "roomscribe.fleet"
LONGEST_S = 10.0
WITHIN_S = 20.0
"""For a sentence of two seconds at a worker that has its own room first."""
MEMORY, WORK = "memory", "workqueue"
MOST_BYTES = 1_000_000
AGAIN = "sudo roomscribe fleet serve on the server's machine sets it up again"


def server(around: Surroundings) -> Outcome:
    """One of the servers that are configured lets us in; the others are named."""
    if why := _none(around):
        return skipped(why)
    fleet, found, away = around.settings.fleet, list[str](), list[ServerError]()
    for one in fleet.server:
        around.doing(f"connecting to {one}")
        try:
            with Probe(replace(fleet, server=(one,)), node_name(around.settings)) as probe:
                found.append(f"{one} lets in {probe.node}, {probe.connect_ms:.0f} ms")
                version = probe.version
        except ServerError as error:
            away.append(error)
    if not found:
        raise next((one for one in away if one.kind == ServerError.REFUSED), away[-1])
    others = "".join(f"; not used: {shorten(str(one), 120)}" for one in away)
    return ok(f"{', '.join(found)}; nats-server {version}{others}")


def encryption(around: Surroundings) -> Outcome:
    """What is said leaves this machine encrypted."""
    if why := _none(around):
        return skipped(why)
    plain = [one for one in around.settings.fleet.server if fleet_server(one)[0] != "tls"]
    if not plain:
        whose = around.settings.fleet.ca or "an authority that the system knows"
        return ok(f"TLS, certificate and name checked against {whose}")
    if all(is_loopback(fleet_server(one)[1]) for one in plain):
        return skipped(f"{plain[0]}: none, and it does not leave this machine")
    return failed(f"{plain[0]}: none", "let it begin with tls://")


def rights(around: Surroundings) -> Outcome:
    """We may read and send what is ours, and nothing else."""
    if why := _none(around):
        return skipped(why)
    fleet = around.settings.fleet
    around.doing("asking what we may")
    with Probe(fleet, node_name(around.settings)) as probe:
        own = messages.Subjects(probe.node)
        allowed = [own.answer] if fleet.role == "satellite" else [messages.WORKERS]
        lacking = [one for one in allowed if not probe.may_read(one)]
        everything = probe.may_read("roomscribe.>") or probe.may_send(FOREIGN)
    fix = f"`sudo roomscribe fleet invite {own.node} --role {fleet.role}` on the server's machine"
    if lacking:
        return failed(f"{own.node} may not read {', '.join(lacking)}", fix)
    if not everything:
        return ok(f"{own.node} reads {', '.join(allowed)}; what is others' is refused")
    if all(is_loopback(fleet_server(one)[1]) for one in fleet.server):
        return skipped(f"{own.node} may read what others say, at a server on this machine")
    return failed(f"{own.node} may read what is said in other rooms", fix)


def queue(around: Surroundings) -> Outcome:
    """What waits at the server waits in memory, for one worker each."""
    if why := _none(around):
        return skipped(why)
    fleet = around.settings.fleet
    around.doing("asking for the queue")
    with Probe(fleet, node_name(around.settings)) as probe:
        found = probe.read_queue() if probe.may_see_queue else None
        payload = probe.max_payload
    if payload < MOST_BYTES:
        return failed(
            f"the server takes {payload} bytes at once, a window may have {MOST_BYTES}",
            f"let it have max_payload: 1MB; {AGAIN}",
        )
    if not probe.may_see_queue:
        return skipped(f"{probe.node} is a satellite: only workers may look at the queue")
    if found is None:
        return failed("there is none: a worker makes it", "start a worker's daemon")
    line = (
        f"{found.windows} windows wait, {found.storage}, {found.retention}, "
        f"{found.max_per_subject} for each satellite"
    )
    if found.storage != MEMORY or found.retention != WORK or found.max_per_subject < 1:
        return failed(
            f"{line}; expected {MEMORY}, {WORK} and a limit",
            f"delete the stream {messages.STREAM}: a worker makes it anew",
        )
    return ok(f"{line}; {payload} bytes at once")


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
    Check(SERVER, server, "see fleet.server", within_s=25, needs=NEEDS),
    Check("encryption", encryption, "see fleet.server", needs=NEEDS),
    Check("rights", rights, "see fleet.credential", within_s=15, needs=(*NEEDS, SERVER)),
    Check("queue", queue, AGAIN, within_s=20, needs=(*NEEDS, SERVER)),
    Check("workers", workers, "see fleet.server", within_s=15, needs=(*NEEDS, SERVER)),
    Check(
        "a sentence from afar",
        sentence,
        "see the workers' logs",
        within_s=WITHIN_S + 15,
        needs=(*NEEDS, SERVER, "workers"),
    ),
)
