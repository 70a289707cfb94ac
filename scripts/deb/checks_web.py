"""What must hold of the installed page: off, then shown to who may see it, gone when idle."""

from __future__ import annotations

import json
import re

from deb.checks import expect
from deb.container import Container

CONFIG = "/etc/roomscribe/roomscribe.toml"
EXPOSED_AT_MOST = 1.5
SOCKET, SERVICE = "roomscribe-web.socket", "roomscribe-web.service"
VISITOR = """\
import http.client, json, sys
def ask(method, path, body=None, **more):
    connection = http.client.HTTPConnection("127.0.0.1", 8099, timeout=20)
    head = {"Host": "localhost", "Content-Type": "application/json", **more}
    connection.request(method, path, body and json.dumps(body), head)
    answer = connection.getresponse()
    return answer.status, answer.headers.get("Set-Cookie", ""), answer.read()
print(ask("GET", "/api/session")[0], ask("GET", "/", Host="evil.example")[0])
status, cookie, _ = ask("POST", "/api/login", {"link": sys.argv[1]})
again = ask("POST", "/api/login", {"link": sys.argv[1]})[0]
cookie = cookie.partition(";")[0]
session = json.loads(ask("GET", "/api/session", Cookie=cookie)[2])
asked = {"command": "history", "limit": 1}
head = {"Cookie": cookie, "X-Roomscribe-Token": session["token"]}
status, _, body = ask("POST", "/api/command", asked, **head)
print(again, status, body.decode())
"""


def shows_a_page(box: Container) -> str:
    """Off until asked for; then its own user shows what was said to who has a link, and it ends."""
    state = box.run(f"systemctl is-enabled {SOCKET}; systemctl is-active {SOCKET}; true").split()
    expect(state == ["disabled", "inactive"], f"the page is {state} after the installation")
    said = box.run("setpriv --reuid nobody --clear-groups roomscribe web enable; true")
    expect("sudo" in said, f"a user who may not is not told what to do: {said}")
    before = box.run(f"sha256sum {CONFIG}; stat -c '%a %U' {CONFIG}")
    box.run("roomscribe web enable")
    box.run(f"grep -qx 'enabled = true' {CONFIG} && roomscribe web enable")
    expect(not box.status(SERVICE)["MainPID"].strip("0"), "it runs before anybody looks")
    said = box.run("setpriv --reuid nobody --clear-groups roomscribe web open; true")
    expect("sudo" in said, f"a user who may not is not told what to do: {said}")
    link = box.run("roomscribe web open 2>/dev/null").strip().rpartition("#link=")[2]
    (box.share / "visitor.py").write_text(VISITOR, encoding="utf-8")
    first, second = box.run(f"python3 -I /share/visitor.py {link}").splitlines()
    expect(first == "401 421", f"a stranger, and another name, got {first}")
    again, status, body = second.split(" ", 2)
    expect((again, status) == ("403", "200"), f"a link twice and a command got {second}")
    newest = json.loads(body)["result"]["transcripts"][0]["text"]
    expect(newest == box.heard()[-1]["text"], f"the page shows {newest!r}")
    process = box.status(SERVICE)["MainPID"]
    user = box.run(f"stat -c %U /proc/{process}").strip()
    expect(user == "roomscribe-web", f"the page runs as {user}")
    for secret in ("/var/lib/roomscribe/roomscribe.db", "/run/roomscribe/spool"):
        may = box.run(f"runuser -u roomscribe-web -- test -r {secret} && echo may; true")
        expect(not may, f"the page's user may read {secret}")
    report = box.run(f"systemd-analyze security --no-pager {SERVICE}")
    exposed = float(re.findall(r"roomscribe-web\.service: ([\d.]+)", report)[0])
    expect(exposed <= EXPOSED_AT_MOST, f"systemd-analyze security says {exposed}:\n{report}")
    memory = box.run(f"grep Private /proc/{process}/smaps_rollup")
    own_mb = sum(int(number) for number in re.findall(r"(\d+) kB", memory)) / 1024
    soon = f"/run/systemd/system/{SERVICE}.d"
    program = "/usr/bin/roomscribe web serve --idle 1"
    box.run(
        f"install -d {soon}; printf '[Service]\\nExecStart=\\nExecStart={program}\\n'"
        f" > {soon}/soon.conf; systemctl daemon-reload; systemctl stop {SERVICE}"
    )
    link = box.run("roomscribe web open 2>/dev/null").strip().rpartition("#link=")[2]
    box.run(f"python3 -I /share/visitor.py {link}")
    gone_s = box.wait("its end", lambda: box.status(SERVICE)["ActiveState"] == "inactive", 15)
    expect(box.status(SERVICE)["Result"] == "success", f"it ended with {box.status(SERVICE)}")
    box.run(f"systemctl is-active {SOCKET}; rm -r {soon}")
    box.run("systemctl daemon-reload; roomscribe web disable")
    box.run(f"sed -i 's/^enabled = false$/#enabled = false/' {CONFIG}")
    after = box.run(f"sha256sum {CONFIG}; stat -c '%a %U' {CONFIG}")
    expect(before == after, f"the configuration is another: {before} {after}")
    state = box.run(f"systemctl is-enabled {SOCKET}; systemctl is-active {SOCKET}; true").split()
    expect(state == ["disabled", "inactive"], f"the page is {state} once it is disabled")
    return f"exposure {exposed}, {own_mb:.0f} MB of its own; idle, it ended after {gone_s:.1f} s"
