"""Whatever a program on this machine sends to the control socket, the others are served as before.

A real server and the appliance's own commands, behind a log and a mute; each example is a
connection's bytes, then a good command on another connection.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from rigs.controls import Appliance, appliance
from rigs.feed import serving
from rigs.fuzzing import ODD_TEXTS, damaged, examples, is_one_line

from appliance.control.client import ControlClient
from appliance.control.server import ControlServer

VALUES: tuple[object, ...] = (
    None, True, False, 0, -1, 1, 50, 1 << 62, 1 << 64, 10**400, 1.5, -0.0, "", "x", "all", [], {},
    "2026-01-01T00:00:00Z", "2026-01-01", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00",
    ["transcript"], ["transcript", "x"], [None], ["level"] * 5000, ["id"] * 2000, [[]],
    ["2026-01-01T00:00:00Z"] * 2, ["2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z"],
    {"capture.device": "USB"}, {"capture.device": 1}, {"store.path": "/etc"}, {"": ""},
    {"voice.open_score": 0.1}, {"voice.open_score": float("1e308")}, {"model.bundle": "../x"},
    {"voice": {"open_score": 0.5}}, {"journal.level": "debug"}, {"appliance.node": "Küche"},
    {"segmenter.hang_over_ms": 700, "x": 1}, *ODD_TEXTS[:14],
)  # fmt: skip
NAMES = (
    "on", "query", "since", "until", "before", "limit", "ids", "set", "seconds", "events", "after",
    "id", "x", "", "host", "port", "username", "password", "tls", "model", "times",
)  # fmt: skip
COMMANDS = (
    "state", "stats", "mute", "history", "delete", "microphone_test", "settings", "configure",
    "reload", "subscribe", "x", "", "broker", "models", "model_add", "model_cancel", "day", "count",
)  # fmt: skip


def requests() -> st.SearchStrategy[bytes]:
    """A line: of a known form with odd arguments, or bytes."""
    table = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES), max_size=4)
    formed = st.builds(
        lambda number, name, more: json.dumps({"id": number, "command": name, **more}).encode(),
        st.sampled_from((1, "a", None, 1 << 70, [], "\ud800", 1.5)),
        st.sampled_from(COMMANDS),
        table,
    )
    good = b'{"id": 1, "command": "history", "query": "light", "limit": 5}'
    return st.one_of(formed, damaged(good, 3), st.binary(max_size=80))


@dataclass
class House:
    """An appliance's commands behind a socket."""

    appliance: Appliance
    server: ControlServer
    path: Path


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("house")
    with appliance(folder) as found, serving(folder / "control", found.controls) as server:
        found.controls.server = server
        yield House(found, server, folder / "control")


def test_nothing_that_is_sent_disturbs_the_others(house: House) -> None:
    @given(st.lists(requests(), max_size=8), st.booleans(), st.booleans())
    @examples(40, shrink=False)
    def disturb(lines: list[bytes], ended: bool, read: bool) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
            stranger.settimeout(10)
            stranger.connect(str(house.path))
            stranger.sendall(b"\n".join(lines) + (b"\n" if ended else b""))
            stranger.shutdown(socket.SHUT_WR)
            with socket.socket.makefile(stranger, "rb") as file:
                for line in file if read else ():
                    check(json.loads(line))
        with ControlClient([house.path]) as good:
            assert good.call("history", limit=1)["transcripts"] != 0
            assert good.call("state")["status"] in ("running", "muted")

    disturb()


def check(answer: dict[str, Any]) -> None:
    """An event, an answer, or a refusal of one line."""
    if "event" in answer:
        assert set(answer) == {"event", "data"}
    elif answer["ok"]:
        assert set(answer) == {"id", "ok", "result"}
    else:
        assert answer["code"] in ("bad_request", "too_many", "unavailable", "refused")
        assert is_one_line(answer["error"])
