"""Checks of the installed package: the daemon with its broker and its microphone, and commands as
an ordinary user of the machine types them."""

import random
import re
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deb.container import SPEAK, CheckError, Container
from deb.heard import words_right
from rigs.checkout import TESTS

PROBE = Path(__file__).with_name("probe.py")
SECURITY_AT_MOST = 1.2
STOP_WITHIN_S = 5.0
SPEAK_FIRST = f"{SPEAK} /share/speech/00.flac"
CONFIG, STATE = "/etc/roomscribe/roomscribe.toml", "/var/lib/roomscribe"
MODELS = "/var/lib/roomscribe-models"
APT = "apt-get install -y"
"""Without a terminal: a question of dpkg would end it."""
SPOKEN = {
    "00.flac": "what is the weather like in chicago",
    "01.flac": "remind me in four minutes",
    "26.flac": "turn on the living room lights",
}
"""Recordings and their words."""
USER = "edna"
HUB = Path(__file__).with_name("hub.py")
OWN_CONFIG = f"/home/{USER}/own.toml"
SOUND = "/share/speech/00.flac"
FAILURES = ("Traceback", "unexpected ", "Schema error", "Warning: ")
"""Words that no command may print..."""
SYSTEMCTL = "Warning: some journal files were not opened due to insufficient permissions."
"""... except this line of systemctl for a user who cannot read the other users' journals."""
SUBSCRIBER = "mosquitto_sub -t 'roomscribe/+/transcript' | jq -r .text"
README = {
    "systemctl status roomscribe": 'Status: "listening',
    "sudo roomscribe log --since 2h --grep light": "light",
    "sudo roomscribe model add tiny": "chosen instead of tiny.en",
    "sudo roomscribe doctor": "microphone",
    SUBSCRIBER: "",
}
"""Commands of README.md that need no checkout, and a part of their output."""


def expect(condition: object, message: str) -> None:
    """Raises CheckError with `message` unless `condition` is true."""
    if not condition:
        raise CheckError(message)


def texts(box: Container) -> list[str]:
    """Return the texts that the subscriber has received."""
    return [event["text"] for event in box.heard()]


def hears(box: Container, name: str = "00.flac") -> float:
    """Play a sentence and return the seconds from its end to its transcript at the subscriber."""
    before = len(box.heard())
    box.run(f"{SPEAK} /share/speech/{name}")
    took_s = box.wait(f"the transcript of {name}", lambda: len(box.heard()) > before, 20)
    spoken, heard = SPOKEN[name], texts(box)[before]
    expect(is_alike(spoken, heard), f"spoken {spoken!r}, heard {heard!r}")
    return took_s


def is_alike(spoken: str, heard: str) -> bool:
    """Return whether at least two of three words are right."""
    right, words = words_right(spoken, heard)
    return right >= 2 / 3 * words


RESTART = "systemctl reset-failed roomscribe; systemctl restart roomscribe"


def restart(box: Container, command: str = RESTART) -> None:
    """Run what starts the daemon, and wait until it listens."""
    box.run(command)
    box.wait("the start", lambda: listens(box), 40)


def exposure(box: Container, unit: str, most: float) -> float:
    """Return the score of `systemd-analyze security`, which may be `most`."""
    report = box.run(f"systemd-analyze security --no-pager {unit}.service")
    score = float(re.findall(rf"{re.escape(unit)}\.service: ([\d.]+)", report)[0])
    expect(score <= most, f"systemd-analyze security says {score}:\n{report}")
    return score


def is_up(box: Container) -> bool:
    """Return whether systemd reports the unit as running."""
    return box.status()["ActiveState"] == "active"


def listens(box: Container) -> bool:
    """Return whether the status line says that the daemon listens."""
    return box.status()["StatusText"].startswith("listening")


def installs(box: Container, deb: str, model: str) -> str:
    """`apt install` of the program and its model starts a daemon that keeps running without a
    microphone and a broker. None of its libraries is installed before, and there is no network."""
    libraries = box.run(
        "dpkg-query -f '${Package}\\n' -W | grep -E 'sndfile|portaudio|numpy' || true"
    )
    expect(not libraries, f"already installed: {libraries.split()}")
    begun_s = time.monotonic()
    apt = box.run(f"apt-get install -y {deb} {model}", timeout_s=400)
    took_s = time.monotonic() - begun_s
    expect("Could not execute" not in apt, f"apt says:\n{apt[-2000:]}")
    expect(is_up(box), f"after installation: {box.status()}")
    time.sleep(6)
    status = box.status()
    expect(is_up(box) and status["NRestarts"] == "0", f"did not stay up: {status}")
    text = status["StatusText"]
    lacks = text.startswith("waiting for a microphone") and "broker" in text
    expect(lacks, f"STATUS does not name what is missing: {text}")
    journal = box.journal()
    expect("microphone" in journal and "broker" in journal, f"not in the journal: {journal}")
    expect("PortAudio" not in journal, f"the first start does not find PortAudio: {journal}")
    found = box.run("roomscribe model list; dpkg-query -W -f '${Recommends}' roomscribe")
    expect("tiny.en" in found and "roomscribe-model-tiny-en" in found, f"the model: {found}")
    ready = re.findall(r"ready after ([\d.]+) s", journal)
    return f"apt took {took_s:.0f} s; daemon ready {ready[-1]} s after its start; STATUS: {text}"


def is_whole(box: Container) -> str:
    """The package has its command, manual pages, completion, configuration, user and bytecode."""
    box.run("roomscribe --version && roomscribe model list")
    box.run("man -w roomscribe roomscribe.toml && man roomscribe.toml | grep -q retention")
    found = box.run(
        "bash -ic 'source /usr/share/bash-completion/bash_completion;"
        " source /usr/share/bash-completion/completions/roomscribe;"
        " COMP_WORDS=(roomscribe model a);"
        ' COMP_CWORD=2; COMP_LINE="roomscribe model a"; COMP_POINT=18; _shtab_roomscribe;'
        " echo ${COMPREPLY[@]}' 2>/dev/null"
    )
    expect("add" in found.split(), f"completion of `roomscribe model a` gives {found!r}")
    box.run("cmp /usr/share/roomscribe/roomscribe.toml /etc/roomscribe/roomscribe.toml")
    conffiles = box.run("dpkg-query -W -f='${Conffiles}' roomscribe").strip()
    expect(not conffiles, f"dpkg asks about {conffiles}")
    expect("audio" in box.run("id roomscribe"), "the user is not in the group audio")
    compiled = box.run("ls /usr/lib/roomscribe/appliance/__pycache__").strip()
    expect(compiled, "the code is not compiled")
    box.run("dpkg --verify roomscribe roomscribe-model-tiny-en")
    box.run("udevadm verify /usr/lib/udev/rules.d/70-roomscribe.rules")
    return box.run("systemd-analyze verify /usr/lib/systemd/system/roomscribe.service").strip()


def is_sandboxed(box: Container) -> str:
    """The sandbox is closed: the unit's score, the process's rights, a probe in the unit."""
    score = exposure(box, "roomscribe", SECURITY_AT_MOST)
    process = box.run(f"cat /proc/{box.status()['MainPID']}/status")
    for line in ("CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"):
        expect(line in process, f"the daemon's /proc/PID/status lacks {line!r}")
    expect("Seccomp:\t2" in process, "the daemon runs without a system call filter")
    is_closed(box, "roomscribe.service")
    return f"systemd-analyze security {score}"


def is_closed(box: Container, unit: str, *arguments: str) -> None:
    """Fail if a probe in the sandbox of the shipped unit can do what must be impossible."""
    (box.share / "probe.py").write_text(PROBE.read_text(encoding="utf-8"), encoding="utf-8")
    box.run(
        "install -d -m 700 /home/somebody /root; echo secret | tee /home/somebody/file >/dev/null"
    )
    box.run("install -d -m 700 /etc/credstore; echo word > /etc/credstore/roomscribe.probe")
    box.run("touch /root/.bashrc; systemd-run -q -u victim sleep infinity")
    probe = " ".join(["/usr/bin/python3 -I /share/probe.py", *arguments])
    name = "-".join(["probe", *arguments])
    box.run(
        f"sed -e '/^Type=/d' -e 's|^ExecStart=.*|Type=oneshot\\nExecStart={probe}|'"
        " -e '/^Restart/d' -e '/^WatchdogSec/d'"
        " -e '/^RuntimeDirectory/d' -e '/^Standard/d' -e '/^RuntimeMax/d'"
        f" /usr/lib/systemd/system/{unit} > /run/systemd/system/{name}.service"
        f"; systemctl daemon-reload; systemctl start {name}.service || true"
    )
    output = box.run(f"journalctl --sync; journalctl -u {name} -o cat --no-pager")
    expect("PROBE: all closed" in output, f"the probe got through:\n{output}")
    box.run("systemctl is-active victim && test ! -e /etc/probe-escaped && systemctl stop victim")
    box.run(f"rm /etc/credstore/roomscribe.probe /run/systemd/system/{name}.service")
    box.run("systemctl daemon-reload")


def finds_broker(box: Container) -> str:
    """The daemon connects when a broker appears."""
    box.run("systemctl start mosquitto subscriber")
    took_s = box.wait("availability online", lambda: "online" in box.heard("availability"), 60)
    return f"online {took_s:.1f} s after the broker came"


def finds_microphone(box: Container) -> str:
    """The daemon listens when a microphone appears, and a subscriber receives the sentences."""
    box.run("apt-get install -y --no-download $(cat /root/later)", timeout_s=400)
    box.run("systemctl start fakemic")
    took_s = box.wait("the microphone", lambda: listens(box), 20)
    time.sleep(2)
    lag_s = [hears(box, name) for name in SPOKEN]
    count = f"{len(SPOKEN)} transcripts, CPU"
    box.wait("the count in STATUS", lambda: count in box.status()["StatusText"], 5)
    return f"listening after {took_s:.1f} s; {max(lag_s):.2f} s from the sound's end to the text"


def keeps_text_private(box: Container) -> str:
    """The text of speech is in the log, which only root can read, and not in the journal."""
    journal = box.run("journalctl --sync; journalctl --no-pager -o export")
    for sentence in texts(box):
        expect(sentence not in journal, "the journal contains the text of speech")
        expect(sentence in box.run("roomscribe log"), "`roomscribe log` does not show it")
    modes = box.run("stat -c '%a %U' /var/lib/roomscribe /var/lib/roomscribe/roomscribe.db").split()
    expect(modes == ["700", "roomscribe", "600", "roomscribe"], f"modes of the log: {modes}")
    return ""


def outlives_hanging(box: Container) -> str:
    """The watchdog restarts a process that hangs."""
    drop_in = "/run/systemd/system/roomscribe.service.d"
    box.run(f"mkdir -p {drop_in}; printf '[Service]\\nWatchdogSec=6\\n' > {drop_in}/test.conf")
    restart(box, "systemctl daemon-reload; systemctl restart roomscribe")
    before = box.status()["InvocationID"]
    box.run("systemctl kill --kill-whom=main -s STOP roomscribe")
    took_s = box.wait("the watchdog", lambda: box.status()["InvocationID"] != before, 60)
    took_s += box.wait("the daemon", lambda: listens(box), 60)
    expect("atchdog timeout" in box.run("journalctl -u roomscribe --no-pager"), "not the watchdog")
    restart(box, f"rm -r {drop_in}; systemctl daemon-reload; systemctl restart roomscribe")
    return f"ended and back after {took_s:.1f} s (WatchdogSec=6 for this test, 30 in the unit)"


def stops_in_time(box: Container) -> str:
    """A stop publishes the sentence that was just spoken, within 5 s."""
    before = len(box.heard())
    box.run(SPEAK_FIRST)
    begun_s = time.monotonic()
    box.run("systemctl stop roomscribe")
    took_s = time.monotonic() - begun_s
    expect(took_s < STOP_WITHIN_S, f"stopping took {took_s:.1f} s")
    box.wait("the last sentence", lambda: len(box.heard()) > before, 5)
    expect(box.heard("availability")[-1] == "offline", "availability is not offline")
    restart(box)
    return f"stopped in {took_s:.1f} s"


def does(box: Container, command: str, *statuses: int) -> str:
    """Run a command as the user and return its output (both streams). It must end with one of
    `statuses` (default: 0) and print none of FAILURES."""
    line = f'runuser -l {USER} -c {shlex.quote(command)} 2>&1; echo "status $?"'
    output, _, status = box.run(line, timeout_s=180).rstrip().rpartition("status ")
    expect(int(status) in (statuses or (0,)), f"{USER}: `{command}` ended with {status}: {output}")
    for word in FAILURES:
        visible = output.replace(SYSTEMCTL, "")
        expect(word not in visible, f"{USER}: `{command}` says {word!r}: {output[-2000:]}")
    return output


def refused(box: Container, command: str, status: int, word: str) -> None:
    """Expect that the command ends with `status` and one line, which contains `word`."""
    output = does(box, command, status).splitlines()
    expect(len(output) == 1 and word in output[0], f"{USER}: `{command}` says {output}")


def is_well(box: Container, command: str, *unhealthy: str) -> str:
    """Return the doctor's output. Only the clock, which nothing sets in a container, and the checks
    `unhealthy` may have failed."""
    page = does(box, command, *range(2 + len(unhealthy)))
    failed = {name.strip() for name in re.findall(r"^  (?:XX|\u2717) +(.{21})", page, re.M)}
    expect(failed <= {"clock", *unhealthy}, f"{USER}: `{command}` says that these failed: {failed}")
    return page


@contextmanager
def quiet_room(box: Container) -> Iterator[None]:
    """Play faint noise into the microphone, which would otherwise count as switched off."""
    noise = bytes(random.Random(1).choices(range(8), k=64_000))
    (box.share / "noise").write_bytes(b"".join(bytes((low, 0)) for low in noise))
    play = f"{SPEAK} --raw --rate=16000 --channels=1 --format=s16le /share/noise"
    box.run(f"systemd-run -q -u room sh -c 'while {play}; do :; done'")
    try:
        yield
    finally:
        box.run("systemctl stop room")


def has_a_user(box: Container) -> str:
    """There is a user with sudo, whose umask lets nobody else read, and a hub with one model."""
    shutil.copytree(TESTS / "rigs", box.share / "rigs", dirs_exist_ok=True)
    shutil.copy(HUB, box.share)
    box.run(
        f"useradd -m -s /bin/bash {USER}; echo 127.0.1.1 $(hostname) >> /etc/hosts;"
        "printf 'Defaults umask=0077,umask_override\\nDefaults env_keep += HF_ENDPOINT\\n"
        f"{USER} ALL=NOPASSWD: ALL\\n' > /etc/sudoers.d/{USER};"
        "systemd-run -q -u hub -E PYTHONDONTWRITEBYTECODE=1"
        " -E PYTHONPATH=/share:/usr/lib/roomscribe:/usr/lib/roomscribe/vendor"
        " python3 /share/hub.py /share/hub;"
        f"echo 'export HF_ENDPOINT=$(cat /share/hub)' >> /home/{USER}/.profile"
    )
    box.wait("the hub", (box.share / "hub").exists, 20)
    return ""


def serves_a_user(box: Container) -> str:
    """Commands that need no rights work without sudo; the others name sudo in one line."""
    does(box, "roomscribe --help && roomscribe --version && roomscribe devices")
    expect("tiny.en" in does(box, "roomscribe model list"), "model list")
    spoken, heard = SPOKEN["00.flac"], does(box, f"roomscribe transcribe {SOUND}").splitlines()[-1]
    expect(is_alike(spoken, heard), f"spoken {spoken!r}, written {heard!r}")
    for command in ("log", "log --follow", "log --delete --all --yes", "mute", "mute on"):
        refused(box, f"roomscribe {command}", 74, "sudo")
    refused(box, "roomscribe setup --yes --node keller", 78, "sudo")
    for command in ("add tiny", "use tiny.en"):
        refused(box, f"roomscribe model {command}", 78, "sudo")
    expect("watching" in does(box, "timeout 3 roomscribe mqtt watch", 124), "mqtt watch")
    expect("is online" in does(box, "roomscribe mqtt forget", 74), "mqtt forget")
    with quiet_room(box):
        is_well(box, "roomscribe doctor --report report.json")
    box.run(
        f'printf \'[appliance]\\nnode = "own"\\n[store]\\npath = "/home/{USER}/log"\\n\''
        f" > {OWN_CONFIG}"
    )
    own = does(box, f"timeout 6 roomscribe run --config {OWN_CONFIG}", 124)
    expect("listening to" in own, f"a daemon of the user's own: {own}")
    box.run(f"rm -r /home/{USER}/log {OWN_CONFIG}")
    table = does(box, "roomscribe benchmark --rows cpu")
    expect("Roomscribe, CPU, 10 s, INT8" in table, f"the benchmark: {table}")
    return ""


def sets_up(box: Container) -> str:
    """`sudo roomscribe setup` with options renames the running appliance, and keeps the comments,
    owner and mode of the configuration. The control socket belongs to the daemon's group."""
    socket = box.run("stat -c '%F %a %U %G' /run/roomscribe/control").strip()
    expect(socket == "socket 660 roomscribe roomscribe", f"the control socket: {socket}")
    before = box.run(f"stat -c '%a %U %G' {CONFIG}; grep -c '#' {CONFIG}; cp -p {CONFIG} /root/was")
    process = box.status()["MainPID"]
    with quiet_room(box):
        setup = "sudo roomscribe setup --yes --node Keller"
        output = does(box, f"{setup} --broker localhost --device ''")
        expect('+node = "keller"' in output and "the daemon uses them" in output, output)
        hears(box)
    event = box.heard()[-1]
    expect(event["node"] == "keller", f"the node is {event['node']}")
    expect(box.status()["MainPID"] == process, "it was restarted")
    after = box.run(f"stat -c '%a %U %G' {CONFIG}; grep -c '#' {CONFIG}")
    same = before.split()[:3] == after.split()[:3]
    # the name and the area that follows it were commented out
    expect(same and int(before.split()[3]) - int(after.split()[3]) <= 2, f"{before} -> {after}")
    again = does(box, setup)
    expect("Nothing to change" in again, again)
    box.run(f"cp -p /root/was {CONFIG}; systemctl reload roomscribe")
    box.wait("listening again", lambda: listens(box), 10)
    return ""


def keeps_to_readme(box: Container) -> str:
    """The commands of README.md print what it promises, as the user types them."""
    subscriber = box.begin(
        f"runuser -l {USER} -c {shlex.quote('timeout 8 ' + SUBSCRIBER)} > /share/subscribed"
    )
    hears(box, "26.flac")
    subscriber.wait(20)
    output = (box.share / "subscribed").read_text(encoding="utf-8").strip()
    expect(is_alike(SPOKEN["26.flac"], output), f"the subscriber printed {output!r}")
    with quiet_room(box):
        for command, word in README.items():
            if command == SUBSCRIBER:
                continue
            # the model that was added knows no word
            lame = "doctor" in command
            found = is_well(box, command, "self-test on the CPU") if lame else does(box, command)
            expect(word in found, f"`{command}` says {found}")
    return ""


def reads_models(box: Container) -> str:
    """Every user can read the model that README.md's command has added; root can remove it."""
    expect("* tiny" in does(box, "roomscribe model list"), "the new model is not in use")
    does(box, f"roomscribe transcribe --json --model tiny {SOUND}")
    box.run(f"chmod 700 {MODELS}")
    output = does(box, f"roomscribe transcribe {SOUND}").splitlines()
    named = [line for line in output if MODELS in line]
    expect(len(named) == 1 and "sudo" in named[0], f"a folder that may not be read: {output}")
    expect(is_alike(SPOKEN["00.flac"], output[-1]), f"written is {output[-1]!r}")
    box.run(f"chmod 755 {MODELS}")
    does(box, "sudo roomscribe model use tiny.en && sudo roomscribe model remove tiny")
    return does(box, "roomscribe model list").strip()
