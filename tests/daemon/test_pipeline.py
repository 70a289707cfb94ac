"""A stage's thread: whatever ends it is known at once."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from appliance.daemon.pipeline import Stage
from appliance.errors import DeviceError


def ended(work: Callable[[Stage], bool]) -> tuple[Stage, bool]:
    """A stage whose work is over, and whether that was told."""
    told = threading.Event()
    stage = Stage("segmenter", work, told.set)
    stage.start()
    stage.join(10)
    return stage, told.is_set()


def test_a_stage_that_was_asked_to_end_has_no_error() -> None:
    stage, told = ended(lambda _: True)
    assert stage.error is None
    assert not told


def test_a_stage_that_ends_by_itself_is_an_error() -> None:
    stage, told = ended(lambda _: False)
    assert told
    assert str(stage.error) == "the segmenter ended by itself; restarting"


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_stage_that_a_library_ends_is_an_error(kind: type[BaseException]) -> None:
    def work(_: Stage) -> bool:
        raise kind("3")

    stage, told = ended(work)
    assert told
    assert isinstance(stage.error, DeviceError)
    assert str(stage.error) == f"the segmenter was ended by {kind.__name__}: 3; restarting"


def test_an_error_is_kept_as_it_is() -> None:
    error = ValueError("strange")

    def work(_: Stage) -> bool:
        raise error

    stage, told = ended(work)
    assert told
    assert stage.error is error
