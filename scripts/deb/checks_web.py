"""Checks of the local page: off at first, then for users with a link, and ended when idle."""

import json
import re

from deb.checks import CONFIG, MODELS, STATE, expect, exposure, is_closed, restart
from deb.container import Container

EXPOSED_AT_MOST, EXPOSED_MODELS_AT_MOST = 1.5, 1.3
SOCKET, SERVICE = "roomscribe-web.socket", "roomscribe-web.service"
ENTER = """\
import http.client, json, sys, time
def ask(method, path, body=None, **more):
    connection = http.client.HTTPConnection("127.0.0.1", 8099, timeout=30)
    head = {"Host": "localhost", "Content-Type": "application/json", **more}
    connection.request(method, path, body and json.dumps(body), head)
    answer = connection.getresponse()
    return answer.status, answer.headers.get("Set-Cookie", ""), answer.read()
def enter(link):
    cookie = ask("POST", "/api/login", {"link": link})[1].partition(";")[0]
    session = json.loads(ask("GET", "/api/session", Cookie=cookie)[2])
    return {"Cookie": cookie, "X-Roomscribe-Token": session["token"]}
def command(head, name, **more):
    status, _, body = ask("POST", "/api/command", {"command": name, **more}, **head)
    return json.loads(body)["result"] if status == 200 else (status, body.decode())
"""
VISITOR = f"""\
{ENTER}
print(ask("GET", "/api/session")[0], ask("GET", "/", Host="evil.example")[0])
head = enter(sys.argv[1])
again = ask("POST", "/api/login", {{"link": sys.argv[1]}})[0]
print(again, json.dumps(command(head, "history", limit=1)))
"""
ADDER = f"""\
{ENTER}
head = enter(sys.argv[1])
print(json.dumps([command(head, "model_add", model="tiny"), command(head, "model_cancel")]))
print(json.dumps(command(head, "model_add", model="../tiny")))
command(head, "model_add", model="tiny")
until = time.monotonic() + 90
while (found := command(head, "models"))["adding"] and time.monotonic() < until:
    time.sleep(0.2)
print(json.dumps([found["failed"], [model["name"] for model in found["models"]]]))
broker = {{"host": "127.0.0.1", "username": "ear", "password": "open sesame"}}
print(json.dumps(command(head, "broker", **broker)))
"""


def visit(box: Container, program: str) -> list[str]:
    """Return the lines of a program that enters the page with a new link."""
    (box.share / "visitor.py").write_text(program, encoding="utf-8")
    link = box.run("roomscribe web open 2>/dev/null").strip().rpartition("#link=")[2]
    return box.run(f"python3 -I /share/visitor.py {link}", timeout_s=150).splitlines()


def shows_a_page(box: Container) -> str:
    """The page is off until enabled; then it runs as its own user, shows transcripts to those who
    have a link, and ends when idle."""
    state = box.run(f"systemctl is-enabled {SOCKET}; systemctl is-active {SOCKET}; true").split()
    expect(state == ["disabled", "inactive"], f"the page is {state} after the installation")
    output = box.run("setpriv --reuid nobody --clear-groups roomscribe web enable; true")
    expect("sudo" in output, f"the refusal does not say what to do: {output}")
    before = box.run(f"sha256sum {CONFIG}; stat -c '%a %U' {CONFIG}")
    box.run("roomscribe web enable")
    box.run(f"grep -qx 'enabled = true' {CONFIG} && roomscribe web enable")
    expect(not box.status(SERVICE)["MainPID"].strip("0"), "it runs before anybody looks")
    output = box.run("setpriv --reuid nobody --clear-groups roomscribe web open; true")
    expect("sudo" in output, f"the refusal does not say what to do: {output}")
    first, second = visit(box, VISITOR)
    expect(first == "401 421", f"a stranger, and another name, got {first}")
    again, _, body = second.partition(" ")
    expect(again == "403", f"a link twice and a command got {second}")
    newest = json.loads(body)["transcripts"][0]["text"]
    expect(newest == box.heard()[-1]["text"], f"the page shows {newest!r}")
    process = box.status(SERVICE)["MainPID"]
    user = box.run(f"stat -c %U /proc/{process}").strip()
    expect(user == "roomscribe-web", f"the page runs as {user}")
    for secret in ("/var/lib/roomscribe/roomscribe.db", "/run/roomscribe/spool"):
        may = box.run(f"runuser -u roomscribe-web -- test -r {secret} && echo may; true")
        expect(not may, f"the page's user may read {secret}")
    exposed = exposure(box, "roomscribe-web", EXPOSED_AT_MOST)
    memory = box.run(f"grep Private /proc/{process}/smaps_rollup")
    own_mb = sum(int(number) for number in re.findall(r"(\d+) kB", memory)) / 1024
    soon = f"/run/systemd/system/{SERVICE}.d"
    program = "/usr/bin/roomscribe web serve --idle 1"
    box.run(
        f"install -d {soon}; printf '[Service]\\nExecStart=\\nExecStart={program}\\n'"
        f" > {soon}/soon.conf; systemctl daemon-reload; systemctl stop {SERVICE}"
    )
    visit(box, VISITOR)
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


def adds_a_model(box: Container) -> str:
    """The page adds a model through a process with a user of its own, which can write the models
    folder only, and replaces what root's command left there. An addition can be cancelled; other
    names are refused. The daemon tries a broker and keeps its password inside its sandbox."""
    drop_in = "/run/systemd/system/roomscribe-models@.service.d"
    box.run(
        f"install -d {drop_in};"
        " printf '[Service]\\nEnvironment=HF_ENDPOINT=%s\\n' $(cat /share/hub)"
        f" > {drop_in}/hub.conf; systemctl daemon-reload; roomscribe web enable"
    )
    socket = box.run("stat -c '%F %a %U %G' /run/roomscribe-models").strip()
    expect(socket == "socket 660 root roomscribe", f"the socket for models: {socket}")
    exposed = exposure(box, "roomscribe-models@0", EXPOSED_MODELS_AT_MOST)
    box.run("HF_ENDPOINT=$(cat /share/hub) roomscribe model add tiny --no-use")
    others = box.run(f"find {MODELS} ! -user roomscribe-models").strip()
    expect(not others, f"root's own command leaves {others}")
    is_closed(box, "roomscribe-models@.service", "models")
    cancelled, refused, (failed, names), broker = map(json.loads, visit(box, ADDER))
    expect(cancelled == [{"adding": "tiny"}, {"cancelled": True}], f"cancelled: {cancelled}")
    expect(refused[0] == 400, f"another name: {refused}")
    expect(failed is None and "tiny" in names, f"added: {failed}, {names}")
    owner = box.run(f"stat -c '%U %a' {MODELS}/tiny/bundle.json").strip()
    expect(owner == "roomscribe-models 644", f"the model is {owner}")
    left = "systemctl -q list-units 'roomscribe-models@*.service'"
    box.wait("the end of what added it", lambda: not box.run(left).strip(), 10)
    box.run("runuser -u roomscribe -- roomscribe model list")
    expect("mqtt.password_file" in broker.get("changed", ()), f"the broker: {broker}")
    kept = box.run(f"stat -c '%a %U' {STATE}/mqtt-password-*; cat {STATE}/mqtt-password-*")
    expect(kept.startswith("600 roomscribe\nopen sesame\n"), f"the password: {kept}")
    box.run(f"rm {STATE}/settings.toml {STATE}/mqtt-password-*")
    box.run(f"roomscribe model remove tiny; roomscribe web disable; rm -r {drop_in}")
    box.run(f"systemctl daemon-reload; sed -i 's/^enabled = false$/#enabled = false/' {CONFIG}")
    restart(box, "systemctl reload roomscribe")
    return f"exposure {exposed}"
