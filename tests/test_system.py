"""Whole files, locks, processes of one's own, and text made fit for a message."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from appliance.errors import ConfigError
from appliance.system import (
    Holder,
    holders,
    lacks_vnni,
    legible,
    lock,
    multiplies_4_bits,
    one_line,
    read_secret,
    replacing,
    shorten,
    user_folder,
    write_whole,
    writing,
)


def test_a_file_is_written_whole_and_its_draft_is_gone(tmp_path: Path) -> None:
    file = tmp_path / ("choice" * 42)
    file.write_text("old")
    found = write_whole(file, "neu: ü")
    assert file.read_bytes() == "neu: ü".encode()
    assert (found.st_ino, found.st_size) == (file.stat().st_ino, 7)
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_is_not_written_to_its_end_is_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "choice"
    file.write_text("old")
    with pytest.raises(KeyError), replacing(file) as draft:
        draft.write_text("half")
        raise KeyError
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_has_its_permissions_from_the_beginning(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with replacing(tmp_path / "private", 0o600) as draft:
            assert stat.S_IMODE(draft.stat().st_mode) == 0o600
        write_whole(tmp_path / "public", b"", 0o644)
        write_whole(tmp_path / "usual", b"")
    finally:
        os.umask(before)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert modes == {"private": 0o600, "public": 0o644, "usual": 0o640}


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "none" / "file", b"")


def test_what_a_user_names_may_be_a_link_or_no_file_at_all(tmp_path: Path) -> None:
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(target)
    os.mkfifo(pipe)
    with writing(link, 0o600) as draft:
        draft.write_text("whole")
        assert not target.exists()
    assert (target.read_text(), link.is_symlink()) == ("whole", True)
    with writing(pipe) as place:
        assert place == pipe
    assert pipe.is_fifo()
    assert sorted(tmp_path.iterdir()) == [link, pipe, target]


def test_a_users_folder_is_the_named_one_or_one_in_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for wrong in ("", "relative"):
        monkeypatch.setenv("XDG_DATA_HOME", wrong)
        assert user_folder("XDG_DATA_HOME", ".local/share") == (
            tmp_path / ".local/share/roomscribe"
        )
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert user_folder("XDG_DATA_HOME", ".local/share") == Path("/data/roomscribe")


def test_the_bytes_of_a_file_name_that_are_no_text_are_shown() -> None:
    assert legible(os.fsdecode(b"b\xe9\xc3\xa9.wav")) == "b\\xe9\xe9.wav"
    assert shorten(os.fsdecode(b"b\xe9\n")) == "b\\xe9\\n"


def test_one_process_holds_a_lock_and_many_share_one(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    with lock(file):
        for shared in (False, True):
            with pytest.raises(BlockingIOError):
                lock(file, shared=shared)
    with lock(file, shared=True), lock(file, shared=True), pytest.raises(BlockingIOError):
        lock(file)
    lock(file).close()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_lock_is_of_a_file_that_is_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        lock(tmp_path / "none", flags=os.O_RDONLY)


def test_whoever_waited_for_a_lock_that_was_deleted_holds_the_new_one(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    program = (
        "import sys, pathlib; from appliance.system import lock;"
        "file = pathlib.Path(sys.argv[1]); print('waits', flush=True);"
        "held = lock(file, wait=True); print(file.stat().st_ino, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(file)]
    pipe = subprocess.PIPE
    with lock(file) as old, subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout
        assert other.stdout.readline() == "waits\n"
        time.sleep(0.2)
        file.unlink()
        old.close()
        assert int(other.stdout.readline()) == file.stat().st_ino
        with pytest.raises(BlockingIOError):
            lock(file)
        other.communicate()
    lock(file).close()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain 'text'", "plain 'text'"),
        (1.5, "1.5"),
        ("a\nb\x1b[31m", "a\\nb\\x1b[31m"),
        ("\udc80", "\\x80"),
        ("x" * 60, "x" * 60),
        ("x" * 61, "x" * 57 + "..."),
        ("\n" * 40, "\\n" * 28 + "\\" + "..."),
    ],
)
def test_text_is_made_fit_for_a_message(text: object, shown: str) -> None:
    assert shorten(text) == shown


def test_an_exception_is_said_on_one_line() -> None:
    assert one_line(ValueError("two\n  lines")) == "two lines"
    assert one_line(KeyError()) == "KeyError"


def test_whoever_else_has_a_file_open_is_found(tmp_path: Path) -> None:
    file, other = tmp_path / "node", tmp_path / "link"
    file.touch()
    other.symlink_to(file)
    assert holders([file]) == holders([]) == holders([tmp_path / "none"]) == []
    program = "import sys; file = open(sys.argv[1]); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        name = Path(f"/proc/{process.pid}/comm").read_text().strip()
        theirs = Holder(process.pid, name)
        assert str(theirs) == f"{name} (process {process.pid})"
        with file.open():
            assert holders([other]) == [theirs]
        assert process.stdin
        process.stdin.close()


@pytest.mark.parametrize(
    ("architecture", "flags", "lacks"),
    [
        ("x86_64", "fpu avx2 avx512f avx512_vnni", False),
        ("AMD64", "fpu avx2 avx_vnni", False),
        ("x86_64", "fpu avx2 avx512f avx512bw", True),
        ("x86_64", None, True),
        ("aarch64", "asimd", False),
    ],
)
def test_vnni_is_looked_for_on_x86_alone(
    tmp_path: Path, architecture: str, flags: str | None, lacks: bool
) -> None:
    if flags is not None:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc/cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    assert lacks_vnni(tmp_path, architecture) is lacks


@pytest.mark.parametrize(
    ("architecture", "flags", "has"),
    [
        ("x86_64", "flags : fpu avx avx2", True),
        ("x86_64", "flags : fpu sse4_2 avx", False),
        ("aarch64", "Features : fp asimd asimddp", True),
        ("aarch64", "Features : fp asimd", False),
    ],
)
def test_products_of_4_bits_need_avx2_or_arms_dot_product(
    tmp_path: Path, architecture: str, flags: str, has: bool
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(f"processor : 0\n{flags}\n")
    assert multiplies_4_bits(tmp_path, architecture) is has


def test_a_secret_in_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="no plain file"):
        read_secret(str(tmp_path / "pipe"), "", "mqtt.password_file", "the password")
