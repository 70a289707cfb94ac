"""The doctor looks at the page: systemd's socket, an answer, a password where others come."""

from __future__ import annotations

import http.server
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from rigs.checkout import ROOT
from rigs.command import OBEYING_MODES
from rigs.needs import program
from rigs.page import page as running_page

from appliance.cli.doctor import page
from appliance.cli.doctor.main import look
from appliance.cli.doctor.outcome import Surroundings
from appliance.config import Settings, WebSettings
from appliance.web import Access

UNIT, ANSWERS, GUARDED = page.CHECKS


def around(**keys: Any) -> Surroundings:
    return Surroundings(Settings(web=WebSettings(enabled=True, **keys)))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def test_a_page_that_is_off_is_not_looked_for() -> None:
    for check in page.CHECKS:
        found = check.look(Surroundings(Settings()))
        assert (found.status, found.found) == ("skipped", "web.enabled is false")


@pytest.mark.parametrize(
    ("facts", "web", "status", "found"),
    [
        ({"LoadState": "not-found"}, {}, "skipped", "is not installed"),
        ({"ActiveState": "inactive"}, {}, "failed", "roomscribe-web.socket is inactive"),
        ({"Listen": "127.0.0.1:8099 (Stream)"}, {}, "ok", "listens on 127.0.0.1:8099"),
        ({"Listen": "127.0.0.1:8099 (Stream)"}, {"port": 80}, "failed", "says 127.0.0.1:80"),
        ({"Listen": "[::]:8099 (Stream)"}, {"listen": "::"}, "ok", "listens on [::]:8099"),
        ({"Listen": "/run/page (Stream)"}, {"listen": "/run/page"}, "ok", "listens on /run/page"),
    ],
)
def test_systemd_listens_as_the_configuration_says(
    facts: dict[str, str], web: dict[str, Any], status: str, found: str
) -> None:
    known = {"LoadState": "loaded", "ActiveState": "active"} | facts
    outcome = page.judge_unit(known, WebSettings(enabled=True, **web))
    assert (outcome.status, found in outcome.found) == (status, True), outcome
    assert ("roomscribe web enable" in outcome.fix) is (status == "failed")


def test_the_page_answers(tmp_path: Path) -> None:
    with running_page(tmp_path) as home:
        outcome = look(ANSWERS, around(port=home.port))
    assert outcome.status == "ok", outcome
    assert f"http://localhost:{home.port}/ answers" in outcome.found


def test_nobody_and_another_program_are_told_apart() -> None:
    away = look(ANSWERS, around(port=free_port()))
    assert (away.status, "does not answer: Connection refused" in away.found) == ("failed", True)
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        found = look(ANSWERS, around(port=other.server_port))
        other.shutdown()
        thread.join()
    assert "another program answers" in found.found
    assert "web.port" in found.fix
    assert look(ANSWERS, around(listen="/run/page")).status == "skipped"


def test_a_page_for_the_network_has_a_password(tmp_path: Path) -> None:
    given = {"listen": "0.0.0.0", "path": str(tmp_path / "page")}
    assert look(GUARDED, around(path=given["path"])).found == "only this machine reaches 127.0.0.1"
    without = look(GUARDED, around(**given))
    assert (without.status, "roomscribe web password" in without.fix) == ("failed", True)
    assert "Home Assistant" in look(GUARDED, around(**given, ingress="172.30.32.2")).found
    Access(around(**given).settings.web).set_password("correct horse")
    assert look(GUARDED, around(**given)).found == "0.0.0.0 needs a password"


@program("setpriv", package="util-linux")
def test_who_may_not_see_the_password_is_told_to_use_sudo(tmp_path: Path) -> None:
    folder = tmp_path / "page"
    folder.mkdir(mode=0)
    program = (
        "import sys\n"
        "from appliance.cli.doctor import page\n"
        "from appliance.cli.doctor.outcome import Surroundings\n"
        "from appliance.config import Settings, WebSettings\n"
        "web = WebSettings(enabled=True, listen='0.0.0.0', path=sys.argv[1])\n"
        "print(page.guarded(Surroundings(Settings(web=web))))\n"
    )
    done = subprocess.run(
        [*OBEYING_MODES, sys.executable, "-c", program, folder],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    folder.chmod(0o700)
    assert "status='skipped'" in done.stdout, done
    assert "sudo roomscribe doctor" in done.stdout
