"""The doctor looks at the page: whether it answers."""

from __future__ import annotations

import http.server
import socket
import threading
from pathlib import Path
from typing import Any

from rigs.page import page as running_page

from appliance.cli.doctor import page
from appliance.cli.doctor.main import look
from appliance.cli.doctor.outcome import Surroundings
from appliance.config import Settings, WebSettings

(ANSWERS,) = page.CHECKS


def around(**keys: Any) -> Surroundings:
    return Surroundings(Settings(web=WebSettings(enabled=True, **keys)))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def test_a_page_that_is_off_is_not_looked_for() -> None:
    found = ANSWERS.look(Surroundings(Settings()))
    assert (found.status, found.found) == ("skipped", "web.enabled is false")


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
