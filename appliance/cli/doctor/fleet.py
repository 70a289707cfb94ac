"""Several rooms together: the server, and what it lets this node do."""

from __future__ import annotations

from appliance.cli.doctor.daemon import is_hidden
from appliance.cli.doctor.outcome import Check, Outcome, Surroundings, failed, ok, skipped
from appliance.config import fleet_server, is_loopback, node_name
from appliance.fleet import Probe, messages

SERVER = "fleet's server"
FOREIGN = "roomscribe.foreign"
CREDENTIAL = "roomscribe.fleet"


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


def _none(around: Surroundings) -> str:
    """Why there is nothing to ask; empty when there is."""
    fleet = around.settings.fleet
    if fleet.role == "alone":
        return "fleet.role is alone"
    if is_hidden(fleet.credential, CREDENTIAL, around.daemon):
        return "the credential is not for this user: sudo roomscribe doctor"
    return ""


NEEDS = ("[fleet]", "[appliance]")
CHECKS = (Check(SERVER, server, "see fleet.server and fleet.credential", within_s=30, needs=NEEDS),)
