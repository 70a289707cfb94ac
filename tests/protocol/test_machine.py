"""The real store, spool, backlog, publisher, satellite and workers keep the guarantees."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from protocol import seeded
from protocol.fleet import FleetMachine
from protocol.guarantees import Guarantees
from protocol.machine import BrokerMachine, DeliveryMachine, HomeAssistantMachine
from rigs.needs import needs_memory

pytestmark = needs_memory
STEPS = 30


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def budget(default: int) -> settings:
    """`default` runs of the machine, or ROOMSCRIBE_STEPS times as many; the same ones each time."""
    return settings(
        max_examples=default * int(os.environ.get("ROOMSCRIBE_STEPS", "1")),
        stateful_step_count=STEPS,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.parametrize(
    ("machine", "runs"), [(DeliveryMachine, 60), (FleetMachine, 30), (HomeAssistantMachine, 20)]
)
def test_random_steps_break_no_guarantee(machine: type[Guarantees], runs: int) -> None:
    run_state_machine_as_test(machine, settings=budget(runs))


STEP: dict[str, Callable[[Any], None]] = {
    "hear": lambda machine: machine.hear(),
    "speculate": lambda machine: machine.speculate(),
    "go on": lambda machine: machine.go_on_speaking(),
    "lease": lambda machine: machine.lease(),
    "write": lambda machine: machine.transcribe(speech=True),
    "nothing": lambda machine: machine.transcribe(speech=False),
    "crash": lambda machine: machine.crash(),
    "crash after the commit": lambda machine: machine.crash_while_storing(tear=None),
    "crash before the commit": lambda machine: machine.crash_while_storing(tear=0.0),
    "crash in the commit": lambda machine: machine.crash_while_storing(tear=0.5),
    "restart": lambda machine: machine.restart(),
    "power": lambda machine: machine.power_fails(),
    "lie": lambda machine: machine.disk_lies(),
    "mute": lambda machine: machine.mute(),
    "unmute": lambda machine: machine.unmute(),
    "repeat": lambda machine: machine.broker_repeats(),
    "leave": lambda machine: machine.subscriber_leaves(),
    "return": lambda machine: machine.subscriber_returns(),
    "refuse": lambda machine: machine.disk_refuses(late=True),
    "accept": lambda machine: machine.disk_accepts(),
    "delete": lambda machine: machine.delete(which=0),
    "expire": lambda machine: machine.retention_after_a_jump(old=True),
    "pause": lambda machine: machine.wait(seconds=3.0),
    "go": lambda machine: machine.fleet_goes_on(),
    "fetch": lambda machine: machine.worker_fetches(),
    "answer": lambda machine: machine.worker_answers(which=0),
    "confirm": lambda machine: machine.worker_confirms(which=0),
    "die": lambda machine: machine.worker_dies(which=0),
    "arrive": lambda machine: machine.answer_arrives(which=0),
    "double": lambda machine: machine.answer_is_doubled(which=0),
    "lose answer": lambda machine: machine.answer_is_lost(which=0),
    "reconnect": lambda machine: machine.satellite_reconnects(),
    "server": lambda machine: machine.server_restarts(),
    "wait": lambda machine: machine.wait(seconds=7.0),
    "long": lambda machine: machine.wait(seconds=301.0),
    "read": lambda machine: machine.broker_reads(),
    "not take": lambda machine: machine.broker_refuses(),
    "ack": lambda machine: machine.acknowledge(),
    "lose ack": lambda machine: machine.acknowledgement_is_lost(),
    "get": lambda machine: machine.subscriber_reads(),
    "break": lambda machine: machine.connection_breaks(),
    "broker": lambda machine: machine.broker_stops_or_starts(),
    "swallow": lambda machine: machine.network_swallows(),
}
"""What may happen, by a short name."""


def play(story: str, kind: type[BrokerMachine] = DeliveryMachine) -> None:
    """Let the steps of a story happen, separated by commas, and check each of them."""
    machine = kind()
    try:
        for step in story.split(", "):
            STEP[step](machine)
            machine.check()
        machine._recover()
    finally:
        machine.close()


WINDOW = "hear, lease, write"
STORIES = {
    "a window that was stored when the process died is not stored again after its deletion":
        "hear, lease, crash after the commit, delete",
    "a transcript that is deleted from the fallback does not come back with the file":
        "hear, lease, refuse, write, crash, accept, delete, restart",
    "a transcript that was deleted unpublished does not come back with the log in memory":
        "broker, hear, lease, write, delete, refuse, hear, lease, write",
}  # fmt: skip
"""What the machine has found wrong."""


@pytest.mark.parametrize("name", STORIES)
def test_a_fault_that_was_found_stays_mended(name: str) -> None:
    play(STORIES[name])


SEEDED: dict[Callable[[pytest.MonkeyPatch], None], tuple[str, str]] = {
    seeded.move_cursor_before_the_acknowledgement: ("once", f"{WINDOW}, break, wait, crash"),
    seeded.never_mark_as_late: ("once", f"{WINDOW}, read, get, break, wait, read, get"),
    seeded.publish_the_newest_first: (
        "order",
        f"{WINDOW}, {WINDOW}, {WINDOW}, read, ack",
    ),
    seeded.publish_from_a_cache: ("deletion", f"{WINDOW}, delete, break, wait"),
    seeded.do_not_spool: ("owner", "hear, crash"),
    seeded.leave_the_spool_at_the_start: ("delivery", "hear, crash"),
    seeded.forget_what_is_refused: ("once", f"{WINDOW}, {WINDOW}, not take, read, ack, long"),
    seeded.retain_by_the_wall_clock: ("retention", f"broker, {WINDOW}, expire"),
    seeded.forget_the_deaths: ("owner", "hear" + ", lease, crash" * 5),
    seeded.forget_the_mute: ("mute", "mute, crash"),
    seeded.do_not_sync_the_folder: ("mute", "mute, power"),
}
"""The guarantee that a fault in the code violates, and the story that shows it."""


@pytest.mark.parametrize("fault", SEEDED, ids=lambda fault: fault.__name__)
def test_a_fault_in_the_code_is_found_and_named(
    fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    guarantee, story = SEEDED[fault]
    play(story)
    fault(monkeypatch)
    with pytest.raises(AssertionError, match=rf"^\[{guarantee}\]"):
        play(story)


SENT = "hear, lease"


def test_an_answer_for_another_window_is_found_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    story = f"hear, {SENT}, fetch, answer, double, arrive, lease, arrive"
    play(story, kind=FleetMachine)
    seeded.take_any_answer(monkeypatch)
    with pytest.raises(AssertionError, match=r"^\[own text\]"):
        play(story, kind=FleetMachine)


def test_an_answer_counts_that_arrives_between_two_sendings() -> None:
    play(f"{SENT}, fetch, answer, crash, lease, arrive", kind=FleetMachine)
