"""One file over HTTP: it comes whole and verified, or not at all, whatever the servers do."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
from rigs.disks import mounted
from rigs.hub import TOKEN, Fault, LocalHub, local_hub
from rigs.needs import require

from appliance.convert.download import Bar, Downloader, Lines, RetryPolicy, open_progress_display
from appliance.convert.partial_file import (
    DownloadRefusedError,
    RemoteFile,
    UnreachableError,
    git_sha1,
    origin,
    parse_rate_limit,
    parse_retry_after,
)
from appliance.errors import ModelError

NAME = "weights.bin"
CONTENT = bytes(range(256)) * 2000
"""512 kB: several blocks."""
GOOD = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Watcher:
    """A ProgressDisplay that records its calls."""

    begun: list[tuple[str, int, int | None]] = field(default_factory=list)
    came: int = 0
    ended: int = 0
    notes: list[str] = field(default_factory=list)

    def begin(self, name: str, done: int, total: int | None) -> None:
        self.begun.append((name, done, total))

    def advance(self, count: int) -> None:
        self.came += count

    def end(self) -> None:
        self.ended += 1

    def note(self, line: str) -> None:
        self.notes.append(line)


class Place:
    """A server with one file, and a client of it."""

    def __init__(self, hub: LocalHub, folder: Path) -> None:
        self.hub, self.folder = hub, folder
        self.watcher = Watcher()
        self.pauses: list[float] = []
        hub.hefs[NAME] = CONTENT
        self.address = f"{hub.store}/{NAME}"
        self.file = folder / NAME

    def client(self, home: str = "", token: str = "") -> Downloader:
        policy = RetryPolicy(
            connect_s=5, read_s=5, pauses_s=(0.1, 0.2, 0.4), sleep=self.pauses.append
        )
        return Downloader(home or self.hub.store, token, policy, self.watcher)

    def fetch(self, size: int | None = None, sha256: str = "", limit: int = 10**9) -> str:
        source = RemoteFile(self.address, size=size, sha256=sha256, limit=limit)
        return self.client().fetch(source, self.file)

    def ranges(self) -> list[str]:
        return [seen.headers.get("Range", "") for seen in self.hub.requests]

    def left(self) -> list[str]:
        return sorted(file.name for file in self.folder.iterdir())

    def whole(self) -> bool:
        """Whether the right file is in place, and nothing beside it."""
        return self.left() == [NAME] and self.file.read_bytes() == CONTENT


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with local_hub() as hub:
        yield Place(hub, tmp_path)


def test_a_file_comes_whole_and_its_checksum_is_told(place: Place) -> None:
    assert place.fetch() == GOOD
    assert place.whole()
    assert place.watcher.begun == [(NAME, 0, len(CONTENT))]
    assert (place.watcher.came, place.watcher.ended) == (len(CONTENT), 1)


def test_a_broken_download_goes_on_where_it_was(place: Place) -> None:
    place.hub.misbehave(NAME, Fault(break_after=200_000), Fault(break_after=100_000))
    assert place.fetch() == GOOD
    assert place.whole()
    first, *later = place.ranges()
    assert first == ""
    second, third = (int(each.removeprefix("bytes=").removesuffix("-")) for each in later)
    assert 0 < second <= 200_000 < third <= 300_000
    assert place.pauses == [0.1, 0.1], "whoever gets further begins with short pauses again"


def test_the_next_run_goes_on_and_hashes_what_is_there(place: Place) -> None:
    place.hub.misbehave(NAME, Fault(break_after=300_000), *[Fault(status=503)] * 3)
    with pytest.raises(UnreachableError, match=r"answer 503 at \d{6} bytes, 4 times"):
        place.fetch(sha256=GOOD)
    assert place.left() == [f"{NAME}.part", f"{NAME}.part.json"]
    kept = (place.folder / f"{NAME}.part").stat().st_size
    assert place.fetch(sha256=GOOD) == GOOD
    assert place.ranges()[-1] == f"bytes={kept}-"
    assert place.hub.requests[-1].headers["If-Range"].startswith('"')
    assert place.whole()


def test_a_run_killed_in_the_middle_leaves_what_the_next_one_goes_on_with(place: Place) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from appliance.convert.download import Downloader, RetryPolicy\n"
        "from appliance.convert.partial_file import RemoteFile\n"
        "client = Downloader(sys.argv[1], '', RetryPolicy(pauses_s=(60.0,)))\n"
        "client.fetch(RemoteFile(sys.argv[1]), Path(sys.argv[2]))\n"
    )
    place.hub.misbehave(NAME, Fault(break_after=300_000))
    command = [sys.executable, "-c", program, place.address, str(place.file)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        while "again in 60 s" not in (line := run.stderr.readline()):
            assert line, "the program ended before the break"
        run.send_signal(signal.SIGKILL)
    assert not place.file.exists()
    assert place.fetch() == GOOD
    assert place.ranges()[-1] != ""
    assert place.whole()


def test_a_server_that_ignores_ranges_sends_all_again(place: Place) -> None:
    place.hub.misbehave(NAME, Fault(break_after=300_000), Fault(ignore_range=True))
    assert place.fetch() == GOOD
    assert place.whole()
    assert [done for _, done, _ in place.watcher.begun] == [0, 0]


def test_breaking_off_at_the_same_place_for_ever_comes_to_an_end(place: Place) -> None:
    place.hub.misbehave(NAME, *[Fault(break_after=300_000, ignore_range=True)] * 50)
    with pytest.raises(UnreachableError, match=re.escape(place.address)):
        place.fetch()
    assert len(place.hub.requests) == 4


def test_a_file_that_changed_meanwhile_is_never_glued_together(place: Place) -> None:
    place.hub.misbehave(NAME, Fault(break_after=300_000), *[Fault(status=503)] * 3)
    with pytest.raises(UnreachableError):
        place.fetch()
    changed = CONTENT[::-1]
    place.hub.hefs[NAME] = changed
    assert place.fetch() == hashlib.sha256(changed).hexdigest()
    assert "If-Range" in place.hub.requests[-1].headers
    assert place.file.read_bytes() == changed


def test_a_part_without_anything_to_know_it_by_is_not_gone_on_with(place: Place) -> None:
    (place.folder / f"{NAME}.part").write_bytes(b"of something else")
    assert place.fetch() == GOOD
    assert place.ranges() == [""]
    (place.folder / f"{NAME}.part").write_bytes(b"of something else")
    (place.folder / f"{NAME}.part.json").write_text("{torn")
    assert place.fetch() == GOOD


def test_the_wrong_part_of_a_file_is_not_taken_for_the_rest(place: Place) -> None:
    place.hub.misbehave(NAME, Fault(break_after=300_000), Fault(shift_range=7))
    assert place.fetch() == GOOD
    assert place.whole()
    assert "from the start" in place.watcher.notes[-1]


def test_a_part_longer_than_the_file_is_thrown_away(place: Place) -> None:
    place.hub.misbehave(NAME, Fault(break_after=300_000), *[Fault(status=503)] * 3)
    with pytest.raises(UnreachableError):
        place.fetch()
    place.hub.hefs[NAME] = CONTENT[:1000]
    # ignores If-Range, so that it has nothing from byte 300000 on
    record = json.loads((place.folder / f"{NAME}.part.json").read_text())
    record["etag"] = f'"{hashlib.md5(CONTENT[:1000]).hexdigest()}"'
    (place.folder / f"{NAME}.part.json").write_text(json.dumps(record))
    assert place.fetch() == hashlib.sha256(CONTENT[:1000]).hexdigest()
    assert place.ranges()[-1] == ""


def test_a_length_that_is_never_reached_is_an_error_and_no_file(place: Place) -> None:
    place.hub.misbehave(NAME, *[Fault(more_length=100)] * 20)
    with pytest.raises(UnreachableError, match=r"(broken off|no more of it) .* 4 times$"):
        place.fetch()
    assert not place.file.exists()


def test_a_length_other_than_expected_is_refused_before_anything_is_written(place: Place) -> None:
    with pytest.raises(ModelError, match="expected 99 bytes, found 512000 announced"):
        place.fetch(size=99)
    assert place.left() == []


def test_a_file_without_length_is_read_to_its_end_and_no_further_than_allowed(
    place: Place,
) -> None:
    place.hub.misbehave(NAME, Fault(no_length=True), Fault(no_length=True))
    assert place.fetch() == GOOD
    place.file.unlink()
    with pytest.raises(ModelError, match="at most 1000 bytes, found more"):
        place.fetch(limit=1000)
    assert place.left() == []


def test_a_file_larger_than_allowed_is_refused_by_its_length(place: Place) -> None:
    with pytest.raises(ModelError, match="at most 1000 bytes, found 512000"):
        place.fetch(limit=1000)
    assert place.left() == []


def test_a_wrong_checksum_deletes_the_part_in_one_line(place: Place) -> None:
    damaged = b"x" + CONTENT[1:]
    place.hub.misbehave(NAME, Fault(content=damaged))
    with pytest.raises(ModelError) as caught:
        place.fetch(size=len(CONTENT), sha256=GOOD)
    message = str(caught.value)
    assert GOOD in message
    assert hashlib.sha256(damaged).hexdigest() in message
    assert "\n" not in message
    assert place.left() == []


def test_a_part_damaged_on_the_disk_is_found_by_its_checksum(place: Place) -> None:
    place.hub.misbehave(NAME, Fault(break_after=300_000), *[Fault(status=503)] * 3)
    with pytest.raises(UnreachableError):
        place.fetch(sha256=GOOD)
    with (place.folder / f"{NAME}.part").open("r+b") as part:
        part.write(b"damaged")
    with pytest.raises(ModelError, match="expected SHA-256"):
        place.fetch(sha256=GOOD)
    assert place.fetch(sha256=GOOD) == GOOD


def test_the_name_git_gives_is_checked_too(place: Place, tmp_path: Path) -> None:
    right = hashlib.sha1(b"blob %d\0" % len(CONTENT) + CONTENT).hexdigest()
    source = RemoteFile(place.address, git_sha1=right)
    assert place.client().fetch(source, place.file) == GOOD
    assert git_sha1(place.file) == right
    with pytest.raises(ModelError, match="expected git blob 0000"):
        place.client().fetch(RemoteFile(place.address, git_sha1="0" * 40), tmp_path / "other")


def test_a_full_answer_to_the_wrong_question_is_refused_by_its_first_bytes(place: Place) -> None:
    place.hub.hefs[NAME] = b"<html>please log in</html>"
    with pytest.raises(ModelError, match=r"begins with b'\\x01HEF', found b'<htm'"):
        place.client().fetch(RemoteFile(place.address, magic=b"\x01HEF"), place.file)
    assert place.left() == []


@pytest.mark.parametrize("status", [500, 502, 503, 408, 429])
def test_an_answer_that_may_pass_is_asked_for_again_with_growing_pauses(
    place: Place, status: int
) -> None:
    place.hub.misbehave(NAME, Fault(status=status), Fault(status=status))
    assert place.fetch() == GOOD
    assert place.pauses == [0.1, 0.2]
    assert all(f"answer {status}; again in" in note for note in place.watcher.notes)


def test_the_pause_that_a_server_asks_for_is_kept(place: Place) -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    place.hub.misbehave(
        NAME,
        Fault(status=429, headers={"Retry-After": "7"}),
        Fault(status=503, headers={"Retry-After": soon}),
        Fault(status=429, headers={"RateLimit": '"api";r=0;t=55', "Retry-After": "7"}),
    )
    assert place.fetch() == GOOD
    assert place.pauses[0] == 7
    assert 50 < place.pauses[1] <= 60
    assert place.pauses[2] == 56


def test_an_hour_is_not_waited(place: Place) -> None:
    place.hub.misbehave(NAME, Fault(status=429, headers={"RateLimit": '"api";r=0;t=3599'}))
    with pytest.raises(UnreachableError, match="answer 429, and not before 3600 s"):
        place.fetch()
    assert place.pauses == []


def test_a_senseless_pause_is_none() -> None:
    assert [
        parse_retry_after(each) for each in ("", "soon", "-5", "Wed, 21 Oct 2015 07:28:00 GMT")
    ] == [0.0] * 4


@pytest.mark.parametrize(
    ("value", "wait_s"),
    [
        ('"api";r=0;t=55', 56),
        ('"pages"; t=290; r=0', 291),
        ('"api";r=0;t=20, "resolvers";r=0;t=70, "pages";r=9;t=300', 71),
        ('"api";r=12;t=55', 0),
        ('"api";r=0', 0),
        ("", 0),
        ("soon", 0),
    ],
)
def test_a_rate_limit_says_when_it_ends(value: str, wait_s: float) -> None:
    assert parse_rate_limit(value) == wait_s


def test_a_refusal_tells_the_servers_own_words(place: Place) -> None:
    words = {"X-Error-Code": "Closed", "X-Error-Message": "Not any more." + "!" * 999}
    place.hub.misbehave(NAME, Fault(status=410, headers=words))
    with pytest.raises(
        DownloadRefusedError, match=r"answer 410 \(Closed: Not any more\.!+\.\.\.\)$"
    ) as caught:
        place.fetch()
    assert len(str(caught.value)) < 400


def test_a_refusal_is_not_repeated(place: Place) -> None:
    with pytest.raises(DownloadRefusedError, match="found answer 403"):
        place.client().fetch(RemoteFile(f"{place.hub.store}/none"), place.file)
    assert len(place.hub.requests) == 1
    assert place.left() == []


def test_nobody_there_is_one_line_after_all_attempts(place: Place) -> None:
    gone = "http://127.0.0.1:1/file"
    with pytest.raises(UnreachableError) as caught:
        place.client(home=gone).fetch(RemoteFile(gone), place.file)
    assert str(caught.value) == f"{gone}: Connection refused, 4 times"
    assert place.pauses == [0.1, 0.2, 0.4]


def test_an_unknown_host_is_named(place: Place) -> None:
    gone = "http://host.invalid/file"
    with pytest.raises(UnreachableError, match=r"^http://host.invalid/file: .{5,100}, 4 times$"):
        place.client(home=gone).fetch(RemoteFile(gone), place.file)


def test_a_server_that_falls_silent_is_left(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/file"
        policy = RetryPolicy(connect_s=1, read_s=0.05, pauses_s=(0,), sleep=place.pauses.append)
        with pytest.raises(UnreachableError, match="timed out"):
            Downloader(address, "", policy, place.watcher).fetch(RemoteFile(address), place.file)


def test_an_encoded_file_is_refused(place: Place) -> None:
    place.hub.misbehave(NAME, Fault(encoding="gzip"))
    with pytest.raises(ModelError, match="encoded as gzip"):
        place.fetch()
    assert place.left() == []


@pytest.mark.parametrize(
    "address", ["", "tiny", "ftp://host/", "file:///etc", "http://", "http://h:x"]
)
def test_only_addresses_of_the_web_are_taken(address: str) -> None:
    with pytest.raises(ModelError, match="expected an address such as"):
        Downloader(address)


def test_origins_differ_by_scheme_host_and_port() -> None:
    assert origin("https://Hub.example/a") == origin("https://hub.example:443/b")
    assert len({origin(f"http{s}://a{n}") for s in ("", "s") for n in ("", ":8000", ".b")}) == 6


def test_the_token_goes_to_the_hub_and_to_nobody_else(place: Place) -> None:
    place.hub.add("o/n", {"model.safetensors": CONTENT, "config.json": b"{}"})
    client = place.client(home=place.hub.endpoint, token=TOKEN)
    for name in ("model.safetensors", "config.json"):
        client.fetch(
            RemoteFile(f"{place.hub.endpoint}/o/n/resolve/main/{name}"), place.folder / name
        )
    told = {(seen.server, "Authorization" in seen.headers) for seen in place.hub.requests}
    assert told == {("hub", True), ("content", False)}


def test_a_password_in_netrc_is_not_sent_either(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    place.client().fetch(RemoteFile(place.address), tmp_path / "file")
    assert "Authorization" not in place.hub.requests[-1].headers


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """For 127.0.0.1, signed by nobody."""
    require("openssl")
    file = tmp_path / "certificate.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=hub"
    command += f" -addext subjectAltName=IP:127.0.0.1 -keyout {file} -out {file}.crt"
    subprocess.run(command.split(), check=True, capture_output=True)
    file.write_text(file.read_text() + Path(f"{file}.crt").read_text())
    return file


def test_a_certificate_that_nobody_signed_is_refused_at_once(
    place: Place, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    monkeypatch.delenv("CURL_CA_BUNDLE", raising=False)
    with local_hub(certificate) as hub:
        client = place.client(home=hub.endpoint, token=TOKEN)
        with pytest.raises(UnreachableError, match=r"certificate is not accepted: .*REQUESTS_CA"):
            client.fetch(RemoteFile(f"{hub.endpoint}/o/n/resolve/main/a.bin"), place.file)
        assert hub.requests == []
    assert place.pauses == []


def test_a_redirect_out_of_encryption_is_not_followed(
    place: Place, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    with local_hub(certificate) as hub:
        hub.add("o/n", {"a.bin": b"x", "config.json": b"{}"})
        client = place.client(home=hub.endpoint, token=TOKEN)
        client.fetch(RemoteFile(f"{hub.endpoint}/o/n/resolve/main/config.json"), place.file)
        with pytest.raises(ModelError, match="expected encrypted redirects, found one to http:"):
            client.fetch(RemoteFile(f"{hub.endpoint}/o/n/resolve/main/a.bin"), place.file)
        assert {seen.server for seen in hub.requests} == {"hub"}


def test_redirects_in_a_circle_come_to_an_end(place: Place) -> None:
    place.hub.add("o/n", {"a.bin": b"x"})
    address = f"{place.hub.endpoint}/o/n/resolve/main/a.bin"
    place.hub.downgrade = address
    with pytest.raises(ModelError, match="at most 10 redirects"):
        place.client(home=place.hub.endpoint).fetch(RemoteFile(address), place.file)


def test_two_at_once_do_not_write_into_one_part(place: Place) -> None:
    asked: list[str] = []

    def meanwhile(_pause: float) -> None:
        with pytest.raises(ModelError, match="another process is fetching this file") as caught:
            place.fetch()
        asked.append(str(caught.value))

    place.hub.misbehave(NAME, Fault(break_after=300_000))
    policy = RetryPolicy(pauses_s=(0,), sleep=meanwhile)
    Downloader(place.address, "", policy, place.watcher).fetch(
        RemoteFile(place.address), place.file
    )
    assert len(asked) == 1
    assert place.whole()


def test_a_folder_that_is_not_there_is_one_line(place: Place) -> None:
    with pytest.raises(ModelError, match="No such file or directory"):
        place.client().fetch(RemoteFile(place.address), place.folder / "none" / NAME)
    assert place.hub.requests == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 400 kB."""
    with mounted(tmp_path / "disk", "400k") as disk:
        yield disk


def test_too_little_room_is_found_before_anything_is_written(
    place: Place, small_disk: Path
) -> None:
    with pytest.raises(ModelError) as caught:
        place.client().fetch(RemoteFile(place.address), small_disk / NAME)
    assert str(caught.value) == (
        f"{small_disk}: expected 0.5 MB of free space for {NAME}, found 0.4 MB; "
        "make room on that disk, or name another folder"
    )
    assert list(small_disk.iterdir()) == []


def test_a_disk_that_fills_up_meanwhile_is_given_back(place: Place, small_disk: Path) -> None:
    place.hub.misbehave(NAME, Fault(no_length=True))
    with pytest.raises(ModelError, match=r"No space left on device; make room") as caught:
        place.client().fetch(RemoteFile(place.address), small_disk / NAME)
    assert "\n" not in str(caught.value)
    assert list(small_disk.iterdir()) == []


def test_a_limit_on_file_sizes_is_one_line_and_leaves_nothing(place: Place) -> None:
    program = (
        "import resource, sys; from pathlib import Path\n"
        "from appliance.errors import ModelError\n"
        "from appliance.convert.download import Downloader\n"
        "from appliance.convert.partial_file import RemoteFile\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try: Downloader(sys.argv[1]).fetch(RemoteFile(sys.argv[1]), Path(sys.argv[2]))\n"
        "except ModelError as error: print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, place.address, str(place.file)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "File too large" in run.stdout
    assert run.stdout.count("\n") == 1
    assert place.left() == []


def test_without_a_terminal_a_large_file_is_a_line_for_each_tenth() -> None:
    out = io.StringIO()
    lines = Lines(out)
    lines.begin("model.safetensors", 0, 20_000_000)
    for _ in range(200):
        lines.advance(100_000)
    lines.end()
    told = out.getvalue().splitlines()
    assert told[0] == "model.safetensors: 20.0 MB"
    assert told[1] == "model.safetensors: 2.0 MB (10%)"
    assert len(told) == 11


@pytest.mark.parametrize(
    ("rows", "width", "columns", "kind"),
    [(24, 80, "", Bar), (24, 0, "", Lines), (0, 80, "80", Lines), (24, 80, "0", Lines)],
)
def test_a_terminal_without_a_size_gets_lines(
    rows: int, width: int, columns: str, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, width, 0, 0))
    with os.fdopen(terminal, "w") as stream, os.fdopen(controller, "rb", buffering=0) as shown:
        progress = open_progress_display(stream)
        assert type(progress) is kind
        progress.begin("model.safetensors", 0, 20_000_000)
        progress.advance(10_000_000)
        progress.end()
        stream.flush()
        assert b"model.safetensors: " in shown.read(4096)


def test_without_a_terminal_a_small_file_goes_by_without_a_word() -> None:
    out = io.StringIO()
    lines = Lines(out)
    lines.begin("config.json", 0, 5000)
    lines.advance(5000)
    lines.end()
    assert out.getvalue() == ""


def test_on_a_terminal_a_bar_goes_on_where_the_download_does() -> None:
    out = io.StringIO()
    bar = Bar(out)
    bar.begin("model.safetensors", 0, 1_000_000)
    bar.advance(250_000)
    bar.begin("model.safetensors", 250_000, 1_000_000)
    bar.note("broken off; again in 1 s")
    bar.advance(750_000)
    bar.end()
    assert "model.safetensors:  25%" in out.getvalue()
    assert "model.safetensors: 100%" in out.getvalue()
    assert "broken off; again in 1 s" in out.getvalue()
