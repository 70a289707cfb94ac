"""A store for the tests of the publisher."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.config import StoreSettings
from appliance.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(StoreSettings(path=str(tmp_path / "state"))) as opened:
        yield opened
