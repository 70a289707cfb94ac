"""What must hold for an ordinary user of the machine: every command of README.md, and some more."""

from __future__ import annotations

import random
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deb.checks import SPOKEN, expect, hears, is_alike, listens
from deb.container import SPEAK, Container
from rigs.checkout import ROOT, TESTS

USER = "edna"
CONFIG = "/etc/roomscribe/roomscribe.toml"
MODELS = "/var/lib/roomscribe-models"
HUB = Path(__file__).with_name("hub.py")
OWN_CONFIG = f"/home/{USER}/own.toml"
SOUND = "/share/speech/00.flac"
FAILURES = ("Traceback", "unexpected ", "Schema error", "Warning: ")
"""Never in the output of a command..."""
SYSTEMCTL = "Warning: some journal files were not opened due to insufficient permissions."
"""... but for what systemctl says to a user who has a journal and may not read the others."""
SUBSCRIBER = "mosquitto_sub -t 'roomscribe/+/transcript' | jq -r .text"
BUILDING = {
    "scripts/demo", "scripts/test", "sudo scripts/build-deb",
    "sudo apt install ./dist/roomscribe_*.deb",
}  # fmt: skip
"""Commands of README.md for a checkout; the last one is the test itself."""
README = {
    "systemctl status roomscribe": 'Status: "listening',
    "sudo roomscribe log --since 2h --grep light": "light",
    "sudo roomscribe model add tiny": "chosen instead of home-en",
    "sudo roomscribe doctor": "microphone",
    SUBSCRIBER: "",
}
"""The others, with what their output has."""


def readme_commands() -> list[str]:
    """Every command line of README.md, without its comment."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    shown = (line.partition("  #")[0].strip() for line in lines if line.startswith("    "))
    return list(filter(None, shown))


def does(box: Container, command: str, *statuses: int) -> str:
    """Output (both streams) of a command of the user's, which ends with one of `statuses`, or 0,
    and in whose output there is nothing that a user must not see."""
    line = f'runuser -l {USER} -c {shlex.quote(command)} 2>&1; echo "status $?"'
    said, _, status = box.run(line, timeout_s=180).rstrip().rpartition("status ")
    expect(int(status) in (statuses or (0,)), f"{USER}: `{command}` ended with {status}: {said}")
    for word in FAILURES:
        told = said.replace(SYSTEMCTL, "")
        expect(word not in told, f"{USER}: `{command}` says {word!r}: {said[-2000:]}")
    return said


def refused(box: Container, command: str, status: int, word: str) -> None:
    """The command ends with `status` and one line, which has `word`."""
    said = does(box, command, status).splitlines()
    expect(len(said) == 1 and word in said[0], f"{USER}: `{command}` says {said}")


def is_well(box: Container, command: str, *unwell: str) -> str:
    """A page of the doctor's, on which nothing has failed but the clock, which nobody sets in a
    container, and `unwell`."""
    page = does(box, command, *range(2 + len(unwell)))
    failed = {name.strip() for name in re.findall(r"^  (?:XX|\u2717) +(.{21})", page, re.M)}
    expect(failed <= {"clock", *unwell}, f"{USER}: `{command}` says that these failed: {failed}")
    return page


@contextmanager
def quiet_room(box: Container) -> Iterator[None]:
    """The microphone hears a little noise: with none at all it is taken for switched off."""
    noise = bytes(random.Random(1).choices(range(8), k=64_000))
    (box.share / "noise").write_bytes(b"".join(bytes((one, 0)) for one in noise))
    play = f"{SPEAK} --raw --rate=16000 --channels=1 --format=s16le /share/noise"
    box.run(f"systemd-run -q -u room sh -c 'while {play}; do :; done'")
    try:
        yield
    finally:
        box.run("systemctl stop room")


def has_a_user(box: Container) -> str:
    """A user without rights but sudo's, whose umask lets nobody read, and a hub with one model."""
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
    """What needs no rights works without sudo; the rest says sudo, in one line."""
    does(box, "roomscribe --help && roomscribe --version && roomscribe devices")
    for command in ("list", "info", "verify"):
        expect("home-en" in does(box, f"roomscribe model {command}"), f"model {command}")
    said, heard = SPOKEN["00.flac"], does(box, f"roomscribe transcribe {SOUND}").splitlines()[-1]
    expect(is_alike(said, heard), f"said {said!r}, written {heard!r}")
    for command in ("log", "log --follow", "log --delete --all --yes", "mute", "mute on"):
        refused(box, f"roomscribe {command}", 74, "sudo")
    refused(box, "roomscribe setup --yes --node keller", 78, "sudo")
    for command in ("add tiny", "use home-en"):
        refused(box, f"roomscribe model {command}", 78, "sudo")
    expect("watching" in does(box, "timeout 3 roomscribe mqtt watch", 124), "mqtt watch")
    expect("is online" in does(box, "roomscribe mqtt forget", 74), "mqtt forget")
    with quiet_room(box):
        is_well(box, "roomscribe doctor")
    does(box, "roomscribe hardware-check --no-benchmark --out report.json")
    box.run(
        f'printf \'[appliance]\\nnode = "own"\\n[store]\\npath = "/home/{USER}/log"\\n\''
        f" > {OWN_CONFIG}"
    )
    own = does(box, f"timeout 6 roomscribe run --config {OWN_CONFIG}", 124)
    expect("listening to" in own, f"a daemon of the user's own: {own}")
    box.run(f"rm -r /home/{USER}/log {OWN_CONFIG}")
    table = does(box, "roomscribe benchmark --random-weights tiny --repeats 1")
    expect("Roomscribe, CPU, balanced" in table, f"the benchmark: {table}")
    return ""


def sets_up(box: Container) -> str:
    """`sudo roomscribe setup` by its options: the running daemon takes the new name, and the
    configuration keeps its comments, owner and mode; the socket is for the daemon's group."""
    socket = box.run("stat -c '%F %a %U %G' /run/roomscribe/control").strip()
    expect(socket == "socket 660 roomscribe roomscribe", f"the control socket: {socket}")
    before = box.run(f"stat -c '%a %U %G' {CONFIG}; grep -c '#' {CONFIG}; cp -p {CONFIG} /root/was")
    process = box.status()["MainPID"]
    with quiet_room(box):
        said = does(box, "sudo roomscribe setup --yes --node Keller --broker localhost --device ''")
        expect('+node = "keller"' in said and "the daemon has read it" in said, said)
        hears(box)
    event = box.heard()[-1]
    expect(event["node"] == "keller", f"the node is {event['node']}")
    expect(box.status()["MainPID"] == process, "it was restarted")
    after = box.run(f"stat -c '%a %U %G' {CONFIG}; grep -c '#' {CONFIG}")
    same = before.split()[:3] == after.split()[:3]
    # the name and the area that follows it were commented out
    expect(same and int(before.split()[3]) - int(after.split()[3]) <= 2, f"{before} -> {after}")
    again = does(box, "sudo roomscribe setup --yes --node Keller")
    expect("Nothing to change" in again, again)
    box.run(f"cp -p /root/was {CONFIG}; systemctl reload roomscribe")
    box.wait("listening again", lambda: listens(box), 10)
    return ""


def keeps_to_readme(box: Container) -> str:
    """Every command of README.md does what it says, as the user types it."""
    unknown = set(readme_commands()) - README.keys() - BUILDING
    expect(not unknown, f"nothing tries these commands of README.md: {unknown}")
    subscriber = box.begin(
        f"runuser -l {USER} -c {shlex.quote('timeout 8 ' + SUBSCRIBER)} > /share/subscribed"
    )
    hears(box, "26.flac")
    subscriber.wait(20)
    said = (box.share / "subscribed").read_text(encoding="utf-8").strip()
    expect(is_alike(SPOKEN["26.flac"], said), f"the subscriber printed {said!r}")
    with quiet_room(box):
        for command, word in README.items():
            if command == SUBSCRIBER:
                continue
            # the model that was added knows no word
            found = (
                is_well(box, command, "self-test on the CPU")
                if "doctor" in command
                else does(box, command)
            )
            expect(word in found, f"`{command}` says {found}")
    return ""


def reads_models(box: Container) -> str:
    """The model that README.md's command has added is the user's to read, and root's to remove."""
    expect("* tiny" in does(box, "roomscribe model list"), "the new model is not in use")
    expect(f"{MODELS}/tiny" in does(box, "roomscribe model info"), "model info")
    expect(f"{MODELS}/tiny" in does(box, "roomscribe model verify"), "model verify")
    does(box, f"roomscribe transcribe --json --model tiny {SOUND}")
    box.run(f"chmod 700 {MODELS}")
    said = does(box, f"roomscribe transcribe {SOUND}").splitlines()
    told = [line for line in said if MODELS in line]
    expect(len(told) == 1 and "sudo" in told[0], f"a folder that may not be read: {said}")
    expect(is_alike(SPOKEN["00.flac"], said[-1]), f"written is {said[-1]!r}")
    box.run(f"chmod 755 {MODELS}")
    does(box, "sudo roomscribe model use home-en && sudo roomscribe model remove tiny")
    return does(box, "roomscribe model list").strip()
