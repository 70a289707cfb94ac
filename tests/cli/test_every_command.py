"""What holds for every command: closed streams, a full disk, a reader that goes, odd file names."""

import argparse
import functools
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from rigs.checkout import SPEECH
from rigs.command import roomscribe
from rigs.daemon import write_config
from rigs.publishing import transcript

from appliance.cli.main import parser
from appliance.config import StoreSettings
from appliance.store.store import Store

COMMANDS: dict[str, Callable[[Path], tuple[str | Path, ...]]] = {
    "run": lambda folder: ("--recording", folder / "talk.flac"),
    "setup": lambda _folder: ("--yes", "--node", "!!!"),
    "transcribe": lambda folder: (folder / "talk.flac", folder / "nothing.wav"),
    "devices": lambda _folder: (),
    "log": lambda _folder: ("--csv",),
    "mute": lambda _folder: (),
    "mqtt watch": lambda _folder: (),
    "mqtt forget": lambda _folder: (),
    "model add": lambda folder: (folder / "nothing",),
    "model list": lambda _folder: (),
    "model remove": lambda folder: (folder.name,),
    "model use": lambda folder: (folder / "nothing",),
    "model fit": lambda folder: (folder / "nothing",),
    "model export": lambda folder: (folder / "nothing", "--for", "hailo"),
    "model pack": lambda folder: (folder / "nothing",),
    "model serve": lambda _folder: (),
    # these change the machine, or wait: a wrong option ends them
    "web enable": lambda _folder: ("--no-such-option",),
    "web disable": lambda _folder: ("--no-such-option",),
    "web open": lambda _folder: (),
    "web password": lambda _folder: ("--no-such-option",),
    "web serve": lambda _folder: ("--idle", "0"),
    "web token": lambda _folder: ("--no-such-option",),
    "fleet status": lambda _folder: (),
    "fleet join": lambda _folder: ("--yes", "no-code"),
    "fleet invite": lambda _folder: ("--yes", "--name", "no name"),
    "container run": lambda _folder: ("--no-such-option",),
    "container check": lambda _folder: (),
    "benchmark": lambda folder: ("--checkpoint", folder / "nothing"),
    "doctor": lambda folder: ("--report", folder / "nothing" / "report"),
}
"""Every command with arguments that soon end it, well or not, in a folder with `talk.flac`."""
ODD = os.fsdecode(b"k\xfcche")
"""A folder of somebody whose system was Latin-1 once."""
INTERPRETED = "log"
"""Runs in a new interpreter, so that what rigs.warm does for the others is compared with one."""
CLOSED = {0: None, 1: None, 2: None}
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a configuration, a recording, and a log with one transcript."""
    folder = tmp_path_factory.mktemp("house")
    with Store.open(StoreSettings(path=str(folder / "state"))) as store:
        store.append(transcript("turn on the light"))
    shutil.copy(SPEECH / "00.flac", folder / "talk.flac")
    shutil.copytree(folder, folder / ODD, ignore=lambda _folder, _names: ["state", ODD])
    shutil.copy(write_config(folder), folder / ODD)
    return folder


def typed(command: str, folder: Path) -> tuple[str | Path, ...]:
    """The command line."""
    return (*command.split(), *COMMANDS[command](folder), "--config", folder / "roomscribe.toml")


def ended(
    command: str,
    folder: Path,
    streams: Mapping[int, str | int | None] | None = None,
    more: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """The command's end, its standard streams replaced by `streams`.

    What it says is text and foreseen.
    """
    environment = OFFLINE | {"ROOMSCRIBE_MODELS": str(folder / "models")} | dict(more or {})
    done = roomscribe(
        *typed(command, folder),
        streams=streams,
        environment=environment,
        fresh=command == INTERPRETED,
    )
    assert done.returncode != 70, done.stderr
    assert not re.search("Traceback|unexpected|Exception ignored", done.stderr), done.stderr
    return done


@pytest.mark.parametrize(
    ("typed", "status", "part"),
    [
        ("benchmark --recordings FOLDER", 78, "transcripts.tsv: cannot be read"),
        ("benchmark --rows ,", 78, "expected some of faster-whisper, "),
        (f"benchmark --threads {'9' * 400}", 2, "expected a whole number from 1"),
        ("model fit BUNDLE --recordings FOLDER", 78, "Write it as UTF-8"),
        ("model fit BUNDLE --corrections FOLDER", 78, "Is a directory"),
        ("model fit BUNDLE --corrections FOLDER/deep", 78, "deep, line 1: expected a transcript"),
        (f"setup --yes --node {ODD}", 2, "--node is not UTF-8: k\\xfcche"),
        (f"setup --yes --broker x:{'1' * 5000}", 78, "is not a broker's address"),
        ("setup --yes --password-file FOLDER/none", 2, "add --broker with the broker's address"),
    ],
)
def test_odd_input_is_one_line(
    house: Path, bundle_folder: Path, typed: str, status: int, part: str
) -> None:
    folder = house / "odd"
    folder.mkdir(exist_ok=True)
    (folder / "transcripts.tsv").write_bytes(b"file\ttext\nx.wav\tgr\xfcn\n")
    (folder / "deep").write_text("[" * 100_000, encoding="utf-8")
    config = write_config(folder)
    before = config.read_text(encoding="utf-8")
    typed = typed.replace("FOLDER", str(folder)).replace("BUNDLE", str(bundle_folder))
    done = roomscribe(*typed.split(), "--config", config)
    assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stderr
    *_, last = done.stderr.splitlines()
    assert part in last
    assert config.read_text(encoding="utf-8") == before


def test_every_command_is_tried_here() -> None:
    def leaves(one: argparse.ArgumentParser) -> Iterator[str]:
        below = [a for a in one._actions if isinstance(a, argparse._SubParsersAction)]
        for action in below:
            for each in action.choices.values():
                yield from leaves(each)
        if not below:
            yield one.prog.removeprefix("roomscribe ")

    assert set(leaves(parser())) == set(COMMANDS)


@functools.cache
def usually(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """How the command ends with all streams there."""
    return ended(command, folder)


@pytest.mark.parametrize("command", COMMANDS)
def test_closed_streams_change_nothing(house: Path, command: str) -> None:
    silent = ended(command, house, CLOSED)
    assert silent.returncode == usually(command, house).returncode
    assert (silent.stdout, silent.stderr) == ("", "")
    with Store.open(StoreSettings(path=str(house / "state")), read_only=True) as store:
        assert store.read_after(0)[0].transcript.text == "turn on the light"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_is_one_line(house: Path, command: str) -> None:
    usual = usually(command, house)
    full = ended(command, house, {0: None, 1: "/dev/full"})
    message = "roomscribe: standard output cannot be written: No space left on device"
    assert full.returncode == (74 if usual.stdout else usual.returncode)
    assert full.stderr.count(message) == bool(usual.stdout)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_that_goes_is_no_error(house: Path, command: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = ended(command, house, {1: writer})
    finally:
        os.close(writer)
    assert done.returncode in {0, usually(command, house).returncode}
    assert "roken pipe" not in done.stderr, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_names_that_are_not_utf_8_are_taken_and_shown(house: Path, command: str) -> None:
    usual = usually(command, house)
    odd = ended(command, house / ODD)
    assert odd.returncode == usual.returncode, odd.stderr
    if re.search(f"{house}/no(thing|where)", usual.stdout + usual.stderr):
        assert re.search(r"k\\(x|udc)fcche/no(thing|where)", odd.stdout + odd.stderr)
    if (odd.stdout + odd.stderr).isascii() and command != INTERPRETED:
        return  # an ASCII terminal shows the same
    more = {"PYTHONUTF8": "0"} if command == INTERPRETED else {}
    plain = ended(command, house / ODD, more={"PYTHONIOENCODING": "ascii", **more})
    assert plain.returncode == usual.returncode
    assert (plain.stdout + plain.stderr).isascii()
