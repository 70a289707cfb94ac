"""A booted Debian container with a broker and a microphone in it, for scripts/test-deb."""

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rigs.checkout import ROOT, SPEECH

SINK = "fakemic"
ASOUND = f"""\
pcm.!default {{ type pulse server "unix:/run/fakemic/native" device {SINK}.monitor }}
ctl.!default {{ type pulse server "unix:/run/fakemic/native" }}
"""
PULSE = f"""\
load-module module-native-protocol-unix auth-anonymous=1 socket=/run/fakemic/native
load-module module-null-sink sink_name={SINK} rate=16000 channels=1 format=s16le
set-default-sink {SINK}
set-default-source {SINK}.monitor
"""
MICROPHONE_UNIT = """\
[Service]
RuntimeDirectory=fakemic
Environment=HOME=/run/fakemic XDG_RUNTIME_DIR=/run/fakemic PULSE_RUNTIME_PATH=/run/fakemic/pulse
ExecStart=/usr/bin/pulseaudio -n -F /etc/fakemic.pa --daemonize=no --exit-idle-time=-1 \
--use-pid-file=no --realtime=no --log-level=error
"""
SUBSCRIBER_UNIT = """\
[Unit]
StartLimitIntervalSec=0
[Service]
ExecStart=mosquitto_sub -V mqttv5 -q 1 -t roomscribe/# -F "%%t\\t%%p"
StandardOutput=append:/share/heard
Restart=always
RestartSec=0.2
"""
SPEAK = "PULSE_SERVER=unix:/run/fakemic/native paplay --device=" + SINK


class CheckError(Exception):
    """A check failed; the message says what it found."""


class Container:
    """A booted copy of the test root; everything written to it is deleted with its folder."""

    def __init__(self, tools: Path, root: Path, work: Path) -> None:
        self.share = work / "share"
        self._work, self._tools, self._root = work, tools, root
        self._console = work / "console.log"
        self._nspawn: subprocess.Popen[bytes] | None = None
        self._leader = 0

    def boot(self) -> float:
        """Boot and return the seconds until systemd reports that the system runs."""
        begun_s = time.monotonic()
        self._write("etc/asound.conf", ASOUND)
        self._write("etc/fakemic.pa", PULSE)
        self._write("etc/systemd/system/fakemic.service", MICROPHONE_UNIT)
        self._write("etc/systemd/system/subscriber.service", SUBSCRIBER_UNIT)
        self.share.mkdir(parents=True, exist_ok=True)
        shutil.copytree(SPEECH, self.share / "speech", dirs_exist_ok=True)
        command = [ROOT / "scripts" / "deb" / "boot.sh", self._tools, self._root, self._work]
        with self._console.open("wb") as console:
            self._nspawn = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        self.wait("the container's systemd", self._find_leader, 30)
        state = "systemctl is-system-running"
        booted = ("running", "degraded")
        self.wait("its boot", lambda: self.run(state, check=False).strip() in booted, 60)
        return time.monotonic() - begun_s

    def close(self) -> None:
        """End the container at once."""
        if self._nspawn and self._nspawn.poll() is None:
            self._nspawn.terminate()
            try:
                self._nspawn.wait(15)
            except subprocess.TimeoutExpired:
                self._nspawn.kill()
                self._nspawn.wait()

    def run(self, command: str, *, check: bool = True, timeout_s: float = 120) -> str:
        """Run a shell command inside as root and return its output (both streams)."""
        done = subprocess.run(
            self._enter(command), capture_output=True, text=True, timeout=timeout_s, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        output = done.stdout + done.stderr
        if check and done.returncode:
            raise CheckError(f"`{command}` ended with {done.returncode}: {output[-2000:]}")
        return output

    def begin(self, command: str) -> subprocess.Popen[bytes]:
        """Start a shell command inside and return its process."""
        quiet = subprocess.DEVNULL
        return subprocess.Popen(self._enter(command), stdin=quiet, stdout=quiet, stderr=quiet)

    def status(self, unit: str = "roomscribe") -> dict[str, str]:
        """Return the properties of a unit as `systemctl show` prints them."""
        names = "ActiveState,SubState,Result,MainPID,NRestarts,StatusText,ExecMainStatus"
        lines = self.run(f"systemctl show {unit} -p {names},InvocationID").splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def journal(self, extra: str = "") -> str:
        """Return the messages of the unit's journal."""
        return self.run(f"journalctl --sync; journalctl -u roomscribe -o cat --no-pager {extra}")

    def heard(self, topic: str = "transcript") -> list[Any]:
        """Return the payloads that the subscriber has received on a topic."""
        file = self.share / "heard"
        found = []
        for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
            name, _, payload = line.partition("\t")
            if name.endswith("/" + topic) and payload:
                found.append(json.loads(payload) if payload.startswith("{") else payload)
        return found

    def wait(self, event: str, condition: Callable[[], object], within_s: float = 15) -> float:
        """Wait until `condition()` is true and return the seconds.

        Raises CheckError if it takes longer than `within_s`.
        """
        begun_s = time.monotonic()
        while not condition():
            if time.monotonic() - begun_s > within_s:
                raise CheckError(f"{event} did not happen within {within_s:g} s")
            time.sleep(0.1)
        return time.monotonic() - begun_s

    def _enter(self, command: str) -> list[str]:
        namespaces = ["-m", "-p", "-u", "-i", "-n", "-C", "-r", "-w"]
        environment = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TERM=dumb"]
        environment += ["LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"]
        return [
            "nsenter", "-t", str(self._leader), *namespaces,
            "/usr/bin/env", "-i", *environment, "/bin/bash", "-c", command,
        ]  # fmt: skip

    def _write(self, name: str, text: str) -> None:
        file = self._work / "upper" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def _find_leader(self) -> bool:
        """Find the container's process 1 as the host sees it, and return whether it exists."""
        assert self._nspawn is not None
        if self._nspawn.poll() is not None:
            raise CheckError(f"nspawn ended: {self._console.read_text(errors='replace')[-2000:]}")
        children = subprocess.run(
            ["pgrep", "-P", str(self._nspawn.pid)], capture_output=True, text=True, check=False
        )
        for pid in children.stdout.split():
            with suppress(OSError):  # it has ended meanwhile
                if Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip() == "systemd":
                    self._leader = int(pid)
        return self._leader > 0
