"""A Home Assistant of the tests."""

from collections.abc import Iterator

import pytest
from rigs.home_websocket import Hub


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as running:
        yield running
