"""The daemon and the commands where nothing runs a model, as with the package for a satellite."""

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest
from rigs.bare import PROGRAM
from rigs.checkout import TESTS
from rigs.command import roomscribe, start, text_of
from rigs.daemon import daemon, log_of, write_config
from rigs.nats import NatsServer
from rigs.needs import needs_nats
from rigs.systemd import Systemd
from rigs.transcriber import HEARD
from rigs.waiting import PATIENCE_S, until
from rigs.word_errors import same_words
from rigs.workers import FakeWorker

SENTENCE = TESTS / "speech" / "00.flac"


def run_bare(*arguments: str | Path) -> tuple[int, list[str]]:
    """Exit status of a command, and the lines that it wrote."""
    running = start(
        *arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, program=PROGRAM
    )  # fmt: skip
    said, _ = running.communicate(timeout=PATIENCE_S)
    return running.returncode, said.decode().splitlines()


@needs_nats
def test_without_a_worker_it_says_what_is_missing_and_begins_with_one(
    tmp_path: Path, systemd: Systemd
) -> None:
    config = write_config(tmp_path)
    told = {"NOTIFY_SOCKET": systemd.address}
    sentence = ("--recording", str(SENTENCE))
    with (
        NatsServer() as server,
        FakeWorker(server.url),
        daemon(config, *sentence, environment=told, program=PROGRAM) as running,
    ):
        said = systemd.told("READY=1")
        assert "onnxruntime" in said and "fleet join" in said and "apt install roomscribe" in said
        config.write_text("[appliance\n", encoding="utf-8")
        running.send_signal(signal.SIGHUP)
        assert "onnxruntime" in systemd.told("READY=1")
        write_config(tmp_path, fleet={"role": "satellite", "server": server.url})
        running.send_signal(signal.SIGHUP)
        systemd.told("RELOADING=1")
        assert "listening" in systemd.told("STATUS=listening")
        assert running.wait(PATIENCE_S) == 0, log_of(config)
    lines = [line for line in log_of(config).splitlines() if "onnxruntime" in line]
    assert len(lines) == 2, "told once for each configuration with which nothing is transcribed"
    done = roomscribe("log", "--json", "--config", config)
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == [HEARD.text]


@needs_nats
def test_a_satellite_hears_a_sentence_with_nothing_that_runs_a_model(tmp_path: Path) -> None:
    (tmp_path / "worker").mkdir()
    with NatsServer() as server:
        attic = write_config(
            tmp_path / "worker",
            appliance={"node": "attic"},
            capture={"device": "none"},
            fleet={"role": "worker", "server": server.url},
        )
        config = write_config(tmp_path, fleet={"role": "satellite", "server": server.url})
        with daemon(attic):
            until(lambda: "connected to the fleet's server" in log_of(attic))
            status, said = run_bare("run", "--config", config, "--recording", SENTENCE)
    assert status == 0, said
    text = text_of(roomscribe("log", "--config", config).stdout)
    assert same_words(text, "what is the weather like in chicago")


@pytest.mark.parametrize(
    "arguments",
    [
        ("transcribe", SENTENCE),
        ("benchmark", "--rows", "cpu"),
        ("model", "add", "tiny"),
        ("model", "export", "tiny.en"),
    ],
)
def test_what_needs_a_model_says_in_one_line_what_is_missing(
    tmp_path: Path, arguments: tuple[str | Path, ...]
) -> None:
    status, said = run_bare(*arguments, "--config", write_config(tmp_path))
    assert status == 78, said
    (line,) = said
    assert re.search(r"`(sudo apt install roomscribe|pip install '\.\[)", line), "no fix"


@pytest.mark.parametrize("arguments", [("--help",), ("model", "list"), ("devices", "--help")])
def test_what_needs_none_works(arguments: tuple[str, ...]) -> None:
    status, said = run_bare(*arguments)
    assert status == 0, said


def test_the_doctor_of_a_satellite_misses_no_model_and_that_of_a_box_alone_does(
    tmp_path: Path,
) -> None:
    found = {}
    for role in ("satellite", "alone"):
        config = write_config(tmp_path, fleet={"role": role})
        _, said = run_bare("doctor", "--json", "--config", config)
        found[role] = {one["name"]: one for one in json.loads("\n".join(said))["checks"]}
    for checks in found.values():
        for name in ("model bundle", "self-test on the CPU"):
            assert checks[name]["status"] == "skipped", checks[name]
    assert found["satellite"]["libraries"]["status"] == "ok"
    assert found["alone"]["libraries"]["status"] == "failed"
    assert "apt install roomscribe" in str(found["alone"]["libraries"])
