"""What the appliance says of its update."""

import logging
from pathlib import Path

import pytest

from appliance import build_version
from appliance.daemon.report import VERSION_FILE, note_version


def test_an_update_is_logged_once_and_known_from_then_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert note_version(tmp_path) is None, "the first start is no update"
    assert note_version(tmp_path) is None
    (tmp_path / VERSION_FILE).write_text('{"version": "0.1.0"}')
    found = note_version(tmp_path)
    assert found is not None and found[0] == "0.1.0"
    assert note_version(tmp_path) == found
    assert caplog.messages == [f"updated from 0.1.0 to {build_version()}"]


@pytest.mark.parametrize("text", ["", "[]", '{"version": "1", "from": 2}{', '{"from": "0.1.0"}'])
def test_a_damaged_note_of_the_version_is_written_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / VERSION_FILE).write_text(text)
    assert note_version(tmp_path) is None
    assert note_version(tmp_path) is None
    assert build_version() in (tmp_path / VERSION_FILE).read_text()


def test_without_a_folder_no_version_is_noted(tmp_path: Path) -> None:
    assert note_version(tmp_path / "none") is None
