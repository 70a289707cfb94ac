"""`roomscribe log --follow`: what comes, through restarts and replaced files, until it is ended."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import ROOT
from publishing import transcript

from appliance.config import StoreSettings
from appliance.store.store import Store

PATIENCE_S = 60
Next = Callable[[], str]


@contextmanager
def following(
    settings: StoreSettings, *arguments: str
) -> Iterator[tuple[subprocess.Popen[bytes], Next]]:
    """The running command, and what gives its next line's text."""
    config = Path(settings.path).parent / "house.toml"
    config.write_text(f'[store]\npath = "{settings.path}"\n', encoding="utf-8")
    command = [sys.executable, "-m", "appliance", "log", "--config", str(config), "--follow"]
    with subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        stream, kept = process.stdout.fileno(), bytearray()

        def following_line() -> str:
            until_s = time.monotonic() + PATIENCE_S
            while b"\n" not in kept:
                assert select.select([stream], [], [], max(0.0, until_s - time.monotonic()))[0]
                kept.extend(os.read(stream, 65536))
            line, _, rest = bytes(kept).partition(b"\n")
            kept[:] = rest
            return line.decode().split("%  ", 1)[1]

        try:
            yield process, following_line
        finally:
            process.kill()


@pytest.fixture
def settings(tmp_path: Path) -> StoreSettings:
    return StoreSettings(path=str(tmp_path / "state"))


def test_what_comes_is_shown_through_restarts_and_replaced_files_until_ctrl_c(
    settings: StoreSettings,
) -> None:
    with Store.open(settings) as store:
        store.append(transcript("light before"))
        with following(settings, "--grep", "light") as (process, line):
            assert line() == "light before"
            store.append(transcript("something else"))
            store.append(transcript("light one"))
            assert line() == "light one"
            store.close()
            with Store.open(settings) as restarted:
                restarted.append(transcript("light after a restart"))
                assert line() == "light after a restart"
                for file in Path(settings.path).iterdir():
                    file.unlink()
                restarted.append(transcript("light in a new file"))
                assert line() == "light in a new file"
            for file in Path(settings.path).iterdir():
                file.unlink()
            with Store.open(settings) as anew:
                assert anew.append(transcript("light with new numbers")).seq == 1
                assert line() == "light with new numbers"
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 0
            assert process.stderr is not None
            assert process.stderr.read() == b""


def test_it_ends_quietly_when_nobody_reads_any_more(settings: StoreSettings) -> None:
    with Store.open(settings) as store:
        store.append(transcript("light before"))
        with following(settings) as (process, line):
            assert line() == "light before"
            assert process.stdout is not None
            process.stdout.close()
            assert process.wait(PATIENCE_S) == 0
            assert process.stderr is not None
            assert process.stderr.read() == b""
