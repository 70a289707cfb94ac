"""What an image must do: scripts/test-image runs this in a root with podman, without a network.

/mnt has the image, recordings and room for storage. Prints one line for each check; the exit
status is 0 if all passed.
"""

import http.client
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from deb.heard import ENOUGH, words_right
from rigs.supervisor import TOKEN, Supervisor

WORK = Path("/mnt")
USER = 10300
PROGRAM = "/usr/bin/roomscribe"
PASSWORD = "sesame"
BROKER = {
    "host": "127.0.0.1", "port": 1883, "ssl": False, "username": "roomscribe",
    "password": PASSWORD, "protocol": "3.1.1", "addon": "core_mosquitto",
}  # fmt: skip
INGRESS = "172.30.32.2"
NODE = "kitchen"
SPOKEN = "26.flac"
RATE_HZ, BLOCK_S = 16_000, 0.1
EMULATED = "EMULATED" in os.environ
WITHIN_S = 3600.0 if EMULATED else 180.0
STRICT = (
    *("--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges"),
    *("--network", "host", "--cgroups", "disabled", "--log-driver", "k8s-file"),
)
CONFIG = f"""
[appliance]
node = "{NODE}"
[capture]
device = "pipe:///sound/microphone?sampleformat={RATE_HZ}:16:1"
[mqtt]
host = "127.0.0.1"
username = "roomscribe"
password_file = "/run/secrets/mqtt-password"
[web]
enabled = true
listen = "0.0.0.0"
"""


class CheckError(Exception):
    """A check failed; the message says what it found."""


def expect(found: object, wanted: object, what: str) -> None:
    """Raise CheckError unless `found` is `wanted`."""
    if found != wanted:
        raise CheckError(f"{what}: expected {wanted!r}, found {found!r}")


def wait(what: str, ready: Callable[[], object], within_s: float = WITHIN_S) -> None:
    """Wait until `ready` returns something true. Raises CheckError."""
    deadline_s = time.monotonic() + within_s
    while not ready():
        if time.monotonic() > deadline_s:
            raise CheckError(f"{what} did not come within {within_s:.0f} s")
        time.sleep(WITHIN_S / 600)


def podman(*arguments: str, given: str = "", status: int | None = 0) -> str:
    """Return what podman prints. Raises CheckError for another exit status."""
    done = subprocess.run(
        ["podman", "--root", "/mnt/storage", "--runroot", "/run/podman", *arguments],
        capture_output=True, text=True, input=given, check=False,
    )  # fmt: skip
    if status is not None and done.returncode != status:
        raise CheckError(
            f"podman {' '.join(arguments)}: expected status {status}, found {done.returncode}: "
            f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return done.stdout.strip()


def inside(name: str, *command: str, given: str = "", status: int | None = 0) -> str:
    """Return what a command prints in the container."""
    return podman("exec", "-i", name, *command, given=given, status=status)


@contextmanager
def broker() -> Iterator[Path]:
    """A Mosquitto with a password; yields the file with all messages: topic, tab, text."""
    folder = WORK / "broker"
    folder.mkdir()
    (folder / "conf").write_text(
        f"user root\nlistener 1883 127.0.0.1\npassword_file {folder}/passwords\n"
    )
    subprocess.run(
        ["mosquitto_passwd", "-b", "-c", folder / "passwords", "roomscribe", PASSWORD], check=True
    )
    heard = folder / "heard"
    subscribe = ["mosquitto_sub", "-u", "roomscribe", "-P", PASSWORD, "-t", "roomscribe/#"]
    with (
        heard.open("wb") as output,
        subprocess.Popen(["mosquitto", "-c", folder / "conf"], stderr=subprocess.DEVNULL) as server,
    ):
        time.sleep(3)
        with subprocess.Popen([*subscribe, "-F", "%t\t%p"], stdout=output) as subscriber:
            try:
                yield heard
            finally:
                subscriber.kill()
                server.terminate()


class Microphone:
    """A named pipe that always has sound: silence, or a recording."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        folder.chmod(0o755)
        self._pipe = folder / "microphone"
        os.mkfifo(self._pipe)
        os.chown(self._pipe, USER, USER)
        self._waiting: list[bytes] = []
        threading.Thread(target=self._play, daemon=True).start()

    def speak(self, name: str) -> None:
        """Play a recording of /mnt/speech."""
        self._waiting.append(
            subprocess.run(
                ["flac", "-d", "-s", "-c", "--force-raw-format", "--endian=little",
                 "--sign=signed", WORK / "speech" / name],
                capture_output=True, check=True,
            ).stdout
        )  # fmt: skip

    def _play(self) -> None:
        size = int(RATE_HZ * BLOCK_S) * 2
        pipe = os.open(self._pipe, os.O_RDWR)
        sound, due_s = b"", time.monotonic()
        while True:
            if not sound and self._waiting:
                sound = self._waiting.pop(0)
            block, sound = sound[:size], sound[size:]
            os.write(pipe, block.ljust(size, b"\0"))
            due_s = max(due_s + BLOCK_S, time.monotonic() - 1)
            time.sleep(max(0.0, due_s - time.monotonic()))


def texts(heard: Path) -> list[str]:
    """Return the texts of the transcripts that the subscriber has received."""
    lines = (line.partition("\t") for line in heard.read_text("utf-8").splitlines())
    return [json.loads(text)["text"] for topic, _, text in lines if topic.endswith("/transcript")]


def spoken_text() -> str:
    """Return the text of SPOKEN."""
    lines = (WORK / "speech/transcripts.tsv").read_text("utf-8").splitlines()
    (found,) = (line.split("\t")[2] for line in lines if line.startswith(SPOKEN))
    return found


def is_right(text: str) -> bool:
    """Return whether at least four of five words of SPOKEN are in `text`."""
    right, words = words_right(spoken_text(), text)
    return right >= ENOUGH * words


def hears(name: str, microphone: Microphone, heard: Path) -> None:
    """Have a sentence said, and check the text that comes over MQTT."""
    before = len(texts(heard))
    wait(
        "a daemon that answers",
        lambda: inside(name, "roomscribe", "container", "check", status=None).startswith("running"),
    )
    microphone.speak(SPOKEN)
    wait("a transcript", lambda: len(texts(heard)) > before)
    if not is_right(texts(heard)[-1]):
        raise CheckError(f"the transcript of {spoken_text()!r}: found {texts(heard)[-1]!r}")


def processes(name: str) -> dict[str, int]:
    """Return the process id of each of our commands in the container, by its first words."""
    script = (  # podman's top needs a cgroup
        "import json, pathlib\n"
        "for p in pathlib.Path('/proc').glob('[0-9]*'):\n"
        " try: print(json.dumps([int(p.name), *(p/'cmdline').read_text().split(chr(0))]))\n"
        " except OSError: pass"
    )
    found = {}
    for line in inside(name, "python3", "-Ic", script).splitlines():
        number, *words = json.loads(line)
        if PROGRAM in words:  # the shell that starts it has it within a script
            found[" ".join(words[words.index(PROGRAM) + 1 :][:2]).strip()] = number
    return found


def status_of(path: str, source: str = "127.0.0.1", headers: dict[str, str] | None = None) -> int:
    """Return the page's status for a request from an address; 0 if no server listens yet."""
    connection = http.client.HTTPConnection("127.0.0.1", 8099, 60, (source, 0))
    try:
        connection.request("GET", path, headers=headers or {})
        return connection.getresponse().status
    except ConnectionRefusedError:
        return 0
    finally:
        connection.close()


def check_container(image: str, microphone: Microphone, heard: Path) -> None:
    """The image as docs/containers.md runs it."""
    settings = WORK / "etc"
    settings.mkdir()
    (settings / "roomscribe.toml").write_text(CONFIG)
    podman("secret", "create", "mqtt-password", "-", given=PASSWORD)
    run = (
        *("run", *STRICT, "-v", "state:/var/lib/roomscribe"),
        *("-v", f"{settings}:/etc/roomscribe:ro"),
        *("-v", "/mnt/sound:/sound", "--secret", f"mqtt-password,uid={USER},mode=0400"),
    )
    podman(*run, "-d", "--name", "room", image)
    hears("room", microphone, heard)
    report("a recording through the microphone's pipe arrives over MQTT")
    expect(inside("room", "id", "-u"), str(USER), "the user")
    inside("room", "python3", "-Ic", "open('/usr/x', 'w')", status=1)
    inside("room", "python3", "-Ic", "open('/etc/roomscribe/x', 'w')", status=1)
    report("it runs as an ordinary user in a read-only root")
    if EMULATED:
        return
    labels = json.loads(podman("image", "inspect", image))[0]["Labels"]
    named = {name.removeprefix("org.opencontainers.image.") for name in labels if labels[name]}
    wanted = {"title", "version", "licenses", "source", "revision"}
    expect(wanted - named, set(), "labels that are missing")
    (file,) = (file for file in WORK.glob("roomscribe_*.cdx.json"))
    listed = {
        (part["name"], part["version"]) for part in json.loads(file.read_text())["components"]
    }
    packages = inside("room", "dpkg-query", "-W", "-f", "${Package} ${Version}\n").splitlines()
    expect({tuple(line.split()) for line in packages} - listed, set(), "packages not in its list")
    report(f"its labels are set, and the list beside it has its {len(packages)} packages")
    inside("room", "roomscribe", "web", "password", given="open sesame 1\n")
    wait("the page", lambda: status_of("/") == 200)
    expect(status_of("/api/session"), 401, "the page without a login")
    report("the page wants its password")
    before = processes("room")
    inside("room", "python3", "-Ic", f"import os; os.kill({before['run']}, 9)")
    wait("another daemon", lambda: processes("room").get("run", before["run"]) != before["run"])
    hears("room", microphone, heard)
    report("a killed daemon is started again")
    podman("stop", "-t", "20", "room")
    expect(podman("inspect", "room", "--format", "{{.State.ExitCode}}"), "0", "the exit status")
    podman("rm", "room")
    log = podman(*run, "--rm", image, "log")
    expect(sum(map(is_right, log.splitlines())), 2, "sentences in the log of a new container")
    report("it stops with status 0, and the volume keeps the log")
    (settings / "roomscribe.toml").write_text('[mqtt]\nhots = "x"\n')
    podman(*run, "--rm", image, status=78)
    report("a wrong configuration ends it with status 78")


def check_app(image: str, microphone: Microphone, heard: Path) -> None:
    """The image as Home Assistant's supervisor runs the app: as root, with /data and a token."""
    server = Supervisor(BROKER, port=80)
    server.__enter__()
    subprocess.run(["ip", "address", "add", f"{INGRESS}/32", "dev", "lo"], check=True)
    data = WORK / "data"
    data.mkdir()
    options = {
        "node": NODE, "words": [], "home_names": True, "retention_days": 7, "log_level": "info",
        "wyoming": True,
        "microphone": f"pipe:///sound/microphone?sampleformat={RATE_HZ}:16:1",
    }  # fmt: skip
    (data / "options.json").write_text(json.dumps(options))
    podman(
        *("run", "-d", "--name", "app", "--network", "host", "--cgroups", "disabled"),
        *("--log-driver", "k8s-file", "--add-host", "supervisor:127.0.0.1"),
        *("-e", f"SUPERVISOR_TOKEN={TOKEN}", "-v", f"{data}:/data"),
        *("-v", "/mnt/sound:/sound", image),
    )  # fmt: skip
    hears("app", microphone, heard)
    expect((data / "roomscribe/roomscribe.db").stat().st_uid, USER, "the owner of the log")
    report("as a Home Assistant app it finds the broker and leaves root")
    wait("the offer of the Wyoming server", lambda: server.told)
    expect(server.told[0]["config"], {"uri": f"tcp://{socket.gethostname()}:10300"}, "the offer")
    report("it tells the supervisor where its Wyoming server listens")
    user = {"X-Ingress-Path": "/api/hassio_ingress/x", "X-Remote-User-Id": "1", "Host": "house"}
    expect(status_of("/api/session", INGRESS, user), 200, "ingress")
    expect(status_of("/api/session", headers=user), 421, "another address")
    report("its page opens to the supervisor's address, and to no other")
    podman("stop", "-t", "20", "app")
    expect(podman("inspect", "app", "--format", "{{.State.ExitCode}}"), "0", "the exit status")


def report(what: str) -> None:
    """Print a check that has passed."""
    print(f"test-image: passed: {what}", flush=True)


def main() -> int:
    """Run all checks; return the exit status."""
    begun_s = time.monotonic()
    for file in sorted(WORK.glob("*.oci.tar")):
        podman("load", "-i", str(file))
        file.unlink()
    app, image = sorted(podman("images", "--format", "{{.Repository}}:{{.Tag}}").splitlines())
    found = json.loads(podman("image", "inspect", image))[0]
    print(f"test-image: {image}, {found['Architecture']}, {found['Size'] / 1e6:.0f} MB unpacked")
    parser = ["apparmor_parser", "--skip-kernel-load", "--skip-cache", f"{WORK}/apparmor.txt"]
    subprocess.run(parser, check=True)
    report("the app's AppArmor profile is valid")
    microphone = Microphone(WORK / "sound")
    with broker() as heard:
        try:
            check_container(image, microphone, heard)
            if not EMULATED:  # whose restarts take minutes
                check_app(app, microphone, heard)
        except CheckError as error:
            print(f"test-image: FAILED: {error}")
            for name in ("room", "app"):
                print(podman("logs", "--tail", "20", name, status=None))
            return 1
    print(f"test-image: all passed in {time.monotonic() - begun_s:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
