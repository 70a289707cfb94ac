"""Life under systemd: what the daemon tells it, and what it does when asked to reload or stop."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rigs.broker import free_port
from rigs.checkout import ROOT, environment
from rigs.daemon import daemon, end, log_of, write_config
from rigs.systemd import Systemd
from rigs.waiting import PATIENCE_S, until

from appliance import system
from appliance.config import Settings, VoiceSettings
from appliance.daemon import lifecycle
from appliance.daemon.health import Health
from appliance.errors import DeviceError
from appliance.records import ApplianceState


@contextmanager
def deaf_daemon(
    config: Path, systemd: Systemd, *arguments: str, sound: str = os.devnull
) -> Iterator[subprocess.Popen[bytes]]:
    """`roomscribe run` on a machine without a microphone; `sound` is its standard input."""
    alsa = config.parent / "asound.conf"
    alsa.write_text(
        "</usr/share/alsa/alsa.conf>\npcm.!default { type hw card 31 }\n", encoding="utf-8"
    )
    told = {"NOTIFY_SOCKET": systemd.address, "ALSA_CONFIG_PATH": str(alsa)}
    with (
        Path(sound).open("rb") as stdin,
        daemon(config, *arguments, stdin=stdin, environment=told) as running,
    ):
        yield running


class SilentPipeline:
    """What an Announcer sees of a pipeline whose microphone is open and has given no sound yet."""

    def __init__(self) -> None:
        self.sounding = threading.Event()
        self.health = Health()
        self.microphone_online = True

    def state(self) -> ApplianceState:
        return ApplianceState(
            status="running",
            reasons=tuple(self.health.snapshot().troubles.values()),
            encoder="hailo8",
            model="tiny",
            model_title="Whisper tiny",
            microphone="a microphone",
            microphone_online=self.microphone_online,
            queue_depth=0,
            uptime_s=1.0,
            version="1",
        )

    def broker_reasons(self) -> tuple[str, ...]:
        return ("broker is away",)


def test_ready_is_told_when_sound_has_come_and_not_before(
    systemd: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", systemd.address)
    pipeline = SilentPipeline()
    announcer = lifecycle.Announcer(pipeline, 0.0, before=2)  # type: ignore[arg-type]
    announcer.announce()
    assert systemd.everything() == []
    pipeline.sounding.set()
    announcer.announce()
    status = "STATUS=listening, 2 transcripts, NPU; broker is away"
    assert systemd.everything() == ["READY=1", status]
    announcer.announce()
    assert systemd.everything() == [], "nothing is told twice"
    pipeline.health.count("transcripts", 128)
    announcer.announce()
    assert systemd.everything() == [status.replace(" 2 ", " 130 ")]


class Tasks:
    """/proc/self/task with one thread."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._file = folder, folder / "100" / "schedstat"
        self._file.parent.mkdir()
        self.wait(0)

    def wait(self, seconds: float) -> None:
        """The thread has waited for a processor for so long in all."""
        self._file.write_text(f"5000 {seconds * 1e9:.0f} 7\n", encoding="ascii")


def test_time_in_which_others_had_the_processors_is_missed(tmp_path: Path) -> None:
    tasks = Tasks(tmp_path)
    missed = lifecycle.MissedTime(tasks.folder)
    missed.measure(60)
    assert missed.within_s(60) == 0
    tasks.wait(0.0001)
    missed.measure(60)
    assert missed.within_s(60) == pytest.approx(0.0001)
    assert missed.within_s(0) == 0
    tasks.wait(PATIENCE_S)  # no more than what has passed
    missed.measure(60)
    assert missed.within_s(60) < 60
    shutil.rmtree(tasks.folder)
    missed.measure(60)


def test_time_in_which_the_process_was_stopped_is_missed(tmp_path: Path) -> None:
    missed = lifecycle.MissedTime(tmp_path / "none")
    missed.measure(-2)  # was to come 2 s ago
    missed.measure(-3)
    passed_s = missed.within_s(60)
    assert 0 < passed_s < 60, "not more than has passed"


def test_a_stage_is_stuck_only_if_it_could_have_run(tmp_path: Path) -> None:
    pipeline = SimpleNamespace(idle_s=lambda: (30.0, "encoder"))
    announcer = lifecycle.Announcer(pipeline, time.monotonic(), 25.0)  # type: ignore[arg-type]
    announcer._missed = SimpleNamespace(measure=lambda _: None, within_s=lambda last_s: last_s / 3)  # type: ignore[assignment]
    announcer.feed()
    announcer._missed.within_s = lambda last_s: last_s / 10  # type: ignore[method-assign]
    with pytest.raises(DeviceError, match="the encoder has been stuck for 30 s"):
        announcer.feed()
    lifecycle.Announcer(pipeline, time.monotonic() - 20).feed()  # type: ignore[arg-type]


def test_a_daemon_without_a_microphone_is_ready_and_says_what_it_waits_for(
    tmp_path: Path, systemd: Systemd
) -> None:
    with deaf_daemon(write_config(tmp_path), systemd) as running:
        systemd.told("READY=1")
        assert systemd.told("STATUS=").startswith(
            "STATUS=waiting for a microphone, 0 transcripts, CPU; no microphone found"
        )
        running.send_signal(signal.SIGTERM)
        assert systemd.told("STOPPING=1")
        assert running.wait(PATIENCE_S) == 0


def test_a_reload_uses_a_changed_configuration_in_the_same_process(
    tmp_path: Path, systemd: Systemd
) -> None:
    config = write_config(tmp_path)
    with deaf_daemon(config, systemd, "--recording", "-", sound="/dev/zero") as running:
        systemd.told("READY=1")
        write_config(tmp_path, capture={"silence_s": 20}, store2={"path": ""})
        running.send_signal(signal.SIGHUP)
        assert "\nMONOTONIC_USEC=" in systemd.told("RELOADING=1")
        systemd.told("READY=1")
        assert systemd.told("STATUS=").startswith("STATUS=the configuration on the disk is wrong")
        write_config(tmp_path)
        running.send_signal(signal.SIGHUP)
        systemd.told("RELOADING=1")
        systemd.told("READY=1")
        write_config(tmp_path, voice={"open_score": 0.6})
        running.send_signal(signal.SIGHUP)
        systemd.told("RELOADING=1")
        systemd.told("READY=1")
        assert running.poll() is None
    log = log_of(config)
    assert "unknown section [store2]; did you mean store?" in log
    assert log.count("ERROR") == 1
    assert "the configuration is the one in use" in log
    assert "the configuration has changed: starting again with it" in log
    assert log.count("listening to") == 2


def test_a_signal_may_come_at_any_moment() -> None:
    """Among them those in which the main thread holds what a handler may not wait for."""
    waiting = (
        "from appliance.daemon.lifecycle import Signals\n"
        "signals, reloads = Signals(), 0\n"
        "print(flush=True)\n"
        "while not signals.wait_for_stop(0.0003):\n"
        "    reloads += signals.reload\n"
        "    signals.reload = False\n"
        "print(reloads)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", waiting],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout
        running.stdout.readline()
        for _ in range(3000):
            running.send_signal(signal.SIGHUP)
            time.sleep(0.0004)
        running.send_signal(signal.SIGTERM)
        try:
            heard, _ = running.communicate(timeout=PATIENCE_S)
        finally:
            running.kill()
    assert running.returncode == 0
    assert int(heard) > 100


def test_a_reload_reads_the_expected_sentences_again(tmp_path: Path, systemd: Systemd) -> None:
    sentences = tmp_path / "sentences.toml"
    sentences.write_text('[phrases]\na = ["stop"]\n')
    config = write_config(tmp_path, phrases={"file": str(sentences)})
    with deaf_daemon(config, systemd, "--recording", "-", sound="/dev/zero") as running:
        systemd.told("READY=1")
        for content in ('[phrases]\na = ["go on"]\n', '[phrases]\na = ["stop!"]\n'):
            sentences.write_text(content)
            running.send_signal(signal.SIGHUP)
            systemd.told("RELOADING=1")
            systemd.told("READY=1")
        assert systemd.told("STATUS=").startswith("STATUS=the configuration on the disk is wrong")
        assert running.poll() is None
    log = log_of(config)
    assert log.count(f"starting again with the sentences of {sentences}") == 1
    assert log.count("ERROR") == 1
    assert f"{sentences}: phrases.a, sentence 1: expected letters" in log
    assert "going on with the configuration that was read before" in log


def test_a_reload_to_a_missing_model_goes_on_with_the_old_configuration(
    tmp_path: Path, systemd: Systemd
) -> None:
    config = write_config(tmp_path)
    with deaf_daemon(config, systemd, "--recording", "-", sound="/dev/zero") as running:
        systemd.told("READY=1")
        write_config(tmp_path, model={"bundle": "nowhere"})
        running.send_signal(signal.SIGHUP)
        systemd.told("RELOADING=1")
        systemd.told("READY=1")
        end(running)
    (told,) = [line for line in log_of(config).splitlines() if "ERROR" in line]
    assert "nowhere" in told
    assert told.endswith("going on with the configuration that was read before")


def footprint(pid: int) -> tuple[int, int, float]:
    """Threads, descriptors, and megabytes of memory that are the process's own."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    anonymous_mb = int(status.partition("RssAnon:")[2].split()[0]) / 1024
    threads = int(status.partition("Threads:")[2].split()[0])
    return threads, len(list(Path(f"/proc/{pid}/fd").iterdir())), anonymous_mb


def test_a_reload_frees_what_the_pipeline_before_it_took(tmp_path: Path, systemd: Systemd) -> None:
    served = {"enabled": True, "listen": "127.0.0.1", "port": free_port()}
    config = write_config(tmp_path, wyoming=served)
    with deaf_daemon(config, systemd, "--recording", "-", sound="/dev/zero") as running:
        systemd.told("READY=1")
        for number in range(8):
            write_config(tmp_path, voice={"open_score": 0.51 + number / 100}, wyoming=served)
            running.send_signal(signal.SIGHUP)
            systemd.told("RELOADING=1")
            systemd.told("READY=1")
            if number == 0:
                threads, descriptors, memory_mb = footprint(running.pid)
        # a pipeline has 3 threads of ONNX Runtime, 3 descriptors and 30 MB
        until(lambda: footprint(running.pid)[0] < threads + 3)
        until(lambda: footprint(running.pid)[1] < descriptors + 3)
        assert footprint(running.pid)[2] < memory_mb + 15
    assert log_of(config).count("starting again with it") == 8


def test_a_reload_that_is_asked_for_while_the_pipeline_stops_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stopping:
        """A pipeline whose control socket acknowledges a reload while it stops."""

        def __init__(self) -> None:
            self.reload, self.health = threading.Event(), Health()
            self.health.count("transcripts", 3)

        def start(self) -> None:
            """Starts nothing."""

        def stop(self) -> None:
            self.reload.set()

        def check(self) -> None:
            """Nothing has failed."""

    first, second = Settings(), Settings(voice=VoiceSettings(open_score=0.6))
    monkeypatch.setattr(lifecycle, "_open", lambda wanted, *_: (wanted, Stopping()))
    monkeypatch.setattr(lifecycle, "Announcer", lambda *_: None)
    monkeypatch.setattr(lifecycle.Process, "_supervise", lambda *_: second)
    signals = SimpleNamespace(reload=False)
    process = lifecycle.Process(cast("lifecycle.Signals", signals), Settings, cast("Any", None), 1)
    process.counted["transcripts"] = 2
    assert (*process.run_once(first, first), signals.reload) == (first, second, True)
    assert process.counted == {"transcripts": 5}


def test_a_reload_does_not_raise_the_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    found_mb = iter((500.0, 900.0, 700.0))
    monkeypatch.setattr(lifecycle, "memory_ceiling_mb", lambda: next(found_mb))
    limits = lifecycle.Process(cast("Any", None), Settings, cast("Any", None), 1)
    assert [limits.limit_mb("tiny.en") for _ in range(3)] == [500, 500, 500]
    assert limits.limit_mb("base") == 900, "another model may need more"
    assert limits.limit_mb("tiny.en") == 500


DYING = """
import functools, sys
from appliance.cli import main, run
from appliance.daemon.assembly import Factories, build
from appliance.daemon.pipeline import Pipeline
from rigs.sources import FakeSource, silence

def dies():
    frames = silence()
    for _ in range(3):
        yield next(frames)
    {effect}

def pipeline(settings):
    return Pipeline(build(settings, Factories(source=lambda *_: FakeSource(dies()))))

sys.exit(main.main(command=functools.partial(run.run, pipeline=pipeline)))
"""


@pytest.mark.parametrize(
    ("effect", "line"),
    [
        ("sys.exit(3)", "roomscribe: the capture was ended by SystemExit: 3; restarting"),
        ("return", "roomscribe: the capture ended by itself; restarting"),
        ("raise ValueError('strange')", "roomscribe: unexpected ValueError: strange"),
    ],
)
def test_a_thread_that_dies_ends_the_daemon_with_its_cause(
    tmp_path: Path, effect: str, line: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DYING.format(effect=effect), "run", "--config",
         str(write_config(tmp_path))],
        cwd=ROOT, env=environment(), capture_output=True, text=True, check=False,
        timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode in (69, 70)
    assert done.stderr.splitlines()[-1] == line


def test_too_much_memory_ends_the_daemon_in_order_and_says_so(tmp_path: Path) -> None:
    small = "from appliance.daemon import lifecycle\nlifecycle.memory_ceiling_mb = lambda: 20.0\n"
    program = small + DYING.format(effect="yield from frames")
    done = subprocess.run(
        [sys.executable, "-c", program, "run", "--config", str(write_config(tmp_path))],
        cwd=ROOT, env=environment(), capture_output=True, text=True, check=False,
        timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 69
    assert done.stderr.splitlines()[-1].startswith("roomscribe: memory: expected at most 20 MB")


def test_the_ceiling_of_memory_leaves_room_to_work_and_stays_below_systemds(tmp_path: Path) -> None:
    page_mb = os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    group = tmp_path / "sys/fs/cgroup/system.slice/roomscribe.service"
    (tmp_path / "proc/self").mkdir(parents=True)
    group.mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/system.slice/roomscribe.service\n")
    (tmp_path / "proc/self/statm").write_text(f"900000 {int(200 / page_mb)} 100 1 0 500 0\n")
    expected = {"max": 600.0, str(1000 << 20): 600.0, str(500 << 20): 450.0, str(100 << 20): 300.0}
    for limit, ceiling_mb in expected.items():
        (group / "memory.high").write_text(limit + "\n")
        assert system.memory_ceiling_mb(tmp_path) == pytest.approx(ceiling_mb)
    assert system.memory_ceiling_mb(tmp_path / "nowhere") >= 0
    assert 5 < system.resident_mb() < 100_000
