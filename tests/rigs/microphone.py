#!/usr/bin/env python3
"""A microphone without hardware: a private PulseAudio that plays files into its own null sink.

    with PulseMicrophone(folder) as microphone:
        subprocess.Popen([...], env=microphone.environment)   # its default device is the rig
        time.sleep(2)                                         # let it open the stream
        microphone.speak(Path("hello.wav"))

    tests/rigs/microphone.py FOLDER FILE...    speaks files; prints the environment first

Programs reach it through ALSA's `pulse` plugin. ALSA's configuration is read when PortAudio is
initialised, so the listening program is a process of its own with this environment. Works as root,
without D-Bus, and beside a running PulseAudio, of which it takes nothing.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray
from rigs.broker import Started
from rigs.waiting import PATIENCE_S

SINK = "roomscribe_rig"


def missing_packages() -> list[str]:
    """The Debian packages that the rig needs and that are not installed."""
    plugins = Path("/usr/lib").glob("*/alsa-lib/libasound_module_pcm_pulse.so")
    there = {
        "pulseaudio": bool(shutil.which("pulseaudio")),
        "pulseaudio-utils": bool(shutil.which("paplay") and shutil.which("pactl")),
        "libasound2-plugins": any(plugins),
    }
    return [package for package, found in there.items() if not found]


def missing() -> str:
    """Reason why the rig cannot run: the packages to install; empty when none is missing."""
    packages = " ".join(missing_packages())
    return f"not installed: {packages} (apt install {packages})" if packages else ""


class PulseMicrophone(Started):
    """A PulseAudio of its own, with all that it writes below `folder`."""

    def __init__(self, folder: Path, rate_hz: int = 16_000, channels: int = 1) -> None:
        """The microphone has that rate and so many channels; PulseAudio gives any other, too."""
        # norewinds: 50 ms at a time, as a sound card gives them; else the first come after 2 s
        self._sink = f"sink_name={SINK} rate={rate_hz} channels={channels} format=s16le norewinds=1"
        self._folder = folder.resolve()
        self._socket = self._folder / "native"
        self._server: subprocess.Popen[bytes] | None = None
        asound = self._folder / "asound.conf"
        self.environment = os.environ | {
            "ALSA_CONFIG_PATH": str(asound),
            "PULSE_SERVER": f"unix:{self._socket}",
            "PULSE_COOKIE": str(self._folder / "cookie"),
            "PULSE_RUNTIME_PATH": str(self._folder / "run"),
        }
        """For the program that listens."""

    def start(self) -> None:
        """Starts the server; raises RuntimeError with what it said when it does not come up."""
        (self._folder / "run").mkdir(parents=True, exist_ok=True, mode=0o700)
        (self._folder / "home").mkdir(exist_ok=True, mode=0o700)
        (self._folder / "asound.conf").write_text(
            "</usr/share/alsa/alsa.conf>\n"
            f'pcm.!default {{ type pulse server "unix:{self._socket}" device {SINK}.monitor }}\n'
            f'ctl.!default {{ type pulse server "unix:{self._socket}" }}\n',
            encoding="utf-8",
        )
        script = self._folder / "rig.pa"
        script.write_text(
            f"load-module module-native-protocol-unix auth-anonymous=1 socket={self._socket}\n"
            f"load-module module-null-sink {self._sink}\n"
            f"set-default-sink {SINK}\n"
            f"set-default-source {SINK}.monitor\n",
            encoding="utf-8",
        )
        options = ["--daemonize=no", "--exit-idle-time=-1", "--use-pid-file=no", "--realtime=no"]
        options.append("--log-level=error")
        folders = {"HOME": "home", "XDG_RUNTIME_DIR": "run"}
        home = {name: str(self._folder / folder) for name, folder in folders.items()}
        log = self._folder / "pulseaudio.log"
        with log.open("wb") as output:
            self._server = subprocess.Popen(
                # against stutter on a busy machine; who may not, goes on without
                ["nice", "-n", "-10", "pulseaudio", "-n", "-F", str(script), *options],
                env=self.environment | home,
                stdout=output,
                stderr=output,
            )
        deadline_s = time.monotonic() + PATIENCE_S
        while self._ask("info").returncode:
            if time.monotonic() > deadline_s or self._server.poll() is not None:
                self.stop()
                raise RuntimeError(f"PulseAudio does not start: {log.read_text(errors='replace')}")
            time.sleep(0.1)

    def speak(self, file: Path) -> None:
        """Plays a sound file (what libsndfile reads) into the microphone; back when it is over."""
        with self.play(file) as player:
            assert player.wait(PATIENCE_S) == 0

    def play(self, file: Path) -> subprocess.Popen[bytes]:
        """Begins to play a sound file."""
        return subprocess.Popen(["paplay", f"--device={SINK}", str(file)], env=self.environment)

    @contextmanager
    def playing(self, samples: NDArray[np.int16]) -> Iterator[None]:
        """Plays 16 kHz mono for the time of the `with`, at most."""
        soundfile.write(self._folder / "playing.wav", samples, 16_000)
        with self.play(self._folder / "playing.wav") as player:
            try:
                yield
            finally:
                player.kill()

    def unplug(self) -> None:
        """Takes the microphone away, as pulling its plug would."""
        self._ask("unload-module", "module-null-sink")

    def plug(self) -> None:
        """Brings it back."""
        self._ask("load-module", "module-null-sink", *self._sink.split())

    def add_source(self, name: str) -> str:
        """Adds another microphone, as its own device, and returns the number of its module."""
        return self._ask("load-module", "module-null-sink", f"sink_name={name}").stdout.decode()

    def rescue_streams(self) -> None:
        """Lets the server move streams whose source vanishes, as the usual configuration does."""
        self._ask("load-module", "module-rescue-streams")

    def remove_source(self, module: str) -> None:
        """Takes an added microphone away."""
        self._ask("unload-module", module.strip())

    def stall(self) -> None:
        """The server hangs: it neither answers nor gives sound."""
        if self._server:
            self._server.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """The server works again."""
        if self._server:
            self._server.send_signal(signal.SIGCONT)

    def mute(self, on: bool) -> None:
        """As in a mixer: it gives nothing but zeros."""
        self._ask("set-source-mute", f"{SINK}.monitor", "1" if on else "0")

    def listeners(self) -> int:
        """How many programs have it open."""
        return len(self._ask("list", "short", "source-outputs").stdout.splitlines())

    def stop(self) -> None:
        """Ends the server."""
        if self._server and self._server.poll() is None:
            self.go_on()
            self._server.send_signal(signal.SIGTERM)
            try:
                self._server.wait(5)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()

    def _ask(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["pactl", *words],
            env=self.environment,
            capture_output=True,
            check=False,
            timeout=PATIENCE_S,
        )


def main() -> int:
    """Speaks the files named on the command line."""
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 64
    if missing := missing_packages():
        print(f"expected PulseAudio, found none: apt install {' '.join(missing)}", file=sys.stderr)
        return 69
    with PulseMicrophone(Path(sys.argv[1])) as microphone:
        for name, value in microphone.environment.items():
            if name.startswith(("ALSA_", "PULSE_")):
                print(f"export {name}={value}", flush=True)
        input("press return when the listener is open")
        for file in sys.argv[2:]:
            microphone.speak(Path(file))
    return 0


if __name__ == "__main__":
    sys.exit(main())
