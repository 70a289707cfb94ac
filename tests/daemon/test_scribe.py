"""The scribe without threads: what is kept, what is discarded, what waits for a full disk."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from rigs.needs import needs_memory
from rigs.transcriber import HEARD, FakeTranscriber
from rigs.windows import a_window

from appliance.config import Settings, SpoolSettings, StoreSettings
from appliance.daemon.health import Health
from appliance.daemon.scribe import FAILURES_IN_A_ROW, Scribe
from appliance.daemon.spool import Spool
from appliance.errors import DeviceError, ModelError, StoreError
from appliance.infer.transcriber import Transcriber
from appliance.records import Discarded, Transcript, Transcription, Window
from appliance.store.store import Store
from appliance.store.tables import StoredTranscript


class FullDisk(Store):
    """A real store whose disk is full while `full`."""

    full = False

    def append(self, transcript: Transcript) -> StoredTranscript:
        if self.full:
            raise StoreError("the disk is full: make room")
        return super().append(transcript)


class FakeListener:
    def __init__(self, store: Store) -> None:
        self._store = store
        self.seen: list[int] = []
        self.reasons: list[str] = []

    def notify(self) -> None:
        self.seen.append(len(self._store.query()))

    def discarded(self, speech: Discarded) -> None:
        self.reasons.append(speech.reason)


class House:
    def __init__(self, store: FullDisk) -> None:
        self.store = store
        self.transcriber = FakeTranscriber()
        self.health = Health()
        self.listener = FakeListener(store)
        self.scribe = Scribe(
            Settings(),
            cast(Transcriber, self.transcriber),
            store,
            self.health,
            (self.listener,),
        )

    def hear(self, answer: Transcription | Exception = HEARD) -> None:
        self.transcriber.answer = answer
        now_s = time.monotonic()
        samples = np.zeros(32_000, np.int16)
        window = Window("u", 1, True, samples, now_s - 2.6, now_s - 0.6, 1.5)
        self.scribe.write(self.scribe.encode(window, now_s))

    def texts(self) -> list[str]:
        return [row.transcript.text for row in self.store.query()]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with FullDisk.open(StoreSettings(path=str(tmp_path))) as store:
        yield House(cast(FullDisk, store))


def test_a_listener_is_told_after_the_store_has_it(house: House) -> None:
    house.hear()
    house.hear(replace(HEARD, text="and off again"))
    assert house.listener.seen == [1, 2]


def test_a_transcript_carries_the_times_of_its_window(house: House) -> None:
    house.hear()
    kept = house.store.query()[0].transcript
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
    house: House, answer: Transcription | Exception, reason: str
) -> None:
    house.hear(answer)
    assert house.listener.reasons == [reason]
    assert house.health.counters() == {f"discarded_{reason}": 1}
    assert house.texts() == []


def test_an_unsure_yes_is_kept_and_flagged(house: House) -> None:
    house.hear(replace(HEARD, text="yes", avg_logprob=-1.4, no_speech_prob=0.3))
    assert house.texts() == ["yes"]
    assert house.store.query()[0].transcript.flags == ("low_confidence",)


def test_what_is_heard_while_the_disk_is_full_is_stored_later_in_order(house: House) -> None:
    house.store.full = True
    for text in ("one", "two", "three"):
        house.hear(replace(HEARD, text=text))
    assert house.texts() == []
    assert list(house.health.troubles().values()) == ["the disk is full: make room"]
    house.store.full = False
    house.scribe.tidy()
    assert house.texts() == ["one", "two", "three"]
    assert not house.health.troubles()


def test_several_windows_failing_in_a_row_are_a_broken_device(house: House) -> None:
    for _ in range(FAILURES_IN_A_ROW - 1):
        house.hear(RuntimeError("graph"))
    house.hear()
    for _ in range(FAILURES_IN_A_ROW - 1):
        house.hear(RuntimeError("graph"))
    with pytest.raises(DeviceError, match="3 times in a row, last with: graph"):
        house.hear(RuntimeError("graph"))


@needs_memory
def test_what_fails_in_a_row_is_kept_for_the_next_start_and_a_strange_window_is_not(
    house: House, memory: Path
) -> None:
    spool = Spool.open(Settings(spool=SpoolSettings(path=str(memory))), house.health)
    house.scribe = Scribe(
        Settings(), cast(Transcriber, house.transcriber), house.store, house.health, spool=spool
    )

    def hear(answer: Transcription | Exception) -> str:
        house.transcriber.answer = answer
        window = a_window()
        spool.put(window)
        house.scribe.write(house.scribe.encode(window, 0.0))
        return window.id

    hear(RuntimeError("a strange sound"))
    hear(HEARD)
    assert spool.left() == []
    broken = [hear(RuntimeError("graph")) for _ in range(FAILURES_IN_A_ROW - 1)]
    with pytest.raises(DeviceError):
        hear(RuntimeError("graph"))
    assert [kept.id for kept in spool.left()][:-1] == broken


def test_a_window_that_cannot_be_encoded_is_discarded_in_its_turn(house: House) -> None:
    house.transcriber.fault = ModelError("encoder")
    house.hear()
    house.transcriber.fault = None
    house.hear()
    assert house.listener.reasons == ["failed"]
    assert house.texts() == ["turn on the light"]
