"""The spool: what is kept over a crash, what is deleted, that it stops nothing; a window's file."""

import json
import logging
import shutil
import struct
import subprocess
import sys
import zlib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rigs.checkout import ROOT, TESTS
from rigs.needs import needs_memory
from rigs.windows import a_window

from appliance.config import Settings, SpoolSettings
from appliance.daemon import spool as spool_module
from appliance.daemon.health import Health
from appliance.daemon.spool import Spool, pack, parse
from appliance.records import Window
from appliance.store import folders

pytestmark = needs_memory


def opened(folder: Path) -> Spool:
    return Spool.open(Settings(spool=SpoolSettings(path=str(folder))), Health())


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.window*"))


def test_what_is_left_is_found_by_the_next_one_in_order(memory: Path) -> None:
    windows = [a_window() for _ in range(12)]
    with opened(memory) as spool:
        for window in windows:
            assert spool.put(window)
        assert len(files(memory)) == 12
        spool.delete(windows[0].id)
        spool.begin(windows[1].id)
    with opened(memory) as spool:
        assert [kept.id for kept in spool.windows()] == [window.id for window in windows[1:]]
        assert [kept.deaths for kept in spool.windows()][:3] == [1, 0, 0]
        spool.put(later := a_window())
        assert [kept.id for kept in spool.windows()][-1] == later.id
        found = spool.load(windows[5].id)
        assert found is not None
        assert (found.samples == windows[5].samples).all()
        for kept in spool.windows():
            spool.delete(kept.id)
    assert files(memory) == []


def test_only_its_user_may_look_into_it(memory: Path) -> None:
    with opened(memory / "spool") as spool:
        spool.put(a_window())
        assert (memory / "spool").stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in (memory / "spool").iterdir()} == {0o600}


def test_a_transcription_that_ended_is_no_attempt_that_killed(memory: Path) -> None:
    with opened(memory) as spool:
        spool.put(window := a_window())
        spool.begin(window.id)
        spool.mark_survived(window.id)
    with opened(memory) as spool:
        assert [kept.deaths for kept in spool.windows()] == [0]


def test_damage_costs_its_own_window_and_is_said_once(
    memory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(memory) as spool:
        for _ in range(3):
            spool.put(a_window())
    first, second, _ = sorted(memory.glob("*.window"))
    first.write_bytes(first.read_bytes()[:-5])
    second.rename(memory / f"00000002-{'Z' * 26}.window")
    (memory / "00000009-somebody.else").touch()
    (memory / f"00000007-{'Y' * 26}.window").mkdir()
    with caplog.at_level(logging.ERROR), opened(memory) as spool:
        assert len(spool.windows()) == 1
    assert len([record for record in caplog.records if "deleted" in record.message]) == 3
    assert len([name for name in files(memory) if name < "00000004"]) == 1
    assert (memory / "00000009-somebody.else").exists()


def test_a_window_whose_file_is_gone_is_missed_and_nothing_else(memory: Path) -> None:
    with opened(memory) as spool:
        spool.put(window := a_window())
        next(memory.glob("*.window")).unlink()
        assert spool.load(window.id) is None
        spool.begin(window.id)
        spool.mark_survived(window.id)
        spool.delete(window.id)


def test_a_folder_that_is_deleted_is_made_again(memory: Path) -> None:
    with opened(memory / "spool") as spool:
        spool.put(a_window())
        shutil.rmtree(memory / "spool")
        assert spool.put(a_window())
        assert len(files(memory / "spool")) == 1
        with opened(memory / "spool") as second:
            assert not second.put(a_window()), "it is locked again"


def test_nothing_is_kept_on_a_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    if folders.is_in_memory(tmp_path):
        pytest.skip("this machine's temporary folder is in memory")
    with opened(tmp_path / "spool") as spool:
        assert not spool.put(a_window())
    assert not list(tmp_path.rglob("*.window"))
    assert "expected a folder in memory (tmpfs), found one on a disk" in caplog.text


def test_two_daemons_never_share_one(memory: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(memory) as first, opened(memory) as second:
        assert first.put(a_window())
        assert not second.put(a_window())
        assert second.windows() == []
    assert "another daemon uses it" in caplog.text


def test_a_killed_daemon_holds_it_no_longer(memory: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from daemon import test_spool as t;"
        "spool = t.opened(Path(sys.argv[1])); spool.put(t.a_window()); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, memory], env={"PYTHONPATH": f"{TESTS}:{ROOT}"}, check=False
    )
    assert done.returncode == -9
    with opened(memory) as spool:
        assert len(spool.windows()) == 1


def test_another_users_folder_is_not_trusted(memory: Path) -> None:
    (memory / "spool").symlink_to(memory)
    with pytest.raises(PermissionError):
        folders.MemoryFolder(memory / "spool").take()


def test_a_full_folder_is_a_trouble_that_passes(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    health = Health()
    with Spool.open(Settings(spool=SpoolSettings(path=str(memory))), health) as spool:
        with monkeypatch.context() as full:
            full.setattr(spool_module, "write", refuse)
            assert not spool.put(a_window())
        assert "No space left" in health.snapshot().troubles["spool"]
        assert spool.put(a_window())
        assert health.snapshot().troubles == {}


def as_values(window: Window) -> dict[str, Any]:
    values = {entry.name: getattr(window, entry.name) for entry in fields(Window)}
    return values | {"samples": window.samples.tolist()}


def test_a_window_comes_back_with_every_field() -> None:
    window = a_window(index=3, last=False, flags=("gap", "clipped"), overlap_s=0.5)
    window = replace(window, continues=window.utterance_id)
    found, deaths = parse(pack(window))
    assert as_values(found) == as_values(window)
    assert found.samples.dtype == np.int16
    assert deaths == 0


def test_a_file_that_was_cut_anywhere_is_refused() -> None:
    data = pack(a_window(seconds=0.01))
    for length in range(len(data)):
        with pytest.raises(ValueError, match="expected"):
            parse(data[:length])


def test_a_file_that_was_written_and_not_renamed_is_kept_when_it_is_whole(memory: Path) -> None:
    with opened(memory) as spool:
        spool.put(a_window())
        spool.put(a_window())
    whole, torn = sorted(memory.glob("*.window"))
    whole.rename(whole.with_name(whole.name + ".new"))
    torn.write_bytes(torn.read_bytes()[:100])
    torn.rename(torn.with_name(torn.name + ".new"))
    with opened(memory) as spool:
        assert [kept.path for kept in spool.windows()] == [whole]
    assert files(memory) == [whole.name]


def test_a_file_with_other_fields_is_refused() -> None:
    data = pack(a_window())
    length = struct.unpack_from("<I", data, 8)[0]
    body = json.dumps({"flags": [], "mood": "good"}).encode() + data[16 + length :]
    front = struct.pack("<II", len(body) - len(data) + 16 + length, zlib.crc32(body))
    with pytest.raises(ValueError, match="expected a window's fields"):
        parse(data[:8] + front + body)
