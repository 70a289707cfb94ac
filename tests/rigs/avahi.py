"""A message bus of our own with a real avahi-daemon on it, and a server that is announced there."""

import asyncio
import io
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from rigs.needs import NOT_ROOT, absent, unless
from rigs.waiting import until

from appliance.system import lock
from appliance.wyoming.discovery import advertise, own_address

LOCK = Path(tempfile.gettempdir()) / "roomscribe-tests-avahi.lock"
BUS = """
<busconfig>
  <type>system</type>
  <listen>unix:path={path}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/><allow own="*"/>
    <allow send_type="method_call"/><allow send_type="signal"/>
    <allow send_requested_reply="true"/>
    <allow receive_type="method_call"/><allow receive_type="method_return"/>
    <allow receive_type="error"/><allow receive_type="signal"/>
  </policy>
</busconfig>
"""


def missing() -> str:
    """Reason why the rig cannot run; empty when nothing is missing."""
    if os.geteuid():
        return NOT_ROOT.format("an avahi-daemon of its own")
    if find_spec("jeepney") is None:
        return "not installed: jeepney (pip install jeepney)"
    if not own_address()[0].isdigit():
        return "no network: this machine has no address"
    return absent("avahi-daemon") or absent("dbus-daemon", package="dbus-bin")


needs_avahi = unless(missing())


class House:
    """A message bus, and an avahi-daemon on it that is started and stopped."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.bus = folder, folder / "bus"
        self._avahi: subprocess.Popen[bytes] | None = None
        self._lock: io.FileIO | None = None
        config = folder / "bus.conf"
        config.write_text(BUS.format(path=self.bus), encoding="utf-8")
        self._daemon = subprocess.Popen(
            ["dbus-daemon", "--nofork", "--nopidfile", f"--config-file={config}"],
            stderr=subprocess.DEVNULL,
        )
        until(self.bus.exists)
        (folder / "avahi.conf").write_text(
            f"[server]\nhost-name=house-{os.getpid()}\nuse-ipv6=no\n", encoding="utf-8"
        )

    def start_avahi(self) -> None:
        """Starts it with a /run/avahi-daemon of its own, as its PID file has a fixed path and
        another one may run; where no mounts are allowed (in most containers and in a chroot) with
        the machine's, once no other test uses that. Skips the test if a daemon does."""
        command, wrapper = "mkdir -p /run/avahi-daemon && ", ["unshare", "--mount"]
        if shutil.which("unshare") and not _status(*wrapper, "true"):
            command += "mount -t tmpfs none /run/avahi-daemon && "
        else:
            wrapper = []
            self._lock = self._lock or lock(LOCK, wait=True)
            if not _status("avahi-daemon", "--check"):
                pytest.skip("another avahi-daemon runs, and mount namespaces are not allowed")
        command += "exec avahi-daemon --no-drop-root --no-chroot --no-rlimits -f"
        log = self._folder / "avahi.log"
        with log.open("wb") as stream:
            self._avahi = subprocess.Popen(
                [*wrapper, "sh", "-c", f"{command} {self._folder}/avahi.conf"],
                env=os.environ | {"DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={self.bus}"},
                stderr=stream,
            )

        def is_up() -> bool:
            assert self._avahi and self._avahi.poll() is None, log.read_text("utf-8")
            return b"startup complete" in log.read_bytes()

        until(is_up)

    def stop_avahi(self) -> None:
        if self._avahi:
            self._avahi.terminate()
            self._avahi.wait()
            self._avahi = None

    def close(self) -> None:
        self.stop_avahi()
        self._daemon.kill()
        self._daemon.wait()
        if self._lock:
            self._lock.close()


def _status(*command: str) -> int:
    return subprocess.run(command, capture_output=True, check=False).returncode


@contextmanager
def announcing(instance: str, port: int) -> Iterator[list[str]]:
    """What is told while it is announced."""
    told: list[str] = []
    loop = asyncio.new_event_loop()
    announced = advertise(instance, port, told.append, look_s=0.2, again_s=0.1)
    task = loop.create_task(announced)

    def run() -> None:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(task)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield told
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()
