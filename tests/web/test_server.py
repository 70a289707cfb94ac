"""The page's server as a browser, a stranger and a hostile site meet it."""

import gzip
import http.client
import json
import re
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rigs.broker import free_port
from rigs.checkout import ROOT
from rigs.command import refusal, roomscribe, start
from rigs.daemon import write_config
from rigs.page import PASSWORD, Feed, Found, Page, house, page, serving
from rigs.waiting import PATIENCE_S, until

from appliance.control import SOCKET_NAME
from appliance.daemon.setting_commands import live_keys
from appliance.system import Closing
from appliance.web.labels import fields
from appliance.web.server import FOLDER, SERVED


@pytest.fixture(autouse=True)
def running(found: Found) -> None:
    found[1].appliance["status"] = "running"


class Reader(Closing):
    """A stream of events."""

    def __init__(self, page: Page, query: str, **headers: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=PATIENCE_S)
        sent = {"Host": f"localhost:{page.port}", "Cookie": page.cookie}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request("GET", f"/api/events?{query}", headers=sent)
        self.answer = self.connection.getresponse()

    def next(self, name: str) -> tuple[str, Any]:
        """The next event of that name: its number, its data."""
        kind = number = ""
        while True:
            line = self.answer.readline().decode().rstrip("\n")
            key, _, value = line.partition(": ")
            kind, number = (value, "") if key == "event" else (kind, number)
            number = value if key == "id" else number
            if key == "data" and kind == name:
                return number, json.loads(value)

    def close(self) -> None:
        self.answer.close()
        self.connection.close()


def said(answer: tuple[int, Any, bytes]) -> tuple[int, str]:
    return answer[0], json.loads(answer[2])["error"]


# who may see it


@pytest.mark.parametrize("path", ["", "page.js", "api/session", "api/events", "nothing/here"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE", "OPTIONS"])
def test_a_name_that_is_not_ours_is_refused_whatever_is_asked(
    found: Found, method: str, path: str
) -> None:
    for host in ("evil.example", f"evil.example:{found[0].port}", ""):
        assert found[0].request(method, path, Host=host)[0] == 421


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "api/events?events=state"), ("GET", "api/keys"),
    ("POST", "api/command"), ("GET", "api/session")],
)  # fmt: skip
def test_a_stranger_learns_nothing(found: Found, method: str, path: str) -> None:
    sent = {"Content_Type": "application/json"} if method == "POST" else {}
    for cookie in (None, "roomscribe=", "roomscribe=1.2.3", f"{found[0].cookie}0"):
        answer = found[0].request(method, path, b"{}" if sent else None, Cookie=cookie, **sent)
        assert answer[0] == 401, answer


def test_a_change_needs_the_pages_own_origin_and_its_token(found: Found) -> None:
    home, feed, _ = found
    feed.asked.clear()
    mute = {"command": "mute", "on": True}
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"token": "0" * 64},
        {"token": ""},
    ):
        assert home.post("api/command", mute, **headers)[0] == 403, headers
    assert home.post("api/command", mute, Content_Type="text/plain")[0] == 415
    assert home.request("GET", "api/command")[0] == 405
    assert feed.asked == []
    status, told, _ = home.post("api/command", mute)
    assert (status, told.get_content_type()) == (200, "application/json")
    assert feed.asked == [("mute", {"on": True})]


def test_another_sites_page_reads_no_stream(found: Found) -> None:
    for site in ("cross-site", "same-site"):
        assert found[0].get("api/events?events=state", Sec_Fetch_Site=site)[0] == 403


@pytest.mark.parametrize(
    "body", [b"", b"x", b"[]", b"null", b"[" * 9000, b"\xff", b'{"command": 1}']
)
def test_what_is_no_command_is_refused(found: Found, body: bytes) -> None:
    home = found[0]
    answer = home.request(
        "POST", "api/command", body,
        Content_Type="application/json", X_Roomscribe_Token=home.token,
    )  # fmt: skip
    assert answer[0] == 400


def test_a_large_body_is_refused_before_it_is_read(found: Found) -> None:
    home = found[0]
    with socket.create_connection(("127.0.0.1", home.port), timeout=PATIENCE_S) as one:
        one.sendall(
            f"POST /api/command HTTP/1.1\r\nHost: localhost\r\nCookie: {home.cookie}\r\n"
            "Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n".encode()
        )
        assert b"400" in one.recv(4096).split(b"\r\n")[0]
    assert home.get("")[0] == 200


def test_attempts_to_log_in_are_few(tmp_path: Path) -> None:
    with page(tmp_path) as home:
        refusal = b'{"error": "Not logged in.", "password": false}'
        assert home.get("api/session", Cookie=None)[2] == refusal
        home.access.set_password(PASSWORD)
        statuses = [home.post("api/login", {"password": "wrong"})[0] for _ in range(5)]
        assert statuses == [403] * 5
        status, headers, _ = home.post("api/login", {"password": PASSWORD})
        assert (status, 50 < int(headers["Retry-After"]) <= 60) == (429, True)
        home.log_in()  # with a link
        assert home.get("api/session")[0] == 200


def test_strangers_who_say_nothing_do_not_keep_the_page_shut(tmp_path: Path) -> None:
    with page(tmp_path) as home, Reader(home, "events=state") as stream:
        silent = [socket.create_connection(("127.0.0.1", home.port)) for _ in range(130)]
        assert home.get("api/session")[0] == 200
        for one in silent[:60]:
            one.settimeout(PATIENCE_S)
            assert one.recv(1) == b"", "the oldest ones were closed"
        silent[-1].settimeout(PATIENCE_S)
        assert silent[-1].recv(1) == b"", "one that asks for nothing is closed"
        assert stream.answer.status == 200
        for one in silent:
            one.close()
        assert home.get("api/session")[0] == 200


def test_the_password_logs_in_and_the_cookie_is_the_browsers_alone(tmp_path: Path) -> None:
    with page(tmp_path) as home:
        home.access.set_password(PASSWORD)
        assert home.get("api/session")[0] == 401, "the session outlives a new password"
        status, headers, _ = home.post("api/login", {"password": PASSWORD})
        assert status == 200
        rules = {one.strip() for one in headers["Set-Cookie"].split(";")[1:]}
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= rules
        assert "Secure" not in rules
        cookie = headers["Set-Cookie"].partition(";")[0]
        home.cookie = cookie
        home.token = json.loads(home.get("api/session")[2])["token"]
        ended = home.post("api/command", {"command": "logout"})
        assert 'roomscribe="";' in ended[1]["Set-Cookie"]
        assert home.get("api/session")[0] == 401, "a copy of the cookie still lets in"
        proxied = home.post("api/login", {"password": PASSWORD}, X_Forwarded_Proto="https")
        assert "Secure" in proxied[1]["Set-Cookie"]


def test_users_whom_the_supervisor_brings_need_no_other_login(tmp_path: Path) -> None:
    ingress = {"X_Ingress_Path": "/api/hassio_ingress/abc", "X_Remote_User_Id": "1"}
    with house(tmp_path, ingress="127.0.0.1") as (home, _, _server):
        assert home.get("api/session", Cookie=None)[0] == 401
        sent = {"Host": "house.example", **ingress}
        status, headers, body = home.get("api/session", Cookie=None, **sent)
        assert status == 200
        assert "frame-ancestors 'self'" in headers["Content-Security-Policy"]
        home.cookie, home.token = "", json.loads(body)["token"]
        asked = {"command": "state"}
        assert home.post("api/command", asked, **sent)[0] == 200
        assert home.post("api/command", asked, token="", **sent)[0] == 403
        assert home.post("api/command", asked, Sec_Fetch_Site="cross-site", **sent)[0] == 403
    with page(tmp_path, ingress="172.30.32.2") as home:
        assert home.get("api/session", Cookie=None, **ingress)[0] == 401, "of another address"


# what it sends


def test_every_answer_forbids_what_the_page_does_not_need(found: Found) -> None:
    for path in ("", "page.js", "api/session", "nothing", "api/events?events=x"):
        _, headers, _ = found[0].get(path)
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == ("no-cache" if path in SERVED else "no-store")


def test_a_file_that_is_known_is_not_sent_again(found: Found) -> None:
    _, headers, body = found[0].get("page.js")
    assert body == (FOLDER / "page.js").read_bytes()
    _, packed, data = found[0].get("page.js", Accept_Encoding="gzip, br")
    assert (packed["Content-Encoding"], packed["Vary"]) == ("gzip", "Accept-Encoding")
    assert gzip.decompress(data) == body
    assert packed["Etag"] != headers["Etag"]
    assert found[0].get("page.js", If_None_Match=headers["Etag"])[0] == 304
    for path in ("../server.py", "%2e%2e/server.py", "page/page.js", "index.html"):
        assert found[0].get(path)[0] == 404


def test_nothing_of_the_page_leads_out_of_it() -> None:
    files = [FOLDER / file for file, _ in SERVED.values() if "/" not in file]
    assert sum(len(gzip.compress(file.read_bytes())) for file in files) <= 48_000
    for file in files:
        text = file.read_text(encoding="utf-8")
        outside = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'`]*", text))
        assert outside <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}, file
        assert not re.findall(r"(?:src|href)=[\"']/", text), f"{file}: a prefix would not hold"
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text)


def test_every_module_is_served_as_a_script_and_names_only_modules_that_are(found: Found) -> None:
    modules = sorted(file.name for file in FOLDER.glob("*.js"))
    assert {"page.js", "live.js", "history.js", "health.js", "settings.js"} <= set(modules)
    for name in modules:
        status, headers, body = found[0].get(name)
        assert (status, headers["Content-Type"]) == (200, "text/javascript; charset=utf-8")
        text = body.decode()
        assert text.count("\n") < 400, name
        assert set(re.findall(r'from "\./([^"]+)"', text)) <= set(modules), name


def test_every_file_of_the_page_is_our_own() -> None:
    assert {one.name for one in FOLDER.iterdir() if one.is_dir()} == {"app"}
    for name in (file for file, _ in SERVED.values() if "/" not in file):
        file = FOLDER / name
        text = file.read_text("utf-8")
        assert not re.search(r"preact|copyright|licen[cs]e|@version|sourceMappingURL", text, re.I)
        assert max(map(len, text.splitlines())) < 700, f"{file.name} is minified"


def test_the_app_has_icons_of_its_own_and_no_absolute_address(found: Found) -> None:
    status, headers, body = found[0].get("app/manifest.webmanifest", Cookie=None)
    assert (status, headers["Content-Type"]) == (200, "application/manifest+json")
    manifest = json.loads(body)
    addresses = [manifest["start_url"], manifest["scope"], *(i["src"] for i in manifest["icons"])]
    assert not [one for one in addresses if re.match(r"/|\w+:", one)], "a prefix would not hold"
    sizes = {}
    for icon in manifest["icons"][:3]:
        status, headers, body = found[0].get(f"app/{icon['src']}", Cookie=None)
        assert (status, headers["Content-Type"]) == (200, icon["type"])
        width, height = struct.unpack(">II", body[16:24])
        assert icon["sizes"] == f"{width}x{height}"
        sizes[width, icon.get("purpose", "any")] = len(body)
    assert sizes.keys() == {(192, "any"), (512, "any"), (512, "maskable")}
    assert sum(file.stat().st_size for file in (FOLDER / "app").iterdir()) < 20_000
    colors = (FOLDER / "index.html").read_text() + (FOLDER / "icon.svg").read_text()
    assert manifest["background_color"] in colors and manifest["theme_color"] in colors


def test_every_setting_that_the_page_can_change_has_its_texts() -> None:
    known = fields()
    assert set(live_keys()) <= set(known)
    for name, about in known.items():
        words = f"{about['title']} {about['help']} {about['group']}"
        assert not re.search(r"`|[a-z]_[a-z]|\b[a-z]+\.[a-z]", words), (name, words)
    assert len({about["title"] for about in known.values()}) == len(known)


# what it does


def test_commands_reach_the_daemon_and_its_refusals_the_reader(found: Found) -> None:
    home = found[0]
    assert home.ask("state")["model"] == "tiny"
    assert home.ask("mute", on=True) == {"on": True}
    answer = home.post("api/command", {"command": "microphone_test", "seconds": 1})
    assert said(answer) == (503, "the microphone is closed")
    assert said(home.post("api/command", {"command": "reload"}))[0] == 400
    assert home.ask("model_add", model="base") == {"adding": "base"}
    assert home.ask("model_cancel") == {"cancelled": True}
    (wrong,) = home.ask("broker", host="a", password="no")["mistakes"]
    assert wrong == "mqtt.password"
    wrong = home.ask("configure", set={"segmenter.hang_over_ms": 5})
    assert wrong["mistakes"] == {"segmenter.hang_over_ms": "expected 200 to 3000 ms, found 5"}
    about = json.loads(home.get("api/keys")[2])
    assert "mqtt.password_file" not in about, "it is in the file only"
    assert about["segmenter.hang_over_ms"]["high"] == 3000
    kinds = {name: one["kind"] for name, one in about.items() if name.startswith("vocabulary.")}
    assert (kinds["vocabulary.words"], kinds["vocabulary.replace"]) == ("list", "table")


def test_the_first_steps_are_to_be_shown_until_somebody_has_ended_them(found: Found) -> None:
    home = found[0]
    file = home.access.folder / "first-steps"

    def wanted() -> bool:
        return bool(json.loads(home.get("api/session")[2])["first_steps"])

    assert not wanted()
    file.unlink()
    assert wanted()
    file.mkdir()
    (file / "x").touch()  # it cannot be replaced, not even by root
    status, why = said(home.post("api/command", {"command": "end_first_steps"}))
    assert (status, "cannot write" in why, "\n" in why) == (503, True, False)
    (file / "x").unlink()
    file.rmdir()
    assert wanted()
    home.ask("end_first_steps")
    assert not wanted()


def test_a_sentence_comes_to_every_reader_with_its_number(found: Found) -> None:
    home, feed, server = found
    first = feed.say("one")
    with (
        Reader(home, f"events=transcript&after={first['seq'] - 1}") as late,
        Reader(home, "events=transcript,state", Last_Event_ID=str(first["seq"])) as live,
    ):
        assert late.next("transcript") == (str(first["seq"]), first)
        assert live.next("state")[1]["status"] == "running"
        second = feed.say("two")
        server.announce_transcript()
        assert late.next("transcript") == live.next("transcript") == (str(second["seq"]), second)
    until(lambda: not server.wanted)


def test_a_new_password_ends_the_streams_of_those_who_were_in(tmp_path: Path) -> None:
    with house(tmp_path) as (home, feed, server), Reader(home, "events=transcript") as reader:
        reader.next("daemon")
        home.access.set_password(PASSWORD)
        feed.say("not for those")
        server.announce_transcript()
        assert b"not for those" not in reader.answer.read()


def test_a_daemon_that_goes_and_comes_is_told_and_nothing_is_missed(tmp_path: Path) -> None:
    feed = Feed()
    with page(tmp_path) as home, Reader(home, "events=transcript&after=0") as reader:
        up, why = reader.next("daemon")[1].values()
        offline = "Roomscribe is not running. `sudo systemctl status roomscribe` shows why."
        assert (up, why) == (False, offline)
        assert said(home.post("api/command", {"command": "state"})) == (503, why)
        feed.say("one")
        with serving(feed, tmp_path / SOCKET_NAME):
            assert reader.next("daemon")[1] == {"up": True}
            assert reader.next("transcript")[1]["text"] == "one"
        assert reader.next("daemon")[1]["up"] is False
        feed.say("two")
        with serving(feed, tmp_path / SOCKET_NAME):
            assert reader.next("daemon")[1] == {"up": True}
            assert reader.next("transcript")[1]["text"] == "two"


def test_a_page_that_nobody_looks_at_ends_and_one_that_is_read_does_not(tmp_path: Path) -> None:
    with serving(Feed(), tmp_path / SOCKET_NAME), page(tmp_path, "--idle", "0.4") as home:
        with Reader(home, "events=state") as reader:
            reader.next("state")
            with pytest.raises(subprocess.TimeoutExpired):
                home.process.wait(1.2)
        assert home.process.wait(PATIENCE_S) == 0


def test_its_memory_holds_neither_numpy_nor_a_database(found: Found) -> None:
    found[0].ask("state")
    mapped = Path(f"/proc/{found[0].process.pid}/maps").read_text("utf-8")
    measured = "/coverage/" in mapped  # which brings a database of its own
    assert not re.findall(rf"numpy|onnxruntime|portaudio{'' if measured else '|sqlite'}", mapped)


def test_it_ends_at_once_when_it_is_told_to(tmp_path: Path) -> None:
    with page(tmp_path) as home, Reader(home, "events=state") as reader:
        reader.next("daemon")
        home.process.terminate()
        assert home.process.wait(PATIENCE_S) == 0


def test_it_takes_the_socket_that_systemd_hands_over(tmp_path: Path) -> None:
    config = write_config(tmp_path, web={"enabled": True, "path": tmp_path / "page"})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        program = (
            "import os, socket, sys; os.dup2(int(sys.argv.pop(1)), 3); "
            "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1'); "
            "from appliance.cli.main import main; sys.exit(main(['web', 'serve', *sys.argv[1:]]))"
        )
        arguments = ("--config", str(config), "--idle", "0.3")
        with subprocess.Popen(
            [sys.executable, "-c", program, str(listener.fileno()), *arguments],
            pass_fds=[listener.fileno()],
            cwd=ROOT,
        ) as process:
            host, port = listener.getsockname()
            connection = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
            connection.request("GET", "/")
            assert connection.getresponse().status == 200
            connection.close()
            assert process.wait(PATIENCE_S) == 0


def test_it_is_off_until_it_is_allowed_and_others_reach_it_with_a_password_only(
    tmp_path: Path,
) -> None:
    for web, line in (
        ({}, "the page is off: run `sudo roomscribe web enable`"),
        ({"enabled": True, "listen": "0.0.0.0"}, "the page needs a password to listen on"),
    ):
        config = write_config(tmp_path, web={**web, "port": free_port(), "path": tmp_path / "page"})
        done = roomscribe("web", "serve", "--config", config)
        assert line in refusal(done, 78)


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        config = write_config(tmp_path, web={"enabled": True, "port": port, "path": tmp_path})
        done = roomscribe("web", "serve", "--config", config)
    assert done.returncode == 69
    assert f"cannot listen on 127.0.0.1, port {port}: Address already in use" in done.stderr


def test_it_serves_a_proxy_on_a_socket_with_a_path(tmp_path: Path) -> None:
    path = tmp_path / "page.sock"
    web = {"enabled": True, "listen": path, "path": tmp_path / "page"}
    with start("web", "serve", "--config", write_config(tmp_path, web=web)) as process:
        until(path.exists)
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(str(path))
            one.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert one.recv(4096).startswith(b"HTTP/1.1 200 OK")
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


def test_a_reader_that_does_not_read_is_let_go(found: Found) -> None:
    home, _, server = found
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.connect(("127.0.0.1", home.port))
        head = f"Host: localhost\r\nCookie: {home.cookie}\r\n\r\n"
        one.sendall(f"GET /api/events?events=level HTTP/1.1\r\n{head}".encode())
        until(lambda: "level" in server.wanted)
        begun_s = time.monotonic()
        while "level" in server.wanted and time.monotonic() - begun_s < PATIENCE_S:
            server.publish("level", {"rms_db": -40.0, "more": "x" * 60_000})
            time.sleep(0.01)
        assert "level" not in server.wanted
    assert home.ask("state")["model"] == "tiny"
