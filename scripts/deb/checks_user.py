"""What must hold for an ordinary user of the machine: commands, and what they print."""

import random
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deb.checks import CONFIG, MODELS, SPOKEN, expect, hears, is_alike, listens
from deb.container import SPEAK, Container
from rigs.checkout import TESTS

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
    for command in ("list", "info", "verify"):
        expect("tiny.en" in does(box, f"roomscribe model {command}"), f"model {command}")
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
    expect(f"{MODELS}/tiny" in does(box, "roomscribe model info"), "model info")
    expect(f"{MODELS}/tiny" in does(box, "roomscribe model verify"), "model verify")
    does(box, f"roomscribe transcribe --json --model tiny {SOUND}")
    box.run(f"chmod 700 {MODELS}")
    output = does(box, f"roomscribe transcribe {SOUND}").splitlines()
    named = [line for line in output if MODELS in line]
    expect(len(named) == 1 and "sudo" in named[0], f"a folder that may not be read: {output}")
    expect(is_alike(SPOKEN["00.flac"], output[-1]), f"written is {output[-1]!r}")
    box.run(f"chmod 755 {MODELS}")
    does(box, "sudo roomscribe model use tiny.en && sudo roomscribe model remove tiny")
    return does(box, "roomscribe model list").strip()
