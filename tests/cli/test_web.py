"""`roomscribe web` at the command line; scripts/test-deb tries what needs systemd."""

from pathlib import Path

import pytest
from rigs.command import OBEYING_MODES, errors, refusal, roomscribe
from rigs.daemon import write_config

from appliance.config import WebSettings
from appliance.web import Access


def config_of(folder: Path, **web: object) -> Path:
    return write_config(folder, web={"path": folder / "page", **web})


@pytest.mark.parametrize(
    ("web", "address"),
    [
        ({"port": 8100}, "http://localhost:8100/"),
        ({"listen": "0.0.0.0", "url": "https://page.example/room/"}, "https://page.example/room/"),
        ({"listen": "192.168.1.7"}, "http://192.168.1.7:8099/"),
    ],
)
def test_a_link_is_printed_that_logs_in_once(
    tmp_path: Path, web: dict[str, object], address: str
) -> None:
    done = roomscribe("web", "open", "--config", config_of(tmp_path, enabled=True, **web))
    assert done.returncode == 0
    at, _, word = done.stdout.strip().partition("#link=")
    assert at == address
    assert ("ssh -L 8100:localhost:8100 " in done.stderr) == (address == "http://localhost:8100/")
    access = Access(WebSettings(path=str(tmp_path / "page")))
    assert access.use_link(word)
    assert not access.use_link(word)


def test_there_is_no_link_to_a_page_that_is_off_or_whose_address_nobody_knows(
    tmp_path: Path,
) -> None:
    for web, line in (
        ({}, "the page is off: run `sudo roomscribe web enable`"),
        ({"enabled": True, "listen": "/run/x"}, "web.url: expected the page's address at the prox"),
    ):
        done = roomscribe("web", "open", "--config", config_of(tmp_path, **web))
        assert (done.returncode, done.stdout) == (78, "")
        assert errors(done)[0].startswith(f"roomscribe: {line}")


def test_the_password_is_one_line_of_standard_input_and_can_be_taken_away(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    access = Access(WebSettings(path=str(tmp_path / "page")))
    done = roomscribe("web", "password", "--config", config, stdin=b"correct horse\nmore\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert "correct" not in done.stdout
    assert access.is_password("correct horse")
    for wrong in (b"short\n", b"\n", b""):
        done = roomscribe("web", "password", "--config", config, stdin=wrong)
        assert refusal(done, 78).startswith("roomscribe: the password is ")
    assert access.is_password("correct horse")
    assert roomscribe("web", "password", "--config", config, "--remove").returncode == 0
    assert not access.has_password


def test_a_folder_that_is_another_users_is_named_with_the_fix(tmp_path: Path) -> None:
    config = config_of(tmp_path, enabled=True)
    (tmp_path / "page").mkdir(mode=0o500)
    done = roomscribe("web", "open", "--config", config, wrapper=OBEYING_MODES)
    assert "run this with sudo" in refusal(done, 74)


def test_beyond_this_machine_it_is_not_switched_on_without_a_password(tmp_path: Path) -> None:
    done = roomscribe("web", "enable", "--config", config_of(tmp_path, listen="0.0.0.0"))
    assert "the page needs a password to listen on 0.0.0.0" in refusal(done, 78)
