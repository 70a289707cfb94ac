"""A function in a process of its own: what it sends, how it dies, and that nothing stays."""

import os
import signal
import subprocess
import time
from multiprocessing.connection import Connection
from typing import Literal

import pytest
from rigs.command import is_gone
from rigs.waiting import PATIENCE_S, until

from appliance.lab.child import Child, ChildDiedError, ChildFailedError

STARTS: tuple[Literal["spawn", "fork"], ...] = ("spawn", "fork")


def _adds(connection: Connection, one: int, other: int) -> int:
    connection.send("begun")
    return one + other


def _raises(_: Connection) -> None:
    raise ValueError("not\nthis")


def _dies(_: Connection, number: int) -> None:
    print("the last word")
    os.kill(os.getpid(), number)


def _is_asked_to_stop(_: Connection, number: int) -> str:
    os.kill(os.getpid(), number)
    return "went on"


def _ends(_: Connection) -> None:
    os._exit(3)


def _sleeps(connection: Connection) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    connection.send(subprocess.Popen(["sleep", "600"]).pid)
    time.sleep(600.0)


@pytest.mark.parametrize("start", STARTS)
def test_a_child_sends_messages_and_its_result(start: Literal["spawn", "fork"]) -> None:
    with Child(_adds, 2, 3, start=start) as child:
        assert child.receive(PATIENCE_S) == "begun"
        assert child.receive(PATIENCE_S) == 5
        with pytest.raises(ChildDiedError, match="status 0"):
            child.receive(PATIENCE_S)


@pytest.mark.parametrize("start", STARTS)
def test_what_a_child_raises_is_told(start: Literal["spawn", "fork"]) -> None:
    with (
        Child(_raises, start=start) as child,
        pytest.raises(ChildFailedError, match="ValueError: not this"),
    ):
        child.receive(PATIENCE_S)


@pytest.mark.parametrize("start", STARTS)
def test_how_a_child_died_is_told_with_its_last_words(start: Literal["spawn", "fork"]) -> None:
    with Child(_dies, signal.SIGKILL, start=start) as child:
        with pytest.raises(ChildDiedError, match="SIGKILL") as death:
            child.receive(PATIENCE_S)
        assert (death.value.number, death.value.printed) == (9, "the last word\n")
    with Child(_ends, start=start) as child, pytest.raises(ChildDiedError, match="status 3"):
        child.receive(PATIENCE_S)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_child_ends_by_the_usual_signals(
    start: Literal["spawn", "fork"], number: signal.Signals
) -> None:
    with (
        Child(_is_asked_to_stop, number, start=start) as child,
        pytest.raises(ChildDiedError, match=number.name),
    ):
        child.receive(PATIENCE_S)


@pytest.mark.parametrize("start", STARTS)
def test_a_child_that_takes_too_long_ends_with_all_that_it_started(
    start: Literal["spawn", "fork"],
) -> None:
    with Child(_sleeps, start=start) as child:
        grandchild = child.receive(PATIENCE_S)
        with pytest.raises(TimeoutError):
            child.receive(0.3)
    until(lambda: is_gone(grandchild))
