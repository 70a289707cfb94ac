"""Checks of the package over its life: mistakes, reload, upgrade, removal; and of the satellite's,
which has another machine transcribe, and changes places with the whole package without a loss."""

import json
import shlex
import time

from deb.checks import (
    APT,
    CONFIG,
    MODELS,
    SPEAK_FIRST,
    SPOKEN,
    STATE,
    USER,
    does,
    expect,
    exposure,
    has_a_user,
    hears,
    is_up,
    is_well,
    listens,
    quiet_room,
    refused,
    restart,
)
from deb.container import Container

MODEL = "homely"
"""The built-in model under another name."""
SENTENCES = 5
ASK = """exec 3<> /dev/tcp/127.0.0.1/$1
echo '{"type": "describe"}' >&3
read -r answer <&3
echo "$answer"
"""
"""Prints what a Wyoming server answers to `describe`."""
MEMORY_MB = 70.0
"""All processes of a satellite, proportional set size, at most: 64.4 were measured, of which the
microphone's process behind PulseAudio has 15.7. A Raspberry Pi Zero 2 W has 512."""
WORKER = "/opt/worker"
WORKER_CONFIG = "/etc/worker/roomscribe.toml"
WORKER_RUNS = (
    f"env PYTHONPATH={WORKER}/usr/lib/roomscribe:{WORKER}/usr/lib/roomscribe/vendor"
    f" python3 -m appliance --config {WORKER_CONFIG}"
)
LEFT = (
    "find / -xdev \\( -path /share -o -path /proc -o -path /var/log/journal \\) -prune -o "
    "\\( -name '*roomscribe*' -o -user roomscribe \\) -print"
)
ELSEWHERE = ("/var/lib/apt/", "/var/cache/man/", "/run/")


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
    expect("windows left over" in box.journal("-n 60"), box.journal("-n 60"))
    expect(not box.run(f"{waits} 2>/dev/null || true").strip(), "its sound is still there")
    folders = "/run/roomscribe /run/roomscribe/spool"
    modes = box.run(f"stat -c '%a %U' {folders}; stat -f -c %T /run/roomscribe").split()
    expect(modes == ["750", "roomscribe", "700", "roomscribe", "tmpfs"], f"{modes}")
    stop = "systemctl stop roomscribe && test ! -e /run/roomscribe"
    restart(box, f"{stop} && systemctl start roomscribe")
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
    score = exposure(box, "roomscribe", 1.3)
    box.run(f"cp -p /root/closed.toml {CONFIG}")
    restart(box, "systemctl daemon-reload; systemctl restart roomscribe")
    expect(not box.run(allowed).strip(), "the port is still open")
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
        f"cp -p {CONFIG} /root/kept;"
        f"printf '[mqtt]\\nport = 1884\\nusername = \"scribe\"\\n' > {CONFIG};"
        "install -d -m 700 /etc/credstore;"
        "(umask 077; echo wrong > /etc/credstore/roomscribe.mqtt-password)"
    )
    restart(box)
    box.wait("the refusal", lambda: "refuses" in box.status()["StatusText"], 10)
    refusal = box.status()["StatusText"]
    box.run("echo sesame > /etc/credstore/roomscribe.mqtt-password")
    restart(box)
    box.wait("the connection", lambda: "broker" not in box.status()["StatusText"], 10)
    watch = "timeout 3 roomscribe mqtt watch"
    expect("/state {" in does(box, f"sudo {watch}", 124), "mqtt watch beside the daemon")
    refused(box, "roomscribe mqtt watch", 74, "sudo")
    refused(box, "roomscribe mqtt forget --node other", 74, "sudo")
    with quiet_room(box):
        page = is_well(box, "roomscribe doctor")
    expect(page.count("sudo roomscribe doctor") >= 2, f"the doctor does not say sudo: {page}")
    box.run("systemctl stop roomscribe")
    expect("/state {" in does(box, f"sudo {watch}", 124), "mqtt watch without the daemon")
    box.run(
        "cd /etc; systemd-creds encrypt --name=roomscribe.mqtt-password"
        " credstore/roomscribe.mqtt-password credstore.encrypted/roomscribe.mqtt-password;"
        "rm credstore/roomscribe.mqtt-password"
    )
    expect("cleared" in does(box, "sudo roomscribe mqtt forget"), "mqtt forget")
    restart(box)
    expect("/state {" in does(box, f"sudo {watch}", 124), "mqtt watch, encrypted")
    expect("sesame" not in box.journal(), "the journal holds the password")
    box.run(f"systemctl stop closed; cp -p /root/kept {CONFIG}")
    box.run("rm /etc/credstore.encrypted/roomscribe.*")
    restart(box)
    return refusal


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
    box.run(f"ls {CONFIG}.ucf-dist")
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


def keeps_a_former_one(box: Container, former: str, deb: str) -> str:
    """An upgrade from an older release keeps an edited configuration, the log and an added model,
    and asks nothing."""
    if not former:
        return "SKIPPED: there is no package of an older release"
    box.run(f"{APT} --allow-downgrades {former}", timeout_s=300)
    box.run(f"cp -r /usr/lib/roomscribe/appliance/bundles/tiny.en {MODELS}/{MODEL}")
    box.run(f"sed -i 's/^# *retention_days = .*/retention_days = 77/' {CONFIG}")
    box.run("systemctl start fakemic mosquitto subscriber")
    restart(box)
    hears(box)
    log = "roomscribe log --json --limit 0"
    kept = f"cat {CONFIG}; ls {MODELS}/{MODEL}"
    before, said = box.run(kept), json.loads(box.run(log))
    expect("retention_days = 77" in before, f"the configuration was not edited: {before}")
    box.run(f"{APT} {deb}", timeout_s=300)
    box.wait("the daemon", lambda: listens(box), 30)
    expect(box.run(kept) == before, "configuration or model is not what it was")
    models = box.run("roomscribe model list")
    expect("tiny.en" in models and MODEL in models, f"the models are {models}")
    hears(box)
    now = [json.loads(line) for line in box.run(log).splitlines()]
    # a later version may publish fewer fields
    same = all(now[0][name] == value for name, value in said.items() if name in now[0])
    expect(same and now[0]["text"] and len(now) == 2, f"the log was {said} and is {now}")
    box.run("apt-get purge -y roomscribe roomscribe-model-tiny-en")
    leaves_nothing(box)
    return box.run(f"dpkg-deb -f {former.split(maxsplit=1)[0]} Version").strip()


def downgrades(box: Container, older: str) -> str:
    """The previous version continues the log."""
    restart(box, f"{APT} --allow-downgrades {older}")
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
    restart(box, f"{APT} {deb}")
    expect("weather" in box.run("roomscribe log"), "the log is gone")
    page = box.status("roomscribe-web.socket")["ActiveState"]
    expect(page == "active", f"the page's socket is {page}, although it was switched on")
    box.run("umask 077; cd /etc; touch credstore/roomscribe.x credstore.encrypted/roomscribe.x")
    box.run("apt-get purge -y roomscribe roomscribe-model-tiny-en")
    leaves_nothing(box)
    return "the system user stays, as Debian's system users do"


def leaves_nothing(box: Container) -> None:
    """After a purge there is no file of the package's or the daemon's."""
    left = [one for one in box.run(LEFT).split() if not one.startswith(ELSEWHERE)]
    expect(not left, f"purge leaves {left}")


def awaits_a_worker(box: Container, satellite: str) -> str:
    """Installed, it stays up, hears nothing, and says in one line what to do; commands that need a
    model say so, too."""
    box.run(f"{APT} {satellite}", timeout_s=400)
    expect(is_up(box), f"after installation: {box.status()}")
    said = box.status()
    expect("fleet join" in said["StatusText"], f"STATUS does not say what to do: {said}")
    expect(said["NRestarts"] == "0", f"it was restarted: {said}")
    expect(box.journal().count("fleet join") == 1, f"not one line: {box.journal()}")
    box.run("test ! -e /usr/lib/roomscribe/appliance/bundles")
    if not box.run(f"id -u {USER} 2>/dev/null || true").strip():
        has_a_user(box)
    refused(box, "roomscribe transcribe /share/speech/00.flac", 78, "apt install roomscribe")
    does(box, "roomscribe --version && roomscribe model list && roomscribe devices", 0, 1)
    return said["StatusText"]


def has_another_transcribe(box: Container, whole: str, model: str) -> str:
    """A sentence comes through from a worker on another configuration, over nats-server with TLS,
    and the satellite's processes take little memory."""
    invited = does(box, "sudo roomscribe fleet invite attic --role worker --yes --name 127.0.0.1")
    box.run(
        f"mkdir -p {WORKER} /etc/worker /var/lib/worker && dpkg-deb -x {whole} {WORKER} &&"
        f" dpkg-deb -x {model} {WORKER} &&"
        f" ln -s /usr/lib/*-linux-gnu {WORKER}/usr/lib/"  # libgomp is asked for beside it
    )
    box.run(
        'printf \'[appliance]\\nnode = "attic"\\n[capture]\\ndevice = "none"\\n'
        '[store]\\npath = "/var/lib/worker"\\n[mqtt]\\nenabled = false\\n'
        f"' > {WORKER_CONFIG}"
    )
    code = next(line for line in invited.splitlines() if "fleet join" in line).split()[-1]
    box.run(f"{WORKER_RUNS} fleet join --yes {shlex.quote(code)}")
    box.run("chown -R roomscribe: /etc/worker /var/lib/worker")
    box.run(
        "systemd-run -q -u worker -p User=roomscribe -p RuntimeDirectory=worker"
        f" -E RUNTIME_DIRECTORY=/run/worker {WORKER_RUNS} run"
    )
    with quiet_room(box):
        box.wait("a worker", lambda: "attic" in box.run("roomscribe fleet status", check=False), 40)
        box.wait("the microphone", lambda: listens(box), 40)
        took_s = max(hears(box, name) for name in SPOKEN)
        is_well(box, "sudo roomscribe doctor")
        mapped = box.run(f"cat /proc/{box.status()['MainPID']}/maps")
        expect("onnxruntime" not in mapped, "what runs a model is loaded")
        # a sound server's plugins have ALSA load libavcodec, 13 MB, which a headless Pi has not
        box.run("rm /usr/lib/*/alsa-lib/libasound_module_*{lavrate,a52}*")
        restart(box)
        for name in SPOKEN:
            hears(box, name)
    box.run("systemctl stop worker")  # it shares pages with the satellite only in this container
    memory_mb = memory_of(box)
    expect(memory_mb <= MEMORY_MB, f"the satellite's processes take {memory_mb:.1f} MB")
    return f"{took_s:.2f} s from the sound's end to the text; {memory_mb:.1f} MB in all processes"


def memory_of(box: Container) -> float:
    """Proportional set size of all processes of the unit, MB."""
    group = box.run("systemctl show -P ControlGroup roomscribe").strip()
    sizes = box.run(
        f"for pid in $(cat /sys/fs/cgroup{group}/cgroup.procs); do"
        " sed -n 's/^Pss: *\\([0-9]*\\) kB/\\1/p' /proc/$pid/smaps_rollup 2> /dev/null; done; true"
    )
    return sum(map(int, sizes.split())) / 1024


def changes_places(box: Container, whole: str, satellite: str) -> str:
    """The whole package replaces the satellite's, and the other way round: configuration,
    credentials, log and enabled units stay; a purge of the removed one deletes none of it."""
    box.run("roomscribe web enable; (umask 077; echo word > /etc/credstore/roomscribe.x)")
    kept = (
        f"sha256sum {CONFIG} /etc/credstore/roomscribe.x $(find /etc/roomscribe -type f);"
        " systemctl is-enabled roomscribe roomscribe-web.socket;"
        " systemctl is-active roomscribe roomscribe-web.socket; roomscribe log | wc -l"
    )
    before = box.run(kept)
    for package, deb, gone in (
        ("roomscribe", whole, "roomscribe-satellite"),
        ("roomscribe-satellite", satellite, "roomscribe"),
    ):
        said = box.run(f"{APT} {deb}")
        expect("-dist" not in said and "dpkg-new" not in said, f"apt asks: {said[-2000:]}")
        box.run(f"dpkg --verify {package}")
        box.wait("the daemon", lambda: is_up(box), 20)
        after = box.run(kept)
        expect(after == before, f"{package} after {gone}: before {before} after {after}")
        box.run(f"dpkg --purge {gone}")
        after = box.run(kept)
        expect(after == before, f"{gone} purged: before {before} after {after}")
        expect(box.status()["ActiveState"] == "active", f"the purge ended the daemon: {after}")
    said = box.run(f"{APT} {whole}; dpkg --purge roomscribe 2>&1")
    expect("sudo apt purge roomscribe-satellite" in said, f"purge does not say what stays: {said}")
    box.run("test -e /var/lib/roomscribe/roomscribe.db; apt-get purge -y roomscribe-satellite")
    box.run("rm -rf /opt/worker /etc/worker /var/lib/worker; systemctl stop nats-server")
    leaves_nothing(box)
    return ""
