"""The log's tests write hundreds of commits: where they can, into memory."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.config import StoreSettings


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory."""
    shared = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        yield Path(folder)


@pytest.fixture
def settings(tmp_path: Path) -> StoreSettings:
    return StoreSettings(path=str(tmp_path / "state"))
