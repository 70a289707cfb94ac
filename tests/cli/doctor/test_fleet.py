"""The doctor on several rooms: what is wrong with a server or a worker is told."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rigs.engine import engine_of, served, settings_for
from rigs.fleet import Bus
from rigs.nats import NatsServer
from rigs.needs import needs_fleet

from appliance.cli.doctor import fleet
from appliance.cli.doctor.main import look
from appliance.cli.doctor.outcome import Outcome, Surroundings
from appliance.config import ApplianceSettings, FleetSettings, Settings

pytestmark = needs_fleet
CHECKS = {one.name: one for one in fleet.CHECKS}


def found(name: str, chosen: FleetSettings, node: str = "kitchen") -> Outcome:
    settings = Settings(appliance=ApplianceSettings(node=node), fleet=chosen)
    return look(CHECKS[name], Surroundings(settings))


@contextmanager
def house(folder: Path, role: str = "satellite") -> Iterator[tuple[FleetSettings, Bus]]:
    """[fleet] of the kitchen, and what the worker attic is connected with."""
    engine = engine_of(kitchen=role, attic="worker")
    engine.write(folder / "s", folder / "js")
    context = ssl.create_default_context(cadata=engine.certificate)
    login = {"user": "attic", "password": engine.nodes["attic"].password, "tls": context}
    with (
        served(folder / "s", engine.port) as server,
        Bus(server.url, node="attic", **login) as worker,
    ):
        yield settings_for(engine, "kitchen", folder), worker


def test_a_box_that_is_alone_has_nothing_to_look_at() -> None:
    for name in CHECKS:
        assert found(name, FleetSettings()).status == "skipped"


def test_a_server_that_is_away_or_refuses_is_told_with_the_fix(tmp_path: Path) -> None:
    engine = engine_of(kitchen="satellite")
    engine.write(tmp_path / "s", tmp_path / "js")
    chosen = settings_for(engine, "kitchen", tmp_path)
    away = found("fleet's server", chosen)
    assert (away.status, "no server" in away.found) == ("failed", True)
    assert "systemctl status nats-server" in away.fix
    Path(chosen.credential).unlink()
    lost = found("fleet's server", chosen)
    assert "fleet.credential: expected a file" in lost.found
    assert "roomscribe fleet join" in lost.fix


def test_rights_are_tried_and_a_server_without_users_is_for_this_machine(tmp_path: Path) -> None:
    with house(tmp_path) as (chosen, _):
        well = found("fleet's server", chosen)
        assert (well.status, well.found.split("; ")[2:]) == (
            "ok", ["encrypted", "what is others' is refused"],
        )  # fmt: skip
        lacking = found("fleet's server", replace(chosen, role="worker"))
        assert lacking.found.endswith("; kitchen may not read roomscribe.workers")
        assert "fleet invite kitchen --role worker" in lacking.fix
    with NatsServer() as server:
        plain = FleetSettings(role="satellite", server=server.url)
        assert found("fleet's server", plain).status == "ok"
