"""A model is added by a process of another user's, asked over a socket."""

import json
import shlex
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from rigs.adder import adder
from rigs.hub import Fault, LocalHub, local_hub
from rigs.models import random_weights, sized, write_checkpoint
from rigs.waiting import PATIENCE_S, until

from appliance.cli import model_serve
from appliance.daemon.model_install import InstallProgress, ModelInstaller

SMALL = sized(16, (1, 1), 2, 140, 500, 60)


@dataclass
class Desk:
    """A hub, a models folder, and where models are asked for."""

    hub: LocalHub
    models: Path
    place: Path
    size: int
    """Of its weights."""

    def environment(self) -> dict[str, str]:
        return self.hub.environment() | {"ROOMSCRIBE_MODELS": str(self.models)}


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    checkpoint = write_checkpoint(tmp_path / "whisper-home", SMALL, random_weights(SMALL, 6))
    with local_hub() as hub:
        hub.add_folder("openai/whisper-tiny", checkpoint)
        size = (checkpoint / "model.safetensors").stat().st_size
        yield Desk(hub, tmp_path / "models", tmp_path / "asked", size)


def test_a_model_is_added_and_what_is_done_is_told(desk: Desk) -> None:
    installer = ModelInstaller(desk.place)
    assert not installer.is_available
    told: list[InstallProgress | None] = []

    def poll() -> bool:
        running, last = installer.poll()
        told.append(last)
        return not running

    with adder(desk.place, desk.environment()):
        assert installer.is_available
        assert installer.start("tiny")
        assert not installer.start("base"), "one at a time"
        until(poll)
    assert told[-1] is None
    assert (desk.models / "tiny" / "bundle.json").is_file()
    assert {one.name for one in told if one} == {"tiny"}
    assert any("verifying" in one.doing for one in told if one)


def test_a_closed_page_delays_nothing_and_hears_of_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()

    def report() -> None:
        for number in range(1000):
            model_serve.show({"doing": f"converting, {number} %"})
        print(json.dumps({"added": "tiny"}), flush=True)

    with ours, theirs, ours.makefile("w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        thread = threading.Thread(target=report, daemon=True)
        thread.start()
        thread.join(PATIENCE_S)
        monkeypatch.undo()
        assert not thread.is_alive()
        lines = theirs.recv(1 << 20, socket.MSG_DONTWAIT).decode().splitlines()
    assert len(lines) < 250
    assert json.loads(lines[0])["doing"].endswith(" 0 %")
    assert json.loads(lines[-1]) == {"added": "tiny"}


def test_one_that_is_cancelled_ends_at_once_and_goes_on_later(desk: Desk) -> None:
    faults = [Fault(break_after=desk.size // 2), *[Fault(status=503)] * 20]
    desk.hub.misbehave("model.safetensors", *faults)
    installer = ModelInstaller(desk.place)
    with adder(desk.place, desk.environment()) as begun:
        installer.start("tiny")
        until(lambda: "again in" in (installer.poll()[1] or InstallProgress("")).doing)
        assert installer.cancel()
        assert begun[0].wait(PATIENCE_S) == 143
        assert installer.poll() == (False, None)
        assert not installer.cancel()
    part = desk.models / ".work" / "tiny" / "checkpoint" / "model.safetensors.part"
    assert 0 < part.stat().st_size <= desk.size // 2
    assert not (desk.models / "tiny").exists()


def test_a_hub_that_does_not_answer_is_one_sentence_for_the_page(desk: Desk) -> None:
    installer = ModelInstaller(desk.place)
    with adder(desk.place, desk.environment() | {"HF_ENDPOINT": "http://127.0.0.1:9"}):
        installer.start("tiny")
        until(lambda: not installer.poll()[0])
        _, last = installer.poll()
    assert last is not None
    assert last.error.startswith("No connection to the model hub.")
    assert "HF_ENDPOINT" not in last.error


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ('print(\'{"error": "no room; make some"}\')', "no room; make some"),
        ("pass", "it stopped early; `journalctl -u 'roomscribe-models@*'` may show why"),
        ("print('x' * 99); print('[1]'); print('{\"doing\": 1}')", "it stopped early"),
        ("print('x' * 200_000, end='')", "it stopped early"),
    ],
)
def test_one_that_fails_says_why_until_the_next_is_asked_for(
    tmp_path: Path, program: str, error: str
) -> None:
    installer = ModelInstaller(tmp_path / "asked")
    with adder(installer.path, {}, (sys.executable, "-c", program)):
        installer.start("tiny")
        until(lambda: not installer.poll()[0])
        _, last = installer.poll()
        assert last is not None
        assert (last.name, last.error[: len(error)]) == ("tiny", error)
        assert installer.start("small")
        until(lambda: not installer.poll()[0])


def test_in_a_container_the_daemon_starts_the_program_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = 'read name; echo "{\\"error\\": \\"no room for $name\\"}"'
    monkeypatch.setenv("ROOMSCRIBE_MODELS_COMMAND", shlex.join(["sh", "-c", told]))
    installer = ModelInstaller(tmp_path / "asked")
    assert installer.is_available and installer.start("tiny")
    until(lambda: not installer.poll()[0])
    assert installer.poll() == (False, InstallProgress("tiny", error="no room for tiny"))


def test_without_somebody_who_listens_it_is_an_error_that_leaves_nothing_open(
    tmp_path: Path,
) -> None:
    installer = ModelInstaller(tmp_path / "asked")
    with pytest.raises(FileNotFoundError):
        installer.start("tiny")
    assert installer.poll() == (False, None)
