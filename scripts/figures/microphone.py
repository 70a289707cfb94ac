"""Measure how soon sound is captured again after the microphone was lost, stalled or killed.

    scripts/measure microphone [TIMES] [--idle SECONDS]

A private PulseAudio microphone, and the capture supervisor in a process of its own. Counted is from
the device's return (or from the fault, where nothing has to return) to the first frame of sound.
`--idle`: CPU and memory of the supervisor and of its reader instead, with a microphone and without.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from rigs import microphone as rig_microphone

TARGET_S = 3.0
SUPERVISOR = """
import sys, tempfile, time
from pathlib import Path
from appliance.daemon.capture_supervisor import CaptureSupervisor
from appliance.daemon.health import Health
from appliance.daemon.mute import Mute
from appliance.config import CaptureSettings

last = 0
def hear(frame):
    global last
    if supervisor._recorder.pid != last:
        last = supervisor._recorder.pid
        print("frame", frame.start_s, time.monotonic(), last, flush=True)
def trouble():
    print("trouble", time.monotonic(), health.troubles(), flush=True)

health = Health()
health.on_change = trouble
settings = CaptureSettings(device=sys.argv[1], silence_s=float(sys.argv[2]))
supervisor = CaptureSupervisor(settings, health, Mute(Path(tempfile.mkdtemp())), hear, lambda: None)
supervisor.listen(lambda: None)
"""


class Listener:
    """A capture supervisor in another process, and the lines that it prints."""

    def __init__(
        self, microphone: rig_microphone.PulseMicrophone, device: str = "", silence_s: float = 0.0
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISOR, device, str(silence_s)],
            env=microphone.environment,
            stdout=subprocess.PIPE,
        )
        self.pid = self._process.pid
        self.reader = 0
        """Process that reads the microphone, as of the last frame that was told."""
        self._text = b""

    def wait(self, what: str, within_s: float = 30.0) -> list[str]:
        """The words of the next line that begins with `what`."""
        assert self._process.stdout
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            line, newline, rest = self._text.partition(b"\n")
            if newline:
                self._text = rest
                words = line.decode().split()
                if words[0] == what:
                    if what == "frame":
                        self.reader = int(words[3])
                    return words[1:]
            elif select.select([self._process.stdout], [], [], 0.2)[0]:
                data = os.read(self._process.stdout.fileno(), 65536)
                if not data:
                    raise RuntimeError("the supervisor has ended")
                self._text += data
        raise TimeoutError(f"no {what} within {within_s:g} s")

    def frame_s(self, after_s: float) -> float:
        """When the first frame was there that was told after `after_s`."""
        while (seen_s := float(self.wait("frame")[1])) < after_s:
            pass
        return seen_s

    def kill(self) -> None:
        """Kill the supervisor."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def main() -> int:
    """Print the figures; 1 when a recovery takes longer than it may."""
    options = argparse.ArgumentParser()
    options.add_argument("times", nargs="?", type=int, default=5)
    options.add_argument("--idle", type=float, default=0.0)
    options_given = options.parse_args()
    if missing := rig_microphone.missing_packages():
        print(f"expected PulseAudio, found none: apt install {' '.join(missing)}", file=sys.stderr)
        return 69
    with tempfile.TemporaryDirectory() as name:
        microphone = rig_microphone.PulseMicrophone(Path(name) / "rig")
        with microphone:
            if options_given.idle:
                return idle(microphone, options_given.idle)
            return recoveries(microphone, options_given.times)


def recoveries(microphone: rig_microphone.PulseMicrophone, times: int) -> int:
    """Run each fault so many times."""
    slow = 0
    with Listener(microphone) as listener:
        listener.frame_s(0.0)
        faults: dict[str, Callable[[], float]] = {
            "unplugged for 4 s": lambda: gone(microphone.unplug, 4.0, microphone.plug),
            "server stopped for 4 s": lambda: gone(microphone.stop, 4.0, microphone.start),
            "server stalled for 4 s": lambda: gone(microphone.stall, 4.0, microphone.go_on),
            "server stalled for 12 s": lambda: gone(microphone.stall, 12.0, microphone.go_on),
            "reader killed": lambda: signalled(listener, signal.SIGKILL),
            "reader hangs": lambda: signalled(listener, signal.SIGSTOP),
        }
        for what, fault in faults.items():
            taken = []
            for _ in range(times):
                time.sleep(1.5)
                back_s = fault()
                taken.append(listener.frame_s(back_s) - back_s)
            middle, longest = statistics.median(taken), max(taken)
            print(f"{what}: median {middle:.2f} s, longest {longest:.2f} s of {times}", flush=True)
            slow += longest > TARGET_S
    return int(slow > 0)


def gone(take: Callable[[], object], seconds: float, bring: Callable[[], object]) -> float:
    """Take something away for a while; when it was brought back."""
    take()
    time.sleep(seconds)
    bring()
    return time.monotonic()


def signalled(listener: Listener, number: signal.Signals) -> float:
    """Send a signal to the reader; when that was."""
    begun_s = time.monotonic()
    os.kill(listener.reader, number)
    return begun_s


def idle(microphone: rig_microphone.PulseMicrophone, seconds: float) -> int:
    """What hearing silence costs, and what waiting for a microphone does."""
    with Listener(microphone) as listener:
        listener.frame_s(0.0)
        tell("hearing", listener.pid, seconds)
    with Listener(microphone, "no such microphone") as listener:
        listener.wait("trouble")
        time.sleep(1)
        tell("waiting", listener.pid, seconds)
    return 0


def tell(what: str, pid: int, seconds: float) -> None:
    """Share of a core and memory of the supervisor and its reader."""
    begun_s = cpu_s(pid)
    time.sleep(seconds)
    share = (cpu_s(pid) - begun_s) / seconds
    print(f"{what}: {share:.1%} of a core for the supervisor and its reader")
    for name, one in zip(("supervisor", "reader"), (pid, *children(pid)), strict=False):
        status = Path(f"/proc/{one}/smaps_rollup").read_text(encoding="ascii")
        kept = dict(line.split(":") for line in status.splitlines()[1:])
        rss, own = (int(kept[key].split()[0]) / 1024 for key in ("Rss", "Anonymous"))
        print(f"{what}: {name}: RSS {rss:.0f} MB, of which {own:.0f} MB are its own")


def children(pid: int) -> list[int]:
    """Processes that this one started."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(word) for word in text.split()]


def cpu_s(pid: int) -> float:
    """Seconds of CPU that a process and those that it started have used."""
    total = 0
    for one, of_children in ((pid, True), *((child, False) for child in children(pid))):
        text = Path(f"/proc/{one}/stat").read_text(encoding="utf-8")
        fields = text.rpartition(")")[2].split()
        total += sum(map(int, fields[11 : 15 if of_children else 13]))
    return total / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
