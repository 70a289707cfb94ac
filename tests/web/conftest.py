"""One page and one tab for the tests of a file."""

from collections.abc import Iterator

import pytest
from rigs.browser import Browser, browser
from rigs.page import Found, house


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as one:
        yield one


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    with house(tmp_path_factory.mktemp("page")) as made:
        yield made
