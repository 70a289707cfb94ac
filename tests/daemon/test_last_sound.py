"""The sound of the last sentence: whose it is, what it is, and what discards it."""

import base64
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rigs.publishing import transcript
from rigs.transcriber import HEARD

from appliance.config import StoreSettings
from appliance.control.server import ControlError
from appliance.daemon.last_sound import KEPT_S, Playback
from appliance.daemon.log_commands import LogCommands
from appliance.records import Window
from appliance.store.store import Store
from appliance.store.tables import Wanted


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(StoreSettings(path=str(tmp_path))) as opened:
        yield opened


def sentence(store: Store, ago_s: float = 0.0) -> Window:
    """A window of which the log has the transcript."""
    end_s = time.monotonic() - ago_s
    samples = np.arange(50_000, dtype=np.int16)
    window = Window("u", 1, True, samples, end_s - 3, end_s, 3.0)
    store.append(transcript("turn on the light", id=window.id))
    return window


def refusal(playback: Playback, **arguments: Any) -> str:
    with pytest.raises(ControlError) as caught:
        playback.commands["playback"](arguments)
    return f"{caught.value.code}: {caught.value}"


def test_the_last_sentence_is_given_a_part_at_a_time(store: Store) -> None:
    playback = Playback(store, enabled=True)
    playback.on_stored(sentence(store), HEARD)
    window = sentence(store)
    playback.on_stored(window, HEARD)
    heard = b""
    while len(heard) < 100_000:
        request = {"transcript_id": window.id, "offset": len(heard) // 2}
        part: Any = playback.commands["playback"](request)
        assert len(part["data"]) < 60_000
        assert (part["samples"], part["rate_hz"]) == (50_000, 16_000)
        heard += base64.b64decode(part["data"])
    assert heard == window.samples.astype("<i2").tobytes()
    assert refusal(playback, transcript_id="x").startswith("unavailable: The sound of this")
    assert refusal(playback).startswith("bad_request: transcript_id")
    assert refusal(playback, transcript_id="x", offset=-1).startswith("bad_request: offset")


@pytest.mark.parametrize("what", ["mute", "deleted here", "deleted elsewhere", "age", "stop"])
def test_it_is_discarded_by(store: Store, tmp_path: Path, what: str) -> None:
    playback = Playback(store, enabled=True)
    window = sentence(store)
    playback.on_stored(window, HEARD)
    playback.poll()
    assert playback._window is window
    if what == "mute":
        playback.on_mute()
    elif what == "deleted here":
        answer = LogCommands(store, "kitchen", playback.poll).commands["delete"](
            {"ids": [window.id]}
        )
        assert isinstance(answer, Future) and answer.result(60)["deleted"] == 1
    elif what == "deleted elsewhere":
        with Store.open(StoreSettings(path=str(tmp_path)), beside_daemon=True) as other:
            other.delete(Wanted())
        playback.poll()
    elif what == "age":
        old = replace(window, speech_end_s=time.monotonic() - KEPT_S - 1)
        playback.on_stored(old, HEARD)
        playback.poll()
    else:
        playback.close()
    assert playback._window is None
    assert refusal(playback, transcript_id=window.id).startswith("unavailable")


def test_what_is_transcribed_after_muting_is_not_kept(store: Store) -> None:
    playback = Playback(store, enabled=True, is_muted=lambda: True)
    playback.on_stored(sentence(store), HEARD)
    assert playback._window is None


def test_without_the_setting_nothing_is_kept(store: Store) -> None:
    playback = Playback(store, enabled=False)
    window = sentence(store)
    playback.on_stored(window, HEARD)
    assert playback._window is None
    assert refusal(playback, transcript_id=window.id).startswith("refused: Playback is off.")
