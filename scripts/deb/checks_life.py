"""Checks of the package over its life: mistakes, reload, upgrade, removal, repository."""

from __future__ import annotations

import json
import re
import time

from deb.checks import SPEAK_FIRST, SPOKEN, expect, hears, is_alike, is_up, listens
from deb.checks_satellite import leaves_nothing
from deb.checks_user import CONFIG, MODELS, OWN_CONFIG, USER, does, is_well, quiet_room, refused
from deb.container import CheckError, Container

STATE = "/var/lib/roomscribe"
MODEL = "homely"
"""The built-in model under another name."""
SENTENCES = 5
ASK = """exec 3<> /dev/tcp/127.0.0.1/$1
echo '{"type": "describe"}' >&3
read -r answer <&3
echo "$answer"
"""
"""Prints what a Wyoming server answers to `describe`."""
APT = "apt-get install -y -o Dpkg::Options::=--force-confold"


def starts(box: Container) -> None:
    """Restart the daemon and wait until it listens."""
    box.run("systemctl reset-failed roomscribe; systemctl restart roomscribe")
    box.wait("the start", lambda: listens(box), 30)


def ends_with(box: Container, status: int, *words: str) -> str:
    """Start the daemon, expect exit status `status`, and return its last line, which must contain
    every word."""
    box.run("systemctl reset-failed roomscribe; systemctl restart roomscribe", check=False)
    box.wait(f"the exit with {status}", lambda: box.status()["ExecMainStatus"] == str(status), 20)
    lines = [line for line in box.journal("-n 12").splitlines() if line.startswith("roomscribe: ")]
    expect(lines, f"the journal does not say why: {box.journal('-n 12')}")
    for word in words:
        expect(word in lines[-1], f"expected {word!r} in the last line, found {lines[-1]!r}")
    return lines[-1]


def goes_on_in_memory(box: Container, why: str) -> str:
    """Wait until the daemon listens with its log in memory, and return its status line."""
    box.wait("the daemon", lambda: listens(box), 20)
    status = box.status()["StatusText"]
    for word in (why, "kept in memory"):
        expect(word in status, f"expected {word!r} in the status, found {status!r}")
    return status


def keeps_what_waits(box: Container) -> str:
    """A sentence that waits for its transcription when the daemon is killed is transcribed after
    the restart. The spool is in the unit's private runtime folder; a stop deletes it."""
    before = len(box.heard())
    talking = box.begin(SPEAK_FIRST)
    waits = "ls /run/roomscribe/spool/*.window"
    # it waits for some 50 ms: a shell that starts a program for each look may miss it
    is_waiting = "lambda: bool(glob.glob('/run/roomscribe/spool/*.window'))"
    kill = f"os.kill({box.status()['MainPID']}, 9)"
    box.run(f'timeout 30 python3 -c "import glob, os; any(iter({is_waiting}, True)); {kill}"')
    talking.wait(30)
    box.wait("its transcript", lambda: len(box.heard()) > before, 40)
    box.wait("the daemon", lambda: listens(box), 30)
    expect("the process before left" in box.journal("-n 60"), box.journal("-n 60"))
    expect(not box.run(f"{waits} 2>/dev/null || true").strip(), "its sound is still there")
    folders = "/run/roomscribe /run/roomscribe/spool"
    modes = box.run(f"stat -c '%a %U' {folders}; stat -f -c %T /run/roomscribe").split()
    expect(modes == ["750", "roomscribe", "700", "roomscribe", "tmpfs"], f"{modes}")
    box.run("systemctl stop roomscribe && test ! -e /run/roomscribe && systemctl start roomscribe")
    box.wait("the daemon", lambda: listens(box), 30)
    return ""


def refuses_mistakes(box: Container) -> str:
    """A wrong configuration ends the unit once, with status 78 and the mistake in its last line."""
    box.run(f"cp -p {CONFIG} /root/kept; printf '[mqtt]\\nport = \"many\"\\n' > {CONFIG}")
    line = ends_with(box, 78, CONFIG, "mqtt.port", "expected", "'many'")
    time.sleep(4)
    status = box.status()
    expect(status["ActiveState"] == "failed", f"{status}")
    expect(status["NRestarts"] == "0", f"it was restarted: {status}")
    box.run(f"cp -p /root/kept {CONFIG}")
    starts(box)
    return line


def tries_again(box: Container) -> str:
    """The unit is restarted until the disk with the model is mounted."""
    late = "/srv/models/late"
    box.run(f"cp -p {CONFIG} /root/kept; printf '[model]\\nbundle = \"{late}\"\\n' > {CONFIG}")
    line = ends_with(box, 75, late, "no such folder")
    built_in = "/usr/lib/roomscribe/appliance/bundles/tiny.en"
    box.run(f"mkdir -p /srv/models && cp -r {built_in} {late}")
    box.wait("the daemon", lambda: listens(box), 60)
    box.run(f"cp -p /root/kept {CONFIG}")
    starts(box)
    box.run("rm -r /srv/models")
    return line


def refuses_a_second(box: Container) -> str:
    """A second daemon with the same log or node ends with one line that names the service."""
    service = f"(process {box.status()['MainPID']})"
    refused(box, "roomscribe run", 74, service)
    box.run(f"printf '[store]\\npath = \"/home/{USER}/log\"\\n' > {OWN_CONFIG}")
    refused(box, f"roomscribe run --config {OWN_CONFIG}", 74, service)
    box.run(f"rm {OWN_CONFIG}")
    hears(box)
    return service


def reloads(box: Container) -> str:
    """`systemctl reload` applies a changed configuration; a wrong one changes nothing."""
    process = box.status()["MainPID"]
    box.run(f"echo 'nonsense =' >> {CONFIG}; systemctl reload roomscribe")
    expect(is_up(box) and box.status()["MainPID"] == process, "a wrong configuration ended it")
    expect(f"{CONFIG}: not valid TOML" in box.journal("-n 8"), box.journal("-n 8"))
    box.run(f"printf '[appliance]\\nnode = \"renamed\"\\n' > {CONFIG}")
    box.run("systemctl reload roomscribe")
    box.wait("listening again", lambda: listens(box), 10)
    hears(box)
    event = box.heard()[-1]
    expect(event["node"] == "renamed", f"the node is {event['node']}")
    expect(box.status()["MainPID"] == process, "it was restarted")
    box.run(f"cp -p /root/kept {CONFIG}; systemctl reload roomscribe")
    box.wait("listening again", lambda: listens(box), 10)
    return ""


def hears_streams(box: Container) -> str:
    """A sound server's source, which a program reads, is a microphone in the unit's sandbox."""
    client = "/etc/pulse/client.conf.d/test.conf"
    box.run(f"echo 'default-server = unix:/run/fakemic/native' > {client}")
    box.run(f"printf '[capture]\\ndevice = \"pulse:fakemic.monitor\"\\n' > {CONFIG}")
    box.run("systemctl restart roomscribe")
    box.wait("listening to the source", lambda: listens(box), 20)
    time.sleep(2)
    hears(box)
    box.run(f"rm {client}; cp -p /root/kept {CONFIG}; systemctl restart roomscribe")
    box.wait("listening again", lambda: listens(box), 20)
    return ""


def opens_its_port(box: Container) -> str:
    """With [wyoming] enabled the unit may listen on its port only, otherwise on none.
    (scripts/test-vm checks that the kernel enforces it, which it may not do in a container.)"""
    allowed = "systemctl show -P SocketBindAllow roomscribe"
    expect(not box.run(allowed).strip(), "a port is open before anybody asked for it")
    box.run(f"cp -p {CONFIG} /root/closed.toml")
    box.run(f"printf '[wyoming]\\nenabled = true\\nport = 10399\\n' > {CONFIG}")
    box.run("systemctl daemon-reload; systemctl restart roomscribe")
    found = box.run(allowed)
    expect("10399" in found and "10300" not in found, f"the unit may listen on {found!r}")
    (box.share / "ask.sh").write_text(ASK, encoding="utf-8")
    answer = "timeout 5 bash /share/ask.sh 10399"
    box.wait("an answer", lambda: '"info"' in box.run(answer, check=False), 20)
    report = box.run("systemd-analyze security --no-pager roomscribe.service")
    score = float(re.findall(r"roomscribe\.service: ([\d.]+)", report)[0])
    expect(score <= 1.3, f"with the port open systemd-analyze security says {score}:\n{report}")
    box.run(f"cp -p /root/closed.toml {CONFIG}")
    box.run("systemctl daemon-reload; systemctl restart roomscribe")
    expect(not box.run(allowed).strip(), "the port is still open")
    box.wait("listening again", lambda: listens(box), 10)
    return f"systemd-analyze security {score} with the port open"


def has_password(box: Container) -> str:
    """The daemon and root's commands read the broker's password from /etc/credstore, also an
    encrypted one; a wrong password, and a user who may not read it, get a message."""
    box.run(
        "mosquitto_passwd -b -c /etc/mosquitto/passwd scribe sesame;"
        "chown mosquitto /etc/mosquitto/passwd;"
        "printf 'listener 1884 127.0.0.1\\nallow_anonymous false\\n"
        "password_file /etc/mosquitto/passwd\\n'"
        " > /etc/mosquitto/closed.conf;"
        "systemd-run -q -u closed -p User=mosquitto mosquitto -c /etc/mosquitto/closed.conf"
    )
    box.run(
        f"printf '[mqtt]\\nport = 1884\\nusername = \"scribe\"\\n' > {CONFIG};"
        "install -d -m 700 /etc/credstore;"
        "(umask 077; echo wrong > /etc/credstore/roomscribe.mqtt-password)"
    )
    starts(box)
    box.wait("the refusal", lambda: "refuses" in box.status()["StatusText"], 10)
    refusal = box.status()["StatusText"]
    box.run("echo sesame > /etc/credstore/roomscribe.mqtt-password")
    starts(box)
    box.wait("the connection", lambda: "broker" not in box.status()["StatusText"], 10)
    watch = "timeout 3 roomscribe mqtt watch"
    expect("(retained)" in does(box, f"sudo {watch}", 124), "mqtt watch beside the daemon")
    refused(box, "roomscribe mqtt watch", 74, "sudo")
    refused(box, "roomscribe mqtt forget --node other", 74, "sudo")
    with quiet_room(box):
        page = is_well(box, "roomscribe doctor")
    expect(page.count("sudo roomscribe doctor") >= 3, f"the doctor does not say sudo: {page}")
    box.run("systemctl stop roomscribe")
    expect("(retained)" in does(box, f"sudo {watch}", 124), "mqtt watch without the daemon")
    box.run(
        "cd /etc; systemd-creds encrypt --name=roomscribe.mqtt-password"
        " credstore/roomscribe.mqtt-password credstore.encrypted/roomscribe.mqtt-password;"
        "rm credstore/roomscribe.mqtt-password"
    )
    expect("cleared" in does(box, "sudo roomscribe mqtt forget"), "mqtt forget")
    starts(box)
    expect("(retained)" in does(box, f"sudo {watch}", 124), "mqtt watch, encrypted")
    expect("sesame" not in box.journal(), "the journal holds the password")
    box.run(f"systemctl stop closed; cp -p /root/kept {CONFIG}")
    box.run("rm /etc/credstore.encrypted/roomscribe.*")
    starts(box)
    return refusal


def respects_state(box: Container) -> str:
    """The daemon refuses the log of another version and leaves it unchanged. If the log cannot be
    written (another owner, a full or read-only disk), it continues in memory and writes the file
    later."""
    box.run("systemctl stop roomscribe")
    lines = []
    box.run(f"cp -a {STATE} /root/state")
    sql = (
        "import sqlite3; sqlite3.connect('{0}/roomscribe.db').execute('PRAGMA user_version = {1}')"
    )
    box.run(f'python3 -c "{sql.format(STATE, 99)}"; sha256sum {STATE}/roomscribe.db > /root/sum')
    lines.append(ends_with(box, 74, f"{STATE}/roomscribe.db", "expected schema", "found 99"))
    box.run("systemctl stop roomscribe; sha256sum -c /root/sum")
    box.run(f"rm -rf {STATE}; cp -a /root/state {STATE}")
    box.run(f"chown root:root {STATE}/roomscribe.db; chmod 600 {STATE}/roomscribe.db")
    box.run("systemctl reset-failed roomscribe; systemctl start roomscribe")
    lines.append(goes_on_in_memory(box, "Permission denied"))
    box.run(f"chown roomscribe: {STATE}/roomscribe.db")
    box.wait("the log in its file", lambda: "in memory" not in box.status()["StatusText"], 40)
    box.run("systemctl stop roomscribe")
    for options, word in (("size=200k", "No space left"), ("ro", "Read-only")):
        # systemd itself gives up a state directory whose owner it cannot correct
        owner = "uid=$(id -u roomscribe),gid=$(id -g roomscribe)"
        box.run(f"mount -t tmpfs -o mode=700,{owner},{options} tmpfs {STATE}")
        if "size" in options:
            box.run(
                f"head -c 300k /dev/zero > {STATE}/filler || true; chown -R roomscribe: {STATE}"
            )
        box.run("systemctl reset-failed roomscribe; systemctl start roomscribe")
        lines.append(goes_on_in_memory(box, word))
        box.run(f"systemctl stop roomscribe; umount {STATE}")
    box.run("rm -rf /root/state")
    starts(box)
    return " | ".join(lines)


def upgrades(box: Container, newer: str) -> str:
    """An upgrade during speech restarts the daemon once and keeps an edited configuration. All
    sentences arrive but those spoken during the start. Models that root added are given to the
    user that adds models."""
    box.run(
        f"cd {MODELS} && cp -r /usr/lib/roomscribe/appliance/bundles/tiny.en {MODEL}"
        f" && echo {MODEL} > in-use && chown -R root: {MODEL}"
    )
    box.run(f"echo '# edited' >> {CONFIG}")
    before, count = box.status()["InvocationID"], len(box.heard())
    starts_before = box.journal().count("Started roomscribe.service")
    talking = box.begin("; ".join([SPEAK_FIRST, "sleep 1"] * SENTENCES))
    time.sleep(1)
    box.run(f"{APT} {newer}")
    talking.wait(90)
    box.wait("the daemon", lambda: listens(box), 20)
    time.sleep(3)
    expect(box.status()["InvocationID"] != before, "it still runs the old code")
    again = box.journal().count("Started roomscribe.service") - starts_before
    expect(again == 1, f"it was started {again} times")
    expect("# edited" in box.run(f"cat {CONFIG}"), "the edited configuration is gone")
    box.run(f"ls {CONFIG}.dpkg-dist")
    expect(f"* {MODEL}" in does(box, "roomscribe model list"), "the chosen model is gone")
    others = box.run(f"find {MODELS} ! -user roomscribe-models").strip()
    expect(not others, f"not given to the user that adds models: {others}")
    heard = len(box.heard()) - count
    expect(heard >= SENTENCES - 1, f"of {SENTENCES} sentences around the upgrade {heard} arrived")
    log = box.run("roomscribe log --json --limit 10000").splitlines()
    stored = [json.loads(line)["seq"] for line in log]
    time.sleep(5)
    heard_all = [event["seq"] for event in box.heard()]
    expect(heard_all == stored, f"stored are {stored}, heard were {heard_all}")
    times = [
        float(line.split()[0])
        for line in box.run("journalctl -u roomscribe -o short-unix --no-pager").splitlines()
        if "SIGTERM: stopping" in line or "listening to" in line
    ]
    return f"{heard} transcripts of {SENTENCES} sentences, deaf for {times[-1] - times[-2]:.1f} s"


def downgrades(box: Container, older: str) -> str:
    """The previous version continues the log."""
    box.run(f"{APT} --allow-downgrades {older}")
    box.wait("the daemon", lambda: listens(box), 20)
    time.sleep(2)
    hears(box)
    return box.run("dpkg-query -W roomscribe").strip()


def leaves(box: Container, deb: str) -> str:
    """Remove keeps configuration and log, an installation uses them, purge deletes all."""
    box.run("roomscribe web enable")
    box.run("apt-get remove -y roomscribe")
    expect(not is_up(box), "the daemon still runs")
    page = box.status("roomscribe-web.socket")["ActiveState"]
    expect(page == "inactive", f"the page's socket is {page}")
    box.run(f"test -e {CONFIG} && test -e {STATE}/roomscribe.db && test ! -e /usr/lib/roomscribe")
    box.run(f"test -e {MODELS}/{MODEL}/bundle.json")
    box.run(f"{APT} {deb}")
    box.wait("the daemon", lambda: listens(box), 20)
    expect("weather" in box.run("roomscribe log"), "the log is gone")
    page = box.status("roomscribe-web.socket")["ActiveState"]
    expect(page == "active", f"the page's socket is {page}, although it was switched on")
    box.run("umask 077; cd /etc; touch credstore/roomscribe.x credstore.encrypted/roomscribe.x")
    box.run("touch /etc/roomscribe/metrics-token")
    box.run("apt-get purge -y roomscribe roomscribe-model-tiny-en")
    leaves_nothing(box)
    return "the system user stays, as Debian's system users do"


def comes_from_repository(box: Container, newer: str, version: str) -> str:
    """`apt install roomscribe` and `apt upgrade` from a signed repository on a web server, which
    brings the model, too."""
    box.run("systemd-run -q -u web python3 -m http.server -d /share/repository -b 127.0.0.1 8000")
    box.run("cp /share/repository/roomscribe.sources /etc/apt/sources.list.d/")
    box.run("cp /share/repository/roomscribe.gpg /usr/share/keyrings/")
    only = "-o Dir::Etc::sourcelist=/dev/null -o APT::Get::List-Cleanup=0"
    box.wait("the web server", lambda: box.run(f"apt-get update {only}", check=False), 5)
    usual = "-o APT::Install-Recommends=true"
    box.run(f"apt-get update {only} && apt-get install -y {usual} roomscribe={version}")
    expect(is_up(box), "the daemon does not run")
    heard = box.run("roomscribe transcribe /share/speech/00.flac")
    expect(is_alike(SPOKEN["00.flac"], heard), f"written is {heard!r}")
    box.run("apt-get upgrade -y")
    found = box.run("dpkg-query -W -f '${Version}' roomscribe")
    expect(found == newer, f"apt upgrade gives {found}, not {newer}")
    box.run("mv /share/repository/Packages /share/repository/kept")
    box.run("sed s/speech/noise/ /share/repository/kept > /share/repository/Packages")
    box.run("cd /share/repository; rm -rf Packages.gz by-hash /var/lib/apt/lists/127.0.0.1*")
    if not re.search(
        r"^E: |Hash Sum|mismatch", box.run(f"apt-get update {only}", check=False), re.M
    ):
        raise CheckError("apt takes a repository whose list was changed after it was signed")
    return f"installed {version}, upgraded to {found}; a changed list is refused"
