"""A fleet's server as `roomscribe fleet invite` sets it up, run on loopback."""

import ssl
from pathlib import Path
from typing import Any

from rigs.broker import free_port
from rigs.nats import NatsServer

from appliance.cli.fleet.provisioning import CONFIG, FleetServer
from appliance.config import FleetSettings


def served(folder: Path, port: int, host: str = "127.0.0.1") -> NatsServer:
    """nats-server with the files of a folder; use with `with`."""
    server = NatsServer(scheme="tls", file=folder / CONFIG, port=port)
    server.host = host
    return server


def engine_of(**roles: str) -> FleetServer:
    """A server on a free port of loopback that accepts nodes with these roles."""
    made = FleetServer(("127.0.0.1",), port=free_port())
    for node, role in roles.items():
        made = made.invite(node, role)
    return made.with_certificate()


def settings_for(engine: FleetServer, node: str, folder: Path, **keys: object) -> FleetSettings:
    """[fleet] of a node that was invited."""
    entry = engine.nodes[node]
    folder.mkdir(exist_ok=True)
    certificate, credential = folder / f"{node}.crt", folder / f"{node}.credential"
    certificate.write_text(engine.certificate, encoding="ascii")
    credential.touch(mode=0o600)
    credential.write_text(f'user = "{node}"\npassword = "{entry.password}"\n', encoding="utf-8")
    chosen = {"role": entry.role, "server": engine.addresses[0], "credential": str(credential)}
    return FleetSettings(**{**chosen, "ca": str(certificate), **keys})  # type: ignore[arg-type]


def login_of(engine: FleetServer, node: str) -> dict[str, Any]:
    """How a node logs in, as arguments of nats.connect."""
    context = ssl.create_default_context(cadata=engine.certificate)
    return {"user": node, "password": engine.nodes[node].password, "tls": context}
