"""`WorkTranscriber` without threads: what it stores and discards."""

import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from rigs.core import make_core, make_works
from rigs.needs import needs_memory
from rigs.transcriber import HEARD, FakeTranscriber
from rigs.windows import NO_FOLDER, a_window

from appliance.config import AssistSettings, Settings, SpoolSettings, StoreSettings
from appliance.daemon import transcription
from appliance.daemon.backlog import FAILURES_IN_A_ROW, Lease, Work
from appliance.daemon.core import Core
from appliance.daemon.health import Health
from appliance.daemon.spool import Spool
from appliance.daemon.stages import Sentinel
from appliance.errors import DeviceError, ModelError, StoreError
from appliance.infer.request import Pending, Request
from appliance.infer.transcriber import Encoded, Transcriber
from appliance.records import (
    ADDRESSED,
    AssistReply,
    Discarded,
    Listener,
    NoAct,
    Phrase,
    Samples,
    Transcript,
    Transcription,
    Window,
    why_not_act,
)
from appliance.store.store import Store
from appliance.store.tables import StoredTranscript

SILENCE = np.zeros(32_000, np.int16)
NO_PHRASE = AssistSettings()


class FullDisk(Store):
    """A real store whose disk and memory are full while `full`."""

    full = False

    def append(self, transcript: Transcript) -> StoredTranscript:
        if self.full:
            raise StoreError("the disk is full: make room")
        return super().append(transcript)


class FakeListener(Listener):
    def __init__(self, store: Store) -> None:
        self._store = store
        self.seen: list[int] = []
        self.reasons: list[str] = []

    def on_transcript(self, transcript: Transcript) -> None:
        self.seen.append(len(self._store.query()))

    def on_discarded(self, discarded: Discarded) -> None:
        self.reasons.append(discarded.reason)


class Rig:
    def __init__(self, store: FullDisk, spool: SpoolSettings) -> None:
        self.store, self.spool = store, spool
        self.listener = FakeListener(store)
        self.opened: list[Core] = []
        self.use(FakeTranscriber())

    def use(self, transcriber: FakeTranscriber, assist: AssistSettings = NO_PHRASE) -> None:
        """Transcribes with this one from now on."""
        self.transcriber = transcriber
        folder = str(self.store.path.parent)
        settings = Settings(spool=self.spool, store=StoreSettings(path=folder), assist=assist)
        while self.opened:
            self.opened.pop().backlog.close()
        self.core = make_core(settings, transcriber, self.store, self.listener)
        self.health, self.backlog = self.core.health, self.core.backlog
        self.works = make_works(self.core)
        self.opened.append(self.core)

    def mid_way(self, transcriber: FakeTranscriber) -> None:
        """Transcribes with this one, and keeps the backlog."""
        self.works = make_works(replace(self.core, transcriber=cast("Transcriber", transcriber)))

    def say(self, answer: Transcription | Exception = HEARD, samples: Samples = SILENCE) -> str:
        """A window of which the model makes `answer`; its id."""
        self.transcriber.answer = answer
        now_s = time.monotonic()
        window = Window("u", 1, True, samples, now_s - 2.6, now_s - 0.6, 1.5)
        self.backlog.push(window)
        lease = self.backlog.take_window(0)
        assert lease
        self.do(self.works.leased(lease))
        return window.id

    def do(self, work: Work) -> None:
        self.works.encode(work)
        self.works.decode(work)

    def texts(self) -> list[str]:
        return [row.transcript.text for row in self.store.query()]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with FullDisk.open(StoreSettings(path=str(tmp_path))) as store:
        yield Rig(store, SpoolSettings(path=NO_FOLDER))


def test_a_listener_is_told_after_the_store_has_it(rig: Rig) -> None:
    rig.say()
    rig.say(replace(HEARD, text="and off again"))
    assert rig.listener.seen == [1, 2]


class Asking(FakeTranscriber):
    """Notes whether there was time for a search."""

    had_time: bool | None = None

    def decode(self, encoded: Encoded, pending: Pending | None = None) -> Transcription:
        assert pending
        self.had_time = encoded.request.search and pending.has_time()
        return super().decode(encoded, pending)


def test_only_what_programs_send_is_searched_and_only_while_nobody_speaks(rig: Rig) -> None:
    asking = Asking()
    rig.use(asking)
    rig.say()
    assert asking.had_time is False
    for awaited in (False, True):  # the first window of several, which nobody waits for
        rig.backlog.push(Window("u", 1, False, SILENCE, 0.0, 2.0, 1.5))
        lease = rig.backlog.take_window(0)
        assert lease
        if awaited:
            rig.backlog.push(Window("u", 2, True, SILENCE, 2.0, 4.0, 1.5))
        rig.do(rig.works.leased(lease))
        assert asking.had_time is not awaited
    rig.do(rig.works.leased(cast("Lease", rig.backlog.take_window(0))))
    assert asking.had_time is False
    window = Window("u", 1, True, np.zeros(32_000, np.int16), 0.0, 2.0, 1.5)
    cases = ((True, False, True), (True, True, False), (False, False, False))
    for search, speaking, had_time in cases:
        rig.backlog.on_speech(speaking)
        work = rig.backlog.submit(Request(window, search=search), lambda *_: None)
        assert work
        rig.do(work)
        assert asking.had_time is had_time


def test_a_transcript_carries_the_times_of_its_window(rig: Rig) -> None:
    rig.say()
    kept = rig.store.query()[0].transcript
    assert 1.99 < (kept.end - kept.start).total_seconds() < 2.01
    assert 600 <= kept.latency_ms < 1000
    assert (kept.model, kept.encoder, kept.windows) == ("fake", "cpu", 1)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (replace(HEARD, text=""), "no_speech"),
        (replace(HEARD, no_speech_prob=0.9, avg_logprob=-1.5), "no_speech"),
        (replace(HEARD, compression_ratio=5.0), "repetition"),
        (replace(HEARD, avg_logprob=-4.0), "low_confidence"),
        (ValueError("strange sound"), "failed"),
    ],
)
def test_what_is_discarded_is_counted_and_told_without_text(
    rig: Rig, answer: Transcription | Exception, reason: str
) -> None:
    rig.say(answer)
    assert rig.listener.reasons == [reason]
    assert rig.health.counters() == {f"discarded_{reason}": 1}
    assert rig.texts() == []


def test_what_a_loudspeaker_of_the_home_says_is_flagged_and_does_not_act(rig: Rig) -> None:
    rig.core.spoken.note("I say: " + HEARD.text, time.monotonic() + 1.0)
    rig.say()
    own = rig.store.query()[0].transcript
    assert own.flags == (NoAct.OWN_VOICE,)
    assert why_not_act(own) is NoAct.OWN_VOICE


def test_a_person_who_speaks_over_an_answer_is_heard_behind_its_words(rig: Rig) -> None:
    rig.use(FakeTranscriber(), AssistSettings(phrase="computer"))
    rig.core.spoken.note("It is ten o'clock.", time.monotonic() + 1.0)
    rig.say(replace(HEARD, text="It is ten. Computer, turn on the light."))
    one = rig.store.query()[0].transcript
    assert (one.text, one.flags) == ("Computer, turn on the light.", (ADDRESSED,))


def test_an_answer_of_assist_is_own_voice_while_a_media_player_plays(rig: Rig) -> None:
    reply = AssistReply("id", "turn on", "action_done", HEARD.text)
    rig.core.transcripts.on_reply(reply)
    rig.say()
    rig.core.media._playing = True
    rig.say()
    flags = [row.transcript.flags for row in rig.store.query()]
    assert flags == [(), (NoAct.OWN_VOICE,)]


@needs_memory
def test_a_window_whose_text_nothing_stores_is_kept_for_the_next_start(
    rig: Rig, memory: Path
) -> None:
    rig = Rig(rig.store, SpoolSettings(path=str(memory)))
    rig.store.full = True
    with pytest.raises(StoreError, match="the disk is full"):
        rig.say()
    assert rig.listener.seen == []
    rig.backlog.close()
    with Spool.open(Settings(spool=SpoolSettings(path=str(memory))), Health()) as spool:
        assert [kept.deaths for kept in spool.windows()] == [0], "no death is the window's fault"


@needs_memory
def test_windows_that_fail_in_a_row_are_kept_and_a_strange_one_is_not(
    rig: Rig, memory: Path
) -> None:
    rig = Rig(rig.store, SpoolSettings(path=str(memory)))

    def kept() -> list[str]:
        return [path.stem.partition("-")[2] for path in sorted(memory.glob("*.window"))]

    rig.say(RuntimeError("a strange sound"))
    rig.say()
    assert kept() == []
    broken = [rig.say(RuntimeError("graph")) for _ in range(FAILURES_IN_A_ROW - 1)]
    with pytest.raises(DeviceError):
        rig.say(RuntimeError("graph"))
    assert kept()[:-1] == broken
    rig.backlog.close()


def test_a_window_that_cannot_be_encoded_is_discarded_in_its_turn(rig: Rig) -> None:
    rig.transcriber.fault = ModelError("encoder")
    rig.say()
    rig.transcriber.fault = None
    rig.say()
    assert rig.listener.reasons == ["failed"]
    assert rig.texts() == ["turn on the light"]


class ShortOfMemory(FakeTranscriber):
    """Meets too little memory so many times, in either half of its work."""

    def __init__(self, encodes: int, writes: int) -> None:
        super().__init__()
        self.left = {"encode": encodes, "write": writes}

    def begin(
        self, request: Request, should_continue: Callable[[], bool] = lambda: True
    ) -> Encoded:
        self._allocate("encode")
        return super().begin(request)

    def decode(self, encoded: Encoded, pending: Pending | None = None) -> Transcription:
        self._allocate("write")
        return super().decode(encoded, pending)

    def _allocate(self, half: str) -> None:
        self.left[half] -= 1
        if self.left[half] >= 0:
            raise ModelError("running the graph failed") from MemoryError("bad_alloc")


@pytest.mark.parametrize(("encodes", "writes"), [(2, 0), (0, 2), (1, 1)])
def test_a_window_that_met_too_little_memory_is_tried_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, encodes: int, writes: int
) -> None:
    monkeypatch.setattr(transcription, "MEMORY_WAITS_S", (0.01, 0.01))
    rig.use(ShortOfMemory(encodes, writes))
    rig.say()
    assert rig.texts() == [HEARD.text]
    assert rig.listener.reasons == []


@needs_memory
@pytest.mark.parametrize(("encodes", "writes"), [(9, 0), (0, 9)])
def test_while_memory_stays_short_the_window_is_kept_for_the_next_start(
    rig: Rig, memory: Path, monkeypatch: pytest.MonkeyPatch, encodes: int, writes: int
) -> None:
    monkeypatch.setattr(transcription, "MEMORY_WAITS_S", (0.01, 0.01))
    rig = Rig(rig.store, SpoolSettings(path=str(memory)))
    rig.use(ShortOfMemory(encodes, writes))
    with pytest.raises(DeviceError, match=r"too little memory .* is kept"):
        rig.say()
    assert rig.listener.reasons == []
    rig.backlog.close()
    with Spool.open(Settings(spool=SpoolSettings(path=str(memory))), Health()) as spool:
        assert [kept.deaths for kept in spool.windows()] == [0], "no death is the window's fault"


class Ahead:
    """A window that is guessed, and comes true."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        now_s = time.monotonic()
        samples = np.zeros(32_000, np.int16)
        self.window = Window("u", 1, True, samples, now_s - 2.6, now_s - 0.6, 1.5)
        rig.backlog.speculate(self.window, rig.works.speculation)
        taken = rig.backlog.take_speculation()
        assert taken
        self.work = taken

    def comes_true(self) -> None:
        self.rig.backlog.push(self.window)
        lease = self.rig.backlog.take_window(0)
        assert lease
        self.rig.do(self.rig.works.leased(lease))


def test_what_was_transcribed_ahead_is_not_transcribed_again(rig: Rig) -> None:
    ahead = Ahead(rig)
    rig.do(ahead.work)
    rig.transcriber.answer = ModelError("transcribed again")
    ahead.comes_true()
    assert rig.texts() == [HEARD.text]
    assert rig.health.counters() == {"guesses": 1, "guesses_used": 1, "transcripts": 1}


NIGHT = Phrase("turn on the night", "all", {}, 0.9)


class Deciding(FakeTranscriber):
    """Is told to stop, or closes the utterance, between its decision and its answer."""

    def __init__(self, then: Callable[[], object]) -> None:
        super().__init__()
        self.then = then

    def decode(self, encoded: Encoded, pending: Pending | None = None) -> Transcription:
        assert pending
        pending.on_text(replace(HEARD, text=NIGHT.sentence, phrase=NIGHT, phrase_continues=False))
        self.then()
        assert pending.wanted == (self.then.__name__ != "cancel")
        return HEARD


def test_a_speculation_that_nobody_needs_is_freed_at_once(rig: Rig) -> None:
    work = rig.works.speculation(a_window())
    rig.do(work)
    freed = weakref.ref(work)
    del work
    assert freed() is None, "its states would wait for Python to look for cycles"


def test_the_silence_of_a_speculation_is_known_before_its_text(rig: Rig) -> None:
    ahead = Ahead(rig)
    known: list[tuple[int, Transcription | None]] = []

    def look() -> None:
        assert rig.core.frames.next(0) is Sentinel.DECIDED
        known.append((ahead.work.silence_ms, ahead.work.transcription))

    rig.mid_way(Deciding(look))
    rig.do(ahead.work)
    look()
    assert known == [(250, None), (450, HEARD)], "the final text has a say while there is silence"
    ahead.comes_true()
    assert rig.texts() == [HEARD.text]


def test_an_utterance_that_closes_before_its_text_is_transcribed_once(rig: Rig) -> None:
    ahead = Ahead(rig)

    def close() -> None:
        rig.backlog.push(ahead.window)

    rig.mid_way(Deciding(close))
    rig.do(ahead.work)
    lease = rig.backlog.take_window(0)
    assert lease
    rig.mid_way(rig.transcriber)
    rig.transcriber.answer = ModelError("transcribed again")
    rig.do(rig.works.leased(lease))
    assert rig.texts() == [HEARD.text]


def test_a_guess_that_is_cancelled_half_way_leaves_no_text(rig: Rig) -> None:
    ahead = Ahead(rig)

    def cancel() -> None:
        rig.backlog.withdraw_speculation()

    rig.mid_way(Deciding(cancel))
    rig.do(ahead.work)
    assert ahead.work.transcription is None


@pytest.mark.parametrize("encoded", [False, True])
def test_a_fault_ahead_is_no_fault_of_the_window(rig: Rig, encoded: bool) -> None:
    ahead = Ahead(rig)
    rig.transcriber.answer = ModelError("once")
    rig.transcriber.fault = None if encoded else ModelError("once")
    rig.do(ahead.work)
    rig.transcriber.answer, rig.transcriber.fault = HEARD, None
    ahead.comes_true()
    assert rig.texts() == [HEARD.text]
    assert rig.listener.reasons == []


@pytest.mark.parametrize("encoded", [False, True])
def test_a_request_that_fails_is_told_so_and_no_device_is_broken_for_it(
    rig: Rig, encoded: bool
) -> None:
    answers: list[Transcription | Exception] = []
    fault = ModelError("a strange sound")
    rig.transcriber.answer = fault if encoded else HEARD
    rig.transcriber.fault = None if encoded else fault
    for _ in range(FAILURES_IN_A_ROW + 1):
        work = rig.backlog.submit(Request(a_window()), lambda _, result: answers.append(result))
        assert work
        rig.do(work)
    assert answers == [fault] * (FAILURES_IN_A_ROW + 1)
    assert rig.listener.reasons == []
    assert rig.texts() == []


def test_a_text_of_others_is_kept_with_its_source_and_told_like_any_other(rig: Rig) -> None:
    rig.core.transcripts.keep(a_window(), HEARD, 12.0)
    assert rig.texts() == []
    rig.core.bus.on_idle()
    [kept] = [row.transcript for row in rig.store.query()]
    assert (kept.text, kept.source, kept.queue_ms) == (HEARD.text, "wyoming", 12.0)
    assert rig.listener.seen == [1]
