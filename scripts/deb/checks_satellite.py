"""What must hold of the package for a satellite: it waits, has another machine transcribe, and
changes places with the whole package without a loss."""

import shlex

from deb.checks import APT, CONFIG, SPOKEN, expect, hears, is_up, listens, restart
from deb.checks_user import USER, does, has_a_user, is_well, quiet_room, refused
from deb.container import Container

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
