"""The stages: whatever ends one is known at once, none waits for a later one, and one that stands
still is named and starves the watchdog.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Full
from typing import Any

import numpy as np
import pytest
from rigs.broker import free_port
from rigs.needs import needs_memory
from rigs.recordings import sentences
from rigs.sources import FakeSource, silence
from rigs.systemd import Systemd
from rigs.transcriber import HEARD, FakeEncoder, FakeTranscriber
from rigs.waiting import PATIENCE_S, until
from rigs.windows import NO_FOLDER, a_window
from rigs.wyoming import Talk, sound_of

from appliance.config import (
    ApplianceSettings,
    CaptureSettings,
    MqttSettings,
    Settings,
    SpoolSettings,
    StoreSettings,
    WyomingSettings,
)
from appliance.daemon import lifecycle
from appliance.daemon.assembly import FRAMES_WAITING, Factories, build
from appliance.daemon.health import Health
from appliance.daemon.pipeline import Pipeline
from appliance.daemon.spool import Spool
from appliance.daemon.stages import Sentinel, Stage, StageQueue
from appliance.errors import DeviceError, ModelError, ServerError
from appliance.infer.request import Pending, Request
from appliance.infer.transcriber import Encoded
from appliance.records import Frame, Listener, Transcription, Window

STAGES = ("capture", "segmenter", "encoder", "transcriber", "publisher")
FRAME = Frame(np.zeros(480, np.int16), 0.0)
STUCK_S = 1.0
"""Longer than any stage waits here, however busy the machine is."""


class Gate:
    """Where a stage stands still while it is shut."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self.reached = threading.Event()
        """Set when somebody waits before it, or has."""

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def pass_through(self) -> None:
        if not self._open.is_set():
            self.reached.set()
            self._open.wait()


class FakeSegmenter:
    """Makes a window of every frame, if it is to."""

    speaking, speculative_window, closed_early, alert = False, None, False, False

    def __init__(self, gate: Gate, windows: bool) -> None:
        self._gate, self._windows = gate, windows
        self.taken: list[str] = []

    def push(self, _frame: Frame) -> list[Window]:
        self._gate.pass_through()
        self.taken.append("frame")
        return [a_window(seconds=0.01)] if self._windows else []

    def flush(self, *, interrupted: bool = False) -> list[Window]:
        self.taken.append("lost" if interrupted else "end")
        return []


class GatedTranscriber(FakeTranscriber):
    """Finds no speech in any window."""

    def __init__(self, encoder: Gate, transcriber: Gate, on: FakeEncoder) -> None:
        super().__init__()
        self.encoder = on
        self._encoder, self._transcriber = encoder, transcriber
        self.answer = replace(HEARD, text="")

    def begin(
        self, request: Request, should_continue: Callable[[], bool] = lambda: True
    ) -> Encoded:
        self._encoder.pass_through()
        return super().begin(request)

    def decode(self, encoded: Encoded, pending: Pending | None = None) -> Transcription:
        self._transcriber.pass_through()
        return super().decode(encoded, pending)


class FakePublisher(Listener):
    """Delivers nothing, and shows that it lives."""

    def __init__(self, gate: Gate) -> None:
        self._gate, self._stopped = gate, threading.Event()
        self.live = Listener()

    def run(self, moved: Callable[[], None]) -> None:
        while not self._stopped.wait(0.01):
            self._gate.pass_through()
            moved()

    def stop(self, _flush_s: float) -> None:
        self._stopped.set()

    def reasons(self) -> tuple[str, ...]:
        return ()


@dataclass
class Rig:
    """A pipeline whose stages can be made to stand still."""

    folder: Path
    scripts: list[Iterator[Frame]] = field(default_factory=list)
    """What the sources give, one after the other."""
    windows: bool = True
    gates: dict[str, Gate] = field(default_factory=lambda: {name: Gate() for name in STAGES})

    def __post_init__(self) -> None:
        self.segmenter = FakeSegmenter(self.gates["segmenter"], self.windows)
        self.encoder = FakeEncoder()
        self.settings = Settings(
            # two daemons of one node are refused on a machine, and other tests may run beside these
            appliance=ApplianceSettings(node=f"node_{os.getpid()}"),
            store=StoreSettings(path=str(self.folder)),
            spool=SpoolSettings(path=NO_FOLDER),
            capture=CaptureSettings(recording="a script" if self.scripts else ""),
        )

    def pipeline(self, settings: Settings) -> Pipeline:
        fakes: dict[str, Any] = {
            "source": self.source,
            "segmenter": lambda *_: self.segmenter,
            "transcriber": lambda *_: GatedTranscriber(
                self.gates["encoder"], self.gates["transcriber"], self.encoder
            ),
            "publisher": lambda *_, **__: FakePublisher(self.gates["publisher"]),
        }
        return Pipeline(build(settings, Factories(**fakes, idle_s=0.05)))

    def source(self, *_: object) -> FakeSource:
        script = self.scripts.pop(0) if self.scripts else silence(0.01)
        return FakeSource(script, self.gates["capture"].pass_through)

    def open_gates(self) -> None:
        for gate in self.gates.values():
            gate.open()


@pytest.fixture
def handlers() -> Iterator[None]:
    """Puts this process's signal handlers back afterwards."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def stage(pipeline: Pipeline, name: str) -> Stage:
    return next(one for one in pipeline._stages if one.name == name)


def test_a_full_queue_takes_no_item_and_every_mark_once() -> None:
    queue: StageQueue[str] = StageQueue(2)
    for item in ("one", "two"):
        queue.put_nowait(item)
    for _ in range(5):
        with pytest.raises(Full):
            queue.put_nowait("three")
        queue.mark(Sentinel.LOST)
    queue.mark(Sentinel.END)
    queue.mark(Sentinel.END)
    found = [queue.next(0.01) for _ in range(5)]
    assert found == ["one", "two", Sentinel.LOST, Sentinel.END, None]
    queue.put_nowait("four")
    assert queue.next(0.01) == "four"


def test_whoever_waits_for_an_item_is_woken_by_a_mark() -> None:
    queue: StageQueue[str] = StageQueue(1)
    threading.Timer(0.1, queue.mark, [Sentinel.END]).start()
    assert queue.next(30.0) is Sentinel.END


def test_while_the_segmenter_stands_still_frames_are_dropped_and_counted(tmp_path: Path) -> None:
    gates = {name: Gate() for name in STAGES}
    gates["segmenter"].shut()

    def until_it_is_lost() -> Iterator[Frame]:
        yield FRAME
        assert gates["segmenter"].reached.wait(PATIENCE_S), "the segmenter has the first frame"
        yield from [FRAME] * (FRAMES_WAITING + 50)
        raise DeviceError("unplugged")

    rig = Rig(tmp_path, [until_it_is_lost(), iter([FRAME] * 20)], windows=False, gates=gates)
    pipeline = rig.pipeline(rig.settings)
    pipeline.start()
    try:
        stage(pipeline, "capture").join(PATIENCE_S)
        assert not stage(pipeline, "capture").is_alive(), "it waits for the segmenter"
        assert pipeline.health.counters() == {"frames_dropped": 70}
        assert rig.segmenter.taken == []
        rig.open_gates()
        stage(pipeline, "segmenter").join(PATIENCE_S)
    finally:
        rig.open_gates()
        pipeline.stop()
    pipeline.check()
    assert rig.segmenter.taken == ["frame"] * (1 + FRAMES_WAITING) + ["lost", "end"]


def test_a_stop_reaches_a_segmenter_that_stood_still_before_a_full_queue(tmp_path: Path) -> None:
    rig = Rig(tmp_path, windows=False)
    rig.gates["segmenter"].shut()
    pipeline = rig.pipeline(rig.settings)
    pipeline.start()
    try:
        assert rig.gates["segmenter"].reached.wait(PATIENCE_S)
        for _ in range(FRAMES_WAITING):
            pipeline.parts.supervisor._put(FRAME)
    finally:
        pipeline.stop()
    assert not stage(pipeline, "capture").is_alive()
    assert stage(pipeline, "segmenter").is_alive()
    rig.open_gates()
    stage(pipeline, "segmenter").join(PATIENCE_S)
    assert rig.segmenter.taken == ["frame"] * (1 + FRAMES_WAITING) + ["end"]


def test_blocks_are_taken_one_by_one_while_the_segmenter_is_alert(tmp_path: Path) -> None:
    rig = Rig(tmp_path, windows=False)
    pipeline = rig.pipeline(rig.settings)
    alert = pipeline.parts.supervisor._recorder.alert
    pipeline.start()
    try:
        until(lambda: not alert.is_set())
        rig.segmenter.alert = True
        until(alert.is_set)
    finally:
        pipeline.stop()


def test_a_window_is_known_to_all_before_it_can_be_transcribed(tmp_path: Path) -> None:
    rig, waiting = Rig(tmp_path), list[int]()
    pipeline = rig.pipeline(rig.settings)

    class Told(Listener):
        def on_window(self, window: Window) -> None:
            waiting.append(len(pipeline.core.backlog))

    pipeline.core.bus.add(Told())
    pipeline.core.frames.put(FRAME)
    pipeline.core.frames.mark(Sentinel.END)
    pipeline._segment(Stage("segmenter", pipeline._segment, lambda: None))
    assert (waiting, len(pipeline.core.backlog)) == ([0], 1)
    pipeline.parts.close()


def test_a_request_is_answered_whatever_becomes_of_it_and_none_is_stored(tmp_path: Path) -> None:
    rig = Rig(tmp_path, windows=False)
    answers: list[Transcription | Exception] = []

    def keep(_: Request, answer: Transcription | Exception) -> None:
        answers.append(answer)

    def refuse(_: Request, answer: Transcription | Exception) -> None:
        answers.append(answer)
        raise ConnectionError("whoever asked has gone")

    rig.gates["encoder"].shut()
    pipeline = rig.pipeline(rig.settings)
    pipeline.start()
    try:
        assert pipeline.core.backlog.submit(Request(a_window()), keep)
        assert rig.gates["encoder"].reached.wait(PATIENCE_S)
        assert pipeline.core.backlog.submit(Request(a_window()), refuse)
        assert pipeline.core.backlog.submit(Request(a_window()), keep)
        assert not answers
        rig.open_gates()
        until(lambda: len(answers) == 3)
    finally:
        rig.open_gates()
        pipeline.stop()
    pipeline.check()
    assert [one.text for one in answers if isinstance(one, Transcription)] == ["", "", ""]
    assert pipeline.health.counters() == {}


def failing(rig: Rig) -> Pipeline:
    """A pipeline that is not started, and whose encoder fails."""
    pipeline = rig.pipeline(rig.settings)
    transcriber: Any = pipeline.core.transcriber
    transcriber.fault = ModelError("a strange sound")
    return pipeline


def test_a_request_that_cannot_be_encoded_does_not_wait_for_the_decoder(tmp_path: Path) -> None:
    pipeline = failing(Rig(tmp_path))
    answers: list[Transcription | Exception] = []
    pipeline.core.backlog.submit(Request(a_window()), lambda _, answer: answers.append(answer))
    pipeline._encode_other()
    assert [str(answer) for answer in answers] == ["a strange sound"]
    pipeline.stop()


@needs_memory
def test_a_speculation_that_cannot_be_encoded_hides_no_death_of_its_window(
    tmp_path: Path, memory: Path
) -> None:
    rig = Rig(tmp_path)
    rig.settings = replace(rig.settings, spool=SpoolSettings(path=str(memory)))
    pipeline = failing(rig)
    works, backlog, window = pipeline.parts.works, pipeline.core.backlog, a_window()
    backlog.speculate(window, works.speculation)
    queued = pipeline._encode_other()
    backlog.push(window)
    assert backlog.take_window(0)
    if queued:
        works.decode(queued)
    backlog.close()  # leaves what a process leaves that dies while it encodes the window
    with Spool.open(rig.settings, Health()) as spool:
        assert [kept.deaths for kept in spool.windows()] == [1]
    pipeline.stop()


def test_speech_of_other_programs_is_transcribed_and_stored_if_wanted(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    house = WyomingSettings(enabled=True, listen="127.0.0.1", port=free_port(), log=True)
    transcriber: Any = FakeTranscriber()
    settings = replace(rig.settings, wyoming=house, mqtt=MqttSettings(enabled=False))
    factories = Factories(
        source=lambda *_: FakeSource(silence(0.01)),
        transcriber=lambda *_: transcriber,
        idle_s=60,  # no stage looks for something to do by itself
    )
    pipeline = Pipeline(build(settings, factories))
    assert pipeline.state().wyoming is None
    pipeline.start()
    try:
        until(lambda: pipeline.state().wyoming)
        assert pipeline.state().wyoming == f"127.0.0.1:{house.port}"
        with Talk(house.port) as talk:
            talk.speak(sound_of(sentences()[0].file))
            assert talk.text() == HEARD.text
        until(lambda: pipeline.health.counters().get("transcripts") == 1)
    finally:
        pipeline.stop()
    pipeline.check()
    assert pipeline.state().wyoming is None
    assert pipeline.health.counters() == {"wyoming_requests": 1, "transcripts": 1}


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("stuck", STAGES)
def test_the_watchdog_is_fed_while_every_stage_moves_and_never_after(
    tmp_path: Path, stuck: str, systemd: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", systemd.address)
    monkeypatch.setenv("WATCHDOG_USEC", "150000")
    rig = Rig(tmp_path)

    def meanwhile() -> None:
        for _ in range(3):
            systemd.told("WATCHDOG=1")
        rig.gates[stuck].shut()
        systemd.told("STOPPING=1")
        rig.open_gates()

    other = threading.Thread(target=meanwhile)
    other.start()
    give_up = threading.Timer(15.0, os.kill, [os.getpid(), signal.SIGTERM])
    give_up.start()
    try:
        with pytest.raises(DeviceError, match=f"the {stuck} has been stuck for"):
            lifecycle.run(rig.settings, lambda: rig.settings, rig.pipeline, STUCK_S)
    finally:
        give_up.cancel()
        rig.open_gates()
    other.join(PATIENCE_S)
    assert rig.gates[stuck].reached.is_set()
    time.sleep(0.5)
    assert "WATCHDOG=1" not in systemd.everything()


def test_what_goes_wrong_with_the_encoder_is_told_before_anything_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    rig = Rig(tmp_path)
    pipeline = rig.pipeline(rig.settings)
    pipeline.start()
    try:
        until(lambda: pipeline.health.counters().get("discarded_no_speech", 0) > 3)
        rig.gates["encoder"].shut()
        assert rig.gates["encoder"].reached.wait(PATIENCE_S)
        until(lambda: pipeline.state().queue_depth > 9)
        rig.encoder.trouble = "NPU: it is broken; mend it"
        rig.gates["transcriber"].shut()  # it stands still, and windows wait
        rig.gates["encoder"].open()
        until(lambda: pipeline.state().status == "degraded")
        assert "NPU: it is broken; mend it" in pipeline.state().reasons
        rig.encoder.trouble = None
        rig.open_gates()
        until(lambda: not pipeline.state().reasons)
    finally:
        rig.open_gates()
        pipeline.stop()
    pipeline.check()
    said = [record.getMessage() for record in caplog.records]
    assert said.count("NPU: it is broken; mend it") == 1
    assert said.count("Fake: the encoder runs on cpu") == 1


def test_a_state_names_the_encoder_together_with_its_trouble(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.encoder.name = "hailo8"
    pipeline = rig.pipeline(rig.settings)
    told: list[tuple[str, tuple[str, ...]]] = []

    def look() -> bool:
        state = pipeline.state()
        told.append((state.encoder, state.reasons))
        return bool(state.reasons)

    broken = ("cpu", ("NPU: it is broken; until then the CPU encodes",))
    pipeline.start()
    try:
        rig.gates["encoder"].shut()
        assert rig.gates["encoder"].reached.wait(PATIENCE_S)
        rig.encoder.name, rig.encoder.trouble = broken[0], broken[1][0]  # in the midst of a window
        look()
        rig.gates["encoder"].open()
        until(look)
        rig.gates["encoder"].reached.clear()
        rig.gates["encoder"].shut()
        assert rig.gates["encoder"].reached.wait(PATIENCE_S)
        rig.encoder.name, rig.encoder.trouble = "hailo8", None
        look()
        rig.gates["encoder"].open()
        until(lambda: not look())
    finally:
        rig.open_gates()
        pipeline.stop()
    assert {*told} == {("hailo8", ()), broken}


def served_by(rig: Rig, transcriber: FakeTranscriber) -> Pipeline:
    """A pipeline whose windows are transcribed elsewhere."""
    transcriber.in_process = False
    transcriber.answer = replace(HEARD, text="")
    fakes: dict[str, Any] = {
        "source": rig.source,
        "segmenter": lambda *_: rig.segmenter,
        "transcriber": lambda *_: transcriber,
        "publisher": lambda *_, **__: FakePublisher(rig.gates["publisher"]),
    }
    return Pipeline(build(rig.settings, Factories(**fakes, idle_s=0.05)))


def test_a_server_that_is_away_holds_no_stop_up(tmp_path: Path) -> None:
    transcriber = FakeTranscriber()
    transcriber.fault = ServerError("away")
    pipeline = served_by(Rig(tmp_path, [iter([FRAME] * 3)]), transcriber)
    pipeline.start()
    until(lambda: len(pipeline.core.backlog) == 2)
    pipeline.stop()
    assert not any(one.is_alive() for one in pipeline._stages)
    assert (
        pipeline.core.backlog.count_lost() == 3
    )  # without a spool; with one the next start finds them


def deaf(rig: Rig, **sections: Any) -> Settings:
    """Of a machine without a microphone."""
    capture = CaptureSettings(device="none")
    return replace(rig.settings, capture=capture, mqtt=MqttSettings(enabled=False), **sections)


def test_a_machine_without_a_microphone_opens_none_and_says_so(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.gates["capture"].shut()
    pipeline = rig.pipeline(deaf(rig))
    pipeline.start()
    try:
        state = pipeline.state()
        assert (state.status, state.reasons, state.listens) == ("running", (), False)
        assert (state.microphone, state.microphone_online) == ("none", False)
        assert lifecycle.status(pipeline).startswith("serving, without a microphone, 0 transcripts")
        pipeline.mute.set(True)
        until(lambda: pipeline.state().status == "muted")
        pipeline.mute.set(False)
        until(lambda: pipeline.state().status == "running")
        moved_s = stage(pipeline, "capture")._beat_s
        until(lambda: stage(pipeline, "capture")._beat_s > moved_s)
    finally:
        pipeline.stop()
    assert not rig.gates["capture"].reached.is_set()
    pipeline.check()
