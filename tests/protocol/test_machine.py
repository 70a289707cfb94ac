"""The real store, spool, backlog and publisher keep the guarantees."""

import logging
import os
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from protocol.guarantees import Guarantees
from protocol.machine import DeliveryMachine, HomeAssistantMachine
from rigs.needs import needs_memory

from appliance.daemon.spool import Spool
from appliance.mqtt import events

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


@pytest.mark.parametrize(("machine", "runs"), [(DeliveryMachine, 60), (HomeAssistantMachine, 20)])
def test_random_steps_break_no_guarantee(machine: type[Guarantees], runs: int) -> None:
    run_state_machine_as_test(machine, settings=budget(runs))


STEP: dict[str, Callable[[DeliveryMachine], None]] = {
    "hear": lambda machine: machine.hear(),
    "lease": lambda machine: machine.lease(),
    "write": lambda machine: machine.transcribe(speech=True),
    "crash": lambda machine: machine.crash(),
    "crash after the commit": lambda machine: machine.crash_while_storing(tear=None),
    "restart": lambda machine: machine.restart(),
    "refuse": lambda machine: machine.disk_refuses(late=True),
    "accept": lambda machine: machine.disk_accepts(),
    "delete": lambda machine: machine.delete(which=0),
    "broker": lambda machine: machine.broker_stops_or_starts(),
    "break": lambda machine: machine.connection_breaks(),
    "wait": lambda machine: machine.wait(seconds=7.0),
    "read": lambda machine: machine.broker_reads(),
    "get": lambda machine: machine.subscriber_reads(),
}
"""What may happen, by a short name."""


def play(story: str) -> None:
    """Let the steps of a story happen, separated by commas, and check each of them."""
    machine = DeliveryMachine()
    try:
        for step in story.split(", "):
            STEP[step](machine)
            machine.check()
        machine._recover()
    finally:
        machine.close()


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


def test_the_checks_find_a_lost_window_and_a_repeated_text(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = events.transcript
    with monkeypatch.context() as patch:
        patch.setattr(Spool, "put", lambda *_: False)
        with pytest.raises(AssertionError, match=r"^\[owner\]"):
            play("hear, crash")
    monkeypatch.setattr(
        events, "transcript", lambda one, node, now, _late: plain(one, node, now, False)
    )
    with pytest.raises(AssertionError, match=r"^\[once\]"):
        play("hear, lease, write, read, get, break, wait, read, get")
