"""Nothing leaves the house: every packet of a command is watched in a network of its own.

There, all addresses lead to the loopback interface and the name server is a stranger's, so that a
look-up or a connection to anybody shows as a packet. The home is empty.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from rigs.checkout import ROOT, TESTS, environment, require_model
from rigs.command import PROGRAM
from rigs.daemon import write_config
from rigs.needs import unless
from rigs.waiting import PATIENCE_S

ENCLOSE = ("unshare", "--map-root-user", "--net", "--mount")
STRANGER = "192.0.2.53"
"""Of the addresses for documentation (RFC 5737)."""
WATCH = r"""
import ipaddress, json, os, select, socket, subprocess, sys, time
resolver, seconds, *command = sys.argv[1:]
for arguments in ("link set lo up", "route add local default dev lo"):
    subprocess.run(["ip", *arguments.split()], check=True)
subprocess.run(["ip", "-6", "route", "add", "local", "default", "dev", "lo"])
subprocess.run(["mount", "--bind", resolver, "/etc/resolv.conf"], check=True)
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
wire.bind(("lo", 0))
process = subprocess.Popen(command)
strangers, deadline_s = set(), time.monotonic() + float(seconds)
while process.poll() is None and time.monotonic() < deadline_s:
    if not select.select([wire], [], [], 0.2)[0]:
        continue
    packet = wire.recv(65535)
    version = packet[14] >> 4
    at = packet[30:34] if version == 4 else packet[38:54]
    address = ipaddress.ip_address(at)
    if not address.is_loopback:
        strangers.add(str(address))
process.terminate()
process.wait()
print("STRANGERS " + json.dumps(sorted(strangers)))
"""


def missing() -> str:
    """Return why no command can be enclosed here; "" if one can."""
    if lacking := [name for name in ("unshare", "ip", "mount") if not shutil.which(name)]:
        return f"no {', '.join(lacking)} here"
    tried = subprocess.run(
        [*ENCLOSE, "ip", "link", "set", "lo", "up"], check=False, capture_output=True
    )
    return "this machine does not allow a network of its own" if tried.returncode else ""


def strangers(folder: Path, seconds: float, *command: str | Path) -> list[str]:
    """Return the addresses other than this machine's to which the command sent something.

    Its home, and its folder for temporary files, must stay empty but for PulseAudio's library.
    """
    home = folder / "home"
    home.mkdir()
    resolver = folder / "resolv.conf"
    resolver.write_text(f"nameserver {STRANGER}\n")
    done = subprocess.run(
        [*ENCLOSE, sys.executable, "-c", WATCH, resolver, str(seconds), *command],
        env=environment(HOME=str(home), TMPDIR=str(home)) | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    files = [path for path in home.rglob("*") if not path.is_dir() and "pulse" not in str(path)]
    assert files == []
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("STRANGERS "))
    found: list[str] = json.loads(line.removeprefix("STRANGERS "))
    return found


pytestmark = unless(missing())


def test_a_look_up_and_a_connection_are_seen(tmp_path: Path) -> None:
    program = (
        "import contextlib, socket\n"
        "with contextlib.suppress(OSError): socket.getaddrinfo('example.org', 443)\n"
        "with contextlib.suppress(OSError): socket.create_connection(('198.51.100.7', 443), 1)\n"
    )
    assert strangers(tmp_path, 20, sys.executable, "-c", program) == ["192.0.2.53", "198.51.100.7"]


def test_transcribing_reaches_nobody(tmp_path: Path) -> None:
    """Long enough for the telemetry of onnxruntime, which came 10 s after the start."""
    require_model()
    speech = sorted((TESTS / "speech").glob("*.flac"))
    command = (*PROGRAM, "transcribe", *map(str, speech))
    assert strangers(tmp_path, 60, sys.executable, *command) == []


def test_the_daemon_reaches_its_broker_and_nobody_else(tmp_path: Path) -> None:
    """For 25 s: the telemetry of onnxruntime came 5 s after the daemon was ready."""
    require_model()
    config = write_config(tmp_path, 1883, wyoming={"enabled": True})
    command = (sys.executable, *PROGRAM, "run", "--config", str(config))
    assert strangers(tmp_path, 25, *command) == []
