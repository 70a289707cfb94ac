"""The doctor looks at the page: systemd's socket, an answer, a password where others come."""

from __future__ import annotations

import http.server
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from rigs.page import page as running_page

from appliance.cli.doctor import page
from appliance.cli.doctor.main import look
from appliance.cli.doctor.outcome import Surroundings
from appliance.config import Settings, WebSettings

UNIT, ANSWERS = page.CHECKS


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
