"""One file over HTTP: it comes whole and verified, or not at all, whatever the server does."""

import fcntl
import hashlib
import io
import os
import pty
import socket
import struct
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from rigs.disks import mounted
from rigs.hub import TOKEN, Fault, LocalHub, local_hub

from appliance.convert import download
from appliance.convert.download import ATTEMPTS, Downloader, RemoteFile, UnreachableError
from appliance.convert.progress import StreamProgress
from appliance.errors import ModelError

NAME = "weights.bin"
CONTENT = bytes(range(256)) * 2000
"""512 kB: several blocks."""
GOOD = hashlib.sha256(CONTENT).hexdigest()
BLOB = hashlib.sha1(b"blob %d\0" % len(CONTENT) + CONTENT).hexdigest()
BROKEN = Fault(break_after=300_000)
DAMAGED = Fault(content=b"x" + CONTENT[1:])
GONE = [Fault(status=503)] * ATTEMPTS


class Place:
    """A server with one file, and a client of it."""

    def __init__(self, hub: LocalHub, folder: Path) -> None:
        self.hub, self.folder = hub, folder
        hub.hefs[NAME] = CONTENT
        self.address = f"{hub.store}/{NAME}"
        self.part = folder / f"{NAME}.part"
        self.shown = io.StringIO()
        self.client = Downloader("", StreamProgress(self.shown), pause_s=0)

    def fetch(self, **known: int | str) -> None:
        self.client.fetch(RemoteFile(self.address, **known), self.folder / NAME)  # type: ignore[arg-type]

    def ranges(self) -> list[str]:
        return [seen.headers.get("Range", "") for seen in self.hub.requests]

    def whole(self) -> bool:
        """Whether the right file is in place, and nothing beside it."""
        left = [file.name for file in self.folder.iterdir()]
        return left == [NAME] and (self.folder / NAME).read_bytes() == CONTENT


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with local_hub() as hub:
        yield Place(hub, tmp_path)


@pytest.mark.parametrize(
    ("faults", "known"),
    [
        ([], {}),
        ([Fault(no_length=True)], {}),
        ([Fault(status=500), Fault(status=429, headers={"Retry-After": "0"})], {}),
        ([BROKEN], {}),
        ([BROKEN, Fault(break_after=100_000)], {"checksum": GOOD}),
        ([BROKEN], {"checksum": BLOB, "size": len(CONTENT)}),
        ([BROKEN, Fault(ignore_range=True)], {"checksum": GOOD}),
        ([BROKEN, Fault(shift_range=7)], {"checksum": GOOD}),
        ([BROKEN, Fault(status=503)], {"checksum": GOOD}),
    ],
)
def test_a_file_comes_whole(place: Place, faults: list[Fault], known: dict[str, int | str]) -> None:
    place.hub.misbehave(NAME, *faults)
    place.fetch(**known)
    assert place.whole()


def test_a_broken_download_goes_on_where_it_was(place: Place) -> None:
    place.hub.misbehave(NAME, BROKEN, Fault(break_after=100_000))
    place.fetch(checksum=GOOD)
    assert place.ranges()[0] == ""
    second, third = (int(each.removeprefix("bytes=").rstrip("-")) for each in place.ranges()[1:])
    assert 0 < second <= 300_000 < third <= 400_000
    assert f"{NAME}: " in place.shown.getvalue() and "; again in 0 s" in place.shown.getvalue()


@pytest.mark.parametrize("changed", [False, True])
def test_the_next_run_goes_on_and_a_damaged_part_is_found(place: Place, changed: bool) -> None:
    place.hub.misbehave(NAME, BROKEN, *GONE)
    with pytest.raises(UnreachableError, match=r"answer 503$"):
        place.fetch(checksum=GOOD)
    kept = place.part.stat().st_size
    if changed:
        place.part.write_bytes(b"of something else" + bytes(kept))
        with pytest.raises(ModelError, match="expected the checksum"):
            place.fetch(checksum=GOOD)
        assert not place.part.exists()
    place.fetch(checksum=GOOD)
    assert place.ranges()[-1] == ("" if changed else f"bytes={kept}-")
    assert place.whole()


def test_a_server_that_swallows_packets_is_tried_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "TIMEOUTS_S", (0.1, 30.0))
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf:
        address = deaf.getsockname()
        # beyond the backlog the kernel drops the packets of a new connection
        with socket.create_connection(address), pytest.raises(UnreachableError):
            place.address = f"http://127.0.0.1:{address[1]}/{NAME}"
            place.fetch()
    assert "again in" not in place.shown.getvalue()


def test_a_part_without_a_checksum_is_not_gone_on_with(place: Place) -> None:
    place.part.write_bytes(b"of something else")
    place.fetch()
    assert place.ranges() == [""] and place.whole()


@pytest.mark.parametrize(
    ("faults", "known", "words"),
    [
        ([DAMAGED], {"checksum": GOOD}, "expected the checksum"),
        ([DAMAGED], {"checksum": BLOB}, f"expected the checksum {BLOB}, found"),
        ([Fault(content=b"short")], {"size": 99}, "expected 99 bytes, found 5"),
        ([], {"size": 99}, "expected 99 bytes, found more"),
        ([Fault(no_length=True)], {"limit": 1000}, "expected 1000 bytes, found more"),
        ([BROKEN] * 20, {}, "bytes read"),
        ([Fault(status=410)], {}, "found answer 410"),
    ],
)
def test_what_is_wrong_is_one_line_and_leaves_nothing(
    place: Place, faults: list[Fault], known: dict[str, int | str], words: str
) -> None:
    place.hub.misbehave(NAME, *faults)
    with pytest.raises(ModelError, match=words) as caught:
        place.fetch(**known)
    assert "\n" not in str(caught.value)
    assert not (place.folder / NAME).exists()


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("http://127.0.0.1:1/file", "^http://127.0.0.1:1/file: Connection refused$"),
        ("http://host.invalid/file", "^http://host.invalid/file: .{5,100}$"),
        ("tiny", "Invalid URL"),
        ("http://h:x/", "Failed to parse"),
    ],
)
def test_nobody_there_is_one_line(place: Place, address: str, words: str) -> None:
    with pytest.raises(UnreachableError, match=words):
        place.client.fetch(RemoteFile(address), place.folder / NAME)
    assert list(place.folder.iterdir()) == []


def test_the_token_goes_to_the_hub_and_to_nobody_else(place: Place, tmp_path: Path) -> None:
    commit = place.hub.add("o/n", {"model.safetensors": CONTENT})
    address = f"{place.hub.endpoint}/o/n/resolve/{commit}/model.safetensors"
    Downloader(TOKEN).fetch(RemoteFile(address), tmp_path / "weights")
    told = [(seen.server, seen.headers.get("Authorization", "")) for seen in place.hub.requests]
    assert told == [("hub", f"Bearer {TOKEN}"), ("content", "")]


def test_a_full_disk_is_one_line_and_is_given_back(place: Place, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "400k") as disk:
        with pytest.raises(ModelError, match=r"No space left on device; make room") as caught:
            place.client.fetch(RemoteFile(place.address, checksum=GOOD), disk / NAME)
        assert "\n" not in str(caught.value)
        assert list(disk.iterdir()) == []


def test_without_a_terminal_a_large_file_is_a_line_and_a_small_one_nothing() -> None:
    out = io.StringIO()
    lines = StreamProgress(out)
    for name, size in (("config.json", 5000), ("model.safetensors", 20_000_000)):
        lines.begin(name, 0, size)
        lines.advance(size)
    lines.close()
    assert out.getvalue() == "model.safetensors: 20.0 MB\n"


@pytest.mark.parametrize(("width", "bar"), [(80, True), (0, False)])
def test_a_terminal_with_a_size_gets_a_bar(width: int, bar: bool) -> None:
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    with os.fdopen(controller, "rb", buffering=0) as shown:
        with os.fdopen(terminal, "w") as stream:
            progress = StreamProgress(stream)
            progress.expect("building it", 20_000_000)
            progress.begin("model.safetensors", 5_000_000, 20_000_000)
            progress.advance(5_000_000)
            progress.begin("building it")
            progress.note("a remark")
            progress.advance(20_000_000)
            progress.close()
        written = b""
        with suppress(OSError):  # the terminal's end
            while part := shown.read(4096):
                written += part
    text = written.decode()
    assert (("25%" in text), ("75%" in text)) == (bar, bar)
    assert text.count("\n") == 1 + 1, "the remark, and one bar or one large step"
    assert "a remark\r\n" in text
    assert ("model.safetensors: 20.0 MB, from 5.0 MB on" in text) != bar
