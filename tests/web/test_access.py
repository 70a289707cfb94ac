"""Who may see the page: hosts, password, links, sessions, attempts."""

import os
import socket
import time
from pathlib import Path

import pytest

from appliance.config import WebSettings
from appliance.errors import ConfigError, StoreError
from appliance.web.access import LINK_S, TRIES, WAIT_S, Access


@pytest.fixture
def access(tmp_path: Path) -> Access:
    return Access(WebSettings(path=str(tmp_path / "page"), hosts="page.example, other.example"))


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "localhost:8099", "127.0.0.1", "192.168.1.7:8099", "[::1]:8099", "[fe80::1]",
        "page.example", "OTHER.example.:443", socket.gethostname(),
        f"{socket.gethostname().partition('.')[0]}.local:8099",
    ],
)  # fmt: skip
def test_a_host_that_is_ours_is_known(access: Access, host: str) -> None:
    assert access.is_own_host(host)


@pytest.mark.parametrize(
    "host", ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "page", ":80"]
)
def test_another_name_is_not(access: Access, host: str) -> None:
    assert not access.is_own_host(host)


def test_a_password_is_kept_as_a_hash_for_the_pages_user_alone(access: Access) -> None:
    assert not access.has_password
    assert not access.is_password("")
    access.set_password("correct horse")
    assert access.has_password
    assert access.is_password("correct horse")
    assert not access.is_password("correct horse ")
    kept = access.folder / "password"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert access.folder.stat().st_mode & 0o777 == 0o700
    assert b"correct" not in kept.read_bytes()
    before = kept.read_bytes()
    access.set_password("correct horse")
    assert kept.read_bytes() != before, "the same password has the same hash"


def test_a_short_password_is_refused_and_the_old_one_stays(access: Access) -> None:
    access.set_password("correct horse")
    with pytest.raises(ConfigError, match="use at least 8 characters"):
        access.set_password("short")
    assert access.is_password("correct horse")


def test_a_new_password_ends_all_sessions(access: Access) -> None:
    session = access.new_session()
    assert access.is_session(session)
    access.set_password("correct horse")
    assert not access.is_session(session)


def test_a_session_outlives_the_process_and_is_not_to_be_made_up(access: Access) -> None:
    session = access.new_session()
    assert Access(WebSettings(path=str(access.folder))).is_session(session)
    begin, _, signature = session.rpartition(".")
    later = f"9{begin}"
    for wrong in ("", "x", f"{later}.{signature}", f"{begin}.{'0' * 64}", f"{begin}.é", begin):
        assert not access.is_session(wrong)
    assert access.token(session) != access.token(access.new_session())


def test_a_session_that_is_over_is_none(access: Access) -> None:
    begin = f"{round(time.time()) - 1}.{'0' * 32}"
    assert not access.is_session(f"{begin}.{access._sign(begin)}")


def test_a_link_logs_in_once(access: Access) -> None:
    word = access.new_link()
    assert not any(word in file.name for file in access.folder.iterdir()), "a folder that tells"
    assert not access.use_link(word[:-1])
    assert access.use_link(word)
    assert not access.use_link(word)


def test_an_old_link_is_none(access: Access) -> None:
    word = access.new_link()
    (file,) = access.folder.glob("link-*")
    old_s = time.time() - LINK_S - 1
    os.utime(file, (old_s, old_s))
    assert not access.use_link(word)
    assert not file.exists()


def test_attempts_are_counted_by_address_and_nobody_locks_others_out(
    access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_s = float(round(time.monotonic()))  # whole seconds: sums and differences are exact
    monkeypatch.setattr(time, "monotonic", lambda: clock_s)
    waits_s = [access.begin_attempt("192.0.2.1") for _ in range(TRIES + 1)]
    assert waits_s == [*[0.0] * TRIES, WAIT_S]
    for number in range(2, 200):
        for _ in range(TRIES + 1):
            access.begin_attempt(f"192.0.2.{number}")
    assert access.begin_attempt("198.51.100.7") == 0
    clock_s += WAIT_S
    assert [access.begin_attempt("192.0.2.1") for _ in range(2)] == [0, 2 * WAIT_S]
    clock_s += 2 * WAIT_S
    assert access.begin_attempt("192.0.2.1") == 0
    access.clear_attempts("192.0.2.1")
    assert [access.begin_attempt("192.0.2.1") for _ in range(TRIES)] == [0.0] * TRIES


def test_a_machine_with_many_addresses_of_ipv6_is_one(access: Access) -> None:
    waits_s = [access.begin_attempt(f"2001:db8::{number}") for number in range(TRIES + 1)]
    assert waits_s[-1] > 0
    assert access.begin_attempt("2001:db8:0:1::1") == 0


def test_logging_out_ends_all_sessions_for_every_copy_of_their_cookies(access: Access) -> None:
    session = access.new_session()
    access.end_sessions()
    assert not access.is_session(session)
    assert access.is_session(again := access.new_session())
    assert Access(WebSettings(path=str(access.folder))).is_session(again)


def test_a_folder_that_cannot_be_made_is_named_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    access = Access(WebSettings(path=str(tmp_path / "file" / "page")))
    with pytest.raises(StoreError, match="cannot use the page's folder"):
        access.new_link()
